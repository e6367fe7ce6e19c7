//! Child processes of a measurement: a service, a holder of memory, or another program.
//!
//! ```text
//! this process ─ spawn ─► itself: --serve SOCKET     a service with one worker; --roomy: with the largest quotas, --with-engine
//!                         itself: --scale ...        a client of a measurement, by group `scale`
//!                         itself: --hold BYTES       random bytes; prints their address, waits for end of input
//!                         itself: --files ...        a file server or a receiver of files, by group `fileserver`
//!                         itself: --with-parent ...  becomes another program
//! ```
//!
//! All end with this process, however it ends. Start them before pinning the thread: they inherit the affinity, and a service
//! that sees one CPU does not spin. They also end with the thread that started them, so start them on the main thread.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memferry_daemon::{DaemonOptions, serve as serve_on};
use memferry_service::EngineConfig;
use memferry_service::config::{Quotas, ServiceConfig, bounds};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::run::Run;
use crate::timing::Aligned;
use crate::{BenchError, placement};

/// How often a child is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Prefix of the names of a service's workers, also in this process.
pub(crate) const WORKER: &str = "memferry-worker";
/// The engine process of group `gpu`, and the home of frames in its memory.
pub(crate) const ENGINE: &str = "gpu";

/// The service of a measurement: one worker, as on a machine of two CPUs.
fn config() -> ServiceConfig {
    ServiceConfig {
        workers: 1,
        high_users: vec![rustix::process::geteuid().as_raw()],
        ..ServiceConfig::default()
    }
}

/// The same with the largest quotas, for measurements of what one user could never open.
pub(crate) fn roomy() -> ServiceConfig {
    let most = |bounds: memferry_service::config::Bounds| u32::try_from(bounds.max).unwrap_or(u32::MAX);
    let quotas = Quotas {
        sessions: most(bounds::QUOTA_SESSIONS),
        frames: most(bounds::QUOTA_FRAMES),
        bytes: bounds::QUOTA_BYTES.max,
        queues: most(bounds::QUOTA_QUEUES),
        capabilities: most(bounds::QUOTA_CAPABILITIES),
        waiting: most(bounds::QUOTA_WAITING),
    };
    ServiceConfig { quotas, ..config() }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Equipment {
    Ordinary,
    /// For what one user could never open otherwise.
    Roomy,
    /// The same, and an engine process of group `gpu`.
    Engine,
}

/// Runs the service of a measurement.
pub(crate) fn serve(socket: &Path, equipment: Equipment) -> Result<(), BenchError> {
    end_with_parent()?;
    let own = rustix::process::geteuid().as_raw();
    let engines = vec![EngineConfig::new(ENGINE, own)];
    let options = DaemonOptions {
        socket: socket.to_owned(),
        mode: 0o600,
        service: match equipment {
            Equipment::Ordinary => config(),
            Equipment::Roomy => roomy(),
            Equipment::Engine => ServiceConfig { engines, ..roomy() },
        },
        grace: Duration::ZERO,
        sandbox: true,
    };
    Ok(serve_on(&options, || println!("ready"))?)
}

/// Holds random bytes until its input ends.
pub(crate) fn hold(length: usize) -> Result<(), BenchError> {
    end_with_parent()?;
    let buffer = Aligned::random(length, 0x5eed);
    println!("{}", buffer.bytes().as_ptr() as usize);
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    std::hint::black_box(buffer.bytes());
    Ok(())
}

/// Becomes another program, which ends with the parent process.
pub(crate) fn become_program(words: &[String]) -> Result<(), BenchError> {
    end_with_parent()?;
    let (program, arguments) = words.split_first().ok_or("no program to become")?;
    Err(format!("cannot start {program}: {}", Command::new(program).args(arguments).exec()).into())
}

/// Ends this process when its parent ends.
pub(crate) fn end_with_parent() -> Result<(), BenchError> {
    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}

pub(crate) struct ChildGuard(Child);

impl ChildGuard {
    pub(crate) fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this program in another role, with pipes as standard input and output.
pub(crate) fn start_piped(arguments: &[&str]) -> Result<(ChildGuard, ChildStdin, ChildStdout), BenchError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = ChildGuard(command.spawn()?);
    let input = child.0.stdin.take().ok_or("no input of a child")?;
    let output = child.0.stdout.take().ok_or("no output of a child")?;
    Ok((child, input, output))
}

/// Starts this program in another role; returns its first line of output.
fn start(arguments: &[&str]) -> Result<(ChildGuard, ChildStdin, String), BenchError> {
    let (child, input, output) = start_piped(arguments)?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok((child, input, line.trim().to_owned()))
}

/// A service in another process, ended on drop.
pub(crate) struct Service {
    child: ChildGuard,
    socket: PathBuf,
}

impl Service {
    /// Starts a service and pins its worker to CPU 1; its other threads may run anywhere.
    pub(crate) fn start(run: &Run) -> Result<Self, BenchError> {
        Self::begin(run, "service.sock", &[])
    }

    /// The same with the largest quotas. `name` tells it from others that run at the same time.
    pub(crate) fn start_roomy(run: &Run, name: &str) -> Result<Self, BenchError> {
        Self::begin(run, &format!("{name}.sock"), &["--roomy"])
    }

    /// The same, for an engine process of group `gpu`.
    pub(crate) fn start_with_engine(run: &Run) -> Result<Self, BenchError> {
        Self::begin(run, "engine.sock", &["--with-engine"])
    }

    fn begin(run: &Run, name: &str, options: &[&str]) -> Result<Self, BenchError> {
        let socket = run.directory().join(name);
        let path = socket.to_str().ok_or("the path of the temporary directory is not UTF-8; set TMPDIR")?;
        let (child, _, line) = start(&[&["--serve", path], options].concat())?;
        if line != "ready" {
            return Err("the service did not start".into());
        }
        placement::pin_threads(child.0.id(), WORKER, 1)?;
        Ok(Self { child, socket })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.0.id()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It was killed, so remove its socket here, or the next service could not start.
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A process that holds random bytes, ended on drop.
pub(crate) struct Holder {
    child: ChildGuard,
    _input: ChildStdin,
    address: usize,
}

impl Holder {
    /// Starts a process that holds `length` bytes.
    pub(crate) fn start(length: usize) -> Result<Self, BenchError> {
        let (child, input, line) = start(&["--hold", &length.to_string()])?;
        let address = line.parse().map_err(|_| "the process that holds memory did not start")?;
        Ok(Self { child, _input: input, address })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Address of its bytes in its memory.
    pub(crate) fn address(&self) -> usize {
        self.address
    }
}

/// This program in another role, controlled by lines of text; ended on drop.
pub(crate) struct Role {
    child: ChildGuard,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// Starts it, in the network namespace of process `namespace` if given.
    pub(crate) fn start(namespace: Option<u32>, arguments: &[&str]) -> Result<Self, BenchError> {
        let own = std::env::current_exe()?;
        let mut command = match namespace {
            None => Command::new(own),
            Some(process) => {
                let mut command = Command::new("nsenter");
                command.args(["-t", &process.to_string(), "-n"]).arg(own);
                command
            }
        };
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildGuard(command.spawn()?);
        let input = child.0.stdin.take().ok_or("no input of a child")?;
        let output = child.0.stdout.take().ok_or("no output of a child")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Kills it and does not wait for its end: drop does.
    pub(crate) fn kill(&mut self) -> Result<(), BenchError> {
        Ok(self.child.0.kill()?)
    }

    /// Its next line of output; empty if it has ended.
    pub(crate) fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Sends it a line.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), BenchError> {
        Ok(writeln!(self.input, "{line}")?)
    }
}

/// Processor time of the living threads of a process, in seconds.
pub(crate) fn processor_seconds(process: u32) -> Result<f64, BenchError> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may have ended meanwhile.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        nanoseconds += first.ok_or("the kernel does not report the processor time of threads (schedstat)")?;
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// The words that start a program with the loader and the libraries of another release.
pub(crate) fn loader(libraries: &Path) -> Vec<String> {
    let folder = libraries.display().to_string();
    vec![format!("{folder}/ld-linux-x86-64.so.2"), "--library-path".to_owned(), folder]
}

/// Prints "ready", and waits until the input ends.
pub(crate) fn wait_for_end_of_input() -> Result<(), BenchError> {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Another program, ended on drop.
pub(crate) struct Program(ChildGuard);

impl Program {
    /// Starts the program with additional environment variables.
    pub(crate) fn start(words: &[&str], environment: &[(&str, &str)]) -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--with-parent").args(words).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self(ChildGuard(command.spawn()?)))
    }

    pub(crate) fn process(&self) -> u32 {
        self.0.0.id()
    }

    pub(crate) fn runs(&mut self) -> Result<bool, BenchError> {
        Ok(self.0.0.try_wait()?.is_none())
    }

    /// The next line of its output; empty if it has ended. What follows it is left for [`output`](Self::output).
    pub(crate) fn line(&mut self) -> Result<String, BenchError> {
        let mut line = Vec::new();
        let Some(output) = &mut self.0.0.stdout else { return Ok(String::new()) };
        let mut byte = [0];
        while output.read(&mut byte)? > 0 && byte != *b"\n" {
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim().to_owned())
    }

    /// Waits for success and returns the output, which must be short; `None` if the program failed.
    pub(crate) fn output(&mut self, until: Instant) -> Result<Option<String>, BenchError> {
        let status = loop {
            if let Some(status) = self.0.0.try_wait()? {
                break status;
            }
            if Instant::now() >= until {
                return Err("the program did not end in time".into());
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        let mut text = String::new();
        if let Some(mut output) = self.0.0.stdout.take() {
            output.read_to_string(&mut text)?;
        }
        Ok(status.success().then_some(text))
    }
}
