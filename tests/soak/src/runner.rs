//! The run: keeps clients and services running, abuses them by the schedule, and judges the results.
//!
//! ```text
//! until the time is up, or Ctrl-C:
//!   lines ─► clients::handle_line      exits ─► clients::poll_exit      too few clients ─► start more
//!   schedule ─► kill, stop, ballast    a service's time is up ─► SIGKILL; or kill all clients, check for leaks, SIGTERM
//! then: kill all clients, check for leaks, SIGTERM
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
use crate::clients::{self, History, Kind, Recipe, Running};
use crate::process::{Line, POLL_INTERVAL, Started};
use crate::random::Random;
use crate::report::{Report, Sample, Settled};
use crate::roles::Role;
use crate::service::{Launcher, SOON, Service};
use crate::{Programs, SoakError};

/// Concurrent clients of each kind.
const TEAM: [(Kind, usize); 12] = [
    (Kind::Part(Role::Mover), 2),
    (Kind::Part(Role::Lender), 1),
    (Kind::Part(Role::Borrower), 1),
    (Kind::Part(Role::Embedded), 1),
    (Kind::Part(Role::Consumer), 1),
    (Kind::Part(Role::Producer), 1),
    (Kind::Part(Role::Files), 1),
    (Kind::Part(Role::Plain), 1),
    (Kind::Part(Role::Engine), 1),
    (Kind::Part(Role::Far), 1),
    (Kind::C, 1),
    (Kind::Python, 1),
];

/// Descriptors and threads that a file server creates on first use, a few for each worker, and keeps.
const LAZY: u64 = 16;

/// A kind of client without a completion for so long is reported.
const IDLE: Duration = Duration::from_secs(300);

/// Rows of the table.
const ROWS: u32 = 20;

/// The directory of a run, removed with it.
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

struct Runner<'a> {
    random: Random,
    report: Report,
    history: History,
    recipe: Recipe<'a>,
    command: PathBuf,
    line_sender: Sender<Line>,
    line_receiver: Receiver<Line>,
    /// Lines received while waiting for a certain one.
    pending_lines: Vec<Line>,
    next: u64,
    duration: Duration,
    started: Instant,
    clients: Vec<Running>,
    /// Completions of each kind of client, and when they last increased.
    progress: BTreeMap<Kind, (u64, Instant)>,
    service: Option<Service>,
    files: Option<Service>,
    /// Until when the service is stopped.
    stopped: Option<Instant>,
    interrupted: Arc<AtomicBool>,
}

/// Runs for a duration, or until it is interrupted.
pub(crate) fn run(seed: u64, duration: Duration, programs: &Programs) -> Result<Report, SoakError> {
    let place = Place::new()?;
    let own = std::env::current_exe()?;
    let beside = || own.parent().map(|directory| directory.join("memferry"));
    let command = programs.memferry.clone().or_else(beside).ok_or("the folder of this program is unknown")?;
    if !command.exists() {
        return Err(
            format!("{} does not exist; build it, or name it with --memferry", command.display()).into()
        );
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let (line_sender, line_receiver) = channel();
    println!("soak: seed {seed}, {} s, in {}", duration.as_secs(), place.0.display());
    let mut runner = Runner {
        random: Random::new(seed),
        report: Report::new(seed, duration.as_secs_f64()),
        history: History::default(),
        recipe: Recipe { directory: &place.0, own: own.clone(), programs },
        command,
        line_sender,
        line_receiver,
        pending_lines: Vec::new(),
        next: 0,
        duration,
        started: Instant::now(),
        clients: Vec::new(),
        progress: BTreeMap::new(),
        service: None,
        files: None,
        stopped: None,
        interrupted,
    };
    runner.run()?;
    Ok(runner.report)
}

impl Runner<'_> {
    fn is_over(&self) -> bool {
        self.started.elapsed() >= self.duration || self.interrupted.load(Ordering::Relaxed)
    }

    fn run(&mut self) -> Result<(), SoakError> {
        self.note_left_out();
        Report::print_head();
        let mut schedule = Schedule::new(Instant::now(), &mut self.random);
        let mut sampled = Instant::now();
        let pause = self.duration / ROWS;
        let mut counted = (0, 0);
        while !self.is_over() {
            self.keep_services()?;
            self.end_expired_service()?;
            self.keep_clients()?;
            while let Some(abuse) = schedule.due(Instant::now(), &mut self.random) {
                self.abuse(abuse)?;
            }
            self.process_lines()?;
            if sampled.elapsed() >= pause {
                self.sample(sampled.elapsed().as_secs_f64(), &mut counted);
                self.find_idle();
                sampled = Instant::now();
            }
        }
        self.report.interrupted = self.interrupted.load(Ordering::Relaxed);
        self.report.ran = self.started.elapsed().as_secs_f64();
        self.end_service(true)?;
        self.end_files(true)?;
        self.kill_clients(|_| true)
    }

    fn note_left_out(&mut self) {
        for (kind, _) in TEAM {
            if self.recipe.words(kind, 0, &[]).is_none() {
                self.report
                    .not_run
                    .push(format!("clients of kind {}: a program that they need was not named", kind.name()));
            } else {
                self.report.by_kind.insert(kind.name(), 0);
                self.progress.insert(kind, (0, self.started));
            }
        }
        if self.recipe.programs.clock.is_none() {
            self.report.not_run.push("jumps of the time of day: the library was not named".to_owned());
        }
        let monotonic = "jumps of the monotonic clock: a living process sees none, except when it is stopped";
        self.report.not_run.push(monotonic.to_owned());
        let memory =
            "a service short of memory: a failed allocation ends a Rust program; quotas bound its memory";
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
        let life = abuse::life(self.duration, &mut self.random);
        let launcher = Launcher {
            command: &self.command,
            directory: self.recipe.directory,
            line_sender: &self.line_sender,
            lines: &self.line_receiver,
        };
        if self.files.is_none() {
            let files = Service::files(&launcher, number, life, &mut self.random, &mut self.pending_lines)?;
            self.files = Some(files);
        } else {
            let clock = self.recipe.programs.clock.as_deref();
            let service =
                Service::serve(&launcher, number, life, clock, &mut self.random, &mut self.pending_lines)?;
            if service.starved {
                self.history.starved.insert(service.started.process());
            }
            self.report.count("services started");
            self.service = Some(service);
        }
        Ok(())
    }

    /// Ends the service when its time is up.
    fn end_expired_service(&mut self) -> Result<(), SoakError> {
        if self.service.as_ref().is_some_and(|service| Instant::now() >= service.until) {
            let gracefully = self.random.once_in(2);
            self.end_service(gracefully)?;
        }
        Ok(())
    }

    /// Reports a service that ended by itself.
    fn watch_services(&mut self) -> Result<(), SoakError> {
        for slot in [&mut self.service, &mut self.files] {
            let Some(service) = slot else { continue };
            if let Some(status) = service.started.exit_status()? {
                let errors = service.started.errors();
                self.report.find(format!("a service ({}) ended with {status}: {errors}", service.options));
                self.history.gone.insert(service.started.process());
                self.history.last = Some(Instant::now());
                *slot = None;
            }
        }
        if self.stopped.is_some_and(|until| Instant::now() >= until) {
            self.resume_service();
        }
        Ok(())
    }

    fn resume_service(&mut self) {
        if let (Some(_), Some(service)) = (self.stopped.take(), &self.service) {
            service.started.signal(Signal::CONT);
        }
    }

    /// Ends the service: with SIGKILL, or with SIGTERM; before the latter mostly all its clients are killed and leaks are reported.
    fn end_service(&mut self, gracefully: bool) -> Result<(), SoakError> {
        self.resume_service();
        let Some(mut service) = self.service.take() else { return Ok(()) };
        let process = service.started.process();
        if gracefully && self.random.once_in(3) && !self.is_over() {
            // Its clients run while it stops.
            self.report.count("services told to stop under load");
        } else if gracefully {
            self.kill_clients(Kind::is_served)?;
            let (usage, leak) = service.wait_until_released(&self.recipe.directory.join("service"));
            self.add_settled("a service", &service, usage);
            if let Some(leak) = leak {
                self.report.find(format!("a service ({}) without clients leaks: {leak}", service.options));
            }
            self.report.count("services told to stop without clients");
        } else {
            self.report.count("services killed");
        }
        self.history.gone.insert(process);
        self.history.last = Some(Instant::now());
        let signal = if gracefully { Signal::TERM } else { Signal::KILL };
        service.started.signal(signal);
        self.judge_end(&mut service, gracefully)
    }

    fn judge_end(&mut self, service: &mut Service, gracefully: bool) -> Result<(), SoakError> {
        let ended = service.started.wait_for_exit(SOON)?;
        let what = &service.options;
        match ended {
            None => {
                let threads = service.started.threads();
                self.report.find(format!("a service ({what}) does not end after its signal: {threads}"));
            }
            Some(status) if gracefully && !status.success() => {
                let errors = service.started.errors();
                self.report.find(format!("a service ({what}) ended with {status} after SIGTERM: {errors}"));
            }
            Some(_) if service.started.panicked() => {
                self.report.find(format!("a service ({what}) panicked: {}", service.started.errors()));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn end_files(&mut self, gracefully: bool) -> Result<(), SoakError> {
        let Some(mut files) = self.files.take() else { return Ok(()) };
        if gracefully {
            self.kill_clients(|kind| kind == Kind::Part(Role::Files))?;
            let until = Instant::now() + SOON;
            let usage = loop {
                let usage = files.started.usage();
                let back = usage.is_some_and(|usage| usage.descriptors <= files.first.descriptors + LAZY);
                if back || Instant::now() > until {
                    break usage;
                }
                std::thread::sleep(POLL_INTERVAL);
            };
            if let Some(usage) = usage
                && (usage.descriptors > files.first.descriptors + LAZY
                    || usage.threads > files.first.threads + LAZY)
            {
                self.report.find(format!(
                    "a file server ({}) without clients uses {usage:?}, {:?} at the start: {}",
                    files.options,
                    files.first,
                    files.started.descriptors()
                ));
            }
            self.add_settled("a file server", &files, usage);
            files.started.signal(Signal::TERM);
        } else {
            self.report.count("file servers killed");
            files.started.signal(Signal::KILL);
        }
        self.judge_end(&mut files, gracefully)
    }

    fn add_settled(&mut self, what: &'static str, service: &Service, usage: Option<crate::process::Usage>) {
        let Some(after) = usage else { return };
        let at = self.started.elapsed().as_secs_f64();
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
        let started =
            Started::new(&words, preload.or(clock).as_deref(), (number, &self.line_sender), errors)?;
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

    /// Handles the clients' lines and exits.
    fn process_lines(&mut self) -> Result<(), SoakError> {
        if self.service.as_ref().is_some_and(|service| service.starved) {
            self.history.short = Some(Instant::now());
        }
        let mut lines = std::mem::take(&mut self.pending_lines);
        lines.extend(self.line_receiver.recv_timeout(POLL_INTERVAL));
        lines.extend(self.line_receiver.try_iter());
        for line in lines {
            if let Some(client) = self.clients.iter_mut().find(|client| client.number == line.number) {
                clients::handle_line(client, &line.text, &self.history, &mut self.report);
            }
        }
        let now = Instant::now();
        let mut index = 0;
        while index < self.clients.len() {
            let client = &mut self.clients[index];
            if client.stopped.is_some_and(|until| now >= until) {
                client.stopped = None;
                client.last_line = now;
                client.started.signal(Signal::CONT);
            }
            match clients::poll_exit(client, &mut self.report)? {
                None => index += 1,
                Some(status) => {
                    let gone = self.clients.swap_remove(index);
                    self.retire(gone, status);
                }
            }
        }
        Ok(())
    }

    /// Handles the last lines of a client that ended.
    fn retire(&mut self, mut gone: Running, status: ExitStatus) {
        gone.started.join_reader();
        let last: Vec<Line> = self.line_receiver.try_iter().collect();
        for line in last {
            match line.number == gone.number {
                true => clients::handle_line(&mut gone, &line.text, &self.history, &mut self.report),
                false => self.pending_lines.push(line),
            }
        }
        clients::judge_end(&gone, status, &mut self.report);
    }

    /// Kills clients and waits until they are gone.
    fn kill_clients(&mut self, which: impl Fn(Kind) -> bool) -> Result<(), SoakError> {
        self.clients.iter_mut().filter(|client| which(client.kind)).for_each(Running::kill);
        while self.clients.iter().any(|client| which(client.kind)) {
            self.process_lines()?;
        }
        Ok(())
    }

    /// Reports kinds of clients that run without completions, which no client can detect by itself.
    fn find_idle(&mut self) {
        for (kind, (counted, since)) in &mut self.progress {
            let done = self.report.by_kind.get(&kind.name()).copied().unwrap_or(0);
            if done > *counted {
                (*counted, *since) = (done, Instant::now());
            } else if since.elapsed() > IDLE {
                let name = kind.name();
                let seconds = since.elapsed().as_secs();
                self.report.find(format!("no client of kind {name} completed anything in {seconds} s"));
                *since = Instant::now();
            }
        }
    }

    fn sample(&mut self, seconds: f64, counted: &mut (u64, u64)) {
        let completions = self.report.completions;
        let bytes = self.report.bytes;
        let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
        let sample = Sample {
            at: self.started.elapsed().as_secs_f64(),
            completions: rate(completions, counted.0),
            bytes: rate(bytes, counted.1),
            clients: self.clients.len(),
            service: self.service.as_ref().and_then(|service| service.started.usage()),
            files: self.files.as_ref().and_then(|files| files.started.usage()),
        };
        *counted = (completions, bytes);
        self.report.sample(sample);
    }
}
