//! Scatter-gather: independent parts run as linked lists of descriptors.

use std::sync::Arc;

use memferry_conformance::EngineFixture;
use memferry_driven::{BusMemory, SdmaOptions};
use memferry_transfer::{Descriptor, Engine, Failure, Lists, Operation, Region, Segment};

use super::{Fixture, Modelled, RAM_BYTES};

/// Segments of `length` bytes every `pitch` bytes of a memory.
fn segments(memory: BusMemory, count: u64, length: u64, pitch: u64) -> Box<[Segment<Region<BusMemory>>]> {
    let place = |index| Region::new(memory, index * pitch, length).expect("inside");
    (0..count).map(|index| Segment { place: place(index), length }).collect()
}

fn gather(source: BusMemory, destination: BusMemory, count: u64, length: u64) -> Descriptor<BusMemory> {
    let source = segments(source, count, length, 2 * length);
    let destination = segments(destination, 1, count * length, 0);
    let lists = Arc::new(Lists { source, destination });
    Descriptor::new(0, Operation::ScatterGather { lists }).expect("inside")
}

/// Gathers pieces; returns whether descriptors were written for them.
fn gathers(mut fixture: Fixture, count: u64, length: u64) -> bool {
    let noise: Vec<u8> = (0..2 * count * length).map(|at| (at * 37 + at / 251) as u8).collect();
    let from = fixture.allocate(&noise);
    let to = fixture.allocate(&vec![0; (count * length) as usize]);
    fixture.engine.post(gather(from, to, count, length)).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].outcome.result, ends[0].outcome.bytes_done), (1, Ok(()), count * length));
    fixture
        .device
        .with(|device| assert_eq!(device.complaints(), [], "the driver breaks a rule of the manual"));
    let expected: Vec<u8> = noise.chunks(length as usize).step_by(2).flatten().copied().collect();
    assert_eq!(fixture.contents(&to), expected);
    let descriptors =
        |device: &mut Modelled| device.bus().bus().bytes()[RAM_BYTES..].iter().any(|byte| *byte != 0);
    fixture.device.with(descriptors)
}

#[test]
fn parts_of_any_alignment_use_linked_lists() {
    for (count, length) in [(2, 3), (7, 64), (64, 16), (65, 30), (200, 100)] {
        assert!(gathers(Fixture::with_lists(1, SdmaOptions::default()), count, length));
        assert!(!gathers(Fixture::new(1, SdmaOptions::default()), count, length));
    }
}

#[test]
fn dependent_parts_keep_their_order() {
    let mut fixture = Fixture::with_lists(1, SdmaOptions::default());
    let memory = fixture.allocate(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let place = |offset| Segment { place: Region::new(memory, offset, 4).expect("inside"), length: 4 };
    let lists = Lists { source: [0, 4, 8].map(place).into(), destination: [4, 8, 12].map(place).into() };
    let operation = Operation::ScatterGather { lists: Arc::new(lists) };
    fixture.engine.post(Descriptor::new(0, operation).expect("inside")).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
    assert_eq!(fixture.contents(&memory), [1, 2, 3, 4].repeat(4));
}

#[test]
fn an_error_within_a_list_ends_it() {
    let mut fixture = Fixture::with_lists(1, SdmaOptions::default());
    let from = fixture.allocate(&[5; 2048]);
    let to = fixture.allocate(&[0; 1024]);
    let bad = from.address() + 1024;
    fixture.device.with(|device| device.faults().bus_error_at(bad..=bad + 3));
    fixture.engine.post(gather(from, to, 16, 64)).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends[0].outcome.result, ends[0].outcome.bytes_done), (Err(Failure::MemoryFault), 0));
    fixture.device.with(|device| device.faults().clear());
    fixture.engine.post(gather(from, to, 16, 64)).expect("free again");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.bytes_done, 1024);
}
