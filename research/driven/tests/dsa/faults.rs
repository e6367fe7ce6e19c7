//! Faults under the engine: each transfer ends once, the others go on, and no completion comes while the device may touch the memory.

use core::time::Duration;

use memferry_conformance::EngineFixture;
use memferry_driven::DsaOptions;
use memferry_transfer::{Engine, EngineCompletion, Failure, Operation};

use super::machine::{Fixture, ModelPortal, Setup};

fn options() -> DsaOptions {
    DsaOptions { chunk_bytes: 1024, patience: Duration::from_millis(2), ..DsaOptions::default() }
}

fn results(ends: &[EngineCompletion]) -> Vec<(u32, Result<(), Failure>)> {
    let mut results: Vec<_> = ends.iter().map(|end| (end.ticket.channel, end.outcome.result)).collect();
    results.sort_by_key(|(channel, _)| *channel);
    results
}

/// Posts copies of `length` bytes on channels `0..count`, and starts them.
fn start(fixture: &mut Fixture<ModelPortal>, count: u32, length: usize) -> Vec<u64> {
    let destinations = (0..count).map(|channel| {
        let copy = fixture.copy(channel, length);
        let Operation::Copy { destination, .. } = copy.operation() else { panic!("a copy") };
        let address = u64::from(destination.memory().address()) + destination.offset();
        fixture.engine.post(copy).expect("free");
        address
    });
    let destinations = destinations.collect();
    fixture.engine.ring_doorbell();
    destinations
}

fn serves(fixture: &mut Fixture<ModelPortal>) {
    start(fixture, 4, 5000);
    let ends = fixture.finish();
    assert_eq!(results(&ends), [0, 1, 2, 3].map(|channel| (channel, Ok(()))));
}

#[test]
fn absent_pages_are_touched_and_the_copy_goes_on() {
    let mut fixture = Fixture::new(4, options());
    let places = start(&mut fixture, 2, 20_000);
    for offset in [0, 9000, 17_000] {
        fixture.device.with(|device| device.faults().absent(places[1] + offset));
    }
    let ends = fixture.finish();
    assert_eq!(results(&ends), [(0, Ok(())), (1, Ok(()))]);
    assert!(ends.iter().all(|end| end.outcome.bytes_done == 20_000));
    fixture.assert_no_complaints();
    serves(&mut fixture);
}

#[test]
fn a_page_that_stays_absent_fails_its_copy_only() {
    let mut fixture = Fixture::with(&Setup::default(), 4, options(), true, |portal| portal);
    let places = start(&mut fixture, 3, 12_000);
    fixture.device.with(|device| device.faults().absent(places[1] + 8000));
    let ends = fixture.finish();
    assert_eq!(results(&ends), [(0, Ok(())), (1, Err(Failure::MemoryFault)), (2, Ok(()))]);
    let failed = ends.iter().find(|end| end.ticket.channel == 1).expect("it ended");
    let done = failed.outcome.bytes_done;
    assert!((1..=8000).contains(&done), "{done} bytes");
    assert_eq!(fixture.engine.outstanding(), 0);
    fixture.device.with(|device| device.faults().clear());
    serves(&mut fixture);
}

#[test]
fn a_bus_error_fails_its_copy_only() {
    let mut fixture = Fixture::new(4, options());
    let places = start(&mut fixture, 3, 12_000);
    fixture.device.with(|device| device.faults().bus_error_at(places[2] + 5000..=places[2] + 5000));
    let ends = fixture.finish();
    assert_eq!(results(&ends), [(0, Ok(())), (1, Ok(())), (2, Err(Failure::MemoryFault))]);
    fixture.device.with(|device| device.faults().clear());
    serves(&mut fixture);
}

#[test]
fn lost_stores_to_the_portal_end_by_patience() {
    let mut fixture = Fixture::new(4, options());
    fixture.device.with(|device| device.faults().lose_portal_writes(2));
    start(&mut fixture, 4, 5000);
    let ends = fixture.finish();
    let timed_out = ends.iter().filter(|end| end.outcome.result == Err(Failure::EngineTimedOut)).count();
    assert_eq!((ends.len(), timed_out), (4, 2), "{ends:?}");
    assert_eq!(fixture.engine.outstanding(), 0, "nothing is left behind");
    serves(&mut fixture);
}

#[test]
fn a_lost_record_ends_its_transfer_once() {
    let mut fixture = Fixture::new(4, DsaOptions { batch: 1, ..options() });
    fixture.device.with(|device| device.faults().lose_records(1));
    start(&mut fixture, 4, 5000);
    let ends = fixture.finish();
    let timed_out = ends.iter().filter(|end| end.outcome.result == Err(Failure::EngineTimedOut)).count();
    assert_eq!((ends.len(), timed_out), (4, 1), "{ends:?}");
    serves(&mut fixture);
}

#[test]
fn a_stuck_engine_faults_the_channels() {
    let setup = Setup { engines: 1, ..Setup::default() };
    let mut fixture = Fixture::with(&setup, 3, options(), false, |portal| portal);
    fixture.device.with(|device| device.faults().stick(0));
    start(&mut fixture, 3, 5000);
    let ends = fixture.finish();
    let faulted = [0, 1, 2].map(|channel| (channel, Err(Failure::ChannelFaulted)));
    assert_eq!(results(&ends), faulted, "the memory may still be written");
    let copy = fixture.copy(0, 100);
    assert!(fixture.engine.post(copy).is_err(), "no further work for it");
    assert!(!fixture.engine.is_at_rest(0));
}

#[test]
fn a_cancelled_copy_ends_when_the_device_has_nothing_of_it() {
    let mut fixture = Fixture::new(1, options());
    let copy = fixture.copy(0, 60_000);
    let Operation::Copy { source, destination, .. } = copy.operation().clone() else { panic!("a copy") };
    let ticket = fixture.engine.post(copy).expect("free");
    fixture.engine.ring_doorbell();
    let mut ends = Vec::new();
    for _ in 0..3 {
        fixture.turn(&mut ends);
    }
    fixture.engine.cancel(ticket);
    ends.extend(fixture.finish());
    assert_eq!(results(&ends), [(0, Err(Failure::Cancelled))]);
    let done = ends[0].outcome.bytes_done as usize;
    assert!(done < 60_000 && done.is_multiple_of(1024), "{done} bytes");
    let from = fixture.contents(source.memory());
    let to = fixture.contents(destination.memory());
    assert!(to[..done] == from[..done] && to[done..].iter().all(|byte| *byte == 0));
    assert_eq!(fixture.engine.outstanding(), 0);
}
