//! The driver with scripted portals, records and registers: what it writes, what it refuses, and what it believes of a record.

extern crate std;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use core::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::capability::{Offsets, Opcap, Wqcap};
use memferry_dsa_registers::control::{CommandError, DeviceState, Gensts, ResetType};
use memferry_dsa_registers::descriptor::{Descriptor, Operation, opcode};
use memferry_dsa_registers::error::{SoftwareError, Swerr};
use memferry_dsa_registers::offset;
use memferry_dsa_registers::record::{Head, Record, Status};
use proptest::prelude::*;

use super::*;

const RECORDS: u64 = 0x10_0000;
const LISTS: u64 = 0x20_0000;
const LIMITS: Limits = Limits {
    longest: 1 << 20,
    largest_batch: 16,
    batch_of_one: false,
    operations: Opcap::of(&opcode::ALL),
    overlapping_moves: true,
    cache_control: true,
    block_on_fault: false,
    fault_info: false,
};
const CONFIG: QueueConfig =
    QueueConfig { records: RECORDS, list: LISTS, lists: 2, list_length: 4, entries: 4, attempts: 3 };

#[derive(Clone, Debug, Default)]
struct Memory(Rc<RefCell<BTreeMap<u64, u64>>>);

impl DmaMemory for Memory {
    fn read(&mut self, address: u64) -> u64 {
        *self.0.borrow().get(&address).unwrap_or(&0)
    }

    fn write(&mut self, address: u64, word: u64) {
        self.0.borrow_mut().insert(address, word);
    }
}

impl Memory {
    fn put(&self, slot: usize, record: Record) {
        let at = RECORDS + 32 * slot as u64;
        for (place, word) in (at..).step_by(8).zip(record.into_words()) {
            self.0.borrow_mut().insert(place, word);
        }
    }
}

/// What a portal was given, and how it answers.
#[derive(Clone, Debug, Default)]
struct Script {
    taken: Rc<RefCell<Vec<Descriptor>>>,
    answers: Rc<RefCell<Vec<Refused>>>,
    attempts: Rc<Cell<u32>>,
}

impl Portal for Script {
    fn submit(&mut self, descriptor: &Descriptor) -> Result<(), Refused> {
        self.attempts.set(self.attempts.get() + 1);
        if let Some(refused) = self.answers.borrow_mut().pop() {
            return Err(refused);
        }
        self.taken.borrow_mut().push(*descriptor);
        Ok(())
    }
}

type Tested = Queue<Script, Memory, 8>;

fn queue() -> (Tested, Script, Memory) {
    let (script, memory) = Default::default();
    (Queue::new(Script::clone(&script), Memory::clone(&memory), LIMITS, CONFIG).unwrap(), script, memory)
}

fn copy(bytes: u32) -> Request {
    Request::new(Operation::Move { source: 0x5000, destination: 0x9000, bytes })
}

fn record(status: u8) -> Record {
    Record { head: Head::new().with_status(status), ..Record::default() }
}

#[test]
fn a_request_ends_with_its_record() {
    let (mut queue, script, memory) = queue();
    let ticket = queue.submit(&copy(100)).unwrap();
    let descriptor = script.taken.borrow()[0];
    assert_eq!(descriptor.operation(), Some(copy(100).operation));
    assert_eq!(descriptor.record(), RECORDS + 32 * ticket.slot() as u64);
    assert!(descriptor.flags().record_valid() && descriptor.flags().request_record());
    assert_eq!((queue.poll(), queue.outstanding(), queue.is_idle()), (None, 1, false));
    memory.put(ticket.slot(), record(1));
    assert_eq!(queue.poll(), Some(Completion { ticket, outcome: Outcome::Done(Value::None) }));
    assert_eq!((queue.poll(), queue.outstanding(), queue.is_idle()), (None, 0, true));
    assert!(queue.close().is_ok());
}

#[test]
fn a_stale_record_is_cleared_before_the_submission() {
    let (mut queue, _, memory) = queue();
    (0..8).for_each(|slot| memory.put(slot, record(1)));
    queue.submit(&copy(1)).unwrap();
    assert_eq!(queue.poll(), None);
}

#[test]
fn the_entries_of_a_dedicated_queue_are_counted() {
    let (mut queue, script, memory) = queue();
    let tickets: Vec<Ticket> = (0..4).map(|_| queue.submit(&copy(1)).unwrap()).collect();
    assert_eq!(queue.submit(&copy(1)), Err(SubmitError::NoEntry { entries: 4 }));
    assert_eq!((script.attempts.get(), queue.free_slots()), (4, 4), "a refused request keeps no slot");
    memory.put(tickets[2].slot(), record(1));
    assert_eq!(queue.poll().unwrap().ticket, tickets[2]);
    queue.submit(&copy(1)).unwrap();
    assert_eq!(queue.close().map(drop).map_err(|queue| queue.outstanding()), Err(4), "memory is in use");
}

#[test]
fn a_full_shared_queue_is_tried_a_bounded_number_of_times() {
    let (mut queue, script, _) = queue();
    *script.answers.borrow_mut() = vec![Refused::Busy; 5];
    assert_eq!(queue.submit(&copy(1)), Err(SubmitError::Busy { attempts: 3 }));
    assert_eq!((script.attempts.get(), queue.outstanding(), queue.free_slots()), (3, 0, 8));
    queue.submit(&copy(1)).expect("after two more refusals");
    assert_eq!(script.attempts.get(), 6);
    *script.answers.borrow_mut() = vec![Refused::Closed];
    assert_eq!(queue.submit(&copy(1)), Err(SubmitError::Closed));
    assert_eq!(script.attempts.get(), 7, "a closed portal is not tried again");
}

#[test]
fn a_batch_is_a_list_with_a_record_for_each() {
    let (mut queue, script, memory) = queue();
    let mut tickets = [Ticket::default(); 3];
    let requests = [copy(1), copy(2), Request { fence: true, ..copy(3) }];
    queue.submit_batch(&requests, &mut tickets).unwrap();
    let batch = script.taken.borrow()[0];
    assert_eq!(batch.operation(), Some(Operation::Batch { list: LISTS, count: 3 }));
    for (index, ticket) in tickets.iter().enumerate() {
        let word = |at: u64| memory.clone().read(LISTS + 64 * index as u64 + 8 * at);
        assert_eq!(word(4), 1 + index as u64);
        assert_eq!(word(1), RECORDS + 32 * ticket.slot() as u64);
        assert_eq!(word(0) >> 32 & 1, u64::from(index == 2), "the fence");
    }
    assert_eq!((queue.outstanding(), queue.free_slots()), (1, 4));
    let slot = ((batch.record() - RECORDS) / 32) as usize;
    memory.put(tickets[1].slot(), record(1));
    assert_eq!(queue.poll().unwrap().ticket, tickets[1]);
    memory.put(tickets[0].slot(), record(0x16));
    let head = Head::new().with_status(0x05).with_completed(2);
    memory.put(slot, Record { head, ..Record::default() });
    let mut ends: Vec<Completion> = core::iter::from_fn(|| queue.poll()).collect();
    ends.sort_by_key(|end| end.ticket.slot());
    let failed = |ticket, failure| Completion { ticket, outcome: Outcome::Failed(failure) };
    let expected =
        [failed(tickets[0], Failure::Rejected(Status::Overlap)), failed(tickets[2], Failure::NotExecuted)];
    assert_eq!(ends, expected);
    assert!(queue.is_idle() && queue.outstanding() == 0);
}

#[test]
fn a_batch_whose_list_is_refused_fails_as_a_whole() {
    for (status, completed, failure) in [
        (0x14, 0, Failure::Rejected(Status::InvalidCount)),
        (0x20, 0, Failure::Device(Status::ReadError)),
        (0x06, 0, Failure::NotExecuted),
        (0x01, 0, Failure::NoRecord),
    ] {
        let (mut queue, script, memory) = queue();
        let mut tickets = [Ticket::default(); 2];
        queue.submit_batch(&[copy(1), copy(2)], &mut tickets).unwrap();
        let slot = ((script.taken.borrow()[0].record() - RECORDS) / 32) as usize;
        let head = Head::new().with_status(status).with_completed(completed);
        memory.put(slot, Record { head, ..Record::default() });
        for ticket in tickets {
            let end = queue.poll_ticket(ticket).map(|end| end.outcome);
            assert_eq!(end, Some(Outcome::Failed(failure)), "status {status:#x}");
        }
        assert!(queue.is_idle());
    }
}

#[test]
fn an_old_ticket_takes_nothing_of_its_slots_next_request() {
    let (mut queue, _, memory) = queue();
    let old = queue.submit(&copy(1)).unwrap();
    memory.put(old.slot(), record(1));
    assert!(queue.poll_ticket(old).is_some());
    let mut now = queue.submit(&copy(2)).unwrap();
    while now.slot() != old.slot() {
        memory.put(now.slot(), record(1));
        assert!(queue.poll_ticket(now).is_some());
        now = queue.submit(&copy(2)).unwrap();
    }
    memory.put(now.slot(), record(1));
    assert_eq!(queue.poll_ticket(old), None);
    assert_eq!(queue.resume(old), Err(ResumeError::NotFaulted));
    assert_eq!(queue.poll_ticket(now).map(|end| end.ticket), Some(now));
}

#[test]
fn a_member_looks_at_no_request_that_has_its_batchs_slot() {
    let (mut queue, script, memory) = queue();
    let mut tickets = [Ticket::default(); 2];
    queue.submit_batch(&[copy(1), copy(2)], &mut tickets).unwrap();
    let batch = ((script.taken.borrow()[0].record() - RECORDS) / 32) as usize;
    memory.put(tickets[0].slot(), record(1));
    memory.put(tickets[1].slot(), record(1));
    let head = Head::new().with_status(1).with_completed(2);
    memory.put(batch, Record { head, ..Record::default() });
    // Ends the batch. The second member has a record, and nobody took it.
    assert_eq!(queue.poll_ticket(tickets[0]).map(|end| end.ticket), Some(tickets[0]));
    let mut next = queue.submit(&copy(3)).unwrap();
    while next.slot() != batch {
        memory.put(next.slot(), record(1));
        assert!(queue.poll_ticket(next).is_some());
        next = queue.submit(&copy(3)).unwrap();
    }
    memory.put(batch, record(1));
    assert_eq!(queue.poll_ticket(tickets[1]).map(|end| end.ticket), Some(tickets[1]));
    assert_eq!(queue.poll_ticket(next).map(|end| end.ticket), Some(next), "its completion is not lost");
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let (mut queue, script, _) = queue();
    let mut tickets = [Ticket::default(); 8];
    let length = |length| SubmitError::BatchLength { length, smallest: 2, largest: 4 };
    assert_eq!(queue.submit_batch(&[copy(1)], &mut tickets), Err(length(1)));
    assert_eq!(queue.submit_batch(&[copy(1); 5], &mut tickets), Err(length(5)));
    let drain = Request::new(Operation::Drain);
    let nested = SubmitError::Request { index: 1, error: RequestError::Nested };
    assert_eq!(queue.submit_batch(&[copy(1), drain], &mut tickets), Err(nested));
    queue.submit_batch(&[copy(1); 4], &mut tickets).unwrap();
    let no_slot = SubmitError::NoSlot { slots: 8 };
    assert_eq!(queue.submit_batch(&[copy(1); 3], &mut tickets), Err(no_slot), "the batch needs one, too");
    *script.answers.borrow_mut() = vec![Refused::Closed];
    assert_eq!(queue.submit_batch(&[copy(1); 2], &mut tickets), Err(SubmitError::Closed));
    assert_eq!((queue.outstanding(), queue.free_slots()), (1, 3), "nothing is kept of it");
    queue.submit_batch(&[copy(1); 2], &mut tickets).unwrap();
    let mut by_write = Queue::<_, _, 8>::new(ByWrite(Full), Memory::default(), LIMITS, CONFIG).unwrap();
    assert_eq!(by_write.submit_batch(&[copy(1); 2], &mut tickets), Err(SubmitError::NoBatches));
}

/// A file that takes half of a descriptor.
struct Full;

impl DescriptorFile for Full {
    fn write(&mut self, bytes: &[u8; 64]) -> Result<usize, Refused> {
        Ok(bytes.len() / 2)
    }
}

#[test]
fn a_short_write_closes_the_portal() {
    let mut queue = Queue::<_, _, 8>::new(ByWrite(Full), Memory::default(), LIMITS, CONFIG).unwrap();
    assert_eq!(queue.submit(&copy(1)), Err(SubmitError::Closed));
}

#[test]
fn a_partial_completion_is_resumed_with_the_rest() {
    let (mut queue, script, memory) = queue();
    let ticket = queue.submit(&copy(0x3000)).unwrap();
    let head = Head::new().with_status(3).with_write(true).with_completed(0x1000);
    memory.put(ticket.slot(), Record { head, fault_address: 0xA000, value: 0 });
    let fault = Fault { address: Some(0xA000), write: true, bytes_done: 0x1000, reversed: false };
    assert_eq!(queue.poll(), Some(Completion { ticket, outcome: Outcome::Faulted(fault) }));
    assert_eq!((queue.poll(), queue.outstanding(), queue.is_idle()), (None, 0, false));
    *script.answers.borrow_mut() = vec![Refused::Busy; 3];
    let busy = ResumeError::Submit(SubmitError::Busy { attempts: 3 });
    assert_eq!(queue.resume(ticket), Err(busy), "and it can be tried again");
    queue.resume(ticket).unwrap();
    let rest = Operation::Move { source: 0x6000, destination: 0xA000, bytes: 0x2000 };
    assert_eq!(script.taken.borrow()[1].operation(), Some(rest));
    assert_eq!(queue.resume(ticket), Err(ResumeError::NotFaulted));
    memory.put(ticket.slot(), record(1));
    assert_eq!(queue.poll(), Some(Completion { ticket, outcome: Outcome::Done(Value::None) }));
    assert_eq!(queue.release(ticket), None, "the ticket is over");
}

#[test]
fn a_released_fault_says_what_remains() {
    let (mut queue, _, memory) = queue();
    let move_up = Operation::Move { source: 0x5000, destination: 0x5800, bytes: 0x3000 };
    let ticket = queue.submit(&Request::new(move_up)).unwrap();
    let head = Head::new().with_status(3).with_result(1).with_completed(0x800);
    memory.put(ticket.slot(), Record { head, fault_address: 0x6FFF, value: 0 });
    let Some(Completion { outcome: Outcome::Faulted(fault), .. }) = queue.poll() else { panic!("a fault") };
    assert_eq!((fault.bytes_done, fault.reversed, fault.write), (0x800, true, false));
    let rest = Operation::Move { source: 0x5000, destination: 0x5800, bytes: 0x2800 };
    assert_eq!(queue.release(ticket), Some(rest));
    assert!(queue.is_idle());
}

#[test]
fn each_operation_continues_where_it_stopped() {
    let rest_from = |operation: Operation, at: u32| {
        let (mut queue, _, memory) = queue();
        let ticket = queue.submit(&Request::new(operation)).unwrap();
        let write = operation.reads() == [None; 2];
        let head = Head::new().with_status(3).with_write(write).with_completed(at);
        let first = operation.reads()[0].or(operation.writes()[0]).unwrap();
        memory.put(ticket.slot(), Record { head, fault_address: first + u64::from(at), value: 0x77 });
        assert!(matches!(queue.poll().unwrap().outcome, Outcome::Faulted(_)), "{operation:?}");
        queue.release(ticket).unwrap()
    };
    let at = 0x1003;
    let rest = |operation| rest_from(operation, at);
    let bytes = 0x2000;
    let left = bytes - at;
    let pattern = 0x0807_0605_0403_0201;
    let turned = 0x0302_0108_0706_0504;
    let fill = Operation::Fill { pattern, destination: 0x1000, bytes };
    assert_eq!(rest(fill), Operation::Fill { pattern: turned, destination: 0x2003, bytes: left });
    let compared = Operation::ComparePattern { pattern, source: 0x1000, bytes };
    assert_eq!(rest(compared), Operation::ComparePattern { pattern: turned, source: 0x2003, bytes: left });
    let crc = Operation::Crc { source: 0x1000, bytes, seed: 5 };
    assert_eq!(rest(crc), Operation::Crc { source: 0x2003, bytes: left, seed: 0x77 });
    assert_eq!(rest_from(crc, 0), crc, "no byte, no CRC");
    let both = Operation::CopyCrc { source: 0x1000, destination: 0x8000, bytes, seed: 5 };
    let both_rest = Operation::CopyCrc { source: 0x2003, destination: 0x9003, bytes: left, seed: 0x77 };
    assert_eq!((rest(both), rest_from(both, 0)), (both_rest, both));
    let dual = Operation::Dualcast { source: 0x1000, destinations: [0x8000, 0xC000], bytes };
    let dual_rest = Operation::Dualcast { source: 0x2003, destinations: [0x9003, 0xD003], bytes: left };
    assert_eq!(rest(dual), dual_rest);
    let flush = Operation::Flush { destination: 0x1000, bytes };
    assert_eq!(rest(flush), Operation::Flush { destination: 0x2003, bytes: left });
}

#[test]
fn differences_count_from_the_beginning_of_the_request() {
    let (mut queue, _, memory) = queue();
    let compare = Operation::Compare { first: 0x1000, second: 0x8000, bytes: 0x2000 };
    let ticket = queue.submit(&Request::new(compare)).unwrap();
    let head = Head::new().with_status(3).with_completed(0x1000);
    memory.put(ticket.slot(), Record { head, fault_address: 0x9000, value: 0 });
    assert!(matches!(queue.poll().unwrap().outcome, Outcome::Faulted(_)));
    queue.resume(ticket).unwrap();
    let head = Head::new().with_status(1).with_result(1).with_completed(5);
    memory.put(ticket.slot(), Record { head, ..Record::default() });
    assert_eq!(queue.poll().unwrap().outcome, Outcome::Done(Value::Difference(0x1005)));
}

#[test]
fn records_that_make_no_sense_are_not_believed() {
    let fault = |completed, write, fault_address| Record {
        head: Head::new().with_status(3).with_completed(completed).with_write(write),
        fault_address,
        value: 0,
    };
    let foreign = [
        // Unknown codes, and codes of other things.
        record(0x3F),
        record(0x02),
        record(0x05),
        record(0x06),
        record(0x1A),
        record(0x1B),
        record(0x1D),
        // More than there was, or all of it.
        fault(0x1000, false, 0x5000),
        fault(0x1001, false, 0x5000),
        fault(u32::MAX, false, 0x5000),
        // A page that the request does not touch, or not in this way, or that is done.
        fault(0, false, 0x7000),
        fault(0, true, 0x5000),
        fault(0, false, 0x9000),
        fault(0, false, u64::MAX),
        // A direction that such a move cannot have.
        Record { head: fault(0, false, 0).head.with_result(1), fault_address: 0x5000, value: 0 },
        Record { head: fault(0, false, 0).head.with_result(9), fault_address: 0x5000, value: 0 },
    ];
    for record in foreign {
        let (mut queue, _, memory) = queue();
        let ticket = queue.submit(&copy(0x1000)).unwrap();
        memory.put(ticket.slot(), record);
        let outcome = queue.poll().unwrap().outcome;
        assert_eq!(outcome, Outcome::Failed(Failure::Nonsense(record)), "{record:x?}");
        assert!(queue.is_idle());
    }
}

#[test]
fn a_difference_lies_in_the_comparison() {
    for (result, completed, sense) in [(0, 7, true), (1, 99, true), (1, 100, false), (2, 0, false)] {
        let (mut queue, _, memory) = queue();
        let compare = Operation::Compare { first: 0x1000, second: 0x8000, bytes: 100 };
        let ticket = queue.submit(&Request::new(compare)).unwrap();
        let head = Head::new().with_status(1).with_result(result).with_completed(completed);
        memory.put(ticket.slot(), Record { head, ..Record::default() });
        let outcome = queue.poll().unwrap().outcome;
        assert_eq!(matches!(outcome, Outcome::Done(_)), sense, "{result} at {completed}: {outcome:?}");
    }
}

#[test]
fn a_stopped_device_ends_what_has_no_record() {
    let (mut queue, _, memory) = queue();
    let first = queue.submit(&copy(1)).unwrap();
    let lost = queue.submit(&copy(2)).unwrap();
    let mut tickets = [Ticket::default(); 2];
    queue.submit_batch(&[copy(3), copy(4)], &mut tickets).unwrap();
    memory.put(first.slot(), record(1));
    memory.put(tickets[1].slot(), record(1));
    queue.stopped(&Stopped::known_to_caller());
    let ends: BTreeMap<usize, Outcome> =
        core::iter::from_fn(|| queue.poll()).map(|end| (end.ticket.slot(), end.outcome)).collect();
    let stopped = Outcome::Failed(Failure::Stopped);
    let done = Outcome::Done(Value::None);
    let expected = [
        (first.slot(), done),
        (lost.slot(), stopped),
        (tickets[0].slot(), stopped),
        (tickets[1].slot(), done),
    ];
    assert_eq!(ends, BTreeMap::from(expected));
    assert!(queue.is_idle() && queue.outstanding() == 0);
    queue.submit_batch(&[copy(3), copy(4)], &mut tickets).expect("its list is free again");
}

#[test]
fn each_rule_of_requests_is_kept() {
    let check = |operation| Request::new(operation).validate(&LIMITS, false);
    let moved = |source, destination, bytes| Operation::Move { source, destination, bytes };
    assert_eq!(check(moved(0, 0x1000, 0)), Err(RequestError::NoBytes));
    let long = RequestError::TooLong { bytes: (1 << 20) + 1, limit: 1 << 20 };
    assert_eq!(check(moved(0, 0x1000_0000, (1 << 20) + 1)), Err(long));
    let leaves = RequestError::LeavesAddressSpace { address: u64::MAX - 1, bytes: 3 };
    assert_eq!(check(moved(0, u64::MAX - 1, 3)), Err(leaves));
    assert_eq!(check(moved(0, u64::MAX - 1, 2)), Ok(()));
    assert_eq!(check(moved(0, 8, 16)), Ok(()), "an overlapping move");
    let apart = Limits { overlapping_moves: false, ..LIMITS };
    let overlap = RequestError::Overlap { first: 0, second: 8, bytes: 16 };
    assert_eq!(Request::new(moved(0, 8, 16)).validate(&apart, false), Err(overlap));
    assert_eq!(check(Operation::CopyCrc { source: 0, destination: 8, bytes: 16, seed: 0 }), Err(overlap));
    let dual = |destinations| Operation::Dualcast { source: 0, destinations, bytes: 16 };
    let skewed = RequestError::Misaligned { first: 0x1000, second: 0x2008 };
    assert_eq!(check(dual([0x1000, 0x2008])), Err(skewed));
    let same = RequestError::Overlap { first: 0x1000, second: 0x1000, bytes: 16 };
    assert_eq!(check(dual([0x1000, 0x1000])), Err(same));
    assert_eq!(check(Operation::Batch { list: 0, count: 2 }), Err(RequestError::Nested));
    let fence = Request { fence: true, ..copy(1) };
    assert_eq!(fence.validate(&LIMITS, false), Err(RequestError::FenceOutsideBatch));
    assert_eq!(fence.validate(&LIMITS, true), Ok(()));
    let blocks = Request { block_on_fault: true, ..copy(1) };
    assert_eq!(blocks.validate(&LIMITS, false), Err(RequestError::CannotBlock));
    let few = Limits { operations: Opcap::of(&[opcode::NOP]), ..LIMITS };
    assert_eq!(copy(1).validate(&few, false), Err(RequestError::Unsupported { code: opcode::MOVE }));
}

#[test]
fn each_rule_of_queues_is_kept() {
    let made = |config| Queue::<_, _, 8>::new(Script::default(), Memory::default(), LIMITS, config).map(drop);
    let cases = [
        (
            QueueConfig { records: RECORDS + 16, ..CONFIG },
            QueueError::RecordsMisaligned { address: RECORDS + 16 },
        ),
        (QueueConfig { list: LISTS + 32, ..CONFIG }, QueueError::ListMisaligned { address: LISTS + 32 }),
        (QueueConfig { lists: 65, ..CONFIG }, QueueError::TooManyLists { lists: 65 }),
        (QueueConfig { list_length: 17, ..CONFIG }, QueueError::ListTooLong { length: 17, limit: 16 }),
        (QueueConfig { list_length: 0, ..CONFIG }, QueueError::ListTooLong { length: 0, limit: 16 }),
        (QueueConfig { attempts: 0, ..CONFIG }, QueueError::Nothing),
        (QueueConfig { entries: 0, ..CONFIG }, QueueError::Nothing),
        (
            QueueConfig { records: !0x1F, ..CONFIG },
            QueueError::LeavesAddressSpace { address: !0x1F, bytes: 256 },
        ),
    ];
    for (config, error) in cases {
        assert_eq!(made(config), Err(error));
    }
    assert_eq!(
        made(QueueConfig { lists: 0, list: 1, ..CONFIG }),
        Ok(()),
        "without lists their place does not matter"
    );
}

proptest! {
    /// Whatever stands in the records, each request ends once, and nothing panics.
    #[test]
    fn any_record_is_taken(words in prop::collection::vec(any::<[u64; 4]>(), 6), kinds in prop::collection::vec(0..4_u8, 6)) {
        let (mut queue, script, memory) = queue();
        let operation = |kind: u8| match kind {
            0 => Operation::Nop,
            1 => Operation::Compare { first: 0x1000, second: 0x8000, bytes: 0x2000 },
            2 => Operation::Fill { pattern: 1, destination: 0x1000, bytes: 0x2000 },
            _ => Operation::Move { source: 0x1000, destination: 0x1800, bytes: 0x2000 },
        };
        let requests: Vec<Request> = kinds.iter().map(|kind| Request::new(operation(*kind))).collect();
        let mut tickets = [Ticket::default(); 4];
        queue.submit_batch(&requests[..4], &mut tickets).unwrap();
        let single = queue.submit(&requests[4]).unwrap();
        let batch = ((script.taken.borrow()[0].record() - RECORDS) / 32) as usize;
        let slots = tickets.iter().map(|ticket| ticket.slot()).chain([single.slot(), batch]);
        for (slot, words) in slots.zip(&words) {
            let mut record = Record::from_words(*words);
            if words[3] % 2 == 0 {
                record.head = record.head.with_status((words[3] >> 1 & 0x7) as u8).with_completed(words[3] as u32 >> 8 & 0x3FFF);
                record.fault_address = words[1] & 0xFFFF;
            }
            memory.put(slot, record);
        }
        let mut ends = 0;
        while let Some(completion) = queue.poll() {
            ends += 1;
            prop_assert!(ends <= 5);
            if let Outcome::Faulted(fault) = completion.outcome {
                prop_assert!(fault.bytes_done < 0x2000);
                prop_assert!(queue.release(completion.ticket).is_some());
            }
        }
        queue.stopped(&Stopped::known_to_caller());
        while queue.poll().is_some() {
            ends += 1;
        }
        prop_assert_eq!(ends, 5);
        prop_assert!(queue.is_idle());
    }
}

/// Registers by offset; commands answer at once with `error`, or never.
#[derive(Debug, Default)]
struct Registers {
    words: BTreeMap<u32, u32>,
    writes: Vec<(u32, u32)>,
    error: u8,
    unresponsive: bool,
}

impl RegisterIo for Registers {
    fn read32(&mut self, offset: u32) -> u32 {
        *self.words.get(&offset).unwrap_or(&0)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.writes.push((offset, value));
        if offset == offset::CMD {
            let active = u32::from(self.unresponsive) << 31;
            self.words.insert(offset::CMDSTS, u32::from(self.error) | active);
        } else if !(offset::SWERR..offset::SWERR + 32).contains(&offset) {
            self.words.insert(offset, value);
        }
    }
}

impl Registers {
    fn set(&mut self, offset: u32, value: u64) {
        self.words.insert(offset, value as u32);
        self.words.insert(offset + 4, (value >> 32) as u32);
    }
}

/// A clock that advances by a microsecond on each read.
#[derive(Debug, Default)]
struct Ticks(Cell<u64>);

impl Clock for Ticks {
    fn now(&self) -> Instant {
        self.0.set(self.0.get() + 1000);
        Instant::from_nanoseconds(self.0.get())
    }
}

const TIMEOUT: Duration = Duration::from_micros(5);

fn registers() -> Registers {
    let mut registers = Registers::default();
    registers.set(offset::VERSION, 0x100);
    // As Sapphire Rapids prints it.
    registers.set(offset::GENCAP, 0x40_915F_0107);
    let queues = Wqcap::new()
        .with_total_size(128)
        .with_queues(8)
        .with_entry_log2(1)
        .with_dedicated(true)
        .with_shared(true);
    registers.set(offset::WQCAP, queues.into_bits());
    registers.set(offset::GRPCAP, 0x1_6004);
    registers.set(offset::ENGCAP, 4);
    registers.set(offset::OPCAP, 0x1_003F_03FF);
    registers
        .set(offset::OFFSETS, Offsets::new().with_groups(6).with_queues(8).with_permissions(4).into_bits());
    registers
}

const GROUP: Group = Group { engines: 0b11, read_buffers_reserved: 0, read_buffers_allowed: None };
const WORK_QUEUE: WorkQueue = WorkQueue {
    size: 16,
    group: 0,
    dedicated: true,
    threshold: 0,
    priority: 10,
    block_on_fault: false,
    max_transfer: Some(21),
    max_batch: None,
    pasid: None,
};

#[test]
fn capabilities_of_sapphire_rapids_are_read() {
    let mut driver = Dsa::new(registers(), Ticks::default());
    let have = driver.initialize(TIMEOUT).unwrap();
    let general = have.general;
    assert_eq!((general.max_transfer(), general.max_batch(), general.interrupt_storage()), (31, 10, 8));
    assert!(general.block_on_fault() && general.overlapping_copy() && general.cache_control());
    assert!(general.configurable() && !general.command_capabilities() && !general.fault_info());
    assert_eq!((have.groups.groups(), have.groups.read_buffers(), have.engines.engines()), (4, 96, 4));
    assert!(have.operations.contains(opcode::FLUSH) && !have.operations.contains(0x0A));
    assert_eq!(have.tables.queue(1, 2), 0x848);
}

#[test]
fn a_configuration_is_written_and_read_back_as_limits() {
    let mut driver = Dsa::new(registers(), Ticks::default());
    assert_eq!(driver.configure(&[], &[]), Err(ConfigurationError::NotInitialized));
    let have = driver.initialize(TIMEOUT).unwrap();
    driver.configure(&[GROUP], &[WORK_QUEUE, WorkQueue { size: 0, ..WORK_QUEUE }]).unwrap();
    let limits = driver.limits(0).unwrap();
    assert_eq!((limits.longest, limits.largest_batch), (1 << 21, 1024));
    assert_eq!(driver.limits(8), None);
    let mut dsa = driver;
    driver_has(&mut dsa, have.tables.group_queues(0, 0), 1);
    driver_has(&mut dsa, have.tables.group_engines(0), 0b11);
    driver_has(&mut dsa, have.tables.group_flags(0), 96 << 20 | 0b1001);
    driver_has(&mut dsa, have.tables.queue(0, 0), 16);
}

fn driver_has(driver: &mut Dsa<Registers, Ticks>, offset: u32, value: u32) {
    assert_eq!(driver.io_mut().read32(offset), value, "{offset:#x}");
}

#[test]
fn each_rule_of_configurations_is_kept() {
    let mut driver = Dsa::new(registers(), Ticks::default());
    driver.initialize(TIMEOUT).unwrap();
    driver.io_mut().writes.clear();
    let queue = |change: fn(&mut WorkQueue)| {
        let mut queue = WORK_QUEUE;
        change(&mut queue);
        queue
    };
    let cases = [
        (queue(|queue| queue.group = 1), ConfigurationError::NoSuchGroup { queue: 0, group: 1 }),
        (queue(|queue| queue.size = 129), ConfigurationError::TooManyEntries { entries: 129, limit: 128 }),
        (queue(|queue| queue.priority = 0), ConfigurationError::Priority { queue: 0, priority: 0 }),
        (queue(|queue| queue.priority = 16), ConfigurationError::Priority { queue: 0, priority: 16 }),
        (
            queue(|queue| (queue.size, queue.priority) = (0, 16)),
            ConfigurationError::Priority { queue: 0, priority: 16 },
        ),
        (queue(|queue| queue.pasid = Some(1 << 20)), ConfigurationError::Pasid { queue: 0, pasid: 1 << 20 }),
        (
            queue(|queue| (queue.size, queue.pasid) = (0, Some(u32::MAX))),
            ConfigurationError::Pasid { queue: 0, pasid: u32::MAX },
        ),
        (queue(|queue| queue.dedicated = false), ConfigurationError::Mode { queue: 0 }),
        (queue(|queue| queue.max_batch = Some(11)), ConfigurationError::Size { queue: 0 }),
        (queue(|queue| queue.max_transfer = Some(32)), ConfigurationError::Size { queue: 0 }),
        (queue(|queue| (queue.size, queue.max_batch) = (0, Some(16))), ConfigurationError::Size { queue: 0 }),
        (
            queue(|queue| (queue.size, queue.max_transfer) = (0, Some(32))),
            ConfigurationError::Size { queue: 0 },
        ),
    ];
    for (queue, error) in cases {
        assert_eq!(driver.configure(&[GROUP], &[queue]), Err(error));
    }
    let groups = [GROUP; 5];
    assert_eq!(driver.configure(&groups, &[]), Err(ConfigurationError::TooManyGroups { count: 5, limit: 4 }));
    let queues = [WorkQueue { size: 1, ..WORK_QUEUE }; 9];
    let many = ConfigurationError::TooManyQueues { count: 9, limit: 8 };
    assert_eq!(driver.configure(&[GROUP], &queues), Err(many));
    assert_eq!(driver.configure(&groups[..2], &[]), Err(ConfigurationError::Engines { group: 1 }), "twice");
    let beyond = Group { engines: 0x10, ..GROUP };
    assert_eq!(driver.configure(&[beyond], &[]), Err(ConfigurationError::Engines { group: 0 }));
    assert_eq!(driver.io_mut().writes, [], "nothing was written");
    let unused = queue(|queue| (queue.size, queue.priority, queue.pasid) = (0, 0, Some((1 << 20) - 1)));
    assert_eq!(driver.configure(&[GROUP], &[unused]), Ok(()), "at its bounds");
    driver.io_mut().set(offset::GENSTS, Gensts::new().with_state(DeviceState::Enabled).into_bits().into());
    let enabled = ConfigurationError::NotDisabled(DeviceState::Enabled);
    assert_eq!(driver.configure(&[GROUP], &[WORK_QUEUE]), Err(enabled));
}

#[test]
fn unusable_devices_are_refused() {
    let made = |change: fn(&mut Registers)| {
        let mut registers = registers();
        change(&mut registers);
        Dsa::new(registers, Ticks::default()).initialize(TIMEOUT).map(drop)
    };
    let ones = |registers: &mut Registers| registers.set(offset::VERSION, u64::MAX);
    assert_eq!(made(ones), Err(InitError::Version { major: 0xFF, minor: 0xFF }));
    assert_eq!(made(|registers| registers.set(offset::WQCAP, 0)), Err(InitError::Nothing));
    let halted = |registers: &mut Registers| {
        let status = Gensts::new().with_state(DeviceState::Halted).with_reset(ResetType::Warm);
        registers.set(offset::GENSTS, status.into_bits().into());
    };
    assert_eq!(made(halted), Err(InitError::Halted(ResetType::Warm)));
    let timed_out = CommandFailure::TimedOut { code: 5, waited: TIMEOUT };
    assert_eq!(made(|registers| registers.unresponsive = true), Err(InitError::Command(timed_out)));
    let refused = CommandFailure::Refused { code: 5, error: CommandError::Hardware };
    assert_eq!(made(|registers| registers.error = 3), Err(InitError::Command(refused)));
    assert_eq!(made(|_| {}), Ok(()));
}

#[test]
fn a_command_in_progress_is_not_disturbed() {
    let mut driver = Dsa::new(registers(), Ticks::default());
    driver.initialize(TIMEOUT).unwrap();
    driver.io_mut().unresponsive = true;
    assert!(matches!(driver.drain_queue(0, TIMEOUT), Err(CommandFailure::TimedOut { code: 8, .. })));
    driver.io_mut().writes.clear();
    assert_eq!(driver.enable(TIMEOUT), Err(CommandFailure::Active));
    assert_eq!(driver.io_mut().writes, []);
}

#[test]
fn an_interrupt_is_acknowledged_with_its_error() {
    let mut driver = Dsa::new(registers(), Ticks::default());
    driver.initialize(TIMEOUT).unwrap();
    let status = Swerr::new()
        .with_valid(true)
        .with_overflow(true)
        .with_code(0x53)
        .with_queue(2)
        .with_queue_valid(true);
    let error = SoftwareError { status, batch_index: 0, information: 0, address: 0 };
    for (at, word) in (offset::SWERR..).step_by(8).zip(error.into_words()) {
        driver.io_mut().set(at, word);
    }
    driver.io_mut().set(offset::INTCAUSE, 0b11);
    driver.io_mut().writes.clear();
    let interrupt = driver.handle_interrupt();
    assert_eq!(interrupt, Interrupt { command: true, error: Some(error), halted: None });
    assert_eq!(
        driver.io_mut().writes,
        [(offset::INTCAUSE, 0b11), (offset::SWERR, 0b11), (offset::SWERR + 4, 0)]
    );
}
