//! Where the CPUs of this run lie: a virtual machine's may share a core complex or not, and may move.
//!
//! ```text
//! steady: probe ─► measure(class) ─► probe again ─ same class? ─ yes ─► rows
//!           ▲─────────────────────────────────────── no, a few times
//! ```
//!
//! A cache line handed to and fro tells: some 30 ns a round trip when the two are threads of one core, 60 to 100 ns within a
//! complex, 300 to 500 ns across. Figures of two CPUs differ by a factor of two between the classes, so the class is printed
//! and a run during which it changed is repeated. It may change many times a second: what needs two cores at rest is measured
//! in pieces of some milliseconds, each of them between two probes of its own ([`placed`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::BenchError;
use crate::rows::Row;
use crate::run::Run;

const ROUNDS: u64 = 20_000;
/// Turns of the probe beside a short measurement.
const FEW_ROUNDS: u64 = 400;
const TRIES: u32 = 5;
/// Below this the CPUs are threads of one core, ns.
const ONE_CORE_NS: f64 = 45.0;
/// How long to wait for threads of one core to be put elsewhere.
const UNTIL_ELSEWHERE: Duration = Duration::from_millis(20);
/// Above this a hand-over crosses core complexes, ns.
const ACROSS_NS: f64 = 250.0;

/// Nanoseconds for a line to go to another thread and back: the least of a few tries.
fn ping_pong_ns(rounds: u64) -> f64 {
    (0..3).map(|_| one_ping_pong_ns(rounds)).fold(f64::INFINITY, f64::min)
}

fn one_ping_pong_ns(rounds: u64) -> f64 {
    let ball = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _kept = Kept::to(1);
            for round in 0..rounds {
                while ball.load(Ordering::Acquire) != 2 * round + 1 {
                    std::hint::spin_loop();
                }
                ball.store(2 * round + 2, Ordering::Release);
            }
        });
        let _kept = Kept::to(0);
        let turn = |round: u64| {
            ball.store(2 * round + 1, Ordering::Release);
            while ball.load(Ordering::Acquire) != 2 * round + 2 {
                std::hint::spin_loop();
            }
        };
        // The first turn waits for the other thread to start, which takes longer than many turns.
        turn(0);
        let started = Instant::now();
        (1..rounds).for_each(turn);
        started.elapsed().as_nanos() as f64 / (rounds - 1) as f64
    })
}

/// The CPUs this process may use, as they were when it first asked, which is before it kept itself on one.
fn allowed() -> Result<&'static [usize], BenchError> {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    if let Some(cpus) = CPUS.get() {
        return Ok(cpus);
    }
    let set = sched_getaffinity(None)?;
    Ok(CPUS.get_or_init(|| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
}

/// The number of CPU `index` of those this process may use, modulo how many they are.
pub(crate) fn cpu(index: usize) -> Result<usize, BenchError> {
    let cpus = allowed()?;
    Ok(cpus[index % cpus.len()])
}

/// Keeps a thread (this one when `None`) on CPU `index`: a scheduler that has other work must not put both sides of a
/// measurement on one CPU.
fn keep(thread: Option<Pid>, index: usize) -> Result<CpuSet, BenchError> {
    let before = sched_getaffinity(thread)?;
    let mut set = CpuSet::new();
    set.set(cpu(index)?);
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

/// Keeps those threads of a process on CPU `index` whose names begin so; waits a little until there is one, since threads
/// give themselves their names.
pub(crate) fn keep_threads_to(process: u32, name: &str, index: usize) -> Result<(), BenchError> {
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
    Err(format!("process {process} has no thread {name}").into())
}

/// How the CPUs of a run lie to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    OneCpu,
    /// Threads of one core, which share its units and its caches.
    OneCore,
    /// In one core complex.
    Same,
    Across,
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
        }
    }
}

/// Measures until the class of the CPUs is the same before and after.
pub(crate) fn steady(
    run: &Run,
    what: &str,
    mut measure: impl FnMut(Class) -> Result<Vec<Row>, BenchError>,
) -> Result<Vec<Row>, BenchError> {
    if allowed()?.len() < 2 {
        run.say("one CPU: client and worker share it, and no figure here means much");
        return measure(Class::OneCpu);
    }
    for _ in 0..TRIES {
        let before = ping_pong_ns(ROUNDS);
        let class = Class::of(before);
        let rows = measure(class)?;
        let after = ping_pong_ns(ROUNDS);
        let name = class.name();
        run.say(&format!("{what}: a line to and fro {before:.0} ns before, {after:.0} ns after: {name}"));
        if class == Class::of(after) {
            return Ok(rows);
        }
        run.say(&format!("{what}: the CPUs changed places; once more"));
    }
    Err(format!("{what}: the CPUs changed places in each of {TRIES} runs; try when the machine is quiet")
        .into())
}

/// Measures something short while the CPUs are two cores that stay where they are; a few times when they do not.
///
/// `None` when they never did, and where there is one CPU.
///
/// # Errors
/// Those of measuring.
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
    fn a_hand_over_tells_whether_it_left_the_core_or_the_core_complex() {
        assert!(Class::of(27.0) == Class::OneCore);
        assert!(Class::of(63.0) == Class::Same);
        assert!(Class::of(104.0) == Class::Same);
        assert!(Class::of(512.0) == Class::Across);
    }

    #[test]
    fn cpus_are_counted_round_those_that_may_be_used() {
        let count = allowed().unwrap().len();
        assert_eq!(cpu(0).unwrap(), cpu(count).unwrap());
    }
}
