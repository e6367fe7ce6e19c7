//! One device and one memory in virtual time, with work queues by configuration.
//!
//! ```text
//! engine or driver ─ Shared ─ model ─ Ram        completion records and lists: RamWords, the same memory
//!        └─ ModelPortal ─ posted or deferrable write ─┘
//! ```

use core::time::Duration;

use memferry_clock::Instant;
use memferry_conformance::EngineFixture;
use memferry_driven::{BusMemory, DSA_SLOTS, DsaEngine, DsaOptions, DsaRegisters, Pages, Shared};
use memferry_dsa::registers::descriptor::Descriptor as Raw;
use memferry_dsa::registers::offset::{Portal as Kind, portal};
use memferry_dsa::{
    ByWrite, DescriptorFile, DmaMemory, Dsa, Fault, Group, Limits, Portal, Queue, QueueConfig, Refused,
    WorkQueue,
};
use memferry_models::Ram;
use memferry_models::dsa::{Config, Dsa as Model, Pci};
use memferry_transfer::{Descriptor, Engine, EngineCompletion, Operation, Region};

pub(crate) const BASE: u32 = 0x8000_0000;
pub(crate) const RAM_BYTES: usize = 1 << 20;
/// Memory behind the rest: records first, then lists.
pub(crate) const RECORDS: u64 = BASE as u64 + RAM_BYTES as u64;
const LISTS: u64 = RECORDS + 0x4000;
const OWN_BYTES: usize = 0x1_4000;
pub(crate) const TIMEOUT: Duration = Duration::from_millis(1);

pub(crate) type Modelled = Model<Ram>;
pub(crate) type Control = Dsa<Shared<Modelled>, Shared<Modelled>>;

/// The processor's access to records and lists.
#[derive(Clone, Debug)]
pub(crate) struct RamWords(pub(crate) Shared<Modelled>);

impl DmaMemory for RamWords {
    fn read(&mut self, address: u64) -> u64 {
        let at = (address - u64::from(BASE)) as usize;
        self.0.with(|device| {
            u64::from_le_bytes(device.bus().bytes()[at..at + 8].try_into().expect("eight bytes"))
        })
    }

    fn write(&mut self, address: u64, word: u64) {
        let at = (address - u64::from(BASE)) as usize;
        self.0.with(|device| {
            device.bus_mut().bytes_mut()[at..at + 8].copy_from_slice(&word.to_le_bytes());
        });
    }
}

/// A portal of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelPortal {
    pub(crate) device: Shared<Modelled>,
    pub(crate) queue: u32,
    pub(crate) dedicated: bool,
}

impl Portal for ModelPortal {
    fn submit(&mut self, descriptor: &Raw) -> Result<(), Refused> {
        let offset = portal(self.queue, Kind::Limited);
        self.device.with(|device| match self.dedicated {
            true => {
                device.post(offset, descriptor.words);
                Ok(())
            }
            false if device.enqueue(offset, descriptor.with_pasid(5, false).words) => Ok(()),
            false => Err(Refused::Busy),
        })
    }
}

/// As the kernel's file of a work queue: it submits what is written.
impl DescriptorFile for ModelPortal {
    fn write(&mut self, bytes: &[u8; 64]) -> Result<usize, Refused> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[8 * at + byte]));
        let descriptor = Raw { words: core::array::from_fn(word) };
        self.submit(&descriptor).map(|()| 64)
    }
}

/// How the first work queue is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) dedicated: bool,
    pub(crate) entries: u16,
    pub(crate) lists: u16,
    /// Engines of the group, a bit each.
    pub(crate) engines: u64,
    pub(crate) config: Config,
}

impl Default for Setup {
    fn default() -> Self {
        Self { dedicated: true, entries: 32, lists: 8, engines: 0b1111, config: Config::default() }
    }
}

pub(crate) const fn queue_of(setup: &Setup) -> WorkQueue {
    WorkQueue {
        size: setup.entries,
        group: 0,
        dedicated: setup.dedicated,
        threshold: setup.entries,
        priority: 10,
        block_on_fault: false,
        max_transfer: None,
        max_batch: Some(5),
        pasid: if setup.dedicated { None } else { Some(5) },
    }
}

/// An enabled device with one enabled work queue, and what the queue accepts.
pub(crate) fn device(setup: &Setup) -> (Shared<Modelled>, Control, Limits) {
    let mut model = Model::new(setup.config, Ram::new(BASE.into(), vec![0; RAM_BYTES + OWN_BYTES]));
    model.set_pci(Pci { pasid: !setup.dedicated, ..Pci::default() });
    let device = Shared::new(model);
    let mut control = Dsa::new(device.clone(), device.clone());
    control.initialize(TIMEOUT).expect("the model is of version 1.0");
    let group = Group { engines: setup.engines, read_buffers_reserved: 0, read_buffers_allowed: None };
    control.configure(&[group], &[queue_of(setup)]).expect("within the rules");
    control.enable(TIMEOUT).expect("valid");
    control.enable_queue(0, TIMEOUT).expect("valid");
    let limits = control.limits(0).expect("it exists");
    (device, control, limits)
}

pub(crate) const fn queue_config(setup: &Setup) -> QueueConfig {
    let list_length = 32;
    QueueConfig {
        records: RECORDS,
        list: LISTS,
        lists: setup.lists,
        list_length,
        entries: setup.entries,
        attempts: 3,
    }
}

/// Touches pages in the model.
#[derive(Debug)]
pub(crate) struct Touch {
    pub(crate) device: Shared<Modelled>,
    pub(crate) touched: u32,
    pub(crate) refuses: bool,
}

impl Pages for Touch {
    fn touch(&mut self, fault: &Fault) -> bool {
        self.touched += 1;
        if let Some(address) = fault.address.filter(|_| !self.refuses) {
            self.device.with(|device| device.faults().touch(address));
        }
        !self.refuses
    }
}

pub(crate) type Tested<P> = DsaEngine<Modelled, P, RamWords, Touch>;

pub(crate) struct Fixture<P> {
    pub(crate) engine: Tested<P>,
    pub(crate) device: Shared<Modelled>,
    pub(crate) used: usize,
    pub(crate) now: Instant,
}

impl<P: Portal> Fixture<P> {
    pub(crate) fn with(
        setup: &Setup,
        channels: u32,
        options: DsaOptions,
        refuses: bool,
        portal: impl FnOnce(ModelPortal) -> P,
    ) -> Self {
        let (device, _, limits) = device(setup);
        let way = ModelPortal { device: device.clone(), queue: 0, dedicated: setup.dedicated };
        let queue: Queue<P, RamWords, DSA_SLOTS> =
            Queue::new(portal(way), RamWords(device.clone()), limits, queue_config(setup))
                .expect("within the rules");
        let control = DsaRegisters::new(device.clone(), 0, TIMEOUT);
        let pages = Touch { device: device.clone(), touched: 0, refuses };
        let engine = DsaEngine::new(control, queue, pages, channels, options);
        let now = device.with(|device| device.now());
        Self { engine, device, used: 0, now }
    }

    /// Polls at the engine's next wake time; returns whether there was one.
    pub(crate) fn turn(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let Some(wake) = self.engine.next_wake() else { return false };
        self.now = self.now.max(wake);
        self.engine.poll(self.now, completions);
        true
    }

    pub(crate) fn finish(&mut self) -> Vec<EngineCompletion> {
        let mut completions = Vec::new();
        self.engine.poll(self.now, &mut completions);
        while self.turn(&mut completions) {}
        completions
    }

    /// A copy of `length` bytes between newly allocated memories.
    pub(crate) fn copy(&mut self, channel: u32, length: usize) -> Descriptor<BusMemory> {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + 7) as u8).collect();
        let source = self.allocate(&bytes);
        let destination = self.allocate(&vec![0; length]);
        let region = |memory| Region::new(memory, 0, length as u64).expect("inside");
        let operation = Operation::Copy {
            source: region(source),
            destination: region(destination),
            length: length as u64,
        };
        Descriptor::new(channel, operation).expect("inside")
    }

    pub(crate) fn assert_no_complaints(&self) {
        let complaints = self.device.with(|device| device.take_complaints());
        let words: Vec<String> = complaints.iter().map(ToString::to_string).collect();
        assert_eq!(words, Vec::<String>::new());
    }
}

impl Fixture<ModelPortal> {
    pub(crate) fn new(channels: u32, options: DsaOptions) -> Self {
        Self::with(&Setup::default(), channels, options, false, |portal| portal)
    }
}

impl Fixture<ByWrite<ModelPortal>> {
    pub(crate) fn by_write(setup: &Setup, channels: u32, options: DsaOptions) -> Self {
        Self::with(setup, channels, options, false, ByWrite)
    }
}

impl<P: Portal> EngineFixture for Fixture<P> {
    type Memory = BusMemory;
    type Engine = Tested<P>;

    fn engine(&mut self) -> &mut Self::Engine {
        &mut self.engine
    }

    fn allocate(&mut self, bytes: &[u8]) -> BusMemory {
        let at = self.used;
        self.used = (at + bytes.len()).next_multiple_of(64);
        assert!(self.used <= RAM_BYTES);
        self.device.with(|device| device.bus_mut().bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes));
        BusMemory::new(BASE + at as u32, bytes.len() as u64).expect("in 32 bits")
    }

    fn contents(&self, memory: &BusMemory) -> Vec<u8> {
        let at = (memory.address() - BASE) as usize;
        let length = memferry_transfer::Memory::length(memory) as usize;
        self.device.with(|device| device.bus().bytes()[at..at + length].to_vec())
    }

    fn is_same(&self, one: &BusMemory, other: &BusMemory) -> bool {
        one == other
    }
}
