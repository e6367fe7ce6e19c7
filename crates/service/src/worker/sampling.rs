//! Times a few requests of a worker, for the status.
//!
//! ```text
//! every so many turns: begin ─► due ─► the next request that is not done at once: start ─► its completion: ended ─► a bucket
//! ```
//!
//! Requests that are done at once are not timed: reading the clock would take as long as many of them. For the others, a turn without
//! samples costs a test of two fields.

use std::time::{Duration, Instant as Stopwatch};

use memferry_path::QueueKey;

use crate::counters::LatencyCounters;
use crate::protocol::{LATENCY_BUCKETS, LatencyStatus};

/// Requests timed at once. More than one, so that a long request does not hide all others.
const PLACES: usize = 4;
/// A request that takes longer counts as slower than the last bound, and makes room.
const LONGEST: Duration = LatencyStatus::bound(LATENCY_BUCKETS - 2);

/// A request that is timed.
#[derive(Clone, Copy)]
struct Sample {
    queue: QueueKey,
    tag: u64,
    start: Stopwatch,
}

#[derive(Default)]
pub(super) struct Sampler {
    is_due: bool,
    running: Vec<Sample>,
}

impl Sampler {
    /// Another request is to be timed, if there is a place.
    #[inline(never)]
    pub(super) fn begin(&mut self, latency: &LatencyCounters) {
        if !self.running.is_empty() {
            self.give_up_slow(Stopwatch::now(), latency);
        }
        self.is_due = self.running.len() < PLACES;
    }

    fn give_up_slow(&mut self, now: Stopwatch, latency: &LatencyCounters) {
        self.running.retain(|sample| {
            let time = now.saturating_duration_since(sample.start);
            let is_slow = time > LONGEST;
            if is_slow {
                latency.add(time);
            }
            !is_slow
        });
    }

    /// Whether the next request is to be timed.
    #[inline]
    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// Times a request from now on.
    pub(super) fn start(&mut self, queue: QueueKey, tag: u64) {
        self.is_due = false;
        self.running.push(Sample { queue, tag, start: Stopwatch::now() });
    }

    #[inline]
    pub(super) const fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// A request ended. It is counted if it is timed and succeeded.
    pub(super) fn ended(&mut self, queue: QueueKey, tag: u64, succeeded: bool, latency: &LatencyCounters) {
        self.running.retain(|sample| {
            let is_this = sample.queue == queue && sample.tag == tag;
            if is_this && succeeded {
                latency.add(sample.start.elapsed());
            }
            !is_this
        });
    }

    /// A queue is gone. Another one may get its key.
    pub(super) fn forget(&mut self, queue: QueueKey) {
        self.running.retain(|sample| sample.queue != queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(latency: &LatencyCounters) -> u64 {
        latency.status().buckets.iter().sum()
    }

    #[test]
    fn successful_samples_are_counted() {
        let latency = LatencyCounters::default();
        let mut sampler = Sampler::default();
        let key = QueueKey(3);
        assert!(!sampler.is_due() && !sampler.is_running());
        for (succeeded, expected) in [(true, 1), (false, 1)] {
            sampler.begin(&latency);
            assert!(sampler.is_due());
            sampler.start(key, 7);
            assert!(!sampler.is_due() && sampler.is_running());
            sampler.ended(key, 8, true, &latency);
            sampler.ended(QueueKey(4), 7, true, &latency);
            assert!(sampler.is_running());
            sampler.ended(key, 7, succeeded, &latency);
            assert!(!sampler.is_running());
            assert_eq!(counted(&latency), expected);
        }
    }

    #[test]
    fn endless_requests_make_room() {
        let latency = LatencyCounters::default();
        let mut sampler = Sampler::default();
        for tag in 0..=PLACES as u64 {
            sampler.begin(&latency);
            if sampler.is_due() {
                sampler.start(QueueKey(1), tag);
            }
        }
        assert!(!sampler.is_due());
        sampler.give_up_slow(Stopwatch::now() + LONGEST + Duration::from_secs(60), &latency);
        assert_eq!(latency.status().buckets[LATENCY_BUCKETS - 1], PLACES as u64);
        assert!(!sampler.is_running());
    }

    #[test]
    fn a_queue_that_is_gone_has_no_samples() {
        let latency = LatencyCounters::default();
        let mut sampler = Sampler::default();
        sampler.begin(&latency);
        sampler.start(QueueKey(1), 0);
        sampler.forget(QueueKey(2));
        assert!(sampler.is_running());
        sampler.forget(QueueKey(1));
        assert!(!sampler.is_running() && counted(&latency) == 0);
    }
}
