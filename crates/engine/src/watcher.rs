//! Who follows the frames of this process, and the thread that shows it those that it pins.
//!
//! ```text
//! Map ─► answered ─► mapped(frame) ─► in the table: requests get it
//!            └─ pins ─► waiting ─ the thread ─► pages present, piece by piece ─► mapped(frame) ─► in the table
//! Unmap ─► not waiting any more; while it is being shown: stopped after the piece, or waited for ─► unmapping(frame)
//! ```
//!
//! The service does not wait for `mapped`: requests for the frame do, or are left to the CPU.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use memferry_service::protocol::{ExportKind, ServiceId};
use memferry_shm::mapping::Mapping;
use memferry_transfer::{GrantToken, Handle, NodeName};

use crate::frames::{Frame, Frames};

/// Bytes that are made present at a time: some milliseconds at most.
const PIECE_BYTES: usize = 4 << 20;

/// Follows frames that come and go, for instance to pin them for a device.
///
/// The methods are called on the thread that maps frames. While one runs, frames of all users wait to be registered, so it should return within
/// milliseconds; [`pins`](Self::pins) is for those whose `mapped` cannot.
pub trait FrameWatcher: Send + Sync {
    /// A frame was mapped. It may not be sealed yet: the bytes must not be touched before a request names the frame. The engine gets no
    /// such request before this has returned. Until then the CPU does them; those that also name the engine's own memory wait, at most
    /// twice the time that the service allows without progress (`stall-ms`).
    fn mapped(&self, frame: Handle, memory: &Mapping);

    /// Whether [`mapped`](Self::mapped) pins this memory, which takes long. Then its pages are made present first, and `mapped` is called on a
    /// thread of its own, for a frame of each user in turn, at the same time as methods for other frames.
    fn pins(&self, _memory: &Mapping) -> bool {
        false
    }

    /// No request names the frame any more; it is unmapped next, or freed with this call if it is the engine's own memory.
    fn unmapping(&self, frame: Handle, memory: &Mapping);

    /// A client wants a frame in the engine's own memory. Returns the address by which requests name it; the bytes there must be zero.
    /// It is the client's until [`unmapping`](Self::unmapping) was called for it, and lost when this process ends. `None` if there is
    /// not so much memory: then the client's command is refused.
    fn allocate(&self, _frame: Handle, _length: u64) -> Option<usize> {
        None
    }

    /// A client accepts memory of another node. Returns an address by which requests name it, which no other frame has within its length;
    /// `None` refuses. Only the engine process called `link` is asked.
    fn attach(&self, _frame: Handle, _remote: &Remote) -> Option<usize> {
        None
    }

    /// The owner of a frame in the engine's own memory wants to reach it from its own process. Returns a descriptor, which cannot be
    /// taken back: the owner keeps the memory for as long as it likes, also after [`unmapping`](Self::unmapping). So memory that was
    /// exported must not be given to another frame. Requests for the frame go on.
    ///
    /// # Errors
    /// [`NotExported`].
    fn export(&self, _frame: Handle, _memory: &Mapping) -> Result<Exported, NotExported> {
        Err(NotExported::Unsupported)
    }
}

/// Memory that another node granted to a user of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The node that has it.
    pub node: NodeName,
    /// The run of that node's service in which the grant was made.
    pub service: ServiceId,
    /// Names the grant in that run.
    pub token: GrantToken,
    /// The user of this node who accepts it.
    pub user: u32,
    /// Bytes that the user expects; the other node knows how many there are.
    pub length: u64,
}

/// Memory of a frame, for the process of its owner.
#[derive(Debug)]
pub struct Exported {
    /// Gives access to the memory, and to nothing else.
    pub descriptor: OwnedFd,
    /// What the descriptor is. A memfd must not shrink: it is sealed with `F_SEAL_SHRINK`.
    pub kind: ExportKind,
    /// Bytes of the memory, at least those of the frame, which begins with the first one.
    pub length: u64,
}

/// Why there is no descriptor of a frame's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotExported {
    /// The engine gives out no descriptors of its memory.
    Unsupported,
    /// It could not this time.
    Failed,
}

type AnyWatcher = Option<Box<dyn FrameWatcher>>;

/// The watcher, if there is one, and the frames that it will be shown. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    /// How long an engine that has just begun may take to set it, when a client wants memory.
    patience: Duration,
}

#[derive(Default)]
struct Shared {
    /// Read while a method runs, and by whom it concerns whether there is a watcher. Nobody waits with it for a frame to be shown.
    watcher: RwLock<AnyWatcher>,
    was_set: Mutex<bool>,
    set: Condvar,
    waiting: Mutex<Waiting>,
    /// A frame waits, or one was shown.
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<(Handle, Frame)>,
    /// The one that is being shown.
    current: Option<Handle>,
    /// It is being released.
    is_released: bool,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting_while(&self, must_wait: impl FnMut(&mut Waiting) -> bool) -> MutexGuard<'_, Waiting> {
        self.changed.wait_while(self.waiting(), must_wait).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// A place for a watcher that memory may wait for.
    pub(crate) fn awaited(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    /// The watcher, which stays the same meanwhile.
    pub(crate) fn get(&self) -> RwLockReadGuard<'_, AnyWatcher> {
        self.shared.watcher.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `get`, but waits for the watcher to be set, at most as long as the patience allows.
    pub(crate) fn get_once_set(&self) -> RwLockReadGuard<'_, AnyWatcher> {
        let was_set = self.shared.was_set.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.shared.set.wait_timeout_while(was_set, self.patience, |was_set| !*was_set));
        self.get()
    }

    /// Sets the watcher, which learns of the frames that exist: requests get those that it pins again when they were shown.
    pub(crate) fn set(&self, frames: &Frames, watcher: Box<dyn FrameWatcher>) {
        let mut place = self.shared.watcher.write().unwrap_or_else(PoisonError::into_inner);
        for (handle, frame) in frames.all() {
            if !frame.mapping.is_elsewhere() && watcher.pins(&frame.mapping) {
                frames.remove(handle);
                self.show_later(handle, frame);
            } else {
                watcher.mapped(handle, &frame.mapping);
            }
        }
        *place = Some(watcher);
        drop(place);
        *self.shared.was_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.set.notify_all();
    }

    /// Drops the watcher, which is not called any more when this returns.
    pub(crate) fn clear(&self) {
        *self.shared.watcher.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Has a frame shown by the thread, which then gives it to requests.
    pub(crate) fn show_later(&self, handle: Handle, frame: Frame) {
        self.shared.waiting().frames.push_back((handle, frame));
        self.shared.changed.notify_all();
    }

    /// A frame does not wait to be shown any more. Returns whether it is just being shown: then it may be in the table when that has ended.
    pub(crate) fn forget(&self, handle: Handle) -> bool {
        let mut waiting = self.shared.waiting();
        waiting.frames.retain(|(unseen, _)| *unseen != handle);
        waiting.is_released |= waiting.current == Some(handle);
        waiting.current == Some(handle)
    }

    /// Waits until a frame is not being shown.
    pub(crate) fn wait_for(&self, handle: Handle) {
        drop(self.shared.waiting_while(|waiting| waiting.current == Some(handle)));
    }

    /// Waits for a frame, and shows it.
    pub(crate) fn show_next(&self, frames: &Frames) {
        let Some((handle, frame)) = self.begin_next() else { return };
        let is_wanted = self.make_present(&frame.mapping);
        let watcher = self.get();
        if is_wanted {
            if let Some(watcher) = watcher.as_ref() {
                watcher.mapped(handle, &frame.mapping);
            }
            // A watcher that is set from now on finds it there.
            frames.insert(handle, frame);
        }
        drop(watcher);
        self.shared.waiting().current = None;
        self.shared.changed.notify_all();
    }

    /// The next frame to be shown. The others of its user come after those of all others.
    fn begin_next(&self) -> Option<(Handle, Frame)> {
        let mut waiting = self.shared.waiting_while(|waiting| waiting.frames.is_empty());
        let (handle, frame) = waiting.frames.pop_front()?;
        let unseen = std::mem::take(&mut waiting.frames).into_iter();
        let (own, others): (VecDeque<_>, VecDeque<_>) =
            unseen.partition(|(_, other)| other.user == frame.user);
        waiting.frames = others.into_iter().chain(own).collect();
        waiting.current = Some(handle);
        waiting.is_released = false;
        Some((handle, frame))
    }

    /// Makes the pages of the frame that is being shown present. A driver does that too when it pins them, but cannot be stopped, and blocks
    /// each `mmap` of this process until then. Returns whether the frame was not released.
    fn make_present(&self, memory: &Mapping) -> bool {
        let length = memory.length_bytes();
        for start in (0..length).step_by(PIECE_BYTES) {
            if self.shared.waiting().is_released {
                return false;
            }
            // A page that cannot be had is the watcher's business.
            let _ = memory.make_present(start as u64, PIECE_BYTES.min(length - start));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use memferry_shm::frame;

    use super::*;

    const FRAME: Handle = Handle::new(5, 2);

    fn waiting() -> (Watcher, Frames) {
        let watcher = Watcher::default();
        let mapping = frame::allocate_half(2 * PIECE_BYTES as u64 + 1).unwrap().1;
        watcher.show_later(FRAME, Frame { mapping, user: 7 });
        (watcher, Frames::default())
    }

    #[test]
    fn a_frame_that_is_released_is_not_made_present_further() {
        let (watcher, _frames) = waiting();
        let (handle, frame) = watcher.begin_next().unwrap();
        assert!(watcher.make_present(&frame.mapping));
        assert!(watcher.forget(handle));
        assert!(!watcher.make_present(&frame.mapping));
    }

    #[test]
    fn the_release_of_one_frame_is_not_that_of_the_next() {
        let (watcher, frames) = waiting();
        watcher.begin_next().unwrap();
        watcher.forget(FRAME);
        let next = Handle::new(5, 3);
        watcher.show_later(next, Frame { mapping: Mapping::owned(vec![0; 4096]), user: 7 });
        watcher.show_next(&frames);
        assert!(frames.get(next).is_some());
    }
}
