//! SIGINT and SIGTERM as a readable descriptor, for commands that run until a signal.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Readable once a signal arrived.
pub(crate) struct Interrupt(UnixStream);

impl Interrupt {
    pub(crate) fn new() -> io::Result<Self> {
        let (ours, handler_end) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, handler_end.try_clone()?)?;
        }
        Ok(Self(ours))
    }

    /// Exits with status 0 when a signal arrives.
    pub(crate) fn end_process(self) -> io::Result<()> {
        let wait = move || {
            if self.wait(None, None).is_ok() {
                std::process::exit(0);
            }
        };
        std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait)?;
        Ok(())
    }

    /// Waits for a signal, for `other` to be readable, or for the time to pass. Returns whether a signal arrived.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, time: Option<Duration>) -> io::Result<bool> {
        let mut entries = vec![PollFd::new(&self.0, PollFlags::IN)];
        entries.extend(other.as_ref().map(|other| PollFd::new(other, PollFlags::IN)));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match rustix::event::poll(&mut entries, time.as_ref()) {
            Ok(_) => Ok(!entries[0].revents().is_empty()),
            // The handler ran before the call returned.
            Err(rustix::io::Errno::INTR) => self.wait(None, Some(Duration::ZERO)),
            Err(error) => Err(error.into()),
        }
    }
}
