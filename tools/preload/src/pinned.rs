//! The bytes of a source, held by its pages and not by its addresses.
//!
//! ```text
//! source ─ vmsplice ─► pipes of 256 pages: the pages stay whatever becomes of the addresses ─ read ─► chunk
//!                        └─ tee ─► the same pages once more, for a child
//! ```
//!
//! What is unmapped, moved, protected or thrown away by the program after its copy was accepted is still here. That nobody writes to these
//! pages is the guard's business.

use crate::system::{self, Descriptor, PAGE};

/// Pipes; each holds so many pages, which every user may have.
const PIPES: usize = 16;
const PIPE_PAGES: usize = 256;
/// Bytes that they hold together, wherever in a page those begin.
pub(crate) const MOST_BYTES: usize = PIPES * (PIPE_PAGES - 1) * PAGE;

#[derive(Clone, Copy)]
struct Pipe {
    /// What is read from, and what is written to.
    ends: [Descriptor; 2],
    held: usize,
}

/// A stream of bytes in pages.
pub(crate) struct Pinned {
    pipes: [Option<Pipe>; PIPES],
}

impl Pinned {
    pub(crate) const fn new() -> Self {
        Self { pipes: [None; PIPES] }
    }

    /// Holds `bytes` from an address on; when it says `false`, it holds some of them and is to be closed.
    pub(crate) fn hold(&mut self, from: usize, bytes: usize) -> bool {
        let mut done = 0;
        for place in &mut self.pipes {
            if done == bytes {
                break;
            }
            let Some(pipe) = place.or_else(Pipe::new) else { return false };
            let vector = [from + done, bytes - done];
            let flags = libc::SPLICE_F_NONBLOCK as usize;
            let arguments = [pipe.ends[1] as usize, vector.as_ptr().addr(), 1, flags, 0, 0];
            // SAFETY: it reads one vector, and takes references to the pages of a range that may be read.
            let held = unsafe { system::call(libc::SYS_vmsplice, arguments) };
            *place = Some(Pipe { held: held.unwrap_or(0), ..pipe });
            done += held.unwrap_or(0);
        }
        done == bytes
    }

    /// Takes as many bytes from the front as `into` has room for.
    pub(crate) fn take(&mut self, mut into: &mut [u8]) {
        for pipe in self.pipes.iter_mut().flatten() {
            while pipe.held > 0 && !into.is_empty() {
                let now = pipe.held.min(into.len());
                match system::read(pipe.ends[0], &mut into[..now], false) {
                    Ok(read) if read > 0 => {
                        pipe.held -= read;
                        into = &mut into[read..];
                    }
                    Err(libc::EINTR) => {}
                    _ => system::end_process(),
                }
            }
        }
        if !into.is_empty() {
            system::end_process();
        }
    }

    /// Another one that holds what this one holds now.
    pub(crate) fn again(&self) -> Self {
        let mut other = Self::new();
        for (pipe, place) in self.pipes.iter().flatten().filter(|pipe| pipe.held > 0).zip(&mut other.pipes) {
            let Some(copy) = Pipe::new() else { system::end_process() };
            let from = pipe.ends[0] as usize;
            let to = copy.ends[1] as usize;
            // SAFETY: it touches no memory.
            let held = unsafe {
                system::call(libc::SYS_tee, [from, to, pipe.held, libc::SPLICE_F_NONBLOCK as usize, 0, 0])
            };
            if held != Ok(pipe.held) {
                system::end_process();
            }
            *place = Some(Pipe { held: pipe.held, ..copy });
        }
        other
    }

    /// Lets go of everything.
    pub(crate) fn close(&mut self) {
        for pipe in self.pipes.iter_mut().filter_map(Option::take) {
            pipe.ends.into_iter().for_each(system::close);
        }
    }
}

impl Pipe {
    fn new() -> Option<Self> {
        let mut ends = [-1; 2];
        // SAFETY: it writes two descriptors.
        unsafe {
            system::call(libc::SYS_pipe2, [ends.as_mut_ptr().addr(), libc::O_CLOEXEC as usize, 0, 0, 0, 0])
        }
        .ok()?;
        let arguments = [ends[1] as usize, libc::F_SETPIPE_SZ as usize, PIPE_PAGES * PAGE, 0, 0, 0];
        // SAFETY: it touches no memory.
        if unsafe { system::call(libc::SYS_fcntl, arguments) } != Ok(PIPE_PAGES * PAGE) {
            ends.into_iter().for_each(system::close);
            return None;
        }
        Some(Self { ends, held: 0 })
    }
}
