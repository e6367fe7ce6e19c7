//! Background zeroing against engines and pools that fail.

use memferry_pool::{Options, Place};

use super::*;
use crate::EngineKind;
use crate::queue::tests::scripted_worker::{FAULTED, ScriptedWorker};

/// A pool of one segment of 2 MiB.
fn small_pool(buffer_bytes: usize) -> Pool {
    let options =
        Options { buffer_bytes, segment_bytes: 2 << 20, limit_bytes: 2 << 20, ..Options::default() };
    Pool::new(options).unwrap()
}

fn is_zero(holder: &mut memferry_pool::Holder, place: Place) -> bool {
    let buffer = holder.buffer(place).unwrap();
    let mut bytes = vec![1; buffer.length()];
    buffer.read(0, &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == 0)
}

/// Threads act as processes: they take, check, write and free the pool's buffers in rounds. Every fourth round ends without
/// freeing them, as if the process had died.
fn check_taken_buffers_are_zero(pool: &Pool) {
    std::thread::scope(|scope| {
        for seed in 1..4u8 {
            scope.spawn(move || {
                for round in 0..60u8 {
                    let mut holder = pool.holder();
                    let places: Vec<Place> = (0..24).map(|_| holder.take().unwrap()).collect();
                    for place in places {
                        assert!(is_zero(&mut holder, place), "process {seed}, round {round}");
                        let length = holder.buffer(place).unwrap().length();
                        let bytes = vec![seed | round | 1; length];
                        holder.buffer(place).unwrap().write(0, &bytes).unwrap();
                        if round % 4 != 0 {
                            holder.give_back(place).unwrap();
                        }
                    }
                }
            });
        }
    });
}

fn wait_until(condition: impl Fn() -> bool) {
    let started = std::time::Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(20), "the condition is not met in time");
        std::thread::yield_now();
    }
}

#[test]
fn taken_buffers_are_zero_and_free_ones_zeroed() {
    let pool = small_pool(16 << 10);
    // A separate service, because the shared one also counts the buffers of other tests.
    let client = Client::embedded_with(crate::ServiceConfig::default()).unwrap();
    let zeroing = Zeroing::start(&client, &pool).unwrap();
    check_taken_buffers_are_zero(&pool);
    let all = pool.statistics().buffers;
    wait_until(|| pool.statistics().zero == all);
    let status = client.status().unwrap().zeroed;
    let pool = pool.statistics();
    let zeroing = zeroing.statistics();
    println!("{pool:?} {zeroing:?}");
    assert_eq!((zeroing.failed, zeroing.buffers), (0, pool.zeroed));
    assert!(zeroing.buffers > 0 && zeroing.bytes == zeroing.buffers * (16 << 10));
    assert_eq!((pool.in_use, status), (0, zeroing));
}

#[test]
fn failed_zeroing_leaves_no_old_byte() {
    // Buffers too long to be zeroed on the submitting thread.
    let pool = small_pool(128 << 10);
    let client = Client::embedded().unwrap();
    let queue = client.queue(OUTSTANDING).unwrap();
    let frames = Default::default();
    let zeroing = Default::default();
    let shared = Default::default();
    let mut worker = Worker { client: client.clone(), pool: pool.clone(), queue, frames, zeroing, shared };
    for done in [Err(Failure::EngineTimedOut), Ok(100)] {
        pool.take().unwrap().write(200, &[7; 1000]).unwrap();
        let used = pool.take_used(Duration::ZERO).unwrap();
        worker.settle(used, done);
    }
    // The engine's capability is revoked during a transfer.
    pool.take().unwrap().write(0, &[7; 1000]).unwrap();
    let used = pool.take_used(Duration::ZERO).unwrap();
    let ticket = worker.submit(&used).unwrap();
    worker.frames.values().next().unwrap().revoke().unwrap();
    worker.zeroing.push_back((ticket, used));
    let second = {
        pool.take().unwrap().write(0, &[7; 1000]).unwrap();
        pool.take_used(Duration::ZERO).unwrap()
    };
    worker.begin(second);
    worker.shared.ending.store(true, Ordering::Release);
    worker.run();
    assert!(worker.shared.failed.load(Ordering::Relaxed) >= 3);
    assert_eq!((pool.statistics().zero, pool.statistics().cleared), (pool.statistics().buffers, 0));
    let mut holder = pool.holder();
    for _ in 0..pool.statistics().buffers {
        let place = holder.take().unwrap();
        assert!(is_zero(&mut holder, place));
    }
    assert_eq!(pool.statistics().cleared, 0, "a buffer was not zeroed");
}

#[test]
fn a_buffer_of_a_faulted_channel_is_not_reused() {
    // Buffers too long to be zeroed on the submitting thread.
    let pool = small_pool(128 << 10);
    let client = Client::embedded().unwrap();
    let (queue, mut scripted) = ScriptedWorker::with_queue(&client, OUTSTANDING);
    let frames = Default::default();
    let zeroing = Default::default();
    let shared = Default::default();
    let mut worker = Worker { client: client.clone(), pool: pool.clone(), queue, frames, zeroing, shared };
    drop(pool.take().unwrap());
    let all = pool.statistics().buffers;
    worker.begin(pool.take_used(Duration::ZERO).unwrap());
    worker.shared.ending.store(true, Ordering::Release);
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| scripted.complete(FAULTED, EngineKind::Module));
        worker.run();
        late.join().unwrap()
    });
    let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take_zero().ok()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.write(0, &[7; 128 << 10]).unwrap());
    // The late write of the failed engine.
    client.queue(2).unwrap().run(late).unwrap();
    for buffer in &buffers {
        let mut bytes = vec![0; 128 << 10];
        buffer.read(0, &mut bytes).unwrap();
        assert!(bytes == [7; 128 << 10], "{buffer:?} was zeroed while in use");
    }
    let left = pool.statistics();
    let failed = worker.shared.failed.load(Ordering::Relaxed);
    assert_eq!((buffers.len() as u64, left.buffers, left.set_aside, failed), (all - 1, all - 1, 1, 1));
    drop(buffers);
    assert_eq!((pool.trim(), pool.statistics().segments), (0, 1), "the abandoned buffer keeps its segment");
}

#[test]
fn only_take_waiting_waits_for_zeroing() {
    let pool = small_pool(16 << 10);
    drop(std::iter::from_fn(|| pool.take().ok()).collect::<Vec<_>>());
    let used: Vec<_> = std::iter::from_fn(|| pool.take_used(Duration::ZERO)).collect();
    let all = pool.statistics().buffers as usize;
    assert_eq!(used.len(), all / 2, "half of the buffers stay available");
    let taken: Vec<_> = std::iter::from_fn(|| pool.take().ok()).collect();
    assert_eq!(taken.len(), all - used.len());
    assert!(pool.take_zero().is_err() && pool.take_waiting(Some(Duration::from_millis(1))).is_err());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.take_waiting(None).map(drop));
        used.into_iter().for_each(UsedBuffer::zeroed);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(pool.statistics().zeroed as usize, all / 2);
}

#[test]
fn drop_finishes_submitted_buffers() {
    let pool = small_pool(16 << 10);
    let zeroing = Zeroing::start(&Client::embedded().unwrap(), &pool).unwrap();
    drop(pool.take().unwrap());
    drop(zeroing);
    let statistics = pool.statistics();
    assert_eq!(statistics.in_use, 0);
    assert!(pool.take_used(Duration::ZERO).is_some() || statistics.zero == statistics.buffers);
}
