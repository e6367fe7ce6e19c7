//! What README.md says and no peer has: rows of group `service`, under the names of the comparison.

use super::subject;
use crate::BenchError;
use crate::placement::Class;
use crate::rows::Row;
use crate::run::Run;
use crate::service::{idle, overlap, start};

pub(super) const SECTION: &str = "own";

/// Beginnings of rows of the group, and their names here.
pub(super) const NAMES: [(&str, &str); 5] = [
    ("overlap with computing, 64 KiB, worker awake", "computing hidden behind a copy of 64 KiB"),
    ("overlap with computing, 4 MiB, worker awake", "computing hidden behind a copy of 4 MiB"),
    (
        "NOP round trip, both awake, against getpid",
        "an empty transfer, submitted and waited for, against the C function `getpid`",
    ),
    ("idle service, times any of its", "an idle service: times that any thread was scheduled in 30 s"),
    ("idle service, resident", "an idle service: resident memory"),
];

pub(super) fn measure(run: &Run, class: Class) -> Result<Vec<Row>, BenchError> {
    let mut all = overlap::measure(run, class)?;
    all.extend(start::measure(run, class)?);
    all.extend(idle::measure(run, class)?);
    Ok(all.into_iter().filter_map(|row| named(row, class)).collect())
}

fn named(row: Row, class: Class) -> Option<Row> {
    let (_, name) = NAMES.iter().find(|(beginning, _)| row.name().starts_with(beginning))?;
    Some(row.compared_as(&subject(SECTION, *name, "", class)))
}
