//! OpenCV in a process of its own, which does what it is told and times itself.
//!
//! ```text
//! Opencv ─ a line ─► python3, bench/python/opencv.py ─ a line ─► Opencv
//! ```
//!
//! It is started by a thread that is kept on a CPU, and so is kept there too: both sides run on one, in turn. `./x bench`
//! installs OpenCV and says where in `MEMFERRY_BENCH_PYTHON`; nothing is installed here.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::BenchError;

/// Names the Python that has OpenCV.
const PYTHON: &str = "MEMFERRY_BENCH_PYTHON";
const SCRIPT: &str = include_str!("../../python/opencv.py");

/// The process, ended on drop.
pub(super) struct Opencv {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    version: String,
}

impl Opencv {
    /// Starts it on the CPU this thread is kept on.
    pub(super) fn start() -> Result<Self, BenchError> {
        let python = std::env::var(PYTHON)
            .map_err(|_| "OpenCV is not there: ./x bench twod installs it where it can be downloaded")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--with-parent", &python, "-c", SCRIPT]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let input = input.ok_or("no input of a child")?;
        let output = output.ok_or("no output of a child")?;
        let mut opencv = Self { child, input, output: BufReader::new(output), version: String::new() };
        opencv.version = opencv.answer()?;
        Ok(opencv)
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    fn answer(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Err("OpenCV's process ended".into());
        }
        Ok(line.trim().to_owned())
    }

    /// Sends a line and returns the answer.
    pub(super) fn ask(&mut self, line: &str) -> Result<String, BenchError> {
        writeln!(self.input, "{line}")?;
        self.input.flush()?;
        self.answer()
    }

    /// Does it so many times; nanoseconds each.
    pub(super) fn run(&mut self, what: &str, count: usize) -> Result<f64, BenchError> {
        let ns: f64 = self.ask(&format!("run {what} {count}"))?.parse()?;
        Ok(ns / count as f64)
    }
}

impl Drop for Opencv {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where another process finds the file behind a descriptor of this one.
pub(super) fn path_of(descriptor: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd())
}
