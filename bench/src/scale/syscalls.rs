//! System calls of a submission, counted from outside: a traced client marks its submissions by two calls.
//!
//! ```text
//! this process ─ ptrace ─► client: pause ─ getppid ─ submit ─ getppid ─ wait ─ pause ...
//!        every call stops the client; /proc/PID/syscall names it ─► calls between two marks
//! ```
//!
//! Only the submitting thread is traced. Tracing makes calls slow and nothing else: a client that keeps the worker awake by
//! polling makes none.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memferry::{Client, nop};
use nix::libc::SYS_getppid;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::round_trip;
use crate::BenchError;

/// Time between calls that keep the tracer awake.
const TRACER_AWAKE: Duration = Duration::from_micros(500);

/// Runs as the client: submits `count` times, each after a pause, and keeps the worker awake meanwhile if `is_busy`.
pub(super) fn submits(socket: &Path, pause_ms: u64, is_busy: bool, count: usize) -> Result<(), BenchError> {
    let client = Client::connect(socket)?;
    let mut busy = client.queue(16)?;
    let mut queue = client.queue(16)?;
    round_trip(&mut queue)?;
    ptrace::traceme()?;
    raise(Signal::SIGSTOP)?;
    let pause = Duration::from_millis(pause_ms);
    for _ in 0..count {
        round_trip(&mut queue)?;
        if is_busy {
            let until = Instant::now() + pause;
            let mut last_call = Instant::now();
            while Instant::now() < until {
                round_trip(&mut busy)?;
                // A tracer that has slept for long answers the mark so late that the worker sleeps meanwhile.
                if last_call.elapsed() >= TRACER_AWAKE {
                    let _call = rustix::process::getuid();
                    last_call = Instant::now();
                }
            }
        } else {
            std::thread::sleep(pause);
        }
        let _mark = rustix::process::getppid();
        let ticket = queue.submit(nop())?;
        let _mark = rustix::process::getppid();
        queue.wait(ticket)?;
    }
    Ok(())
}

/// The numbers of system calls of `count` submissions.
///
/// # Errors
/// If this process may not trace its child, or the child failed.
pub(super) fn count(
    socket: &Path,
    pause: Duration,
    is_busy: bool,
    count: usize,
) -> Result<Vec<f64>, BenchError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--scale", "submits"]).arg(socket);
    command.args([pause.as_millis().to_string(), if is_busy { "busy" } else { "still" }.to_owned()]);
    command.arg(count.to_string()).stdin(Stdio::null()).process_group(0);
    let mut child = command.spawn()?;
    let process = Pid::from_raw(i32::try_from(child.id())?);
    let counted = trace(process);
    // It has ended, unless tracing failed.
    let _ = child.kill();
    let _ = child.wait();
    let counts = counted?;
    if counts.len() == count {
        Ok(counts)
    } else {
        Err(format!("the traced client made {} of {count} submissions", counts.len()).into())
    }
}

/// Runs the stopped child to its end, and counts the calls between its marks.
fn trace(process: Pid) -> Result<Vec<f64>, BenchError> {
    if !matches!(waitpid(process, None)?, WaitStatus::Stopped(_, Signal::SIGSTOP)) {
        return Err("a client cannot be traced here".into());
    }
    ptrace::setoptions(process, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL)?;
    let mut marks = Marks::default();
    let mut signal = None;
    let mut enters = true;
    loop {
        ptrace::syscall(process, signal.take())?;
        match waitpid(process, None)? {
            WaitStatus::PtraceSyscall(_) => {
                // Each call stops twice: when it begins, and when it ends.
                if enters {
                    marks.call(number(process)?);
                }
                enters = !enters;
            }
            WaitStatus::Stopped(_, other) => signal = Some(other),
            WaitStatus::Exited(_, 0) => return Ok(marks.counts),
            other => return Err(format!("the traced client ended: {other:?}").into()),
        }
    }
}

/// The number of the call in which a stopped process is.
fn number(process: Pid) -> Result<i64, BenchError> {
    let line = std::fs::read_to_string(format!("/proc/{process}/syscall"))?;
    let word = line.split_whitespace().next().ok_or("a stopped process without a system call")?;
    Ok(word.parse()?)
}

/// Calls between every first and second mark.
#[derive(Default)]
struct Marks {
    open: Option<u32>,
    counts: Vec<f64>,
}

impl Marks {
    fn call(&mut self, number: i64) {
        self.open = match (number == SYS_getppid, self.open) {
            (true, None) => Some(0),
            (true, Some(calls)) => {
                self.counts.push(f64::from(calls));
                None
            }
            (false, open) => open.map(|calls| calls + 1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_marks_are_counted() {
        let mut marks = Marks::default();
        let other = SYS_getppid + 1;
        for number in [other, SYS_getppid, SYS_getppid, other, SYS_getppid, other, other, SYS_getppid, other]
        {
            marks.call(number);
        }
        assert_eq!(marks.counts, [0.0, 2.0]);
        assert!(marks.open.is_none());
    }
}
