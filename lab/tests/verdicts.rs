//! The whole lab against a stored list of what became of each claim: a verdict does not change in passing.
//!
//! ```text
//! every plan, every judge ──► rows ──► id where status basis ──► compared with verdicts.txt
//! ```

use memferry_lab::claims::Claims;
use memferry_lab::experiments;
use memferry_lab::report::Report;

const STORED: &str = include_str!("verdicts.txt");

#[test]
fn verdicts_are_the_stored_ones() {
    let claims = Claims::built_in().expect("checked");
    let papers = experiments::prepare(&claims, &[]).expect("checked");
    let outcomes: Vec<_> = papers.iter().map(|paper| paper.run(&claims, || ()).expect("runs")).collect();
    let verdicts = outcomes.into_iter().flat_map(|outcome| outcome.verdicts).collect();
    let report = Report::assemble(&claims, verdicts).expect("fits");
    let line = |row: &memferry_lab::verdict::Verdict| {
        let basis = row.basis.map_or("-", |basis| basis.word());
        format!("{} {} {} {basis}\n", row.id, row.place.word(), row.status.word())
    };
    let found: String = report.rows().iter().map(line).collect();
    if found != STORED {
        let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/verdicts.txt");
        std::fs::write(path, &found).expect("the target directory can be written");
        let changed: Vec<&str> =
            found.lines().filter(|line| !STORED.lines().any(|old| old == *line)).collect();
        panic!(
            "verdicts changed; if that is meant, copy {path} over lab/tests/verdicts.txt\n{}",
            changed.join("\n")
        );
    }
}
