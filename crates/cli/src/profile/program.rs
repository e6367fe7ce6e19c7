//! Starts the profiled program with the recorder, waits for it, and explains why it was not counted.
//!
//! ```text
//! MEMFERRY_RECORDER, else beside this command, else ../lib/memferry, ../lib ─► library
//! LD_PRELOAD, MEMFERRY_RECORDING ─► program ─► Ended: status, time, CPU time
//! SIGTERM, SIGHUP ─► passed on to the program        SIGINT, SIGQUIT ─► the terminal sends them to the program as well
//! ```
//!
//! Signals that this command was started to ignore stay ignored, since the program inherits that.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_recording::VARIABLE;
use nix::sys::resource::{UsageWho, getrusage};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use thiserror::Error;

use super::symbols;
use crate::interrupt::{ignored_signals, is_in};

const LIBRARY: &str = "libmemferry_recorder.so";
/// The environment variable that overrides the library's path.
const LIBRARY_VARIABLE: &str = "MEMFERRY_RECORDER";
/// Separators in the loader's list of libraries.
const SEPARATORS: &[u8] = b": \t\n";

/// Why no program was profiled.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    /// The named library does not exist.
    #[error("{LIBRARY_VARIABLE} names {}, which is not a file; name {LIBRARY}, or unset it", path.display())]
    NoSuchLibrary { path: PathBuf },
    /// No library at the standard places.
    #[error(
        "{LIBRARY} is missing; it was looked for at {places}. Put it there (build it with \
             cargo build --release -p memferry-recorder), or name it in {LIBRARY_VARIABLE}"
    )]
    MissingLibrary { places: String },
    /// The loader would split the path.
    #[error("the path of {} has a space or a colon, which separates entries of LD_PRELOAD; move it and name it in \
             {LIBRARY_VARIABLE}", path.display())]
    OddPath { path: PathBuf },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// Signals cannot be passed on to the program, which was ended.
    #[error("cannot pass signals on to {}, so it was ended: {source}{}", program.display(), remedy(source))]
    Unattended { program: OsString, source: io::Error },
    /// The program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Program { program: OsString, source: io::Error },
}

impl StartError {
    /// The exit code that shells use.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            _ => 1,
        }
    }
}

/// What lets signals be passed on.
fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => "; allow more open files (ulimit -n)",
        Some(Errno::AGAIN) => "; allow more processes (ulimit -u)",
        Some(Errno::NOSYS | Errno::PERM) => {
            "; run it where pidfd_open(2) is allowed: on Linux 5.3 or later, and outside of a container that forbids it"
        }
        _ => "",
    }
}

/// How a program ended, and its use of time.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) elapsed: Duration,
    /// CPU time of the program and of all children that were waited for.
    pub(crate) cpu: Duration,
}

impl Ended {
    /// The exit status, or 128 plus the number of the signal.
    pub(crate) fn exit_code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

/// Finds the recorder library.
pub(crate) fn library() -> Result<PathBuf, StartError> {
    let system = |what| move |source| StartError::System { what, source };
    let path = if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        path.is_file().then(|| path.clone()).ok_or(StartError::NoSuchLibrary { path })?
    } else {
        let own = std::env::current_exe().map_err(system("find where this command is"))?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        let places = ["", "../lib/memferry", "../lib"].map(|below| folder.join(below).join(LIBRARY));
        let found = places.iter().find(|place| place.is_file()).cloned();
        let places = || places.each_ref().map(|place| place.display().to_string()).join(", ");
        found.ok_or_else(|| StartError::MissingLibrary { places: places() })?
    };
    let path = path.canonicalize().map_err(system("find the library"))?;
    let divides = |byte: &u8| SEPARATORS.contains(byte);
    if path.as_os_str().as_bytes().iter().any(divides) { Err(StartError::OddPath { path }) } else { Ok(path) }
}

/// Runs a program until it ends. It counts into the recording at this path.
pub(crate) fn run(words: &[OsString], library: &Path, recording: &str) -> Result<Ended, StartError> {
    let (program, arguments) =
        words.split_first().map_or((OsStr::new(""), words), |(first, rest)| (first, rest));
    let mut preloaded = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    let system = |what| move |source| StartError::System { what, source };
    let caught = Caught::catch().map_err(system("catch signals"))?;
    let before = cpu_of_children();
    let started = Instant::now();
    let child = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preloaded)
        .env(VARIABLE, recording)
        .spawn()
        .map_err(|source| StartError::Program { program: program.to_owned(), source })?;
    let mut child = attended(child, |child| caught.pass_on_to(child))
        .map_err(|source| StartError::Unattended { program: program.to_owned(), source })?;
    let status = child.wait().map_err(system("wait for the program"))?;
    Ok(Ended { status, elapsed: started.elapsed(), cpu: cpu_of_children().saturating_sub(before) })
}

/// The program, if it will get the signals that arrive here. Otherwise nobody could end it, so it is ended.
fn attended(mut child: Child, pass_on: impl FnOnce(&Child) -> io::Result<()>) -> io::Result<Child> {
    let passed = pass_on(&child);
    if passed.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    passed.map(|()| child)
}

/// Catches signals that would end this command. The program decides what to do about them, and then the report is written.
struct Caught(Vec<(UnixStream, Signal)>);

impl Caught {
    fn catch() -> io::Result<Self> {
        let ignored = ignored_signals();
        let is_caught = |number: &i32| !is_in(ignored, *number);
        for signal in [SIGINT, SIGQUIT].into_iter().filter(is_caught) {
            signal_hook::flag::register(signal, Arc::default())?;
        }
        let mut streams = Vec::new();
        for (number, signal) in [(SIGTERM, Signal::TERM), (SIGHUP, Signal::HUP)] {
            if is_caught(&number) {
                let (ours, handler_end) = UnixStream::pair()?;
                signal_hook::low_level::pipe::register(number, handler_end)?;
                streams.push((ours, signal));
            }
        }
        Ok(Self(streams))
    }

    /// Passes on signals, including those that arrived before the program started.
    fn pass_on_to(self, child: &Child) -> io::Result<()> {
        let program = Arc::new(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?);
        for (arrived, signal) in self.0 {
            let program = Arc::clone(&program);
            std::thread::Builder::new().spawn(move || pass_on(arrived, &program, signal))?;
        }
        Ok(())
    }
}

/// Runs as long as this process. The descriptor names the process, so a reused process id receives nothing.
fn pass_on(mut arrived: UnixStream, program: &OwnedFd, signal: Signal) {
    while arrived.read_exact(&mut [0]).is_ok() {
        let _ = pidfd_send_signal(program, signal);
    }
}

fn cpu_of_children() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    let of = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    of(usage.user_time()) + of(usage.system_time())
}

/// Why a program was not counted, as far as its file shows.
pub(crate) fn why_unseen(words: &[OsString]) -> &'static str {
    const OTHERWISE: &str = "it did not load the recorder: it cleared its environment, runs as another user or in another root, \
                             or does not use glibc";
    let Some(file) = words.first().and_then(|name| find(name)) else { return OTHERWISE };
    let mode = file.metadata().map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o6000 != 0 {
        return "it is setuid or setgid: the loader does not preload libraries for such programs";
    }
    match symbols::is_static(&file) {
        Some(true) => "it is a static program: its memcpy cannot be replaced by a library",
        _ => OTHERWISE,
    }
}

/// The file that a shell would run.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    #[test]
    fn a_program_without_signals_is_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        // As long as its input is open, it does not end by itself.
        let _input = child.stdin.take();
        let pid = Pid::from_child(&child);
        let source = attended(child, |_| Err(Errno::MFILE.into())).unwrap_err();
        assert_eq!(waitpid(Some(pid), WaitOptions::NOHANG).unwrap_err(), Errno::CHILD);
        let message = StartError::Unattended { program: "cat".into(), source }.to_string();
        let parts = ["to cat, so it was ended", "Too many open files", "ulimit -n"];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
