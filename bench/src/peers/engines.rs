//! Reads of another process's memory by transfer engines of LLM serving, and by memferry from a granted frame.
//!
//! ```text
//! theirs: transfer_engines.py target ═ Mooncake over TCP, NIXL over UCX or libfabric ═► transfer_engines.py initiator
//! ours:   owner: frame, grant to the reader's user ─► service, worker on CPU 1 ─► frame of this process
//! for processes of one user, and of two: rates, latencies, CPU time of all processes
//! then the other side is stopped, and killed: what becomes of a read
//! ```
//!
//! The engines run from a Python environment that `./x bench peers` makes. Their blocks take 64 KiB or more, beside which Python's calls
//! are short; ours are called from Rust. Nothing is waited for without a limit.

mod ours;
pub(crate) mod theirs;

use std::time::Duration;

use self::ours::Ours;
pub(crate) use self::ours::lend;
use self::theirs::{Theirs, own_benchmark};
use super::other::Silence;
use super::subject;
use crate::BenchError;
use crate::children::processor_seconds;
use crate::placement::Class;
use crate::rows::{Better, Row, Subject, Target};
use crate::run::Run;

pub(super) const SECTION: &str = "engines";
pub(super) const OUTCOMES: &str = "outcomes";
const ROUNDS: usize = 5;
/// Memory of each side.
pub(crate) const MEMORY: u64 = 64 << 20;
/// How long a read from a stopped or dead process may take.
const OUTCOME_LIMIT: Duration = Duration::from_secs(10);

/// UCX's transports within a node.
const ANY_TRANSPORT: &str = "posix,cma,tcp";

/// The names by which transfer_engines.py knows them, and their names here.
pub(crate) const ENGINES: [(&str, &str); 3] = [
    ("mooncake-tcp", "Mooncake 0.3.13 (TCP)"),
    ("nixl-ucx", "NIXL 1.5.1 (UCX)"),
    ("nixl-libfabric", "NIXL 1.5.1 (LIBFABRIC)"),
];

/// Users of the reader and of the process whose memory is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Users {
    One,
    Two,
}

impl Users {
    fn name(self) -> &'static str {
        match self {
            Self::One => "one user",
            Self::Two => "two users",
        }
    }
}

/// Reads: so many blocks of so many bytes at a time, so often.
#[derive(Clone, Copy)]
pub(crate) struct Reads {
    pub(crate) bytes: u64,
    pub(crate) depth: u64,
    pub(crate) count: u64,
}

impl Reads {
    fn total(&self) -> u64 {
        self.bytes * self.depth * self.count
    }
}

/// Times of reads, in nanoseconds: all of them, and each.
pub(crate) struct Taken {
    pub(crate) ns: f64,
    pub(crate) each: Vec<f64>,
    /// CPU time of all processes.
    pub(crate) cpu_ns: f64,
}

impl Taken {
    fn quantile_us(&self, share: f64) -> f64 {
        let mut sorted = self.each.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let index = ((sorted.len() as f64 * share) as usize).min(last);
        sorted.get(index).copied().unwrap_or(f64::NAN) / 1e3
    }

    fn mib_per_s(&self, reads: &Reads) -> f64 {
        reads.total() as f64 / (1 << 20) as f64 / (self.ns / 1e9)
    }

    /// Milliseconds of CPU time for a GiB.
    fn cpu_ms_per_gib(&self, reads: &Reads) -> f64 {
        self.cpu_ns / 1e6 / (reads.total() as f64 / (1 << 30) as f64)
    }
}

/// One figure: its name, reads, unit, and value.
pub(crate) struct Figure {
    pub(crate) what: &'static str,
    pub(crate) reads: Reads,
    pub(crate) unit: (&'static str, Better),
    pub(crate) value: fn(&Taken, &Reads) -> f64,
}

impl Figure {
    /// Its reads: fewer if the run is quick.
    pub(crate) fn reads_of(&self, run: &Run) -> Reads {
        let count = if run.quick() { self.reads.count.min(10) } else { self.reads.count };
        Reads { count, ..self.reads }
    }
}

const ALONE: Reads = Reads { bytes: 1 << 20, depth: 1, count: 200 };
pub(crate) const FIGURES: [Figure; 5] = [
    Figure {
        what: "1 MiB, one at a time, median",
        reads: ALONE,
        unit: ("us", Better::Lower),
        value: |taken, _| taken.quantile_us(0.5),
    },
    Figure {
        what: "1 MiB, one at a time, p99",
        reads: ALONE,
        unit: ("us", Better::Lower),
        value: |taken, _| taken.quantile_us(0.99),
    },
    Figure {
        what: "64 KiB, 16 at a time",
        reads: Reads { bytes: 64 << 10, depth: 16, count: 200 },
        unit: ("MiB/s", Better::Higher),
        value: Taken::mib_per_s,
    },
    Figure {
        what: "1 MiB, 16 at a time",
        reads: Reads { bytes: 1 << 20, depth: 16, count: 16 },
        unit: ("MiB/s", Better::Higher),
        value: Taken::mib_per_s,
    },
    Figure {
        what: "CPU time of all processes for a GiB in blocks of 1 MiB",
        reads: Reads { bytes: 1 << 20, depth: 16, count: 16 },
        unit: ("ms", Better::Lower),
        value: Taken::cpu_ms_per_gib,
    },
];

/// What happened to a read.
enum Outcome {
    Done(Duration),
    Failed(String, Duration),
    NoEnd,
}

impl Outcome {
    fn of(result: Result<Result<(), String>, Silence>, took: Duration) -> Self {
        match result {
            Ok(Ok(())) => Self::Done(took),
            Ok(Err(error)) => Self::Failed(error, took),
            Err(Silence::Ended) => Self::Failed("the reading process ended".to_owned(), took),
            Err(Silence::Late) => Self::NoEnd,
        }
    }

    fn said(&self) -> String {
        match self {
            Self::Done(took) => format!("the read succeeds after {:.1} ms", took.as_secs_f64() * 1e3),
            Self::Failed(error, took) => {
                format!("the read fails after {:.1} ms: {error}", took.as_secs_f64() * 1e3)
            }
            Self::NoEnd => format!("no answer in {} s", OUTCOME_LIMIT.as_secs()),
        }
    }
}

pub(super) fn measure(run: &Run, class: Class) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    let Some(python) = theirs::python() else {
        let reason = super::missing("the Python environment with the engines");
        return Ok(ENGINES
            .iter()
            .map(|(_, peer)| Row::not_compared(&about("reads", peer, class), &reason))
            .collect());
    };
    for users in [Users::One, Users::Two] {
        if users == Users::Two && !rustix::process::geteuid().is_root() {
            let subject = about("two users: reads", "all", class);
            rows.push(Row::not_compared(&subject, "NOT RUN: only root can start processes of other users"));
            continue;
        }
        rows.extend(of_users(run, &python, users, class)?);
    }
    Ok(rows)
}

fn of_users(run: &Run, python: &str, users: Users, class: Class) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    let mut ours = Ours::start(run, users)?;
    for (engine, peer) in ENGINES {
        let mut theirs = match Theirs::start(python, engine, (users, ANY_TRANSPORT)) {
            Ok(theirs) => theirs,
            Err(error) => {
                let what = format!("{}: reads", users.name());
                rows.push(Row::not_compared(&about(&what, peer, class), &format!("NOT RUN: {error}")));
                continue;
            }
        };
        rows.extend(figures(run, users, &mut ours, (peer, &mut theirs), class)?);
        rows.extend(outcomes(theirs.outcomes()?, users, peer, class));
    }
    if users == Users::One {
        rows.push(benchmark_row(run, python, &mut ours, class)?);
    }
    rows.extend(outcomes(ours.outcomes()?, users, "memferry", class));
    Ok(rows)
}

/// Rows of both sides, which read by turns.
fn figures(
    run: &Run,
    users: Users,
    ours: &mut Ours,
    (peer, theirs): (&str, &mut Theirs),
    class: Class,
) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part(SECTION, ROUNDS);
    let mut sides = [const { Vec::new() }; FIGURES.len()];
    let mut broken = None;
    'rounds: for _ in 0..rounds {
        for (figure, sides) in FIGURES.iter().zip(&mut sides) {
            let reads = figure.reads_of(run);
            theirs.pause()?;
            let own = ours.take(reads)?;
            theirs.go_on()?;
            match theirs.take(reads) {
                Ok(other) => sides.push(((figure.value)(&own, &reads), (figure.value)(&other, &reads))),
                Err(error) => {
                    broken = Some(format!("NOT RUN: {error}"));
                    break 'rounds;
                }
            }
        }
        run.round_done();
    }
    let row = |(figure, sides): (&Figure, &Vec<(f64, f64)>)| {
        let subject = about(&format!("{}: {}", users.name(), figure.what), peer, class);
        match &broken {
            Some(reason) => Row::not_compared(&subject, reason),
            None => Row::against(&subject, figure.unit, Target::None, sides),
        }
    };
    Ok(FIGURES.iter().zip(&sides).map(row).collect())
}

/// Mooncake's own benchmark, beside our reads of the same blocks.
fn benchmark_row(run: &Run, python: &str, ours: &mut Ours, class: Class) -> Result<Row, BenchError> {
    let reads = FIGURES[2].reads;
    let subject = about(
        "one user: 64 KiB, 16 at a time, by its transfer_engine_bench, one thread",
        ENGINES[0].1,
        class,
    );
    let mut sides = Vec::new();
    for _ in 0..run.part(SECTION, 3) {
        let own = ours.take(reads)?.mib_per_s(&reads);
        match own_benchmark(run, python, reads.bytes, reads.depth) {
            Ok(theirs) => sides.push((own, theirs)),
            Err(error) => return Ok(Row::not_compared(&subject, &format!("NOT RUN: {error}"))),
        }
        run.round_done();
    }
    Ok(Row::against(&subject, FIGURES[2].unit, Target::None, &sides))
}

/// Rows of what became of reads from a stopped and from a killed process.
fn outcomes([stopped, killed]: [Outcome; 2], users: Users, peer: &str, class: Class) -> Vec<Row> {
    let row = |what: &str, outcome: &Outcome| {
        let what = format!("{}: the other side is {what}", users.name());
        Row::told(&subject(OUTCOMES, what, peer, class), outcome.said())
    };
    vec![row("stopped", &stopped), row("killed", &killed)]
}

fn about(what: &str, peer: &str, class: Class) -> Subject {
    subject(SECTION, what, peer, class)
}

/// CPU time of a process's threads, ns.
fn cpu_ns(process: u32) -> Result<f64, BenchError> {
    Ok(processor_seconds(process)? * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_reads() {
        let reads = Reads { bytes: 1 << 20, depth: 2, count: 4 };
        let taken = Taken { ns: 1e9, each: vec![4e3, 1e3, 3e3, 2e3], cpu_ns: 8e6 };
        assert_eq!(taken.mib_per_s(&reads), 8.0);
        assert_eq!(taken.cpu_ms_per_gib(&reads), 1024.0);
        assert_eq!(
            (taken.quantile_us(0.5), taken.quantile_us(0.99), taken.quantile_us(1.0)),
            (3.0, 4.0, 4.0)
        );
        assert!(Taken { each: Vec::new(), ..taken }.quantile_us(0.5).is_nan());
    }

    #[test]
    fn every_outcome_has_words() {
        let took = Duration::from_millis(2);
        assert_eq!(Outcome::of(Ok(Ok(())), took).said(), "the read succeeds after 2.0 ms");
        assert_eq!(
            Outcome::of(Ok(Err("status 1".to_owned())), took).said(),
            "the read fails after 2.0 ms: status 1"
        );
        assert_eq!(Outcome::of(Err(Silence::Late), took).said(), "no answer in 10 s");
        assert!(Outcome::of(Err(Silence::Ended), took).said().ends_with("the reading process ended"));
    }

    #[test]
    fn a_process_that_runs_has_cpu_time() {
        crate::timing::Work::run(1_000_000);
        assert!(cpu_ns(std::process::id()).unwrap() > 0.0);
        assert!(cpu_ns(u32::MAX).is_err());
    }
}
