//! The CPU engine passes the engine suite, and survives failing memory.
//!
//! ```text
//! CpuEngine over owned memory ──► engine_suite, at every level of its kernels
//! CpuEngine over a memfd that shrinks ──► MemoryFault on that channel only
//! ```

use std::fs::File;

use memferry_clock::Instant;
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_cpu::CpuEngine;
use memferry_cpu::level::{self, Cpu, Level};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::{bus_error, frame};
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    CacheHint, Color24, Confined, Count2d, Descriptor, Engine, EngineCompletion, EngineKind, Failure, Fill2d,
    Operation, Outcome, Pattern, PixelSize, Plane, Region, Ticket,
};

struct Fixture(CpuEngine);

impl EngineFixture for Fixture {
    type Memory = Mapping;
    type Engine = CpuEngine;

    fn engine(&mut self) -> &mut CpuEngine {
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
fn the_suite_passes() {
    if let Some(forced) = level::forced().unwrap() {
        assert_eq!(Cpu::of_this_process().level, forced);
    }
    engine_suite(|setup: EngineSetup| Fixture(CpuEngine::new(setup.channels, setup.chunk_bytes)));
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes, and has the portable level only")]
fn the_suite_passes_at_every_level() {
    for level in Level::available() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_suite_passes"])
            .env(level::VARIABLE, level.name())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && output.contains("1 passed"), "{level}: {output}");
    }
}

/// A copy of the first `length` bytes.
fn copy(channel: u32, source: &Mapping, destination: &Mapping, length: u64) -> Descriptor<Mapping> {
    let region = |mapping: &Mapping| Region::new(mapping.clone(), 0, length).unwrap();
    let operation = Operation::Copy { source: region(source), destination: region(destination), length };
    Descriptor::new(channel, operation).unwrap()
}

/// Polls until idle; returns the completions by channel.
fn finish(engine: &mut CpuEngine) -> Vec<EngineCompletion> {
    let mut completions = Vec::new();
    while engine.poll(Instant::ORIGIN, &mut completions) {}
    completions.sort_by_key(|end| end.ticket);
    completions
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd")]
fn lost_memory_faults_only_its_channel() {
    bus_error::install().unwrap();
    let (descriptor, mapping) = frame::allocate(1 << 16, frame::Pages::Ordinary).unwrap();
    let page = mapping.page_bytes() as u64;
    // The memfd is unsealed, so it can shrink to its first two pages.
    File::from(descriptor).set_len(2 * page).unwrap();
    let sound = [1, 2, 3].map(|byte| Mapping::owned(vec![byte; 4 * page as usize]));
    let mut engine = CpuEngine::new(3, page);
    engine.post(copy(0, &mapping, &sound[0], 4 * page)).unwrap();
    engine.post(copy(1, &sound[1], &mapping, 4 * page)).unwrap();
    engine.post(copy(2, &sound[1], &sound[2], 4 * page)).unwrap();
    engine.ring_doorbell();
    let ends = finish(&mut engine)
        .into_iter()
        .map(|end| (end.outcome.result, end.outcome.bytes_done))
        .collect::<Vec<_>>();
    let faulted = (Err(Failure::MemoryFault), 2 * page);
    assert_eq!(ends, [faulted, faulted, (Ok(()), 4 * page)]);
    let mut bytes = vec![0; 4 * page as usize];
    sound[2].read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2));
    engine.post(copy(0, &sound[0], &sound[1], page)).unwrap();
    engine.ring_doorbell();
    assert_eq!(finish(&mut engine)[0].outcome.result, Ok(()), "the channel still works");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfd")]
fn only_read_only_destinations_are_refused() {
    let (descriptor, _writable) = frame::allocate(64, frame::Pages::Ordinary).unwrap();
    let read_only =
        Mapping::shared(std::os::fd::AsFd::as_fd(&descriptor), 64, Access::ReadOnly, 4096).unwrap();
    let owned = Mapping::owned(vec![9; 64]);
    let mut engine = CpuEngine::new(1, 64);
    let refused = engine.post(copy(0, &owned, &read_only, 64)).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Unsupported);
    let destination = Region::new(read_only.clone(), 0, 64).unwrap();
    let fill = Operation::Fill { destination, length: 64, pattern: Pattern::Byte(1) };
    let refused = engine.post(Descriptor::new(0, fill).unwrap()).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Unsupported);
    let ticket = engine.post(copy(0, &read_only, &owned, 64)).unwrap();
    engine.ring_doorbell();
    assert_eq!(
        finish(&mut engine),
        [EngineCompletion {
            ticket,
            outcome: Outcome { result: Ok(()), bytes_done: 64, value: 0, engine: EngineKind::Cpu }
        }]
    );
}

#[test]
fn a_poll_moves_short_jobs_up_to_a_chunk() {
    let memory = Mapping::owned(vec![0; 4096]);
    let mut engine = CpuEngine::new(8, 1000);
    let mut completions = Vec::new();
    let polls = |engine: &mut CpuEngine, completions: &mut Vec<_>| {
        engine.ring_doorbell();
        std::iter::repeat_with(|| engine.poll(Instant::ORIGIN, completions)).take_while(|more| *more).count()
            + 1
    };
    for channel in 0..8 {
        let _ = engine.post(copy(channel, &memory, &memory, 250)).unwrap();
    }
    assert_eq!(polls(&mut engine, &mut completions), 2);
    for channel in 0..8 {
        let _ = engine.post(copy(channel, &memory, &memory, 0)).unwrap();
    }
    assert_eq!((polls(&mut engine, &mut completions), completions.len()), (1, 16));
}

#[test]
fn turns_are_chunks_of_a_round() {
    let memory = [1, 2, 3, 4].map(|byte| Mapping::owned(vec![byte; 100]));
    let mut engine = CpuEngine::new(2, 10);
    let twice = engine.post(copy(0, &memory[0], &memory[1], 100)).unwrap();
    let never = engine.post(copy(1, &memory[2], &memory[3], 100)).unwrap();
    engine.set_turns(0, 2);
    engine.set_turns(1, 0);
    engine.ring_doorbell();
    let mut completions = Vec::new();
    let mut over = Vec::new();
    for _ in 0..3 {
        assert!(engine.poll(Instant::ORIGIN, &mut completions));
        over.push(engine.round_is_over());
    }
    assert_eq!(over, [false, true, false]);
    engine.set_turns(0, 0);
    assert!(engine.round_is_over(), "a suspended channel does not hold up the round");
    assert!(!engine.poll(Instant::ORIGIN, &mut completions));
    assert_eq!((engine.bytes_done(twice), engine.bytes_done(never)), (30, 0));
    engine.cancel(never);
    engine.poll(Instant::ORIGIN, &mut completions);
    assert_eq!(completions[0].ticket, never);
}

#[test]
fn a_poll_moves_one_chunk_of_one_channel() {
    let memory = [1, 2, 3, 4].map(|byte| Mapping::owned(vec![byte; 100]));
    let mut engine = CpuEngine::new(2, 10);
    let long = engine.post(copy(0, &memory[0], &memory[1], 100)).unwrap();
    let short = engine.post(copy(1, &memory[2], &memory[3], 10)).unwrap();
    engine.ring_doorbell();
    let mut completions = Vec::new();
    assert!(engine.poll(Instant::ORIGIN, &mut completions));
    assert_eq!((engine.bytes_done(long), engine.bytes_done(short)), (10, 0));
    assert!(!engine.round_is_over() && engine.poll(Instant::ORIGIN, &mut completions));
    assert!(engine.round_is_over());
    assert_eq!(
        completions,
        [EngineCompletion {
            ticket: short,
            outcome: Outcome { result: Ok(()), bytes_done: 10, value: 0, engine: EngineKind::Cpu }
        }]
    );
    engine.poll(Instant::ORIGIN, &mut completions);
    engine.cancel(long);
    assert!(!engine.poll(Instant::ORIGIN, &mut completions));
    let ticket = Ticket { channel: 0, serial: 1 };
    assert_eq!(
        completions[1],
        EngineCompletion {
            ticket,
            outcome: Outcome {
                result: Err(Failure::Cancelled),
                bytes_done: 20,
                value: 0,
                engine: EngineKind::Cpu
            }
        }
    );
    let mut bytes = [0; 100];
    memory[1].read(0, &mut bytes).unwrap();
    assert!(bytes[..20].iter().all(|byte| *byte == 1) && bytes[20..].iter().all(|byte| *byte == 2));
}

#[test]
fn scattered_pixels_get_a_short_chunk() {
    let memory = Mapping::owned(vec![0; 4 << 20]);
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1024, y_count: 1 };
    let destination = Plane { start: 0, x_step: 4096, y_step: 0 };
    let shape = Fill2d { count, destination, color: Color24::new(7).unwrap() };
    let region = Region::new(memory.clone(), 0, 4 << 20).unwrap();
    assert_eq!(first_poll(64 << 10, Operation::Fill2d { destination: region, shape }), 64);
}

/// Bytes the first poll of an operation visits.
fn first_poll(chunk_bytes: u64, operation: Operation<Region<Mapping>>) -> u64 {
    let mut engine = CpuEngine::new(1, chunk_bytes);
    let ticket = engine.post(Descriptor::new(0, operation).unwrap()).unwrap();
    engine.ring_doorbell();
    let mut completions = Vec::new();
    engine.poll(Instant::ORIGIN, &mut completions);
    engine.cancel(ticket);
    engine.poll(Instant::ORIGIN, &mut completions);
    assert_eq!(completions[0].outcome.result, Err(Failure::Cancelled));
    completions[0].outcome.bytes_done
}

#[test]
fn chunks_of_many_operands_touch_no_more() {
    const LENGTH: u64 = 256 << 10;
    let memory = [1, 2, 3].map(|byte| Mapping::owned(vec![byte; LENGTH as usize]));
    let region = |of: usize| Region::new(memory[of].clone(), 0, LENGTH).unwrap();
    let length = LENGTH;
    let seed = 0;
    for chunk in [64_u64 << 10, 1 << 10, 64, 63, 1] {
        let bounded = |name: &str, operands: u64, operation| {
            let visited = first_poll(chunk, operation);
            // Minimum: a line per operand, or the chunk if it is shorter than a line.
            let most = (2 * chunk).max(operands * chunk.min(64));
            assert!(visited > 0 && visited <= chunk, "{name}, {chunk}: {visited}");
            assert!(visited * operands <= most, "{name}, {chunk}: {visited} of {operands} operands");
            // Not too fine either: at most a line or a block is lost to rounding.
            let next = visited + if visited < 8192 { 64 } else { 8192 };
            assert!(next * operands.max(2) > 2 * chunk, "{name}, {chunk}: {visited} of {operands} operands");
        };
        for count in [1, 2, 3, 4, 5, 63, 64] {
            let sources = (0..count).map(|_| region(0)).collect();
            let xor = Operation::Xor { sources, destination: region(1), length };
            bounded("xor", count + 1, xor);
        }
        let destinations = [region(1), region(2)];
        bounded("dual copy", 3, Operation::DualCopy { source: region(0), destinations, length });
        let source = region(0);
        let destination = region(1);
        bounded("copy and crc", 2, Operation::CopyCrc { source, destination, length, seed });
        bounded("compare", 2, Operation::Compare { first: region(0), second: region(0), length });
        bounded("crc", 1, Operation::Crc { source: region(0), length, seed });
        let whole = Operation::Copy { source: region(0), destination: region(1), length };
        assert_eq!(first_poll(chunk, whole), chunk, "a copy keeps its chunk");
    }
}

#[test]
fn a_short_xor_runs_immediately_and_once() {
    let memory: Vec<Mapping> = (1..=8).map(|byte| Mapping::owned(vec![1 << (byte - 1); 1024])).collect();
    let region = |of: usize| Region::new(&memory[of], 0, 1024).unwrap();
    // The destination is also a source, so a repeated xor would undo itself.
    let xor = Operation::Xor { sources: (0..8).map(region).collect(), destination: region(3), length: 1024 };
    let confined = Confined::new(&xor, CacheHint::Auto).unwrap();
    let ended = CpuEngine::new(1, 64).perform(&confined).expect("it is short");
    assert_eq!((ended.result, ended.bytes_done), (Ok(()), 1024));
    let mut bytes = [0; 1024];
    memory[3].read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0xff; 1024]);
}
