//! The workers' reports of their load, and when moves are planned from them.
//!
//! ```text
//! worker ─ every interval in which it works ─► report ─► Balancing ─ once an interval ─► Balancer ─► moves
//! ```
//!
//! No thread is woken for it: a worker that works reports and plans for all. One without a recent report sleeps, and has no load;
//! or it is held up in the kernel, and takes no part. [`crate::balance`] decides, the workers move.

use std::time::Instant;

use crate::balance::{Balancer, INTERVAL, Move, WorkerLoad};
use crate::ring_pool::QueueId;

/// Intervals for which a report is recent.
const RECENT: u32 = 3;

struct Report {
    at: Instant,
    load: WorkerLoad<QueueId>,
}

/// The latest load of each worker.
pub(crate) struct Balancing {
    complexes: Vec<usize>,
    reports: Vec<Option<Report>>,
    balancer: Balancer<QueueId>,
    planned: Option<Instant>,
}

impl Balancing {
    /// For workers in these core complexes.
    pub(crate) fn new(complexes: Vec<usize>) -> Self {
        let reports = complexes.iter().map(|_| None).collect();
        Self { complexes, reports, balancer: Balancer::default(), planned: None }
    }

    /// The core complex of a worker.
    pub(crate) fn complex_of(&self, worker: usize) -> usize {
        self.complexes.get(worker).copied().unwrap_or(usize::MAX)
    }

    /// Takes the report of a worker. Returns the moves that are due now, if an interval has passed since the last ones.
    pub(crate) fn report(
        &mut self,
        worker: usize,
        at: Instant,
        load: WorkerLoad<QueueId>,
        sleeps: impl Fn(usize) -> bool,
    ) -> Vec<Move<QueueId>> {
        if let Some(report) = self.reports.get_mut(worker) {
            *report = Some(Report { at, load });
        }
        if self.planned.is_some_and(|planned| at.saturating_duration_since(planned) < INTERVAL) {
            return Vec::new();
        }
        self.planned = Some(at);
        let loads: Vec<_> = (0..self.reports.len()).map(|worker| self.load_of(worker, at, &sleeps)).collect();
        self.balancer.plan(&loads)
    }

    fn load_of(&self, worker: usize, now: Instant, sleeps: impl Fn(usize) -> bool) -> WorkerLoad<QueueId> {
        let report = self.reports[worker].as_ref();
        let is_recent = |report: &&Report| now.saturating_duration_since(report.at) < RECENT * INTERVAL;
        if let Some(report) = report.filter(is_recent) {
            return report.load.clone();
        }
        let room = match report {
            _ if !sleeps(worker) => 0,
            Some(report) => report.load.room,
            None => crate::balance::MAX_GUESTS,
        };
        WorkerLoad { complex: self.complex_of(worker), room, queues: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use memferry_transfer::SessionId;

    use super::*;
    use crate::balance::{QueueLoad, WHOLE};

    fn busy(complex: usize) -> WorkerLoad<QueueId> {
        let load = |number| QueueLoad { queue: (SessionId(1), number), used: WHOLE / 4, may_move: true };
        WorkerLoad { complex, room: 8, queues: (0..4).map(load).collect() }
    }

    /// The moves of the first intervals in which worker 0 is saturated and worker 1 does not report.
    fn moves(sleeps: bool) -> Vec<Move<QueueId>> {
        let mut balancing = Balancing::new(vec![0, 0]);
        let start = Instant::now();
        let reports = (1..5).flat_map(|interval| {
            let at = start + interval * INTERVAL;
            assert!(balancing.report(0, at, busy(0), |_| sleeps).len() <= 4);
            balancing.report(0, at + INTERVAL, busy(0), |worker| sleeps && worker == 1)
        });
        reports.collect()
    }

    #[test]
    fn only_a_worker_that_sleeps_is_idle_without_a_report() {
        assert!(moves(true).iter().all(|step| (step.from, step.to) == (0, 1)));
        assert!(!moves(true).is_empty());
        assert!(moves(false).is_empty());
    }

    #[test]
    fn moves_are_planned_once_an_interval() {
        let mut balancing = Balancing::new(vec![0, 0]);
        let start = Instant::now();
        let mut plans = 0;
        for step in 0..40 {
            let before = balancing.planned;
            balancing.report(0, start + step * INTERVAL / 4, busy(0), |_| true);
            plans += u32::from(balancing.planned != before);
        }
        assert_eq!(plans, 10);
    }

    #[test]
    fn old_reports_do_not_count() {
        let mut balancing = Balancing::new(vec![0, 0]);
        let start = Instant::now();
        balancing.report(1, start, busy(0), |_| true);
        let of_other = |at| balancing.load_of(1, at, |_| true).queues.len();
        assert_eq!([of_other(start + 2 * INTERVAL), of_other(start + 3 * INTERVAL)], [4, 0]);
        assert_eq!(balancing.load_of(1, start + 3 * INTERVAL, |_| false).room, 0);
    }
}
