//! The other processes of a measurement: a service, one that holds memory to be read, somebody else's program.
//!
//! ```text
//! this process ─ spawn ─► itself: --serve SOCKET     a service with one worker
//!                         itself: --hold BYTES       random bytes; tells their address, waits for its end
//!                         itself: --files ...        a file server or a receiver of files, by group `fileserver`
//!                         itself: --with-parent ...  becomes another program
//! ```
//!
//! All end with this process, however it ends. Start them before the thread is kept on a CPU: they inherit that, and a service
//! that sees one CPU does not spin. They end with the thread that started them, too, so that is the main one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memferry_daemon::{DaemonOptions, serve as serve_on};
use memferry_service::config::ServiceConfig;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::run::Run;
use crate::timing::Aligned;
use crate::{BenchError, placement};

/// How often a child that should end is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How the names of a service's workers begin, one in this process too.
pub(crate) const WORKER: &str = "memferry-worker";

/// Is the service of a measurement.
pub(crate) fn serve(socket: &Path) -> Result<(), BenchError> {
    end_with_parent()?;
    let options = DaemonOptions {
        socket: socket.to_owned(),
        mode: 0o600,
        // The one worker that a machine of two CPUs has, whatever this one has: figures are for one worker.
        service: ServiceConfig {
            workers: 1,
            high_users: vec![rustix::process::geteuid().as_raw()],
            ..ServiceConfig::default()
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

/// Becomes another program, which ends with the process that started this one.
pub(crate) fn become_program(words: &[String]) -> Result<(), BenchError> {
    end_with_parent()?;
    let (program, arguments) = words.split_first().ok_or("no program to become")?;
    Err(format!("cannot start {program}: {}", Command::new(program).args(arguments).exec()).into())
}

/// This process ends with the one that started it.
pub(crate) fn end_with_parent() -> Result<(), BenchError> {
    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}

pub(crate) struct Ended(Child);

impl Ended {
    pub(crate) fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this program as something else, its standard streams pipes.
pub(crate) fn start_piped(arguments: &[&str]) -> Result<(Ended, ChildStdin, ChildStdout), BenchError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Ended(command.spawn()?);
    let input = child.0.stdin.take().ok_or("no input of a child")?;
    let output = child.0.stdout.take().ok_or("no output of a child")?;
    Ok((child, input, output))
}

/// Starts this program as something else; returns its first line of output.
fn start(arguments: &[&str]) -> Result<(Ended, ChildStdin, String), BenchError> {
    let (child, input, output) = start_piped(arguments)?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok((child, input, line.trim().to_owned()))
}

/// A service in another process, ended on drop.
pub(crate) struct Service {
    child: Ended,
    socket: PathBuf,
}

impl Service {
    /// Starts one. Its worker is kept on CPU 1; the threads that answer on the socket go where there is room.
    pub(crate) fn start(run: &Run) -> Result<Self, BenchError> {
        let socket = run.directory().join("service.sock");
        let path = socket.to_str().ok_or("the directory for temporary files has an odd name")?;
        let (child, _, line) = start(&["--serve", path])?;
        if line != "ready" {
            return Err("the service did not start".into());
        }
        placement::keep_threads_to(child.0.id(), WORKER, 1)?;
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
        // Killed: what it leaves behind is removed here, so that the next can start.
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A process that holds random bytes, ended on drop.
pub(crate) struct Holder {
    child: Ended,
    _input: ChildStdin,
    address: usize,
}

impl Holder {
    /// Starts one that holds `length` bytes.
    pub(crate) fn start(length: usize) -> Result<Self, BenchError> {
        let (child, input, line) = start(&["--hold", &length.to_string()])?;
        let address = line.parse().map_err(|_| "the process that holds memory did not start")?;
        Ok(Self { child, _input: input, address })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// Where its bytes are in its memory.
    pub(crate) fn address(&self) -> usize {
        self.address
    }
}

/// This program as something else, which talks by lines; ended on drop.
pub(crate) struct Role {
    child: Ended,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// Starts it, in the network namespace of a process where one is named.
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
        let mut child = Ended(command.spawn()?);
        let input = child.0.stdin.take().ok_or("no input of a child")?;
        let output = child.0.stdout.take().ok_or("no output of a child")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.0.id()
    }

    /// The next line it says; an empty one when it has ended.
    pub(crate) fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Tells it a line.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), BenchError> {
        Ok(writeln!(self.input, "{line}")?)
    }
}

/// Says that it is ready, and waits until its input ends.
pub(crate) fn ready_until_the_input_ends() -> Result<(), BenchError> {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Another program, ended on drop.
pub(crate) struct Program(Ended);

impl Program {
    /// Starts it with words of an environment.
    pub(crate) fn start(words: &[&str], environment: &[(&str, &str)]) -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--with-parent").args(words).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self(Ended(command.spawn()?)))
    }

    pub(crate) fn process(&self) -> u32 {
        self.0.0.id()
    }

    pub(crate) fn runs(&mut self) -> Result<bool, BenchError> {
        Ok(self.0.0.try_wait()?.is_none())
    }

    /// Waits until it ended well and returns its output, which has to be short. `None` when it ended otherwise.
    pub(crate) fn output(&mut self, until: Instant) -> Result<Option<String>, BenchError> {
        let status = loop {
            if let Some(status) = self.0.0.try_wait()? {
                break status;
            }
            if Instant::now() >= until {
                return Err("it did not end in time".into());
            }
            std::thread::sleep(LOOK);
        };
        let mut text = String::new();
        if let Some(mut output) = self.0.0.stdout.take() {
            output.read_to_string(&mut text)?;
        }
        Ok(status.success().then_some(text))
    }
}
