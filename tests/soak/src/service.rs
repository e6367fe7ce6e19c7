//! The services under test: started with random options, ended by signals, and checked for leaks.
//!
//! ```text
//! start ─► ready ─ resources ─► abuse ─ clients gone ─► resources: about the same? ─► end: exit status?
//! ```

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use memferry::Client;

use crate::SoakError;
use crate::process::{Line, POLL_INTERVAL, Started, Usage};
use crate::random::Random;

/// How long an expected event may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// Queues that a user may have open.
pub(crate) const QUEUES: u64 = 64;
/// Descriptors that a service keeps: the two memories of each queue pair, in two sizes.
const KEPT_DESCRIPTORS: u64 = 2 * 2 * QUEUES;
/// Descriptors that the end of the last client leaves open for a while.
const SPARE_DESCRIPTORS: u64 = 8;
/// Growth in KiB that these memories and the allocator may cause.
const SPARE_KIB: u64 = 24 << 10;

/// A service or a file server.
pub(crate) struct Service {
    pub(crate) started: Started,
    pub(crate) since: Instant,
    /// When it is to be ended.
    pub(crate) until: Instant,
    /// It has few descriptors.
    pub(crate) starved: bool,
    /// Its resources when it was ready.
    pub(crate) first: Usage,
    pub(crate) options: String,
}

/// What the start of a service needs.
pub(crate) struct Launcher<'a> {
    pub(crate) command: &'a Path,
    pub(crate) directory: &'a Path,
    pub(crate) line_sender: &'a Sender<Line>,
    pub(crate) lines: &'a Receiver<Line>,
}

/// The engine process that may connect to a service.
fn engine(random: &mut Random) -> String {
    let user = rustix::process::geteuid().as_raw();
    let shortest = random.one_of(&[1, 10_000, 100_000]);
    let stall = random.one_of(&[50, 1000]);
    format!("{} user={user} shortest={shortest} stall-ms={stall}", crate::roles::ENGINE)
}

impl Service {
    /// Starts the service for clients.
    pub(crate) fn serve(
        launcher: &Launcher<'_>,
        number: u64,
        life: Duration,
        clock: Option<&Path>,
        random: &mut Random,
        other_lines: &mut Vec<Line>,
    ) -> Result<Self, SoakError> {
        let options = [
            format!("--workers={}", random.between(1, 3)),
            format!("--channels={}", random.one_of(&[2, 4, 32])),
            format!("--chunk={}", random.one_of(&[1000, 65536, 262_144])),
            format!("--policy={}", random.one_of(&["shared", "shared", "priority", "deadline", "weighted"])),
            format!("--grace-ms={}", random.one_of(&[0, 50, 2000])),
            format!("--engine={}", engine(random)),
        ];
        let mut words = vec![launcher.command.display().to_string()];
        words.extend(["serve".to_owned(), "--no-config".to_owned(), "--socket".to_owned()]);
        words.push(launcher.directory.join("service").display().to_string());
        words.extend(options.iter().cloned());
        let preload = clock.filter(|_| random.once_in(3));
        let starved = random.once_in(4);
        let mut service = Self::start(launcher, &words, preload, number, life, other_lines)?;
        service.options = options.join(" ");
        service.starved = starved;
        if starved {
            service.started.leave_descriptors(random.between(6, 40));
        }
        Ok(service)
    }

    /// Starts the file server.
    pub(crate) fn files(
        launcher: &Launcher<'_>,
        number: u64,
        life: Duration,
        random: &mut Random,
        other_lines: &mut Vec<Line>,
    ) -> Result<Self, SoakError> {
        let engine = random.one_of(&["auto", "copying", "pool", "cached"]);
        let mut words = vec![launcher.command.display().to_string()];
        words.extend(["9p", "serve", "--engine", engine, "--listen"].map(str::to_owned));
        words.push(format!("unix:{}", launcher.directory.join(crate::roles::FILES).display()));
        words.push(launcher.directory.join("export").display().to_string());
        let mut service = Self::start(launcher, &words, None, number, life, other_lines)?;
        service.options = format!("--engine={engine}");
        Ok(service)
    }

    fn start(
        launcher: &Launcher<'_>,
        words: &[String],
        preload: Option<&Path>,
        number: u64,
        life: Duration,
        other_lines: &mut Vec<Line>,
    ) -> Result<Self, SoakError> {
        let errors = launcher.directory.join(format!("errors-{number}"));
        let mut started = Started::new(words, preload, (number, launcher.line_sender), errors)?;
        let until = Instant::now() + SOON;
        loop {
            match launcher.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) if line.number == number && line.text.starts_with("listening on ") => break,
                Ok(line) => other_lines.push(line),
                Err(_) if started.exit_status()?.is_some() || Instant::now() > until => {
                    return Err(format!("{} did not start: {}", words.join(" "), started.errors()).into());
                }
                Err(_) => {}
            }
        }
        let since = Instant::now();
        let first = started.usage().ok_or("the service ended right after its start")?;
        Ok(Self { started, since, until: since + life, starved: false, first, options: String::new() })
    }

    /// Waits until the service has released its clients' resources. Returns its resources and what was not released.
    pub(crate) fn wait_until_released(&self, socket: &Path) -> (Option<Usage>, Option<String>) {
        let until = Instant::now() + SOON;
        let observer = loop {
            match Client::connect(socket) {
                Ok(client) => break client,
                Err(error) if Instant::now() > until => {
                    return (
                        None,
                        Some(format!("no client can connect although all others are gone: {error}")),
                    );
                }
                Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        };
        loop {
            let sessions = observer.status().map(|status| status.open_sessions);
            let usage = self.started.usage();
            let excess = match (&sessions, usage) {
                (Ok(1), Some(usage)) => match self.excess(usage) {
                    None => return (Some(usage), None),
                    Some(excess) => excess,
                },
                _ => format!("sessions of ended clients remain: {sessions:?}"),
            };
            if Instant::now() > until {
                return (usage, Some(format!("{excess}; {}", self.started.threads())));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The first resource that exceeds its bound when one client is left.
    fn excess(&self, usage: Usage) -> Option<String> {
        let first = self.first;
        // The observer's connection needs two descriptors.
        let descriptors = first.descriptors + KEPT_DESCRIPTORS + SPARE_DESCRIPTORS + 2;
        if usage.frames > 0 {
            Some(format!("{} frames of ended clients are mapped", usage.frames))
        } else if usage.descriptors > descriptors {
            Some(format!("{} descriptors, {} at the start", usage.descriptors, first.descriptors))
        } else if usage.threads > first.threads {
            Some(format!("{} threads, {} at the start", usage.threads, first.threads))
        } else if usage.resident_kib > first.resident_kib + SPARE_KIB {
            Some(format!("{} KiB resident, {} at the start", usage.resident_kib, first.resident_kib))
        } else {
            None
        }
    }
}
