//! Test fixture: one device and one memory in virtual time.
//!
//! ```text
//! engine or driver ─ Shared ─ model ─ Ram          descriptors and completion words: RamWords, the same memory
//! ```
//!
//! Tests access memory directly.

use memferry_clock::Instant;
use memferry_conformance::EngineFixture;
use memferry_driven::{BusMemory, IoatEngine, IoatOptions, Shared};
use memferry_drivers::ioat::DmaMemory;
use memferry_models::Ram;
use memferry_models::ioat::{Config, Ioat};
use memferry_registers::Device;
use memferry_transfer::{Descriptor, Engine, EngineCompletion, Operation, Region};

pub(crate) const BASE: u32 = 0x8000_0000;
pub(crate) const RAM_BYTES: usize = 1 << 20;
/// Size of the ring memory behind the rest of the memory.
pub(crate) const RING_BYTES: usize = 1 << 14;

pub(crate) type Modelled = Ioat<Ram>;

/// The processor's access to the rings.
#[derive(Debug)]
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

pub(crate) fn device() -> Shared<Modelled> {
    device_of(Config::default())
}

pub(crate) fn device_of(config: Config) -> Shared<Modelled> {
    Shared::new(Ioat::new(config, Ram::new(BASE.into(), vec![0; RAM_BYTES + RING_BYTES])))
}

pub(crate) struct Fixture {
    pub(crate) engine: IoatEngine<Modelled, RamWords>,
    pub(crate) device: Shared<Modelled>,
    pub(crate) used: usize,
    pub(crate) now: Instant,
    /// Polls that found the interrupt line high.
    pub(crate) rises: u32,
}

impl Fixture {
    pub(crate) fn new(channels: u32, options: IoatOptions) -> Self {
        Self::with_rings(RING_BYTES as u64, channels, options)
    }

    /// A fixture with `bytes` of ring memory.
    pub(crate) fn with_rings(bytes: u64, channels: u32, options: IoatOptions) -> Self {
        let device = device();
        let rings = BusMemory::new(BASE + RAM_BYTES as u32, bytes).expect("in 32 bits");
        let memory = (RamWords(device.clone()), rings);
        let engine =
            IoatEngine::new(device.clone(), memory, channels, options).expect("the driver accepts the model");
        Self { engine, device, used: 0, now: Instant::ORIGIN, rises: 0 }
    }

    /// Polls at the engine's next wake time; returns whether there was one.
    pub(crate) fn turn(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let Some(wake) = self.engine.next_wake() else { return false };
        self.now = self.now.max(wake);
        self.device.with(|device| device.advance(wake));
        self.rises += u32::from(self.device.with(|device| device.is_high(0)));
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
        let source = self.allocate(&vec![7; length]);
        let destination = self.allocate(&vec![0; length]);
        copy_between(channel, source, destination)
    }

    pub(crate) fn assert_no_complaints(&self) {
        let complaints = self.device.with(|device| device.take_complaints());
        let words: Vec<String> = complaints.iter().map(ToString::to_string).collect();
        assert_eq!(words, Vec::<String>::new());
    }
}

pub(crate) fn copy_between(channel: u32, source: BusMemory, destination: BusMemory) -> Descriptor<BusMemory> {
    let length = memferry_transfer::Memory::length(&source);
    let region = |memory| Region::new(memory, 0, length).expect("inside");
    let source = region(source);
    let destination = region(destination);
    Descriptor::new(channel, Operation::Copy { source, destination, length }).expect("inside")
}

impl EngineFixture for Fixture {
    type Memory = BusMemory;
    type Engine = IoatEngine<Modelled, RamWords>;

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
