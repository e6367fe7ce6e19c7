//! Number and sizes of a workload's copies between kernel and user (Papa 2014, "Data transfers between kernel and user
//! space"). Measured, not simulated.
//!
//! ```text
//! shell script ◄─ ptrace ─ every end of a system call ─► read, write, send, receive: bytes returned ─► histogram
//! ```
//!
//! Counts system calls, as `strace` does. Copies for other calls (file status, directories, time, file names) are left out,
//! and each call counts as one copy, even if the kernel copies in pieces. Kernel probes would see all copies but need rights
//! that a test does not have. Tracing slows the workload down, so one run without it gives the time.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::claims::Place;
use crate::paper::{Case, Judge, RunError};
use crate::verdict::{Basis, Figures, Status, Verdict};

pub(super) const JUDGE: Judge = Judge { claim: "papa-copy-volume", place: Place::Live, judge: counted };

/// A medium workload for a shell: finds, searches, reads, compresses and sorts files. It starts after a line of input.
const WORKLOAD: &str = "read _; \
    find /usr/share /etc -type f -size -64k 2>/dev/null | head -n 2000 | xargs grep -c e | sort -t: -k2 | tail; \
    find /usr/share -type f -size -64k 2>/dev/null | head -n 500 | xargs cat 2>/dev/null | gzip -1 | wc -c; \
    ls -lR /usr/lib 2>/dev/null | head -n 4000 | sort | grep -c root";

/// System calls whose result is the number of bytes copied between kernel and user.
const CALLS: [libc::c_long; 12] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
];

/// Upper limits of the size classes in bytes, with their names in rows.
const CLASSES: [(u64, &str); 6] = [
    (64, "up to 64 B"),
    (512, "up to 512 B"),
    (4096, "up to 4 KiB"),
    (16384, "up to 16 KiB"),
    (65536, "up to 64 KiB"),
    (u64::MAX, "longer"),
];

#[derive(Debug, Default)]
struct Volume {
    copies: u64,
    bytes: u64,
    classes: [u64; CLASSES.len()],
    seconds: f64,
}

impl Volume {
    fn add(&mut self, bytes: u64) {
        self.copies += 1;
        self.bytes += bytes;
        if let Some(class) = CLASSES.iter().position(|(end, _)| bytes <= *end) {
            self.classes[class] += 1;
        }
    }
}

fn counted(case: &Case<'_>) -> Result<Verdict, RunError> {
    let not_run = Verdict::not_run(case.claim, Place::Live);
    let volume = match measured() {
        Ok(volume) if volume.copies > 0 => volume,
        Ok(_) => return Ok(Verdict { why: "the traced workload made no copy".to_owned(), ..not_run }),
        Err(error) => {
            return Ok(Verdict { why: format!("the workload could not be traced: {error}"), ..not_run });
        }
    };
    let rounded = |value: f64| (value * 1e3).round() / 1e3;
    let mut found: Vec<(String, f64)> = vec![
        ("copies".to_owned(), volume.copies as f64),
        ("MiB".to_owned(), rounded(volume.bytes as f64 / f64::from(1 << 20))),
        ("seconds".to_owned(), rounded(volume.seconds)),
        ("copies in 100 s at that rate".to_owned(), (volume.copies as f64 / volume.seconds * 100.0).round()),
    ];
    found.extend(
        CLASSES.iter().zip(volume.classes).map(|((_, name), copies)| ((*name).to_owned(), copies as f64)),
    );
    Ok(Verdict {
        status: Status::Reported,
        basis: Some(Basis::Measured),
        figures: Figures::Named(found.into_iter().collect()),
        why: "system calls of a shell's workload that carry data, counted by ptrace, relative to its \
                      untraced time; other copies of \
                      the kernel are left out"
            .to_owned(),
        ..not_run
    })
}

/// The workload, which waits for a line of input, in its own process group.
fn shell() -> std::io::Result<(Child, Option<ChildStdin>)> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", WORKLOAD]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn()?;
    let input = child.stdin.take();
    Ok((child, input))
}

fn measured() -> Result<Volume, Box<dyn std::error::Error>> {
    let mut volume = traced()?;
    // The untraced run is the second one, so that its files are in the page cache.
    let (mut child, input) = shell()?;
    let started = Instant::now();
    input.map(|mut input| input.write_all(b"\n")).transpose()?;
    child.wait()?;
    volume.seconds = started.elapsed().as_secs_f64();
    Ok(volume)
}

fn traced() -> Result<Volume, Box<dyn std::error::Error>> {
    let (mut child, input) = shell()?;
    let shell = Pid::from_raw(i32::try_from(child.id())?);
    let followed = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_EXITKILL;
    let attached = ptrace::seize(shell, followed).and_then(|()| ptrace::interrupt(shell));
    if let Err(error) = attached {
        child.kill()?;
        child.wait()?;
        return Err(error.into());
    }
    let go = input.map(|mut input| input.write_all(b"\n")).transpose();
    let followed = match go {
        Ok(_) => follow(shell).map_err(Box::from),
        Err(error) => Err(Box::from(error)),
    };
    if followed.is_err() {
        kill_group(shell);
    }
    followed
}

/// Kills a process group, whose members may be stopped, and reaps them.
fn kill_group(shell: Pid) {
    let _ = killpg(shell, Signal::SIGKILL);
    let group = Pid::from_raw(-shell.as_raw());
    while matches!(waitpid(group, Some(WaitPidFlag::__WALL)), Ok(_) | Err(nix::Error::EINTR)) {}
}

/// Lets a process and its descendants run until the last one ends, and counts their copies.
fn follow(shell: Pid) -> Result<Volume, nix::Error> {
    let mut volume = Volume::default();
    let mut alive = BTreeSet::from([shell]);
    let group = Pid::from_raw(-shell.as_raw());
    while !alive.is_empty() {
        let (process, signal) = match waitpid(group, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(process, _) | WaitStatus::Signaled(process, ..)) => {
                alive.remove(&process);
                continue;
            }
            Ok(WaitStatus::PtraceSyscall(process)) => {
                if let Some(bytes) = bytes_copied(process) {
                    volume.add(bytes);
                }
                (process, None)
            }
            // A stop caused by the trace carries no signal for the process.
            Ok(WaitStatus::PtraceEvent(process, ..) | WaitStatus::Stopped(process, Signal::SIGTRAP)) => {
                (process, None)
            }
            Ok(WaitStatus::Stopped(process, signal)) => (process, Some(signal)),
            Ok(_) => continue,
            Err(nix::Error::ECHILD) => break,
            Err(error) => return Err(error),
        };
        alive.insert(process);
        // It may have been killed meanwhile; its end is reported next.
        ptrace::syscall(process, signal)
            .or_else(|error| if error == nix::Error::ESRCH { Ok(()) } else { Err(error) })?;
    }
    Ok(volume)
}

/// Bytes copied by the system call that has just ended; `None` at its start and for other calls.
fn bytes_copied(process: Pid) -> Option<u64> {
    let (call, result) = call_and_result(process)?;
    // Until a call has ended, its result is an error code.
    let carries = CALLS.contains(&call) && result > 0;
    carries.then(|| result.unsigned_abs())
}

#[cfg(target_arch = "x86_64")]
fn call_and_result(process: Pid) -> Option<(libc::c_long, i64)> {
    let registers = ptrace::getregs(process).ok()?;
    Some((registers.orig_rax.cast_signed(), registers.rax.cast_signed()))
}

/// Nothing is counted on architectures that do not keep the number of a call until its end.
#[cfg(not(target_arch = "x86_64"))]
fn call_and_result(_process: Pid) -> Option<(libc::c_long, i64)> {
    None
}
