//! The report: a row for each claim and place, as a table, as JSON and as a summary.
//!
//! ```text
//! Claims × places ──look up──► the experiments' verdict, or a not-run row ──► Report ──► Display, to_json, Page
//! remaining verdicts ──► refused: no claim asks for them
//! ```
//!
//! Rows are in the order of the claims, not of the experiments. [`Page`] renders them with everything else.

mod counterexamples;
mod downloads;
mod emulated;
mod further;
mod html;
mod machine;
mod page;
mod paper_tables;
mod pictures;
mod verdicts;
mod words;

use std::collections::BTreeMap;
use std::fmt;

pub use downloads::command;
pub use emulated::Emulated;
pub use machine::Machine;
pub use page::Page;

use crate::bands::{Bands, is_banded};
use crate::claims::{Claims, Kind, Place};
use crate::experiments::Prepared;
use crate::verdict::{Basis, End, Figures, Status, Verdict};

/// Why verdicts do not match the claims.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// Two experiments decide one claim in one place.
    #[error("claim `{id}` has two verdicts where it is decided {}", .place.word())]
    DecidedTwice { id: String, place: Place },
    /// A verdict on a claim that does not exist or is not decided in this place.
    #[error("there is no claim `{id}` that is decided {}", .place.word())]
    NotClaimed { id: String, place: Place },
}

/// All rows, in the order of the claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    rows: Vec<Verdict>,
}

impl Report {
    /// Gives each claim and place its row.
    ///
    /// # Errors
    /// A verdict that no claim asks for, or a second one for the same claim and place.
    pub fn assemble(claims: &Claims, verdicts: Vec<Verdict>) -> Result<Self, ReportError> {
        let mut decided = BTreeMap::new();
        for verdict in verdicts {
            let id = verdict.id.clone();
            let place = verdict.place;
            if decided.insert((id.clone(), place), verdict).is_some() {
                return Err(ReportError::DecidedTwice { id, place });
            }
        }
        let mut rows = Vec::new();
        for claim in claims.list() {
            for &place in &claim.places {
                let verdict = decided.remove(&(claim.id.clone(), place));
                rows.push(verdict.unwrap_or_else(|| Verdict::not_run(claim, place)));
            }
        }
        match decided.into_keys().next() {
            Some((id, place)) => Err(ReportError::NotClaimed { id, place }),
            None => Ok(Self { rows }),
        }
    }

    /// Gives the rows their bands. A row whose verdict is not the same on every machine becomes undecided.
    #[must_use]
    pub fn over(mut self, bands: &Bands) -> Self {
        for row in self.rows.iter_mut().filter(|row| is_banded(row)) {
            band(row, bands);
        }
        self
    }

    /// The rows, in the order of the claims.
    pub fn rows(&self) -> &[Verdict] {
        &self.rows
    }

    /// How many rows have the status.
    pub fn count(&self, status: Status) -> usize {
        self.rows.iter().filter(|row| row.status == status).count()
    }

    /// Of these claims, the number claims: predicted ones, those with a simulated row, all.
    pub fn numbers(&self, claims: &Claims) -> [usize; 3] {
        let ids: Vec<&str> = claims
            .list()
            .iter()
            .filter(|claim| claim.kind == Kind::Number)
            .map(|claim| claim.id.as_str())
            .collect();
        let simulated =
            self.rows.iter().filter(|row| row.place == Place::Simulated && ids.contains(&row.id.as_str()));
        let predicted = simulated.clone().filter(|row| row.basis == Some(Basis::Predicted));
        [predicted.count(), simulated.count(), ids.len()]
    }

    /// The rows as a JSON array, one row on each line.
    ///
    /// # Errors
    /// None in practice: rows hold strings, numbers and maps with string keys only.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let rows: Vec<String> = self.rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        Ok(format!("[\n{}\n]\n", rows.join(",\n")))
    }

    /// The number of rows of each status, in one line.
    pub fn summary(&self) -> String {
        let words = Status::ALL.map(|status| format!("{} {}", self.count(status), status.word()));
        words.join(", ")
    }

    /// How many predictions hold, of how many, and on how many assumed ranges that rests, in one line.
    pub fn predictions(&self, papers: &[Prepared]) -> String {
        let rows = || self.rows.iter().filter(|row| row.basis == Some(Basis::Predicted));
        let count = |status| rows().filter(|row| row.status == status).count();
        let all = rows().count();
        let [fail, undecided] = [Status::Fail, Status::Undecided].map(count);
        let bounded = || {
            let own = papers.iter().filter(|paper| !paper.is_study());
            own.flat_map(|paper| paper.parameters.list()).filter(|parameter| parameter.varies())
        };
        let bare = rows().filter(|row| row.low.is_none()).count();
        let bare = if bare > 0 { format!(", {bare} have no error bars yet") } else { String::new() };
        let assumed = bounded().filter(|parameter| parameter.is_assumed()).count();
        format!(
            "{} of {all} predictions hold, {fail} fail, {undecided} are undecided{bare}; {assumed} of the {} ranges of the models' \
             parameters are assumed.",
            count(Status::Pass),
            bounded().count()
        )
    }
}

/// Gives one row its band.
fn band(row: &mut Verdict, bands: &Bands) {
    let Some(votes) = bands.votes(&row.id).filter(|votes| votes.machines > 0) else { return };
    // The band of the sweep is widened to the row's own figure, which may come from more points.
    let end = |name: &str, value: f64, of: fn(f64, f64) -> f64, low: bool| {
        let found = bands.of(&row.id).find(|band| band.figure == name);
        found.map_or(value, |band| of(value, if low { band.low } else { band.high }))
    };
    let ends = |of: fn(f64, f64) -> f64, low: bool| match &row.figures {
        Figures::One(value) => value.map(|value| End::One(end("", value, of, low))),
        Figures::Named(named) => {
            let each = named.iter().map(|(name, value)| (name.clone(), end(name, *value, of, low)));
            Some(End::Named(each.collect()))
        }
    };
    let [low, high] = [ends(f64::min, true), ends(f64::max, false)];
    (row.low, row.high) = (low, high);
    let holds =
        format!("holds on {} of {} machines within the parameters' ranges", votes.holds, votes.machines);
    let is_same = match row.status {
        Status::Pass => votes.holds == votes.machines,
        _ => votes.holds == 0,
    };
    let why = std::mem::take(&mut row.why);
    if is_same {
        row.why = why;
    } else {
        row.why = format!("{holds}; with the parameters' own values: {why}");
        row.status = Status::Undecided;
    }
}

impl fmt::Display for Report {
    /// Writes a table with aligned columns. A long reason goes on below its row.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<[String; 4]> = self.rows.iter().map(cells).collect();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let id = width(0);
        let place = width(1);
        let status = width(2);
        let figures = width(3);
        for (row, cells) in self.rows.iter().zip(&cells) {
            let [a, b, c, d] = cells;
            let mut line = format!("{a:id$}  {b:place$}  {c:status$}  {d:figures$} ");
            for word in row.why.split(' ') {
                if line.chars().count() + 1 + word.chars().count() > COLUMNS {
                    writeln!(out, "{}", line.trim_end())?;
                    line = "   ".to_owned();
                }
                line.push(' ');
                line.push_str(word);
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Columns of a line of the table.
const COLUMNS: usize = 100;

fn cells(row: &Verdict) -> [String; 4] {
    [row.id.clone(), row.place.word().to_owned(), row.status.word().to_owned(), words::found(row)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Figures;

    const TWO: &str = "[[claim]]\nid = 'a'\npaper = 'p'\nsection = '1'\nkind = 'number'\nexpect = 2\nunit = 'us'\n\
                       where = ['simulated', 'live']\nsays = 's'\n\
                       [[claim]]\nid = 'b'\npaper = 'p'\nsection = '2'\nkind = 'order'\nwhere = ['simulated']\nsays = 's'\n";

    fn verdict(id: &str, place: Place) -> Verdict {
        Verdict {
            id: id.to_owned(),
            place,
            status: Status::Pass,
            basis: Some(Basis::Predicted),
            figures: Figures::One(Some(2.1)),
            low: None,
            high: None,
            unit: Some("us".to_owned()),
            why: "within 10 %".to_owned(),
        }
    }

    fn assemble(verdicts: Vec<Verdict>) -> Result<Report, ReportError> {
        Report::assemble(&Claims::parse(TWO).expect("well formed"), verdicts)
    }

    #[test]
    fn gives_every_claim_a_row_for_each_place() {
        let report = assemble(vec![]).expect("fits");
        let rows: Vec<(&str, Place)> = report.rows().iter().map(|row| (row.id.as_str(), row.place)).collect();
        assert_eq!(rows, [("a", Place::Simulated), ("a", Place::Live), ("b", Place::Simulated)]);
        assert_eq!(report.summary(), "0 pass, 0 fail, 0 undecided, 0 reported, 3 not-run");
    }

    #[test]
    fn built_in_claims_get_a_row_for_each_place() {
        let claims = Claims::built_in().expect("checked");
        let places: usize = claims.list().iter().map(|claim| claim.places.len()).sum();
        let report = Report::assemble(&claims, vec![]).expect("fits");
        assert_eq!((report.rows().len(), report.count(Status::NotRun)), (places, places));
    }

    #[test]
    fn verdicts_are_in_the_order_of_claims() {
        let report = assemble(vec![verdict("b", Place::Simulated), verdict("a", Place::Live)]).expect("fits");
        let statuses: Vec<Status> = report.rows().iter().map(|row| row.status).collect();
        assert_eq!(statuses, [Status::NotRun, Status::Pass, Status::Pass]);
        assert!(report.to_string().contains("a  live       pass     2.1 us  within 10 %\n"), "{report}");
    }

    #[test]
    fn long_reasons_are_wrapped() {
        let why = "a reason of many words ".repeat(20);
        let long = Verdict { why: why.trim().to_owned(), ..verdict("b", Place::Simulated) };
        let text = assemble(vec![long]).expect("fits").to_string();
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        let words = |text: &str| text.split_whitespace().filter(|word| *word == "reason").count();
        assert_eq!(words(&text), 20, "no word is lost");
    }

    #[test]
    fn counts_predicted_number_claims() {
        let claims = Claims::parse(TWO).expect("well formed");
        let count = |verdicts| assemble(verdicts).expect("fits").numbers(&claims);
        assert_eq!(count(vec![]), [0, 1, 1]);
        assert_eq!(count(vec![verdict("a", Place::Simulated), verdict("b", Place::Simulated)]), [1, 1, 1]);
        let measured = verdict("a", Place::Live);
        let calibrated = Verdict { basis: Some(Basis::Calibrated), ..verdict("a", Place::Simulated) };
        assert_eq!(count(vec![measured, calibrated]), [0, 1, 1]);
    }

    #[test]
    fn refuses_a_verdict_without_a_claim() {
        let unknown = assemble(vec![verdict("c", Place::Live)]);
        assert_eq!(unknown, Err(ReportError::NotClaimed { id: "c".to_owned(), place: Place::Live }));
        let elsewhere = assemble(vec![verdict("b", Place::Live)]);
        assert_eq!(elsewhere, Err(ReportError::NotClaimed { id: "b".to_owned(), place: Place::Live }));
    }

    #[test]
    fn refuses_a_second_verdict_for_a_place() {
        let twice = assemble(vec![verdict("a", Place::Live), verdict("a", Place::Live)]);
        assert_eq!(twice, Err(ReportError::DecidedTwice { id: "a".to_owned(), place: Place::Live }));
    }

    #[test]
    fn writes_a_json_array_with_every_row() {
        let json = assemble(vec![]).expect("fits").to_json().expect("writes");
        let read: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(read.as_array().map(Vec::len), Some(3));
        assert_eq!(read[0]["unit"], "us");
        assert_eq!(read[2]["where"], "simulated");
    }

    #[test]
    fn a_row_that_turns_within_the_ranges_is_undecided() {
        use crate::bands::{Band, Votes};
        let bands = |holds, low, high| Bands {
            votes: vec![Votes { claim: "b".to_owned(), base: Status::Pass, holds, machines: 4 }],
            bands: vec![Band {
                claim: "b".to_owned(),
                figure: String::new(),
                base: 2.1,
                low,
                high,
                follows: Vec::new(),
            }],
            ..Bands::default()
        };
        let row = |status, bands: &Bands| {
            let row = Verdict { status, ..verdict("b", Place::Simulated) };
            assemble(vec![row]).expect("fits").over(bands).rows()[2].clone()
        };
        let pass = Status::Pass;
        let fail = Status::Fail;
        for (status, holds, found) in [
            (pass, 4, pass),
            (pass, 3, Status::Undecided),
            (pass, 0, Status::Undecided),
            (fail, 0, fail),
            (fail, 1, Status::Undecided),
        ] {
            let row = row(status, &bands(holds, 1.0, 3.0));
            assert_eq!((row.status, row.low, row.high), (found, Some(End::One(1.0)), Some(End::One(3.0))));
            assert_eq!(row.why.starts_with("holds on"), found == Status::Undecided, "{}", row.why);
        }
        // Points that the reduced sweep leaves out count.
        assert_eq!(row(pass, &bands(4, 2.5, 3.0)).low, Some(End::One(2.1)));
        let none = row(pass, &Bands::default());
        assert_eq!((none.status, none.low), (pass, None));
    }
}
