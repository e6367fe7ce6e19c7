//! Runs jobs in parallel on all cores.
//!
//! ```text
//! jobs ──► next job to any free thread ──► results in the order of the jobs
//! ```
//!
//! The results do not show which thread ran a job or when, so equal jobs give equal bytes on any machine.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `work` on every job, on any thread, and returns the results in the order of the jobs.
pub fn spread<J: Sync, R: Send>(jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut results = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(place) else {
                return results;
            };
            results.push((place, work(job)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let own = worker();
        let joined = others.into_iter().flat_map(|other| match other.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        own.into_iter().chain(joined.collect::<Vec<_>>()).collect()
    });
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_runs_once_in_order() {
        let jobs: Vec<u32> = (0..1000).collect();
        let runs = AtomicUsize::new(0);
        let results = spread(&jobs, |job| {
            runs.fetch_add(1, Ordering::Relaxed);
            job * 2
        });
        assert_eq!(results, jobs.iter().map(|job| job * 2).collect::<Vec<_>>());
        assert_eq!(runs.into_inner(), jobs.len());
        assert!(spread(&[] as &[u32], |job| *job).is_empty());
    }
}
