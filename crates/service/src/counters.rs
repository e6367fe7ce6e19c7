//! Statistics that workers count, for the status command.
//!
//! ```text
//! worker, the only writer ─ load, add, store ─► QueueCounters, WorkerCounters ─ read ─► control side, for a status
//! ```
//!
//! All accesses are relaxed: a reader may see one counter change before another, and no decision depends on them. With a
//! single writer an addition needs no locked instruction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use memferry_kmod::ModuleEngine;

use crate::protocol::{
    ExternalStatus, LATENCY_BUCKETS, LatencyStatus, ModuleStatus, RefusalKind, RefusedStatus, WorkerStatus,
    ZeroedStatus,
};
use crate::worker_engine::{DeviceCounts, WorkerEngine};

/// A counter with a single writer.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `more`. Only the single writer may call it.
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many queue pairs each worker has, those on their way to it and those being closed included.
#[derive(Clone)]
pub(crate) struct Loads(Arc<[AtomicUsize]>);

impl Loads {
    /// For so many workers without queue pairs.
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| AtomicUsize::new(0)).collect())
    }

    /// The first of the workers with fewest queue pairs.
    pub(crate) fn lightest(&self) -> usize {
        let load = |worker: &usize| self.0[*worker].load(Ordering::Relaxed);
        (0..self.0.len()).min_by_key(load).unwrap_or(0)
    }

    fn add(&self, worker: usize) {
        self.0[worker].fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self, worker: usize) {
        self.0[worker].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A queue pair's worker, and what workers have done for it. It counts for the worker's load while it exists.
pub(crate) struct QueueCounters {
    worker: AtomicUsize,
    loads: Loads,
    taken: Counter,
    ended: Counter,
    failures: Counter,
    bytes: Counter,
    waiting: Counter,
}

impl QueueCounters {
    /// Those of a new queue pair.
    pub(crate) fn at(worker: usize, loads: &Loads) -> Self {
        loads.add(worker);
        Self {
            worker: AtomicUsize::new(worker),
            loads: loads.clone(),
            taken: Counter::default(),
            ended: Counter::default(),
            failures: Counter::default(),
            bytes: Counter::default(),
            waiting: Counter::default(),
        }
    }

    /// The worker that has the queue pair. It stays while the caller prevents moves ([`crate::shared::Shared::no_moves`]).
    pub(crate) fn worker(&self) -> usize {
        self.worker.load(Ordering::Relaxed)
    }

    /// The queue pair moves to another worker, as the only writer from then on.
    pub(crate) fn move_to(&self, worker: usize) {
        self.waiting.set(0);
        self.loads.add(worker);
        self.loads.remove(self.worker.swap(worker, Ordering::Relaxed));
    }

    /// Counts requests taken from the ring.
    pub(crate) fn add_taken(&self, requests: u64) {
        self.taken.add(requests);
    }

    /// Counts completed requests, `failures` of which failed.
    pub(crate) fn completed(&self, requests: u64, failures: u64, bytes: u64) {
        self.ended.add(requests);
        self.failures.add(failures);
        self.bytes.add(bytes);
    }

    /// Sets how many requests wait for an engine channel.
    pub(crate) fn set_waiting(&self, requests: u32) {
        self.waiting.set(u64::from(requests));
    }

    /// The queue pair is closed: no request is outstanding or waiting.
    pub(crate) fn close(&self) {
        self.ended.set(self.taken.get());
        self.waiting.set(0);
    }

    pub(crate) fn totals(&self) -> QueueTotals {
        // In this order, so that a concurrent completion cannot make `ended` exceed `requests`.
        let ended = self.ended.get();
        let requests = self.taken.get();
        QueueTotals {
            requests,
            outstanding: requests.saturating_sub(ended),
            failures: self.failures.get(),
            bytes: self.bytes.get(),
            waiting: self.waiting.get(),
        }
    }
}

impl Drop for QueueCounters {
    fn drop(&mut self) {
        self.loads.remove(self.worker());
    }
}

/// Totals of one or several queue pairs of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct QueueTotals {
    pub(crate) requests: u64,
    pub(crate) outstanding: u64,
    pub(crate) failures: u64,
    pub(crate) bytes: u64,
    pub(crate) waiting: u64,
}

impl QueueTotals {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.wrapping_add(other.requests),
            outstanding: self.outstanding.wrapping_add(other.outstanding),
            failures: self.failures.wrapping_add(other.failures),
            bytes: self.bytes.wrapping_add(other.bytes),
            waiting: self.waiting.wrapping_add(other.waiting),
        }
    }
}

/// Totals of a worker, and its latest samples of `waiting` and `busy`.
#[derive(Default)]
pub(crate) struct WorkerCounters {
    pub(crate) queues: Counter,
    pub(crate) requests: Counter,
    pub(crate) failures: Counter,
    pub(crate) bytes: Counter,
    pub(crate) parks: Counter,
    pub(crate) waiting: Counter,
    pub(crate) busy: Counter,
    /// Bytes of the classes low, normal and high.
    pub(crate) classes: [Counter; 3],
    pub(crate) module: ModuleCounters,
    pub(crate) latency: LatencyCounters,
}

impl WorkerCounters {
    /// The values; `channels` is the worker's number of engine channels.
    pub(crate) fn status(&self, channels: u32) -> WorkerStatus {
        WorkerStatus {
            queues: self.queues.get(),
            requests: self.requests.get(),
            failures: self.failures.get(),
            bytes: self.bytes.get(),
            parks: self.parks.get(),
            waiting: self.waiting.get(),
            busy: self.busy.get(),
            channels,
            class_bytes: self.classes.each_ref().map(Counter::get),
        }
    }
}

/// Work of the Linux module for one worker, which is the writer.
#[derive(Default)]
pub(crate) struct ModuleCounters {
    transfers: Counter,
    bytes: Counter,
    dma_bytes: Counter,
    redone: Counter,
}

impl ModuleCounters {
    /// Copies the counts of the worker's engine.
    pub(crate) fn update(&self, engine: &WorkerEngine<ModuleEngine>) {
        let (Some(counts), Some(module)) = (engine.counts(), engine.device()) else { return };
        self.transfers.set(counts.transfers);
        self.bytes.set(counts.bytes);
        self.dma_bytes.set(module.bytes_by_dma());
        self.redone.set(counts.redone);
    }

    pub(crate) fn status(&self) -> ModuleStatus {
        ModuleStatus {
            transfers: self.transfers.get(),
            bytes: self.bytes.get(),
            dma_bytes: self.dma_bytes.get(),
            redone: self.redone.get(),
        }
    }
}

/// Work of one engine process for all workers, which add to it.
#[derive(Default)]
pub(crate) struct ExternalCounters {
    transfers: AtomicU64,
    bytes: AtomicU64,
    redone: AtomicU64,
}

impl ExternalCounters {
    /// Adds what a worker counted since its last call.
    pub(crate) fn add(&self, more: DeviceCounts) {
        self.transfers.fetch_add(more.transfers, Ordering::Relaxed);
        self.bytes.fetch_add(more.bytes, Ordering::Relaxed);
        self.redone.fetch_add(more.redone, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> ExternalStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ExternalStatus {
            transfers: get(&self.transfers),
            bytes: get(&self.bytes),
            redone: get(&self.redone),
            ..ExternalStatus::default()
        }
    }
}

/// Times of sampled requests of one worker, which is the writer.
#[derive(Default)]
pub(crate) struct LatencyCounters {
    buckets: [Counter; LATENCY_BUCKETS],
    nanoseconds: Counter,
}

impl LatencyCounters {
    pub(crate) fn add(&self, time: Duration) {
        self.buckets[LatencyStatus::bucket(time)].add(1);
        self.nanoseconds.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn status(&self) -> LatencyStatus {
        LatencyStatus {
            buckets: self.buckets.each_ref().map(Counter::get),
            nanoseconds: self.nanoseconds.get(),
        }
    }
}

/// Refusals on the control socket. The threads of embedded clients write here too.
#[derive(Default)]
pub(crate) struct RefusedCounters {
    commands: [AtomicU64; RefusalKind::ALL.len()],
    turned_away: AtomicU64,
    violations: AtomicU64,
}

impl RefusedCounters {
    pub(crate) fn add_command(&self, kind: RefusalKind) {
        self.commands[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_violation(&self) {
        self.violations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> RefusedStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RefusedStatus {
            commands: self.commands.each_ref().map(get),
            turned_away: get(&self.turned_away),
            violations: get(&self.violations),
        }
    }
}

/// Buffers zeroed for pools of this process. Several threads write here.
#[derive(Default)]
pub(crate) struct ZeroedCounters {
    buffers: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

impl ZeroedCounters {
    pub(crate) fn add(&self, more: ZeroedStatus) {
        self.buffers.fetch_add(more.buffers, Ordering::Relaxed);
        self.bytes.fetch_add(more.bytes, Ordering::Relaxed);
        self.failed.fetch_add(more.failed, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> ZeroedStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ZeroedStatus { buffers: get(&self.buffers), bytes: get(&self.bytes), failed: get(&self.failed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_queue_goes_to_the_worker_with_fewest() {
        let loads = Loads::new(3);
        let open = || {
            let worker = loads.lightest();
            QueueCounters::at(worker, &loads)
        };
        let mut queues = [open(), open(), open(), open()].map(Some);
        assert_eq!(queues.each_ref().map(|queue| queue.as_ref().unwrap().worker()), [0, 1, 2, 0]);
        queues[1] = None;
        assert_eq!(loads.lightest(), 1);
        queues[0].as_ref().unwrap().move_to(1);
        let others = [open(), open(), open()];
        assert_eq!(
            others.each_ref().map(QueueCounters::worker),
            [0, 1, 2],
            "the moved queue counts where it is"
        );
        drop(others);
        drop(queues);
        assert_eq!(loads.0.iter().map(|load| load.load(Ordering::Relaxed)).sum::<usize>(), 0);
    }

    #[test]
    fn times_are_counted_in_their_buckets() {
        let counters = LatencyCounters::default();
        for micros in [0, 8, 9, 16, 8 << 20, (8 << 20) + 1] {
            counters.add(Duration::from_micros(micros));
        }
        let found = counters.status();
        let mut expected = [0; LATENCY_BUCKETS];
        (expected[0], expected[1], expected[20], expected[21]) = (2, 2, 1, 1);
        assert_eq!(found.buckets, expected);
        assert_eq!(found.nanoseconds, 1000 * (33 + (16 << 20) + 1));
        assert_eq!(found.plus(found).buckets[0], 4);
    }

    #[test]
    fn refusals_are_counted_by_kind() {
        let counters = RefusedCounters::default();
        for (index, kind) in RefusalKind::ALL.into_iter().enumerate() {
            (0..index).for_each(|_| counters.add_command(kind));
        }
        counters.add_violation();
        let expected = RefusedStatus { commands: [0, 1, 2, 3, 4, 5], turned_away: 0, violations: 1 };
        assert_eq!(counters.status(), expected);
    }

    #[test]
    fn outstanding_is_taken_minus_ended() {
        let counters = QueueCounters::at(0, &Loads::new(1));
        counters.add_taken(5);
        counters.completed(2, 1, 107);
        counters.set_waiting(2);
        let expected = QueueTotals { requests: 5, outstanding: 3, failures: 1, bytes: 107, waiting: 2 };
        assert_eq!(counters.totals(), expected);
        assert_eq!(expected.plus(expected).outstanding, 6);
        counters.close();
        assert_eq!(counters.totals(), QueueTotals { outstanding: 0, waiting: 0, ..expected });
    }
}
