//! The verification experiment of 4.4: processes that initiate at full speed, and the errors at each switch.
//!
//! ```text
//! process: the program of figure 10, repeated ─► accesses as the bus has them ─► the prototype's state machine
//! every quantum: the current access ends, the next process continues ─► errors, FAIL answers
//! ```
//!
//! Costs are those of table 1. Values missing in the paper are swept: the variation of a quantum from 10 ms, the time from one
//! initiation to the next, and, by seeds, the start of each run. Rounds without possible errors are counted but not simulated: a
//! process that starts a program while the machine is at S0 succeeds until its quantum ends.

use serde::Deserialize;

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::rng::Rng;
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

use super::machine::{Access, Kind, Meaning, Page, Place as At, Protocol, Step, Transfer};
use super::protocols::repeated5::{FIGURE_10, Repeated5};
use super::state_machine::FAIL;
use super::timing::Costs;

const FIGURE: &str = "markatos-verification";
/// Quanta of one run: ten seconds.
const QUANTA: u32 = 1000;
/// FAIL answers in a second in the claim's statement; the claim's tolerance applies to these too.
const FAILS: [f64; 2] = [93.0, 97.0];

pub const RUNNER: Runner = Runner { name: "verification", run: verification };

pub const JUDGE: Judge =
    Judge { claim: "markatos-context-switch-errors", place: Place::Simulated, judge: context_switch_errors };

#[derive(Clone, Copy, Debug)]
pub struct Unknown {
    pub processes: u8,
    /// Largest deviation of a quantum from its length, nanoseconds.
    pub jitter: f64,
    /// From the end of one initiation to the start of the next, nanoseconds.
    pub gap: f64,
    pub seed: u64,
}

/// Counts of one run, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Initiations that did not succeed.
    pub errors: f64,
    /// Loads that read FAIL.
    pub fails: f64,
    pub successes: f64,
}

/// One process: its accesses, and the index of the next.
struct Looping {
    accesses: Vec<Access>,
    next: usize,
}

struct Run {
    /// The time that each access of the program takes; all processes run the same program.
    costs: Vec<f64>,
    gap: f64,
    engine: <Repeated5 as Protocol>::Engine,
    rates: Rates,
}

impl Run {
    /// The cost of the next access.
    fn cost(&self, process: &Looping) -> f64 {
        let gap = if process.next == 0 { self.gap } else { 0.0 };
        gap + self.costs.get(process.next).copied().unwrap_or_default()
    }

    fn step(&mut self, process: &mut Looping) {
        let Some(access) = process.accesses.get(process.next).copied() else { return };
        let answer = FIGURE_10.arrive(&mut self.engine, access);
        if access.kind == Kind::Store {
            process.next += 1;
            return;
        }
        let read = process.accesses[..process.next].iter().filter(|before| before.kind == Kind::Load).count();
        self.rates.fails += f64::from(u8::from(answer.word == FAIL));
        match FIGURE_10.meaning(0, read, answer.word) {
            Meaning::Continue | Meaning::Again => process.next += 1,
            Meaning::Started => {
                process.next = 0;
                self.rates.successes += 1.0;
            }
            Meaning::Rejected => {
                process.next = 0;
                self.rates.errors += 1.0;
            }
        }
    }

    /// Runs one quantum, including the access in progress at its end. Returns its real duration.
    fn quantum(&mut self, process: &mut Looping, length: f64) -> f64 {
        let round = self.gap + self.costs.iter().sum::<f64>();
        let mut spent = 0.0;
        while spent < length {
            if process.next == 0 && self.engine == FIGURE_10.reset(&[]) {
                let rounds = ((length - spent) / round).floor();
                if rounds > 0.0 {
                    spent += rounds * round;
                    self.rates.successes += rounds;
                    continue;
                }
            }
            spent += self.cost(process);
            self.step(process);
        }
        spent
    }
}

/// Runs the experiment once. `quantum` in nanoseconds; a switch costs as much as a system call.
pub fn run(costs: &Costs, quantum: f64, switch: f64, unknown: Unknown) -> Rates {
    let mut rng = Rng::new(unknown.seed);
    let looping = |who: u8| {
        let wants = Transfer { source: Page(2 * who), destination: Page(2 * who + 1), size: 1 };
        let only = |step: Step| match step {
            Step::Access(access @ Access { at: At::Shadow { .. }, .. }, _) => Some(access),
            _ => None,
        };
        Looping { accesses: FIGURE_10.program(who, wants).into_iter().filter_map(only).collect(), next: 0 }
    };
    let mut processes: Vec<Looping> = (0..unknown.processes).map(looping).collect();
    let engine = FIGURE_10.reset(&[]);
    let program = FIGURE_10.program(0, Transfer::new(0, 1, 1));
    let mut run = Run { costs: costs.accesses(&program), gap: unknown.gap, engine, rates: Rates::default() };
    // The first quantum starts anywhere in an initiation, so that runs without jitter also differ.
    let mut time = 0.0;
    let mut first = quantum - rng.part() * costs.program(&program);
    for number in 0..QUANTA as usize {
        let length = first + unknown.jitter * (2.0 * rng.part() - 1.0);
        first = quantum;
        let count = processes.len();
        time += run.quantum(&mut processes[number % count], length) + switch;
    }
    let seconds = time / 1e9;
    let Rates { errors, fails, successes } = run.rates;
    Rates { errors: errors / seconds, fails: fails / seconds, successes: successes / seconds }
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Counts {
    Errors,
    Fails,
}

/// The runs shown by a line.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    Median,
    Lowest,
    Highest,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sweep {
    counts: Counts,
    processes: Vec<u8>,
    jitters_us: Vec<f64>,
    seeds: u64,
    of: Of,
}

fn verification(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let sweep: Sweep = line.settings()?;
    let parameters = line.parameters;
    let costs = Costs::at(parameters, parameters.get("bus-clock")?)?;
    let quantum = parameters.get("quantum")? * 1e6;
    let switch = parameters.get("system-call")?;
    let mut points = Vec::new();
    for gap in line.plan.points() {
        let mut values = Vec::new();
        for (processes, jitter) in pairs(&sweep.processes, &sweep.jitters_us) {
            for seed in line.plan.seed..line.plan.seed + sweep.seeds {
                let unknown = Unknown { processes, jitter: jitter * 1e3, gap, seed };
                let rates = run(&costs, quantum, switch, unknown);
                values.push(if sweep.counts == Counts::Errors { rates.errors } else { rates.fails });
            }
        }
        values.sort_by(f64::total_cmp);
        let place = match sweep.of {
            Of::Median => values.len() / 2,
            Of::Lowest => 0,
            Of::Highest => values.len().saturating_sub(1),
        };
        points.push((gap, values.get(place).copied().unwrap_or_default()));
    }
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

fn pairs<'a>(processes: &'a [u8], jitters: &'a [f64]) -> impl Iterator<Item = (u8, f64)> + 'a {
    processes.iter().flat_map(|processes| jitters.iter().map(|jitter| (*processes, *jitter)))
}

fn context_switch_errors(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let line = |label: &str| case.tables.line(FIGURE, label);
    let mean = |label: &str| -> Result<f64, RunError> {
        let points = &line(label)?.points;
        Ok(points.iter().map(|(_, value)| value).sum::<f64>() / points.len() as f64)
    };
    let mut errors = 0.0;
    for processes in 2..=4 {
        let found = mean(&format!("errors, {processes} processes"))?;
        finding.figure(format!("errors with {processes} processes"), found);
        errors += found / 3.0;
    }
    finding.number(errors);
    let fails = mean("FAIL answers")?;
    finding.figure("FAIL answers", fails);
    let [low, high] = FAILS;
    let middle = f64::midpoint(low, high);
    let off = fails / middle - 1.0;
    let where_it_is = match fails {
        fails if fails > high => "above that band",
        fails if fails < low => "below that band",
        _ => "in that band",
    };
    finding.check(
        case.claim.tolerance.is_some_and(|tolerance| off.abs() <= tolerance),
        format!(
                        "{fails:.1} FAIL answers a second where {low} to {high} were counted: {where_it_is}, {:+.1} % off its middle; the \
                         claim's tolerance refers to the middle",
            off * 100.0
        ),
    );
    let lowest = line("errors, lowest run")?;
    let highest = line("errors, highest run")?.peak();
    let lowest = lowest.points.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    finding.figure("errors, lowest run", lowest).figure("errors, highest run", highest);
    let locked = mean("errors, quantum without jitter")?;
    finding.check(
        true,
        format!(
                        "medians over jitters and seeds, mean over gaps; single runs give {lowest:.1} to {highest:.1}; without jitter the \
                         quantum locks to the loop and gives {locked:.1}"
        ),
    );
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    const UNKNOWN: Unknown = Unknown { processes: 2, jitter: 1e4, gap: 200.0, seed: 7 };

    fn costs() -> Costs {
        let parameters = Parameters::parse(include_str!("../../parameters/markatos.toml")).expect("checked");
        Costs::at(&parameters, 12.5).expect("all there")
    }

    #[test]
    fn a_single_process_never_fails() {
        let alone = run(&costs(), 1e7, 2e4, Unknown { processes: 1, ..UNKNOWN });
        assert_eq!((alone.errors, alone.fails), (0.0, 0.0));
        assert!(alone.successes > 1e5, "{}", alone.successes);
        assert_eq!(run(&costs(), 1e7, 2e4, UNKNOWN), run(&costs(), 1e7, 2e4, UNKNOWN));
        assert_ne!(run(&costs(), 1e7, 2e4, UNKNOWN), run(&costs(), 1e7, 2e4, Unknown { seed: 8, ..UNKNOWN }));
    }

    /// Section 4.4's interleaving: two unsuccessful initiations after one switch.
    #[test]
    fn the_papers_interleaving_costs_two_initiations() {
        let mut run =
            Run { costs: vec![1.0; 5], gap: 0.0, engine: FIGURE_10.reset(&[]), rates: Rates::default() };
        let process = |who: u8| {
            let wants = Transfer { source: Page(2 * who), destination: Page(2 * who + 1), size: 1 };
            let all = FIGURE_10.program(who, wants).into_iter();
            let accesses = all.filter_map(|step| match step {
                Step::Access(access, _) => Some(access),
                Step::Barrier => None,
            });
            Looping { accesses: accesses.collect(), next: 0 }
        };
        let mut first = process(0);
        let mut second = process(1);
        (0..4).for_each(|_| run.step(&mut first));
        (0..2).for_each(|_| run.step(&mut second));
        assert_eq!(run.rates.errors, 1.0, "line 6: rejected");
        (0..6).for_each(|_| run.step(&mut second));
        assert_eq!(run.rates.successes, 1.0);
        assert_eq!((second.next, run.engine == FIGURE_10.reset(&[])), (1, false), "line 8: a store is in");
        (0..3).for_each(|_| run.step(&mut first));
        let Rates { errors, fails, successes } = run.rates;
        assert_eq!((errors, fails, successes), (3.0, 2.0, 1.0), "lines 9 and 11");
    }
}
