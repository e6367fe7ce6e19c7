//! Where the CPUs of this run lie: a virtual machine's may share a core complex or not, and may move.
//!
//! A cache line handed to and fro tells: some 100 ns a round trip within a complex, some 500 ns across. Figures of two CPUs
//! differ by a factor of two between the classes, so the class is printed and a run during which it changed is repeated.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::BenchError;
use crate::rows::Row;

const ROUNDS: u64 = 20_000;
const TRIES: u32 = 5;
/// Above this a hand-over crosses core complexes, ns.
const ACROSS_NS: f64 = 250.0;

/// Nanoseconds for a line to go to another thread and back: the least of a few tries.
fn ping_pong_ns() -> f64 {
    (0..3).map(|_| one_ping_pong_ns()).fold(f64::INFINITY, f64::min)
}

fn one_ping_pong_ns() -> f64 {
    let ball = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _kept = Kept::to(1);
            for round in 0..ROUNDS {
                while ball.load(Ordering::Acquire) != 2 * round + 1 {
                    std::hint::spin_loop();
                }
                ball.store(2 * round + 2, Ordering::Release);
            }
        });
        let _kept = Kept::to(0);
        let started = Instant::now();
        for round in 0..ROUNDS {
            ball.store(2 * round + 1, Ordering::Release);
            while ball.load(Ordering::Acquire) != 2 * round + 2 {
                std::hint::spin_loop();
            }
        }
        started.elapsed().as_nanos() as f64 / ROUNDS as f64
    })
}

/// Keeps a thread (this one when `None`) on CPU `index` of those it may use, modulo their number: a scheduler that has
/// other work must not put both sides of a measurement on one CPU.
fn keep(thread: Option<Pid>, index: usize) -> Result<CpuSet, BenchError> {
    let before = sched_getaffinity(thread)?;
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)).collect();
    let mut set = CpuSet::new();
    set.set(cpus[index % cpus.len()]);
    sched_setaffinity(thread, &set)?;
    Ok(before)
}

/// This thread is kept on a CPU while this lives.
pub(crate) struct Kept(CpuSet);

impl Kept {
    /// Keeps this thread on CPU `index`.
    pub(crate) fn to(index: usize) -> Result<Self, BenchError> {
        keep(None, index).map(Self)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Keeps every thread of a process on CPU `index`.
pub(crate) fn keep_process_to(process: u32, index: usize) -> Result<(), BenchError> {
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = task?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        keep(thread, index)?;
    }
    Ok(())
}

fn class(ns: f64) -> &'static str {
    if ns < ACROSS_NS { "same core complex" } else { "across core complexes" }
}

/// Measures until the class of the CPUs is the same before and after.
pub(crate) fn steady(measure: fn() -> Result<Vec<Row>, BenchError>) -> Result<Vec<Row>, BenchError> {
    if memferry_broker::config::cpus() < 2 {
        println!("one CPU: client and lane share it, and no figure here means much");
        return measure();
    }
    for _ in 0..TRIES {
        let before = ping_pong_ns();
        let rows = measure()?;
        let after = ping_pong_ns();
        println!("a line to and fro: {before:.0} ns before, {after:.0} ns after: {}", class(before));
        if class(before) == class(after) {
            return Ok(rows);
        }
        println!("the CPUs changed places; once more");
    }
    Err(format!("the CPUs changed places in each of {TRIES} runs; try when the machine is quiet").into())
}
