//! Forking the engine, and the signals that end both processes.
//!
//! The keeper has one thread, so no lock is held in a child. Unlike the service's spawner (invariant F), the child goes on with the keeper's
//! objects: its descriptors are closed by dropping them, and its mappings are what the fork is for.
#![expect(
    unsafe_code,
    reason = "fork, signal masks and the end of a process without what was registered for it"
)]

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use memferry_shm::parking::Fences;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

/// SIGTERM and SIGINT as a descriptor; they are blocked while it exists.
pub(crate) struct Signals {
    descriptor: OwnedFd,
    /// The mask of before.
    before: libc::sigset_t,
}

impl Signals {
    pub(crate) fn block() -> io::Result<Self> {
        // SAFETY: the sets are local and initialised by sigemptyset and sigprocmask; signalfd makes a descriptor that nobody else owns.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            let number = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let descriptor = OwnedFd::from_raw_fd(number);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Self { descriptor, before })
        }
    }

    /// Whether one came. It is taken.
    pub(crate) fn take(&self) -> bool {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&self.descriptor, &mut record).is_ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the mask was written by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

/// The two sides of a fork.
pub(crate) enum Forked {
    Keeper(Process),
    /// In the child, with its end of the socket pair with the keeper.
    Engine(OwnedFd),
}

/// An engine that the keeper has forked.
pub(crate) struct Process {
    number: Pid,
    pidfd: OwnedFd,
    /// Readable with its reports (that it is attached, that it has completed a request), and when it has closed its end. The engine
    /// notices the end of the keeper by the other side.
    report: OwnedFd,
}

/// Whether this process has one thread, as far as /proc says.
pub(crate) fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Forks. The caller has one thread. In the child, which is killed when the keeper ends, no signal is blocked that was not before.
pub(crate) fn fork(signals: &Signals) -> io::Result<Forked> {
    let keeper = rustix::process::getpid();
    let (report, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    flush();
    // SAFETY: the process has one thread, so the child finds no lock held and memory as its caller left it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(report);
            // Linux forgets this when the engine changes its user; it notices the end of the socket pair then.
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            // A keeper that ended before the call above sends no signal.
            if rustix::process::getppid() != Some(keeper) {
                exit(1);
            }
            // Whether a registration is inherited is not documented.
            Fences::register_again();
            // SAFETY: as in `Signals::drop`. The child inherits a blocked mask otherwise.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &signals.before, std::ptr::null_mut()) };
            Ok(Forked::Engine(theirs))
        }
        number => {
            let number = Pid::from_raw(number).ok_or(io::ErrorKind::InvalidData)?;
            let pidfd = match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
                Ok(pidfd) => pidfd,
                Err(error) => {
                    // Nobody would notice the end of a child without it.
                    let _ = rustix::process::kill_process(number, Signal::KILL);
                    let _ = rustix::process::waitpid(Some(number), WaitOptions::empty());
                    return Err(error.into());
                }
            };
            Ok(Forked::Keeper(Process { number, pidfd, report }))
        }
    }
}

impl Process {
    /// Readable when it has ended.
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// The socket with its reports.
    pub(crate) fn report(&self) -> &OwnedFd {
        &self.report
    }

    /// Whether it has reported that it completed a request. The report is taken.
    pub(crate) fn has_worked(&self) -> bool {
        let mut word = [0];
        matches!(rustix::net::recv(&self.report, &mut word, RecvFlags::DONTWAIT), Ok((1, _)))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn try_wait(&self) -> Option<String> {
        match rustix::process::waitpid(Some(self.number), WaitOptions::NOHANG) {
            Ok(None) => None,
            Ok(Some((_, status))) => Some(describe(status)),
            // The program ignores SIGCHLD or took the status: the pidfd says whether it has ended.
            Err(_) => {
                let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                let mut entry = [PollFd::new(&self.pidfd, PollFlags::IN)];
                let has_ended = matches!(rustix::event::poll(&mut entry, Some(&now)), Ok(1..));
                has_ended.then(|| "with an unknown status".to_owned())
            }
        }
    }
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("with status {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => "in an unknown way".to_owned(),
    }
}

/// Writes out what the program has printed, which a fork would double and `exit` would lose.
pub(crate) fn flush() {
    let _ = io::stdout().flush();
    // SAFETY: flushes all streams of the C library.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Ends the process without running what the keeper registered for its own end.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}
