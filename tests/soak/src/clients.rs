//! The clients of a run: started, their lines handled, and their errors and exits judged.
//!
//! ```text
//! Kind ─► process ─ lines ─► at: progress     lost, ended, refused: to be expected?     finding
//!                 └ exit ──► killed by the runner, or success; else a finding, as is silence
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::Started;
use crate::report::Report;
use crate::roles::Role;

/// A client that prints nothing for so long is stuck.
const SILENCE: Duration = Duration::from_secs(90);

/// The kind of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// This program in a role.
    Part(Role),
    /// The program in C.
    C,
    /// The program in Python.
    Python,
}

impl Kind {
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase().replace("part(", "").replace(')', "")
    }

    /// Whether it is a client of the abused service.
    pub(crate) fn is_served(self) -> bool {
        use Role::{Ballast, Embedded, Files, Plain};
        !matches!(self, Self::Part(Embedded | Files | Plain | Ballast))
    }
}

pub(crate) struct Running {
    pub(crate) kind: Kind,
    pub(crate) seed: u64,
    pub(crate) number: u64,
    pub(crate) started: Started,
    since: Instant,
    /// When it last printed a line, or was resumed.
    pub(crate) last_line: Instant,
    pub(crate) stopped: Option<Instant>,
    pub(crate) killed: bool,
    /// It has limited memory or descriptors.
    pub(crate) limited: bool,
    /// The process of its service.
    service: u32,
    completions: u64,
    bytes: u64,
    findings: bool,
}

impl Running {
    pub(crate) fn new(kind: Kind, seed: u64, number: u64, started: Started, limited: bool) -> Self {
        let last_line = Instant::now();
        let service = 0;
        let completions = 0;
        let bytes = 0;
        let stopped = None;
        let killed = false;
        let findings = false;
        let since = last_line;
        Self {
            since,
            kind,
            seed,
            number,
            started,
            last_line,
            stopped,
            killed,
            limited,
            service,
            completions,
            bytes,
            findings,
        }
    }

    /// Identifies the client, so that it can be started again.
    fn title(&self) -> String {
        let limited = if self.limited { ", limited" } else { "" };
        format!("client {} ({}, seed {}{limited})", self.number, self.kind.name(), self.seed)
    }

    pub(crate) fn kill(&mut self) {
        self.killed = true;
        self.started.signal(Signal::KILL);
    }
}

/// What was done to services, as far as it explains errors of their clients.
#[derive(Default)]
pub(crate) struct History {
    /// Services that were killed or stopped for good.
    pub(crate) gone: HashSet<u32>,
    /// When the last of them ended.
    pub(crate) last: Option<Instant>,
    /// Services with few descriptors.
    pub(crate) starved: HashSet<u32>,
    /// When one of those was last alive.
    pub(crate) short: Option<Instant>,
}

impl History {
    /// Whether an error of a client was to be expected.
    fn explains(&self, client: &Running, what: &str, process: u32, kind: &str) -> bool {
        // Programs in other languages do not know the service's process, nor why they were not accepted.
        let unknown = process == 0;
        let starved = self.starved.contains(&process) || unknown && self.short > Some(client.since);
        let gone = self.gone.contains(&process) || unknown && (starved || self.last > Some(client.since));
        match (what, kind) {
            ("lost", _) => gone,
            ("ended", _) => starved || client.limited,
            ("refused", "own") => client.limited || starved || gone,
            ("refused", "stopping") => gone,
            ("refused", "system") => starved,
            // Engine processes are killed and stopped all the time. The report counts these.
            ("refused", "lingering") => true,
            _ => false,
        }
    }
}

/// Handles a line of a client.
pub(crate) fn handle_line(client: &mut Running, text: &str, history: &History, report: &mut Report) {
    client.last_line = Instant::now();
    let mut words = text.split(' ');
    let what = words.next().unwrap_or_default();
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    match what {
        "hello" => client.service = number() as u32,
        "at" => {
            let completions = number();
            let bytes = number();
            report.completions += completions.saturating_sub(client.completions);
            report.bytes += bytes.saturating_sub(client.bytes);
            *report.by_kind.entry(client.kind.name()).or_default() +=
                completions.saturating_sub(client.completions);
            (client.completions, client.bytes) = (completions, bytes);
        }
        "lost" | "ended" | "refused" => {
            let process = number() as u32;
            let kind = words.next().unwrap_or_default();
            report.count(match what {
                "lost" => "losses of the service that clients met with",
                "ended" => "sessions that the service ended for lack of descriptors",
                _ if kind == "lingering" => "sessions given up because an engine process kept a request when it was lost or the service stopped",
                _ => "calls that were refused for lack of what they need",
            });
            if !history.explains(client, what, process, kind) {
                report.find(format!("{}: nothing explains '{text}'", client.title()));
            }
        }
        "pending" => {
            report.count("revocations that took longer than a call waits, counted at each such call")
        }
        "finding" => {
            client.findings = true;
            report.find(format!("{}: {text}", client.title()));
        }
        _ => report.find(format!("{} printed '{text}'", client.title())),
    }
}

/// The exit status of a client, if it has ended. A stuck client is killed and reported.
pub(crate) fn poll_exit(
    client: &mut Running,
    report: &mut Report,
) -> Result<Option<ExitStatus>, crate::SoakError> {
    if client.stopped.is_none() && client.last_line.elapsed() > SILENCE && !client.killed {
        let title = client.title();
        let threads = client.started.threads();
        report.find(format!("{title} prints nothing; its threads: {threads}; {}", client.started.errors()));
        client.kill();
    }
    client.started.exit_status()
}

/// Reports an unexpected exit. Called after all lines were handled.
pub(crate) fn judge_end(client: &Running, status: ExitStatus, report: &mut Report) {
    if !client.findings && !client.killed && !status.success() {
        report.find(format!("{} ended with {status}: {}", client.title(), client.started.errors()));
    }
}

/// How clients are started.
pub(crate) struct Recipe<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) own: PathBuf,
    pub(crate) programs: &'a crate::Programs,
}

impl Recipe<'_> {
    /// The command line of a client and its preloaded library; `None` if a program it needs is not named.
    pub(crate) fn words(
        &self,
        kind: Kind,
        seed: u64,
        limits: &[String],
    ) -> Option<(Vec<String>, Option<PathBuf>)> {
        let text = |path: &Path| path.display().to_string();
        let socket = text(&self.directory.join("service"));
        let seed = seed.to_string();
        Some(match kind {
            Kind::C => (vec![text(self.programs.c_client.as_ref()?), socket, seed], None),
            Kind::Python => {
                let python = self.programs.python.as_ref()?;
                let client = self.programs.python_client.as_ref()?;
                (vec![text(python), text(client), socket, seed], None)
            }
            Kind::Part(role) => {
                let preload = match role {
                    Role::Plain => Some(self.programs.preload.clone()?),
                    _ => None,
                };
                let role = Kind::Part(role).name();
                let mut words = vec![text(&self.own), "part".to_owned()];
                for (option, value) in
                    [("role", role), ("socket", socket), ("meeting", text(self.directory)), ("seed", seed)]
                {
                    words.push(format!("--{option}={value}"));
                }
                words.extend(limits.iter().cloned());
                (words, preload)
            }
        })
    }
}
