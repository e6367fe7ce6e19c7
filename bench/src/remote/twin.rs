//! The C twin: reads with the owner's extra copy beside UCX, and nothing else.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::Scene;
use crate::BenchError;
use crate::run::Run;

/// CPUs from which on another thread of the server copies, as the service does.
const CPUS_FOR_A_THREAD: usize = 4;

/// Compiles the program, once in a run.
pub(super) fn program(run: &Run) -> Result<PathBuf, BenchError> {
    let program = run.directory().join("remote-twin");
    if program.exists() {
        return Ok(program);
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("twin/remote.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-pthread", "-o"]).arg(&program).arg(source).args(["-lucp", "-lucs"]);
    let compiled = compiler.output().map_err(|error| format!("there is no C compiler: {error}"))?;
    if compiled.status.success() {
        Ok(program)
    } else {
        Err("remote.c does not compile: it needs UCX's headers (Debian: libucx-dev)".into())
    }
}

/// A process of it, which ends with its input.
struct End {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl End {
    fn start(scene: &Scene<'_>, program: &Path, arguments: &[&str]) -> Result<Self, BenchError> {
        let words = scene.ucx.with(program);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(arguments).envs(scene.transport.environment());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no output of a child")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Err("the C twin ended; what it said is above".into());
        }
        Ok(line.trim().to_owned())
    }

    /// Stops it, or lets it go on.
    fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    fn say(&mut self, line: &str) -> Result<(), BenchError> {
        let input = self.input.as_mut().ok_or("no input of a child")?;
        Ok(writeln!(input, "{line}")?)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often the bytes are copied besides UCX's own copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// What the owner does anyway: from its memory into a slot.
    One,
    /// Also from its slot into a message, and from the message into the reader's memory, as links do.
    All,
}

/// Both ends, which know the addresses of each other.
pub(super) struct Twin {
    reader: End,
    server: End,
}

impl Twin {
    /// Starts both with memory of so many bytes.
    pub(super) fn start(
        scene: &Scene<'_>,
        program: &Path,
        bytes: u64,
        copies: Copies,
    ) -> Result<Self, BenchError> {
        let bytes = bytes.to_string();
        let cpus = std::thread::available_parallelism()?.get();
        let who = if cpus < CPUS_FOR_A_THREAD { "itself" } else { "thread" };
        let copies = if copies == Copies::All { "all" } else { "one" };
        let mut server = End::start(scene, program, &["serve", &bytes, who, copies])?;
        let mut reader = End::start(scene, program, &["read", &bytes, copies])?;
        let addresses = [server.line()?, reader.line()?];
        reader.say(&addresses[0])?;
        server.say(&addresses[1])?;
        server.signal(Signal::STOP)?;
        Ok(Self { reader, server })
    }

    /// Seconds in which the first `bytes` are read so many times, with so many chunks under way. The server polls, so at other times it is
    /// stopped.
    pub(super) fn read(&mut self, bytes: u64, count: usize, ahead: usize) -> Result<f64, BenchError> {
        self.server.signal(Signal::CONT)?;
        self.reader.say(&format!("{bytes} {count} {ahead}"))?;
        let nanoseconds: u64 = self.reader.line()?.parse()?;
        self.server.signal(Signal::STOP)?;
        Ok(nanoseconds as f64 / 1e9)
    }
}
