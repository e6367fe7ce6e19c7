//! What workers count while they work, for whoever looks on.
//!
//! ```text
//! worker, the only writer ─ load, add, store ─► QueueCounters, WorkerCounters ─ read ─► control side, for a status
//! ```
//!
//! Everything is relaxed and for people: a reader may see one counter a moment before another, and nothing is decided by
//! them. With one writer an addition needs no locked instruction. Making sense of the numbers is the control side's.

use std::sync::atomic::{AtomicU64, Ordering};

use memferry_kmod::ModuleEngine;

use crate::protocol::{ModuleStatus, WorkerStatus, ZeroedStatus};
use crate::worker_engine::WorkerEngine;

/// A number with one writer.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the one writer may.
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

/// What a worker has done for one queue pair.
#[derive(Default)]
pub(crate) struct QueueCounters {
    taken: Counter,
    ended: Counter,
    failures: Counter,
    bytes: Counter,
    waiting: Counter,
}

impl QueueCounters {
    /// Requests were taken from the ring.
    pub(crate) fn took(&self, requests: u64) {
        self.taken.add(requests);
    }

    /// Requests have their completions, `failures` of them without having done all they asked for.
    pub(crate) fn completed(&self, requests: u64, failures: u64, bytes: u64) {
        self.ended.add(requests);
        self.failures.add(failures);
        self.bytes.add(bytes);
    }

    /// So many wait for an engine channel, when the worker last looked.
    pub(crate) fn wait(&self, requests: u32) {
        self.waiting.set(u64::from(requests));
    }

    /// The queue pair is gone, and with it what was outstanding.
    pub(crate) fn gone(&self) {
        self.ended.set(self.taken.get());
        self.waiting.set(0);
    }

    pub(crate) fn totals(&self) -> QueueTotals {
        // Looked at in this order, what ends meanwhile cannot make more end than began.
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

/// What was done for a client, in one queue pair or in several.
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

/// What a worker has done in all, and what it was doing when it last looked.
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
    /// What the Linux module did for the worker.
    pub(crate) module: ModuleCounters,
}

impl WorkerCounters {
    /// The numbers, with the engine channels the worker has.
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

/// What the Linux module has done for one worker, which writes it.
#[derive(Default)]
pub(crate) struct ModuleCounters {
    transfers: Counter,
    bytes: Counter,
    dma_bytes: Counter,
    redone: Counter,
}

impl ModuleCounters {
    /// What the worker's engine has done.
    pub(crate) fn look(&self, engine: &WorkerEngine<ModuleEngine>) {
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

/// Buffers of pools that were zeroed for whoever asked; several write here.
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
    fn outstanding_is_what_was_taken_and_has_not_ended() {
        let counters = QueueCounters::default();
        counters.took(5);
        counters.completed(2, 1, 107);
        counters.wait(2);
        let expected = QueueTotals { requests: 5, outstanding: 3, failures: 1, bytes: 107, waiting: 2 };
        assert_eq!(counters.totals(), expected);
        assert_eq!(expected.plus(expected).outstanding, 6);
        counters.gone();
        assert_eq!(counters.totals(), QueueTotals { outstanding: 0, waiting: 0, ..expected });
    }
}
