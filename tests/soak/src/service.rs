//! The services under test: started with drawn options, ended kindly or not, held to what they began with.
//!
//! ```text
//! start ─► ready ─ what it holds ─► abuse ─ clients gone ─► what it holds: about the same? ─► end: as told?
//! ```

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use memferry::Client;

use crate::SoakError;
use crate::process::{Held, LOOK, Line, Started};
use crate::random::Random;

/// How long what must come may take on a machine that is this busy.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// Client queues a user may have open.
pub(crate) const QUEUES: u64 = 64;
/// What a service keeps for ever of each: the two memories of a queue pair, in two sizes.
const KEPT_DESCRIPTORS: u64 = 2 * 2 * QUEUES;
/// Descriptors that are opened for good after the first look: what the last client's end leaves until it is swept up.
const SPARE_DESCRIPTORS: u64 = 8;
/// What those memories, and the allocator's own leftovers, may take beyond what it began with.
const SPARE_KIB: u64 = 24 << 10;

/// A service or a file server.
pub(crate) struct Service {
    pub(crate) started: Started,
    pub(crate) since: Instant,
    /// Until when it is left alive.
    pub(crate) until: Instant,
    /// It may run out of descriptors.
    pub(crate) starved: bool,
    /// What it held when it was ready.
    pub(crate) first: Held,
    pub(crate) options: String,
}

/// Where its processes leave what they have to say.
pub(crate) struct Desk<'a> {
    pub(crate) command: &'a Path,
    pub(crate) directory: &'a Path,
    pub(crate) said: &'a Sender<Line>,
    pub(crate) heard: &'a Receiver<Line>,
}

impl Service {
    /// Starts the service for clients.
    pub(crate) fn serve(
        desk: &Desk<'_>,
        number: u64,
        life: Duration,
        clock: Option<&Path>,
        random: &mut Random,
        others: &mut Vec<Line>,
    ) -> Result<Self, SoakError> {
        let options = [
            format!("--workers={}", random.between(1, 3)),
            format!("--channels={}", random.one_of(&[2, 4, 32])),
            format!("--chunk={}", random.one_of(&[1000, 65536, 262_144])),
            format!("--policy={}", random.one_of(&["shared", "shared", "priority", "deadline", "weighted"])),
            format!("--grace-ms={}", random.one_of(&[0, 50, 2000])),
        ];
        let mut words = vec![desk.command.display().to_string()];
        words.extend(["serve".to_owned(), "--no-config".to_owned(), "--socket".to_owned()]);
        words.push(desk.directory.join("service").display().to_string());
        words.extend(options.iter().cloned());
        let preload = clock.filter(|_| random.once_in(3));
        let starved = random.once_in(4);
        let mut service = Self::start(desk, &words, preload, number, life, others)?;
        service.options = options.join(" ");
        service.starved = starved;
        if starved {
            service.started.leave_descriptors(random.between(6, 40));
        }
        Ok(service)
    }

    /// Starts the file server.
    pub(crate) fn files(
        desk: &Desk<'_>,
        number: u64,
        life: Duration,
        random: &mut Random,
        others: &mut Vec<Line>,
    ) -> Result<Self, SoakError> {
        let engine = random.one_of(&["auto", "copying", "pool", "cached"]);
        let mut words = vec![desk.command.display().to_string()];
        words.extend(["9p", "serve", "--engine", engine, "--listen"].map(str::to_owned));
        words.push(format!("unix:{}", desk.directory.join(crate::roles::FILES).display()));
        words.push(desk.directory.join("export").display().to_string());
        let mut service = Self::start(desk, &words, None, number, life, others)?;
        service.options = format!("--engine={engine}");
        Ok(service)
    }

    fn start(
        desk: &Desk<'_>,
        words: &[String],
        preload: Option<&Path>,
        number: u64,
        life: Duration,
        others: &mut Vec<Line>,
    ) -> Result<Self, SoakError> {
        let errors = desk.directory.join(format!("errors-{number}"));
        let mut started = Started::new(words, preload, (number, desk.said), errors)?;
        let until = Instant::now() + SOON;
        loop {
            match desk.heard.recv_timeout(LOOK) {
                Ok(line) if line.number == number && line.text.starts_with("listening on ") => break,
                Ok(line) => others.push(line),
                Err(_) if started.ended()?.is_some() || Instant::now() > until => {
                    return Err(format!("{} did not start: {}", words.join(" "), started.errors()).into());
                }
                Err(_) => {}
            }
        }
        let since = Instant::now();
        let first = started.held().ok_or("a service that just began is gone")?;
        Ok(Self { started, since, until: since + life, starved: false, first, options: String::new() })
    }

    /// What a service still holds of clients that are gone; the second what is wrong with it.
    pub(crate) fn settled(&self, socket: &Path) -> (Option<Held>, Option<String>) {
        let until = Instant::now() + SOON;
        let observer = loop {
            match Client::connect(socket) {
                Ok(client) => break client,
                Err(error) if Instant::now() > until => {
                    return (None, Some(format!("no client gets in though all others are gone: {error}")));
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        };
        loop {
            let sessions = observer.status().map(|status| status.open_sessions);
            let held = self.started.held();
            let wrong = match (&sessions, held) {
                (Ok(1), Some(held)) => match self.too_much(held) {
                    None => return (Some(held), None),
                    Some(wrong) => wrong,
                },
                _ => format!("sessions of clients that are gone: {sessions:?}"),
            };
            if Instant::now() > until {
                return (held, Some(format!("{wrong}; {}", self.started.threads())));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What is more than it may be, for a service of which one client is left.
    fn too_much(&self, held: Held) -> Option<String> {
        let first = self.first;
        // The observer's connection costs two.
        let descriptors = first.descriptors + KEPT_DESCRIPTORS + SPARE_DESCRIPTORS + 2;
        if held.frames > 0 {
            Some(format!("{} frames of clients that are gone are mapped", held.frames))
        } else if held.descriptors > descriptors {
            Some(format!("{} descriptors, {} in the beginning", held.descriptors, first.descriptors))
        } else if held.threads > first.threads {
            Some(format!("{} threads, {} in the beginning", held.threads, first.threads))
        } else if held.resident_kib > first.resident_kib + SPARE_KIB {
            Some(format!("{} KiB resident, {} in the beginning", held.resident_kib, first.resident_kib))
        } else {
            None
        }
    }
}
