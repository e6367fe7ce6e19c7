//! The DSA driver on the device model: alone, and as an engine that keeps the engine contract, with and without faults.
//!
//! ```text
//! DsaEngine ─ driver ─ registers, portals, records in RAM ─ model ─ RAM ──► engine_suite, in virtual time
//! driver     random requests against a byte oracle, alone and in batches, with page faults
//! batches    shares and turns of channels, small requests together; overlaps: copies over themselves
//! resumptions behind page faults, with full queues, and with pages that go on faulting
//! faults     lost submissions and records, stuck engines, full queues, halts ──► each request ends once
//! ```

mod batches;
mod driver;
mod faults;
mod machine;
mod overlaps;
mod resumptions;

use machine::{Fixture, Setup};
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_driven::DsaOptions;
use memferry_transfer::{Descriptor, Engine, Operation, Operations, Region};

fn options(setup: &EngineSetup) -> DsaOptions {
    DsaOptions { chunk_bytes: setup.chunk_bytes, ..DsaOptions::default() }
}

#[test]
fn a_dedicated_queue_with_batches_passes_the_suite() {
    engine_suite(|setup: EngineSetup| Fixture::new(setup.channels, options(&setup)));
}

#[test]
fn a_shared_queue_of_two_passes_the_suite() {
    engine_suite(|setup: EngineSetup| {
        let small = Setup { dedicated: false, entries: 2, ..Setup::default() };
        Fixture::with(&small, setup.channels, options(&setup), false, |portal| portal)
    });
}

#[test]
fn a_single_engine_without_batches_passes_the_suite() {
    engine_suite(|setup: EngineSetup| {
        let single = Setup { engines: 1, lists: 0, ..Setup::default() };
        let options = DsaOptions { batch: 1, ..options(&setup) };
        Fixture::with(&single, setup.channels, options, false, |portal| portal)
    });
}

#[test]
fn a_portal_by_write_passes_the_suite() {
    engine_suite(|setup: EngineSetup| {
        let shared = Setup { dedicated: false, ..Setup::default() };
        Fixture::by_write(&shared, setup.channels, options(&setup))
    });
}

#[test]
fn capabilities_match_the_device() {
    let fixture = Fixture::new(6, DsaOptions::default());
    let capabilities = fixture.engine.capabilities();
    assert_eq!(capabilities.channels, 6);
    assert!(
        capabilities.operations.contains(Operations::COPY_CRC | Operations::DUAL_COPY | Operations::COMPARE)
    );
    assert!(!capabilities.operations.intersects(Operations::XOR | Operations::COPY_2D));
}

#[test]
fn misaligned_dual_copies_are_two_copies() {
    for skew in [0, 8] {
        let mut fixture = Fixture::new(1, DsaOptions { chunk_bytes: 100, ..DsaOptions::default() });
        let bytes: Vec<u8> = (0..1000).map(|at| (at % 251) as u8).collect();
        let source = fixture.allocate(&bytes);
        fixture.used = fixture.used.next_multiple_of(4096);
        let first = fixture.allocate(&[0; 1000]);
        fixture.used = fixture.used.next_multiple_of(4096) + skew;
        let second = fixture.allocate(&[0; 1000]);
        let region = |memory| Region::new(memory, 0, 1000).expect("inside");
        let destinations = [region(first), region(second)];
        let dual = Operation::DualCopy { source: region(source), destinations, length: 1000 };
        fixture.engine.post(Descriptor::new(0, dual).expect("inside")).expect("free");
        fixture.engine.ring_doorbell();
        let ends = fixture.finish();
        assert_eq!((ends[0].outcome.result, ends[0].outcome.bytes_done), (Ok(()), 1000));
        assert!(fixture.contents(&first) == bytes && fixture.contents(&second) == bytes);
        fixture.assert_no_complaints();
    }
}
