//! OpenCV in its own process, which executes commands and times itself.
//!
//! ```text
//! Opencv ─ a line ─► python3, bench/python/opencv.py ─ a line ─► Opencv
//! ```
//!
//! A pinned thread starts it, so it inherits the CPU: both sides run on one, alternately. `./x bench`
//! installs OpenCV and sets `MEMFERRY_BENCH_PYTHON`; this module installs nothing.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::BenchError;

/// Environment variable with the path of a Python that has OpenCV.
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
    /// Starts the process on this thread's CPU.
    pub(super) fn start() -> Result<Self, BenchError> {
        let python = std::env::var(PYTHON)
            .map_err(|_| "OpenCV is missing: ./x bench twod installs it if it can be downloaded")?;
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

    /// Executes a command `count` times; returns nanoseconds per execution.
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

/// Path at which another process finds the file of a descriptor of this one.
pub(super) fn path_of(descriptor: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd())
}
