//! Conformance of the Linux module to the Engine contract. Needs `/dev/memferry`: `./x guest zcu102` and `./x guest x86` run it.
//!
//! ```text
//! ModuleEngine over memory registered with the module ──► engine_suite
//! ```

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memferry_clock::Instant;
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_kmod::ModuleEngine;
use memferry_kmod::device::{self, ModuleDevice, ModuleMemory};
use memferry_shm::mapping::Mapping;
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{Descriptor, Engine, Operation, Pattern, Region};
use rustix::event::{PollFd, PollFlags, Timespec};

struct Fixture {
    device: Arc<ModuleDevice>,
    engine: ModuleEngine,
}

fn open() -> Arc<ModuleDevice> {
    Arc::new(
        ModuleDevice::open(Path::new(device::PATH))
            .expect("cannot open the module's device; load the module"),
    )
}

impl EngineFixture for Fixture {
    type Memory = ModuleMemory;
    type Engine = ModuleEngine;

    fn engine(&mut self) -> &mut ModuleEngine {
        &mut self.engine
    }

    fn allocate(&mut self, bytes: &[u8]) -> ModuleMemory {
        self.device.register(Mapping::owned(bytes.to_vec())).unwrap()
    }

    fn contents(&self, memory: &ModuleMemory) -> Vec<u8> {
        let mut bytes = vec![0; memory.mapping().length_bytes()];
        memory.mapping().read(0, &mut bytes).unwrap();
        bytes
    }

    fn is_same(&self, one: &ModuleMemory, other: &ModuleMemory) -> bool {
        one.is(other)
    }

    /// Waits until the device is readable, since the module works without polls.
    fn wait(&mut self, now: Instant, next_wake: Option<Instant>) -> Instant {
        assert!(next_wake.is_some(), "a job runs, but the engine requests no further poll");
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        let ready = rustix::event::poll(
            &mut [PollFd::from_borrowed_fd(self.engine.as_fd(), PollFlags::IN)],
            Some(&timeout),
        );
        assert_eq!(ready, Ok(1), "the module completed nothing within ten seconds");
        now.after(Duration::from_micros(1))
    }
}

#[test]
#[ignore = "needs /dev/memferry; ./x guest runs it"]
fn the_module_passes_the_engine_suite() {
    engine_suite(|setup: EngineSetup| {
        let device = open();
        Fixture { engine: ModuleEngine::new(Arc::clone(&device), setup.channels), device }
    });
}

#[test]
#[ignore = "needs /dev/memferry; ./x guest runs it"]
fn a_dropped_engine_leaves_no_records() {
    let device = open();
    let memory = [1, 2].map(|byte| device.register(Mapping::owned(vec![byte; 4 << 20])).unwrap());
    let region = |of: usize| Region::new(memory[of].clone(), 0, 4 << 20).unwrap();
    let copy = Operation::Copy { source: region(0), destination: region(1), length: 4 << 20 };
    for _ in 0..4 {
        let mut engine = ModuleEngine::new(Arc::clone(&device), 8);
        let mut finished = Vec::new();
        assert!(!engine.poll(Instant::ORIGIN, &mut finished) && finished.is_empty(), "{finished:?}");
        for channel in 0..8 {
            engine.post(Descriptor::new(channel, copy.clone()).unwrap()).unwrap();
        }
        engine.ring_doorbell();
    }
    let mut records = Vec::new();
    device.take_records(&mut records).unwrap();
    assert!(records.is_empty(), "{records:?}");
}

#[test]
#[ignore = "needs /dev/memferry; ./x guest runs it"]
fn memory_of_another_device_is_unsupported() {
    let one = open();
    let other = open();
    let mut engine = ModuleEngine::new(one, 1);
    let memory = other.register(Mapping::owned(vec![1; 64])).unwrap();
    let destination = Region::new(memory, 0, 64).unwrap();
    let fill = Operation::Fill { destination, length: 64, pattern: Pattern::Byte(2) };
    let refused = engine.post(Descriptor::new(0, fill).unwrap()).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Unsupported);
}

#[test]
#[ignore = "needs /dev/memferry; ./x guest runs it"]
fn memory_that_cannot_be_pinned_is_refused() {
    let refused = open().register(Mapping::owned(Vec::new())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}
