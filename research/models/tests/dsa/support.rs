//! A device with memory, configured by plain register writes.

use memferry_clock::Instant;
use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::control::{Cmdsts, Command, CommandError};
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation};
use memferry_dsa_registers::error::SoftwareError;
use memferry_dsa_registers::offset::{self, Portal, Tables, portal};
use memferry_dsa_registers::record::Record;
use memferry_dsa_registers::table::{Grpflags, QueueLimits, QueueMode, word};
use memferry_models::dsa::{Config, Dsa, Pci, Reason};
use memferry_models::{Bus, Ram};

pub(crate) const BASE: u64 = 0x8000_0000;
pub(crate) const SIZE: usize = 0x10_0000;
/// Completion records are at the end of memory.
pub(crate) const RECORDS: u64 = BASE + SIZE as u64 - 0x1_0000;
pub(crate) const LIST: u64 = RECORDS - 0x1_0000;
pub(crate) const TABLES: Tables =
    Tables { groups: 0x600, queues: 0x800, permissions: 0x400, queue_bytes: 64 };

pub(crate) fn pattern() -> Vec<u8> {
    (0..SIZE as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

/// A work queue to configure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wq {
    pub(crate) size: u32,
    pub(crate) threshold: u32,
    pub(crate) mode: QueueMode,
    pub(crate) limits: QueueLimits,
}

pub(crate) const DEDICATED: Wq = Wq {
    size: 16,
    threshold: 0,
    mode: QueueMode::new().with_dedicated(true).with_priority(10),
    limits: QueueLimits::new().with_max_transfer(20).with_max_batch(6),
};
pub(crate) const SHARED: Wq =
    Wq { threshold: 12, mode: QueueMode::new().with_priority(10).with_pasid_enable(true), ..DEDICATED };

pub(crate) struct Board {
    pub(crate) dsa: Dsa<Ram>,
    /// Completion records that descriptors were given.
    records: u64,
}

impl Board {
    pub(crate) fn with(config: Config) -> Self {
        Self { dsa: Dsa::new(config, Ram::new(BASE, pattern())), records: 0 }
    }

    /// A board whose device is enabled, with all engines in the group of these queues.
    pub(crate) fn new(queues: &[Wq]) -> Self {
        Self::engines(Config::default(), 0b1111, queues)
    }

    pub(crate) fn engines(config: Config, engines: u64, queues: &[Wq]) -> Self {
        let mut board = Self::with(config);
        let pasid = queues.iter().any(|queue| queue.mode.pasid_enable());
        board.dsa.set_pci(Pci { pasid, page_requests: true, ..Pci::default() });
        board.group(0, (1 << queues.len()) - 1, engines);
        for (index, queue) in (0..).zip(queues) {
            board.queue(index, queue);
        }
        assert_eq!(board.command(Command::EnableDevice), None);
        for index in 0..queues.len() {
            assert_eq!(board.command(Command::EnableQueue(index as u8)), None);
        }
        board
    }

    /// A board with one dedicated queue.
    pub(crate) fn dedicated() -> Self {
        Self::new(&[DEDICATED])
    }

    pub(crate) fn group(&mut self, group: u32, queues: u64, engines: u64) {
        self.dsa.write64(TABLES.group_queues(group, 0), queues);
        self.dsa.write64(TABLES.group_engines(group), engines);
        let flags = Grpflags::new().with_read_buffers_allowed(96);
        self.dsa.write64(TABLES.group_flags(group), flags.into_bits());
    }

    pub(crate) fn queue(&mut self, index: u32, queue: &Wq) {
        self.dsa.write32(TABLES.queue(index, word::SIZE), queue.size);
        self.dsa.write32(TABLES.queue(index, word::THRESHOLD), queue.threshold);
        self.dsa.write32(TABLES.queue(index, word::MODE), queue.mode.into_bits());
        self.dsa.write32(TABLES.queue(index, word::LIMITS), queue.limits.into_bits());
    }

    /// Gives a command and lets the device run until it ends; its error.
    pub(crate) fn command(&mut self, command: Command) -> Option<CommandError> {
        self.dsa.write32(offset::CMD, command.encode(false).into_bits());
        self.ended()
    }

    pub(crate) fn ended(&mut self) -> Option<CommandError> {
        for _ in 0..1_000_000 {
            let status = Cmdsts::from_bits(self.dsa.read32(offset::CMDSTS));
            if !status.active() {
                return CommandError::from_code(status.error());
            }
            let wake = self.dsa.next_wake().expect("a command ends");
            self.dsa.step(wake);
        }
        panic!("the command does not end");
    }

    /// A descriptor with a fresh completion record; the record's address is in it.
    pub(crate) fn describe(&mut self, operation: Operation, flags: Flags) -> Descriptor {
        let address = RECORDS + 32 * (self.records % 2000);
        self.records += 1;
        self.put(address, &[0; 4]);
        Descriptor::new(&operation, flags).with_record(address)
    }

    /// Posts to queue 0.
    pub(crate) fn post(&mut self, descriptor: &Descriptor) {
        self.dsa.post(portal(0, Portal::Limited), descriptor.words);
    }

    /// Posts to queue 0 and runs until nothing is due; the record.
    pub(crate) fn execute(&mut self, descriptor: &Descriptor) -> Record {
        self.post(descriptor);
        self.run();
        self.record(descriptor)
    }

    pub(crate) fn put(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.dsa.bus_mut().write(address, &bytes).expect("on the board");
    }

    pub(crate) fn record(&self, descriptor: &Descriptor) -> Record {
        let bytes = self.memory(descriptor.record(), 32);
        let word = |at: usize| u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("eight"));
        Record::from_words([word(0), word(1), word(2), word(3)])
    }

    pub(crate) fn status(&self, descriptor: &Descriptor) -> u8 {
        self.record(descriptor).head.status()
    }

    /// Steps until nothing is due and returns the time.
    pub(crate) fn run(&mut self) -> Instant {
        for _ in 0..10_000_000 {
            match self.dsa.next_wake() {
                Some(due) => self.dsa.step(due),
                None => return self.dsa.now(),
            };
        }
        panic!("the device still has events after 10,000,000 steps");
    }

    pub(crate) fn memory(&self, address: u64, length: usize) -> &[u8] {
        &self.dsa.bus().bytes()[(address - BASE) as usize..][..length]
    }

    pub(crate) fn take_error(&mut self) -> SoftwareError {
        let words = [0, 8, 16, 24].map(|at| self.dsa.read64(offset::SWERR + at));
        self.dsa.write32(offset::SWERR, 0b11);
        SoftwareError::from_words(words)
    }

    pub(crate) fn reasons(&mut self) -> Vec<Reason> {
        self.dsa.take_complaints().iter().map(|complaint| complaint.reason).collect()
    }
}

pub(crate) fn moved(from: u64, to: u64, bytes: u32) -> Operation {
    Operation::Move { source: BASE + from, destination: BASE + to, bytes }
}
