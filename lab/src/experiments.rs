//! The experiments that decide claims: what a paper's module brings, and how all of it is run.
//!
//! ```text
//! Paper { plans, parameters, runners, judges } ──► (plan × series) over the cores ──► Tables ──► judges ──► verdicts
//!                                                      └─────────── kept, recalled ───────────────┘
//! ```
//!
//! A plan is data, a runner is code that gives the lines of a plan, and a judge gives one claim its row in one place. An
//! experiment states what it found; whether its claims exist, and that no two decide the same one, is checked in
//! [`crate::report`]. Nothing is written to files here.

use std::collections::BTreeSet;

use crate::claims::{Claim, Claims, Place};
use crate::markatos;
use crate::nava;
use crate::papa;
use crate::parameters::{Parameters, ParametersError};
use crate::plan::{Line, Plan, PlanError, SeriesPlan};
use crate::results::{Key, Results};
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
    /// What claims call it: author and year.
    pub name: &'static str,
    /// Authors, year, title.
    pub title: &'static str,
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
pub const PAPERS: &[Paper] = &[wicki::PAPER, papa::PAPER, markatos::PAPER, nava::PAPER];

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
    /// What claims call it.
    pub name: &'static str,
    /// Authors, year, title.
    pub title: &'static str,
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
    /// What went wrong, by the figure or the claim, in the order of the plans and the judges.
    pub failures: Vec<(String, RunError)>,
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
        let parameters = Parameters::parse(paper.parameters)?;
        Ok(Self { name: paper.name, title: paper.title, plans, parameters, runners, judges })
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
        let mut outcome = self.attempt(claims, &Results::none(), |_, _| done());
        match outcome.failures.is_empty() {
            true => Ok(outcome),
            false => Err(outcome.failures.swap_remove(0).1),
        }
    }

    /// Runs what can be run, but for what is kept; `ended` hears of each job's end, from any thread, and whether it was kept.
    ///
    /// A figure that fails is left out, and a claim that needs it gets a row that says why it has no verdict. What is
    /// measured on the machine at hand is measured each time.
    pub fn attempt(&self, claims: &Claims, results: &Results, ended: impl Fn(&str, bool) + Sync) -> Outcome {
        let run = Run::new(self, claims, results);
        let (tables, failed) = run.tables(&ended);
        let judge = |judge: &Judge| {
            let (row, kept) = run.row(judge, &tables, &failed);
            ended(judge.claim, kept);
            row
        };
        let judged = spread(&self.judges, judge, || ());
        let mut outcome = Outcome { tables, ..Outcome::default() };
        outcome.failures = failed;
        for (judge, row) in self.judges.iter().zip(judged) {
            match row {
                Ok(row) => outcome.verdicts.push(row),
                Err(error) => {
                    let why = format!("an experiment of it did not come to its end: {error}");
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

    /// Whether every result that [`Prepared::attempt`] would keep is kept.
    pub fn is_kept(&self, claims: &Claims, results: &Results) -> bool {
        let run = Run::new(self, claims, results);
        let lines = self.plans.iter().flat_map(|plan| plan.series.iter().map(move |series| (plan, series)));
        lines.into_iter().all(|(plan, series)| results.has(&run.line_key(plan, &series.label)))
            && self.judges.iter().all(|judge| results.has(&run.row_key(judge)))
    }

    /// Leaves the judges of one place only.
    #[must_use]
    pub fn judged(mut self, place: Place) -> Self {
        self.judges.retain(|judge| judge.place == place);
        self
    }
}

/// Figures that failed, with what went wrong.
type Failed = Vec<(String, RunError)>;

/// One attempt at a paper's experiments.
struct Run<'a> {
    prepared: &'a Prepared,
    claims: &'a Claims,
    results: &'a Results,
    /// The parameters and the plans as texts that keys are made of.
    parameters: String,
    plans: String,
}

impl<'a> Run<'a> {
    fn new(prepared: &'a Prepared, claims: &'a Claims, results: &'a Results) -> Self {
        let parameters = format!("{:?}", prepared.parameters.list());
        Self { prepared, claims, results, parameters, plans: format!("{:?}", prepared.plans) }
    }

    fn line_key(&self, plan: &Plan, label: &str) -> Key {
        self.results.key(&["line", &format!("{plan:?}"), label, &self.parameters])
    }

    fn row_key(&self, judge: &Judge) -> Key {
        let claim = format!("{:?}", self.claims.find(judge.claim));
        self.results.key(&["row", judge.place.word(), &claim, &self.plans, &self.parameters])
    }

    /// The figures that could be made.
    fn tables(&self, ended: impl Fn(&str, bool) + Sync) -> (Tables, Failed) {
        let plans = &self.prepared.plans;
        let jobs: Vec<(&Plan, &SeriesPlan)> =
            plans.iter().flat_map(|plan| plan.series.iter().map(move |series| (plan, series))).collect();
        let line = |(plan, series): &(&Plan, &SeriesPlan)| {
            let (lines, kept) = self.line(plan, series);
            ended(&plan.figure, kept);
            lines
        };
        let mut lines = spread(&jobs, line, || ()).into_iter();
        let (mut tables, mut failed) = (Vec::new(), Vec::new());
        for plan in plans {
            let own: Vec<Result<Vec<Series>, RunError>> = lines.by_ref().take(plan.series.len()).collect();
            match own.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(own) => {
                    tables.push(Table { plan: plan.clone(), series: own.into_iter().flatten().collect() });
                }
                Err(error) => failed.push((plan.figure.clone(), error)),
            }
        }
        (Tables::new(tables), failed)
    }

    /// One line of a plan, and whether it was kept.
    fn line(&self, plan: &Plan, series: &SeriesPlan) -> (Result<Vec<Series>, RunError>, bool) {
        let key = self.line_key(plan, &series.label);
        if let Some(lines) = self.results.lines(&key) {
            return (Ok(lines), true);
        }
        let Some(runner) = self.prepared.runners.iter().find(|runner| runner.name == plan.runner) else {
            let (figure, runner) = (plan.figure.clone(), plan.runner.clone());
            return (Err(RunError::NoRunner { figure, runner }), false);
        };
        let lines = (runner.run)(&Line { plan, series, parameters: &self.prepared.parameters });
        if let Ok(lines) = &lines {
            self.results.keep_lines(&key, lines);
        }
        (lines, false)
    }

    /// One row, and whether it was kept.
    fn row(&self, judge: &Judge, tables: &Tables, failed: &Failed) -> (Result<Verdict, RunError>, bool) {
        let key = self.row_key(judge);
        let keeps = judge.place == Place::Simulated && failed.is_empty();
        if let Some(row) = self.results.row(&key).filter(|_| keeps) {
            return (Ok(row), true);
        }
        let row = self.judged(judge, tables, failed);
        if let (Ok(row), true) = (&row, keeps) {
            self.results.keep_row(&key, row);
        }
        (row, false)
    }

    fn judged(&self, judge: &Judge, tables: &Tables, failed: &Failed) -> Result<Verdict, RunError> {
        let prepared = self.prepared;
        let needs = |figure: &str| {
            let mut plans = prepared.plans.iter().filter(|plan| plan.figure == figure);
            plans.any(|plan| plan.claims.iter().any(|claim| claim == judge.claim))
        };
        if let Some((_, error)) = failed.iter().find(|(figure, _)| needs(figure)) {
            return Err(error.clone());
        }
        let nothing = || RunError::NothingToJudge { claim: judge.claim.to_owned() };
        let claim = self.claims.find(judge.claim).ok_or_else(nothing)?;
        (judge.judge)(&Case { claim, tables, parameters: &prepared.parameters })
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

    /// A paper of two figures, one of which fails, and a judge that needs it.
    fn prepared() -> (Prepared, Claims) {
        fn line(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
            let points = line.plan.points().into_iter().map(|x| (x, x)).collect();
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
        let prepared = Prepared {
            name: "p",
            title: "t",
            plans: vec![plan("good", "a"), plan("bad", "b")],
            parameters: Parameters::default(),
            runners: &[Runner { name: "r", run: line }],
            judges: vec![judge("a"), judge("b")],
        };
        (prepared, Claims::parse(&(claim("a") + &claim("b"))).expect("well formed"))
    }

    #[test]
    fn a_figure_that_fails_leaves_the_others_and_its_claim_says_why_it_has_no_verdict() {
        let (prepared, claims) = prepared();
        let outcome = prepared.attempt(&claims, &Results::none(), |_, _| ());
        let figures: Vec<&str> = outcome.tables.iter().map(|table| table.plan.figure.as_str()).collect();
        assert_eq!((figures, outcome.failures.len()), (vec!["good"], 1));
        assert_eq!(outcome.verdicts[0].why, "seen");
        assert!(outcome.verdicts[1].why.contains("figure `bad`, series `s`: no light"));
        assert!(matches!(prepared.run(&claims, || ()), Err(RunError::Failed { .. })));
    }

    #[test]
    fn what_was_done_is_not_done_again_and_what_failed_is() {
        let (prepared, claims) = prepared();
        let directory = std::env::temp_dir().join(format!("memferry-lab-{}-resumed", std::process::id()));
        let results = Results::in_directory(&directory, "p".to_owned(), true).expect("made");
        let attempt = || {
            let ends = std::sync::Mutex::new(Vec::new());
            let ended = |name: &str, kept| ends.lock().expect("nobody panics").push((name.to_owned(), kept));
            let outcome = prepared.attempt(&claims, &results, ended);
            let mut ends = ends.into_inner().expect("nobody panics");
            ends.sort();
            (ends, outcome.tables, outcome.verdicts)
        };
        let (first, again) = (attempt(), attempt());
        std::fs::remove_dir_all(&directory).expect("made above");
        let end = |name: &str, kept| (name.to_owned(), kept);
        assert_eq!(first.0, [end("a", false), end("b", false), end("bad", false), end("good", false)]);
        assert_eq!(again.0, [end("a", false), end("b", false), end("bad", false), end("good", true)]);
        assert_eq!((first.1, first.2), (again.1, again.2));
    }
}
