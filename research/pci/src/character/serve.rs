//! The loop: one thread that waits for the kernel's requests, signals and the device's next event.
//!
//! ```text
//! poll: signals, /dev/cuse, timeout ──► a request, its reply ──► the device's time
//! ```

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

use super::device::{BUFFER, CharacterDevice, Counts};
use super::message::{INIT, parse};
use crate::pace::{Next, Pace};

const CUSE: &str = "/dev/cuse";
/// Requests that are answered before the device's time goes on.
const IN_A_ROW: usize = 16;
/// Lines about mistakes of clients that are printed.
const PRINTED: u64 = 50;

/// Why serving ended badly.
#[derive(Debug, Error)]
pub enum CharacterError {
    #[error("cannot open {CUSE}: {0}; it is root's, and there with the kernel module cuse: modprobe cuse")]
    Open(Errno),
    #[error("cannot prepare for signals: {0}")]
    Signals(io::Error),
    #[error("cannot wait for requests: {0}")]
    Wait(Errno),
    #[error("the kernel does not make {path}: {error}; another device may have this name")]
    Init { path: String, error: Errno },
    #[error("the kernel gave up the device: {0}")]
    Lost(Errno),
}

/// Serves a device until a signal asks to end, which takes the file away. Writes lines for a person to `log`, the first once the kernel makes the
/// file. Returns what was done, in words.
///
/// # Errors
/// [`CharacterError`].
pub fn serve(device: &mut CharacterDevice, log: &mut dyn Write) -> Result<String, CharacterError> {
    let mut wanted = SigSet::empty();
    wanted.add(Signal::SIGINT);
    wanted.add(Signal::SIGTERM);
    let signals = wanted
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
    let signals = signals.map_err(|errno| CharacterError::Signals(errno.into()))?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let kernel = rustix::fs::open(CUSE, flags, Mode::empty()).map_err(CharacterError::Open)?;
    let pace = Pace::new(device);
    let mut server = Server { device, kernel, pace, buffer: vec![0; BUFFER], log, printed: 0 };
    while !server.turn(&signals)? {}
    let Counts { opens, descriptors, refused, bytes_read, bytes_written } = server.device.counts();
    Ok(format!(
        "ended: {descriptors} descriptors by {opens} openers, {refused} calls refused, {bytes_read} bytes read and {bytes_written} written"
    ))
}

struct Server<'a> {
    device: &'a mut CharacterDevice,
    kernel: OwnedFd,
    pace: Pace,
    buffer: Vec<u8>,
    log: &'a mut dyn Write,
    printed: u64,
}

impl Server<'_> {
    fn say(&mut self, text: &str) {
        let _ = writeln!(self.log, "memferry-device: {text}");
    }

    /// Runs the device, waits once, and answers requests. Returns whether a signal asks to end.
    fn turn(&mut self, signals: &SignalFd) -> Result<bool, CharacterError> {
        let next = self.pace.run(self.device);
        self.report();
        let timeout = match next {
            Next::Idle => None,
            Next::Now => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            Next::After(time) => Some(Timespec {
                tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: time.subsec_nanos().into(),
            }),
        };
        let mut entries = [
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.kernel.as_fd(), PollFlags::IN),
        ];
        match rustix::event::poll(&mut entries, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(CharacterError::Wait(errno)),
        }
        if !entries[0].revents().is_empty() {
            return Ok(true);
        }
        if !entries[1].revents().is_empty() {
            for _ in 0..IN_A_ROW {
                if !self.answer_one()? {
                    break;
                }
            }
        }
        Ok(false)
    }

    /// Whether there was a request.
    fn answer_one(&mut self) -> Result<bool, CharacterError> {
        let length = match rustix::io::read(&self.kernel, &mut self.buffer[..]) {
            Ok(length) => length,
            // ENOENT: the caller was killed before the request was read.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(CharacterError::Lost(errno)),
        };
        let message = &self.buffer[..length];
        let is_first = parse(message).is_ok() && message[4..8] == INIT.to_ne_bytes();
        let Some(reply) = self.device.handle(message) else { return Ok(true) };
        let path = self.device.path();
        match rustix::io::write(&self.kernel, &reply) {
            Ok(_) if is_first => self.say(&format!("serving DSA at {path}")),
            // ENOENT: the caller was killed meanwhile.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) if is_first => return Err(CharacterError::Init { path, error }),
            Err(errno) => return Err(CharacterError::Lost(errno)),
        }
        Ok(true)
    }

    fn report(&mut self) {
        for line in self.device.take_report() {
            self.printed += 1;
            if self.printed <= PRINTED {
                self.say(&line);
            }
            if self.printed == PRINTED {
                self.say("further lines of this kind are not printed");
            }
        }
    }
}
