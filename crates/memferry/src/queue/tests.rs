//! What becomes of memory whose transfer ended though somebody may still write there.

use allocator_api2::vec::Vec as ArenaVec;
use memferry_transfer::{EngineKind, Pattern};

use super::played::{FAULTED, PlayedWorker};
use super::*;
use crate::{ArenaOptions, Client, FrameArena, fill};

const BYTES: usize = 4096;

fn arena(client: &Client) -> FrameArena {
    client.arena(ArenaOptions { segment_bytes: 64 << 10, ..ArenaOptions::default() }).unwrap()
}

/// Has a buffer filled by an engine that ends so, and drops it; what was asked of the engine.
fn fill_and_drop(client: &Client, arena: &FrameArena, end: (Result<(), Failure>, EngineKind)) -> Transfer {
    let (mut queue, mut worker) = PlayedWorker::beside(client, 4);
    let buffer = arena.buffer(BYTES).unwrap();
    // Staged, it is not done on this thread, short as it is.
    let ticket = queue.stage(fill(&buffer, Pattern::Byte(0xee))).unwrap();
    queue.publish();
    let asked = worker.end(end.0, end.1);
    drop(buffer);
    let ended = match queue.wait(ticket) {
        Ok(done) => (Ok(()), done.engine),
        Err(error) => (Err(error.failure), error.engine),
    };
    assert_eq!(ended, end);
    asked
}

#[test]
fn a_buffer_whose_engine_channel_failed_is_given_to_nobody_else() {
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
    assert_eq!(arena.statistics().segments, 1, "they would have had the room");
    // What the failed engine still writes.
    client.queue(2).unwrap().run(late).unwrap();
    assert!(lists.iter().flatten().all(|byte| *byte == 0), "somebody's bytes were written");
    assert_eq!(arena.statistics().abandoned_bytes, BYTES as u64);
    drop((lists, keeps_the_segment));
    let statistics = arena.statistics();
    assert_eq!((statistics.abandoned_bytes, statistics.segments), (0, 0), "it goes with its segment");
}

#[test]
fn a_buffer_that_nobody_touches_any_more_is_used_again() {
    let client = Client::embedded().unwrap();
    let arena = arena(&client);
    let _keeps_the_segment = arena.buffer(1).unwrap();
    let before = arena.statistics();
    let ends = [
        (Ok(()), EngineKind::Module),
        (Err(Failure::EngineTimedOut), EngineKind::Module),
        (Err(Failure::Cancelled), EngineKind::Module),
        // Refused, since all queues had failed before.
        (FAULTED, EngineKind::None),
    ];
    for end in ends {
        let _ = fill_and_drop(&client, &arena, end);
        let now = arena.statistics();
        assert_eq!((now.abandoned_bytes, now.live_bytes), (0, before.live_bytes), "{end:?}");
    }
}

#[test]
fn what_the_cpu_runs_is_never_handed_over() {
    let client = Client::embedded().unwrap();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(4).unwrap();
    let fill = || fill(&frame, Pattern::Byte(7));
    let done = queue.run_by_cpu(&fill()).unwrap().unwrap();
    assert_eq!((done.engine, done.bytes_done), (EngineKind::Cpu, 4096));
    let hour = std::time::Duration::from_secs(3600);
    for other in [fill().linked(), fill().fenced(), fill().within(hour)] {
        assert!(queue.run_by_cpu(&other).is_none(), "{other:?} is the service's to order");
    }
    assert_eq!((queue.outstanding(), queue.poll()), (0, None));
}
