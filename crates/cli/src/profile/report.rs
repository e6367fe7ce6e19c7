//! The report: counts summed up by size, operation, alignment, distance and caller.
//!
//! ```text
//! Recording ─► sums of rows with a common property ─► Report ─► text, JSON
//! ```
//!
//! Sums saturate, whatever the recording says. Names are made safe to print.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use memferry_recording::{Alignment, Caller, Distance, ObjectId, Operation, Recording, Row, shortest_of};
use memferry_service::printable::printable;
use serde::Serialize;

use super::estimate::{Basis, Estimate, is_cold};
use super::program::Ended;
use super::symbols::Symbols;

/// Sums over calls with a common property.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Sum {
    pub(super) calls: u64,
    pub(super) bytes: u64,
    /// Time of the timed calls.
    pub(super) seconds: f64,
    /// Calls whose distance was measured.
    pub(super) looked_at: u64,
    /// Of these, calls whose destination was in no cache.
    pub(super) cold: u64,
}

/// The calls with one property.
#[derive(Serialize)]
pub(super) struct Part {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) sum: Sum,
}

/// The calls of one size class.
#[derive(Serialize)]
pub(super) struct Size {
    /// The smallest size of the class.
    pub(super) from_bytes: u64,
    #[serde(flatten)]
    pub(super) sum: Sum,
}

/// The calls from one place in a program.
#[derive(Serialize)]
pub(super) struct From {
    /// The file, if known.
    pub(super) object: Option<String>,
    /// The return address, relative to the file.
    pub(super) address: Option<u64>,
    /// The function and the offset in it, if it has a symbol.
    pub(super) function: Option<String>,
    #[serde(flatten)]
    pub(super) sum: Sum,
}

/// What a program copied.
#[derive(Default, Serialize)]
pub(super) struct Report {
    pub(super) program: Vec<String>,
    pub(super) exit_code: i32,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Programs that were counted, including this one.
    pub(super) programs_seen: u64,
    /// Why nothing was counted.
    pub(super) unseen_because: Option<&'static str>,
    pub(super) all: Sum,
    pub(super) sizes: Vec<Size>,
    pub(super) operations: Vec<Part>,
    pub(super) alignments: Vec<Part>,
    pub(super) distances: Vec<Part>,
    pub(super) callers: Vec<From>,
    pub(super) other_callers: usize,
    pub(super) left_out_calls: u64,
    pub(super) left_out_bytes: u64,
    pub(super) nonsense_rows: usize,
    pub(super) estimate: Option<Estimate>,
    #[serde(skip)]
    rows: Vec<Row>,
    #[serde(skip)]
    ticks_per_second: Option<f64>,
}

impl Report {
    /// Sums up a recording and lists the first `callers` callers.
    pub(super) fn new(recording: &Recording, ticks_per_second: Option<f64>, callers: usize) -> Self {
        let rows = &recording.rows;
        let sums = Sums { rows, seconds_per_tick: ticks_per_second.map_or(0.0, f64::recip) };
        let sizes = sums.by(|row| row.kind.size_class).into_iter();
        let (callers, other_callers) = sums.callers(recording, callers);
        Self {
            programs_seen: recording.processes,
            all: sums.by(|_| ()).remove(&()).unwrap_or_default(),
            sizes: sizes.map(|(class, sum)| Size { from_bytes: shortest_of(class), sum }).collect(),
            operations: sums.parts(|row| row.kind.operation, operation_name),
            alignments: sums.parts(|row| row.kind.alignment, alignment_name),
            distances: sums.parts(|row| row.kind.distance, distance_name),
            callers,
            other_callers,
            left_out_calls: recording.left_out_calls,
            left_out_bytes: recording.left_out_bytes,
            nonsense_rows: recording.nonsense_rows,
            rows: rows.clone(),
            ticks_per_second,
            ..Self::default()
        }
    }

    /// A report of nothing but an estimate.
    #[cfg(test)]
    pub(super) fn with_estimate(estimate: Estimate) -> Self {
        Self { programs_seen: 1, estimate: Some(estimate), ..Self::default() }
    }

    /// Adds the command line and how the program ended.
    pub(super) fn add_program(&mut self, words: &[OsString], ended: &Ended) {
        self.program = words.iter().map(|word| printable(&word.to_string_lossy())).collect();
        self.exit_code = ended.exit_code();
        (self.seconds, self.cpu_seconds) = (ended.elapsed.as_secs_f64(), ended.cpu.as_secs_f64());
    }

    /// Adds the estimated savings. Without a clock there is no estimate.
    pub(super) fn add_estimate(&mut self, basis: Basis) {
        self.estimate = self.ticks_per_second.map(|rate| basis.estimate(&self.rows, rate));
    }

    /// Sets the reason why nothing was counted.
    pub(super) fn set_unseen_reason(&mut self, reason: &'static str) {
        self.unseen_because = Some(reason);
    }
}

struct Sums<'a> {
    rows: &'a [Row],
    seconds_per_tick: f64,
}

impl Sums<'_> {
    fn by<K: Ord>(&self, key: impl Fn(&Row) -> K) -> BTreeMap<K, Sum> {
        let mut sums = BTreeMap::<K, Sum>::new();
        for row in self.rows {
            let sum = sums.entry(key(row)).or_default();
            sum.calls = sum.calls.saturating_add(row.calls);
            sum.bytes = sum.bytes.saturating_add(row.bytes);
            sum.seconds += row.ticks as f64 * self.seconds_per_tick;
            if row.kind.distance != Distance::Unknown {
                sum.looked_at = sum.looked_at.saturating_add(row.calls);
            }
            if is_cold(row.kind.distance) {
                sum.cold = sum.cold.saturating_add(row.calls);
            }
        }
        sums
    }

    fn parts<K: Ord>(&self, key: impl Fn(&Row) -> K, name: fn(K) -> &'static str) -> Vec<Part> {
        self.by(key).into_iter().map(|(key, sum)| Part { name: name(key).to_owned(), sum }).collect()
    }

    /// The first `most` callers by time, bytes and calls, and the number of the others.
    fn callers(&self, recording: &Recording, most: usize) -> (Vec<From>, usize) {
        let mut sums: Vec<_> = self.by(|row| row.kind.caller).into_iter().collect();
        sums.sort_by(|(_, a), (_, b)| {
            b.seconds.total_cmp(&a.seconds).then(b.bytes.cmp(&a.bytes)).then(b.calls.cmp(&a.calls))
        });
        let others = sums.len().saturating_sub(most);
        sums.truncate(most);
        let mut symbols = HashMap::new();
        let from = |(caller, sum)| From::new(recording, &mut symbols, caller, sum);
        (sums.into_iter().map(from).collect(), others)
    }
}

impl From {
    fn new(
        recording: &Recording,
        symbols: &mut HashMap<ObjectId, Option<Symbols>>,
        caller: Option<Caller>,
        sum: Sum,
    ) -> Self {
        let Some(caller) = caller else { return Self { object: None, address: None, function: None, sum } };
        let object = recording.object(caller.object);
        let symbols = symbols.entry(caller.object).or_insert_with(|| {
            let whole = object.filter(|object| object.is_whole)?;
            Symbols::of(&PathBuf::from(OsString::from_vec(whole.name.clone())))
        });
        let function = symbols.as_ref().and_then(|symbols| symbols.name(caller.address));
        Self {
            object: object.map(|object| printable(&String::from_utf8_lossy(&object.name))),
            address: Some(caller.address),
            function: function.map(|name| printable(&name)),
            sum,
        }
    }
}

fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Memcpy => "memcpy",
        Operation::Memmove => "memmove",
        Operation::Mempcpy => "mempcpy",
        Operation::Memset => "memset",
        Operation::Zero => "memset to zero",
    }
}

fn alignment_name(alignment: Alignment) -> &'static str {
    match alignment {
        Alignment::Lines => "64-byte aligned",
        Alignment::Words => "8-byte aligned",
        Alignment::Alike => "equally misaligned",
        Alignment::Apart => "differently misaligned",
    }
}

fn distance_name(distance: Distance) -> &'static str {
    match distance {
        Distance::Unknown => "not measured",
        Distance::Near => "both near",
        Distance::SourceFar => "source far",
        Distance::DestinationFar => "destination far",
        Distance::Far => "both far",
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;
    use std::time::Duration;

    use memferry_recording::Kind;

    use super::*;

    fn row(operation: Operation, distance: Distance, calls: u64, ticks: u64) -> Row {
        let kind = Kind { operation, size_class: 17, alignment: Alignment::Words, distance, caller: None };
        Row { kind, calls, bytes: calls * 65536, ticks }
    }

    fn recording() -> Recording {
        Recording {
            rows: vec![
                row(Operation::Memcpy, Distance::Near, 3, 300),
                row(Operation::Memcpy, Distance::Far, 1, 100),
                row(Operation::Memset, Distance::Unknown, 2, 0),
            ],
            ..Recording::default()
        }
    }

    #[test]
    fn parts_are_sums_of_their_rows() {
        let report = Report::new(&recording(), Some(100.0), 5);
        assert_eq!((report.all.calls, report.all.bytes, report.all.seconds), (6, 6 * 65536, 4.0));
        assert_eq!((report.all.looked_at, report.all.cold), (4, 1));
        let parts: Vec<_> =
            report.operations.iter().map(|part| (part.name.as_str(), part.sum.calls)).collect();
        assert_eq!(parts, [("memcpy", 4), ("memset", 2)]);
        assert_eq!((report.sizes.len(), report.sizes[0].from_bytes), (1, 65536));
        assert_eq!((report.callers.len(), report.other_callers), (1, 0));
        assert_eq!(Report::new(&recording(), None, 0).other_callers, 1);
    }

    #[test]
    fn names_control_no_terminal() {
        let mut report = Report::new(&recording(), None, 0);
        let ended = Ended { status: ExitStatus::default(), elapsed: Duration::ZERO, cpu: Duration::ZERO };
        report.add_program(&["a\u{1b}[2J\u{202e}b\n".into()], &ended);
        assert_eq!(report.program, ["a\\u{1b}[2J\\u{202e}b\\n"]);
    }
}
