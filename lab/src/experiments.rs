//! The experiments that decide claims: what a paper's module brings, and how all of it is run.
//!
//! ```text
//! Paper { plans, parameters, runners, judges } ──► (plan × series) over the cores ──► Tables ──► judges ──► verdicts
//! ```
//!
//! A plan is data, a runner is code that gives the lines of a plan, and a judge gives one claim its row in one place. An
//! experiment states what it found; whether its claims exist, and that no two decide the same one, is checked in
//! [`crate::report`]. Nothing is written to files here.

use std::collections::BTreeSet;

use crate::claims::{Claim, Claims, Place};
use crate::markatos;
use crate::parameters::{Parameters, ParametersError};
use crate::plan::{Line, Plan, PlanError};
use crate::table::{Series, Table, Tables};
use crate::verdict::Verdict;
use crate::wicki;
use crate::workers::spread;

/// What gives the lines of the plans that name it: one or several for each line of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Runner {
    /// What plans call it.
    pub name: &'static str,
    /// Runs one line to its end.
    pub run: fn(&Line<'_>) -> Result<Vec<Series>, RunError>,
}

/// What a judge looks at.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The claim, with what it expects.
    pub claim: &'a Claim,
    /// The figures whose plans name the claim, and others that were made.
    pub tables: &'a Tables,
    /// The parameters of the paper's model.
    pub parameters: &'a Parameters,
}

/// What decides one claim in one place.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    /// The claim's id.
    pub claim: &'static str,
    /// Where it decides it.
    pub place: Place,
    /// Gives the row.
    pub judge: fn(&Case<'_>) -> Result<Verdict, RunError>,
}

/// The experiments on one paper.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Texts of its plans.
    pub plans: &'static [&'static str],
    /// Text of its parameters.
    pub parameters: &'static str,
    /// What its plans name.
    pub runners: &'static [Runner],
    /// What decides its claims, by the parts of the paper.
    pub judges: &'static [&'static [Judge]],
}

/// Every paper with experiments, in the order in which they run.
pub const PAPERS: &[Paper] = &[wicki::PAPER, markatos::PAPER];

/// Why experiments did not come to an end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// A plan is refused.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The parameters are refused, or one is missing.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// Two plans for one figure.
    #[error("figure `{figure}` has two plans")]
    FigureTwice {
        /// The figure.
        figure: String,
    },
    /// A plan names a runner that its paper does not have.
    #[error("figure `{figure}` names the runner `{runner}`, which its paper does not have")]
    NoRunner {
        /// The figure.
        figure: String,
        /// The runner.
        runner: String,
    },
    /// A plan names a claim that is not listed.
    #[error("figure `{figure}` names the claim `{claim}`, which is not listed")]
    NoClaim {
        /// The figure.
        figure: String,
        /// The claim.
        claim: String,
    },
    /// A judge for a claim that is not listed.
    #[error("there is a judge for `{claim}`, which is not listed")]
    NothingToJudge {
        /// The claim.
        claim: String,
    },
    /// Something is asked for that neither is a claim nor a figure.
    #[error("there is no claim and no figure `{id}`")]
    Unknown {
        /// What was asked for.
        id: String,
    },
    /// The settings of a line do not fit its runner.
    #[error("figure `{figure}`, series `{series}`: {error}")]
    Settings {
        /// The figure.
        figure: String,
        /// The line.
        series: String,
        /// What is wrong.
        error: Box<toml::de::Error>,
    },
    /// A runner could not do its work.
    #[error("figure `{figure}`, series `{series}`: {message}")]
    Failed {
        /// The figure.
        figure: String,
        /// The line.
        series: String,
        /// The runner's words.
        message: String,
    },
    /// A judge could not do its work.
    #[error("claim `{claim}`: {message}")]
    Judge {
        /// The claim.
        claim: String,
        /// The judge's words.
        message: String,
    },
    /// A judge asks for a line that was not made.
    #[error("figure `{figure}` has no series `{label}`")]
    NoSeries {
        /// The figure.
        figure: String,
        /// The line.
        label: String,
    },
    /// A judge asks for a point that was not run.
    #[error("figure `{figure}`, series `{label}` has no point at {x}")]
    NoPoint {
        /// The figure.
        figure: String,
        /// The line.
        label: String,
        /// The point.
        x: f64,
    },
}

/// A paper's plans and parameters, read and checked.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The plans that are to be run.
    pub plans: Vec<Plan>,
    /// The parameters of its model.
    pub parameters: Parameters,
    runners: &'static [Runner],
    judges: Vec<Judge>,
}

/// What came of the experiments.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The figures.
    pub tables: Tables,
    /// The rows.
    pub verdicts: Vec<Verdict>,
}

/// Reads and checks the experiments on every paper; with `only` some claims or figures, just what these need.
///
/// # Errors
/// The first plan, parameter or name that is refused.
pub fn prepare(claims: &Claims, only: &[String]) -> Result<Vec<Prepared>, RunError> {
    let prepared: Vec<Prepared> = PAPERS.iter().map(Prepared::read).collect::<Result<_, _>>()?;
    let mut figures = BTreeSet::new();
    for plan in prepared.iter().flat_map(|paper| &paper.plans) {
        if !figures.insert(plan.figure.clone()) {
            return Err(RunError::FigureTwice { figure: plan.figure.clone() });
        }
        if let Some(claim) = plan.claims.iter().find(|id| claims.find(id).is_none()) {
            return Err(RunError::NoClaim { figure: plan.figure.clone(), claim: claim.clone() });
        }
    }
    if let Some(id) = only.iter().find(|id| claims.find(id).is_none() && !figures.contains(id.as_str())) {
        return Err(RunError::Unknown { id: id.clone() });
    }
    Ok(prepared.into_iter().map(|paper| paper.narrowed(only)).collect())
}

impl Prepared {
    fn read(paper: &Paper) -> Result<Self, RunError> {
        let plans: Vec<Plan> = paper.plans.iter().map(|text| Plan::parse(text)).collect::<Result<_, _>>()?;
        let (runners, judges) = (paper.runners, paper.judges.concat());
        Ok(Self { plans, parameters: Parameters::parse(paper.parameters)?, runners, judges })
    }

    /// Leaves what the claims and figures of `only` need: a claim needs its judge and every plan that names it.
    fn narrowed(mut self, only: &[String]) -> Self {
        if !only.is_empty() {
            self.judges.retain(|judge| only.iter().any(|id| id == judge.claim));
            self.plans.retain(|plan| only.iter().any(|id| *id == plan.figure || plan.claims.contains(id)));
        }
        self
    }

    /// Leaves only the judges that `keeps` names, and the plans that these need, each with its reduced sweep.
    #[must_use]
    pub fn reduced(mut self, keeps: impl Fn(&str) -> bool) -> Self {
        self.judges.retain(|judge| keeps(judge.claim));
        self.plans.retain(|plan| plan.claims.iter().any(|claim| keeps(claim)));
        self.plans = self.plans.iter().map(Plan::reduced).collect();
        self
    }

    /// How many jobs it has: lines of plans, and judges.
    pub fn jobs(&self) -> usize {
        self.plans.iter().map(|plan| plan.series.len()).sum::<usize>() + self.judges.len()
    }

    /// Runs the plans and the judges over the cores; `done` hears of each end, from any thread.
    ///
    /// # Errors
    /// The first, in the order of the plans, that went wrong.
    pub fn run(&self, claims: &Claims, done: impl Fn() + Sync) -> Result<Outcome, RunError> {
        let tables = self.tables(&done)?;
        let judged = spread(&self.judges, |judge| self.judge(judge, claims, &tables), &done);
        let verdicts = judged.into_iter().collect::<Result<_, _>>()?;
        Ok(Outcome { tables, verdicts })
    }

    fn judge(&self, judge: &Judge, claims: &Claims, tables: &Tables) -> Result<Verdict, RunError> {
        let nothing = || RunError::NothingToJudge { claim: judge.claim.to_owned() };
        let claim = claims.find(judge.claim).ok_or_else(nothing)?;
        (judge.judge)(&Case { claim, tables, parameters: &self.parameters })
    }

    fn tables(&self, done: impl Fn() + Sync) -> Result<Tables, RunError> {
        let mut jobs = Vec::new();
        for plan in &self.plans {
            let runner = self.runners.iter().find(|runner| runner.name == plan.runner).ok_or_else(|| {
                RunError::NoRunner { figure: plan.figure.clone(), runner: plan.runner.clone() }
            })?;
            let line = |series| (runner, Line { plan, series, parameters: &self.parameters });
            jobs.extend(plan.series.iter().map(line));
        }
        let mut lines = spread(&jobs, |(runner, line)| (runner.run)(line), done).into_iter();
        let mut tables = Vec::new();
        for plan in &self.plans {
            let own = lines.by_ref().take(plan.series.len()).collect::<Result<Vec<_>, _>>()?;
            tables.push(Table { plan: plan.clone(), series: own.into_iter().flatten().collect() });
        }
        Ok(Tables::new(tables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_paper_is_read_and_its_plans_name_runners_and_claims_that_exist() {
        let claims = Claims::built_in().expect("checked");
        for paper in prepare(&claims, &[]).expect("checked") {
            for plan in &paper.plans {
                assert!(paper.runners.iter().any(|runner| runner.name == plan.runner), "{}", plan.figure);
                let judged = |id: &String| paper.judges.iter().any(|judge| judge.claim == id);
                assert!(plan.claims.iter().all(judged), "{}: a claim without a judge", plan.figure);
            }
        }
    }

    #[test]
    fn what_neither_is_a_claim_nor_a_figure_is_refused() {
        let claims = Claims::built_in().expect("checked");
        let refused = prepare(&claims, &["wicki-burst-pike".to_owned()]).expect_err("no such claim");
        assert_eq!(refused, RunError::Unknown { id: "wicki-burst-pike".to_owned() });
    }
}
