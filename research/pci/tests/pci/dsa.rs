//! The DSA as a PCI device: identity, portals that are written in pieces, vectors, and the end of bus mastering.

use std::os::fd::OwnedFd;

use memferry_dsa_registers::control::{Cmdsts, Command, DeviceState, Gensts};
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation};
use memferry_dsa_registers::offset::{CMD, CMDSTS, GENSTS, Portal, SWERR, Tables, portal};
use memferry_dsa_registers::table::{QueueLimits, QueueMode, word};
use memferry_pci::dsa::DsaFunction;
use memferry_pci::message::{HEADER, Header, command};
use memferry_pci::{Device, Memory};
use rustix::event::EventfdFlags;

use super::support::{
    CONFIG, EVENTFD, TRIGGER, header, irqs_payload, map_payload, memfd, signals, u32s, u64s,
};

const BASE: u64 = 0x1_4000_0000;
const BYTES: u64 = 0x1_0000;
const RECORD: u64 = BASE + 0xF000;
const TABLES: Tables = Tables { groups: 0x600, queues: 0x800, permissions: 0x400, queue_bytes: 64 };
const MSI_X: u32 = 2;

struct Rig {
    device: Device<DsaFunction>,
    file: OwnedFd,
}

impl Rig {
    /// A device that is bus master, with memory and one enabled work queue.
    fn new() -> Self {
        memferry_shm::bus_error::install().unwrap();
        let memory = Memory::new();
        let device = Device::new(DsaFunction::new(memory.clone()), memory);
        let mut rig = Self { device, file: memfd(BYTES) };
        rig.send(command::VERSION, &[0, 0, 1, 0], vec![]);
        let file = rig.file.try_clone().unwrap();
        rig.send(command::DMA_MAP, &map_payload(3, 0, BASE, BYTES), vec![file]);
        rig.write(CONFIG, 4, &6_u16.to_le_bytes());
        rig.set64(TABLES.group_queues(0, 0), 1);
        rig.set64(TABLES.group_engines(0), 0b11);
        rig.set64(TABLES.group_flags(0), 96 << 20);
        let mode = QueueMode::new().with_dedicated(true).with_priority(1);
        let limits = QueueLimits::new().with_max_transfer(20).with_max_batch(5);
        rig.set32(TABLES.queue(0, word::SIZE), 16);
        rig.set32(TABLES.queue(0, word::MODE), mode.into_bits());
        rig.set32(TABLES.queue(0, word::LIMITS), limits.into_bits());
        assert_eq!(rig.command(Command::EnableDevice), 0);
        assert_eq!(rig.command(Command::EnableQueue(0)), 0);
        rig
    }

    fn send(&mut self, number: u16, payload: &[u8], fds: Vec<OwnedFd>) -> Vec<u8> {
        let sent = header(7, number, HEADER + payload.len(), 0);
        let bytes = self.device.handle(&Header::decode(&sent).unwrap(), payload, fds).unwrap().unwrap();
        assert_eq!(bytes[12..16], [0; 4], "command {number}: {:?}", self.device.take_report());
        bytes[HEADER..].to_vec()
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let payload = [u64s(&[offset]), u32s(&[region, data.len() as u32]), data.to_vec()].concat();
        self.send(command::REGION_WRITE, &payload, vec![]);
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let payload = [u64s(&[offset]), u32s(&[region, count])].concat();
        self.send(command::REGION_READ, &payload, vec![])[16..].to_vec()
    }

    fn set32(&mut self, offset: u32, value: u32) {
        self.write(0, offset.into(), &value.to_le_bytes());
    }

    fn set64(&mut self, offset: u32, value: u64) {
        self.write(0, offset.into(), &value.to_le_bytes());
    }

    fn get32(&mut self, offset: u32) -> u32 {
        u32::from_le_bytes(self.read(0, offset.into(), 4).try_into().unwrap())
    }

    fn run(&mut self) {
        while let Some(due) = self.device.next_wake() {
            self.device.advance(due);
        }
    }

    /// Gives a command; its error.
    fn command(&mut self, command: Command) -> u8 {
        self.set32(CMD, command.encode(false).into_bits());
        self.run();
        Cmdsts::from_bits(self.get32(CMDSTS)).error()
    }

    /// A fill of eight bytes at an offset of the memory.
    fn fill(&self, value: u64, at: u64) -> [u64; 8] {
        let operation = Operation::Fill { pattern: value, destination: BASE + at, bytes: 8 };
        Descriptor::new(&operation, Flags::new()).with_record(RECORD).words
    }

    /// Stores words of a line at a portal, by their places.
    fn store(&mut self, line: u64, words: &[u64; 8], places: impl IntoIterator<Item = usize>) {
        for place in places {
            let offset = portal(0, Portal::Limited) + line + 8 * place as u64;
            self.write(2, offset, &words[place].to_le_bytes());
        }
    }

    fn memory(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::pread(&self.file, &mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }
}

#[test]
fn it_is_a_dsa_of_the_first_generation() {
    let mut rig = Rig::new();
    assert_eq!(rig.read(CONFIG, 0, 4), [0x86, 0x80, 0x25, 0x0B]);
    assert_eq!(rig.get32(0), 0x100);
    assert_eq!(rig.read(2, 0x40, 8), [0xFF; 8], "portals read as ones");
    let wide = rig.read(0, 0x10, 8);
    assert_eq!(u64::from_le_bytes(wide.try_into().unwrap()) >> 16 & 0x1F, 31);
}

#[test]
fn eight_rising_stores_are_a_descriptor() {
    let mut rig = Rig::new();
    let first = rig.fill(1, 0x100);
    let second = rig.fill(2, 0x200);
    // Two lines, written in turns.
    for place in 0..8 {
        rig.store(0, &first, [place]);
        rig.store(0x40, &second, [place]);
    }
    rig.run();
    assert_eq!((rig.memory(0x100), rig.memory(0x200)), (1, 2));
    let whole: Vec<u8> = rig.fill(3, 0x300).iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(2, portal(0, Portal::Unlimited), &whole);
    rig.run();
    assert_eq!((rig.memory(0x300), rig.memory(0xF000) as u8), (3, 1));
    assert_eq!(rig.device.take_report(), Vec::<String>::new());
}

#[test]
fn other_stores_are_ignored_and_begin_anew() {
    let mut rig = Rig::new();
    let words = rig.fill(1, 0x100);
    rig.store(0, &words, [0, 1, 2, 3, 4, 5, 6]);
    rig.store(0, &words, [1]);
    rig.store(0, &words, [7]);
    rig.store(0, &words, [0, 1, 2, 3]);
    rig.write(2, portal(0, Portal::Limited) + 36, &[0; 4]);
    rig.store(0, &words, [4, 5, 6, 7]);
    rig.store(0, &words, (0..8).rev());
    rig.run();
    assert_eq!(rig.memory(0x100), 0);
    assert!(rig.device.take_report().len() >= 4);
    rig.store(0, &words, [1, 2, 3, 4, 5, 6, 7]);
    rig.run();
    assert_eq!(rig.memory(0x100), 1, "the reversed stores ended with a first word");
}

#[test]
fn a_vector_tells_of_the_completion() {
    let mut rig = Rig::new();
    let eventfds: Vec<OwnedFd> = (0..9)
        .map(|at| {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let eventfd = rustix::event::eventfd(0, flags).unwrap();
            let given = eventfd.try_clone().unwrap();
            rig.send(command::SET_IRQS, &irqs_payload(EVENTFD | TRIGGER, MSI_X, at, 1), vec![given]);
            eventfd
        })
        .collect();
    let words = Descriptor { words: rig.fill(1, 0x100) }.with_interrupt(5).words;
    rig.store(0, &words, 0..8);
    rig.run();
    let counts: Vec<u64> = eventfds.iter().map(signals).collect();
    assert_eq!(counts, [0, 0, 0, 0, 0, 1, 0, 0, 0]);
    rig.set32(CMD, Command::DrainAll.encode(true).into_bits());
    rig.run();
    assert_eq!(signals(&eventfds[0]), 1, "commands have vector 0");
}

#[test]
fn without_bus_mastering_it_halts_and_reads_nothing() {
    let mut rig = Rig::new();
    let words = rig.fill(1, 0x100);
    rig.store(0, &words, 0..8);
    rig.write(CONFIG, 4, &2_u16.to_le_bytes());
    rig.run();
    let status = Gensts::from_bits(rig.get32(GENSTS));
    assert_eq!((status.state(), rig.memory(0x100)), (DeviceState::Halted, 0));
    assert_eq!(rig.get32(SWERR) >> 8 & 0xFF, 0x51);
    rig.send(command::RESET, &[], vec![]);
    assert_eq!(Gensts::from_bits(rig.get32(GENSTS)).state(), DeviceState::Disabled);
}

#[test]
fn memory_outside_the_windows_is_an_error_of_the_descriptor() {
    let mut rig = Rig::new();
    let operation = Operation::Move { source: 0x1000, destination: BASE, bytes: 64 };
    let words = Descriptor::new(&operation, Flags::new()).with_record(RECORD).words;
    rig.store(0, &words, 0..8);
    rig.run();
    assert_eq!(rig.memory(0xF000) as u8, 0x20);
    let foreign = Descriptor::new(&operation, Flags::new()).with_record(0x2000).words;
    rig.store(0, &foreign, 0..8);
    rig.run();
    assert_eq!(rig.get32(SWERR) >> 8 & 0xFF, 0x1A);
    assert_eq!(rig.device.memory().traffic().refused, 3);
}
