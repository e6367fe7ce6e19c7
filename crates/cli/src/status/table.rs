//! Formats a status: a table, or JSON with rates.
//!
//! ```text
//! Status, the previous Status ─► Snapshot ─► lines of a table
//!                                         └► a JSON object
//! ```
//!
//! Rates are differences divided by the time between two snapshots. A session that is new has no rates.

use std::time::Duration;

use memferry::{ModuleStatus, SessionId, Status};
use serde_json::Value;

use crate::measure::Bytes;

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

impl Snapshot<'_> {
    pub(super) fn table(&self) -> Vec<String> {
        let status = self.status;
        let process = status.process;
        let uptime = status.uptime_seconds;
        let policy = &status.policy;
        let mut lines = vec![format!("memferry, process {process}, up {uptime} s, policy {policy}")];
        lines.extend(aligned(&self.workers(), None));
        lines.extend(aligned(&self.classes(), None));
        lines.extend(status.module.iter().flat_map(|module| aligned(&self.engines(module), None)));
        if status.slices > 0 {
            let strayed = Bytes(status.strayed_bytes);
            lines.push(format!("  {} slices, {strayed} of suspended requests moved in them", status.slices));
        }
        let memferry::ZeroedStatus { buffers, bytes, failed } = status.zeroed;
        if buffers + failed > 0 {
            let bytes = Bytes(bytes);
            lines.push(format!("  {buffers} free buffers zeroed, {bytes}; {failed} by the CPU"));
        }
        let own = status.sessions.iter().position(|session| session.session == self.own);
        lines.extend(aligned(&self.sessions(), own));
        let unnamed = status.open_sessions.saturating_sub(status.sessions.len() as u64);
        if unnamed > 0 {
            lines.push(format!("and {unnamed} more"));
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

    /// The share of the Linux module in the work of all workers.
    fn engines(&self, module: &ModuleStatus) -> Vec<Vec<String>> {
        let mut heading = cells(["engine", "transfers", "moved", "by DMA", "redone"]);
        heading.extend(self.before.map(|_| cells(["bytes/s"])).into_iter().flatten());
        let workers = |status: &Status| {
            let requests: u64 = status.workers.iter().map(|worker| worker.requests).sum();
            let bytes: u64 = status.workers.iter().map(|worker| worker.bytes).sum();
            let module = status.module.unwrap_or_default();
            (requests.saturating_sub(module.transfers), bytes.saturating_sub(module.bytes))
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
        let by_dma = [Bytes(module.dma_bytes).to_string(), module.redone.to_string()];
        let none = ["-", "-"].map(str::to_owned);
        vec![heading, row("CPUs", &workers, none), row("Linux module", &by_module, by_dma)]
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

/// Aligns the rows into columns; `own` is the index of this command's row, not counting the heading.
fn aligned(rows: &[Vec<String>], own: Option<usize>) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let widest = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(widest).collect();
    let line = |(number, row): (usize, &Vec<String>)| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let mark = if own.is_some_and(|own| own + 1 == number) { " (this command)" } else { "" };
        format!("  {}{mark}", cells.join("  "))
    };
    rows.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(requests: u64) -> Status {
        let text = format!(
            r#"{{"process": 9, "uptime_seconds": 1, "policy": "shared", "slices": 2,
            "strayed_bytes": 0, "open_sessions": 3,
            "sessions": [{{"session": 4, "user": 1, "process": 2, "queues": 1, "frames": 0, "bytes": 0,
            "requests": {requests}, "outstanding": 1, "waiting": 0, "failures": 0, "bytes_moved": 0}}],
            "workers": [{{"queues": 1, "requests": {requests}, "failures": 0, "bytes": 0, "parks": 0, "waiting": 0,
            "busy": 1, "channels": 32, "class_bytes": [0, {requests}, 0]}}],
            "zeroed": {{"buffers": 0, "bytes": 0, "failed": 0}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_module_has_a_row_if_it_is_used() {
        let mut status = status(40);
        let snapshot =
            |status: &Status| Snapshot { own: SessionId(4), status, before: None }.table().join("\n");
        assert!(!snapshot(&status).contains("Linux module"));
        status.workers[0].bytes = 1000;
        status.module = Some(ModuleStatus { transfers: 3, bytes: 900, dma_bytes: 896, redone: 1 });
        let table = snapshot(&status);
        assert!(table.contains("CPUs         37  100 bytes          -       -"), "{table}");
        assert!(table.contains("Linux module          3  900 bytes  896 bytes       1"), "{table}");
    }

    #[test]
    fn only_later_snapshots_have_rates() {
        let first = status(10);
        let second = status(40);
        let own = SessionId(4);
        let snapshot = Snapshot { own, status: &first, before: None };
        assert!(!snapshot.table().join("\n").contains("req/s"));
        assert!(snapshot.table().last().unwrap().contains("and 2 more"), "{:?}", snapshot.table());
        let snapshot = Snapshot { own, status: &second, before: Some((&first, Duration::from_secs(2))) };
        let table = snapshot.table();
        assert!(table[1].contains("req/s") && table[2].contains(" 15 "), "{table:?}");
        assert!(table[5].contains("normal  40 bytes") && table[5].ends_with("15 bytes"), "{table:?}");
        assert!(table[7].contains("2 slices, 0 bytes"), "{table:?}");
        assert!(table[9].ends_with("15  0 bytes (this command)"), "{table:?}");
        assert_eq!(snapshot.json().unwrap()["sessions"][0]["requests_per_second"], 15.0);
        let zeroed = memferry::ZeroedStatus { buffers: 2, bytes: 100, failed: 1 };
        let zeroing = Status { zeroed, ..first.clone() };
        let table = Snapshot { own, status: &zeroing, before: None }.table();
        assert_eq!(table[8], "  2 free buffers zeroed, 100 bytes; 1 by the CPU", "{table:?}");
        // A new session has no rate.
        let stranger = Status { sessions: Vec::new(), ..first.clone() };
        let snapshot = Snapshot { own, status: &second, before: Some((&stranger, Duration::from_secs(2))) };
        assert!(snapshot.json().unwrap()["sessions"][0].get("requests_per_second").is_none());
    }
}
