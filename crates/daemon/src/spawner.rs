//! The process that starts attendants: forked before the service has threads, holds descriptors or is confined.
//!
//! ```text
//! service ─ user, channel ─► spawner ─ fork ─► attendant: serves the channel
//! service ◄─ pidfd ───────── spawner
//! service ─ at its end ────► spawner ─ removes the files of the socket
//! ```
//!
//! A confined service cannot fork, and a fork of a process with threads is unsafe. The spawner has one thread, sees nothing that
//! comes from clients, and keeps no channel. It also removes the files that a confined service cannot. It and its attendants are killed
//! when the service ends.

#![expect(unsafe_code, reason = "fork, and what a forked process has to do before anything else")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use memferry_shm::conduit;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::attendant::Attendant;
use crate::listener::Traces;
use crate::messages::{self, FromAttendant};
use crate::sandbox;

/// The service's end of the spawner.
pub(crate) struct Spawner {
    socket: OwnedFd,
}

/// The spawner's answer: the user, and the attendant's pidfd if it could be started.
pub(crate) struct Spawned {
    pub(crate) user: u32,
    pub(crate) process: Option<OwnedFd>,
}

impl Spawner {
    /// Starts the process. The caller has no thread that holds a lock, best none at all. `confined`: whether seccomp filters are
    /// installed.
    ///
    /// # Errors
    /// Those of socketpair and fork.
    pub(crate) fn start(traces: Traces, confined: bool) -> std::io::Result<Self> {
        let (socket, theirs) = pair()?;
        // SAFETY: F: the child runs only `run`, which never returns, and closes all other descriptors first.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error()),
            0 => run(theirs, &traces, confined),
            _ => Ok(Self { socket }),
        }
    }

    /// Readable when [`receive`](Self::receive) has an answer.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Asks for an attendant of `user`. Returns the channel to it, which can be used at once.
    ///
    /// # Errors
    /// Those of socketpair and sendmsg: the spawner is gone or has too many requests.
    pub(crate) fn spawn(&self, user: u32) -> std::io::Result<OwnedFd> {
        let (channel, theirs) = pair()?;
        conduit::send(self.socket.as_fd(), &user.to_le_bytes(), &[theirs.as_fd()], false)?;
        Ok(channel)
    }

    /// Has the files of the socket removed, and waits until they are.
    pub(crate) fn remove_traces(&self) {
        if conduit::send(self.socket.as_fd(), REMOVE, &[], false).is_err() {
            return;
        }
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            let mut entry = [PollFd::new(&self.socket, PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut entry, Some(&limit)), Ok(1)) {
                return;
            }
            match conduit::receive(self.socket.as_fd(), false) {
                Ok(packet) if packet.bytes != REMOVE => {}
                _ => return,
            }
        }
    }

    /// The next answer; never waits. `Err` if the spawner is gone.
    pub(crate) fn receive(&self) -> Result<Option<Spawned>, conduit::ReceiveError> {
        match conduit::receive(self.socket.as_fd(), false) {
            Ok(mut packet) => {
                let user = user_in(&packet.bytes).ok_or(conduit::ReceiveError::Closed)?;
                Ok(Some(Spawned { user, process: packet.descriptors.pop() }))
            }
            Err(conduit::ReceiveError::WouldBlock) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Asks for the files of the socket to be removed, and answers that. Requests for attendants are longer.
const REMOVE: &[u8] = b"-";

fn pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn user_in(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_le_bytes)
}

/// The spawner's life. Ends with the service.
fn run(socket: OwnedFd, traces: &Traces, confined: bool) -> ! {
    leave_the_service(&socket);
    let _ = rustix::thread::set_name(c"memferry-spawn");
    let own = rustix::process::getpid();
    if confined && sandbox::confine_spawner().is_err() {
        exit();
    }
    while let Ok(mut packet) = conduit::receive(socket.as_fd(), true) {
        if packet.bytes == REMOVE {
            traces.remove();
            let _ = conduit::send(socket.as_fd(), REMOVE, &[], true);
            continue;
        }
        let (Some(user), Some(channel)) = (user_in(&packet.bytes), packet.descriptors.pop()) else { break };
        // SAFETY: F: this process has one thread, and the child runs only `run_attendant`, which never returns.
        let process = match unsafe { libc::fork() } {
            0 => {
                drop(socket);
                run_attendant(channel, user, own, confined);
            }
            number => Pid::from_raw(number.max(0))
                .and_then(|number| rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()),
        };
        drop(channel);
        let descriptors: Vec<_> = process.iter().map(AsFd::as_fd).collect();
        if answer(&socket, user, &descriptors).is_err() {
            break;
        }
    }
    exit();
}

/// Answers the service. Linux limits the descriptors that this system user has sent and nobody has received. Clients can hold it at
/// that limit; then no attendant can be started anyway, so this waits.
fn answer(socket: &OwnedFd, user: u32, descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
    loop {
        match conduit::send(socket.as_fd(), &user.to_le_bytes(), descriptors, true) {
            Err(Errno::TOOMANYREFS) => std::thread::sleep(PAUSE),
            sent => return sent,
        }
    }
}

/// Serves one user until the service closes the channel.
fn run_attendant(channel: OwnedFd, user: u32, spawner: Pid, confined: bool) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // A parent that ended before the call above sends no signal.
    if rustix::process::getppid() != Some(spawner) {
        exit();
    }
    let _ = rustix::thread::set_name(c"memferry-attend");
    if let Ok(reports) = channel.try_clone() {
        // A half attendant would leave its clients waiting.
        std::panic::set_hook(Box::new(move |panic| {
            let message = FromAttendant::Panicked { message: panic.to_string() };
            let _ = messages::send(reports.as_fd(), &message, &[], false);
            std::process::abort();
        }));
    }
    // Landlock before the threads start, which inherit it; seccomp holds for all of them.
    if (!confined || sandbox::take_everything().is_ok())
        && let Ok(attendant) = Attendant::new(channel, user)
        && (!confined || sandbox::confine_attendant().is_ok())
    {
        attendant.run();
    }
    exit();
}

/// Gives up what the fork has inherited: descriptors, standard streams, signal handlers. Nothing of the service may live on here.
fn leave_the_service(socket: &OwnedFd) {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        // Standard error too: whoever reads it until its end waits for the last holder.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let number = socket.as_raw_fd().unsigned_abs();
    // SAFETY: F: no object of this process uses another descriptor any more. The calls name no memory. The signals that end the
    // service in good order reach this process too, from a terminal or a supervisor; it ends with the service instead.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, number - 1, 0);
        libc::syscall(libc::SYS_close_range, number + 1, libc::c_uint::MAX, 0);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // Ended attendants need nobody who asks for their status.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
}

/// Ends the process without running what the service registered for its own end.
fn exit() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests;
