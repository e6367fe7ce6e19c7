//! Makes the pages of frames present before requests name them.
//!
//! ```text
//! mapped(frame) ─► waiting ─ a thread ─► pages present, a piece at a time
//! unmapping(frame) ─► not waiting any more, and the piece under way is waited for
//! ```
//!
//! Requests need not wait for it: a page that is absent is touched when the device stops there.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memferry_engine::{Access, FrameWatcher, Handle, Mapping};

/// Bytes that are made present at a time: some milliseconds at most.
const PIECE: usize = 4 << 20;

/// The frames that wait for their pages. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefault(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Mapping, usize)>,
    /// The frame of the piece under way.
    current: Option<usize>,
    /// That frame is being released.
    is_released: bool,
    is_closed: bool,
}

impl Prefault {
    /// Starts the thread, which ends with [`close`](Self::close).
    pub(crate) fn start(&self) -> io::Result<()> {
        let frames = self.clone();
        let thread = std::thread::Builder::new().name("memferry-pages".to_owned());
        thread.spawn(move || while frames.next() {}).map(drop)
    }

    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.0.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a piece of the first frame present. Returns whether there may be another one.
    fn next(&self) -> bool {
        let mut state = self.state();
        let (memory, start) = loop {
            if state.is_closed {
                return false;
            }
            if let Some(first) = state.waiting.pop_front() {
                break first;
            }
            state = self.wait(state);
        };
        state.current = Some(key(&memory));
        drop(state);
        let bytes = (memory.length_bytes() - start).min(PIECE);
        // A page that cannot be present is the failure of the request that names it.
        let done = memory.make_present(start as u64, bytes);
        self.end_piece(memory, start + bytes, done.is_ok());
        true
    }

    /// The rest of the frame is next, unless the frame is being released.
    fn end_piece(&self, memory: Mapping, end: usize, is_done: bool) {
        let mut state = self.state();
        state.current = None;
        let is_released = std::mem::take(&mut state.is_released);
        if is_done && !is_released && end < memory.length_bytes() {
            state.waiting.push_front((memory, end));
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

impl FrameWatcher for Prefault {
    fn mapped(&self, _: Handle, memory: &Mapping) {
        if memory.access() != Access::Elsewhere {
            self.state().waiting.push_back((memory.clone(), 0));
            self.0.changed.notify_all();
        }
    }

    fn unmapping(&self, _: Handle, memory: &Mapping) {
        let mut state = self.state();
        loop {
            state.waiting.retain(|(waiting, _)| key(waiting) != key(memory));
            if state.current != Some(key(memory)) {
                return;
            }
            state.is_released = true;
            state = self.wait(state);
        }
    }
}

/// Tells mappings of this process apart.
fn key(memory: &Mapping) -> usize {
    memory.pointer().addr()
}

#[cfg(test)]
mod tests {
    use memferry_shm::frame;

    use super::*;

    fn handle() -> Handle {
        Handle::from_bits(1)
    }

    /// Bytes of a mapping that are in the page tables of this process.
    fn present_bytes(memory: &Mapping) -> usize {
        let start = format!("{:x}-", key(memory));
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let present = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kilobytes: usize = present.split_whitespace().next().unwrap().parse().unwrap();
        kilobytes * 1024
    }

    #[test]
    fn frames_are_made_present_piece_by_piece() {
        let frames = Prefault::default();
        let [long, short] = [2 * PIECE as u64 + 1, 1].map(|bytes| frame::allocate_half(bytes).unwrap().1);
        frames.mapped(handle(), &long);
        frames.mapped(handle(), &short);
        let left = |frames: &Prefault| frames.state().waiting.iter().map(|(_, at)| *at).collect::<Vec<_>>();
        for expected in [vec![PIECE, 0], vec![2 * PIECE, 0], vec![0], vec![]] {
            assert!(frames.next());
            assert_eq!(left(&frames), expected);
        }
        assert!(present_bytes(&long) > 2 * PIECE, "each piece, not the first one again");
        frames.close();
        assert!(!frames.next());
    }

    #[test]
    fn a_released_frame_waits_no_more() {
        let frames = Prefault::default();
        let [one, two] = [1, 1].map(|bytes| frame::allocate_half(bytes).unwrap().1);
        frames.mapped(handle(), &one);
        frames.mapped(handle(), &two);
        frames.unmapping(handle(), &one);
        assert_eq!(frames.state().waiting.len(), 1);
        frames.start().unwrap();
        frames.unmapping(handle(), &two);
        let state = frames.state();
        assert!(state.waiting.is_empty() && state.current.is_none());
        drop(state);
        frames.close();
    }

    #[test]
    fn a_frame_released_during_a_piece_has_no_other() {
        let frames = Prefault::default();
        let long = frame::allocate_half(3 * PIECE as u64).unwrap().1;
        // As `next` has it while the piece is made present.
        frames.state().current = Some(key(&long));
        let released = long.clone();
        let release = std::thread::spawn({
            let frames = frames.clone();
            move || frames.unmapping(handle(), &released)
        });
        while !frames.state().is_released {
            std::thread::yield_now();
        }
        frames.end_piece(long, PIECE, true);
        release.join().unwrap();
        assert!(frames.state().waiting.is_empty());
        frames.mapped(handle(), &frame::allocate_half(2 * PIECE as u64).unwrap().1);
        assert!(frames.next());
        assert_eq!(frames.state().waiting.len(), 1, "another frame goes on");
    }
}
