//! Pages of the page cache handed to a socket: what `sendfile` does, with the length known before it is announced.
//!
//! ```text
//! take ─ is it in the page cache? ─ splice(file ─► pipe) ─► Handover {pipe, bytes} ─ give ─ splice(pipe ─► socket)
//! ```
//!
//! An Rread says how many bytes follow. `sendfile` could find fewer once that was sent, when somebody cuts the file short; what
//! lies in a pipe is there. Nothing here waits: a full socket is told, and a page that left the cache after it was looked at is
//! read by the kernel meanwhile, once.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::open_file::OpenFile;

/// Pipes that are kept for the next ones.
const MOST_SPARE: usize = 64;

struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// Empty pipes.
#[derive(Clone)]
pub(crate) struct Pipes {
    spare: Rc<RefCell<Vec<Pipe>>>,
    /// Bytes that each holds.
    bytes: usize,
}

/// Bytes of a file, on their way to a socket.
pub(crate) struct Handover {
    pipe: Option<Pipe>,
    left: usize,
    home: Pipes,
}

impl Pipes {
    /// Pipes for blocks of that many bytes, wherever in a page they begin.
    pub(crate) fn new(block: usize) -> Self {
        Self { spare: Rc::default(), bytes: (block + 2 * 4096).next_power_of_two() }
    }

    fn pipe(&self) -> Result<Pipe, Errno> {
        if let Some(pipe) = self.spare.borrow_mut().pop() {
            return Ok(pipe);
        }
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        rustix::pipe::fcntl_setpipe_size(&writer, self.bytes)?;
        Ok(Pipe { reader, writer })
    }

    /// Takes up to `count` bytes at `offset`; `None` when they are not in the page cache or no pipe can be had.
    pub(crate) fn take(&self, file: &OpenFile, offset: u64, count: usize) -> Option<Handover> {
        if !file.in_page_cache(offset, count) {
            return None;
        }
        let pipe = self.pipe().ok()?;
        let mut from = offset;
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let taken = rustix::pipe::splice(&file.file, Some(&mut from), &pipe.writer, None, count, flags);
        let left = taken.unwrap_or(0);
        let handover = Handover { pipe: Some(pipe), left, home: self.clone() };
        (left > 0).then_some(handover)
    }
}

impl Handover {
    /// Bytes that are to be given still.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Gives a message's head and then these bytes to a socket that never blocks, as many as it takes; whether all are gone.
    pub(crate) fn give(&mut self, socket: &OwnedFd, head: &mut Vec<u8>) -> Result<bool, Errno> {
        while !head.is_empty() {
            let flags = SendFlags::MORE | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(socket, head, flags) {
                Ok(sent) => drop(head.drain(..sent)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let Some(pipe) = &self.pipe else { return Ok(true) };
        while self.left > 0 {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            match rustix::pipe::splice(&pipe.reader, None, socket, None, self.left, flags) {
                Ok(0) => return Err(Errno::IO),
                Ok(given) => self.left -= given,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let mut spare = self.home.spare.borrow_mut();
        // One that holds bytes is nobody else's.
        if self.left == 0 && spare.len() < MOST_SPARE {
            spare.extend(self.pipe.take());
        }
    }
}
