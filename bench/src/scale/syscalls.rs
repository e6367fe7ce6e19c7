//! System calls of a submission, counted from outside: a traced client marks its submissions by two calls.
//!
//! ```text
//! this process ─ ptrace ─► client: pause ─ getppid ─ submit ─ getppid ─ wait ─ pause ...
//!                                  pause ─ getppid ─ too late ─ getsid ─ pause ...
//!        every call stops the client; /proc/PID/syscall names it ─► calls between two marks
//! ```
//!
//! Only the submitting thread is traced. Tracing makes calls slow and nothing else: a client that keeps the worker awake by
//! polling makes none. But the first mark is a call, and if the tracer answers it late, the worker may sleep by then. So the
//! client looks at the clock before it submits, and repeats what came too late.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memferry::{Client, Queue, nop};
use nix::libc::{SYS_getppid, SYS_getsid};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::round_trip;
use crate::BenchError;

/// Time between calls that keep the tracer awake.
const TRACER_AWAKE: Duration = Duration::from_micros(500);
/// A worker surely spins for so long after a request: half of what it is set to.
const WORKER_AWAKE: Duration = Duration::from_micros(25);
/// Most attempts for each submission.
const ATTEMPTS: usize = 20;
/// The call that marks a submission, and the one that takes a mark back.
const MARK: i64 = SYS_getppid;
const LATE: i64 = SYS_getsid;
/// Exit code of a client that may not be traced.
const UNTRACEABLE: i32 = 77;

/// Why nothing was counted.
pub(super) enum Uncounted {
    /// Tracing is refused or too slow here, which says nothing about the service.
    Untraceable(&'static str),
    /// The client failed, or the tracer.
    Failed(BenchError),
}

impl<E: Into<BenchError>> From<E> for Uncounted {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Runs as the client: submits `count` times, each after a pause, and keeps the worker awake meanwhile if `is_busy`.
pub(super) fn submits(socket: &Path, pause_ms: u64, is_busy: bool, count: usize) -> Result<(), BenchError> {
    let client = Client::connect(socket)?;
    let mut busy = client.queue(16)?;
    let mut queue = client.queue(16)?;
    round_trip(&mut queue)?;
    if ptrace::traceme().is_err() {
        std::process::exit(UNTRACEABLE);
    }
    raise(Signal::SIGSTOP)?;
    let pause = Duration::from_millis(pause_ms);
    let mut submitted = 0;
    for _ in 0..count * ATTEMPTS {
        if submitted == count {
            break;
        }
        round_trip(&mut queue)?;
        if is_busy {
            keep_awake(&mut busy, pause)?;
        } else {
            std::thread::sleep(pause);
        }
        let last_request = Instant::now();
        let _mark = rustix::process::getppid();
        if is_busy && last_request.elapsed() > WORKER_AWAKE {
            let _late = rustix::process::getsid(None);
            continue;
        }
        let ticket = queue.submit(nop())?;
        let _mark = rustix::process::getppid();
        queue.wait(ticket)?;
        submitted += 1;
    }
    Ok(())
}

/// Empty requests for so long, and calls that keep the tracer awake: one that has slept for long answers late.
fn keep_awake(queue: &mut Queue, pause: Duration) -> Result<(), BenchError> {
    let until = Instant::now() + pause;
    let mut last_call = Instant::now();
    while Instant::now() < until {
        round_trip(queue)?;
        if last_call.elapsed() >= TRACER_AWAKE {
            let _call = rustix::process::getuid();
            // The worker may have slept during the call.
            round_trip(queue)?;
            last_call = Instant::now();
        }
    }
    round_trip(queue)
}

/// The numbers of system calls of `count` submissions.
///
/// # Errors
/// [`Uncounted`].
pub(super) fn count(
    socket: &Path,
    pause: Duration,
    is_busy: bool,
    count: usize,
) -> Result<Vec<f64>, Uncounted> {
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
        Err(Uncounted::Untraceable("the tracer answers too late to know whether the worker is awake"))
    }
}

/// Runs the stopped child to its end, and counts the calls between its marks.
fn trace(process: Pid) -> Result<Vec<f64>, Uncounted> {
    match waitpid(process, None)? {
        WaitStatus::Stopped(_, Signal::SIGSTOP) => {}
        WaitStatus::Exited(_, UNTRACEABLE) => {
            return Err(Uncounted::Untraceable("a client cannot be traced here"));
        }
        other => return Err(format!("the traced client ended: {other:?}").into()),
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

/// Calls between every first and second mark, but for those that came too late.
#[derive(Default)]
struct Marks {
    open: Option<u32>,
    counts: Vec<f64>,
}

impl Marks {
    fn call(&mut self, number: i64) {
        self.open = match (number, self.open) {
            (MARK, None) => Some(0),
            (MARK, Some(calls)) => {
                self.counts.push(f64::from(calls));
                None
            }
            (LATE, Some(0)) => None,
            (_, open) => open.map(|calls| calls + 1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_marks_are_counted() {
        let mut marks = Marks::default();
        let other = MARK + 1;
        for number in [other, MARK, MARK, other, MARK, other, other, MARK, other] {
            marks.call(number);
        }
        assert_eq!(marks.counts, [0.0, 2.0]);
        assert!(marks.open.is_none());
    }

    #[test]
    fn marks_that_came_too_late_count_nothing() {
        let mut marks = Marks::default();
        for number in [MARK, LATE, MARK, MARK] {
            marks.call(number);
        }
        assert_eq!(marks.counts, [0.0]);
    }
}
