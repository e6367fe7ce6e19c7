//! Pages handed to a socket by a pipe: those of the page cache, as `sendfile` does, with the length known before it is
//! announced, and those that heads of messages are written to.
//!
//! ```text
//! take ─ is it in the page cache? ─ splice(file ─► pipe) ─► Handover {pipe, bytes} ─ give ─ splice(pipe ─► socket)
//! carry ─ write(head ─► pipe) ─────────────────────────────────┘
//! ```
//!
//! An Rread says how many bytes follow. `sendfile` could find fewer once that was sent, when somebody cuts the file short; what
//! lies in a pipe is there. Nothing here waits: a full socket is told, and a page that left the cache after it was looked at is
//! read by the kernel meanwhile, once.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::open_file::OpenFile;

/// Pipes that are kept for the next ones.
const MOST_SPARE: usize = 64;
/// The length that every pipe may have.
const LEAST: usize = 64 << 10;

struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

#[derive(Clone)]
pub(crate) struct Pipes {
    spare: Rc<RefCell<Vec<Pipe>>>,
    /// Bytes that each holds, a page at a time.
    bytes: usize,
}

impl Pipe {
    fn new(bytes: usize) -> Result<Self, Errno> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        rustix::pipe::fcntl_setpipe_size(&writer, bytes)?;
        Ok(Self { reader, writer })
    }
}

/// Bytes on their way to a socket.
pub(crate) struct Handover {
    pipe: Option<Pipe>,
    left: usize,
    home: Pipes,
}

impl Pipes {
    /// Pipes for blocks of that many bytes, wherever in a page they begin, or the longest that may be had.
    pub(crate) fn new(block: usize) -> Self {
        let wanted = (block + 2 * 4096).next_power_of_two();
        let mut bytes = wanted;
        // Long ones are for the privileged.
        while bytes > LEAST && Pipe::new(bytes).is_err_and(|error| error == Errno::PERM) {
            bytes /= 2;
        }
        if bytes < wanted {
            tracing::warn!(bytes, "blocks that are too long for a pipe are copied; raise fs.pipe-max-size");
        }
        Self { spare: Rc::default(), bytes }
    }

    fn pipe(&self) -> Result<Pipe, Errno> {
        if let Some(pipe) = self.spare.borrow_mut().pop() {
            return Ok(pipe);
        }
        Pipe::new(self.bytes)
    }

    /// Takes up to `count` bytes at `offset`; `None` when they are not in the page cache, or no pipe that holds them
    /// can be had.
    pub(crate) fn take(&self, file: &OpenFile, offset: u64, count: usize) -> Option<Handover> {
        let page = rustix::param::page_size();
        let pages = (offset % page as u64) as usize + count;
        if pages.next_multiple_of(page) > self.bytes || !file.in_page_cache(offset, count) {
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

    /// Takes a message's head; `None` when there is none, or it is too long, or no pipe can be had.
    pub(crate) fn carry(&self, head: &[u8]) -> Option<Handover> {
        if head.is_empty() || head.len() > self.bytes {
            return None;
        }
        let pipe = self.pipe().ok()?;
        let written = rustix::io::write(&pipe.writer, head).ok()?;
        let handover = Handover { pipe: Some(pipe), left: written, home: self.clone() };
        (written == head.len()).then_some(handover)
    }
}

impl Handover {
    /// Bytes that are to be given still.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Gives these bytes to a socket that never blocks, as many as it takes, with `more` to follow at once; whether all are gone.
    pub(crate) fn give(&mut self, socket: &OwnedFd, more: bool) -> Result<bool, Errno> {
        let Some(pipe) = &self.pipe else { return Ok(true) };
        let more = if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE | more;
        while self.left > 0 {
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

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn blocks_that_a_pipe_does_not_hold_are_not_taken_and_heads_still_are_carried() {
        let path = std::env::temp_dir().join(format!("memferry-handover-{}", std::process::id()));
        let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(&vec![1; 4 * LEAST]).unwrap();
        let file = OpenFile::new(file.into(), (0, 0), false);
        let pipes = Pipes { spare: Rc::default(), bytes: LEAST };
        let taken = |offset, count| pipes.take(&file, offset, count).map(|handover| handover.left());
        assert_eq!(taken(0, LEAST), Some(LEAST));
        assert_eq!(taken(4096, LEAST - 4096), Some(LEAST - 4096));
        assert_eq!((taken(0, LEAST + 1), taken(1, LEAST)), (None, None));
        assert_eq!(pipes.carry(&[7; 100]).map(|handover| handover.left()), Some(100));
    }

    #[test]
    fn who_may_not_have_long_pipes_has_shorter_ones() {
        let pipes = Pipes::new(16 << 20);
        println!("{} bytes", pipes.bytes);
        assert!(pipes.bytes >= LEAST && pipes.pipe().is_ok());
    }
}
