//! Memory whose transfer has ended while an engine may still write to it.

pub(crate) mod scripted_worker;

use allocator_api2::vec::Vec as ArenaVec;
use memferry_transfer::{EngineKind, Pattern};

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
