//! What clients say of themselves, a line at a time on standard output, in every language.
//!
//! ```text
//! hello PID                 the service in that process serves this client
//! at COMPLETIONS BYTES      how far it is, several times a second
//! lost PID                  that service is gone, and every ticket got its one completion
//! ended PID WHY             that service ended the session
//! refused PID KIND WHY      it would not do something; KIND `own` when this process's limits are in the way
//! finding WHAT              something is wrong
//! ```
//!
//! Whether a loss, an end or a refusal was called for is the orchestrator's to judge: it knows what it
//! did to the service.

use std::io::Write;
use std::time::{Duration, Instant};

use memferry::{AccessError, CallError, ConnectError, FrameError, OpenError, SubmitReason};
use memferry_service::protocol::{Refusal, RefusalKind};

const PAUSE: Duration = Duration::from_millis(200);

/// Why a session with a service is over, or a part of its work could not be done.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The service is gone.
    Lost,
    /// It ended the session.
    Ended(String),
    /// It, or the system, would not.
    Refused(&'static str, String),
    /// What must not be.
    Finding(String),
}

/// What must not be, as an error.
pub(crate) fn finding<T>(what: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Finding(what.into()))
}

fn refused(refusal: &Refusal) -> Stop {
    let kind = match refusal.kind {
        RefusalKind::Frame => "frame",
        RefusalKind::Capability => "capability",
        RefusalKind::Quota => "quota",
        RefusalKind::Argument => "argument",
        RefusalKind::Stopping => "stopping",
        RefusalKind::System => "system",
    };
    Stop::Refused(kind, refusal.message.clone())
}

impl From<CallError> for Stop {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => refused(&refusal),
            CallError::Ended(violation) => Self::Ended(violation.to_string()),
            CallError::ServiceLost => Self::Lost,
            // A process short of descriptors does not get those that come with an answer.
            CallError::Send(_) | CallError::Protocol(_) => Self::Refused("own", error.to_string()),
            CallError::PartOfArena | CallError::Forked(_) => Self::Finding(error.to_string()),
        }
    }
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Call(error) => error.into(),
            FrameError::Allocate(_) => Self::Refused("own", error.to_string()),
            _ => Self::Finding(error.to_string()),
        }
    }
}

impl From<OpenError> for Stop {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Call(error) => error.into(),
            OpenError::Map(_) => Self::Refused("own", error.to_string()),
        }
    }
}

impl From<ConnectError> for Stop {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Socket { .. } => Self::Lost,
            ConnectError::Handshake { violation, .. } => Self::Ended(violation.to_string()),
            ConnectError::Refused(refusal) => refused(&refusal),
            ConnectError::Start(_) | ConnectError::Setup(_) => Self::Refused("own", error.to_string()),
        }
    }
}

impl From<AccessError> for Stop {
    fn from(error: AccessError) -> Self {
        Self::Finding(error.to_string())
    }
}

impl From<SubmitReason> for Stop {
    fn from(reason: SubmitReason) -> Self {
        match reason {
            SubmitReason::ServiceLost => Self::Lost,
            other => Self::Finding(format!("not submitted: {other}")),
        }
    }
}

/// Says how far this client is.
pub(crate) struct Teller {
    completions: u64,
    bytes: u64,
    last: Instant,
}

impl Teller {
    pub(crate) fn new() -> Self {
        Self { completions: 0, bytes: 0, last: Instant::now() }
    }

    /// Counts work that was done and checked.
    pub(crate) fn did(&mut self, completions: u64, bytes: u64) {
        self.completions += completions;
        self.bytes += bytes;
        if self.last.elapsed() >= PAUSE {
            self.say();
        }
    }

    pub(crate) fn say(&mut self) {
        self.last = Instant::now();
        say(&format!("at {} {}", self.completions, self.bytes));
    }
}

/// A line for the orchestrator. Nobody may be listening any more.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", line.replace('\n', " "));
}
