//! Signals that end a command: as a readable descriptor, for commands that run until one, and as a flag, for commands that have to end
//! processes of theirs first.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Signals within this time of the first belong to the same event.
const SAME_EVENT: Duration = Duration::from_millis(500);

/// Readable once a signal arrived.
pub(crate) struct Interrupt(UnixStream);

impl Interrupt {
    pub(crate) fn new() -> io::Result<Self> {
        let (ours, handler_end) = UnixStream::pair()?;
        // Commands that write something at their end write it when their terminal is closed, too. SIGQUIT ends them at once.
        for signal in ending(ignored_signals()).filter(|signal| *signal != SIGQUIT) {
            signal_hook::low_level::pipe::register(signal, handler_end.try_clone()?)?;
        }
        Ok(Self(ours))
    }

    /// As [`new`](Self::new), for a command that may wait for ever for who reads what it writes: some time after the first signal, another
    /// one ends the process. Not at once, because one event can send two: a terminal that is closed, or `timeout`.
    pub(crate) fn of_first() -> io::Result<Self> {
        let has_arrived = Arc::default();
        for signal in ending(ignored_signals()).filter(|signal| *signal != SIGQUIT) {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&has_arrived))?;
        }
        let own = Self::new()?;
        let wait = move || {
            if own.wait(None, None).is_ok() {
                std::thread::sleep(SAME_EVENT);
                has_arrived.store(true, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait)?;
        Self::new()
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

/// Set by the first signal that would end this command.
pub(crate) fn flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::default();
    for signal in ending(ignored_signals()) {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// The signals that end a command which was started to ignore these. Those of its terminal do not, under nohup for example.
fn ending(ignored: u64) -> impl Iterator<Item = i32> {
    let of_terminal = [SIGHUP, SIGQUIT].into_iter().filter(move |signal| !is_in(ignored, *signal));
    [SIGINT, SIGTERM].into_iter().chain(of_terminal)
}

/// One bit for each signal that this process ignores.
pub(crate) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether a signal's bit is set.
pub(crate) fn is_in(signals: u64, signal: i32) -> bool {
    signals & 1 << (signal - 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_terminal_ends_what_does_not_ignore_it() {
        let all = |ignored| ending(ignored).collect::<Vec<_>>();
        assert_eq!(all(0), [SIGINT, SIGTERM, SIGHUP, SIGQUIT]);
        let hang_up = 1 << (SIGHUP - 1);
        assert!(is_in(hang_up, SIGHUP) && !is_in(hang_up, SIGQUIT));
        assert_eq!(all(hang_up), [SIGINT, SIGTERM, SIGQUIT]);
    }
}
