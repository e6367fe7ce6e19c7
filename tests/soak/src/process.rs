//! A process: started with a word to end with this one, listened to, signalled, and asked of the kernel what it holds.
//!
//! ```text
//! Started ─ its lines ─► one queue for all, under its number      errors ─► a file, whose end a finding quotes
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

/// Between looks at what another process does.
pub(crate) const LOOK: Duration = Duration::from_millis(5);
/// Bytes of its errors that a finding quotes.
const QUOTED: usize = 1500;

/// A line that a process said.
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) text: String,
}

/// A process that ends with this one.
pub(crate) struct Started {
    child: Child,
    /// Passes on what it says.
    ear: Option<JoinHandle<()>>,
    errors: PathBuf,
}

/// What a process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Held {
    pub(crate) resident_kib: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Mappings of clients' frames.
    pub(crate) frames: u64,
}

impl Started {
    /// Starts it in a process group of its own, so that Ctrl-C ends this process, and this process the others.
    pub(crate) fn new(
        words: &[String],
        preload: Option<&Path>,
        (number, said): (u64, &Sender<Line>),
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
        let output = child.stdout.take().ok_or("no output of a process")?;
        let said = said.clone();
        let ear = std::thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                if said.send(Line { number, text }).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, ear: Some(ear), errors })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; one that has ended gets none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, SoakError> {
        Ok(self.child.try_wait()?)
    }

    /// Of one that has ended: all it said has been passed on.
    pub(crate) fn heard_out(&mut self) {
        if let Some(ear) = self.ear.take() {
            let _ = ear.join();
        }
    }

    /// Waits for its end until then.
    pub(crate) fn ended_within(&mut self, time: Duration) -> Result<Option<ExitStatus>, SoakError> {
        let until = Instant::now() + time;
        loop {
            match self.ended()? {
                None if Instant::now() < until => std::thread::sleep(LOOK),
                ended => return Ok(ended),
            }
        }
    }

    /// The last it said of errors, in one line.
    pub(crate) fn errors(&self) -> String {
        let bytes = std::fs::read(&self.errors).unwrap_or_default();
        let last = &bytes[bytes.len().saturating_sub(QUOTED)..];
        String::from_utf8_lossy(last).trim().replace('\n', " | ")
    }

    /// Whether it panicked, going by what it wrote to standard error.
    pub(crate) fn panicked(&self) -> bool {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        String::from_utf8_lossy(&text).contains("panicked at")
    }

    /// Where threads wait that do not get on, as the kernel tells.
    pub(crate) fn threads(&self) -> String {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let of_task = |task: std::fs::DirEntry| {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            format!("{} in {}", read("comm").trim(), read("wchan"))
        };
        tasks.map(of_task).collect::<Vec<_>>().join(", ")
    }

    /// What its descriptors are.
    pub(crate) fn descriptors(&self) -> String {
        let list = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).into_iter().flatten().flatten();
        let target = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
        list.filter_map(target).map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn held(&self) -> Option<Held> {
        let path = |file: &str| format!("/proc/{}/{file}", self.child.id());
        let status = std::fs::read_to_string(path("status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let maps = std::fs::read_to_string(path("maps")).ok()?;
        Some(Held {
            resident_kib: number("VmRSS:")?,
            descriptors: std::fs::read_dir(path("fd")).ok()?.count() as u64,
            threads: number("Threads:")?,
            frames: maps.matches("memferry-frame").count() as u64,
        })
    }

    /// Lets it open so many descriptors more.
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
