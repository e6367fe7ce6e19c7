//! Another program that answers lines with lines, each within a time limit; it ends with this value.
//!
//! ```text
//! Other::start(words) ─ --with-parent ─► program ◄─ ask(line) ─► its next line, or an error that says how it failed
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::BenchError;

/// How long a program may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Other {
    name: String,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// Why there was no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silence {
    Late,
    Ended,
}

impl Other {
    /// Starts a program. It inherits this thread's CPUs.
    pub(super) fn start(words: &[String], environment: &[(&str, &str)]) -> Result<Self, BenchError> {
        let name = words.last().cloned().unwrap_or_default();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--with-parent").args(words).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = child.stdin.take().ok_or("no input of a child")?;
        let output = child.stdout.take().ok_or("no output of a child")?;
        let (send, lines) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("answers".to_owned()).spawn(read)?;
        Ok(Self { name, child, input, lines })
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits until it has ended.
    pub(super) fn ended(&mut self) -> Result<(), BenchError> {
        self.child.wait()?;
        Ok(())
    }

    /// Waits for a line, at most for the limit.
    pub(super) fn line(&self, limit: Duration) -> Result<String, Silence> {
        self.lines.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Late,
            RecvTimeoutError::Disconnected => Silence::Ended,
        })
    }

    /// Sends it a line.
    pub(super) fn say(&mut self, line: &str) -> Result<(), BenchError> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// Its next line, within the usual time.
    pub(super) fn answer(&self) -> Result<String, BenchError> {
        self.line(PATIENCE).map_err(|silence| match silence {
            Silence::Late => format!("{} does not answer", self.name).into(),
            Silence::Ended => format!("{} has ended", self.name).into(),
        })
    }

    /// Sends it a line and returns its answer.
    pub(super) fn ask(&mut self, line: &str) -> Result<String, BenchError> {
        self.say(line)?;
        self.answer()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_says_whether_the_program_lives() {
        // The test's program knows no roles, so the words are not run; it prints what tests print.
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; read a; sleep 60"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, lines) = channel();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        let input = child.stdin.take().unwrap();
        let mut other = Other { name: "sh".to_owned(), child, input, lines };
        assert_eq!(other.answer().unwrap(), "one");
        assert_eq!(other.line(Duration::from_millis(1)), Err(Silence::Late));
        other.signal(Signal::KILL).unwrap();
        other.ended().unwrap();
        assert_eq!(other.line(PATIENCE), Err(Silence::Ended));
        assert!(other.answer().is_err());
    }
}
