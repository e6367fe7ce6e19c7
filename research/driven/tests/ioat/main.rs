//! The I/OAT driver on the device model: alone, and as an engine that keeps the engine contract, with and without faults.
//!
//! ```text
//! IoatEngine ─ driver ─ registers, descriptors in RAM ─ model ─ RAM ──► engine_suite, in virtual time
//! driver     random requests against a byte oracle; suspend, recovery, lost interrupts
//! faults     bus errors, bad descriptors, lost interrupts and completions, stuck channels ──► each transfer ends once; reset
//! life       random calls at random times, with lost interrupts and completions
//! rest       suspended channels come to rest and move nothing until resumed
//! ```

mod driver;
mod faults;
mod life;
mod machine;
mod rest;

use std::sync::Arc;

use core::time::Duration;

use machine::{BASE, Fixture};
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_driven::{BusMemory, Completion, IoatEngine, IoatInitError, IoatOptions};
use memferry_drivers::ioat::{OpenError, RingError};
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, Engine, Lists, MAX_SOURCES, Operation, Operations, Pattern, Region, Segment,
};

#[test]
fn the_driver_on_the_model_passes_the_suite() {
    engine_suite(|setup: EngineSetup| {
        let chunk_bytes = setup.chunk_bytes;
        Fixture::new(setup.channels, IoatOptions { chunk_bytes, ..IoatOptions::default() })
    });
}

#[test]
fn the_suite_passes_with_polling() {
    engine_suite(|setup: EngineSetup| {
        let completion = Completion::Poll(Duration::from_micros(2));
        let chunk_bytes = setup.chunk_bytes;
        Fixture::new(setup.channels, IoatOptions { chunk_bytes, completion, ..IoatOptions::default() })
    });
}

#[test]
fn the_suite_passes_with_minimal_rings() {
    engine_suite(|setup: EngineSetup| {
        let bytes = u64::from(setup.channels.min(4)) * 5 * 64;
        let chunk_bytes = setup.chunk_bytes;
        Fixture::with_rings(bytes, setup.channels, IoatOptions { chunk_bytes, ..IoatOptions::default() })
    });
}

#[test]
fn rings_without_room_are_refused() {
    let device = machine::device();
    let rings = BusMemory::new(BASE + machine::RAM_BYTES as u32, 4 * 5 * 64 - 1).expect("in 32 bits");
    let memory = (machine::RamWords(device.clone()), rings);
    let refused = IoatEngine::new(device, memory, 4, IoatOptions::default()).err();
    let small = OpenError::Ring(RingError::TooSmall { slots: 3 });
    assert_eq!(refused, Some(IoatInitError::Open(small)));
}

#[test]
fn a_cancelled_xor_leaves_whole_chunks() {
    cancel_xor(false);
}

#[test]
fn a_suspended_xor_leaves_whole_chunks() {
    cancel_xor(true);
}

/// Cancels an XOR of many sources after an increasing number of polls and checks the destination.
fn cancel_xor(suspended: bool) {
    let bytes = |seed: usize| (0..4000).map(|at| (at * seed * 7 + seed) as u8).collect::<Vec<u8>>();
    let sides: Vec<Vec<u8>> = (1..=20).map(bytes).collect();
    let all: Vec<u8> = (0..4000).map(|at| sides.iter().fold(0, |byte, side| byte ^ side[at])).collect();
    let mut parts = std::collections::BTreeSet::new();
    for polls in 0..60 {
        let mut fixture = Fixture::new(1, IoatOptions { chunk_bytes: 500, ..IoatOptions::default() });
        let memories: Vec<_> = sides.iter().map(|side| fixture.allocate(side)).collect();
        let region = |memory: &BusMemory| Region::new(*memory, 0, 4000).expect("inside");
        let sources = memories.iter().map(region).collect();
        let xor = Operation::Xor { sources, destination: region(&memories[0]), length: 4000 };
        let ticket = fixture.engine.post(Descriptor::new(0, xor).expect("inside")).expect("free");
        fixture.engine.ring_doorbell();
        let mut finished = Vec::new();
        for _ in 0..20 * polls {
            fixture.turn(&mut finished);
        }
        if suspended {
            fixture.engine.set_turns(0, 0);
            while !fixture.engine.is_at_rest(0) && fixture.turn(&mut finished) {}
        }
        fixture.engine.cancel(ticket);
        finished.extend(fixture.finish());
        assert_eq!(finished.len(), 1, "it ends once, after {polls} polls");
        let done = finished[0].outcome.bytes_done as usize;
        assert!(done.is_multiple_of(500), "{finished:?}");
        let expected = [&all[..done], &sides[0][done..]].concat();
        assert!(fixture.contents(&memories[0]) == expected, "{done} bytes after {polls} polls");
        fixture.assert_no_complaints();
        parts.insert(done);
    }
    assert!(parts.len() > 5, "{parts:?}");
}

#[test]
fn capabilities_match_the_device() {
    let mut fixture = Fixture::new(9, IoatOptions::default());
    let capabilities = fixture.engine().capabilities();
    assert_eq!(capabilities.channels, 4, "the device has no more");
    let operations =
        Operations::NOP | Operations::COPY | Operations::FILL | Operations::SCATTER_GATHER | Operations::XOR;
    assert_eq!(capabilities.operations, operations);
    let memory = fixture.allocate(&[0; 64]);
    let region = |offset| Region::new(memory, offset, 16).expect("inside");
    let xor = Operation::Xor { sources: [region(0), region(8)].into(), destination: region(16), length: 16 };
    let refused = fixture.engine.post(Descriptor::new(0, xor).expect("inside")).expect_err("it overlaps");
    assert_eq!(refused.reason, RefusalReason::Unsupported);
}

#[test]
fn an_xor_reads_all_its_sources() {
    for count in [1, 2, 5, 6, 8, 9, 15, 16, MAX_SOURCES - 1] {
        for own in 0..=3.min(MAX_SOURCES - count) {
            let mut fixture = Fixture::new(1, IoatOptions { chunk_bytes: 100, ..IoatOptions::default() });
            let bytes = |seed: usize| (0..333).map(|at| (at * seed * 7 + seed) as u8).collect::<Vec<u8>>();
            let memories: Vec<_> = (0..=count).map(|seed| fixture.allocate(&bytes(seed))).collect();
            let regions: Vec<_> =
                memories.iter().map(|memory| Region::new(*memory, 0, 333).expect("inside")).collect();
            let destination = regions[0].clone();
            let sources =
                regions[1..].iter().cloned().chain(vec![destination.clone(); own]).collect::<Box<[_]>>();
            let expected: Vec<u8> = (0..333)
                .map(|at| {
                    let others = (1..=count).fold(0, |byte, seed| byte ^ bytes(seed)[at]);
                    if own % 2 == 1 { others ^ bytes(0)[at] } else { others }
                })
                .collect();
            let xor = Operation::Xor { sources, destination, length: 333 };
            fixture.engine.post(Descriptor::new(0, xor).expect("inside")).expect("free");
            fixture.engine.ring_doorbell();
            let ends = fixture.finish();
            assert_eq!((ends[0].outcome.result, ends[0].outcome.bytes_done), (Ok(()), 333));
            assert!(fixture.contents(&memories[0]) == expected, "{count} sources and {own} times itself");
            fixture.assert_no_complaints();
        }
    }
}

#[test]
fn long_lists_need_few_interrupts() {
    let mut fixture = Fixture::new(1, IoatOptions::default());
    let from = fixture.allocate(&(0..=255).cycle().take(64_000).collect::<Vec<u8>>());
    let to = fixture.allocate(&[0; 32_000]);
    let segment = |memory, offset, length| Segment {
        place: Region::new(memory, offset, length).expect("inside"),
        length,
    };
    let source = (0..1000).map(|index| segment(from, 64 * index, 32)).collect();
    let lists = Lists { source, destination: [segment(to, 0, 32_000)].into() };
    let gather = Operation::ScatterGather { lists: Arc::new(lists) };
    fixture.engine.post(Descriptor::new(0, gather).expect("inside")).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends[0].outcome.result, ends[0].outcome.bytes_done), (Ok(()), 32_000));
    let whole = fixture.contents(&from);
    let expected: Vec<u8> = whole.chunks(32).step_by(2).flatten().copied().collect();
    assert!(fixture.contents(&to) == expected);
    assert!(fixture.rises < 30, "{} interrupts for 1000 pieces", fixture.rises);
    fixture.assert_no_complaints();
}

#[test]
fn an_unaligned_pattern_keeps_its_phase() {
    let mut fixture = Fixture::new(1, IoatOptions { chunk_bytes: 16, ..IoatOptions::default() });
    let memory = fixture.allocate(&[0; 64]);
    assert_eq!(memory.address() % 8, BASE % 8);
    let destination = Region::new(memory, 3, 40).expect("inside");
    let fill = Operation::Fill { destination, length: 40, pattern: Pattern::Word(0x0403_0201) };
    fixture.engine.post(Descriptor::new(0, fill).expect("inside")).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.bytes_done, 40);
    let expected: Vec<u8> = [0; 3].into_iter().chain((0..40).map(|at| 1 + at % 4)).chain([0; 21]).collect();
    assert_eq!(fixture.contents(&memory), expected);
}
