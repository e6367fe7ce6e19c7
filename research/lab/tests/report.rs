//! Tests the page of a small part of the lab: complete, self-contained, and reproducible except for live parts.
//!
//! ```text
//! some plans with reduced sweeps, rows made by the test ──► Page ──► text ──► ids, links, marks, escapes
//! ```

use std::collections::BTreeSet;

use memferry_lab::bands::{Band, Bands, Fitted, Origin, Screened, Votes};
use memferry_lab::claims::{Claims, Place};
use memferry_lab::experiments::{self, Outcome, Prepared, RunError};
use memferry_lab::report::{Emulated, Machine, Page, Report};
use memferry_lab::results::Results;
use memferry_lab::verdict::{Basis, Figures, Status, Verdict};

/// The data borrowed by a page.
struct Made {
    claims: Claims,
    papers: Vec<Prepared>,
    outcomes: Vec<Outcome>,
    bands: Bands,
    machine: Machine,
}

impl Made {
    /// All claims, but nothing was run.
    fn nothing() -> Self {
        let claims = Claims::built_in().expect("checked");
        let papers = experiments::prepare(&claims, &[]).expect("checked");
        let machine =
            Machine { time: "2000-01-01 00:00 UTC".to_owned(), facts: vec![("memory", "1 GiB".to_owned())] };
        Self { claims, papers, outcomes: vec![], bands: Bands::default(), machine }
    }

    /// Runs the experiments of some claims, with reduced sweeps.
    fn part(ids: &[&str]) -> Self {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let all = Claims::built_in().expect("checked");
        let papers = experiments::prepare(&all, &ids).expect("checked");
        let papers: Vec<Prepared> = papers.into_iter().map(|paper| paper.reduced(|_| true)).collect();
        let outcomes = papers.iter().map(|paper| paper.attempt(&all, &Results::none(), |_, _| ())).collect();
        Self { claims: all.only(&ids), papers, outcomes, ..Self::nothing() }
    }

    fn page(&self) -> String {
        let verdicts = self.outcomes.iter().flat_map(|outcome| outcome.verdicts.clone()).collect();
        let report = Report::assemble(&self.claims, verdicts).expect("fits").over(&self.bands);
        let page = Page {
            claims: &self.claims,
            report: &report,
            papers: &self.papers,
            tables: self.outcomes.iter().flat_map(|outcome| outcome.tables.iter()).collect(),
            failures: self.outcomes.iter().flat_map(|outcome| &outcome.failures).collect(),
            machine: self.machine.clone(),
            bands: self.bands.clone(),
            emulated: Emulated::default(),
            only: &[],
        };
        page.html()
    }
}

/// All values of an attribute.
fn values<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!(" {name}=\"");
    page.split(begin.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// The page without its live parts.
fn without_live(page: &str) -> String {
    let mut parts = page.split("<!--live-->");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once("<!--/live-->").expect("marks are in pairs").1)
}

fn assert_closed(page: &str) {
    let ids = values(page, "id");
    let distinct: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), distinct.len(), "an id occurs twice");
    for link in values(page, "href").into_iter().filter(|link| !link.starts_with("data:")) {
        assert!(link.strip_prefix('#').is_some_and(|id| distinct.contains(id)), "{link} has no target");
    }
    for label in values(page, "for") {
        assert!(distinct.contains(label), "a label for {label}");
    }
    for foreign in [" src=", "url(http", "@import", "<script", "<link", "http://", "https://"] {
        assert!(!page.contains(foreign), "{foreign} in the page");
    }
}

#[test]
fn every_claim_and_figure_appears_once() {
    let made = Made::nothing();
    let page = made.page();
    assert_closed(&page);
    for claim in made.claims.list() {
        assert_eq!(page.matches(&format!("id=\"claim-{}\"", claim.id)).count(), 1, "{}", claim.id);
    }
    let plans = made.papers.iter().flat_map(|paper| &paper.plans);
    for plan in plans.clone() {
        assert_eq!(page.matches(&format!("id=\"figure-{}\"", plan.figure)).count(), 1, "{}", plan.figure);
    }
    assert_eq!(page.matches("Not drawn: </strong>it was not run").count(), plans.count());
    assert!(page.contains("<strong>not run</strong>"), "the bands");
}

#[test]
fn pages_differ_only_in_live_parts() {
    let ids = ["wicki-burst-peak", "wicki-no-burst-peak", "markatos-table-1", "nava-cat"];
    let with = |time: &str| {
        let mut made = Made::part(&ids);
        made.machine.time = time.to_owned();
        made.page()
    };
    let first = with("2000-01-01 00:00 UTC");
    let second = with("2030-01-01 00:00 UTC");
    assert_ne!(first, second);
    assert_eq!(without_live(&first), without_live(&second));
    assert_closed(&first);
    assert!(first.contains("<h4>Mean time of an initiation, of 1,000</h4>"), "the paper's table");
    assert!(first.contains("role=\"img\"") && first.contains("<desc>"), "a picture with a summary");
}

#[test]
fn live_rows_are_between_marks() {
    let mut made = Made::nothing();
    let live = Verdict {
        id: "nava-live".to_owned(),
        place: Place::Live,
        status: Status::Reported,
        basis: Some(Basis::Measured),
        figures: Figures::One(Some(12.25)),
        low: None,
        high: None,
        unit: Some("s".to_owned()),
        why: "measured by the test".to_owned(),
    };
    made.outcomes.push(Outcome { verdicts: vec![live], ..Outcome::default() });
    let page = made.page();
    assert!(page.contains("measured by the test") && page.contains("2000-01-01 00:00 UTC"));
    let rest = without_live(&page);
    for word in ["12.25", "measured by the test", "2000-01-01", "1 GiB"] {
        assert!(!rest.contains(word), "{word} is live");
    }
}

#[test]
fn failures_and_bands_are_shown() {
    let mut made = Made::nothing();
    let error = RunError::Failed {
        figure: "wicki-fig-03".to_owned(),
        series: "8 bit".to_owned(),
        message: "the lamp went out".to_owned(),
    };
    made.outcomes.push(Outcome { failures: vec![("wicki-fig-03".to_owned(), error)], ..Outcome::default() });
    made.bands = Bands {
        screened: vec![Screened {
            paper: "wicki2014".to_owned(),
            tried: 40,
            counted: 32,
            unfit: 5,
            fitted: vec![Fitted { parameter: "turn".to_owned(), low: 1.0, high: 2.5 }],
            made_of: "0".to_owned(),
        }],
        votes: vec![Votes {
            claim: "wicki-rotation".to_owned(),
            base: Status::Pass,
            holds: 21,
            machines: 32,
        }],
        bands: vec![Band {
            claim: "wicki-rotation".to_owned(),
            figure: String::new(),
            base: 900.0,
            low: 850.5,
            high: 950.0,
            follows: vec![("l3-cycle".to_owned(), -0.75)],
        }],
        ..Bands::default()
    };
    let row = Verdict {
        id: "wicki-rotation".to_owned(),
        place: Place::Simulated,
        status: Status::Pass,
        basis: Some(Basis::Predicted),
        figures: Figures::One(Some(900.0)),
        low: None,
        high: None,
        unit: None,
        why: "it is so".to_owned(),
    };
    made.outcomes.push(Outcome { verdicts: vec![row], ..Outcome::default() });
    let page = made.page();
    assert_closed(&page);
    assert!(!page.contains("committed table"));
    for (origin, words) in [(Origin::Project, "the same plans"), (Origin::Before, "have changed since")] {
        made.bands.origin = origin;
        assert!(made.page().contains(words), "{origin:?}");
    }
    assert_eq!(
        page.matches("the lamp went out").count(),
        2,
        "in the list of failures and instead of the figure"
    );
    assert!(page.contains("0 of 1 predictions hold, 0 fail, 1 are undecided; "), "the first line");
    assert!(page.contains("badge undecided") && page.contains("850.5 to 950"), "the row");
    assert!(page.contains("holds on 21 of 32 machines") && page.contains("l3-cycle (-0.75)"), "the table");
    assert!(page.contains("of 40 machines tried, 32 keep the calibrated claims"));
    assert!(page.contains("On 5 others") && page.contains(" turn 1 to 2.5."), "what was fitted");
}

#[test]
fn hostile_texts_are_escaped() {
    let hostile = "</p><script>alert(1)</script><img src=x onerror=\"a()\"> & ' \\u202e";
    let text = format!(
        "[[claim]]\nid = \"\"\"{hostile}\"\"\"\npaper = '''</h2><script>'''\nsection = '''<b>1</b>'''\nkind = 'number'\n\
         where = ['simulated', 'live']\nunit = '<i>'\nexpect = 1\nsays = '''<script>s</script>'''\nnote = '<script>n'\n"
    );
    let mut made = Made::nothing();
    made.claims = Claims::parse(&text).expect("well formed");
    made.machine.facts.push(("caches", "<script>c".to_owned()));
    let row = |place, status| Verdict {
        id: made.claims.list()[0].id.clone(),
        place,
        status,
        basis: None,
        figures: Figures::Named([("<script>f".to_owned(), 1.0)].into()),
        low: None,
        high: None,
        unit: Some("<i>".to_owned()),
        why: "does not hold: <script>w (because <script>b); what holds: <script>h".to_owned(),
    };
    let verdicts = vec![row(Place::Simulated, Status::Fail), row(Place::Live, Status::Reported)];
    made.outcomes.push(Outcome { verdicts, ..Outcome::default() });
    let page = made.page();
    for tag in ["<script", "<img", "<i>", "<b>", "onerror=\""] {
        assert!(!page.contains(tag), "{tag} came through");
    }
    assert!(page.contains("&lt;script&gt;w"));
}
