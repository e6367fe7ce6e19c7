//! Passes pages to a socket through a pipe: pages of the page cache, as `sendfile` does but with a length known in
//! advance, and pages that hold heads of messages.
//!
//! ```text
//! take ─ is it in the page cache? ─ splice(file ─► pipe) ─► Handover {pipe, bytes} ─ give ─ splice(pipe ─► socket)
//! carry ─ write(head ─► pipe) ─────────────────────────────────┘
//! ```
//!
//! An Rread announces its length first. `sendfile` could then find fewer bytes, if the file is truncated meanwhile; the bytes
//! in a pipe are certain. Nothing blocks on the socket: a full one is reported. A page evicted after the check
//! is read again by the kernel, blocking once.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::open_file::OpenFile;

/// Maximum number of pipes kept for reuse.
const MAX_SPARE: usize = 64;
/// A pipe size that every user may have.
const LEAST: usize = 64 << 10;

struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

#[derive(Clone)]
pub(crate) struct Pipes {
    spare: Rc<RefCell<Vec<Pipe>>>,
    /// Capacity of each pipe, in bytes.
    bytes: usize,
}

impl Pipe {
    fn new(bytes: usize) -> Result<Self, Errno> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        rustix::pipe::fcntl_setpipe_size(&writer, bytes)?;
        Ok(Self { reader, writer })
    }
}

/// Bytes in a pipe, to be spliced to a socket.
pub(crate) struct Handover {
    pipe: Option<Pipe>,
    left: usize,
    home: Pipes,
}

impl Pipes {
    /// Pipes that hold `block` bytes at any page offset, or the largest that are allowed.
    pub(crate) fn new(block: usize) -> Self {
        let wanted = (block + 2 * 4096).next_power_of_two();
        let mut bytes = wanted;
        // Sizes above fs.pipe-max-size need privileges.
        while bytes > LEAST && Pipe::new(bytes).is_err_and(|error| error == Errno::PERM) {
            bytes /= 2;
        }
        if bytes < wanted {
            tracing::warn!(bytes, "blocks larger than a pipe are copied; raise fs.pipe-max-size");
        }
        Self { spare: Rc::default(), bytes }
    }

    fn pipe(&self) -> Result<Pipe, Errno> {
        if let Some(pipe) = self.spare.borrow_mut().pop() {
            return Ok(pipe);
        }
        Pipe::new(self.bytes)
    }

    /// Splices up to `count` bytes at `offset` into a pipe; `None` if they are not in the page cache, or no pipe that
    /// holds them is available.
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

    /// Writes a message's head into a pipe; `None` if it is empty or too long, or no pipe is available.
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
    /// Bytes not yet passed to a socket.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Splices the bytes to a nonblocking socket; `more` says that further bytes follow. Returns whether all are gone.
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
        // A pipe that still holds bytes cannot be reused.
        if self.left == 0 && spare.len() < MAX_SPARE {
            spare.extend(self.pipe.take());
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn blocks_larger_than_a_pipe_are_not_taken() {
        let path = std::env::temp_dir().join(format!("memferry-handover-{}", std::process::id()));
        let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(&vec![1; 4 * LEAST]).unwrap();
        let file = OpenFile::new(file.into(), (0, 0), false, std::sync::Arc::default());
        let pipes = Pipes { spare: Rc::default(), bytes: LEAST };
        let taken = |offset, count| pipes.take(&file, offset, count).map(|handover| handover.left());
        assert_eq!(taken(0, LEAST), Some(LEAST));
        assert_eq!(taken(4096, LEAST - 4096), Some(LEAST - 4096));
        assert_eq!((taken(0, LEAST + 1), taken(1, LEAST)), (None, None));
        assert_eq!(pipes.carry(&[7; 100]).map(|handover| handover.left()), Some(100));
    }

    #[test]
    fn pipes_shrink_to_the_allowed_size() {
        let pipes = Pipes::new(16 << 20);
        println!("{} bytes", pipes.bytes);
        assert!(pipes.bytes >= LEAST && pipes.pipe().is_ok());
    }
}
