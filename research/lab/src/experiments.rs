//! Runs the experiments of all papers.
//!
//! ```text
//! Paper { plans, parameters, runners, judges } ──► (plan × series) over the cores ──► Tables ──► judges ──► verdicts
//!                                                      └─────────── kept, recalled ───────────────┘
//! ```
//!
//! A plan is data, a runner is code that computes the lines of a plan, and a judge decides one claim in one place.
//! [`crate::report`] checks that every judged claim exists and is judged once. This module writes no files, except for
//! [`crate::results`].

mod run;

use std::collections::BTreeSet;

use crate::claims::{Claims, Place};
use crate::dsa;
use crate::markatos;
use crate::nava;
use crate::nodes;
use crate::papa;
pub use crate::paper::{Case, Fit, Judge, Line, Paper, RunError, Runner};
use crate::parameters::Parameters;
use crate::plan::Plan;
use crate::results::Results;
use crate::table::Tables;
use crate::verdict::Verdict;
use crate::wicki;
use crate::workers::spread;
use run::{Figures, Run};

/// All papers with experiments, in the order of their runs.
pub const PAPERS: &[Paper] = &[wicki::PAPER, papa::PAPER, markatos::PAPER, nava::PAPER];

/// Studies of our own, after the papers: figures without claims, and so without verdicts.
pub const STUDIES: &[Paper] = &[dsa::STUDY, nodes::STUDY];

/// A paper's plans and parameters, read and checked.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub name: &'static str,
    pub title: &'static str,
    /// The plans to run.
    pub plans: Vec<Plan>,
    /// The parameters of its model.
    pub parameters: Parameters,
    runners: &'static [Runner],
    judges: Vec<Judge>,
    /// The fitted parameters, in the order in which they are solved.
    pub fits: Vec<Fit>,
    /// The parameters before they were changed.
    before: Option<Parameters>,
}

/// The results of the experiments.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub tables: Tables,
    pub verdicts: Vec<Verdict>,
    /// Errors by figure or claim, in the order of the plans and the judges.
    pub failures: Vec<(String, RunError)>,
}

/// Reads and checks the experiments of every paper and study. With a non-empty `only`, keeps only what these claims and figures need.
///
/// # Errors
/// The first plan, parameter or name that is invalid.
pub fn prepare(claims: &Claims, only: &[String]) -> Result<Vec<Prepared>, RunError> {
    let all = PAPERS.iter().chain(STUDIES);
    let prepared: Vec<Prepared> = all.map(Prepared::read).collect::<Result<_, _>>()?;
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
        let runners = paper.runners;
        let judges = paper.judges.concat();
        let parameters = Parameters::parse(paper.parameters)?;
        let fits = paper.fits.concat();
        let Paper { name, title, .. } = *paper;
        Ok(Self { name, title, plans, parameters, runners, judges, fits, before: None })
    }

    /// Keeps what the claims and figures of `only` need. A claim needs its judge and every plan that names it.
    fn narrowed(mut self, only: &[String]) -> Self {
        if !only.is_empty() {
            self.judges.retain(|judge| only.iter().any(|id| id == judge.claim));
            self.plans.retain(|plan| only.iter().any(|id| *id == plan.figure || plan.claims.contains(id)));
        }
        self
    }

    /// Keeps the judges selected by `keeps` and the plans that they need, each with its reduced sweep.
    #[must_use]
    pub fn reduced(mut self, keeps: impl Fn(&str) -> bool) -> Self {
        self.judges.retain(|judge| keeps(judge.claim));
        self.plans.retain(|plan| plan.claims.iter().any(|claim| keeps(claim)));
        self.plans = self.plans.iter().map(Plan::reduced).collect();
        self
    }

    /// The number of jobs: lines of plans, and judges.
    pub fn jobs(&self) -> usize {
        self.plans.iter().map(|plan| plan.series.len()).sum::<usize>() + self.judges.len()
    }

    /// Runs the plans and the judges in parallel.
    ///
    /// # Errors
    /// The first error, in the order of the plans.
    pub fn run(&self, claims: &Claims) -> Result<Outcome, RunError> {
        let mut outcome = self.attempt(claims, &Results::none(), |_, _| ());
        match outcome.failures.is_empty() {
            true => Ok(outcome),
            false => Err(outcome.failures.swap_remove(0).1),
        }
    }

    /// Runs everything without a kept result. Calls `ended` for each finished job, from any thread, with whether its result was
    /// kept.
    ///
    /// A failed figure is left out, and a claim that needs it gets a row with the reason. Live claims are measured, unless a run that
    /// was interrupted left their rows.
    pub fn attempt(&self, claims: &Claims, results: &Results, ended: impl Fn(&str, bool) + Sync) -> Outcome {
        let run = Run::new(self, claims, results);
        let figures = run.figures(&ended);
        let judge = |judge: &Judge| {
            let (row, kept) = run.row(judge, &figures);
            ended(judge.claim, kept);
            row
        };
        let judged = spread(&self.judges, |each| (each.place == Place::Simulated).then(|| judge(each)));
        // Live judges run one after the other, alone on the machine.
        let rows: Vec<_> =
            self.judges.iter().zip(judged).map(|(each, row)| row.unwrap_or_else(|| judge(each))).collect();
        let Figures { tables, failed: failures, .. } = figures;
        let mut outcome = Outcome { tables, failures, ..Outcome::default() };
        for (judge, row) in self.judges.iter().zip(rows) {
            match row {
                Ok(row) => outcome.verdicts.push(row),
                Err(error) => {
                    let why = format!("one of its experiments failed: {error}");
                    let row = claims.find(judge.claim).map(|claim| Verdict::not_run(claim, judge.place));
                    outcome.verdicts.extend(row.map(|row| Verdict { why, ..row }));
                    if outcome.failures.iter().all(|(_, known)| *known != error) {
                        outcome.failures.push((judge.claim.to_owned(), error));
                    }
                }
            }
        }
        outcome
    }

    /// The same experiments on another machine. Kept results that requested none of the changed parameters stay valid.
    #[must_use]
    pub fn on(&self, parameters: &Parameters) -> Self {
        let before = Some(self.parameters.clone());
        Self { parameters: parameters.clone(), before, ..self.clone() }
    }

    /// Whether it is a study of our own.
    pub fn is_study(&self) -> bool {
        STUDIES.iter().any(|study| study.name == self.name)
    }

    /// Whether it decides any claim.
    pub fn has_judges(&self) -> bool {
        !self.judges.is_empty()
    }

    /// Keeps only the judges of one place.
    #[must_use]
    pub fn judged(mut self, place: Place) -> Self {
        self.judges.retain(|judge| judge.place == place);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Series;

    #[test]
    fn plans_name_existing_runners_and_claims() {
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
    fn every_fitted_parameter_has_its_fit_and_no_other() {
        let claims = Claims::built_in().expect("checked");
        for paper in prepare(&claims, &[]).expect("checked") {
            let stated = paper.parameters.list().iter();
            let stated: Vec<(&str, &str)> =
                stated.filter_map(|one| Some((one.name.as_str(), one.fitted.as_deref()?))).collect();
            let mut own: Vec<(&str, &str)> =
                paper.fits.iter().map(|fit| (fit.parameter, fit.claim)).collect();
            own.sort_by_key(|(name, _)| stated.iter().position(|(other, _)| other == name));
            assert_eq!(own, stated, "{}", paper.name);
            assert!(own.iter().all(|(_, claim)| claims.find(claim).is_some()));
        }
    }

    #[test]
    fn every_parameter_of_a_paper_says_how_well_it_is_known() {
        for paper in PAPERS {
            let prepared = Prepared::read(paper).expect("checked");
            for parameter in prepared.parameters.list() {
                assert!(parameter.is_bounded(), "{}: {}", paper.name, parameter.name);
            }
        }
    }

    #[test]
    fn single_transfer_plans_name_the_fill_peak() {
        let prepared = Prepared::read(&wicki::PAPER).expect("checked");
        let alone: Vec<&Plan> = prepared.plans.iter().filter(|plan| plan.runner == "transfer").collect();
        assert!(alone.len() > 1);
        for plan in alone {
            assert!(plan.claims.iter().any(|claim| claim == "wicki-fill-burst-peak"), "{}", plan.figure);
        }
    }

    #[test]
    fn an_unknown_id_is_refused() {
        let claims = Claims::built_in().expect("checked");
        let refused = prepare(&claims, &["wicki-burst-pike".to_owned()]).expect_err("no such claim");
        assert_eq!(refused, RunError::Unknown { id: "wicki-burst-pike".to_owned() });
    }

    /// A paper with two figures, one of which fails, and a judge for each.
    fn prepared() -> (Prepared, Claims) {
        fn line(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
            let points = line.plan.points().into_iter().map(|x| (x, x)).collect();
            line.parameters.get("speed")?;
            match line.plan.figure.as_str() {
                "good" => Ok(vec![Series { label: line.series.label.clone(), points }]),
                figure => Err(RunError::Failed {
                    figure: figure.to_owned(),
                    series: line.series.label.clone(),
                    message: "no light".to_owned(),
                }),
            }
        }
        fn judge(case: &Case<'_>) -> Result<Verdict, RunError> {
            case.tables.line("good", "s")?;
            case.parameters.get("weight")?;
            Ok(Verdict { why: "seen".to_owned(), ..Verdict::not_run(case.claim, Place::Simulated) })
        }
        let plan = |figure: &str, claim: &str| {
            let text = format!(
                "figure = '{figure}'\ntitle = 't'\nshows = 's'\npaper = 'p'\nnumber = '1'\nrunner = 'r'\nseed = 1\n\
                 claims = ['{claim}']\n[x]\nlabel = 'x'\nunit = 'u'\nscale = 'linear'\npoints = [1, 2]\n\
                 [y]\nlabel = 'y'\nunit = 'u'\nscale = 'linear'\n[[series]]\nlabel = 's'\n"
            );
            Plan::parse(&text).expect("well formed")
        };
        let claim = |id: &str| {
            format!(
                "[[claim]]\nid = '{id}'\npaper = 'p'\nsection = '1'\nkind = 'order'\nwhere = ['simulated']\nsays = 's'\n"
            )
        };
        let judge = |claim| Judge { claim, place: Place::Simulated, judge };
        let entry = |name| {
            format!("[[parameter]]\nname = '{name}'\nvalue = 1\nunit = 'ns'\nsource = 's'\nmechanism = 'm'\n")
        };
        let prepared = Prepared {
            name: "p",
            title: "t",
            plans: vec![plan("good", "a"), plan("bad", "b")],
            parameters: Parameters::parse(&["speed", "weight", "colour"].map(entry).concat())
                .expect("well formed"),
            runners: &[Runner { name: "r", run: line }],
            judges: vec![judge("a"), judge("b")],
            fits: vec![],
            before: None,
        };
        (prepared, Claims::parse(&(claim("a") + &claim("b"))).expect("well formed"))
    }

    #[test]
    fn a_failed_figure_explains_its_missing_verdict() {
        let (prepared, claims) = prepared();
        let outcome = prepared.attempt(&claims, &Results::none(), |_, _| ());
        let figures: Vec<&str> = outcome.tables.iter().map(|table| table.plan.figure.as_str()).collect();
        assert_eq!((figures, outcome.failures.len()), (vec!["good"], 1));
        assert_eq!(outcome.verdicts[0].why, "seen");
        assert!(outcome.verdicts[1].why.contains("figure `bad`, series `s`: no light"));
        assert!(matches!(prepared.run(&claims), Err(RunError::Failed { .. })));
    }

    /// Runs an attempt; also gives the names of its jobs, each with whether it was kept.
    fn attempt(
        prepared: &Prepared,
        claims: &Claims,
        results: &Results,
    ) -> (Vec<(String, bool)>, Tables, Vec<Verdict>) {
        let ends = std::sync::Mutex::new(Vec::new());
        let ended = |name: &str, kept| ends.lock().expect("nobody panics").push((name.to_owned(), kept));
        let outcome = prepared.attempt(claims, results, ended);
        let mut ends = ends.into_inner().expect("nobody panics");
        ends.sort();
        (ends, outcome.tables, outcome.verdicts)
    }

    fn results(name: &str) -> (Results, std::path::PathBuf) {
        let directory = std::env::temp_dir().join(format!("memferry-lab-{}-{name}", std::process::id()));
        (Results::in_directory(&directory, "p".to_owned(), true).expect("made"), directory)
    }

    #[test]
    fn only_failed_jobs_run_again() {
        let (prepared, claims) = prepared();
        let (results, directory) = results("resumed");
        let first = attempt(&prepared, &claims, &results);
        let again = attempt(&prepared, &claims, &results);
        std::fs::remove_dir_all(&directory).expect("made above");
        let end = |name: &str, kept| (name.to_owned(), kept);
        assert_eq!(first.0, [end("a", false), end("b", false), end("bad", false), end("good", false)]);
        assert_eq!(again.0, [end("a", true), end("b", false), end("bad", false), end("good", true)]);
        assert_eq!((first.1, first.2), (again.1, again.2));
    }

    #[test]
    fn results_without_the_changed_parameter_stay() {
        let (mut prepared, claims) = prepared();
        prepared.plans.retain(|plan| plan.figure == "good");
        prepared.judges.retain(|judge| judge.claim == "a");
        let (results, directory) = results("changed");
        let whole = attempt(&prepared, &claims, &results);
        for (parameter, kept) in
            [("colour", [true, true]), ("weight", [false, true]), ("speed", [false, false])]
        {
            let other = prepared.on(&prepared.parameters.scaled(parameter, 2.0).expect("there"));
            for kept in [kept, [true, true]] {
                let (ends, tables, _) = attempt(&other, &claims, &results);
                let ends: Vec<bool> = ends.into_iter().map(|(_, kept)| kept).collect();
                assert_eq!((ends, tables), (kept.to_vec(), whole.1.clone()), "{parameter}: judge and figure");
            }
        }
        std::fs::remove_dir_all(&directory).expect("made above");
    }
}
