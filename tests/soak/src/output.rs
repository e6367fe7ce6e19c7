//! The lines that clients in every language print on standard output.
//!
//! ```text
//! hello PID                 the service in that process serves this client
//! at COMPLETIONS BYTES      progress so far, several times a second
//! lost PID                  that service is gone, and every ticket got one completion
//! ended PID WHY             that service ended the session
//! refused PID KIND WHY      it refused a call; KIND is `own` if this process's limits are the reason
//! pending                   a revocation was not complete in time, and is waited for again
//! finding WHAT              something is wrong
//! ```
//!
//! The runner decides whether a loss, an end or a refusal was to be expected, since it knows what it add to the service.

use std::io::Write;
use std::time::{Duration, Instant};

use memferry::{AccessError, CallError, ConnectError, FrameError, OpenError, SubmitReason};
use memferry_service::protocol::{Refusal, RefusalKind};

const PAUSE: Duration = Duration::from_millis(200);

/// Why a session ended, or a part of its work could not be done.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The service is gone.
    Lost,
    /// The service ended the session.
    Ended(String),
    /// The service, or the system, refused a call.
    Refused(&'static str, String),
    Finding(String),
}

/// Returns wrong behaviour as an error.
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
            // A process short of descriptors cannot receive those that come with a reply.
            CallError::Send(_) | CallError::Protocol(_) => Self::Refused("own", error.to_string()),
            CallError::TimedOut { .. } | CallError::RevocationPending { .. } => {
                Self::Refused("own", error.to_string())
            }
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
            OpenError::Memory(_) => Self::Finding(error.to_string()),
        }
    }
}

impl From<ConnectError> for Stop {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Socket { .. } => Self::Lost,
            ConnectError::Handshake { violation, .. } => Self::Ended(violation.to_string()),
            ConnectError::Refused(refusal) => refused(&refusal),
            ConnectError::TimedOut { .. } => Self::Refused("own", error.to_string()),
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

/// Reports the progress of this client.
pub(crate) struct Progress {
    completions: u64,
    bytes: u64,
    last: Instant,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { completions: 0, bytes: 0, last: Instant::now() }
    }

    /// Counts work that was done and checked.
    pub(crate) fn add(&mut self, completions: u64, bytes: u64) {
        self.completions += completions;
        self.bytes += bytes;
        if self.last.elapsed() >= PAUSE {
            self.report();
        }
    }

    pub(crate) fn report(&mut self) {
        self.last = Instant::now();
        print_line(&format!("at {} {}", self.completions, self.bytes));
    }
}

/// Prints a line for the runner, which may be gone.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", line.replace('\n', " "));
}
