//! Queues that move between the workers of a service.
//!
//! ```text
//! busy queues, all at one worker, and others that are opened and closed ─► after a while both workers move bytes
//! ```
//!
//! No test sleeps: it waits for the workers' counts, with a deadline.

mod harness;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Service, done, wait_until};
use memferry::{Client, Pattern, Queue, copy, fill, nop};

const BUSY: usize = 4;
const FRAME_BYTES: u64 = 512 << 10;
/// Rounds of a queue that are outstanding at a time.
const OUTSTANDING: usize = 3;
/// What the second worker has to move until the test believes that it serves busy queues.
const MOVED_BYTES: u64 = 64 << 20;

/// Fills frames with another pattern each time, copies them behind a fence, and looks at the copies. Several rounds are outstanding, so
/// that the worker always has work. Returns their number.
fn keep_busy(client: &Client, queue: &mut Queue, ends: &AtomicBool) -> u64 {
    let frame = || client.frame(FRAME_BYTES).alloc().unwrap();
    let frames: Vec<_> = (0..OUTSTANDING).map(|_| (frame(), frame())).collect();
    let mut outstanding = VecDeque::new();
    let mut rounds: u32 = 0;
    loop {
        let goes_on = !ends.load(Ordering::Relaxed);
        if goes_on && outstanding.len() < OUTSTANDING {
            rounds += 1;
            let (source, destination) = &frames[rounds as usize % OUTSTANDING];
            let filled = queue.submit(fill(source, Pattern::Word(rounds))).unwrap();
            let copied = queue.submit(copy(source, destination).fenced()).unwrap();
            outstanding.push_back((rounds, filled, copied));
            continue;
        }
        let Some((round, filled, copied)) = outstanding.pop_front() else { return rounds.into() };
        done(queue, filled);
        assert_eq!(done(queue, copied).bytes_done, FRAME_BYTES);
        for at in [0, FRAME_BYTES - 4] {
            let mut word = [0; 4];
            frames[round as usize % OUTSTANDING].1.read(at, &mut word).unwrap();
            assert_eq!(u32::from_le_bytes(word), round, "the fence held");
        }
    }
}

/// Opens a queue, uses it, and closes it, again and again.
fn come_and_go(client: &Client, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let mut queues = [4, 8, 16].map(|capacity| client.queue(capacity).unwrap());
        for queue in &mut queues {
            let tickets = [(); 3].map(|()| queue.submit(nop()).unwrap());
            for ticket in tickets {
                done(queue, ticket);
            }
        }
    }
}

#[test]
fn busy_queues_of_one_worker_move_to_the_other() {
    let service = Service::start(&["--workers", "2"]);
    let client = service.client();
    // A new queue goes to the worker with the fewest. So every other one is at the first worker.
    let opened: Vec<_> = (0..2 * BUSY).map(|_| client.queue(16).unwrap()).collect();
    let queues: Vec<_> = opened.into_iter().step_by(2).collect();
    let workers = || client.status().unwrap().workers;
    let at_workers = || [workers()[0].queues, workers()[1].queues];
    wait_until("only the busy ones are open", || at_workers() == [BUSY as u64, 0]);
    let ends = AtomicBool::new(false);
    let rounds: u64 = std::thread::scope(|scope| {
        let busy: Vec<_> = queues
            .into_iter()
            .map(|mut queue| {
                let client = &client;
                let ends = &ends;
                scope.spawn(move || keep_busy(client, &mut queue, ends))
            })
            .collect();
        let others = scope.spawn(|| come_and_go(&client, &ends));
        // Let the threads end before an assertion fails.
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until("the second worker moves bytes", || workers()[1].bytes > MOVED_BYTES);
            let before = workers()[0].bytes;
            wait_until("the first one does too", || workers()[0].bytes > before);
        }));
        ends.store(true, Ordering::Relaxed);
        others.join().unwrap();
        let rounds = busy.into_iter().map(|thread| thread.join().unwrap()).sum();
        moved.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rounds
    });
    let moved: u64 = workers().iter().map(|worker| worker.bytes).sum();
    assert_eq!(moved, rounds * 2 * FRAME_BYTES, "each request once");
    assert_eq!(workers().iter().map(|worker| worker.failures).sum::<u64>(), 0);
    wait_until("all queues are released", || workers().iter().all(|worker| worker.queues == 0));
    service.assert_serves();
}
