//! Placement of the CPUs of this run: those of a virtual machine may share a core complex or not, and may move.
//!
//! ```text
//! steady: probe ─► measure(class) ─► probe again ─ same class? ─ yes ─► rows
//!           ▲─────────────────────────────────────── no, a few times
//! ```
//!
//! A cache line passed back and forth reveals it: about 30 ns per round trip between threads of one core, 60 to 100 ns within a
//! complex, 300 to 500 ns across. Figures of two CPUs differ by a factor of two between the classes, so the class is printed
//! and a run during which it changed is repeated. It may change many times a second: what needs a stable placement is measured
//! in pieces of some milliseconds, each between two probes ([`placed`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::BenchError;
use crate::rows::Row;
use crate::run::Run;

const ROUNDS: u64 = 20_000;
/// Round trips of the probe beside a short measurement.
const FEW_ROUNDS: u64 = 400;
const TRIES: u32 = 5;
/// Below this the CPUs are threads of one core, ns.
const ONE_CORE_NS: f64 = 45.0;
/// How long to wait for the host to move threads of one core.
const UNTIL_ELSEWHERE: Duration = Duration::from_millis(20);
/// Above this a round trip crosses core complexes, ns.
const ACROSS_NS: f64 = 250.0;

/// Nanoseconds of a line's round trip to another thread: the minimum of three attempts.
fn ping_pong_ns(rounds: u64) -> f64 {
    (0..3).map(|_| one_ping_pong_ns(rounds)).fold(f64::INFINITY, f64::min)
}

fn one_ping_pong_ns(rounds: u64) -> f64 {
    let ball = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _pinned = Pinned::to(1);
            for round in 0..rounds {
                while ball.load(Ordering::Acquire) != 2 * round + 1 {
                    std::hint::spin_loop();
                }
                ball.store(2 * round + 2, Ordering::Release);
            }
        });
        let _pinned = Pinned::to(0);
        let turn = |round: u64| {
            ball.store(2 * round + 1, Ordering::Release);
            while ball.load(Ordering::Acquire) != 2 * round + 2 {
                std::hint::spin_loop();
            }
        };
        // The first turn waits for the other thread to start, which takes much longer.
        turn(0);
        let started = Instant::now();
        (1..rounds).for_each(turn);
        started.elapsed().as_nanos() as f64 / (rounds - 1) as f64
    })
}

/// CPUs this process may use, recorded on the first call, before it pins itself.
fn allowed() -> Result<&'static [usize], BenchError> {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    if let Some(cpus) = CPUS.get() {
        return Ok(cpus);
    }
    let set = sched_getaffinity(None)?;
    Ok(CPUS.get_or_init(|| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
}

/// Number of the `index`-th CPU this process may use, modulo their count.
pub(crate) fn cpu(index: usize) -> Result<usize, BenchError> {
    let cpus = allowed()?;
    Ok(cpus[index % cpus.len()])
}

/// Pins a thread (this one if `None`) to CPU `index`, so that the scheduler cannot put both sides of a
/// measurement on one CPU.
fn keep(thread: Option<Pid>, index: usize) -> Result<CpuSet, BenchError> {
    let before = sched_getaffinity(thread)?;
    let mut set = CpuSet::new();
    set.set(cpu(index)?);
    sched_setaffinity(thread, &set)?;
    Ok(before)
}

/// Pins this thread until dropped.
pub(crate) struct Pinned(CpuSet);

impl Pinned {
    /// Pins this thread to CPU `index`.
    pub(crate) fn to(index: usize) -> Result<Self, BenchError> {
        keep(None, index).map(Self)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Pins the threads of a process whose names start with `name` to CPU `index`. Retries for a while, because threads
/// name themselves after they start.
pub(crate) fn pin_threads(process: u32, name: &str, index: usize) -> Result<(), BenchError> {
    for _ in 0..TRIES {
        let mut found = false;
        for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
            let task = task?;
            let number = task.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            if number.is_some() && std::fs::read_to_string(task.path().join("comm"))?.starts_with(name) {
                keep(number, index)?;
                found = true;
            }
        }
        if found {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("process {process} has no thread whose name starts with {name}").into())
}

/// Relative placement of the two CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    OneCpu,
    /// Threads of one core, which share its units and caches.
    OneCore,
    /// Cores of one core complex.
    Same,
    Across,
    /// Not looked at: threads are not pinned, or the measurement outlasts the host's placement.
    Any,
}

impl Class {
    fn of(ns: f64) -> Self {
        match ns {
            ns if ns < ONE_CORE_NS => Self::OneCore,
            ns if ns < ACROSS_NS => Self::Same,
            _ => Self::Across,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneCpu => "one CPU",
            Self::OneCore => "two threads of one core",
            Self::Same => "same core complex",
            Self::Across => "across core complexes",
            Self::Any => "wherever they were",
        }
    }
}

/// Repeats a measurement until the class of the CPUs is the same before and after.
pub(crate) fn steady(
    run: &Run,
    what: &str,
    mut measure: impl FnMut(Class) -> Result<Vec<Row>, BenchError>,
) -> Result<Vec<Row>, BenchError> {
    if allowed()?.len() < 2 {
        run.say("one CPU: client and worker share it, so the figures mean little");
        return measure(Class::OneCpu);
    }
    for _ in 0..TRIES {
        let before = ping_pong_ns(ROUNDS);
        let class = Class::of(before);
        let rows = measure(class)?;
        let after = ping_pong_ns(ROUNDS);
        let name = class.name();
        run.say(&format!("{what}: round trip of a line {before:.0} ns before, {after:.0} ns after: {name}"));
        if class == Class::of(after) {
            return Ok(rows);
        }
        run.say(&format!("{what}: the CPUs changed places; repeating"));
    }
    Err(format!("{what}: the CPUs changed places in each of {TRIES} runs; retry on an idle machine").into())
}

/// Measures something short while the CPUs are two cores that do not move, in a few attempts.
///
/// `None` if all attempts failed, or with a single CPU.
///
/// # Errors
/// Those of `measure`.
pub(crate) fn placed<T>(
    mut measure: impl FnMut() -> Result<T, BenchError>,
) -> Result<Option<(Class, T)>, BenchError> {
    if allowed()?.len() < 2 {
        return Ok(None);
    }
    for _ in 0..TRIES {
        let class = Class::of(ping_pong_ns(FEW_ROUNDS));
        if class == Class::OneCore {
            std::thread::sleep(UNTIL_ELSEWHERE);
            continue;
        }
        let measured = measure()?;
        if Class::of(ping_pong_ns(FEW_ROUNDS)) == class {
            return Ok(Some((class, measured)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_times_reveal_the_placement() {
        assert!(Class::of(27.0) == Class::OneCore);
        assert!(Class::of(63.0) == Class::Same);
        assert!(Class::of(104.0) == Class::Same);
        assert!(Class::of(512.0) == Class::Across);
    }

    #[test]
    fn cpu_indexes_wrap_around() {
        let count = allowed().unwrap().len();
        assert_eq!(cpu(0).unwrap(), cpu(count).unwrap());
    }
}
