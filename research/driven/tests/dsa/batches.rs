//! Requests that go to the device together: those of several channels, and the steps of one.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use memferry_conformance::EngineFixture;
use memferry_driven::DsaOptions;
use memferry_dsa::registers::descriptor::{Descriptor as Raw, opcode};
use memferry_dsa::{Portal, Refused};
use memferry_transfer::{Descriptor, Engine, Failure, Lists, Operation, Region, Segment};

use super::machine::{Fixture, ModelPortal, Setup};

/// A portal that notes operation codes, and is full for a while.
#[derive(Debug)]
struct Noted {
    portal: ModelPortal,
    codes: Rc<RefCell<Vec<u8>>>,
    full: u32,
}

impl Portal for Noted {
    fn submit(&mut self, descriptor: &Raw) -> Result<(), Refused> {
        if self.full > 0 {
            self.full -= 1;
            return Err(Refused::Busy);
        }
        self.codes.borrow_mut().push((descriptor.words[0] >> 56) as u8);
        self.portal.submit(descriptor)
    }
}

fn fixture(setup: &Setup, refuses: bool, full: u32) -> (Fixture<Noted>, Rc<RefCell<Vec<u8>>>) {
    let codes = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&codes);
    let options = DsaOptions { patience: core::time::Duration::from_secs(1), ..DsaOptions::default() };
    let fixture = Fixture::with(setup, 8, options, refuses, |portal| Noted { portal, codes: noted, full });
    (fixture, codes)
}

/// Starts copies of `length` bytes on all channels; the addresses of their destinations.
fn start(fixture: &mut Fixture<Noted>, length: usize) -> Vec<u64> {
    let destinations = (0..8).map(|channel| {
        // No two of them in one page.
        fixture.used = fixture.used.next_multiple_of(4096);
        let copy = fixture.copy(channel, length);
        let Operation::Copy { destination, .. } = copy.operation() else { panic!("a copy") };
        let address = u64::from(destination.memory().address());
        fixture.engine.post(copy).expect("free");
        address
    });
    let destinations = destinations.collect();
    fixture.engine.ring_doorbell();
    destinations
}

#[test]
fn small_requests_of_channels_share_a_batch() {
    let (mut fixture, codes) = fixture(&Setup::default(), false, 0);
    start(&mut fixture, 500);
    let ends = fixture.finish();
    assert!(ends.len() == 8 && ends.iter().all(|end| end.outcome.result.is_ok()), "{ends:?}");
    assert_eq!(*codes.borrow(), [opcode::BATCH]);
    fixture.assert_no_complaints();
}

#[test]
fn without_lists_they_go_one_by_one() {
    let (mut fixture, codes) = fixture(&Setup { lists: 0, ..Setup::default() }, false, 0);
    start(&mut fixture, 500);
    assert!(fixture.finish().iter().all(|end| end.outcome.result.is_ok()));
    assert_eq!(*codes.borrow(), [opcode::MOVE; 8]);
}

#[test]
fn a_fault_in_a_shared_batch_is_one_channels() {
    let (mut fixture, codes) = fixture(&Setup::default(), true, 0);
    let places = start(&mut fixture, 500);
    fixture.device.with(|device| device.faults().absent(places[3]));
    let ends = fixture.finish();
    assert_eq!(codes.borrow()[0], opcode::BATCH);
    for end in ends {
        let expected = if end.ticket.channel == 3 { Err(Failure::MemoryFault) } else { Ok(()) };
        assert_eq!(end.outcome.result, expected, "channel {}", end.ticket.channel);
    }
}

#[test]
fn a_list_goes_on_behind_a_page_fault() {
    let (mut fixture, codes) = fixture(&Setup::default(), false, 0);
    let bytes: Vec<u8> = (0..24_000).map(|at| (at * 31 % 251) as u8).collect();
    let source = fixture.allocate(&bytes);
    let destination = fixture.allocate(&vec![0; bytes.len()]);
    let segments = |memory| {
        let place = |at: u64| Region::new(memory, at * 4000, 4000).expect("inside");
        (0..6).map(|at| Segment { place: place(at), length: 4000 }).collect::<Vec<_>>()
    };
    let lists = Lists { source: segments(source).into(), destination: segments(destination).into() };
    let list = Operation::ScatterGather { lists: Arc::new(lists) };
    let absent = u64::from(destination.address()) + 4096;
    fixture.device.with(|device| device.faults().absent(absent));
    fixture.engine.post(Descriptor::new(0, list).expect("inside")).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends[0].outcome.result, ends[0].outcome.bytes_done), (Ok(()), 24_000));
    assert!(fixture.contents(&destination) == bytes);
    let batches = codes.borrow().iter().filter(|code| **code == opcode::BATCH).count();
    assert_eq!(batches, 2, "what the fence held back went again: {codes:?}");
}

#[test]
fn a_queue_that_is_full_for_long_is_tried_again() {
    let shared = Setup { dedicated: false, ..Setup::default() };
    let (mut fixture, _) = fixture(&shared, false, 2_000_000);
    start(&mut fixture, 500);
    assert!(fixture.finish().iter().all(|end| end.outcome.result.is_ok()));
}
