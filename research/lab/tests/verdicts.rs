//! Compares the verdict on every claim with a stored list, so that a verdict cannot change unnoticed.
//!
//! ```text
//! every plan, every judge ──► rows ──► id where status basis ──► compared with verdicts.txt
//! ```
//!
//! The sweeps are reduced for speed; all claims are included. A live row may also be "not-run", since the machine may lack
//! what it needs.

use memferry_lab::claims::{Claims, Place};
use memferry_lab::experiments;
use memferry_lab::report::Report;
use memferry_lab::sensitivity::Sensitivity;
use memferry_lab::verdict::{Basis, Figures, Status, Verdict};

const STORED: &str = include_str!("verdicts.txt");

#[test]
fn verdicts_are_the_stored_ones() {
    let claims = Claims::built_in().expect("checked");
    let papers = experiments::prepare(&claims, &[]).expect("checked");
    let outcomes: Vec<_> =
        papers.into_iter().map(|paper| paper.reduced(|_| true).run(&claims).expect("runs")).collect();
    let verdicts = outcomes.into_iter().flat_map(|outcome| outcome.verdicts).collect();
    let report = Report::assemble(&claims, verdicts).expect("fits");
    let [predicted, simulated, all] = report.numbers(&claims);
    assert!(2 * predicted >= simulated, "{predicted} of {simulated} number claims are predicted, of {all}");
    let line = |row: &Verdict| {
        let basis = row.basis.map_or("-", |basis| basis.word());
        format!("{} {} {} {basis}\n", row.id, row.place.word(), row.status.word())
    };
    let found: String = report.rows().iter().map(line).collect();
    let stored = |row: &Verdict| {
        let begins = format!("{} {} ", row.id, row.place.word());
        STORED.lines().find(|stored| stored.starts_with(&begins))
    };
    let mut agrees = found.lines().count() == STORED.lines().count();
    for row in report.rows() {
        let is_same = stored(row) == Some(line(row).trim_end());
        let is_left_out = row.place == Place::Live && row.status == Status::NotRun && stored(row).is_some();
        if is_left_out && !is_same {
            println!("{} was not run here: {}", row.id, row.why);
        }
        agrees &= is_same || is_left_out;
    }
    if !agrees {
        let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/verdicts.txt");
        std::fs::write(path, &found).expect("the target directory can be written");
        let changed: Vec<&str> =
            found.lines().filter(|line| !STORED.lines().any(|old| old == *line)).collect();
        panic!(
            "verdicts changed; if that is meant, copy {path} over research/lab/tests/verdicts.txt\n{}",
            changed.join("\n")
        );
    }
    is_what_the_sensitivity_table_begins_with(report.rows(), &claims);
}

/// The committed sensitivity table has the base figures of the present program, and covers every predicted claim.
fn is_what_the_sensitivity_table_begins_with(rows: &[Verdict], claims: &Claims) {
    let table = Sensitivity::built_in(claims);
    let is_predicted = |row: &&Verdict| row.place == Place::Simulated && row.basis == Some(Basis::Predicted);
    let mut predicted: Vec<&str> = rows.iter().filter(is_predicted).map(|row| row.id.as_str()).collect();
    let mut about: Vec<&str> = table.claims.iter().map(String::as_str).collect();
    predicted.sort_unstable();
    about.sort_unstable();
    let how =
        "./x lab --sensitivity --out DIR, then copy DIR/sensitivity.csv over research/lab/sensitivity.csv";
    assert_eq!(about, predicted, "another claim is predicted: {how}");
    let row = |id: &str| rows.iter().filter(is_predicted).find(|row| row.id == id).expect("compared above");
    for change in &table.changes {
        let now = match &row(&change.claim).figures {
            Figures::One(value) => *value,
            Figures::Named(named) => named.get(&change.figure).copied(),
        };
        assert_eq!(now, Some(change.base), "{}, {:?} has changed: {how}", change.claim, change.figure);
    }
    for turn in &table.turns {
        assert_eq!(row(&turn.claim).status, turn.base, "{} has another verdict: {how}", turn.claim);
    }
}
