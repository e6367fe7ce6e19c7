//! Address spaces: a bus that tells processes apart, and has absent pages of its own (3.13).

use std::collections::BTreeSet;

use memferry_clock::Instant;
use memferry_dsa_registers::control::{Cmdsts, Command};
use memferry_dsa_registers::descriptor::{Descriptor, Flags};
use memferry_dsa_registers::offset::{CMD, CMDSTS, Portal, portal};
use memferry_dsa_registers::record::{Record, Status};
use memferry_dsa_registers::table::{Grpflags, QueueLimits, QueueMode, word};
use memferry_dsa_registers::{PAGE_BYTES, RegisterIo};
use memferry_models::dsa::{Config, Dsa, Pci};
use memferry_models::{Bus, BusError, Ram};

use super::support::{BASE, TABLES, moved};

const PAGES: u64 = 16;
const RECORD: u64 = BASE + (PAGES - 1) * PAGE_BYTES;

/// The memory of two processes at the same addresses.
struct Processes {
    memory: [Ram; 2],
    current: u32,
    absent: BTreeSet<(u32, u64)>,
}

impl Processes {
    fn own(&mut self) -> &mut Ram {
        &mut self.memory[self.current as usize]
    }

    fn page(&self, address: u64) -> (u32, u64) {
        (self.current, address / PAGE_BYTES)
    }
}

impl Bus for Processes {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        self.own().read(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        self.own().write(address, bytes)
    }

    fn enter_space(&mut self, space: u32) {
        assert!(space < 2, "a space that nobody has");
        self.current = space;
    }

    fn translates(&mut self, address: u64, _write: bool) -> bool {
        !self.absent.contains(&self.page(address))
    }

    fn request_page(&mut self, address: u64, _write: bool) -> bool {
        let page = self.page(address);
        self.absent.remove(&page)
    }
}

/// A device with one shared queue.
fn device() -> Dsa<Processes> {
    let filled = |byte: u8| {
        let mut bytes = vec![byte; (PAGES * PAGE_BYTES) as usize];
        bytes[(RECORD - BASE) as usize..].fill(0);
        Ram::new(BASE, bytes)
    };
    let bus = Processes { memory: [filled(1), filled(2)], current: 0, absent: BTreeSet::new() };
    let mut dsa = Dsa::new(Config { translated: true, ..Config::default() }, bus);
    dsa.set_pci(Pci { pasid: true, page_requests: true, ..Pci::default() });
    dsa.write64(TABLES.group_queues(0, 0), 1);
    dsa.write64(TABLES.group_engines(0), 0b1111);
    dsa.write64(TABLES.group_flags(0), Grpflags::new().with_read_buffers_allowed(96).into_bits());
    let mode = QueueMode::new().with_priority(10).with_pasid_enable(true).with_block_on_fault(true);
    let limits = QueueLimits::new().with_max_transfer(20).with_max_batch(6);
    dsa.write32(TABLES.queue(0, word::SIZE), 16);
    dsa.write32(TABLES.queue(0, word::THRESHOLD), 16);
    dsa.write32(TABLES.queue(0, word::MODE), mode.into_bits());
    dsa.write32(TABLES.queue(0, word::LIMITS), limits.into_bits());
    for command in [Command::EnableDevice, Command::EnableQueue(0)] {
        dsa.write32(CMD, command.encode(false).into_bits());
        run(&mut dsa);
        assert_eq!(Cmdsts::from_bits(dsa.read32(CMDSTS)).error(), 0);
    }
    dsa
}

fn run(dsa: &mut Dsa<Processes>) {
    while let Some(wake) = dsa.next_wake() {
        dsa.step(wake.max(Instant::ORIGIN));
    }
}

fn submit(dsa: &mut Dsa<Processes>, descriptor: Descriptor, space: u32, record: u64) {
    let descriptor = descriptor.with_record(RECORD + 32 * record).with_pasid(space, false);
    assert!(dsa.enqueue(portal(0, Portal::Limited), descriptor.words));
}

fn record(dsa: &Dsa<Processes>, space: usize, record: u64) -> Record {
    let at = (RECORD - BASE + 32 * record) as usize;
    let bytes = &dsa.bus().memory[space].bytes()[at..at + 32];
    Record::from_words(core::array::from_fn(|word| {
        u64::from_le_bytes(core::array::from_fn(|byte| bytes[8 * word + byte]))
    }))
}

#[test]
fn each_descriptor_has_its_own_space() {
    let mut dsa = device();
    for space in 0..2 {
        let memory = &mut dsa.bus_mut().memory[space];
        memory.bytes_mut()[..PAGE_BYTES as usize].fill(10 + space as u8);
    }
    // They go through the device side by side.
    for number in 0..8 {
        let place = (1 + u64::from(number) / 2) * PAGE_BYTES;
        let descriptor = Descriptor::new(&moved(0, place, PAGE_BYTES as u32), Flags::new());
        submit(&mut dsa, descriptor, number % 2, number.into());
    }
    run(&mut dsa);
    for space in 0..2 {
        let bytes = dsa.bus().memory[space].bytes();
        let (moved, rest) = bytes.split_at(5 * PAGE_BYTES as usize);
        assert!(moved.iter().all(|byte| *byte == 10 + space as u8));
        assert!(rest[..PAGE_BYTES as usize].iter().all(|byte| *byte == 1 + space as u8));
        for number in 0..8 {
            let is_own = record(&dsa, space, number).head.status() == Status::Success.code();
            assert_eq!(is_own, number % 2 == space as u64, "record {number} of space {space}");
        }
    }
    assert!(dsa.complaints().is_empty());
}

#[test]
fn absent_pages_are_the_bus_own() {
    let mut dsa = device();
    dsa.bus_mut().absent.insert((1, BASE / PAGE_BYTES + 5));
    let descriptor = Descriptor::new(&moved(0, 4 * PAGE_BYTES, 2 * PAGE_BYTES as u32), Flags::new());
    for space in 0..2 {
        submit(&mut dsa, descriptor, space, 0);
    }
    run(&mut dsa);
    assert_eq!(record(&dsa, 0, 0).head.status(), Status::Success.code());
    let faulted = record(&dsa, 1, 0);
    assert_eq!(faulted.head.status(), Status::PageFault.code());
    assert_eq!((faulted.head.completed(), faulted.fault_address), (4096, BASE + 5 * PAGE_BYTES));
    // One that waits asks for it.
    let waits = descriptor.with_flags(Flags::new().with_block_on_fault(true));
    submit(&mut dsa, waits, 1, 1);
    run(&mut dsa);
    assert_eq!(record(&dsa, 1, 1).head.status(), Status::Success.code());
    assert!(dsa.bus().absent.is_empty());
}
