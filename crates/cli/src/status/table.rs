//! Formats a status: a table, or JSON with rates.
//!
//! ```text
//! Status, the previous Status ─► Snapshot ─► lines of a table
//!                                         └► a JSON object
//! ```
//!
//! Rates are differences divided by the time between two snapshots. A session that is new has no rates. On a narrow terminal the
//! least important columns are left out, and a line says how many.

use std::time::Duration;

use memferry::{SessionId, Status};
use serde_json::Value;

use crate::measure::Bytes;
use crate::output;

/// A status to format.
pub(super) struct Snapshot<'a> {
    /// The session of this command.
    pub(super) own: SessionId,
    pub(super) status: &'a Status,
    /// The previous status, and its age.
    pub(super) before: Option<(&'a Status, Duration)>,
}

/// Requests and bytes per second.
#[derive(Clone, Copy)]
struct Rates {
    requests: f64,
    bytes: f64,
}

impl Rates {
    fn cells(rates: Option<Self>) -> [String; 2] {
        let formatted =
            |rates: Self| [format!("{:.0}", rates.requests), Bytes(rates.bytes as u64).to_string()];
        rates.map_or_else(|| ["-".to_owned(), "-".to_owned()], formatted)
    }
}

/// A line of the table.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) is_heading: bool,
}

impl Line {
    fn plain(text: String) -> Self {
        Self { text, is_heading: false }
    }

    pub(super) fn shown(&self, colors: bool) -> String {
        output::heading(&self.text, colors && self.is_heading)
    }
}

/// Columns in the order in which a narrow terminal loses them.
const LEAST_IMPORTANT: [&str; 10] = [
    "parks",
    "frames",
    "process",
    "queues",
    "registered",
    "outstanding",
    "waiting",
    "failures",
    "req/s",
    "requests",
];

impl Snapshot<'_> {
    /// The lines, at most `width` columns wide where leaving out columns is enough.
    pub(super) fn table(&self, width: usize) -> Vec<Line> {
        let status = self.status;
        let process = status.process;
        let uptime = status.uptime_seconds;
        let policy = &status.policy;
        let first = format!("memferry, process {process}, up {uptime} s, policy {policy}");
        let mut lines = vec![Line { text: first, is_heading: true }];
        let mut left_out = 0;
        let mut add = |lines: &mut Vec<Line>, rows, own: Option<usize>| {
            let (rows, fewer) = fitted(rows, width.saturating_sub(own.map_or(0, |_| OWN.len())));
            left_out += fewer;
            lines.extend(aligned(&rows, own));
        };
        add(&mut lines, self.workers(), None);
        add(&mut lines, self.classes(), None);
        if status.module.is_some() || !status.engines.is_empty() {
            add(&mut lines, self.engines(), None);
        }
        if !status.engines.is_empty() {
            add(&mut lines, self.processes(), None);
        }
        if status.slices > 0 {
            let strayed = Bytes(status.strayed_bytes);
            let slices = status.slices;
            let text = format!("  {slices} slices, {strayed} of suspended requests moved in them");
            lines.push(Line::plain(text));
        }
        let memferry::ZeroedStatus { buffers, bytes, failed } = status.zeroed;
        if buffers + failed > 0 {
            let bytes = Bytes(bytes);
            let text = format!("  {buffers} free buffers zeroed, {bytes}; {failed} by the CPU");
            lines.push(Line::plain(text));
        }
        let own = status.sessions.iter().position(|session| session.session == self.own);
        add(&mut lines, self.sessions(), own);
        let unnamed = status.open_sessions.saturating_sub(status.sessions.len() as u64);
        if unnamed > 0 {
            lines.push(Line::plain(format!("and {unnamed} more")));
        }
        if left_out > 0 {
            lines.push(Line::plain(format!("{left_out} columns do not fit; --json has all")));
        }
        lines
    }

    fn workers(&self) -> Vec<Vec<String>> {
        let mut heading =
            cells(["worker", "queues", "requests", "failures", "bytes", "parks", "waiting", "busy"]);
        heading.extend(self.before.map(|_| cells(["req/s", "bytes/s"])).into_iter().flatten());
        let mut rows = vec![heading];
        for (number, worker) in self.status.workers.iter().enumerate() {
            let mut row = cells([number as u64, worker.queues, worker.requests, worker.failures]);
            row.push(Bytes(worker.bytes).to_string());
            row.extend(cells([worker.parks, worker.waiting]));
            row.push(format!("{} of {}", worker.busy, worker.channels));
            if self.before.is_some() {
                row.extend(Rates::cells(self.worker_rates(number)));
            }
            rows.push(row);
        }
        rows
    }

    /// Bytes moved for each class.
    fn classes(&self) -> Vec<Vec<String>> {
        let mut heading = cells(["class", "moved"]);
        heading.extend(self.before.map(|_| cells(["bytes/s"])).into_iter().flatten());
        let mut rows = vec![heading];
        let moved = |status: &Status, class: usize| {
            status.workers.iter().map(|worker| worker.class_bytes[class]).sum()
        };
        for (class, name) in ["low", "normal", "high"].into_iter().enumerate() {
            let bytes: u64 = moved(self.status, class);
            let mut row = vec![name.to_owned(), Bytes(bytes).to_string()];
            if self.before.is_some() {
                let rates = self.rates((0, bytes), |before| Some((0, moved(before, class))));
                row.extend(Rates::cells(rates).into_iter().skip(1));
            }
            rows.push(row);
        }
        rows
    }

    /// The shares of the Linux module and of engine processes in the work of all workers.
    fn engines(&self) -> Vec<Vec<String>> {
        let mut heading = cells(["engine", "transfers", "moved", "by DMA", "redone"]);
        heading.extend(self.before.map(|_| cells(["bytes/s"])).into_iter().flatten());
        let workers = |status: &Status| {
            let requests: u64 = status.workers.iter().map(|worker| worker.requests).sum();
            let bytes: u64 = status.workers.iter().map(|worker| worker.bytes).sum();
            let module = status.module.unwrap_or_default();
            let processes = &status.engines;
            let transfers = module.transfers + processes.iter().map(|engine| engine.transfers).sum::<u64>();
            let others = module.bytes + processes.iter().map(|engine| engine.bytes).sum::<u64>();
            (requests.saturating_sub(transfers), bytes.saturating_sub(others))
        };
        let by_module = |status: &Status| {
            let module = status.module.unwrap_or_default();
            (module.transfers, module.bytes)
        };
        let row = |name: &str, of: &dyn Fn(&Status) -> (u64, u64), rest: [String; 2]| {
            let (transfers, bytes) = of(self.status);
            let mut row = vec![name.to_owned(), transfers.to_string(), Bytes(bytes).to_string()];
            row.extend(rest);
            if self.before.is_some() {
                let rates = self.rates((transfers, bytes), |before| Some(of(before)));
                row.extend(Rates::cells(rates).into_iter().skip(1));
            }
            row
        };
        let none = ["-", "-"].map(str::to_owned);
        let mut rows = vec![heading, row("CPUs", &workers, none)];
        if let Some(module) = &self.status.module {
            let by_dma = [Bytes(module.dma_bytes).to_string(), module.redone.to_string()];
            rows.push(row("Linux module", &by_module, by_dma));
        }
        for (index, engine) in self.status.engines.iter().enumerate() {
            let work = |status: &Status| {
                let same = status.engines.get(index).filter(|other| other.name == engine.name);
                same.map_or((0, 0), |engine| (engine.transfers, engine.bytes))
            };
            rows.push(row(&engine.name, &work, ["-".to_owned(), engine.redone.to_string()]));
        }
        rows
    }

    /// The engine processes: who is connected.
    fn processes(&self) -> Vec<Vec<String>> {
        let mut rows = vec![cells(["engine process", "user", "process", "frames", "own memory", "state"])];
        rows.extend(self.status.engines.iter().map(|engine| {
            let process = engine.process.map_or_else(|| "-".to_owned(), |process| process.to_string());
            let state = if engine.is_connected { "connected" } else { "not connected" };
            let mut row = vec![engine.name.clone(), engine.user.to_string(), process];
            let memory = match engine.memory_bytes {
                0 => "-".to_owned(),
                all => format!("{} of {}", Bytes(engine.memory_used), Bytes(all)),
            };
            row.extend([engine.frames.to_string(), memory, state.to_owned()]);
            row
        }));
        rows
    }

    fn sessions(&self) -> Vec<Vec<String>> {
        let names = [
            "session",
            "user",
            "process",
            "queues",
            "frames",
            "registered",
            "requests",
            "failures",
            "moved",
            "outstanding",
            "waiting",
        ];
        let mut heading = cells(names);
        heading.extend(self.before.map(|_| cells(["req/s", "bytes/s"])).into_iter().flatten());
        let mut rows = vec![heading];
        for (index, session) in self.status.sessions.iter().enumerate() {
            let mut row = cells([
                session.session.0,
                session.user.into(),
                session.process.into(),
                session.queues.into(),
                session.frames.into(),
            ]);
            row.push(Bytes(session.bytes).to_string());
            row.extend(cells([session.requests, session.failures]));
            row.push(Bytes(session.bytes_moved).to_string());
            row.extend(cells([session.outstanding, session.waiting]));
            if self.before.is_some() {
                row.extend(Rates::cells(self.session_rates(index)));
            }
            rows.push(row);
        }
        rows
    }

    fn rates(&self, now: (u64, u64), then: impl Fn(&Status) -> Option<(u64, u64)>) -> Option<Rates> {
        let (before, time) = self.before?;
        let (requests, bytes) = then(before)?;
        let seconds = time.as_secs_f64().max(1e-9);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Some(Rates { requests: rate(now.0, requests), bytes: rate(now.1, bytes) })
    }

    fn worker_rates(&self, number: usize) -> Option<Rates> {
        let worker = self.status.workers.get(number)?;
        let then = |before: &Status| before.workers.get(number).map(|worker| (worker.requests, worker.bytes));
        self.rates((worker.requests, worker.bytes), then)
    }

    fn session_rates(&self, index: usize) -> Option<Rates> {
        let session = self.status.sessions.get(index)?;
        self.rates((session.requests, session.bytes_moved), |before| {
            let same = before.sessions.iter().find(|other| other.session == session.session)?;
            Some((same.requests, same.bytes_moved))
        })
    }

    /// The status as JSON. After a previous snapshot, each worker and session has its rates.
    pub(super) fn json(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self.status)?;
        let mut add = |list: &str, index: usize, rates: Option<Rates>| {
            let Some(rates) = rates else { return };
            value[list][index]["requests_per_second"] = rates.requests.into();
            value[list][index]["bytes_per_second"] = rates.bytes.into();
        };
        (0..self.status.workers.len()).for_each(|worker| add("workers", worker, self.worker_rates(worker)));
        (0..self.status.sessions.len()).for_each(|index| add("sessions", index, self.session_rates(index)));
        Ok(value)
    }
}

fn cells<T: ToString, const N: usize>(values: [T; N]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// Marks the session of this command.
const OWN: &str = " (this command)";

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    let widest = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    (0..columns).map(widest).collect()
}

/// The rows without their least important columns, until they fit; and how many are left out.
fn fitted(mut rows: Vec<Vec<String>>, width: usize) -> (Vec<Vec<String>>, usize) {
    let mut left_out = 0;
    for name in LEAST_IMPORTANT {
        if widths(&rows).iter().map(|column| column + 2).sum::<usize>() <= width {
            break;
        }
        if let Some(column) = rows.first().and_then(|row| row.iter().position(|cell| cell == name)) {
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
            left_out += 1;
        }
    }
    (rows, left_out)
}

/// Aligns the rows into columns; `own` is the index of this command's row, not counting the heading.
fn aligned(rows: &[Vec<String>], own: Option<usize>) -> Vec<Line> {
    let widths = widths(rows);
    let line = |(number, row): (usize, &Vec<String>)| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let mark = if own.is_some_and(|own| own + 1 == number) { OWN } else { "" };
        Line { text: format!("  {}{mark}", cells.join("  ")), is_heading: number == 0 }
    };
    rows.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use memferry::{ExternalStatus, ModuleStatus};

    use super::*;

    fn status(requests: u64) -> Status {
        let buckets = [0; memferry::LATENCY_BUCKETS];
        let text = format!(
            r#"{{"process": 9, "uptime_seconds": 1, "policy": "shared", "slices": 2,
            "strayed_bytes": 0, "open_sessions": 3,
            "sessions": [{{"session": 4, "user": 1, "process": 2, "queues": 1, "frames": 0, "bytes": 0,
            "requests": {requests}, "outstanding": 1, "waiting": 0, "failures": 0, "bytes_moved": 0}}],
            "workers": [{{"queues": 1, "requests": {requests}, "failures": 0, "bytes": 0, "parks": 0, "waiting": 0,
            "busy": 1, "channels": 32, "class_bytes": [0, {requests}, 0]}}],
            "zeroed": {{"buffers": 0, "bytes": 0, "failed": 0}},
            "latency": {{"buckets": {buckets:?}, "nanoseconds": 0}},
            "refused": {{"commands": [0, 0, 0, 0, 0, 0], "turned_away": 0, "violations": 0}},
            "engines": []}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn lines(snapshot: &Snapshot<'_>, width: usize) -> Vec<String> {
        snapshot.table(width).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_narrow_terminal_shows_fewer_columns() {
        let status = status(1_000_000_000);
        let snapshot = Snapshot { own: SessionId(4), status: &status, before: None };
        let all = lines(&snapshot, usize::MAX);
        assert!(
            all.iter().any(|line| line.contains("registered")) && !all.last().unwrap().contains("columns")
        );
        for width in [120, 100, 80] {
            let table = lines(&snapshot, width);
            assert!(table.iter().all(|line| line.len() <= width), "{table:#?}");
            assert!(table.iter().any(|line| line.ends_with("(this command)")), "{table:#?}");
        }
        assert!(lines(&snapshot, 80).last().unwrap().ends_with("columns do not fit; --json has all"));
    }

    #[test]
    fn only_headings_are_bold() {
        let status = status(1);
        let table = Snapshot { own: SessionId(4), status: &status, before: None }.table(usize::MAX);
        assert!(table[1].shown(true).starts_with("\x1b[1m") && !table[2].shown(true).contains('\x1b'));
        assert!(!table[1].shown(false).contains('\x1b'));
    }

    #[test]
    fn the_module_has_a_row_if_it_is_used() {
        let mut status = status(40);
        let snapshot = |status: &Status| {
            lines(&Snapshot { own: SessionId(4), status, before: None }, usize::MAX).join("\n")
        };
        assert!(!snapshot(&status).contains("Linux module"));
        status.workers[0].bytes = 1000;
        status.module = Some(ModuleStatus { transfers: 3, bytes: 900, dma_bytes: 896, redone: 1 });
        let table = snapshot(&status);
        assert!(table.contains("CPUs         37  100 bytes          -       -"), "{table}");
        assert!(table.contains("Linux module          3  900 bytes  896 bytes       1"), "{table}");
    }

    #[test]
    fn engine_processes_have_rows() {
        let mut status = status(40);
        status.workers[0].bytes = 1000;
        let engine = ExternalStatus {
            name: "gpu".to_owned(),
            user: 998,
            is_connected: true,
            process: Some(77),
            frames: 5,
            memory_bytes: 2000,
            memory_used: 500,
            transfers: 3,
            bytes: 900,
            redone: 2,
        };
        status.engines = vec![engine, ExternalStatus { name: "dsa".to_owned(), ..ExternalStatus::default() }];
        let table =
            lines(&Snapshot { own: SessionId(4), status: &status, before: None }, usize::MAX).join("\n");
        for part in [
            "CPUs         37  100 bytes       -       -",
            "gpu          3  900 bytes       -       2",
            "gpu   998       77       5  500 bytes of 2.0 KiB      connected",
            "dsa     0        -       0                     -  not connected",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }

    #[test]
    fn only_later_snapshots_have_rates() {
        let first = status(10);
        let second = status(40);
        let own = SessionId(4);
        let snapshot = Snapshot { own, status: &first, before: None };
        let table = lines(&snapshot, usize::MAX);
        assert!(!table.join("\n").contains("req/s"));
        assert!(table.last().unwrap().contains("and 2 more"), "{table:?}");
        let snapshot = Snapshot { own, status: &second, before: Some((&first, Duration::from_secs(2))) };
        let table = lines(&snapshot, usize::MAX);
        assert!(table[1].contains("req/s") && table[2].contains(" 15 "), "{table:?}");
        assert!(table[5].contains("normal  40 bytes") && table[5].ends_with("15 bytes"), "{table:?}");
        assert!(table[7].contains("2 slices, 0 bytes"), "{table:?}");
        assert!(table[9].ends_with("15  0 bytes (this command)"), "{table:?}");
        assert_eq!(snapshot.json().unwrap()["sessions"][0]["requests_per_second"], 15.0);
        let zeroed = memferry::ZeroedStatus { buffers: 2, bytes: 100, failed: 1 };
        let zeroing = Status { zeroed, ..first.clone() };
        let table = lines(&Snapshot { own, status: &zeroing, before: None }, usize::MAX);
        assert_eq!(table[8], "  2 free buffers zeroed, 100 bytes; 1 by the CPU", "{table:?}");
        // A new session has no rate.
        let stranger = Status { sessions: Vec::new(), ..first.clone() };
        let snapshot = Snapshot { own, status: &second, before: Some((&stranger, Duration::from_secs(2))) };
        assert!(snapshot.json().unwrap()["sessions"][0].get("requests_per_second").is_none());
    }
}
