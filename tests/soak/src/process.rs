//! A child process: killed with this one, its output read, signalled, and its resources read from the kernel.
//!
//! ```text
//! Started ─ its lines ─► one queue for all, with its number      errors ─► a file; a finding quotes its end
//! ```

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde::Serialize;

use crate::SoakError;

/// Poll interval for another process.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of its error messages that a finding quotes.
const QUOTED: usize = 1500;

/// A line that a process printed.
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) text: String,
}

/// A process that is killed with this one.
pub(crate) struct Started {
    child: Child,
    /// Forwards the lines of its output.
    reader: Option<JoinHandle<()>>,
    errors: PathBuf,
}

/// The resources of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Usage {
    pub(crate) resident_kib: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Mapped frames of clients.
    pub(crate) frames: u64,
}

impl Started {
    /// Starts the process in its own process group, so that Ctrl-C reaches only this process.
    pub(crate) fn new(
        words: &[String],
        preload: Option<&Path>,
        (number, lines): (u64, &Sender<Line>),
        errors: PathBuf,
    ) -> Result<Self, SoakError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("with").arg("--").args(words).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(std::fs::File::create(&errors)?);
        command.env("MEMFERRY_LOG", "warn").env("RUST_BACKTRACE", "1");
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("the process has no output")?;
        let lines = lines.clone();
        let reader = std::thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(Line { number, text }).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, reader: Some(reader), errors })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, unless the process has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// The exit status, if the process has ended.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>, SoakError> {
        Ok(self.child.try_wait()?)
    }

    /// After the process ended: waits until all its lines are forwarded.
    pub(crate) fn join_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    /// Waits for the process to end, up to `time`.
    pub(crate) fn wait_for_exit(&mut self, time: Duration) -> Result<Option<ExitStatus>, SoakError> {
        let until = Instant::now() + time;
        loop {
            match self.exit_status()? {
                None if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
                exit_status => return Ok(exit_status),
            }
        }
    }

    /// The end of its error messages, in one line.
    pub(crate) fn errors(&self) -> String {
        let bytes = std::fs::read(&self.errors).unwrap_or_default();
        let last = &bytes[bytes.len().saturating_sub(QUOTED)..];
        String::from_utf8_lossy(last).trim().replace('\n', " | ")
    }

    /// Whether the process panicked, according to its error messages.
    pub(crate) fn panicked(&self) -> bool {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        String::from_utf8_lossy(&text).contains("panicked at")
    }

    /// Names of the threads and the kernel functions in which they wait.
    pub(crate) fn threads(&self) -> String {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let of_task = |task: std::fs::DirEntry| {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            format!("{} in {}", read("comm").trim(), read("wchan"))
        };
        tasks.map(of_task).collect::<Vec<_>>().join(", ")
    }

    /// The files that its descriptors refer to.
    pub(crate) fn descriptors(&self) -> String {
        let list = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).into_iter().flatten().flatten();
        let target = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
        list.filter_map(target).map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        let path = |file: &str| format!("/proc/{}/{file}", self.child.id());
        let status = std::fs::read_to_string(path("status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let maps = std::fs::read_to_string(path("maps")).ok()?;
        Some(Usage {
            resident_kib: number("VmRSS:")?,
            descriptors: std::fs::read_dir(path("fd")).ok()?.count() as u64,
            threads: number("Threads:")?,
            frames: maps.matches("memferry-frame").count() as u64,
        })
    }

    /// Lets the process open `spare` more descriptors.
    pub(crate) fn leave_descriptors(&self, spare: u64) {
        let open =
            std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, |list| list.count() as u64);
        let limit = Rlimit { current: Some(open + spare), maximum: Some(open + spare) };
        let _ = prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit);
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
