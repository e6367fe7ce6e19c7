//! Socket calls with a time limit, which a signal does not extend.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use memferry_shm::conduit::{self, Packet, ReceiveError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// Pause before a packet is sent again to a service that does not read. Linux reports no event for that.
const RETRY_SEND: Duration = Duration::from_millis(2);

/// The end of a time limit; never, for a limit beyond the clock.
pub(super) struct Deadline {
    limit: Duration,
    end: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitError {
    TimedOut,
    Closed,
    /// A packet or a list of descriptors exceeds the protocol's limit.
    TooLong,
    System(Errno),
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self { limit, end: Instant::now().checked_add(limit) }
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// The time left, zero after the end.
    pub(super) fn left(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Connects. A listener whose backlog is full does not make this wait for longer.
    pub(super) fn connect(&self, socket: BorrowedFd<'_>, address: &SocketAddrUnix) -> Result<(), WaitError> {
        loop {
            let left = self.left();
            if self.end.is_some() {
                // A time of zero would mean no limit.
                let time = Some(left.max(Duration::from_millis(1)));
                set_socket_timeout(socket, Timeout::Send, time).map_err(WaitError::System)?;
            }
            match rustix::net::connect(socket, address) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) if !left.is_zero() => {}
                Err(Errno::INTR | Errno::AGAIN) => return Err(WaitError::TimedOut),
                Err(error) => return Err(WaitError::System(error)),
            }
        }
    }

    /// Sends one packet, again and again while the service does not read.
    pub(super) fn send(
        &self,
        socket: BorrowedFd<'_>,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), WaitError> {
        loop {
            match conduit::send(socket, bytes, descriptors, false) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) => match self.left() {
                    Duration::ZERO => return Err(WaitError::TimedOut),
                    left => std::thread::sleep(left.min(RETRY_SEND)),
                },
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(WaitError::Closed),
                Err(error) => return Err(WaitError::System(error)),
            }
        }
    }

    /// Receives one packet. A packet that is already there is received even after the end.
    pub(super) fn receive(&self, socket: BorrowedFd<'_>) -> Result<Packet, WaitError> {
        loop {
            let left = self.left();
            let time = Timespec::try_from(left).ok();
            match rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], time.as_ref()) {
                Ok(0) => return Err(WaitError::TimedOut),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(WaitError::System(error)),
            }
            return match conduit::receive(socket, false) {
                Ok(packet) => Ok(packet),
                Err(ReceiveError::WouldBlock) if !left.is_zero() => continue,
                Err(ReceiveError::WouldBlock) => Err(WaitError::TimedOut),
                Err(ReceiveError::Closed) => Err(WaitError::Closed),
                Err(ReceiveError::TooLong | ReceiveError::TooManyDescriptors) => Err(WaitError::TooLong),
                Err(ReceiveError::System(error)) => Err(WaitError::System(error)),
            };
        }
    }
}

/// Borrows descriptors for [`Deadline::send`].
pub(super) fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(std::os::fd::AsFd::as_fd).collect()
}
