//! Requests behind a page fault: tried again while the queue is full, given up in time, and no poll that lasts as long as pages are absent.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use memferry_conformance::EngineFixture;
use memferry_driven::{DsaOptions, Shared};
use memferry_dsa::registers::descriptor::Descriptor as Raw;
use memferry_dsa::{Portal, Refused};
use memferry_models::dsa::Config;
use memferry_transfer::{Engine, EngineCompletion, Failure, Operation, Ticket};

use super::machine::{BASE, Fixture, ModelPortal, Modelled, Setup};

const BYTES: usize = 12_000;

/// A shared queue that others fill as long as the test says.
#[derive(Debug)]
struct Filled {
    portal: ModelPortal,
    is_full: Rc<Cell<bool>>,
}

impl Portal for Filled {
    fn submit(&mut self, descriptor: &Raw) -> Result<(), Refused> {
        if self.is_full.get() { Err(Refused::Busy) } else { self.portal.submit(descriptor) }
    }
}

fn options() -> DsaOptions {
    DsaOptions { chunk_bytes: 4096, patience: Duration::from_millis(2), ..DsaOptions::default() }
}

struct Stage {
    fixture: Fixture<Filled>,
    is_full: Rc<Cell<bool>>,
    ends: Vec<EngineCompletion>,
}

impl Stage {
    fn new() -> Self {
        let is_full = Rc::new(Cell::new(false));
        let flag = Rc::clone(&is_full);
        let shared = Setup { dedicated: false, ..Setup::default() };
        let portal = |portal| Filled { portal, is_full: flag };
        Self { fixture: Fixture::with(&shared, 2, options(), false, portal), is_full, ends: Vec::new() }
    }

    /// Starts a copy that comes to an absent page when the queue is full; the copy, and its ticket.
    fn come_to_a_full_queue(
        &mut self,
    ) -> (Operation<memferry_transfer::Region<memferry_driven::BusMemory>>, Ticket) {
        let Self { fixture, is_full, ends } = self;
        let copy = fixture.copy(0, BYTES);
        let operation = copy.operation().clone();
        let Operation::Copy { destination, .. } = &operation else { panic!("a copy") };
        let absent = u64::from(destination.memory().address()) + 6000;
        fixture.device.with(|device| device.faults().absent(absent));
        let ticket = fixture.engine.post(copy).expect("free");
        fixture.engine.ring_doorbell();
        fixture.engine.poll(fixture.now, ends);
        assert!(fixture.engine.outstanding() > 0, "it was submitted");
        is_full.set(true);
        for _ in 0..200 {
            fixture.turn(ends);
        }
        let is_absent =
            fixture.device.with(|device| device.faults().clone() != memferry_models::dsa::Faults::default());
        assert!(!is_absent, "the page was touched");
        assert_eq!((fixture.engine.outstanding(), ends.len()), (0, 0), "the rest waits for room");
        (operation, ticket)
    }

    fn finish(&mut self) -> Vec<EngineCompletion> {
        let mut ends = core::mem::take(&mut self.ends);
        ends.extend(self.fixture.finish());
        ends
    }

    fn assert_prefix(
        &self,
        operation: &Operation<memferry_transfer::Region<memferry_driven::BusMemory>>,
        done: u64,
    ) {
        let Operation::Copy { source, destination, .. } = operation else { panic!("a copy") };
        let from = self.fixture.contents(source.memory());
        let to = self.fixture.contents(destination.memory());
        assert!(to[..done as usize] == from[..done as usize]);
    }
}

#[test]
fn a_resumption_waits_for_room_in_the_queue() {
    let mut stage = Stage::new();
    let (operation, ticket) = stage.come_to_a_full_queue();
    stage.is_full.set(false);
    let ends = stage.finish();
    assert_eq!((ends[0].ticket, ends[0].outcome.result), (ticket, Ok(())));
    stage.assert_prefix(&operation, BYTES as u64);
    assert!(stage.fixture.engine.is_at_rest(0));
}

#[test]
fn a_resumption_is_given_up_in_time() {
    let mut stage = Stage::new();
    // More often than the queue has slots, so that none is lost.
    for _ in 0..70 {
        stage.fixture.used = 0;
        let (operation, ticket) = stage.come_to_a_full_queue();
        let started = stage.fixture.now;
        let ends = stage.finish();
        assert_eq!(
            (ends.len(), ends[0].ticket, ends[0].outcome.result),
            (1, ticket, Err(Failure::EngineTimedOut))
        );
        assert!(stage.fixture.now <= started.after(2 * options().patience));
        stage.assert_prefix(&operation, ends[0].outcome.bytes_done);
        stage.is_full.set(false);
    }
    let copy = stage.fixture.copy(1, BYTES);
    stage.fixture.engine.post(copy).expect("free");
    stage.fixture.engine.ring_doorbell();
    assert_eq!(stage.finish()[0].outcome.result, Ok(()));
}

#[test]
fn a_cancelled_resumption_ends_with_room_or_in_time() {
    for is_full in [false, true] {
        let mut stage = Stage::new();
        let (operation, ticket) = stage.come_to_a_full_queue();
        stage.fixture.engine.cancel(ticket);
        stage.is_full.set(is_full);
        let ends = stage.finish();
        assert_eq!((ends.len(), ends[0].ticket), (1, ticket));
        // All of its requests had been submitted.
        let expected = if is_full { Err(Failure::Cancelled) } else { Ok(()) };
        assert_eq!(ends[0].outcome.result, expected);
        stage.assert_prefix(&operation, ends[0].outcome.bytes_done);
    }
}

#[test]
fn a_held_channel_rests_when_its_resumption_is_over() {
    let mut stage = Stage::new();
    stage.come_to_a_full_queue();
    stage.fixture.engine.set_turns(0, 0);
    assert!(!stage.fixture.engine.is_at_rest(0), "a step is half done");
    stage.is_full.set(false);
    assert_eq!(stage.finish()[0].outcome.result, Ok(()));
    assert!(stage.fixture.engine.is_at_rest(0));
}

/// A device that has done everything by the time that the store to the portal returns.
#[derive(Debug)]
struct Instant {
    portal: ModelPortal,
    device: Shared<Modelled>,
}

impl Portal for Instant {
    fn submit(&mut self, descriptor: &Raw) -> Result<(), Refused> {
        self.portal.submit(descriptor)?;
        self.device.with(|device| {
            while let Some(wake) = device.next_wake() {
                device.step(wake);
            }
        });
        Ok(())
    }
}

#[test]
fn a_poll_ends_while_pages_go_on_faulting() {
    let options = DsaOptions { chunk_bytes: 1 << 20, ..options() };
    let portal = |portal: ModelPortal| Instant { device: portal.device.clone(), portal };
    let mut fixture = Fixture::with(&Setup::default(), 1, options, false, portal);
    let copy = fixture.copy(0, 400_000);
    fixture.device.with(|device| {
        (0..800_000).step_by(4096).for_each(|offset| device.faults().absent(u64::from(BASE) + offset));
    });
    fixture.engine.post(copy).expect("free");
    fixture.engine.ring_doorbell();
    let mut polls = 0;
    let mut ends = Vec::new();
    while ends.is_empty() {
        let has_more = fixture.engine.poll(fixture.now, &mut ends);
        assert!(has_more || !ends.is_empty(), "nothing that the device has would wake it");
        polls += 1;
    }
    assert_eq!((ends[0].outcome.result, ends[0].outcome.bytes_done), (Ok(()), 400_000));
    assert!(polls > 20, "{polls} polls for 196 pages");
    assert_eq!(fixture.engine.next_wake(), None);
}

#[test]
fn a_page_that_touching_does_not_help_fails_its_copy() {
    // Behind an IOMMU, errors are page faults, and touching does not mend these.
    let setup = Setup { config: Config { translated: true, ..Config::default() }, ..Setup::default() };
    let mut fixture = Fixture::with(&setup, 2, options(), false, |portal| portal);
    let broken = fixture.copy(0, BYTES);
    let Operation::Copy { destination, .. } = broken.operation() else { panic!("a copy") };
    let bad = u64::from(destination.memory().address()) + 6000;
    fixture.device.with(|device| device.faults().bus_error_at(bad..=bad));
    fixture.engine.post(broken).expect("free");
    let sound = fixture.copy(1, BYTES);
    fixture.engine.post(sound).expect("free");
    fixture.engine.ring_doorbell();
    let mut ends = Vec::new();
    for _ in 0..10_000 {
        fixture.turn(&mut ends);
    }
    ends.sort_by_key(|end| end.ticket.channel);
    let results: Vec<_> = ends.iter().map(|end| end.outcome.result).collect();
    assert_eq!(results, [Err(Failure::MemoryFault), Ok(())]);
}
