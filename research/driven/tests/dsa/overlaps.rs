//! Copies over themselves: one move where the device can, and none of them cut into very many pieces.

use std::sync::Arc;

use memferry_conformance::EngineFixture;
use memferry_driven::{BusMemory, DsaOptions};
use memferry_models::dsa::Config;
use memferry_transfer::{Descriptor, Engine, Lists, Operation, RefusalReason, Region, Segment};

use super::batches::{Noted, noted};
use super::machine::{Fixture, Setup};

const BYTES: u64 = 60_000;

fn setup(overlaps: bool) -> Setup {
    let config = Config::default();
    let general = config.general.with_overlapping_copy(overlaps);
    Setup { config: Config { general, ..config }, ..Setup::default() }
}

fn options() -> DsaOptions {
    DsaOptions { patience: core::time::Duration::from_secs(1), ..DsaOptions::default() }
}

/// Memory with a pattern, and both regions of a copy within it.
fn regions(fixture: &mut Fixture<Noted>, from: u64, to: u64) -> (BusMemory, Vec<u8>, [Region<BusMemory>; 2]) {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at * 31 % 251) as u8).collect();
    let memory = fixture.allocate(&bytes);
    let mut expected = bytes;
    expected.copy_within(from as usize..(from + BYTES) as usize, to as usize);
    (memory, expected, [from, to].map(|at| Region::new(memory, at, BYTES).expect("inside")))
}

#[test]
fn a_device_that_can_takes_one_move_at_any_distance() {
    for (from, to) in [(100, 101), (101, 100), (0, 4000), (4000, 0), (100, 100)] {
        let (mut fixture, codes) = noted(&setup(true), false, 0);
        let (memory, expected, [source, destination]) = regions(&mut fixture, from, to);
        let copy = Operation::Copy { source, destination, length: BYTES };
        fixture.engine.post(Descriptor::new(0, copy).expect("inside")).expect("free");
        fixture.engine.ring_doorbell();
        let ends = fixture.finish();
        assert_eq!((ends[0].outcome.result, ends[0].outcome.bytes_done), (Ok(()), BYTES));
        assert!(fixture.contents(&memory) == expected, "from {from} to {to}");
        assert_eq!(codes.borrow().len(), 1, "within a chunk");
        fixture.assert_no_complaints();
    }
}

#[test]
fn a_move_over_itself_in_chunks_is_a_memmove() {
    for (from, to) in [(100, 107), (107, 100), (0, 900), (900, 0)] {
        let options = DsaOptions { chunk_bytes: 1000, ..options() };
        let mut fixture = Fixture::with(&setup(true), 1, options, false, |portal| Noted::new(portal, 0));
        let (memory, expected, [source, destination]) = regions(&mut fixture, from, to);
        let copy = Operation::Copy { source, destination, length: BYTES };
        fixture.engine.post(Descriptor::new(0, copy).expect("inside")).expect("free");
        fixture.engine.ring_doorbell();
        assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
        assert!(fixture.contents(&memory) == expected, "from {from} to {to}");
    }
}

#[test]
fn a_device_that_cannot_refuses_short_distances() {
    for (from, to, is_taken) in [(100, 101, false), (901, 0, false), (8000, 0, true), (0, 8000, true)] {
        let (mut fixture, codes) = noted(&setup(false), false, 0);
        assert!(!fixture.engine.capabilities().overlapping_copy);
        let (memory, expected, [source, destination]) = regions(&mut fixture, from, to);
        let segment = |place: &Region<BusMemory>| Segment { place: place.clone(), length: BYTES };
        let lists = Lists { source: [segment(&source)].into(), destination: [segment(&destination)].into() };
        let list = Operation::ScatterGather { lists: Arc::new(lists) };
        let copy = Operation::Copy { source, destination, length: BYTES };
        if is_taken {
            fixture.engine.post(Descriptor::new(0, copy).expect("inside")).expect("free");
            fixture.engine.ring_doorbell();
            assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
            assert!(fixture.contents(&memory) == expected, "from {from} to {to}");
            continue;
        }
        for operation in [copy, list] {
            let refused = fixture.engine.post(Descriptor::new(0, operation).expect("inside"));
            assert_eq!(refused.map_err(|refused| refused.reason), Err(RefusalReason::Unsupported));
        }
        assert_eq!(codes.borrow().len(), 0);
    }
}
