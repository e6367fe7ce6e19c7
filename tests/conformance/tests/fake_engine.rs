//! The fake engine passes the engine suite, and its injected faults have the documented effects.
//!
//! ```text
//! FakeEngine ──► engine_suite           FakeEngine + Fault ──► completions in virtual time
//! ```

use memferry_clock::Instant;
use memferry_conformance::{EngineFixture, EngineSetup, FakeEngine, Fault, SimMemory, Timing, engine_suite};
use memferry_transfer::{
    Descriptor, Engine, EngineCompletion, EngineKind, Failure, Operation, Outcome, Pattern, Region, Ticket,
};

struct Fixture(FakeEngine);

impl EngineFixture for Fixture {
    type Memory = SimMemory;
    type Engine = FakeEngine;

    fn engine(&mut self) -> &mut FakeEngine {
        &mut self.0
    }

    fn allocate(&mut self, bytes: &[u8]) -> SimMemory {
        SimMemory::new(bytes.to_vec())
    }

    fn contents(&self, memory: &SimMemory) -> Vec<u8> {
        memory.contents()
    }

    fn is_same(&self, one: &SimMemory, other: &SimMemory) -> bool {
        one == other
    }
}

const TIMING: Timing = Timing { latency_ps: 1000, ps_per_byte: 10, preemption_bytes: Some(8) };

#[test]
fn passes_the_suite_with_chunked_cancels() {
    engine_suite(|setup: EngineSetup| {
        let timing = Timing { preemption_bytes: Some(setup.chunk_bytes), ..TIMING };
        Fixture(FakeEngine::new(setup.channels, timing))
    });
}

#[test]
fn passes_the_suite_without_running_cancels() {
    let timing = Timing { latency_ps: 0, ps_per_byte: 0, preemption_bytes: None };
    engine_suite(|setup: EngineSetup| Fixture(FakeEngine::new(setup.channels, timing)));
}

/// An engine whose channel 0 has been filling 100 bytes with ones since the origin.
fn filling(timing: Timing) -> (FakeEngine, SimMemory, Ticket) {
    let mut engine = FakeEngine::new(2, timing);
    let memory = SimMemory::new(vec![0; 100]);
    let destination = Region::new(memory.clone(), 0, 100).unwrap();
    let fill = Operation::Fill { destination, length: 100, pattern: Pattern::Byte(1) };
    let ticket = engine.post(Descriptor::new(0, fill).unwrap()).unwrap();
    engine.ring_doorbell();
    assert_eq!(polled(&mut engine, 0), []);
    (engine, memory, ticket)
}

fn polled(engine: &mut FakeEngine, picoseconds: u128) -> Vec<EngineCompletion> {
    let mut completions = Vec::new();
    assert!(!engine.poll(Instant::from_picoseconds(picoseconds), &mut completions));
    completions
}

fn ones(memory: &SimMemory) -> usize {
    memory.contents().iter().take_while(|byte| **byte == 1).count()
}

#[test]
fn a_transfer_ends_after_its_duration() {
    let (mut engine, memory, ticket) = filling(TIMING);
    assert_eq!(engine.next_wake(), Some(Instant::from_picoseconds(2000)));
    assert_eq!((polled(&mut engine, 1999), ones(&memory)), (vec![], 0));
    let end = EngineCompletion {
        ticket,
        outcome: Outcome { result: Ok(()), bytes_done: 100, value: 0, engine: EngineKind::Simulated },
    };
    assert_eq!((polled(&mut engine, 2000), ones(&memory)), (vec![end], 100));
    assert_eq!(engine.next_wake(), None);
}

#[test]
fn a_cancel_takes_effect_at_the_next_chunk() {
    let (mut engine, memory, ticket) = filling(TIMING);
    polled(&mut engine, 1401);
    engine.cancel(ticket);
    assert_eq!(engine.next_wake(), Some(Instant::from_picoseconds(1480)));
    let end = EngineCompletion {
        ticket,
        outcome: Outcome {
            result: Err(Failure::Cancelled),
            bytes_done: 48,
            value: 0,
            engine: EngineKind::Simulated,
        },
    };
    assert_eq!((polled(&mut engine, 1480), ones(&memory)), (vec![end], 48));
}

#[test]
fn a_failing_channel_fails_until_reset() {
    let (mut engine, memory, ticket) = filling(TIMING);
    engine.inject(0, Fault::Fails { failure: Failure::MemoryFault, after_bytes: 30 });
    let end = EngineCompletion {
        ticket,
        outcome: Outcome {
            result: Err(Failure::MemoryFault),
            bytes_done: 30,
            value: 0,
            engine: EngineKind::Simulated,
        },
    };
    assert_eq!((polled(&mut engine, 2000), ones(&memory)), (vec![end], 30));
    for (serial, outcome) in [(2, Err(Failure::MemoryFault)), (3, Ok(()))] {
        let ticket = engine.post(Descriptor::new(0, Operation::Nop).unwrap()).unwrap();
        engine.ring_doorbell();
        polled(&mut engine, 2000);
        assert_eq!(ticket, Ticket { channel: 0, serial });
        assert_eq!(
            polled(&mut engine, 3000 * u128::from(serial)),
            [EngineCompletion {
                ticket,
                outcome: Outcome { result: outcome, bytes_done: 0, value: 0, engine: EngineKind::Simulated }
            }]
        );
        engine.reset(0);
    }
}

#[test]
fn a_hanging_channel_reports_after_reset() {
    let (mut engine, memory, ticket) = filling(TIMING);
    engine.inject(0, Fault::Hangs);
    engine.cancel(ticket);
    assert_eq!((polled(&mut engine, u128::MAX / 2), engine.next_wake()), (vec![], None));
    let other = engine.post(Descriptor::new(1, Operation::Nop).unwrap()).unwrap();
    engine.ring_doorbell();
    polled(&mut engine, u128::MAX / 2);
    engine.reset(0);
    let mut ends = polled(&mut engine, u128::MAX / 2 + 1000);
    ends.sort_by_key(|end| end.ticket);
    let faulted = EngineCompletion {
        ticket,
        outcome: Outcome {
            result: Err(Failure::ChannelFaulted),
            bytes_done: 0,
            value: 0,
            engine: EngineKind::Simulated,
        },
    };
    assert_eq!(
        ends,
        [
            faulted,
            EngineCompletion {
                ticket: other,
                outcome: Outcome { result: Ok(()), bytes_done: 0, value: 0, engine: EngineKind::Simulated }
            }
        ]
    );
    assert_eq!(ones(&memory), 0);
}
