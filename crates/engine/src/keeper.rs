//! The keeper: maps frames before they are sealed, and keeps an engine running that has them.
//!
//! ```text
//! connect ─► AttachEngine(Keeper) ─► fork ─► the engine attaches ─► NextFrame ─► map ─► NextFrame(done) ─► ...
//! the engine ends     ─► a pause, in which frames are still mapped ─► fork
//! the service is lost ─► the engine is killed, everything unmapped ─► connect again
//! SIGTERM, SIGINT     ─► the engine ends, then the keeper
//! ```
//!
//! Between a fork and the engine's attaching, the keeper takes no event: the service counts on it that the engine has exactly the frames
//! that the keeper had reported.

use std::time::{Duration, Instant};

use memferry_external::DescriptionError;
use memferry_service::protocol::{Answer, Command, EngineRole, FrameEvent, engine_name_is_valid};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;
use thiserror::Error;

use crate::connection::{Connection, ConnectionError};
use crate::engine::{self, Engine};
use crate::events;
use crate::frames::Frames;
use crate::options::{EngineOptions, report};
use crate::process::{self, Forked, Process, Signals};
use crate::watcher::Watcher;

/// The pause before the first new start, which doubles up to the last one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long a first connection is tried again that the service refuses for now: it needs a moment to notice that an earlier process of
/// the engine has ended.
const TAKEN: Duration = Duration::from_secs(5);
/// After so long a run, the pause is short again, even if nobody had work for the engine.
const GOOD_RUN: Duration = Duration::from_secs(10);
/// How long an engine may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(1);

/// Why an engine process cannot run.
#[derive(Debug, Error)]
pub enum RunError {
    /// No engine can have this name.
    #[error("the engine's name {0:?} has to be 1 to 32 lower-case letters, digits and hyphens")]
    Name(String),
    /// The description contradicts itself.
    #[error("the engine's description is wrong: {0}")]
    Description(#[from] DescriptionError),
    /// The process has more than one thread, so it cannot fork safely.
    #[error("the process has more than one thread; run the engine before it starts others")]
    Threads,
    /// The first connection failed, or the service does not want this engine.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A system call failed.
    #[error("{step} failed: {source}")]
    System {
        /// The call, or what it was for.
        step: &'static str,
        /// The error that it returned.
        source: std::io::Error,
    },
}

/// Runs an engine until SIGTERM or SIGINT. The calling process becomes the keeper. `serve` runs in a process that it forks, again in a
/// new one each time the last has ended: by returning, by a panic, by a signal. It does not return there.
///
/// Call it early: the process must have one thread, and each engine begins with a copy of its memory and its open descriptors. The
/// engine ends by `_exit`, so nothing runs there that `atexit` was asked for. What goes wrong is written to standard error.
///
/// # Errors
/// [`RunError`]. A service that is lost later is no error: the keeper connects again.
pub fn run<E: std::fmt::Display>(
    options: EngineOptions,
    mut serve: impl FnMut(&mut Engine) -> Result<(), E>,
) -> Result<(), RunError> {
    if !engine_name_is_valid(&options.name) {
        return Err(RunError::Name(options.name));
    }
    options.description.check()?;
    if !process::has_one_thread() {
        return Err(RunError::Threads);
    }
    let signals = Signals::block().map_err(|source| RunError::System { step: "signalfd", source })?;
    let end = Instant::now() + TAKEN;
    let may_pass = |error: &ConnectionError| error.is_refused_for_now() && Instant::now() < end;
    let connected = connect_again(&options, &signals, || PAUSES.0, may_pass)?;
    let Some(mut connection) = connected else { return Ok(()) };
    let mut pause = Pause::default();
    loop {
        let begin = Instant::now();
        let mut keeper = Keeper {
            options: &options,
            signals: &signals,
            connection: Some(connection),
            frames: Frames::default(),
            engine: None,
            start: Instant::now(),
            pause: Pause::default(),
        };
        let ended = keeper.keep(&mut serve);
        let is_asked = match &ended {
            Ok(()) => keeper.end_engine(Signal::TERM),
            Err(error) => {
                report(&options.name, format_args!("{error}; the engine is ended"));
                keeper.end_engine(Signal::KILL)
            }
        };
        if ended.is_ok() || is_asked {
            return Ok(());
        }
        drop(keeper);
        pause.has_run(begin.elapsed(), false);
        if is_asked_within(&signals, pause.next())? {
            return Ok(());
        }
        let may_pass = |error: &ConnectionError| !error.is_final();
        let connected = connect_again(&options, &signals, || pause.next(), may_pass)?;
        let Some(again) = connected else { return Ok(()) };
        connection = again;
        report(&options.name, format_args!("connected again"));
    }
}

fn connect(options: &EngineOptions) -> Result<Connection, ConnectionError> {
    let mut connection = Connection::open(&options.socket)?;
    let attach = Command::AttachEngine { name: options.name.clone(), role: EngineRole::Keeper };
    match connection.call("attach the engine's keeper", attach, &[])? {
        (Answer::EngineAttached { .. }, _) => Ok(connection),
        _ => Err(ConnectionError::Protocol("it answered an attached keeper with something else")),
    }
}

/// Connects, again after each pause while the error may pass. `None` if a signal asked for the end meanwhile.
fn connect_again(
    options: &EngineOptions,
    signals: &Signals,
    mut pause: impl FnMut() -> Duration,
    may_pass: impl Fn(&ConnectionError) -> bool,
) -> Result<Option<Connection>, RunError> {
    let mut reported = None;
    loop {
        match connect(options) {
            Ok(connection) => return Ok(Some(connection)),
            Err(error) if !may_pass(&error) => return Err(error.into()),
            Err(error) => {
                // An administrator needs each reason once, not with each attempt.
                let error = error.to_string();
                if reported.as_ref() != Some(&error) {
                    report(&options.name, format_args!("{error}; it is tried again"));
                    reported = Some(error);
                }
            }
        }
        if is_asked_within(signals, pause())? {
            return Ok(None);
        }
    }
}

/// Waits; whether a signal asked for the end meanwhile.
fn is_asked_within(signals: &Signals, time: Duration) -> Result<bool, ConnectionError> {
    poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(time))?;
    Ok(signals.take())
}

/// Waits for one of the descriptors, at most `time`. A signal handler of the program does not end the wait early.
fn poll(entries: &mut [PollFd<'_>], time: Option<Duration>) -> Result<(), ConnectionError> {
    let end = time.and_then(|time| Instant::now().checked_add(time));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(entries, left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(ConnectionError::system("poll")(error)),
        }
    }
}

/// Pauses between the starts of engines. Each is twice the last one, up to a limit. The shortest follows an engine that worked and ran for
/// at least as long as the pause before it.
struct Pause {
    next: Duration,
    last: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { next: PAUSES.0, last: Duration::ZERO }
    }
}

impl Pause {
    /// The pause before the next start.
    fn next(&mut self) -> Duration {
        self.last = self.next;
        self.next = (self.next * 2).min(PAUSES.1);
        self.last
    }

    /// Starts again with the shortest pause after a good run: a long one, or one with work that lasted as long as the pause before it.
    fn has_run(&mut self, time: Duration, has_worked: bool) {
        if time >= GOOD_RUN || has_worked && time >= self.last {
            *self = Self::default();
        }
    }
}

/// An engine that has not ended, as far as known.
struct Running {
    process: Process,
    since: Instant,
}

/// One session of the keeper.
struct Keeper<'a> {
    options: &'a EngineOptions,
    signals: &'a Signals,
    /// `None` in the engine's process.
    connection: Option<Connection>,
    frames: Frames,
    engine: Option<Running>,
    /// When the next engine starts if there is none.
    start: Instant,
    pause: Pause,
}

impl Keeper<'_> {
    /// Keeps frames and an engine until a signal asks for the end.
    fn keep<E: std::fmt::Display>(
        &mut self,
        serve: &mut impl FnMut(&mut Engine) -> Result<(), E>,
    ) -> Result<(), ConnectionError> {
        if self.start_engine(serve)? {
            return Ok(());
        }
        self.connection()?.ask(Command::NextFrame { done: None }, &[])?;
        loop {
            let pause = self.engine.is_none().then(|| self.start.saturating_duration_since(Instant::now()));
            if pause == Some(Duration::ZERO) {
                if self.start_engine(serve)? {
                    return Ok(());
                }
                continue;
            }
            let socket = self.connection.as_ref().ok_or(ConnectionError::Lost)?.socket();
            let mut entries = vec![PollFd::new(&socket, PollFlags::IN)];
            entries.push(PollFd::new(self.signals, PollFlags::IN));
            let pidfd = self.engine.iter().map(|engine| engine.process.pidfd());
            entries.extend(pidfd.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
            poll(&mut entries, pause)?;
            let has_event = !entries[0].revents().is_empty();
            if self.signals.take() {
                return Ok(());
            }
            self.look_after_engine();
            if has_event {
                self.process_event()?;
            }
        }
    }

    fn connection(&mut self) -> Result<&mut Connection, ConnectionError> {
        self.connection.as_mut().ok_or(ConnectionError::Lost)
    }

    /// Forks an engine and waits until it is attached or has failed. Returns whether a signal asked for the end.
    fn start_engine<E: std::fmt::Display>(
        &mut self,
        serve: &mut impl FnMut(&mut Engine) -> Result<(), E>,
    ) -> Result<bool, ConnectionError> {
        let process = match process::fork(self.signals) {
            Ok(Forked::Engine(keeper)) => {
                // The session must end with the keeper, not with the engine.
                self.connection = None;
                engine::live(self.options, self.frames.clone(), keeper, serve)
            }
            Ok(Forked::Keeper(process)) => process,
            Err(error) => {
                report(&self.options.name, format_args!("the engine cannot be forked: {error}"));
                self.start = Instant::now() + self.pause.next();
                return Ok(false);
            }
        };
        self.engine = Some(Running { process, since: Instant::now() });
        let Some(Running { process, .. }) = &self.engine else { return Ok(false) };
        let socket = self.connection.as_ref().ok_or(ConnectionError::Lost)?.socket();
        loop {
            let mut entries = [
                PollFd::new(process.report(), PollFlags::IN),
                PollFd::new(self.signals, PollFlags::IN),
                // An event that waits must not be taken, but the end of the session is noticed.
                PollFd::new(&socket, PollFlags::empty()),
            ];
            poll(&mut entries, None)?;
            if self.signals.take() {
                return Ok(true);
            }
            if !entries[2].revents().is_empty() {
                return Err(ConnectionError::Lost);
            }
            if !entries[0].revents().is_empty() {
                // It is attached, or the socket was closed by its end, which its pidfd says too.
                let mut word = [0];
                let is_attached = matches!(rustix::io::read(process.report(), &mut word), Ok(1));
                if !is_attached {
                    process.signal(Signal::KILL);
                }
                return Ok(false);
            }
        }
    }

    /// Plans the next start if the engine has ended.
    fn look_after_engine(&mut self) {
        if let Some(Running { process, since }) = &self.engine
            && let Some(how) = process.try_wait()
        {
            report(&self.options.name, format_args!("the engine has ended {how}"));
            self.pause.has_run(since.elapsed(), process.has_worked());
            self.engine = None;
            self.start = Instant::now() + self.pause.next();
        }
    }

    /// Takes the event that has come, does what it asks for, and asks for the next one.
    fn process_event(&mut self) -> Result<(), ConnectionError> {
        let connection = self.connection.as_mut().ok_or(ConnectionError::Lost)?;
        let (answer, descriptors) = connection.answer("name the next frame")?;
        match answer {
            Answer::Frame(FrameEvent::Restart) => {
                if let Some(engine) = &self.engine {
                    report(&self.options.name, format_args!("the service wants a new engine"));
                    engine.process.signal(Signal::KILL);
                }
                connection.ask(Command::NextFrame { done: None }, &[])
            }
            Answer::Frame(event) => {
                events::process(event, descriptors, &self.frames, &Watcher::default(), |done, descriptors| {
                    connection.ask(Command::NextFrame { done: Some(done) }, descriptors)
                })
            }
            _ => Err(ConnectionError::Protocol("it answered with something else than an event")),
        }
    }

    /// Ends the engine by `signal`, and by SIGKILL if that takes too long. Returns whether a signal asked for the end of the keeper
    /// meanwhile; then it waits no longer.
    fn end_engine(&mut self, signal: Signal) -> bool {
        // Memory of a service that is lost, or that this process leaves.
        self.frames.clear();
        self.connection = None;
        let Some(Running { process, .. }) = self.engine.take() else { return false };
        process.signal(signal);
        let grace = (signal != Signal::KILL).then_some(GRACE);
        let ends = |time| {
            let mut entries =
                [PollFd::new(process.pidfd(), PollFlags::IN), PollFd::new(self.signals, PollFlags::IN)];
            let _ = poll(&mut entries, time);
            process.try_wait().is_some()
        };
        if grace.is_some() && ends(grace) {
            return false;
        }
        process.signal(Signal::KILL);
        // A device's driver can hold up the end of a process. A keeper that ends does not wait long for that.
        while !ends(grace) {
            if self.signals.take() || grace.is_some() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
