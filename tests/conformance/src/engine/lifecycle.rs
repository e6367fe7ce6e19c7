//! A descriptor's life cycle: posted or refused, started, cancelled, and completed exactly once.
//!
//! ```text
//! post ─► Refused (with the descriptor)  post ─► Ticket ─► doorbell ─► completion
//!                                                  └─ cancel ─► completion with the bytes done
//! ```
//!
//! `operations` and `random` test the effects on memory.

use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Color24, Count2d, Engine, EngineCompletion, EngineKind, Failure, Fill2d, Operation, Operations, Outcome,
    Pattern, PixelSize, Plane, Side, SyncUnit, Synchronized, Ticket, Watermark,
};

use super::bench::Bench;
use super::operations::{all_operations, memories, noise, place};
use super::{EngineFixture, EngineSetup};
use crate::oracle::{self, Place};

const SETUP: EngineSetup = EngineSetup { channels: 3, chunk_bytes: 32 };

fn copy(length: u64) -> Operation<Place> {
    Operation::Copy { source: place(0, 16, length), destination: place(1, 24, length), length }
}

pub(super) fn refusals_return_the_descriptor<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let capabilities = bench.engine().capabilities();
    bench.post(0, &copy(10));
    let mut refused = |channel, operation: &Operation<Place>| {
        let refused = bench.try_post(channel, operation).expect_err("accepted instead of refused");
        assert_eq!(refused.descriptor.channel(), channel);
        assert_eq!(bench.operation_of(&refused.descriptor), *operation);
        refused.reason
    };
    for channel in [capabilities.channels, u32::MAX] {
        assert_eq!(refused(channel, &copy(5)), RefusalReason::NoSuchChannel(channel));
    }
    let fill = Operation::Fill { destination: place(0, 17, 90), length: 80, pattern: Pattern::Half(7) };
    assert_eq!(refused(0, &fill), RefusalReason::Busy(0));
    // Confined to one byte, but longer than any transfer may be.
    let count = Count2d { pixel: PixelSize::Bits8, x_count: u32::MAX, y_count: u32::MAX };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    if capabilities.longest_bytes < count.total_bytes() {
        let shape = Fill2d { count, destination, color: Color24::new(0).expect("24 bits") };
        let fill = Operation::Fill2d { destination: place(1, 3, 1), shape };
        assert_eq!(refused(1, &fill), RefusalReason::Unsupported);
    }
    // A posted but unstarted descriptor makes its channel busy; the refusals did not affect it.
    bench.engine().ring_doorbell();
    let completions = bench.drive(1);
    assert_eq!((completions[0].outcome.result, completions[0].outcome.bytes_done), (Ok(()), 10));
    bench.expect(&copy(10));
    bench.verify(&"refused descriptors");
}

pub(super) fn nothing_starts_before_the_doorbell<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let first = bench.post(0, &copy(300));
    let mut completions = Vec::new();
    let more = bench.poll(&mut completions);
    assert_eq!((more, completions.as_slice()), (false, [].as_slice()), "before the doorbell");
    assert_eq!(bench.engine().next_wake(), None, "before the doorbell");
    bench.verify(&"a post without doorbell");
    bench.engine().ring_doorbell();
    // A descriptor that waits for its doorbell must not delay running ones.
    let second = bench.post(1, &copy(20));
    let completions = bench.drive_to_rest();
    assert_eq!(completions.iter().map(|end| end.ticket).collect::<Vec<_>>(), [first]);
    bench.engine().ring_doorbell();
    assert_eq!(bench.drive(1)[0].ticket, second);
    bench.expect(&copy(300));
    bench.verify(&"two doorbells");
}

pub(super) fn suspended_channels_move_nothing<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let held = bench.post(0, &copy(300));
    let fill = Operation::Fill { destination: place(0, 400, 40), length: 40, pattern: Pattern::Byte(9) };
    let free = bench.post(1, &fill);
    bench.engine().set_turns(0, 0);
    bench.engine().ring_doorbell();
    assert_eq!(bench.drive(1)[0].ticket, free);
    assert!(bench.engine().is_at_rest(0) && bench.engine().is_at_rest(1));
    assert_eq!(bench.engine().bytes_done(held), 0);
    bench.expect(&fill);
    bench.verify(&"a transfer beside a suspended one");
    bench.engine().set_turns(0, 1);
    let completions = bench.drive(1);
    assert_eq!((completions[0].ticket, completions[0].outcome.result), (held, Ok(())));
    bench.expect(&copy(300));
    bench.verify(&"a transfer that was suspended");
    // A transfer cancelled while suspended ends without resuming.
    bench.engine().set_turns(0, 0);
    let cancelled = bench.post(0, &copy(10));
    bench.engine().ring_doorbell();
    bench.engine().cancel(cancelled);
    let completions = bench.drive(1);
    assert_eq!((completions[0].ticket, completions[0].outcome.result), (cancelled, Err(Failure::Cancelled)));
    bench.verify(&"a transfer that was cancelled while it was suspended");
}

pub(super) fn early_cancels_move_nothing<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    for ring in [false, true] {
        for operation in [Operation::Nop, copy(200)] {
            let mut bench = Bench::new(make, SETUP, &memories());
            let ticket = bench.post(2, &operation);
            bench.engine().cancel(ticket);
            bench.engine().cancel(ticket);
            if ring {
                bench.engine().ring_doorbell();
            }
            let completions = bench.drive(1);
            let end =
                (completions[0].ticket, completions[0].outcome.result, completions[0].outcome.bytes_done);
            assert_eq!(end, (ticket, Err(Failure::Cancelled), 0));
            bench.verify(&"a cancel before the doorbell");
            bench.run(&copy(200));
        }
    }
}

pub(super) fn running_cancels_report_bytes_done<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let operation = copy(400);
    for polls in 0..16 {
        let mut bench = Bench::new(make, SETUP, &memories());
        let mut completions = Vec::new();
        let ticket = bench.post(0, &operation);
        bench.engine().ring_doorbell();
        for _ in 0..polls {
            bench.poll(&mut completions);
        }
        bench.engine().cancel(ticket);
        completions.extend(bench.drive(1 - completions.len()));
        assert_eq!(completions.len(), 1);
        bench.verify_cancelled(&operation, ticket, &completions[0]);
    }
}

impl<X: EngineFixture> Bench<X> {
    /// Compares memory with the bytes that a cancelled transfer reports.
    pub(super) fn verify_cancelled(
        &mut self,
        operation: &Operation<Place>,
        ticket: Ticket,
        end: &EngineCompletion,
    ) {
        assert_eq!(end.ticket, ticket);
        // A comparison ends at the first difference.
        let whole = match operation {
            Operation::Compare { .. } => oracle::value(operation, &self.expected),
            _ => operation.total_bytes(),
        };
        match end.outcome.result {
            Ok(()) => assert_eq!(end.outcome.bytes_done, whole, "reported as complete"),
            Err(Failure::Cancelled) => assert!(end.outcome.bytes_done <= whole, "{end:?} of {whole} bytes"),
            Err(failure) => panic!("{failure:?} after a cancel"),
        }
        let before = self.expected.clone();
        let visited = oracle::apply_part(operation, &mut self.expected, end.outcome.bytes_done);
        assert_eq!(visited, Ok(end.outcome.bytes_done), "not a whole number of pixels");
        let found: Vec<_> = (0..before.len()).map(|memory| self.contents(memory)).collect();
        // The engine may visit pixels in any order if the order is invisible.
        if oracle::is_part_in_any_order(operation, &before, &found, end.outcome.bytes_done) {
            self.expected = found;
        }
        self.verify(&(end, operation));
    }

    /// Polls until the engine has nothing left to do.
    fn drive_to_rest(&mut self) -> Vec<EngineCompletion> {
        let mut completions = Vec::new();
        loop {
            let more = self.poll(&mut completions);
            if !more && self.engine().next_wake().is_none() {
                return completions;
            }
            if !more {
                self.wait();
            }
        }
    }
}

pub(super) fn stale_cancels_are_ignored<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let channels = bench.engine().capabilities().channels;
    let stale = bench.post(0, &copy(8));
    bench.engine().ring_doorbell();
    bench.drive(1);
    bench.engine().cancel(stale);
    let operation = copy(300);
    let ticket = bench.post(0, &operation);
    bench.engine().ring_doorbell();
    bench.engine().cancel(stale);
    bench.engine().cancel(Ticket { serial: ticket.serial.wrapping_add(1), ..ticket });
    bench.engine().cancel(Ticket { channel: 1, ..ticket });
    bench.engine().cancel(Ticket { channel: channels, serial: 1 });
    let whole = EngineCompletion { ticket, outcome: bench.whole(300, 0) };
    assert_eq!(bench.drive(1), [whole]);
    bench.expect(&operation);
    bench.verify(&"stale cancels");
}

pub(super) fn all_channels_finish_once_each<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    const CHANNELS: u32 = 7;
    let memories: Vec<_> = (0..u64::from(CHANNELS)).map(|seed| noise(2048, seed)).collect();
    let mut bench = Bench::new(make, EngineSetup { channels: CHANNELS, chunk_bytes: 32 }, &memories);
    let channels = bench.engine().capabilities().channels.min(CHANNELS);
    // The first is the longest, one is cancelled, one is empty.
    let lengths = [1000, 0, 33, 900, 32, 64, 500];
    let copies: Vec<_> = (0..channels as usize)
        .map(|channel| {
            let length = lengths[channel];
            let source = place(channel, 8, length);
            let destination = place(channel, 1020, length);
            Operation::Copy { source, destination, length }
        })
        .collect();
    let tickets: Vec<_> = (0..).zip(&copies).map(|(channel, copy)| bench.post(channel, copy)).collect();
    bench.engine().ring_doorbell();
    for channel in 0..channels {
        let busy = bench.try_post(channel, &Operation::Nop).expect_err("accepted on a busy channel");
        assert_eq!(busy.reason, RefusalReason::Busy(channel));
    }
    bench.engine().cancel(tickets[3]);
    let mut completions = bench.drive(channels as usize);
    completions.sort_by_key(|end| end.ticket);
    for ((end, ticket), copy) in completions.iter().zip(&tickets).zip(&copies) {
        assert_eq!(end.ticket, *ticket, "one completion per channel");
        assert!(end.outcome.result.is_ok() || ticket.channel == 3, "{end:?}");
        assert!(end.outcome.result.is_err() || end.outcome.bytes_done == copy.total_bytes(), "{end:?}");
        let visited = oracle::apply_part(copy, &mut bench.expected, end.outcome.bytes_done);
        assert_eq!(visited, Ok(end.outcome.bytes_done));
    }
    bench.verify(&"all channels at once");
}

pub(super) fn tickets_of_a_channel_differ<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let mut tickets = Vec::new();
    for length in 0..50 {
        let ticket = bench.post(0, &copy(length));
        assert!(!tickets.contains(&ticket), "{ticket:?} was used before");
        tickets.push(ticket);
        bench.engine().ring_doorbell();
        let completions = bench.drive(1);
        assert_eq!(completions, [EngineCompletion { ticket, outcome: bench.whole(length, 0) }]);
    }
}

pub(super) fn finished_reports_are_appended<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let earlier = EngineCompletion {
        ticket: Ticket { channel: 99, serial: 99 },
        outcome: Outcome {
            result: Err(Failure::MemoryFault),
            bytes_done: 9,
            value: 0,
            engine: EngineKind::None,
        },
    };
    let mut completions = vec![earlier];
    let ticket = bench.post(0, &copy(8));
    bench.engine().ring_doorbell();
    while completions.len() < 2 {
        if !bench.poll(&mut completions) && completions.len() < 2 {
            bench.wait();
        }
    }
    assert_eq!(completions, [earlier, EngineCompletion { ticket, outcome: bench.whole(8, 0) }]);
}

pub(super) fn immediate_operations_equal_the_oracle<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let capabilities = bench.engine().capabilities();
    // A busy channel does not prevent immediate operations.
    let running = bench.post(0, &copy(300));
    for operation in all_operations(&capabilities) {
        let performed = bench.perform(&operation);
        assert!(!performed || operation.total_bytes() <= capabilities.immediate_bytes, "{operation:?}");
    }
    let longest = copy(capabilities.immediate_bytes.min(400));
    assert_eq!(bench.perform(&longest), capabilities.immediate_bytes > 0);
    bench.engine().ring_doorbell();
    assert_eq!(bench.drive(1)[0].ticket, running);
}

pub(super) fn unannounced_kinds_are_refused<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let mut bench = Bench::new(make, SETUP, &memories());
    let mut capabilities = bench.engine().capabilities();
    let announced = std::mem::replace(&mut capabilities.operations, Operations::all());
    for operation in all_operations(&capabilities).filter(|operation| !announced.contains(operation.kind())) {
        let refused = bench.try_post(1, &operation).expect_err("accepted an unannounced kind");
        assert_eq!(refused.reason, RefusalReason::Unsupported);
    }
    // The suite's memories are not device registers, whatever devices the engine supports.
    for (device, unit) in [(Side::Source, SyncUnit::Block), (Side::Destination, SyncUnit::Element)] {
        let shape = Synchronized { device, element: PixelSize::Bits32, elements: 4, frames: 1, unit };
        let source = place(0, 16, 16);
        let destination = place(1, 16, 16);
        let synchronized = Operation::Synchronized { source, destination, shape };
        let refused = bench.try_post(1, &synchronized).expect_err("accepted plain memory as a device");
        assert_eq!(refused.reason, RefusalReason::Unsupported);
    }
}

pub(super) fn watermarks_cover_final_bytes<X: EngineFixture>(make: &impl Fn(EngineSetup) -> X) {
    let overlapping =
        Operation::Copy { source: place(0, 16, 300), destination: place(0, 40, 300), length: 300 };
    for operation in [copy(400), overlapping] {
        let mut bench = Bench::new(make, SETUP, &memories());
        let ticket = bench.post(0, &operation);
        bench.engine().ring_doorbell();
        let mut completions = Vec::new();
        let mut highest = 0;
        let mut done = bench.expected.clone();
        oracle::apply(&operation, &mut done).expect("confined");
        while completions.is_empty() {
            if !bench.poll(&mut completions) && completions.is_empty() {
                bench.wait();
            }
            let Some(watermark) = bench.engine().watermark(ticket) else { continue };
            assert!(watermark.bytes >= highest, "the watermark decreased");
            highest = watermark.bytes;
            bench.verify_final(&operation, watermark, &done);
        }
        assert_eq!(bench.engine().watermark(ticket), None, "the transfer has ended");
    }
}

impl<X: EngineFixture> Bench<X> {
    /// Checks the part of a copy's destination that the watermark covers.
    fn verify_final(&self, operation: &Operation<Place>, watermark: Watermark, done: &[Vec<u8>]) {
        let Operation::Copy { destination, length, .. } = operation else { return };
        let (first, last) = match watermark.downward {
            false => (0, watermark.bytes),
            true => (length - watermark.bytes, *length),
        };
        let range = (destination.offset + first) as usize..(destination.offset + last) as usize;
        let found = self.contents(destination.memory);
        assert_eq!(found[range.clone()], done[destination.memory][range], "{watermark:?} of {operation:?}");
    }
}
