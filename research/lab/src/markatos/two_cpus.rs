//! The judge of the two-CPU claim: which protocols break on two CPUs, and which processes a neighbour can starve.
//!
//! ```text
//! each protocol ──► safe on one CPU? on two? ──► relied on one CPU
//!               └──► stuck? starved? on two CPUs, beside a malicious neighbour
//! ```
//!
//! Masked preemption and context-switch hooks affect one CPU, so they protect only there.

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::verdict::{Basis, Verdict};

use super::explore::Bounds;
use super::protocols::{CATALOGUE, Entry};
use super::scenes::{self, on_two_cpus};
use super::world::{Breach, Scene};

pub const JUDGE: Judge = Judge { claim: "markatos-two-cpus", place: Place::Simulated, judge: two_cpus };

/// The findings on one protocol.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: &'static str,
    /// Number of states on two CPUs.
    pub states: usize,
    /// Whether all states were visited.
    pub complete: bool,
    /// Whether it is safe on one CPU.
    pub one: bool,
    /// The breach on two CPUs, with its number of moves.
    pub two: Option<(Breach, usize)>,
    /// Whether there is a state from which a process does not succeed even alone.
    pub stuck: bool,
    /// Whether a malicious neighbour on another CPU can have it rejected forever; the number of moves in the cycle.
    pub starved: Option<usize>,
}

fn scenes_of() -> [Scene; 3] {
    [scenes::two_honest(), scenes::attacked(), scenes::three_honest()]
}

/// Explores one protocol on one CPU and on two.
pub fn row(entry: &Entry) -> Row {
    let on_one = scenes_of().map(|scene| entry.protocol.explore(&scene, Bounds::ALL));
    let on_two = scenes_of().map(|scene| entry.protocol.explore(&on_two_cpus(scene), Bounds::ALL));
    let shortest =
        on_two.iter().filter_map(|found| found.shortest(|_| true)).min_by_key(|(_, moves)| moves.len());
    let beside = entry.protocol.progress(&on_two_cpus(scenes::attacked()));
    Row {
        name: entry.name,
        states: on_two.iter().map(|found| found.states).sum(),
        complete: on_one.iter().chain(&on_two).all(|found| found.complete),
        one: on_one.iter().all(|found| found.breaches.is_empty()),
        two: shortest.map(|(breach, moves)| (breach, moves.len())),
        stuck: beside.stuck.is_some(),
        starved: beside.starved.map(|cycle| cycle.len()),
    }
}

fn two_cpus(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let rows: Vec<Row> = CATALOGUE.iter().filter(|entry| entry.lacks.is_none()).map(row).collect();
    let names = |of: &dyn Fn(&&Row) -> bool| {
        rows.iter().filter(of).map(|row| row.name).collect::<Vec<_>>().join(", ")
    };
    finding.figure("states on two CPUs", rows.iter().map(|row| row.states).sum::<usize>() as f64);
    finding.check(
        rows.iter().all(|row| row.complete),
        "every protocol is explored completely on one CPU and on two",
    );
    let relied = names(&|row| row.one && row.two.is_some());
    finding.check(relied == "shrimp-2, flash, pal", format!("safe on one CPU and not on two: {relied}"));
    for Row { name, two, .. } in rows.iter().filter(|row| row.one) {
        if let Some((breach, moves)) = two {
            finding.figure(format!("moves to break {name} on two CPUs"), *moves as f64);
            finding.check(true, format!("{name}: {breach}"));
        }
    }
    let kept = names(&|row| row.two.is_none());
    finding.check(!kept.is_empty(), format!("safe on two: {kept}"));
    let never = names(&|row| row.starved.is_none());
    let starved = names(&|row| row.starved.is_some());
    finding.check(!never.is_empty(), format!("no neighbour can starve a process: {never}"));
    finding.check(true, format!("a neighbour on another CPU can have a process rejected forever: {starved}"));
    let stuck = names(&|row| row.stuck);
    finding.check(true, format!("a process may stay out of step even if it runs alone: {stuck}"));
    Ok(finding.verdict(Place::Simulated, Basis::Explored))
}
