//! Bands: how far figures and verdicts vary when all parameters vary within their ranges together.
//!
//! ```text
//! Halton points ──► a machine within all ranges ──► fitted parameters solved again ──no value──► not this machine, not counted
//!                                                        ▼                                          ▲
//!                                                   each calibrated claim still holds? ─────no──────┘
//!                                                        │ yes
//!                       predicted and derived claims, reduced sweeps ──► figures, verdicts
//! base and counted machines ──► lowest, highest, in how many it holds ──► CSV ──► research/lab/bands.csv ──► rows
//! ```
//!
//! A machine on which a calibrated claim fails is not the paper's: the values that were fitted were fitted together with the others.
//! Parameters with a [`Fit`] are not drawn but solved on each machine, for the claim that they were calibrated
//! to and no other.
//! A row is undecided if its verdict differs between the base and any counted machine. Computing all of it takes long, so the
//! results of each machine are kept, and the table is committed for reports. Each paper's part has a digest of its inputs, which shows
//! when it is out of date.

mod fit;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::claims::{Claims, Place};
use crate::experiments::{Fit, Prepared, RunError};
use crate::halton::Halton;
use crate::parameters::Parameters;
use crate::results::Results;
use crate::verdict::{Basis, Figures, Status, Verdict};
use crate::workers::spread;
use fit::{Reach, Solved};

/// Machines counted for each paper.
pub const MACHINES: usize = 32;
/// Machines tried for each paper until so many are counted.
const TRIED: usize = 4096;
/// Machines that are fitted at once, on all cores.
const BATCH: usize = 16;
/// The parameters named beside a figure, at most.
const NAMED: usize = 3;
/// The least rank correlation of a named parameter: with 32 machines, chance gives as much to one parameter of two hundred.
const LEAST: f64 = 0.5;

/// How one figure of a claim varies.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    pub claim: String,
    /// The figure's name in the row; empty where the row has one figure.
    pub figure: String,
    /// With the parameters' own values.
    pub base: f64,
    pub low: f64,
    pub high: f64,
    /// The parameters that it follows most, with the rank correlation.
    pub follows: Vec<(String, f64)>,
}

/// In how many machines a claim holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Votes {
    pub claim: String,
    /// The verdict with the parameters' own values and reduced sweeps.
    pub base: Status,
    pub holds: usize,
    pub machines: usize,
}

/// How many machines were tried for a paper, and how many were counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Screened {
    pub paper: String,
    pub tried: usize,
    pub counted: usize,
    /// How many have no value of a fitted parameter within its range that keeps the claim it is fitted to.
    pub unfit: usize,
    /// The values of the fitted parameters on the counted machines.
    pub fitted: Vec<Fitted>,
    /// A digest of the plans, parameters and criteria that the paper's part of the table was made of.
    pub made_of: String,
}

/// The values that a fitted parameter has on the counted machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    pub parameter: String,
    pub low: f64,
    pub high: f64,
}

/// The origin of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    Here,
    /// Committed, with the present plans, parameters and criteria.
    Project,
    /// Committed, but plans, parameters or criteria have changed since.
    Before,
}

/// The table of the papers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bands {
    pub screened: Vec<Screened>,
    pub votes: Vec<Votes>,
    /// By claim and figure.
    pub bands: Vec<Band>,
    pub origin: Origin,
}

/// One machine: its varying parameters, and the rows it gives.
struct Machine {
    parameters: BTreeMap<String, f64>,
    rows: Vec<Verdict>,
}

impl Bands {
    pub fn votes(&self, claim: &str) -> Option<&Votes> {
        self.votes.iter().find(|votes| votes.claim == claim)
    }

    /// The bands of a claim's figures.
    pub fn of<'a>(&'a self, claim: &'a str) -> impl Iterator<Item = &'a Band> {
        self.bands.iter().filter(move |band| band.claim == claim)
    }

    /// The part about one paper, if it was made of the present plans, parameters, ranges and criteria.
    pub fn current(&self, paper: &Prepared, claims: &Claims) -> Option<Self> {
        let own = self.screened.iter().find(|one| one.paper == paper.name)?;
        let is_own = |claim: &str| claims.find(claim).is_some_and(|claim| claim.paper == paper.name);
        (Some(&own.made_of) == table::inputs(paper.name).as_ref()).then(|| Self {
            screened: vec![own.clone()],
            votes: self.votes.iter().filter(|votes| is_own(&votes.claim)).cloned().collect(),
            bands: self.bands.iter().filter(|band| is_own(&band.claim)).cloned().collect(),
            origin: Origin::Project,
        })
    }

    /// Adds the table of another paper.
    pub fn extend(&mut self, other: Self) {
        self.screened.extend(other.screened);
        self.votes.extend(other.votes);
        self.bands.extend(other.bands);
    }
}

/// Whether a row is judged over the ranges: the model gave its figures, and nothing was fitted to them.
pub fn is_banded(row: &Verdict) -> bool {
    row.place == Place::Simulated && matches!(row.basis, Some(Basis::Predicted | Basis::Derived))
}

fn ids(rows: &[Verdict], keeps: impl Fn(&Verdict) -> bool) -> BTreeSet<String> {
    rows.iter().filter(|row| keeps(row)).map(|row| row.id.clone()).collect()
}

/// Computes the table of a paper for its banded claims; recalls kept results. `ended` is called as in [`Prepared::attempt`].
///
/// # Errors
/// As [`Prepared::run`], for the parameters' own values only: on another machine a failed experiment is a claim that does not hold.
pub fn table(
    paper: &Prepared,
    claims: &Claims,
    results: &Results,
    ended: impl Fn(&str, bool) + Sync,
) -> Result<Bands, RunError> {
    let mut base = paper.clone().reduced(|_| true).judged(Place::Simulated).attempt(claims, results, &ended);
    if !base.failures.is_empty() {
        return Err(base.failures.swap_remove(0).1);
    }
    let judged = ids(&base.verdicts, is_banded);
    let fitted =
        ids(&base.verdicts, |row| row.basis == Some(Basis::Calibrated) && row.status == Status::Pass);
    let banded = paper.clone().reduced(|id| judged.contains(id)).judged(Place::Simulated);
    if !banded.has_judges() {
        return Ok(Bands::default());
    }
    base.verdicts.retain(is_banded);
    let screens = screens(paper, &fitted);
    let holds = |parameters: &Parameters, screen: &Prepared| {
        let rows = screen.on(parameters).attempt(claims, results, &ended).verdicts;
        rows.iter().all(|row| row.status == Status::Pass)
    };
    let mut points = Halton::new(paper.parameters.list().iter().filter(|one| one.is_drawn()).count());
    let mut waiting = VecDeque::new();
    let mut machines = Vec::new();
    let mut tried = 0;
    let mut unfit = 0;
    while machines.len() < MACHINES && tried < TRIED && points.dimensions() > 0 {
        if waiting.is_empty() {
            let drawn: Vec<Parameters> = (0..BATCH).map(|_| drawn(paper, &mut points)).collect();
            waiting.extend(spread(&drawn, |drawn| fit::solve(paper, claims, results, drawn)));
        }
        let Some(Solved { parameters, reach }) = waiting.pop_front() else { break };
        tried += 1;
        if reach == Reach::Beyond || !screens.iter().all(|screen| holds(&parameters, screen)) {
            unfit += usize::from(reach != Reach::Within);
            continue;
        }
        let rows = banded.on(&parameters).attempt(claims, results, &ended).verdicts;
        let varied = parameters.list().iter().filter(|one| one.varies());
        let parameters = varied.map(|one| (one.name.clone(), one.value)).collect();
        machines.push(Machine { parameters, rows });
    }
    let mut all = summed(paper.name, tried, &base.verdicts, &machines);
    for one in &mut all.screened {
        one.unfit = unfit;
        one.fitted = paper.fits.iter().filter_map(|fit| outcome(fit, &machines)).collect();
    }
    Ok(all)
}

/// The next machine within all ranges.
fn drawn(paper: &Prepared, points: &mut Halton) -> Parameters {
    let mut fractions = points.next_point().into_iter();
    paper.parameters.sampled(|| fractions.next().unwrap_or(0.5))
}

/// The values of a fitted parameter on the counted machines.
fn outcome(fit: &Fit, machines: &[Machine]) -> Option<Fitted> {
    let values = || machines.iter().filter_map(|machine| machine.parameters.get(fit.parameter).copied());
    let low = values().reduce(f64::min)?;
    let high = values().reduce(f64::max)?;
    Some(Fitted { parameter: fit.parameter.to_owned(), low, high })
}

/// What decides whether a machine is the paper's: the calibrated claims one by one, those of the fewest jobs first, since most machines
/// fail one of them and the others need not run then.
fn screens(paper: &Prepared, fitted: &BTreeSet<String>) -> Vec<Prepared> {
    let of = |claim: &String| paper.clone().reduced(|id| id == claim).judged(Place::Simulated);
    let mut all: Vec<Prepared> = fitted.iter().map(of).collect();
    all.sort_by_key(Prepared::jobs);
    all
}

/// The figures of a row, by name.
fn figures(row: &Verdict) -> BTreeMap<String, f64> {
    match &row.figures {
        Figures::One(value) => value.iter().map(|value| (String::new(), *value)).collect(),
        Figures::Named(named) => named.clone(),
    }
}

fn summed(paper: &str, tried: usize, base: &[Verdict], machines: &[Machine]) -> Bands {
    let mut all = Bands::default();
    let made_of = table::inputs(paper).unwrap_or_default();
    all.screened.push(Screened {
        paper: paper.to_owned(),
        tried,
        counted: machines.len(),
        unfit: 0,
        fitted: Vec::new(),
        made_of,
    });
    for row in base {
        let others: Vec<(&Machine, &Verdict)> = machines
            .iter()
            .filter_map(|machine| Some((machine, machine.rows.iter().find(|other| other.id == row.id)?)))
            .collect();
        let holds = others.iter().filter(|(_, other)| other.status == Status::Pass).count();
        let votes = Votes { claim: row.id.clone(), base: row.status, holds, machines: others.len() };
        all.votes.push(votes);
        for (figure, value) in figures(row) {
            let found: Vec<(&Machine, f64)> = others
                .iter()
                .filter_map(|(machine, other)| Some((*machine, *figures(other).get(&figure)?)))
                .filter(|(_, value)| value.is_finite())
                .collect();
            let ends = |(low, high): (f64, f64), other: &f64| (low.min(*other), high.max(*other));
            let (low, high) = found.iter().map(|(_, other)| other).fold((value, value), ends);
            let claim = row.id.clone();
            all.bands.push(Band { claim, figure, base: value, low, high, follows: strongest(&found) });
        }
    }
    all.votes.sort_by(|a, b| a.claim.cmp(&b.claim));
    all.bands.sort_by(|a, b| (&a.claim, &a.figure).cmp(&(&b.claim, &b.figure)));
    all
}

/// The parameters that a figure follows most.
fn strongest(found: &[(&Machine, f64)]) -> Vec<(String, f64)> {
    let Some((first, _)) = found.first() else { return Vec::new() };
    let values = ranks(&found.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    let mut all: Vec<(String, f64)> = Vec::new();
    for name in first.parameters.keys() {
        let of = |(machine, _): &(&Machine, f64)| machine.parameters.get(name).copied().unwrap_or_default();
        let follows = correlation(&ranks(&found.iter().map(of).collect::<Vec<_>>()), &values);
        if follows.abs() >= LEAST {
            all.push((name.clone(), (follows * 100.0).round() / 100.0));
        }
    }
    all.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    all.truncate(NAMED);
    all
}

/// The rank of each value; equal ones share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Pearson's correlation; zero if either side does not vary.
fn correlation(one: &[f64], other: &[f64]) -> f64 {
    let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len().max(1) as f64;
    let [a, b] = [mean(one), mean(other)];
    let sum =
        |of: &dyn Fn(f64, f64) -> f64| one.iter().zip(other).map(|(x, y)| of(x - a, y - b)).sum::<f64>();
    let size = (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    if size > 0.0 { sum(&|x, y| x * y) / size } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, status: Status, value: f64) -> Verdict {
        Verdict {
            id: id.to_owned(),
            place: Place::Simulated,
            status,
            basis: Some(Basis::Predicted),
            figures: Figures::One(Some(value)),
            low: None,
            high: None,
            unit: None,
            why: String::new(),
        }
    }

    #[test]
    fn machines_give_ends_votes_and_the_parameter_that_counts() {
        let machine = |speed: f64, other: f64, status| Machine {
            parameters: BTreeMap::from([("speed".to_owned(), speed), ("other".to_owned(), other)]),
            rows: vec![row("a", status, 10.0 * speed)],
        };
        let machines = [
            machine(1.0, 5.0, Status::Fail),
            machine(2.0, 1.0, Status::Pass),
            machine(3.0, 4.0, Status::Pass),
            machine(4.0, 2.0, Status::Pass),
        ];
        let all = summed("p", 9, &[row("a", Status::Pass, 50.0)], &machines);
        let made_of = String::new();
        let paper = "p".to_owned();
        let fitted = Vec::new();
        assert_eq!(all.screened, [Screened { paper, tried: 9, counted: 4, unfit: 0, fitted, made_of }]);
        assert_eq!(all.votes, [Votes { claim: "a".to_owned(), base: Status::Pass, holds: 3, machines: 4 }]);
        let band = &all.bands[0];
        assert_eq!((band.low, band.high), (10.0, 50.0), "the base counts");
        assert_eq!(band.follows, [("speed".to_owned(), 1.0)]);
    }

    #[test]
    fn a_claim_that_a_machine_cannot_judge_does_not_hold_there() {
        let mut absent = row("a", Status::NotRun, 0.0);
        absent.figures = Figures::One(None);
        let machines = [Machine { parameters: BTreeMap::new(), rows: vec![absent] }];
        let all = summed("p", 1, &[row("a", Status::Pass, 1.0)], &machines);
        assert_eq!((all.votes[0].holds, all.votes[0].machines), (0, 1));
        assert_eq!((all.bands[0].low, all.bands[0].high), (1.0, 1.0));
    }

    #[test]
    fn calibrated_claims_are_screened_one_by_one_the_shortest_first() {
        let claims = Claims::built_in().expect("checked");
        let papers = crate::experiments::prepare(&claims, &[]).expect("checked");
        let papa = papers.iter().find(|paper| paper.name == "papa2014").expect("listed");
        let fitted = ["papa-cold-crossover", "papa-priority"].map(str::to_owned).into_iter().collect();
        let found = screens(papa, &fitted);
        let figures: Vec<Vec<&str>> = found
            .iter()
            .map(|screen| screen.plans.iter().map(|plan| plan.figure.as_str()).collect())
            .collect();
        assert_eq!(figures, [["papa-channels", "papa-priority"], ["papa-cold", "papa-crossing"]]);
        assert!(screens(papa, &BTreeSet::new()).is_empty());
    }

    #[test]
    fn papas_own_machine_is_fitted_to_about_its_own_values() {
        let claims = Claims::built_in().expect("checked");
        let papers = crate::experiments::prepare(&claims, &[]).expect("checked");
        let papa = papers.iter().find(|paper| paper.name == "papa2014").expect("listed");
        let moved = papa.parameters.with("way-turn", 6.0).and_then(|list| list.with("read-latency", 200.0));
        let solved = fit::solve(papa, &claims, &Results::none(), &moved.expect("listed"));
        assert_eq!(solved.reach, Reach::Within);
        let [turn, latency] =
            ["way-turn", "read-latency"].map(|name| solved.parameters.get(name).expect("listed"));
        // By hand it was 3 and 100: each low channel has 0.61 GB/s with these, and the crossing is at 19 KiB.
        assert!((2.0..=3.0).contains(&turn) && (70.0..=110.0).contains(&latency), "{turn}, {latency}");
        // Half the way's width moves less than the slide's bandwidth, whatever an access takes besides its data.
        let narrow = papa.parameters.with("way-bytes", 16.0).expect("listed");
        assert_eq!(fit::solve(papa, &claims, &Results::none(), &narrow).reach, Reach::Beyond);
        // With short accesses, of which few are under way, it is the latency that has to be solved first.
        let values =
            [("burst", 128.0), ("outstanding", 3.0), ("line-fills", 4.0), ("submit", 300.0), ("wake", 800.0)];
        let short = values
            .iter()
            .fold(papa.parameters.clone(), |list, (name, value)| list.with(name, *value).expect("listed"));
        let solved = fit::solve(papa, &claims, &Results::none(), &short);
        assert_ne!(solved.reach, Reach::Beyond, "{:?}", solved.parameters.get("read-latency"));
    }

    #[test]
    fn ranks_and_correlations() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
        assert_eq!(correlation(&[0.0, 1.0, 2.0], &[2.0, 1.0, 0.0]), -1.0);
        assert_eq!(correlation(&[1.0, 1.0], &[2.0, 1.0]), 0.0);
    }
}
