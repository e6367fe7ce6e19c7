//! Memory whose transfer has ended while an engine may still write to it.

pub(crate) mod scripted_worker;

use allocator_api2::vec::Vec as ArenaVec;
use memferry_transfer::{CacheHint, EngineKind, Handle, Pattern, Request, Rights, Span};

use scripted_worker::{FAULTED, ScriptedWorker};

use super::*;
use crate::{ArenaOptions, Client, FrameArena, fill};

const BYTES: usize = 4096;

fn arena(client: &Client) -> FrameArena {
    client.arena(ArenaOptions { segment_bytes: 64 << 10, ..ArenaOptions::default() }).unwrap()
}

/// Fills a buffer by an engine that completes with `end`, and drops the buffer. Returns the engine's transfer.
fn fill_and_drop(client: &Client, arena: &FrameArena, end: (Result<(), Failure>, EngineKind)) -> Transfer {
    let (mut queue, mut worker) = ScriptedWorker::with_queue(client, 4);
    let buffer = arena.buffer(BYTES).unwrap();
    // A staged transfer goes to the worker even if it is short.
    let ticket = queue.stage(fill(&buffer, Pattern::Byte(0xee))).unwrap();
    queue.publish();
    let transfer = worker.complete(end.0, end.1);
    drop(buffer);
    let ended = match queue.wait(ticket) {
        Ok(done) => (Ok(()), done.engine),
        Err(error) => (Err(error.failure), error.engine),
    };
    assert_eq!(ended, end);
    transfer
}

#[test]
fn a_buffer_of_a_faulted_channel_is_not_reused() {
    let client = Client::embedded().unwrap();
    let arena = arena(&client);
    let keeps_the_segment = arena.buffer(1).unwrap();
    let late = fill_and_drop(&client, &arena, (FAULTED, EngineKind::Module));
    let lists: Vec<_> = (0..4)
        .map(|_| {
            let mut list = ArenaVec::new_in(arena.allocator());
            list.resize(BYTES, 0u8);
            list
        })
        .collect();
    assert_eq!(arena.statistics().segments, 1, "the lists fit into one segment");
    // The late write of the failed engine.
    client.queue(2).unwrap().run(late).unwrap();
    assert!(lists.iter().flatten().all(|byte| *byte == 0), "the engine wrote to memory of a list");
    assert_eq!(arena.statistics().abandoned_bytes, BYTES as u64);
    drop((lists, keeps_the_segment));
    let statistics = arena.statistics();
    assert_eq!((statistics.abandoned_bytes, statistics.segments), (0, 0), "freed with its segment");
}

#[test]
fn a_buffer_of_a_settled_transfer_is_reused() {
    let client = Client::embedded().unwrap();
    let arena = arena(&client);
    let _keeps_the_segment = arena.buffer(1).unwrap();
    let before = arena.statistics();
    let ends = [
        (Ok(()), EngineKind::Module),
        (Err(Failure::EngineTimedOut), EngineKind::Module),
        (Err(Failure::Cancelled), EngineKind::Module),
        // Refused: all engine channels had failed before.
        (FAULTED, EngineKind::None),
    ];
    for end in ends {
        let _ = fill_and_drop(&client, &arena, end);
        let now = arena.statistics();
        assert_eq!((now.abandoned_bytes, now.live_bytes), (0, before.live_bytes), "{end:?}");
    }
}

#[test]
fn run_by_cpu_submits_nothing() {
    let client = Client::embedded().unwrap();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(4).unwrap();
    let fill = || fill(&frame, Pattern::Byte(7));
    let done = queue.run_by_cpu(&fill()).unwrap().unwrap();
    assert_eq!((done.engine, done.bytes_done), (EngineKind::Cpu, 4096));
    let hour = std::time::Duration::from_secs(3600);
    for other in [fill().linked(), fill().fenced(), fill().within(hour)] {
        assert!(queue.run_by_cpu(&other).is_none(), "{other:?} needs the service's order");
    }
    assert_eq!((queue.outstanding(), queue.poll()), (0, None));
}

/// Runs a request on this thread or by the worker. Returns its outcome, without the ticket.
fn outcome(queue: &mut Queue, request: &Request, here: bool) -> Result<(u64, EngineKind), TransferError> {
    let transfer = Transfer::of(request.clone());
    let done = if here {
        match queue.run(transfer) {
            Ok(done) => Ok(done),
            Err(RunError::Transfer(error)) => Err(error),
            Err(RunError::Submit(error)) => panic!("{error}"),
        }
    } else {
        // A staged transfer goes to the worker even if it is short.
        let ticket = queue.stage(transfer).unwrap();
        queue.wait(ticket)
    };
    done.map(|done| (done.bytes_done, done.engine))
        .map_err(|error| TransferError { id: TicketId::NONE, ..error })
}

#[test]
fn short_transfers_end_the_same_here_and_by_the_worker() {
    const LENGTH: u64 = 40 << 10;
    let client = Client::embedded().unwrap();
    let other = Client::embedded().unwrap();
    let frame = client.frame(LENGTH).alloc().unwrap();
    let second = client.frame(LENGTH).alloc().unwrap();
    let foreign = other.frame(LENGTH).alloc().unwrap();
    let revoked = client.frame(LENGTH).alloc().unwrap();
    revoked.revoke().unwrap();
    let readable = client.derive(frame.slice(1000..), Rights::READ).unwrap();
    let writable = client.derive(frame.slice(..30_000), Rights::WRITE).unwrap();
    let unknown = Handle::new(1 << 30, 1);
    // Valid ones several times, so that about half of the requests succeed.
    let owned = [&frame, &frame, &second, &second, &second, &readable, &writable, &foreign, &revoked];
    let handles: Vec<Handle> = owned.map(Frame::handle).into_iter().chain([unknown]).collect();
    let mut queue = client.queue(4).unwrap();
    let mut random = fastrand::Rng::with_seed(26);
    let before: Vec<u8> = (0..LENGTH).map(|_| random.u8(..)).collect();
    let contents = || {
        [&frame, &second].map(|frame| {
            let mut bytes = vec![0; LENGTH as usize];
            frame.read(0, &mut bytes).unwrap();
            bytes
        })
    };
    let mut succeeded = 0;
    for _ in 0..3000 {
        let mut span = || {
            let offset = match random.u8(..16) {
                0 => u64::MAX - random.u64(..4),
                1 => LENGTH - random.u64(..3),
                _ => random.u64(..20_000),
            };
            Span::new(handles[random.usize(..handles.len())], offset)
        };
        let source = span();
        let destination = span();
        let length = match random.u8(..8) {
            0 => random.u64(..3),
            1 => (16 << 10) - 1 + random.u64(..3),
            _ => random.u64(..18_000),
        };
        let request = if random.bool() {
            Request::copy(source, destination, length)
        } else {
            let patterns =
                [Pattern::Byte(0), Pattern::Byte(9), Pattern::Half(0x1234), Pattern::Word(0x0102_0304)];
            Request::fill(destination, length, patterns[random.usize(..patterns.len())])
        };
        let hints = [CacheHint::Auto, CacheHint::Keep, CacheHint::Stream];
        let mut request = request;
        request.terms.hint = hints[random.usize(..hints.len())];
        let [here, by_worker] = [true, false].map(|here| {
            frame.write(0, &before).unwrap();
            second.write(0, &before).unwrap();
            (outcome(&mut queue, &request, here), contents())
        });
        assert_eq!(here.0, by_worker.0, "{request:?}");
        assert!(here.1 == by_worker.1, "{request:?} wrote other bytes");
        succeeded += usize::from(here.0.is_ok());
    }
    assert!((500..2500).contains(&succeeded), "{succeeded} of 3000 requests succeeded");
}

#[test]
fn nothing_can_be_staged_behind_what_was_staged_when_the_queue_was_lost() {
    let client = Client::embedded().unwrap();
    let (mut queue, worker) = ScriptedWorker::with_queue(&client, 4);
    let staged = queue.stage(crate::nop()).unwrap();
    worker.close();
    let lost = queue.poll().unwrap().unwrap_err();
    assert_eq!((lost.id, lost.failure), (staged.id(), Failure::ServiceLost));
    let refused = queue.stage(crate::nop()).unwrap_err();
    assert_eq!(refused.reason, SubmitReason::ServiceLost);
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn what_is_staged_meanwhile_fails_with_the_lost_queue() {
    let client = Client::embedded().unwrap();
    let (mut queue, worker) = ScriptedWorker::with_queue(&client, 4);
    let before = queue.stage(crate::nop()).unwrap();
    worker.close();
    // Only the first transfer of a publication looks at the service.
    let meanwhile = queue.stage(crate::nop()).unwrap();
    let mut lost = [(); 2].map(|()| queue.poll().unwrap().unwrap_err());
    assert!(lost.iter().all(|error| error.failure == Failure::ServiceLost));
    lost.sort_by_key(|error| error.id);
    assert_eq!(lost.map(|error| error.id), [before.id(), meanwhile.id()]);
    assert_eq!(queue.poll(), None);
}
