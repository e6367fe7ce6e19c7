//! A status in Prometheus's text format.
//!
//! ```text
//! Status ─► families: HELP, TYPE, one line for each lane or session
//! ```
//!
//! Source: the text-based exposition format 0.0.4 of Prometheus. The session that asks is left out: it is there only to ask.

use std::fmt::{Display, Write};

use memferry::{SessionId, Status};

/// What a scraper is told the text is.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text for a service that is not there.
pub(super) fn down() -> String {
    let mut text = Text::default();
    up(&mut text, false);
    text.0
}

/// The text for a status that session `own` was given.
pub(super) fn of(status: &Status, own: SessionId) -> String {
    let mut text = Text::default();
    up(&mut text, true);
    service(&mut text, status, own);
    lanes(&mut text, status);
    classes(&mut text, status);
    zeroed(&mut text, status);
    engines(&mut text, status);
    sessions(&mut text, status, own);
    text.0
}

fn up(text: &mut Text, up: bool) {
    text.family("memferry_up", Kind::Gauge, "Whether the service answered.");
    text.sample("memferry_up", &[], u8::from(up));
}

fn service(text: &mut Text, status: &Status, own: SessionId) {
    text.family("memferry_build_info", Kind::Gauge, "Version of the exporter and policy of the service.");
    let labels = [("version", env!("CARGO_PKG_VERSION").to_owned()), ("policy", status.policy.clone())];
    text.sample("memferry_build_info", &labels, 1);
    text.family("memferry_uptime_seconds", Kind::Gauge, "Seconds since the service started.");
    text.sample("memferry_uptime_seconds", &[], status.uptime_seconds);
    text.family("memferry_sessions", Kind::Gauge, "Open sessions, the exporter's left out.");
    let asking = status.sessions.iter().filter(|session| session.session == own).count() as u64;
    text.sample("memferry_sessions", &[], status.open_sessions.saturating_sub(asking));
    text.family("memferry_sessions_unlisted", Kind::Gauge, "Open sessions without series of their own here.");
    let unlisted = status.open_sessions.saturating_sub(status.sessions.len() as u64);
    text.sample("memferry_sessions_unlisted", &[], unlisted);
}

fn lanes(text: &mut Text, status: &Status) {
    let mut family = |name: &str, kind, help, value: fn(&memferry::LaneStatus) -> u64| {
        text.family(name, kind, help);
        for (number, lane) in status.lanes.iter().enumerate() {
            text.sample(name, &[("lane", number.to_string())], value(lane));
        }
    };
    family("memferry_lane_queues", Kind::Gauge, "Queue pairs the lane serves.", |lane| lane.queues);
    family("memferry_lane_requests_total", Kind::Counter, "Requests taken.", |lane| lane.requests);
    family("memferry_lane_failures_total", Kind::Counter, "Requests that failed.", |lane| lane.failures);
    family("memferry_lane_bytes_total", Kind::Counter, "Destination bytes visited.", |lane| lane.bytes);
    family("memferry_lane_parks_total", Kind::Counter, "Times the lane went to sleep.", |lane| lane.parks);
    let waiting = "Requests that wait for an engine channel.";
    family("memferry_lane_waiting", Kind::Gauge, waiting, |lane| lane.waiting);
    family("memferry_lane_channels_busy", Kind::Gauge, "Engine channels in use.", |lane| lane.busy);
    family("memferry_lane_channels", Kind::Gauge, "Engine channels there are.", |lane| lane.channels.into());
}

fn classes(text: &mut Text, status: &Status) {
    text.family("memferry_class_bytes_total", Kind::Counter, "Destination bytes visited for a class.");
    for (class, name) in ["low", "normal", "high"].into_iter().enumerate() {
        let bytes: u64 = status.lanes.iter().map(|lane| lane.class_bytes[class]).sum();
        text.sample("memferry_class_bytes_total", &[("class", name.to_owned())], bytes);
    }
    text.family("memferry_slices_total", Kind::Counter, "Slices that the priority policy has begun.");
    text.sample("memferry_slices_total", &[], status.slices);
    let strayed = "Bytes of suspended requests that moved within a slice.";
    text.family("memferry_strayed_bytes_total", Kind::Counter, strayed);
    text.sample("memferry_strayed_bytes_total", &[], status.strayed_bytes);
}

fn zeroed(text: &mut Text, status: &Status) {
    let mut family = |name: &str, help, value: u64| {
        text.family(name, Kind::Counter, help);
        text.sample(name, &[], value);
    };
    let memferry::ZeroedStatus { buffers, bytes, failed } = status.zeroed;
    family("memferry_zeroed_buffers_total", "Buffers of pools zeroed by the engine while free.", buffers);
    family("memferry_zeroed_bytes_total", "Bytes of these.", bytes);
    family("memferry_zeroed_failures_total", "Buffers that the CPU had to clear instead.", failed);
}

fn engines(text: &mut Text, status: &Status) {
    let all: u64 = status.lanes.iter().map(|lane| lane.bytes).sum();
    let of_kernel = status.kernel.map_or(0, |kernel| kernel.bytes);
    let name = "memferry_engine_bytes_total";
    text.family(name, Kind::Counter, "Destination bytes visited by an engine.");
    text.sample(name, &[("engine", "cpu".to_owned())], all.saturating_sub(of_kernel));
    let Some(kernel) = status.kernel else { return };
    text.sample(name, &[("engine", "kernel".to_owned())], kernel.bytes);
    for (name, help, value) in [
        ("memferry_kernel_transfers_total", "Transfers that the Linux module ended.", kernel.transfers),
        ("memferry_kernel_dma_bytes_total", "Bytes of these that DMA engines moved.", kernel.dma_bytes),
        ("memferry_kernel_redone_total", "Transfers that it failed at and lanes did again.", kernel.redone),
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
    family("memferry_session_channels", Kind::Gauge, "Queue pairs of the session.", |s| s.channels.into());
    family("memferry_session_frames", Kind::Gauge, "Frames it registered.", |s| s.frames.into());
    family("memferry_session_registered_bytes", Kind::Gauge, "Bytes of these frames.", |s| s.bytes);
    family("memferry_session_requests_total", Kind::Counter, "Requests taken from it.", |s| s.requests);
    family("memferry_session_failures_total", Kind::Counter, "Requests that failed.", |s| s.failures);
    family("memferry_session_bytes_total", Kind::Counter, "Bytes visited for it.", |s| s.bytes_moved);
    let outstanding = "Requests taken and not completed.";
    family("memferry_session_outstanding", Kind::Gauge, outstanding, |s| s.outstanding);
    let waiting = "Of these, requests that wait for an engine channel.";
    family("memferry_session_waiting", Kind::Gauge, waiting, |s| s.waiting);
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
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

/// What a label's value may not hold as it is.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let status = Status { policy: "a\"b\\c\nd".to_owned(), ..Status::default() };
        let text = of(&status, SessionId(1));
        assert!(text.contains(r#"policy="a\"b\\c\nd"} 1"#), "{text}");
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
    fn the_kernel_module_has_series_where_it_is_used() {
        let lanes = vec![memferry::LaneStatus { bytes: 1000, ..Default::default() }];
        let mut status = Status { lanes, ..Status::default() };
        assert!(!of(&status, SessionId(1)).contains("kernel"));
        let kernel = memferry::KernelStatus { transfers: 3, bytes: 900, dma_bytes: 896, redone: 1 };
        status.kernel = Some(kernel);
        let text = of(&status, SessionId(1));
        for line in [
            "memferry_engine_bytes_total{engine=\"cpu\"} 100\n",
            "memferry_engine_bytes_total{engine=\"kernel\"} 900\n",
            "memferry_kernel_dma_bytes_total 896\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn every_family_is_introduced_once_and_counters_end_in_total() {
        let status = Status { kernel: Some(memferry::KernelStatus::default()), ..Status::default() };
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
