//! The engine suite over a worker's engine with a device beside its CPU.

use memferry_clock::Instant;
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_cpu::CpuEngine;
use memferry_service::worker_engine::WorkerEngine;
use memferry_shm::mapping::Mapping;
use memferry_transfer::{Descriptor, Engine, Operation, Region};

/// A CPU engine with another as its device, which gets every transfer of memory used before.
struct Beside(WorkerEngine<CpuEngine>);

impl EngineFixture for Beside {
    type Memory = Mapping;
    type Engine = WorkerEngine<CpuEngine>;

    fn engine(&mut self) -> &mut Self::Engine {
        for mapping in self.0.take_wanted() {
            self.0.registered(&mapping, mapping.clone());
        }
        &mut self.0
    }

    fn allocate(&mut self, bytes: &[u8]) -> Mapping {
        Mapping::owned(bytes.to_vec())
    }

    fn contents(&self, memory: &Mapping) -> Vec<u8> {
        let mut bytes = vec![0; memory.length_bytes()];
        memory.read(0, &mut bytes).unwrap();
        bytes
    }

    fn is_same(&self, one: &Mapping, other: &Mapping) -> bool {
        one.is(other)
    }
}

#[test]
fn an_engine_with_a_device_passes_the_suite() {
    engine_suite(|setup: EngineSetup| {
        let make = || CpuEngine::new(setup.channels, setup.chunk_bytes);
        Beside(WorkerEngine::new(make()).with_device(make(), 1))
    });
    let mut worker = Beside(WorkerEngine::new(CpuEngine::new(1, 64)).with_device(CpuEngine::new(1, 64), 1));
    let memory = [worker.allocate(&[1; 64]), worker.allocate(&[2; 64])];
    for _ in 0..3 {
        worker.engine().post(copy(&memory[0], &memory[1])).unwrap();
        worker.engine().ring_doorbell();
        worker.engine().poll(Instant::ORIGIN, &mut Vec::new());
    }
    assert_eq!(worker.engine().counts().unwrap().transfers, 2, "at the first one the memory is unregistered");
}

/// A copy of the first 64 bytes.
fn copy(source: &Mapping, destination: &Mapping) -> Descriptor<Mapping> {
    let region = |memory: &Mapping| Region::new(memory.clone(), 0, 64).unwrap();
    let operation = Operation::Copy { source: region(source), destination: region(destination), length: 64 };
    Descriptor::new(0, operation).unwrap()
}
