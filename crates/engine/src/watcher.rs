//! Who follows the frames of this process, and the thread that shows it those that take long.
//!
//! ```text
//! Map ─► answered ─► mapped(frame) ─► in the table: requests get it
//!            └─ takes_long ─► waiting ─ the thread ─► mapped(frame) ─► in the table
//! Unmap ─► not waiting any more, or waited for while it is being shown ─► unmapping(frame)
//! ```
//!
//! The service does not wait for `mapped`: requests for the frame do, or are left to the CPU.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use memferry_service::protocol::{ExportKind, ServiceId};
use memferry_shm::mapping::Mapping;
use memferry_transfer::{GrantToken, Handle, NodeName};

use crate::frames::Frames;

/// Follows frames that come and go, for instance to pin them for a device.
///
/// The methods are called on the thread that maps frames. While one runs, frames of all users wait to be registered, so it should return within
/// milliseconds; [`takes_long`](Self::takes_long) is for those whose `mapped` cannot.
pub trait FrameWatcher: Send + Sync {
    /// A frame was mapped. It may not be sealed yet: the bytes must not be touched before a request names the frame. The engine gets no
    /// such request before this has returned. Until then the CPU does them; those that also name the engine's own memory wait, at most
    /// twice the time that the service allows without progress (`stall-ms`).
    fn mapped(&self, frame: Handle, memory: &Mapping);

    /// Whether [`mapped`](Self::mapped) may take longer than milliseconds, as pinning does. Then it is called on a thread of its own, for a
    /// frame of each user in turn, and at the same time as methods for other frames.
    fn takes_long(&self) -> bool {
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
    /// Read while a method runs. Not locked by who waits for a frame to be shown.
    watcher: RwLock<AnyWatcher>,
    /// There is a watcher whose `mapped` takes long, or will be one soon.
    takes_long: AtomicBool,
    was_set: Mutex<bool>,
    set: Condvar,
    waiting: Mutex<Waiting>,
    /// A frame waits, or one was shown.
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<Unseen>,
    /// The one that is being shown.
    current: Option<Handle>,
}

/// A frame that the watcher has not seen, of a user.
struct Unseen {
    frame: Handle,
    user: u32,
    mapping: Mapping,
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

    /// The watcher, which is not dropped meanwhile.
    pub(crate) fn get(&self) -> RwLockReadGuard<'_, AnyWatcher> {
        self.shared.watcher.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `get`, but waits for the watcher to be set, at most as long as the patience allows.
    pub(crate) fn get_once_set(&self) -> RwLockReadGuard<'_, AnyWatcher> {
        let was_set = self.shared.was_set.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.shared.set.wait_timeout_while(was_set, self.patience, |was_set| !*was_set));
        self.get()
    }

    /// Sets the watcher, which first learns of the frames that exist.
    pub(crate) fn set(&self, frames: &Frames, watcher: Box<dyn FrameWatcher>) {
        // Frames wait from here on, those of one that takes long for the thread, so none is missed and none is seen twice.
        self.shared.takes_long.store(watcher.takes_long(), Ordering::SeqCst);
        let mut place = self.shared.watcher.write().unwrap_or_else(PoisonError::into_inner);
        for (frame, mapping) in frames.all() {
            watcher.mapped(frame, &mapping);
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

    /// Whether frames are shown by the thread.
    pub(crate) fn takes_long(&self) -> bool {
        self.shared.takes_long.load(Ordering::SeqCst)
    }

    /// Has a frame shown by the thread, which then gives it to requests.
    pub(crate) fn show_later(&self, frame: Handle, user: u32, mapping: Mapping) {
        self.shared.waiting().frames.push_back(Unseen { frame, user, mapping });
        self.shared.changed.notify_all();
    }

    /// The frame is not shown after this, and requests do not get it any more than they have.
    pub(crate) fn forget(&self, frame: Handle) {
        let mut waiting = self.shared.waiting_while(|waiting| waiting.current == Some(frame));
        waiting.frames.retain(|unseen| unseen.frame != frame);
    }

    /// Waits for a frame, and shows it.
    pub(crate) fn show_next(&self, frames: &Frames) {
        let mut waiting = self.shared.waiting_while(|waiting| waiting.frames.is_empty());
        let Some(Unseen { frame, user, mapping }) = waiting.frames.pop_front() else { return };
        waiting.current = Some(frame);
        // The others of this user come after those of all others.
        let unseen = std::mem::take(&mut waiting.frames);
        let (own, others): (VecDeque<_>, VecDeque<_>) =
            unseen.into_iter().partition(|unseen| unseen.user == user);
        waiting.frames = others.into_iter().chain(own).collect();
        drop(waiting);
        if let Some(watcher) = self.get().as_ref() {
            watcher.mapped(frame, &mapping);
        }
        frames.insert(frame, mapping);
        self.shared.waiting().current = None;
        self.shared.changed.notify_all();
    }
}
