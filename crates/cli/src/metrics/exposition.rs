//! Formats a status in Prometheus's text format.
//!
//! ```text
//! Status ─► families: HELP, TYPE, one line per worker or session
//! ```
//!
//! Source: the text-based exposition format 0.0.4 of Prometheus. The exporter's own session is left out.

use std::fmt::{Display, Write};
use std::time::Duration;

use memferry::{LatencyStatus, RefusalKind, SessionId, Status};
use memferry_service::printable::printable;

/// The content type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text for an unreachable service.
pub(super) fn down() -> String {
    let mut text = Text::default();
    up(&mut text, false);
    text.0
}

/// The text for a status. Session `own` requested it and is left out.
pub(super) fn of(status: &Status, own: SessionId) -> String {
    let mut text = Text::default();
    up(&mut text, true);
    service(&mut text, status, own);
    workers(&mut text, status);
    classes(&mut text, status);
    zeroed(&mut text, status);
    engines(&mut text, status);
    latency(&mut text, status);
    refused(&mut text, status);
    sessions(&mut text, status, own);
    text.0
}

fn up(text: &mut Text, up: bool) {
    text.family("memferry_up", Kind::Gauge, "Whether the service answered.");
    text.sample("memferry_up", &[], u8::from(up));
}

fn service(text: &mut Text, status: &Status, own: SessionId) {
    text.family("memferry_build_info", Kind::Gauge, "Version of the exporter and the service's policy.");
    let labels = [("version", env!("CARGO_PKG_VERSION").to_owned()), ("policy", printable(&status.policy))];
    text.sample("memferry_build_info", &labels, 1);
    text.family("memferry_uptime_seconds", Kind::Gauge, "Seconds since the service started.");
    text.sample("memferry_uptime_seconds", &[], status.uptime_seconds);
    text.family("memferry_sessions", Kind::Gauge, "Open sessions without the exporter's.");
    let asking = status.sessions.iter().filter(|session| session.session == own).count() as u64;
    text.sample("memferry_sessions", &[], status.open_sessions.saturating_sub(asking));
    text.family("memferry_sessions_unlisted", Kind::Gauge, "Open sessions that have no series here.");
    let unlisted = status.open_sessions.saturating_sub(status.sessions.len() as u64);
    text.sample("memferry_sessions_unlisted", &[], unlisted);
}

fn workers(text: &mut Text, status: &Status) {
    let mut family = |name: &str, kind, help, value: fn(&memferry::WorkerStatus) -> u64| {
        text.family(name, kind, help);
        for (number, worker) in status.workers.iter().enumerate() {
            text.sample(name, &[("worker", number.to_string())], value(worker));
        }
    };
    family("memferry_worker_queues", Kind::Gauge, "Queue pairs the worker serves.", |worker| worker.queues);
    family("memferry_worker_requests_total", Kind::Counter, "Requests taken.", |worker| worker.requests);
    family("memferry_worker_failures_total", Kind::Counter, "Requests that failed.", |worker| {
        worker.failures
    });
    family("memferry_worker_bytes_total", Kind::Counter, "Destination bytes processed.", |worker| {
        worker.bytes
    });
    family("memferry_worker_parks_total", Kind::Counter, "Times the worker fell asleep.", |worker| {
        worker.parks
    });
    let waiting = "Requests that wait for an engine channel.";
    family("memferry_worker_waiting", Kind::Gauge, waiting, |worker| worker.waiting);
    family("memferry_worker_channels_busy", Kind::Gauge, "Engine channels in use.", |worker| worker.busy);
    family("memferry_worker_channels", Kind::Gauge, "Engine channels of the worker.", |worker| {
        worker.channels.into()
    });
}

fn classes(text: &mut Text, status: &Status) {
    text.family("memferry_class_bytes_total", Kind::Counter, "Destination bytes processed for a class.");
    for (class, name) in ["low", "normal", "high"].into_iter().enumerate() {
        let bytes: u64 = status.workers.iter().map(|worker| worker.class_bytes[class]).sum();
        text.sample("memferry_class_bytes_total", &[("class", name.to_owned())], bytes);
    }
    text.family("memferry_slices_total", Kind::Counter, "Slices started by the policy priority.");
    text.sample("memferry_slices_total", &[], status.slices);
    let strayed = "Bytes of suspended requests that were moved within a slice.";
    text.family("memferry_strayed_bytes_total", Kind::Counter, strayed);
    text.sample("memferry_strayed_bytes_total", &[], status.strayed_bytes);
}

fn zeroed(text: &mut Text, status: &Status) {
    let mut family = |name: &str, help, value: u64| {
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], value);
    };
    let memferry::ZeroedStatus { buffers, bytes, failed } = status.zeroed;
    family("memferry_zeroed_buffers_total", "Free buffers of pools that the engine zeroed.", buffers);
    family("memferry_zeroed_bytes_total", "Bytes of these buffers.", bytes);
    family("memferry_zeroed_failures_total", "Buffers that the CPU had to zero instead.", failed);
}

fn engines(text: &mut Text, status: &Status) {
    let all: u64 = status.workers.iter().map(|worker| worker.bytes).sum();
    let of_module = status.module.map_or(0, |module| module.bytes);
    let of_processes: u64 = status.engines.iter().map(|engine| engine.bytes).sum();
    let name = "memferry_engine_bytes_total";
    text.family(name, Kind::Counter, "Destination bytes processed by an engine.");
    text.sample(name, &[("engine", "cpu".to_owned())], all.saturating_sub(of_module + of_processes));
    if let Some(module) = status.module {
        text.sample(name, &[("engine", "module".to_owned())], module.bytes);
    }
    for engine in &status.engines {
        text.sample(name, &[("engine", engine.name.clone())], engine.bytes);
    }
    processes(text, status);
    let Some(module) = status.module else { return };
    for (name, help, value) in [
        ("memferry_module_transfers_total", "Transfers completed by the Linux module.", module.transfers),
        ("memferry_module_dma_bytes_total", "Bytes of these moved by DMA engines.", module.dma_bytes),
        (
            "memferry_module_redone_total",
            "Failed transfers of the module that workers repeated.",
            module.redone,
        ),
    ] {
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], value);
    }
}

/// Series of each configured engine process.
fn processes(text: &mut Text, status: &Status) {
    if status.engines.is_empty() {
        return;
    }
    type Value = fn(&memferry::ExternalStatus) -> u64;
    let families: [(&str, Kind, &str, Value); 6] = [
        ("memferry_engine_connected", Kind::Gauge, "Whether the engine process gets transfers.", |engine| {
            engine.is_connected.into()
        }),
        ("memferry_engine_frames", Kind::Gauge, "Frames that the engine process has.", |engine| {
            engine.frames.into()
        }),
        (
            "memferry_engine_memory_bytes",
            Kind::Gauge,
            "Bytes of the engine's own memory in which clients can have frames.",
            |engine| engine.memory_bytes,
        ),
        (
            "memferry_engine_memory_used_bytes",
            Kind::Gauge,
            "Bytes of the engine's own memory that are in frames or not freed yet.",
            |engine| engine.memory_used,
        ),
        (
            "memferry_engine_transfers_total",
            Kind::Counter,
            "Transfers that the engine process ended.",
            |engine| engine.transfers,
        ),
        (
            "memferry_engine_redone_total",
            Kind::Counter,
            "Transfers of the engine process that workers repeated.",
            |engine| engine.redone,
        ),
    ];
    for (name, kind, help, value) in families {
        text.family(name, kind, help);
        for engine in &status.engines {
            text.sample(name, &[("engine", engine.name.clone())], value(engine));
        }
    }
}

fn latency(text: &mut Text, status: &Status) {
    let name = "memferry_sampled_request_seconds";
    let help = "Time from a worker's taking a request to its completion, of sampled requests that succeeded and were not done at once.";
    text.family(name, Kind::Histogram, help);
    let LatencyStatus { buckets, nanoseconds } = status.latency;
    let mut count = 0;
    for (bucket, more) in buckets.into_iter().enumerate() {
        count += more;
        let is_last = bucket + 1 == buckets.len();
        let bound =
            if is_last { "+Inf".to_owned() } else { LatencyStatus::bound(bucket).as_secs_f64().to_string() };
        text.sample(&format!("{name}_bucket"), &[("le", bound)], count);
    }
    text.sample(&format!("{name}_sum"), &[], Duration::from_nanos(nanoseconds).as_secs_f64());
    text.sample(&format!("{name}_count"), &[], count);
}

fn refused(text: &mut Text, status: &Status) {
    let name = "memferry_refused_commands_total";
    text.family(
        name,
        Kind::Counter,
        "Commands on the control socket that the service refused, by kind of the refusal.",
    );
    for (kind, refused) in RefusalKind::ALL.into_iter().zip(status.refused.commands) {
        text.sample(name, &[("kind", kind.name().to_owned())], refused);
    }
    for (name, help, value) in [
        ("memferry_clients_turned_away_total", "Clients that got no session.", status.refused.turned_away),
        (
            "memferry_violations_total",
            "Sessions ended because the client broke a rule.",
            status.refused.violations,
        ),
    ] {
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], value);
    }
}

fn sessions(text: &mut Text, status: &Status, own: SessionId) {
    let mut family = |name: &str, kind, help, value: fn(&memferry::SessionStatus) -> u64| {
        text.family(name, kind, help);
        for session in status.sessions.iter().filter(|session| session.session != own) {
            let labels = [
                ("session", session.session.0.to_string()),
                ("user", session.user.to_string()),
                ("process", session.process.to_string()),
            ];
            text.sample(name, &labels, value(session));
        }
    };
    family("memferry_session_queues", Kind::Gauge, "Queue pairs of the session.", |s| s.queues.into());
    family("memferry_session_frames", Kind::Gauge, "Frames the session registered.", |s| s.frames.into());
    family("memferry_session_registered_bytes", Kind::Gauge, "Bytes of these frames.", |s| s.bytes);
    family("memferry_session_requests_total", Kind::Counter, "Requests taken.", |s| s.requests);
    family("memferry_session_failures_total", Kind::Counter, "Requests that failed.", |s| s.failures);
    family("memferry_session_bytes_total", Kind::Counter, "Destination bytes processed.", |s| s.bytes_moved);
    let outstanding = "Requests taken and not completed.";
    family("memferry_session_outstanding", Kind::Gauge, outstanding, |s| s.outstanding);
    let waiting = "Of these, requests that wait for an engine channel.";
    family("memferry_session_waiting", Kind::Gauge, waiting, |s| s.waiting);
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: impl Display) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

/// Escapes a label's value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        // Control characters of a hostile service end neither a line nor an event, and reverse no text.
        let status = Status { policy: "a\"b\\c\nd\re\u{202e}".to_owned(), ..Status::default() };
        let text = of(&status, SessionId(1));
        assert!(text.contains(r#"policy="a\"b\\c\\nd\\re\\u{202e}"} 1"#), "{text}");
    }

    #[test]
    fn times_are_cumulative_by_bound() {
        let mut status = Status::default();
        status.latency.buckets[0] = 3;
        status.latency.buckets[21] = 2;
        status.latency.nanoseconds = 1_500_000_000;
        let text = of(&status, SessionId(1));
        for line in [
            "_bucket{le=\"0.000008\"} 3",
            "_bucket{le=\"8.388608\"} 3",
            "_bucket{le=\"+Inf\"} 5",
            "_sum 1.5",
            "_count 5",
        ] {
            assert!(text.contains(&format!("\nmemferry_sampled_request_seconds{line}\n")), "{text}");
        }
    }

    #[test]
    fn refusals_have_their_kind() {
        let mut status = Status::default();
        status.refused.commands[RefusalKind::Quota as usize] = 4;
        status.refused.violations = 1;
        let text = of(&status, SessionId(1));
        assert!(text.contains("memferry_refused_commands_total{kind=\"quota\"} 4\n"), "{text}");
        assert!(text.contains("memferry_violations_total 1\n"), "{text}");
    }

    #[test]
    fn zeroed_buffers_are_counted() {
        let zeroed = memferry::ZeroedStatus { buffers: 3, bytes: 196_608, failed: 1 };
        let text = of(&Status { zeroed, ..Status::default() }, SessionId(1));
        for line in ["buffers_total 3", "bytes_total 196608", "failures_total 1"] {
            assert!(text.contains(&format!("\nmemferry_zeroed_{line}\n")), "{text}");
        }
    }

    #[test]
    fn the_module_has_series_if_it_is_used() {
        let workers = vec![memferry::WorkerStatus { bytes: 1000, ..Default::default() }];
        let mut status = Status { workers, ..Status::default() };
        assert!(!of(&status, SessionId(1)).contains("module"));
        let module = memferry::ModuleStatus { transfers: 3, bytes: 900, dma_bytes: 896, redone: 1 };
        status.module = Some(module);
        let text = of(&status, SessionId(1));
        for line in [
            "memferry_engine_bytes_total{engine=\"cpu\"} 100\n",
            "memferry_engine_bytes_total{engine=\"module\"} 900\n",
            "memferry_module_dma_bytes_total 896\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn engine_processes_have_series() {
        let engine = memferry::ExternalStatus {
            name: "gpu".to_owned(),
            bytes: 900,
            redone: 2,
            ..memferry::ExternalStatus::default()
        };
        let workers = vec![memferry::WorkerStatus { bytes: 1000, ..Default::default() }];
        let text = of(&Status { workers, engines: vec![engine], ..Status::default() }, SessionId(1));
        for line in [
            "memferry_engine_bytes_total{engine=\"cpu\"} 100\n",
            "memferry_engine_bytes_total{engine=\"gpu\"} 900\n",
            "memferry_engine_connected{engine=\"gpu\"} 0\n",
            "memferry_engine_redone_total{engine=\"gpu\"} 2\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn families_are_declared_once() {
        let module = Some(memferry::ModuleStatus::default());
        let engines = vec![memferry::ExternalStatus::default()];
        let status = Status { module, engines, ..Status::default() };
        let text = of(&status, SessionId(1));
        let mut named: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        for line in &named {
            let (name, kind) = line.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        }
        let all = named.len();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named.len(), all);
        assert!(down().ends_with("memferry_up 0\n") && text.contains("memferry_up 1\n"));
    }
}
