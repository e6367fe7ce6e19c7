//! Compares the verdict on every claim with a stored list, so that a verdict cannot change unnoticed.
//!
//! ```text
//! every plan, every judge ──► rows ──► id where status basis ──► compared with verdicts.txt
//! ```
//!
//! The sweeps are reduced for speed; all claims are included. Predicted and derived rows have their committed bands, as in the report. A live row may also be "not-run", since the machine may lack
//! what it needs; a stored "- -" leaves the verdict of a live row open.

use memferry_lab::bands::{self, Bands};
use memferry_lab::claims::{Claims, Place};
use memferry_lab::experiments;
use memferry_lab::report::Report;
use memferry_lab::verdict::{Figures, Status, Verdict};

const STORED: &str = include_str!("verdicts.txt");

#[test]
fn verdicts_are_the_stored_ones() {
    let claims = Claims::built_in().expect("checked");
    let papers = experiments::prepare(&claims, &[]).expect("checked");
    let outcomes: Vec<_> =
        papers.into_iter().map(|paper| paper.reduced(|_| true).run(&claims).expect("runs")).collect();
    let verdicts = outcomes.into_iter().flat_map(|outcome| outcome.verdicts).collect();
    let own: Vec<Verdict> = verdicts;
    let report = Report::assemble(&claims, own.clone()).expect("fits").over(&Bands::built_in(&claims));
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
        // The order of figures measured here depends on the machine.
        let is_open = stored(row).is_some_and(|stored| stored.ends_with(" - -"));
        let is_left_out =
            row.place == Place::Live && (row.status == Status::NotRun && stored(row).is_some() || is_open);
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
    is_what_the_bands_begin_with(&own, &claims);
}

/// The committed bands have the base figures of the present program, and cover every claim that they should.
fn is_what_the_bands_begin_with(rows: &[Verdict], claims: &Claims) {
    let table = Bands::built_in(claims);
    let is_of = |id: &str, paper: &str| claims.find(id).is_some_and(|claim| claim.paper == paper);
    // A paper whose machines were not run yet has no bands, and the report says so.
    let has_bands = |id: &str| table.screened.iter().any(|one| is_of(id, &one.paper));
    let own = rows.iter().filter(|row| bands::is_banded(row) && has_bands(&row.id));
    let mut banded: Vec<&str> = own.map(|row| row.id.as_str()).collect();
    let mut about: Vec<&str> = table.votes.iter().map(|votes| votes.claim.as_str()).collect();
    banded.sort_unstable();
    about.sort_unstable();
    let how = "./x lab --sensitivity --out DIR, then copy DIR/bands.csv over research/lab/bands.csv";
    assert_eq!(about, banded, "another claim is predicted or derived: {how}");
    let row = |id: &str| {
        rows.iter().filter(|row| bands::is_banded(row)).find(|row| row.id == id).expect("compared above")
    };
    for band in &table.bands {
        let now = match &row(&band.claim).figures {
            Figures::One(value) => *value,
            Figures::Named(named) => named.get(&band.figure).copied(),
        };
        assert_eq!(now, Some(band.base), "{}, {:?} has changed: {how}", band.claim, band.figure);
        assert!(band.low <= band.base && band.base <= band.high, "{band:?}");
    }
    for votes in &table.votes {
        assert_eq!(row(&votes.claim).status, votes.base, "{} has another verdict: {how}", votes.claim);
    }
}
