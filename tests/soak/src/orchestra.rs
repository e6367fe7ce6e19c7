//! The run: keeps clients and services going, abuses them as the schedule says, and judges what comes of it.
//!
//! ```text
//! until the time is up, or Ctrl-C:
//!   lines ─► clients::heard      ends ─► clients::ended        too few clients ─► others
//!   schedule ─► kill, stop, ballast      a service's time is up ─► kill; or all clients away, settled?, told to stop
//! then: all clients away, settled?, told to stop
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::abuse::{self, Abuse, Schedule};
use crate::clients::{self, Kind, Past, Recipe, Running};
use crate::process::{LOOK, Line, Started};
use crate::random::Random;
use crate::report::{Report, Sample, Settled};
use crate::roles::Role;
use crate::service::{Desk, SOON, Service};
use crate::{Programs, SoakError};

/// Clients that run at a time, of each kind.
const TEAM: [(Kind, usize); 10] = [
    (Kind::Part(Role::Mover), 2),
    (Kind::Part(Role::Lender), 1),
    (Kind::Part(Role::Borrower), 1),
    (Kind::Part(Role::Embedded), 1),
    (Kind::Part(Role::Consumer), 1),
    (Kind::Part(Role::Producer), 1),
    (Kind::Part(Role::Files), 1),
    (Kind::Part(Role::Plain), 1),
    (Kind::C, 1),
    (Kind::Python, 1),
];

/// Descriptors and threads that a file server makes when it first needs them, a few for each worker, and keeps.
const LAZY: u64 = 16;

/// A kind of client that gets nothing done for so long is kept from it by something.
const IDLE: Duration = Duration::from_secs(300);

/// Rows of the table.
const ROWS: u32 = 20;

/// The directory of a run, gone with it.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self, SoakError> {
        let path = std::env::temp_dir().join(format!("memferry-soak-{}", std::process::id()));
        std::fs::create_dir_all(path.join("export"))?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Orchestra<'a> {
    random: Random,
    report: Report,
    past: Past,
    recipe: Recipe<'a>,
    command: PathBuf,
    said: Sender<Line>,
    heard: Receiver<Line>,
    /// Lines that came while a certain one was waited for.
    kept: Vec<Line>,
    next: u64,
    whole: Duration,
    began: Instant,
    clients: Vec<Running>,
    /// Completions of each kind of client, and since when there are no more.
    progress: BTreeMap<Kind, (u64, Instant)>,
    service: Option<Service>,
    files: Option<Service>,
    /// The service is stopped until then.
    stopped: Option<Instant>,
    interrupted: Arc<AtomicBool>,
}

/// Runs for so long, or until it is interrupted.
pub(crate) fn run(seed: u64, whole: Duration, programs: &Programs) -> Result<Report, SoakError> {
    let place = Place::new()?;
    let own = std::env::current_exe()?;
    let beside = || own.parent().map(|directory| directory.join("memferry"));
    let command = programs.memferry.clone().or_else(beside).ok_or("no command")?;
    if !command.exists() {
        return Err(
            format!("{} is not there; build it, or name it with --memferry", command.display()).into()
        );
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let (said, heard) = channel();
    println!("soak: seed {seed}, {} s, in {}", whole.as_secs(), place.0.display());
    let mut orchestra = Orchestra {
        random: Random::new(seed),
        report: Report::new(seed, whole.as_secs_f64()),
        past: Past::default(),
        recipe: Recipe { directory: &place.0, own: own.clone(), programs },
        command,
        said,
        heard,
        kept: Vec::new(),
        next: 0,
        whole,
        began: Instant::now(),
        clients: Vec::new(),
        progress: BTreeMap::new(),
        service: None,
        files: None,
        stopped: None,
        interrupted,
    };
    orchestra.play()?;
    Ok(orchestra.report)
}

impl Orchestra<'_> {
    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.whole || self.interrupted.load(Ordering::Relaxed)
    }

    fn play(&mut self) -> Result<(), SoakError> {
        self.say_what_is_left_out();
        Report::print_head();
        let mut schedule = Schedule::new(Instant::now(), &mut self.random);
        let mut sampled = Instant::now();
        let pause = self.whole / ROWS;
        let mut counted = (0, 0);
        while !self.is_over() {
            self.keep_services()?;
            self.end_in_time()?;
            self.keep_clients()?;
            while let Some(abuse) = schedule.due(Instant::now(), &mut self.random) {
                self.abuse(abuse)?;
            }
            self.listen()?;
            if sampled.elapsed() >= pause {
                self.sample(sampled.elapsed().as_secs_f64(), &mut counted);
                self.find_idle();
                sampled = Instant::now();
            }
        }
        self.report.interrupted = self.interrupted.load(Ordering::Relaxed);
        self.report.ran = self.began.elapsed().as_secs_f64();
        self.end_service(true)?;
        self.end_files(true)?;
        self.clear(|_| true)
    }

    fn say_what_is_left_out(&mut self) {
        for (kind, _) in TEAM {
            if self.recipe.words(kind, 0, &[]).is_none() {
                self.report
                    .not_run
                    .push(format!("clients of kind {}: what they need was not named", kind.name()));
            } else {
                self.report.by_kind.insert(kind.name(), 0);
                self.progress.insert(kind, (0, self.began));
            }
        }
        if self.recipe.programs.clock.is_none() {
            self.report.not_run.push("jumps of the time of day: the library for it was not named".to_owned());
        }
        let monotonic =
            "jumps of the monotonic clock: it has none while a process lives, but that of being stopped";
        self.report.not_run.push(monotonic.to_owned());
        let memory =
            "a service short of memory: an allocation that fails ends a Rust program; quotas bound it";
        self.report.not_run.push(memory.to_owned());
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn keep_services(&mut self) -> Result<(), SoakError> {
        if self.files.is_some() && self.service.is_some() {
            return self.watch_services();
        }
        let number = self.number();
        let life = abuse::life(self.whole, &mut self.random);
        let desk = Desk {
            command: &self.command,
            directory: self.recipe.directory,
            said: &self.said,
            heard: &self.heard,
        };
        if self.files.is_none() {
            let files = Service::files(&desk, number, life, &mut self.random, &mut self.kept)?;
            self.files = Some(files);
        } else {
            let clock = self.recipe.programs.clock.as_deref();
            let service = Service::serve(&desk, number, life, clock, &mut self.random, &mut self.kept)?;
            if service.starved {
                self.past.starved.insert(service.started.process());
            }
            self.report.count("services started");
            self.service = Some(service);
        }
        Ok(())
    }

    /// Ends a service whose time is up.
    fn end_in_time(&mut self) -> Result<(), SoakError> {
        if self.service.as_ref().is_some_and(|service| Instant::now() >= service.until) {
            let kindly = self.random.once_in(2);
            self.end_service(kindly)?;
        }
        Ok(())
    }

    /// A service that ends by itself is a finding, and so is one that panics.
    fn watch_services(&mut self) -> Result<(), SoakError> {
        for slot in [&mut self.service, &mut self.files] {
            let Some(service) = slot else { continue };
            if let Some(status) = service.started.ended()? {
                let errors = service.started.errors();
                self.report.find(format!("a service ({}) ended with {status}: {errors}", service.options));
                self.past.gone.insert(service.started.process());
                self.past.last = Some(Instant::now());
                *slot = None;
            }
        }
        if self.stopped.is_some_and(|until| Instant::now() >= until) {
            self.go_on();
        }
        Ok(())
    }

    fn go_on(&mut self) {
        if let (Some(_), Some(service)) = (self.stopped.take(), &self.service) {
            service.started.signal(Signal::CONT);
        }
    }

    /// Ends the service: at once, or when all its clients are gone and it holds nothing of theirs any more.
    fn end_service(&mut self, kindly: bool) -> Result<(), SoakError> {
        self.go_on();
        let Some(mut service) = self.service.take() else { return Ok(()) };
        let process = service.started.process();
        if kindly && self.random.once_in(3) && !self.is_over() {
            // Its clients are there while it stops.
            self.report.count("services told to stop under load");
        } else if kindly {
            self.clear(Kind::is_served)?;
            let (held, wrong) = service.settled(&self.recipe.directory.join("service"));
            self.settled("a service", &service, held);
            if let Some(wrong) = wrong {
                self.report.find(format!("a service ({}) without clients holds: {wrong}", service.options));
            }
            self.report.count("services told to stop without clients");
        } else {
            self.report.count("services killed");
        }
        self.past.gone.insert(process);
        self.past.last = Some(Instant::now());
        let signal = if kindly { Signal::TERM } else { Signal::KILL };
        service.started.signal(signal);
        self.judge_end(&mut service, kindly)
    }

    fn judge_end(&mut self, service: &mut Service, kindly: bool) -> Result<(), SoakError> {
        let ended = service.started.ended_within(SOON)?;
        let what = &service.options;
        match ended {
            None => {
                let threads = service.started.threads();
                self.report.find(format!("a service ({what}) told to end does not: {threads}"));
            }
            Some(status) if kindly && !status.success() => {
                let errors = service.started.errors();
                self.report.find(format!("a service ({what}) told to stop ended with {status}: {errors}"));
            }
            Some(_) if service.started.panicked() => {
                self.report.find(format!("a service ({what}) panicked: {}", service.started.errors()));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn end_files(&mut self, kindly: bool) -> Result<(), SoakError> {
        let Some(mut files) = self.files.take() else { return Ok(()) };
        if kindly {
            self.clear(|kind| kind == Kind::Part(Role::Files))?;
            let until = Instant::now() + SOON;
            let held = loop {
                let held = files.started.held();
                let back = held.is_some_and(|held| held.descriptors <= files.first.descriptors + LAZY);
                if back || Instant::now() > until {
                    break held;
                }
                std::thread::sleep(LOOK);
            };
            if let Some(held) = held
                && (held.descriptors > files.first.descriptors + LAZY
                    || held.threads > files.first.threads + LAZY)
            {
                self.report.find(format!(
                    "a file server ({}) without clients holds {held:?}, {:?} in the beginning: {}",
                    files.options,
                    files.first,
                    files.started.descriptors()
                ));
            }
            self.settled("a file server", &files, held);
            files.started.signal(Signal::TERM);
        } else {
            self.report.count("file servers killed");
            files.started.signal(Signal::KILL);
        }
        self.judge_end(&mut files, kindly)
    }

    fn settled(&mut self, what: &'static str, service: &Service, held: Option<crate::process::Held>) {
        let Some(after) = held else { return };
        let at = self.began.elapsed().as_secs_f64();
        let age = service.since.elapsed().as_secs_f64();
        self.report.settled.push(Settled { at, age, what, before: service.first, after });
    }

    fn keep_clients(&mut self) -> Result<(), SoakError> {
        for (kind, wanted) in TEAM {
            let count = self.clients.iter().filter(|client| client.kind == kind).count();
            if count < wanted {
                self.start(kind)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, kind: Kind) -> Result<(), SoakError> {
        let number = self.number();
        let seed = self.random.next();
        let mut limits = Vec::new();
        if kind == Kind::Part(Role::Mover) {
            match self.random.below(6) {
                0 => limits.push(format!("--descriptors={}", self.random.between(1, 12))),
                1 => limits.push(format!("--memory={}", 256 << 20)),
                _ => {}
            }
        }
        let Some((words, preload)) = self.recipe.words(kind, seed, &limits) else { return Ok(()) };
        let errors = self.recipe.directory.join(format!("errors-{number}"));
        let clock = self.recipe.programs.clock.clone().filter(|_| kind.is_served() && self.random.once_in(4));
        if clock.is_some() {
            self.report.count("clients whose time of day jumps");
        }
        let started = Started::new(&words, preload.or(clock).as_deref(), (number, &self.said), errors)?;
        self.report.count(if limits.is_empty() {
            "clients started"
        } else {
            "clients started, short of something"
        });
        self.clients.push(Running::new(kind, seed, number, started, !limits.is_empty()));
        Ok(())
    }

    fn abuse(&mut self, abuse: Abuse) -> Result<(), SoakError> {
        let pause = Duration::from_millis(self.random.between(1, 400));
        let victim = self.random.below(self.clients.len() as u64) as usize;
        match (abuse, self.clients.get_mut(victim)) {
            (Abuse::KillClient, Some(client)) => {
                self.report.count("clients killed");
                client.kill();
            }
            (Abuse::StopClient, Some(client)) if client.stopped.is_none() => {
                self.report.count("clients stopped for a moment");
                client.started.signal(Signal::STOP);
                client.stopped = Some(Instant::now() + pause);
            }
            (Abuse::StopService, _) if self.stopped.is_none() => {
                if let Some(service) = &self.service {
                    self.report.count("services stopped for a moment");
                    service.started.signal(Signal::STOP);
                    self.stopped = Some(Instant::now() + pause);
                }
            }
            (Abuse::Ballast, _) => {
                self.report.count("processes that take memory");
                self.start(Kind::Part(Role::Ballast))?;
            }
            (Abuse::KillFiles, _) => self.end_files(false)?,
            _ => {}
        }
        Ok(())
    }

    /// Hears what was said meanwhile, and sees who has ended.
    fn listen(&mut self) -> Result<(), SoakError> {
        if self.service.as_ref().is_some_and(|service| service.starved) {
            self.past.short = Some(Instant::now());
        }
        let mut lines = std::mem::take(&mut self.kept);
        lines.extend(self.heard.recv_timeout(LOOK));
        lines.extend(self.heard.try_iter());
        for line in lines {
            if let Some(client) = self.clients.iter_mut().find(|client| client.number == line.number) {
                clients::heard(client, &line.text, &self.past, &mut self.report);
            }
        }
        let now = Instant::now();
        let mut index = 0;
        while index < self.clients.len() {
            let client = &mut self.clients[index];
            if client.stopped.is_some_and(|until| now >= until) {
                client.stopped = None;
                client.heard = now;
                client.started.signal(Signal::CONT);
            }
            match clients::ended(client, &mut self.report)? {
                None => index += 1,
                Some(status) => {
                    let gone = self.clients.swap_remove(index);
                    self.forget(gone, status);
                }
            }
        }
        Ok(())
    }

    /// Hears the last of a client.
    fn forget(&mut self, mut gone: Running, status: ExitStatus) {
        gone.started.heard_out();
        let last: Vec<Line> = self.heard.try_iter().collect();
        for line in last {
            match line.number == gone.number {
                true => clients::heard(&mut gone, &line.text, &self.past, &mut self.report),
                false => self.kept.push(line),
            }
        }
        clients::judge_end(&gone, status, &mut self.report);
    }

    /// Kills clients, and waits until they are gone.
    fn clear(&mut self, which: impl Fn(Kind) -> bool) -> Result<(), SoakError> {
        self.clients.iter_mut().filter(|client| which(client.kind)).for_each(Running::kill);
        while self.clients.iter().any(|client| which(client.kind)) {
            self.listen()?;
        }
        Ok(())
    }

    /// Finds kinds of clients that run and get nothing done, which none of them can see by itself.
    fn find_idle(&mut self) {
        for (kind, (counted, since)) in &mut self.progress {
            let done = self.report.by_kind.get(&kind.name()).copied().unwrap_or(0);
            if done > *counted {
                (*counted, *since) = (done, Instant::now());
            } else if since.elapsed() > IDLE {
                let name = kind.name();
                let seconds = since.elapsed().as_secs();
                self.report.find(format!("no client of kind {name} got anything done in {seconds} s"));
                *since = Instant::now();
            }
        }
    }

    fn sample(&mut self, seconds: f64, counted: &mut (u64, u64)) {
        let completions = self.report.completions;
        let bytes = self.report.bytes;
        let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
        let sample = Sample {
            at: self.began.elapsed().as_secs_f64(),
            completions: rate(completions, counted.0),
            bytes: rate(bytes, counted.1),
            clients: self.clients.len(),
            service: self.service.as_ref().and_then(|service| service.started.held()),
            files: self.files.as_ref().and_then(|files| files.started.held()),
        };
        *counted = (completions, bytes);
        self.report.sample(sample);
    }
}
