//! The rows of group `hostile`.

use std::time::Duration;

use memferry_attackers::Figures;

use crate::BenchError;
use crate::rows::{Row, Target};

/// Latencies of a phase, or the error that ended it.
pub(super) type Figure = Result<Figures, String>;

/// How the service ended.
pub(super) enum Gone {
    /// After these seconds its sockets were closed.
    After(f64),
    /// The sockets were still open after these seconds.
    NotAfter(f64),
    /// Another service could not take its place.
    NoSuccessor(String),
}

impl Gone {
    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::After(_))
    }

    pub(super) fn later_by(self, late: Duration) -> Self {
        if let Self::After(seconds) = self { Self::After(seconds + late.as_secs_f64()) } else { self }
    }

    /// Adds that another service could not start. One that is still there explains that.
    pub(super) fn without_successor(self, error: &BenchError) -> Self {
        if let Self::After(_) = self { Self::NoSuccessor(error.to_string()) } else { self }
    }
}

/// What was measured beside one attack, or without one.
pub(super) struct Beside {
    pub(super) copy: Figure,
    pub(super) allocate: Figure,
    pub(super) terminated: Option<Gone>,
    pub(super) killed: Option<Gone>,
}

/// Targets of issue 24.
const COPY_P99_MS: f64 = 20.0;
const COPY_P50_TO_HONEST: f64 = 4.0;
const ALLOCATE_P99_MS: f64 = 50.0;
const TERMINATED_S: f64 = 2.0;
const KILLED_S: f64 = 0.5;

fn name(workers: u32, of: &str, what: &str) -> String {
    let beside = if workers == 1 { String::new() } else { format!("{workers} workers/") };
    format!("hostile/{beside}{of}: {what}")
}

/// A quantile of a phase, with the phase's smallest and largest latency.
fn latency(name: &str, figure: &Figure, target: Target, value: impl Fn(&Figures) -> f64) -> Row {
    match figure {
        Ok(figures) => Row::quantile(name, "ms", target, value(figures), (figures.min, figures.max)),
        Err(error) => Row::broken(name, error),
    }
}

fn end(name: &str, gone: Option<&Gone>, limit: f64) -> Row {
    match gone {
        Some(Gone::After(seconds)) => Row::new(name, "s", Target::AtMost(limit), &[*seconds]),
        Some(Gone::NotAfter(seconds)) => Row::broken(name, &format!("still there after {seconds:.1} s")),
        Some(Gone::NoSuccessor(error)) => {
            Row::broken(name, &format!("no service can start at its path: {error}"))
        }
        None => Row::not_measured(name, "the attack did not begin again"),
    }
}

/// Rows without targets, of a victim that nobody attacks.
pub(super) fn baseline(workers: u32, of: &str, beside: &Beside) -> Vec<Row> {
    let row = |what: &str, figure: &Figure, value: fn(&Figures) -> f64| {
        latency(&name(workers, of, what), figure, Target::None, value)
    };
    vec![
        row("copy p50", &beside.copy, |figures| figures.p50),
        row("copy p99", &beside.copy, |figures| figures.p99),
        row("allocate+free p50", &beside.allocate, |figures| figures.p50),
        row("allocate+free p99", &beside.allocate, |figures| figures.p99),
    ]
}

/// Rows of one attack.
pub(super) fn of_attack(workers: u32, attack: &str, beside: &Beside, usual_p50: f64) -> Vec<Row> {
    let of = |what: &str| name(workers, attack, what);
    let ratio = match &beside.copy {
        Ok(figures) => {
            let target = Target::AtMost(COPY_P50_TO_HONEST);
            Row::new(of("copy p50 to honest"), "x", target, &[figures.p50 / usual_p50])
        }
        Err(error) => Row::broken(&of("copy p50 to honest"), error),
    };
    let p99 = |figures: &Figures| figures.p99;
    let allocate = Target::AtMost(ALLOCATE_P99_MS);
    vec![
        latency(&of("copy p99"), &beside.copy, Target::AtMost(COPY_P99_MS), p99),
        ratio,
        latency(&of("allocate+free p99"), &beside.allocate, allocate, p99),
        end(&of("gone after SIGTERM"), beside.terminated.as_ref(), TERMINATED_S),
        end(&of("gone after SIGKILL"), beside.killed.as_ref(), KILLED_S),
    ]
}

/// The row of an attack that cannot be made here.
pub(super) fn impossible(workers: u32, attack: &str, reason: &str) -> Row {
    Row::not_measured(&name(workers, attack, "all"), reason)
}
