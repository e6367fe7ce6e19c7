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

/// A portal that notes operation codes with the sizes of batches, and is full for a while.
#[derive(Debug)]
pub(crate) struct Noted {
    portal: ModelPortal,
    codes: Codes,
    full: u32,
}

/// Codes, and descriptors of each if it is a batch.
pub(crate) type Codes = Rc<RefCell<Vec<(u8, u32)>>>;

impl Noted {
    pub(crate) fn new(portal: ModelPortal, full: u32) -> Self {
        Self { portal, codes: Rc::default(), full }
    }
}

impl Portal for Noted {
    fn submit(&mut self, descriptor: &Raw) -> Result<(), Refused> {
        if self.full > 0 {
            self.full -= 1;
            return Err(Refused::Busy);
        }
        let code = (descriptor.words[0] >> 56) as u8;
        let count = if code == opcode::BATCH { descriptor.words[4] as u32 } else { 1 };
        self.codes.borrow_mut().push((code, count));
        self.portal.submit(descriptor)
    }
}

fn patient() -> DsaOptions {
    DsaOptions { patience: core::time::Duration::from_secs(1), ..DsaOptions::default() }
}

/// Eight channels over such a portal.
pub(crate) fn noted(setup: &Setup, refuses: bool, full: u32) -> (Fixture<Noted>, Codes) {
    noted_with(setup, patient(), refuses, full)
}

fn noted_with(setup: &Setup, options: DsaOptions, refuses: bool, full: u32) -> (Fixture<Noted>, Codes) {
    let mut codes = Rc::default();
    let fixture = Fixture::with(setup, 8, options, refuses, |portal| {
        let portal = Noted::new(portal, full);
        codes = Rc::clone(&portal.codes);
        portal
    });
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
    let (mut fixture, codes) = noted(&Setup::default(), false, 0);
    start(&mut fixture, 500);
    let ends = fixture.finish();
    assert!(ends.len() == 8 && ends.iter().all(|end| end.outcome.result.is_ok()), "{ends:?}");
    assert_eq!(*codes.borrow(), [(opcode::BATCH, 8)]);
    fixture.assert_no_complaints();
}

#[test]
fn without_lists_they_go_one_by_one() {
    let (mut fixture, codes) = noted(&Setup { lists: 0, ..Setup::default() }, false, 0);
    start(&mut fixture, 500);
    assert!(fixture.finish().iter().all(|end| end.outcome.result.is_ok()));
    assert_eq!(*codes.borrow(), [(opcode::MOVE, 1); 8]);
}

#[test]
fn a_fault_in_a_shared_batch_is_one_channels() {
    let (mut fixture, codes) = noted(&Setup::default(), true, 0);
    let places = start(&mut fixture, 500);
    fixture.device.with(|device| device.faults().absent(places[3]));
    let ends = fixture.finish();
    assert_eq!(codes.borrow()[0].0, opcode::BATCH);
    for end in ends {
        let expected = if end.ticket.channel == 3 { Err(Failure::MemoryFault) } else { Ok(()) };
        assert_eq!(end.outcome.result, expected, "channel {}", end.ticket.channel);
    }
}

#[test]
fn a_list_goes_on_behind_a_page_fault() {
    let (mut fixture, codes) = noted(&Setup::default(), false, 0);
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
    let batches = codes.borrow().iter().filter(|(code, _)| *code == opcode::BATCH).count();
    assert_eq!(batches, 2, "what the fence held back went again: {codes:?}");
}

#[test]
fn a_queue_that_is_full_for_long_is_tried_again() {
    let shared = Setup { dedicated: false, ..Setup::default() };
    let (mut fixture, _) = noted(&shared, false, 2_000_000);
    start(&mut fixture, 500);
    assert!(fixture.finish().iter().all(|end| end.outcome.result.is_ok()));
}

#[test]
fn busy_channels_leave_each_other_their_shares() {
    let short = DsaOptions { chunk_bytes: 1024, ..patient() };
    let (mut fixture, codes) = noted_with(&Setup::default(), short, false, 0);
    start(&mut fixture, 40_000);
    let mut ends = Vec::new();
    fixture.engine.poll(fixture.now, &mut ends);
    // Of 64 slots, each of eight channels may have two batches with the device.
    assert_eq!(codes.borrow()[..8], [(opcode::BATCH, 3); 8]);
    ends.extend(fixture.finish());
    assert!(ends.len() == 8 && ends.iter().all(|end| end.outcome.result.is_ok()), "{ends:?}");
    let (mut alone, codes) = noted_with(&Setup::default(), short, false, 0);
    let copy = alone.copy(2, 40_000);
    alone.engine.post(copy).expect("free");
    alone.engine.ring_doorbell();
    alone.engine.poll(alone.now, &mut ends);
    assert_eq!(codes.borrow()[0], (opcode::BATCH, 8), "a channel alone has larger ones");
}

#[test]
fn channels_take_turns_at_a_queue_of_one() {
    let setup = Setup { entries: 1, lists: 0, engines: 1, ..Setup::default() };
    let short = DsaOptions { chunk_bytes: 1024, batch: 1, ..patient() };
    let (mut fixture, _) = noted_with(&setup, short, false, 0);
    let tickets: Vec<_> = (0..8)
        .map(|channel| {
            let copy = fixture.copy(channel, 20 * 1024);
            fixture.engine.post(copy).expect("free")
        })
        .collect();
    fixture.engine.ring_doorbell();
    let mut ends = Vec::new();
    fixture.engine.poll(fixture.now, &mut ends);
    while ends.is_empty() && fixture.turn(&mut ends) {
        let done = tickets.iter().map(|ticket| fixture.engine.bytes_done(*ticket) / 1024);
        let (least, most) = done.fold((u64::MAX, 0), |(least, most), done| (least.min(done), most.max(done)));
        assert!(!ends.is_empty() || most - least <= 3, "{least} to {most} pieces");
    }
    ends.extend(fixture.finish());
    assert!(ends.len() == 8 && ends.iter().all(|end| end.outcome.result.is_ok()), "{ends:?}");
}

#[test]
fn a_small_request_has_its_turn_among_batches() {
    let setup = Setup { entries: 1, engines: 1, ..Setup::default() };
    let short = DsaOptions { chunk_bytes: 1024, ..patient() };
    let (mut fixture, _) = noted_with(&setup, short, false, 0);
    let mut tickets = Vec::new();
    for channel in [0, 1] {
        let copy = fixture.copy(channel, 200 * 1024);
        tickets.push(fixture.engine.post(copy).expect("free"));
    }
    fixture.engine.ring_doorbell();
    let mut ends = Vec::new();
    for _ in 0..5 {
        fixture.turn(&mut ends);
    }
    let copy = fixture.copy(3, 500);
    let small = fixture.engine.post(copy).expect("free");
    fixture.engine.ring_doorbell();
    while ends.is_empty() && fixture.turn(&mut ends) {}
    assert_eq!((ends[0].ticket, ends[0].outcome.result), (small, Ok(())));
    let done: Vec<u64> = tickets.iter().map(|ticket| fixture.engine.bytes_done(*ticket) / 1024).collect();
    assert!(done.iter().all(|done| *done < 60), "{done:?} of 200 pieces");
}

#[test]
fn a_channel_without_turns_leaves_the_queue_to_others() {
    let (mut fixture, _) = noted(&Setup::default(), false, 0);
    fixture.engine.set_turns(3, 0);
    start(&mut fixture, 40_000);
    let ends = fixture.finish();
    let channels: Vec<u32> = ends.iter().map(|end| end.ticket.channel).collect();
    assert!(channels.len() == 7 && !channels.contains(&3), "{channels:?}");
    assert!(fixture.engine.is_at_rest(3));
    fixture.engine.set_turns(3, 1);
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].ticket.channel, ends[0].outcome.result), (1, 3, Ok(())));
}
