//! One run of a paper's experiments: recalls kept results, computes the others and keeps them.
//!
//! ```text
//! (plan × series) ── kept? ──► lines; otherwise the runner, with parameters that record requests ──► lines, kept
//! judge ──────────── kept? ──► row; otherwise the judge, on the figures that name its claim ───────► row, kept
//! on another machine: results kept before, which requested no changed parameter, stay valid
//! ```
//!
//! [`crate::results`] defines keys and files. Live rows are kept for a run that is interrupted.

use std::collections::{BTreeMap, BTreeSet};

use super::Prepared;
use crate::claims::{Claims, Place};
use crate::paper::{Case, Judge, Line, RunError};
use crate::parameters::Parameters;
use crate::plan::{Plan, SeriesPlan};
use crate::results::{Key, Made, Results};
use crate::table::{Series, Table, Tables};
use crate::verdict::{Status, Verdict};
use crate::workers::spread;

type Failed = Vec<(String, RunError)>;

type Names = BTreeSet<String>;

/// One run of a paper's experiments.
pub(super) struct Run<'a> {
    prepared: &'a Prepared,
    claims: &'a Claims,
    results: &'a Results,
    /// The parameters as text, for keys.
    parameters: String,
    /// The changed parameters, and the text of all before the change.
    before: Option<(Names, String)>,
}

/// The computed figures, and the errors of the others.
pub(super) struct Figures {
    pub(super) tables: Tables,
    pub(super) failed: Failed,
    /// The parameters that each figure requested.
    asked: BTreeMap<String, Names>,
}

impl<'a> Run<'a> {
    pub(super) fn new(prepared: &'a Prepared, claims: &'a Claims, results: &'a Results) -> Self {
        let text = |parameters: &Parameters| format!("{:?}", parameters.list());
        let before = prepared.before.as_ref();
        Self {
            prepared,
            claims,
            results,
            parameters: text(&prepared.parameters),
            before: before.map(|before| (prepared.parameters.changed_from(before), text(before))),
        }
    }

    /// A kept result for the present parameters, or one from before some were changed that requested none of them.
    fn kept<T>(&self, recall: impl Fn(&str) -> Option<Made<T>>) -> Option<Made<T>> {
        recall(&self.parameters).or_else(|| {
            let (changed, parameters) = self.before.as_ref()?;
            recall(parameters).filter(|made| made.asked.is_disjoint(changed))
        })
    }

    fn line_key(&self, plan: &Plan, label: &str, parameters: &str) -> Key {
        self.results.key(&["line", &format!("{plan:?}"), label, parameters])
    }

    pub(super) fn kept_line(&self, plan: &Plan, label: &str) -> Option<Made<Vec<Series>>> {
        self.kept(|parameters| self.results.lines(&self.line_key(plan, label, parameters)))
    }

    fn row_key(&self, judge: &Judge, parameters: &str) -> Key {
        let claim = format!("{:?}", self.claims.find(judge.claim));
        let plans = format!("{:?}", self.plans_of(judge).collect::<Vec<_>>());
        self.results.key(&["row", judge.place.word(), &claim, &plans, parameters])
    }

    /// The plans that name a judge's claim.
    fn plans_of(&self, judge: &Judge) -> impl Iterator<Item = &'a Plan> {
        let names_it = |plan: &&Plan| plan.claims.iter().any(|claim| claim == judge.claim);
        self.prepared.plans.iter().filter(names_it)
    }

    pub(super) fn kept_row(&self, judge: &Judge) -> Option<Made<Verdict>> {
        self.kept(|parameters| self.results.row(&self.row_key(judge, parameters)))
    }

    /// Computes or recalls all figures.
    pub(super) fn figures(&self, ended: impl Fn(&str, bool) + Sync) -> Figures {
        let plans = &self.prepared.plans;
        let jobs: Vec<(&Plan, &SeriesPlan)> =
            plans.iter().flat_map(|plan| plan.series.iter().map(move |series| (plan, series))).collect();
        let line = |(plan, series): &(&Plan, &SeriesPlan)| {
            let (lines, kept) = self.line(plan, series);
            ended(&plan.figure, kept);
            lines
        };
        let mut lines = spread(&jobs, line).into_iter();
        let mut tables = Vec::new();
        let mut failed = Vec::new();
        let mut asked = BTreeMap::new();
        for plan in plans {
            let own: Vec<Result<Made<Vec<Series>>, RunError>> =
                lines.by_ref().take(plan.series.len()).collect();
            match own.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(own) => {
                    let names = own.iter().flat_map(|made| made.asked.clone()).collect();
                    asked.insert(plan.figure.clone(), names);
                    let series = own.into_iter().flat_map(|made| made.result).collect();
                    tables.push(Table { plan: plan.clone(), series });
                }
                Err(error) => failed.push((plan.figure.clone(), error)),
            }
        }
        Figures { tables: Tables::new(tables), failed, asked }
    }

    /// One line of a plan, and whether it was kept.
    fn line(&self, plan: &Plan, series: &SeriesPlan) -> (Result<Made<Vec<Series>>, RunError>, bool) {
        if let Some(lines) = self.kept_line(plan, &series.label) {
            return (Ok(lines), true);
        }
        let Some(runner) = self.prepared.runners.iter().find(|runner| runner.name == plan.runner) else {
            let figure = plan.figure.clone();
            let runner = plan.runner.clone();
            return (Err(RunError::NoRunner { figure, runner }), false);
        };
        let parameters = self.prepared.parameters.watched();
        let lines = (runner.run)(&Line { plan, series, parameters: &parameters });
        let lines = lines.map(|result| Made { result, asked: parameters.asked() });
        if let Ok(lines) = &lines {
            self.results.keep_lines(&self.line_key(plan, &series.label, &self.parameters), lines);
        }
        (lines, false)
    }

    /// One row, and whether it was kept.
    pub(super) fn row(&self, judge: &Judge, figures: &Figures) -> (Result<Verdict, RunError>, bool) {
        let is_live = judge.place == Place::Live;
        let kept = || match is_live {
            true => self.results.live_row(&self.row_key(judge, &self.parameters)),
            false => self.kept_row(judge),
        };
        if let Some(row) = kept() {
            return (Ok(row.result), true);
        }
        let row = self.judged(judge, figures);
        // What could not be measured may be measurable next time.
        if let Ok(row) = &row
            && (!is_live || row.result.status != Status::NotRun)
        {
            self.results.keep_row(&self.row_key(judge, &self.parameters), row);
        }
        (row.map(|row| row.result), false)
    }

    fn judged(&self, judge: &Judge, figures: &Figures) -> Result<Made<Verdict>, RunError> {
        let own = || self.plans_of(judge).map(|plan| &plan.figure);
        if let Some((_, error)) = figures.failed.iter().find(|(figure, _)| own().any(|name| name == figure)) {
            return Err(error.clone());
        }
        let nothing = || RunError::NothingToJudge { claim: judge.claim.to_owned() };
        let claim = self.claims.find(judge.claim).ok_or_else(nothing)?;
        let parameters = self.prepared.parameters.watched();
        let tables = figures.tables.of_claim(judge.claim);
        let result = (judge.judge)(&Case { claim, tables: &tables, parameters: &parameters })?;
        let mut asked = parameters.asked();
        asked.extend(own().filter_map(|figure| figures.asked.get(figure)).flatten().cloned());
        Ok(Made { result, asked })
    }
}
