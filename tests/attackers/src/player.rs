//! A child process as its parent sees it: lines with deadlines, and an end that cannot be refused.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::Failed;
use crate::roles::PREFIX;

/// How long to wait for a killed child. One that a device or a file system holds is left to Linux.
const REAP_LIMIT: Duration = Duration::from_secs(5);
/// Set to see the errors of children, which attacks cause all the time.
pub(crate) const LOG: &str = "MEMFERRY_HOSTILE_LOG";
const POLL: Duration = Duration::from_millis(1);

pub struct Player {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// Why there is no line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    Late,
    Ended,
}

impl Player {
    /// Starts a command in a process group of its own.
    ///
    /// # Errors
    /// Those of starting it.
    pub fn start(mut command: Command) -> Result<Self, Failed> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        if std::env::var_os(LOG).is_none() {
            command.stderr(Stdio::null());
        }
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no output of a child")?;
        let (send, lines) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((_, reported)) = line.split_once(PREFIX)
                    && send.send(reported.to_owned()).is_err()
                {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("player".to_owned()).spawn(read)?;
        Ok(Self { child, input, lines })
    }

    /// The next line that the child reports.
    ///
    /// # Errors
    /// [`Silence`].
    pub fn line(&self, limit: Duration) -> Result<String, Silence> {
        self.lines.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Late,
            RecvTimeoutError::Disconnected => Silence::Ended,
        })
    }

    /// Sends the child a line.
    ///
    /// # Errors
    /// If it has ended.
    pub fn say(&mut self, line: &str) -> Result<(), Failed> {
        Ok(writeln!(self.input.as_mut().ok_or("no input of a child")?, "{line}")?)
    }

    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the child, not to its group.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Whether the child has ended within `limit`.
    pub fn ended(&mut self, limit: Duration) -> bool {
        let started = Instant::now();
        loop {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            if started.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.ended(REAP_LIMIT);
    }
}
