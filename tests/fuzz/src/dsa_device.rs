//! The model of Intel's DSA, against a guest that writes any register, any descriptor and any list.
//!
//! ```text
//! bytes ──► portals, registers, lists, faults, time ──► model over one memory
//!                                                        └─► it always comes to rest; no byte changes that no descriptor names
//! ```

use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::control::Command;
use memferry_dsa_registers::descriptor::{Descriptor, opcode};
use memferry_dsa_registers::offset::{CMD, Portal, Tables, portal};
use memferry_dsa_registers::table::{QueueLimits, QueueMode, word};
use memferry_models::dsa::{Config, Dsa, Pci};
use memferry_models::{Bus, Ram};

use crate::input::Input;

const BASE: u64 = 0x1_0000_0000;
const SIZE: u64 = 0x1_0000;
const LIST: u64 = BASE + 0xE000;
const TABLES: Tables = Tables { groups: 0x600, queues: 0x800, permissions: 0x400, queue_bytes: 64 };

/// Input: a byte for the device's kind, then steps of one byte and its operands (see `step`).
pub fn dsa_device(data: &[u8]) {
    let mut input = Input::new(data);
    let mut rig = Rig::new(input.u8());
    while !input.is_empty() {
        rig.step(&mut input);
    }
    rig.device.faults().clear();
    rig.rest();
    assert_eq!(rig.device.pending(), 0, "the device keeps nothing for ever");
    rig.check();
}

struct Rig {
    device: Dsa<Ram>,
    /// Memory as it was when a byte could last change.
    kept: Vec<u8>,
    /// Bytes that a descriptor named as destination or record.
    named: Vec<bool>,
    /// The device may have written the list: its descriptors may name anything.
    is_wild: bool,
}

impl Rig {
    fn new(kind: u8) -> Self {
        // Zeros in the list are descriptors that do nothing.
        let byte = |at: u64| if at < LIST - BASE { ((at * 7) >> 3) as u8 } else { 0 };
        let kept: Vec<u8> = (0..SIZE).map(byte).collect();
        let config = Config { translated: kind & 1 == 1, ..Config::default() };
        let mut device = Dsa::new(config, Ram::new(BASE, kept.clone()));
        device.set_pci(Pci { pasid: true, page_requests: true, ..Pci::default() });
        device.write64(TABLES.group_queues(0, 0), 0b11);
        device.write64(TABLES.group_engines(0), 1 + u64::from(kind >> 1 & 7));
        let limits = QueueLimits::new().with_max_transfer(13).with_max_batch(4);
        for queue in 0..2 {
            let mode = QueueMode::new()
                .with_dedicated(queue == 0)
                .with_priority((1 + (kind >> 4)).min(15))
                .with_pasid_enable(queue == 1)
                .with_block_on_fault(kind & 8 == 8);
            for (at, value) in [
                (word::SIZE, 8),
                (word::THRESHOLD, 6),
                (word::MODE, mode.into_bits()),
                (word::LIMITS, limits.into_bits()),
            ] {
                device.write32(TABLES.queue(queue, at), value);
            }
        }
        let mut rig = Self { device, kept, named: vec![false; SIZE as usize], is_wild: false };
        for command in [Command::EnableDevice, Command::EnableQueue(0), Command::EnableQueue(1)] {
            rig.device.write32(CMD, command.encode(false).into_bits());
            rig.rest();
        }
        rig
    }

    /// Runs until nothing is due. The number of events is bounded by what a few descriptors of 8 KiB can cause.
    fn rest(&mut self) {
        for _ in 0..1_000_000 {
            let Some(wake) = self.device.next_wake() else { return };
            self.device.step(wake);
        }
        panic!("the device never comes to rest");
    }

    fn name(&mut self, start: u64, bytes: u64) {
        let first = start.saturating_sub(BASE).min(SIZE) as usize;
        let end = start.saturating_add(bytes).saturating_sub(BASE).min(SIZE) as usize;
        self.named[first..end.max(first)].fill(true);
        self.is_wild |= end as u64 > LIST - BASE && end > first;
    }

    /// Names what a descriptor may write.
    fn announce(&mut self, descriptor: &Descriptor) {
        let writes = descriptor.operation().map_or([None; 2], |operation| operation.writes());
        writes.into_iter().flatten().for_each(|start| self.name(start, descriptor.size().into()));
        self.name(descriptor.record(), 32);
    }

    /// Words of a descriptor whose addresses are mostly in memory.
    fn words(input: &mut Input<'_>) -> [u64; 8] {
        let shape = input.u8();
        let mut words = input.words::<8>();
        if shape & 1 == 0 {
            words[0] = words[0] & 0x0000_419F_FFFF_FFFF & !0xFFFF_FFFF
                | u64::from(opcode::ALL[usize::from(shape >> 1) % opcode::ALL.len()]) << 56;
            words[1] = BASE + (words[1] & 0xFFE0);
            words[2] = if shape >> 1 == 1 { LIST } else { BASE + (words[2] & 0xFFFF) };
            words[3] = BASE + (words[3] & 0xFFFF);
            words[4] &= 0xF_0000_3FFF;
            (words[5], words[6], words[7]) = (0, 0, 0);
        }
        if words[0] >> 56 == u64::from(opcode::BATCH) && words[2] != LIST + 32 {
            // Elsewhere the bytes of data would be descriptors.
            words[2] = LIST;
        }
        words
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0..=2 => {
                let descriptor = Descriptor { words: Self::words(input) };
                self.announce(&descriptor);
                self.device.post(portal(0, Portal::Limited), descriptor.words);
            }
            3 => {
                let descriptor = Descriptor { words: Self::words(input) };
                self.announce(&descriptor);
                self.device.enqueue(portal(1, Portal::Limited), descriptor.words);
            }
            4 => {
                let index = u64::from(input.u8() % 16);
                let child = Descriptor { words: Self::words(input) };
                self.announce(&child);
                self.check();
                let bytes: Vec<u8> = child.words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.device.bus_mut().write(LIST + 64 * index, &bytes).expect("in memory");
                self.kept = self.device.bus().bytes().to_vec();
            }
            5 => {
                let offset = input.u64();
                let width = usize::from(input.u8() % 10);
                let bytes: Vec<u8> = (0..width).map(|_| input.u8()).collect();
                self.device.write(offset % 0x1_0000, &bytes);
            }
            6 => {
                let mut bytes = vec![0; usize::from(input.u8() % 10)];
                self.device.read(input.u64(), &mut bytes);
            }
            7 => self.device.write32(CMD, input.u32()),
            8 => {
                let address = BASE + u64::from(input.u32()) % SIZE;
                match input.u8() % 4 {
                    0 => self.device.faults().absent(address),
                    1 => self.device.faults().unresolvable(address),
                    2 => self.device.faults().bus_error_at(address..=address),
                    _ => self.device.faults().touch(address),
                }
            }
            9 => self.device.set_pci(Pci {
                bus_master: !input.u8().is_multiple_of(4),
                pasid: true,
                ..Pci::default()
            }),
            10 => {
                let until = self.device.now().after_picoseconds(u128::from(input.u32() % 50_000_000));
                self.device.step(until);
                let _vectors = self.device.take_messages();
            }
            _ => self.rest(),
        }
    }

    /// No byte changes that no descriptor named.
    fn check(&self) {
        if self.is_wild {
            return;
        }
        for (at, (old, new)) in self.kept.iter().zip(self.device.bus().bytes()).enumerate() {
            assert!(old == new || self.named[at], "byte {at:#x} changed");
        }
    }
}
