//! The SDMA driver on the device model: as an engine they keep the engine contract, with and without faults.
//!
//! ```text
//! SdmaEngine ─ driver ─ registers ─ model ─ RAM, a peripheral's register ──► engine_suite, in virtual time
//! faults    bus errors, lost interrupts, stuck channels ──► only that transfer ends with an error; reset
//! lists     scatter-gather by linked lists of descriptors
//! devices   transfers driven by a request line
//! ```

mod devices;
mod faults;
mod lists;

use std::cell::RefCell;
use std::rc::Rc;

use memferry_clock::Instant;
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_driven::{BusMemory, ListMemory, SdmaEngine, SdmaOptions, Shared};
use memferry_drivers::sdma::CacheMaintenance;
use memferry_models::sdma::{Config, Sdma};
use memferry_models::{Ram, WithRegister};
use memferry_transfer::{Descriptor, Engine, EngineCompletion, Operation, Pattern, Region};

const BASE: u32 = 0x8000_0000;
const RAM_BYTES: usize = 1 << 20;
/// Address of the peripheral's data register.
const REGISTER: u32 = 0x4806_0000;
/// Size of the descriptor memory behind the rest of the memory.
const LIST_BYTES: usize = 1 << 16;

type Modelled = Sdma<WithRegister<Ram>>;

/// Descriptor memory in the model's RAM.
#[derive(Debug)]
struct Descriptors(Shared<Modelled>);

impl ListMemory for Descriptors {
    fn memory(&self) -> BusMemory {
        BusMemory::new(BASE + RAM_BYTES as u32, LIST_BYTES as u64).expect("in 32 bits")
    }

    fn write(&mut self, first: usize, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let at = RAM_BYTES + 4 * first;
        self.0.with(|device| {
            device.bus_mut().bus_mut().bytes_mut()[at..][..bytes.len()].copy_from_slice(&bytes)
        });
    }
}

struct Fixture {
    engine: SdmaEngine<Modelled>,
    device: Shared<Modelled>,
    used: usize,
    now: Instant,
}

impl Fixture {
    fn new(channels: u32, options: SdmaOptions) -> Self {
        Self::over(Config::default(), channels, options)
    }

    fn over(config: Config, channels: u32, options: SdmaOptions) -> Self {
        let ram = Ram::new(BASE.into(), vec![0; RAM_BYTES + LIST_BYTES]);
        let device = Shared::new(Sdma::new(config, WithRegister::new(ram, REGISTER)));
        let engine = SdmaEngine::new(device.clone(), channels, options).expect("the model resets");
        Self { engine, device, used: 0, now: Instant::ORIGIN }
    }

    /// A fixture with descriptor memory.
    fn with_lists(channels: u32, options: SdmaOptions) -> Self {
        let fixture = Self::new(channels, options);
        let engine = fixture.engine.with_lists(Box::new(Descriptors(fixture.device.clone())));
        Self { engine, ..fixture }
    }

    fn finish(&mut self) -> Vec<EngineCompletion> {
        let mut completions = Vec::new();
        self.engine.poll(self.now, &mut completions);
        while let Some(wake) = self.engine.next_wake() {
            self.now = self.now.max(wake);
            self.engine.poll(self.now, &mut completions);
        }
        completions
    }

    /// A copy of `length` bytes between newly allocated memories.
    fn copy(&mut self, channel: u32, length: usize) -> Descriptor<BusMemory> {
        let source = self.allocate(&vec![7; length]);
        let destination = self.allocate(&vec![0; length]);
        let region = |memory| Region::new(memory, 0, length as u64).expect("inside");
        let source = region(source);
        let destination = region(destination);
        Descriptor::new(channel, Operation::Copy { source, destination, length: length as u64 })
            .expect("inside")
    }
}

impl EngineFixture for Fixture {
    type Memory = BusMemory;
    type Engine = SdmaEngine<Modelled>;

    fn engine(&mut self) -> &mut Self::Engine {
        &mut self.engine
    }

    fn allocate(&mut self, bytes: &[u8]) -> BusMemory {
        let at = self.used;
        self.used = (at + bytes.len()).next_multiple_of(64);
        self.device.with(|device| {
            device.bus_mut().bus_mut().bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes)
        });
        BusMemory::new(BASE + at as u32, bytes.len() as u64).expect("in 32 bits")
    }

    fn contents(&self, memory: &BusMemory) -> Vec<u8> {
        let at = (memory.address() - BASE) as usize;
        let length = memferry_transfer::Memory::length(memory) as usize;
        self.device.with(|device| device.bus().bus().bytes()[at..at + length].to_vec())
    }

    fn is_same(&self, one: &BusMemory, other: &BusMemory) -> bool {
        one == other
    }
}

#[test]
fn the_driver_on_the_model_passes_the_suite() {
    engine_suite(|setup: EngineSetup| {
        let chunk_bytes = setup.chunk_bytes;
        Fixture::new(setup.channels, SdmaOptions { chunk_bytes, ..SdmaOptions::default() })
    });
}

#[test]
fn the_suite_passes_with_linked_lists() {
    engine_suite(|setup: EngineSetup| {
        let chunk_bytes = setup.chunk_bytes;
        Fixture::with_lists(setup.channels, SdmaOptions { chunk_bytes, ..SdmaOptions::default() })
    });
}

#[test]
fn wide_patterns_are_written_byte_by_byte() {
    let mut fixture = Fixture::new(1, SdmaOptions { chunk_bytes: 16, ..SdmaOptions::default() });
    let memory = fixture.allocate(&[0; 64]);
    let destination = Region::new(memory, 1, 40).expect("inside");
    let fill = Operation::Fill { destination, length: 40, pattern: Pattern::Word(0x0403_0201) };
    fixture.engine.post(Descriptor::new(0, fill).expect("inside")).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.bytes_done, 40);
    let expected: Vec<u8> = [0].into_iter().chain((0..40).map(|at| 1 + at % 4)).chain([0; 23]).collect();
    assert_eq!(fixture.contents(&memory), expected);
}

/// A cache operation: its name, address and bytes.
type CacheOperation = (&'static str, u64, u64);

/// Records the engine's cache operations.
#[derive(Clone, Default)]
struct Maintained(Rc<RefCell<Vec<CacheOperation>>>);

impl CacheMaintenance for Maintained {
    fn clean(&mut self, address: u64, length: u64) {
        self.0.borrow_mut().push(("clean", address, length));
    }

    fn clean_and_invalidate(&mut self, address: u64, length: u64) {
        self.0.borrow_mut().push(("clean and invalidate", address, length));
    }

    fn invalidate(&mut self, address: u64, length: u64) {
        self.0.borrow_mut().push(("invalidate", address, length));
    }
}

#[test]
fn caches_are_maintained_per_transfer() {
    let maintained = Maintained::default();
    let mut fixture = Fixture::new(1, SdmaOptions { chunk_bytes: 64, ..SdmaOptions::default() });
    fixture.engine = fixture.engine.with_caches(Box::new(maintained.clone()));
    let copy = fixture.copy(0, 128);
    let Operation::Copy { source, destination, .. } = copy.operation() else { panic!("not a copy") };
    let from = u64::from(source.memory().address());
    let to = u64::from(destination.memory().address());
    fixture.engine.post(copy).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish().len(), 1);
    let around = |at| {
        let read = ("clean", from + at, 64);
        let written = ("clean and invalidate", to + at, 64);
        [read, written, ("invalidate", to + at, 64)]
    };
    assert_eq!(*maintained.0.borrow(), [around(0), around(64)].concat());
}
