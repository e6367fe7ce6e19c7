//! A service and an engine on the model, each in a process of its own: this test binary again.

#![allow(unsafe_code, reason = "forks")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memferry::Client;
use memferry_daemon::DaemonOptions;
use memferry_service::{EngineConfig, ServiceConfig};
use rustix::process::{Pid, Signal};

use crate::NAME;
use crate::scenes::{state, wait_until};

/// The folder of a stage, in a process that plays a role.
const ROLE: &str = "MEMFERRY_TEST_ROLE";

/// A service with an engine.
pub(crate) struct Stage {
    processes: Vec<Child>,
    folder: PathBuf,
    /// Why engines may end in this test, as they say it.
    ends: &'static [&'static str],
}

fn role() -> Option<PathBuf> {
    std::env::var_os(ROLE).map(PathBuf::from)
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

/// Runs what must have one thread in a child, and waits for it. The child ends with the test.
fn in_child(run: impl FnOnce() -> bool) {
    // SAFETY: the child uses only what the forking thread had, and glibc keeps its allocator usable across a fork.
    match unsafe { libc::fork() } {
        0 => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            std::process::exit((!run()).into());
        }
        child => {
            let child = Pid::from_raw(child).expect("a child");
            let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        }
    }
}

#[test]
fn plays_service() {
    let Some(folder) = role() else { return };
    let mut engine = EngineConfig::new(NAME, rustix::process::geteuid().as_raw());
    engine.shortest_bytes = Some(1);
    // The model computes more slowly than a device.
    engine.stall = Duration::from_secs(10);
    let service = ServiceConfig {
        workers: 2,
        channels_per_worker: 16,
        engines: vec![engine],
        ..ServiceConfig::default()
    };
    let options = DaemonOptions {
        socket: socket(&folder),
        mode: 0o600,
        service,
        grace: Duration::from_secs(1),
        sandbox: false,
    };
    in_child(|| {
        memferry_daemon::serve(&options, || File::create(folder.join("ready")).map(drop).unwrap()).is_ok()
    });
}

#[test]
fn plays_engine() {
    let Some(folder) = role() else { return };
    in_child(|| crate::play_engine(&folder, socket(&folder)));
}

impl Stage {
    /// With files that the engine's role reads, and their contents.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let stage = Self::without_engine(files);
        let client = stage.client();
        wait_until("the engine", || state(&client).is_connected);
        stage
    }

    /// As [`new`](Self::new), with an engine that may not come.
    pub(crate) fn without_engine(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("memferry-{NAME}-{}-{number}", std::process::id()));
        // A crashed run may have used the same number.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let mut stage = Self { processes: Vec::new(), folder, ends: &[] };
        files.iter().for_each(|(name, contents)| stage.write(name, contents));
        stage.start("service");
        wait_until("the service", || stage.has("ready"));
        stage.start("engine");
        stage
    }

    /// Engines may end in the test, for one of these reasons as their keeper says it.
    pub(crate) fn may_end(mut self, reasons: &'static [&'static str]) -> Self {
        self.ends = reasons;
        self
    }

    fn start(&mut self, role: &str) {
        let said = File::create(self.folder.join(format!("{role}.txt"))).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("stage::plays_{role}"), "--exact", "--nocapture"])
            .env(ROLE, &self.folder)
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn();
        self.processes.push(child.unwrap());
    }

    pub(crate) fn write(&self, name: &str, contents: &str) {
        std::fs::write(self.folder.join(name), contents).unwrap();
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.folder.join(name).exists()
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.folder.join(name)).unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(socket(&self.folder)).expect("a service")
    }

    /// What is mapped for the device, the rings included.
    pub(crate) fn windows(&self) -> usize {
        let number = std::fs::read_to_string(self.folder.join("windows")).unwrap_or_default();
        // A file that is being written is short.
        number.parse().unwrap_or(usize::MAX)
    }

    /// A panic of the engine, or an end that the test does not expect: the keeper would start the next one, and nobody notice.
    fn mishap(&self) -> Option<String> {
        let said = self.said();
        let is_expected = |line: &str| self.ends.iter().any(|reason| line.contains(reason));
        let is_end = |line: &str| line.contains("the engine ends") || line.contains("the engine has ended");
        let mut lines = said.lines();
        lines
            .find(|line| line.contains("panicked") || is_end(line) && !is_expected(line))
            .map(|line| format!("{line}; the engine said: {said}"))
    }

    /// What the engine has said.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.folder.join("engine.txt")).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the engine said: {}", self.said());
        }
        // Before the stage itself ends the engine.
        let mishap = self.mishap();
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
        if let Some(mishap) = mishap
            && !std::thread::panicking()
        {
            panic!("{mishap}");
        }
    }
}
