//! The frames that this process has, and what becomes of the service's events about them.
//!
//! ```text
//! Map { frame } ─► mmap, whole and shared ─► Mapped { is_writable }      nothing touches the bytes
//! Allocate { frame } ─► the watcher's own memory ─► Mapped, Failed       a name for it, in the same table
//! Export { frame } ─► a descriptor of that memory ─► Exported            it stays the frame's
//! Unmap { frame } ─► out of the table ─► Unmapped                        a job that has the mapping keeps it
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use memferry_service::protocol::{ExportKind, FrameDone, FrameEvent, FrameResult, ServiceId};
use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::{GrantToken, Handle, NodeName};

use crate::connection::ConnectionError;

/// The frames of this process. Clones share them.
#[derive(Clone, Default, Debug)]
pub struct Frames(Arc<RwLock<BTreeMap<Handle, Mapping>>>);

impl Frames {
    /// The mapping of a frame, or the name of the engine's own memory; `None` if this process does not have it.
    pub fn get(&self, frame: Handle) -> Option<Mapping> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&frame).cloned()
    }

    /// All frames with their mappings.
    pub fn all(&self) -> Vec<(Handle, Mapping)> {
        let frames = self.0.read().unwrap_or_else(PoisonError::into_inner);
        frames.iter().map(|(frame, mapping)| (*frame, mapping.clone())).collect()
    }

    fn insert(&self, frame: Handle, mapping: Mapping) {
        // A mapping that this replaces is unmapped after the lock is released.
        let _replaced = self.0.write().unwrap_or_else(PoisonError::into_inner).insert(frame, mapping);
    }

    fn remove(&self, frame: Handle) -> Option<Mapping> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&frame)
    }

    /// Unmaps all that no job has.
    pub(crate) fn clear(&self) {
        let _frames = std::mem::take(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Follows frames that come and go, for instance to pin them for a device.
///
/// The methods are called on the thread that maps frames. While one runs, frames of all users wait to be registered, so it should
/// return within milliseconds.
pub trait FrameWatcher: Send {
    /// A frame was mapped. It may not be sealed yet: the bytes must not be touched before a request names the frame. The engine gets no
    /// such request before this has returned. Until then the CPU does them; those that also name the engine's own memory wait, at most
    /// twice the time that the service allows without progress (`stall-ms`).
    fn mapped(&mut self, frame: Handle, memory: &Mapping);

    /// No request names the frame any more; it is unmapped next, or freed with this call if it is the engine's own memory.
    fn unmapping(&mut self, frame: Handle, memory: &Mapping);

    /// A client wants a frame in the engine's own memory. Returns the address by which requests name it; the bytes there must be zero.
    /// It is the client's until [`unmapping`](Self::unmapping) was called for it, and lost when this process ends. `None` if there is
    /// not so much memory: then the client's command is refused.
    fn allocate(&mut self, _frame: Handle, _length: u64) -> Option<usize> {
        None
    }

    /// A client accepts memory of another node. Returns an address by which requests name it, which no other frame has within its length;
    /// `None` refuses. Only the engine process called `link` is asked.
    fn attach(&mut self, _frame: Handle, _remote: &Remote) -> Option<usize> {
        None
    }

    /// The owner of a frame in the engine's own memory wants to reach it from its own process. Returns a descriptor, which cannot be
    /// taken back: the owner keeps the memory for as long as it likes, also after [`unmapping`](Self::unmapping). So memory that was
    /// exported must not be given to another frame. Requests for the frame go on.
    ///
    /// # Errors
    /// [`NotExported`].
    fn export(&mut self, _frame: Handle, _memory: &Mapping) -> Result<Exported, NotExported> {
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

/// The watcher, if there is one. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Watcher {
    shared: Arc<(Mutex<AnyWatcher>, Condvar)>,
    /// How long an engine that has just begun may take to set it, when a client wants memory.
    patience: Duration,
}

impl Watcher {
    /// A place for a watcher that memory may wait for.
    pub(crate) fn awaited(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, AnyWatcher> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `lock`, but waits for the watcher to be set, at most as long as the patience allows.
    fn lock_set(&self) -> MutexGuard<'_, AnyWatcher> {
        let waited =
            self.shared.1.wait_timeout_while(self.lock(), self.patience, |watcher| watcher.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Sets the watcher, which first learns of the frames that exist.
    pub(crate) fn set(&self, frames: &Frames, mut watcher: Box<dyn FrameWatcher>) {
        // Events wait for this lock, so no frame is missed and none is seen twice.
        let mut place = self.lock();
        for (frame, mapping) in frames.all() {
            watcher.mapped(frame, &mapping);
        }
        *place = Some(watcher);
        self.shared.1.notify_all();
    }

    /// Drops the watcher, which is not called any more when this returns.
    pub(crate) fn clear(&self) {
        *self.lock() = None;
    }
}

/// Does what an event asks for, and calls `answer` with what became of it.
pub(crate) fn process(
    event: FrameEvent,
    mut descriptors: Vec<OwnedFd>,
    frames: &Frames,
    watcher: &Watcher,
    answer: impl FnOnce(FrameDone, &[BorrowedFd<'_>]) -> Result<(), ConnectionError>,
) -> Result<(), ConnectionError> {
    let descriptor = descriptors.pop();
    if !descriptors.is_empty() {
        return Err(ConnectionError::Protocol("an event has a wrong number of descriptors"));
    }
    match (event, descriptor) {
        (FrameEvent::Map { frame, length }, Some(descriptor)) => {
            let mut watcher = watcher.lock();
            frames.remove(frame);
            let mapping = map(&descriptor, length);
            drop(descriptor);
            let Some(mapping) = mapping else {
                return answer(FrameDone { frame, result: FrameResult::Failed }, &[]);
            };
            let is_writable = mapping.access() == Access::ReadWrite;
            let done = FrameDone { frame, result: FrameResult::Mapped { is_writable } };
            let Some(watcher) = watcher.as_mut() else {
                frames.insert(frame, mapping);
                return answer(done, &[]);
            };
            // The owner's registration waits for the answer, not for the watcher. Requests for the frame wait or are refused until then.
            answer(done, &[])?;
            watcher.mapped(frame, &mapping);
            frames.insert(frame, mapping);
            Ok(())
        }
        (FrameEvent::Allocate { frame, length }, None) => {
            let address = watcher.lock_set().as_mut().and_then(|watcher| watcher.allocate(frame, length));
            answer(name_memory(frame, length, address, frames), &[])
        }
        (FrameEvent::Attach { frame, length, node, service, token, user }, None) => {
            let remote = Remote { node, service, token, user, length };
            let address = watcher.lock_set().as_mut().and_then(|watcher| watcher.attach(frame, &remote));
            answer(name_memory(frame, length, address, frames), &[])
        }
        (FrameEvent::Unmap { frame }, None) => {
            let mut watcher = watcher.lock();
            if let (Some(watcher), Some(mapping)) = (watcher.as_mut(), frames.get(frame)) {
                watcher.unmapping(frame, &mapping);
            }
            // A frame that this process never had is fine: it may have been registered without it.
            frames.remove(frame);
            answer(FrameDone { frame, result: FrameResult::Unmapped }, &[])
        }
        (FrameEvent::Export { frame }, None) => {
            let exported = export(frame, frames, watcher);
            let result = match &exported {
                Ok(Exported { kind, length, .. }) => FrameResult::Exported { kind: *kind, length: *length },
                Err(NotExported::Unsupported) => FrameResult::NotExported,
                Err(NotExported::Failed) => FrameResult::Failed,
            };
            let descriptor = exported.as_ref().ok().map(|exported| exported.descriptor.as_fd());
            answer(FrameDone { frame, result }, descriptor.as_slice())
        }
        (
            FrameEvent::Map { .. }
            | FrameEvent::Allocate { .. }
            | FrameEvent::Attach { .. }
            | FrameEvent::Unmap { .. }
            | FrameEvent::Export { .. },
            _,
        ) => Err(ConnectionError::Protocol("an event has a wrong number of descriptors")),
        (FrameEvent::Restart, _) => Err(ConnectionError::Protocol("only a keeper can start an engine again")),
    }
}

/// Keeps the name of memory elsewhere, if the watcher gave an address, and reports it. This comes before the answer, because the next request
/// may name it.
fn name_memory(frame: Handle, length: u64, address: Option<usize>, frames: &Frames) -> FrameDone {
    let named = address.zip(usize::try_from(length).ok());
    let mapping = named.and_then(|(address, length)| Mapping::elsewhere(address, length));
    let Some(mapping) = mapping else { return FrameDone { frame, result: FrameResult::Failed } };
    frames.insert(frame, mapping);
    FrameDone { frame, result: FrameResult::Mapped { is_writable: true } }
}

/// A descriptor of a frame in the watcher's own memory.
fn export(frame: Handle, frames: &Frames, watcher: &Watcher) -> Result<Exported, NotExported> {
    let mut watcher = watcher.lock();
    let watcher = watcher.as_mut().ok_or(NotExported::Unsupported)?;
    let memory = frames.get(frame).filter(Mapping::is_elsewhere).ok_or(NotExported::Failed)?;
    let exported = watcher.export(frame, &memory)?;
    // The client would take the rest for memory.
    let is_whole = exported.length >= memory.length_bytes() as u64;
    if is_whole { Ok(exported) } else { Err(NotExported::Failed) }
}

/// Maps all of a memfd, for writing if it allows that.
fn map(descriptor: &OwnedFd, length: u64) -> Option<Mapping> {
    let length = usize::try_from(length).ok()?;
    let block = rustix::fs::fstatfs(descriptor).ok()?.f_bsize as usize;
    let page = block.max(rustix::param::page_size());
    let map = |access| Mapping::shared(descriptor.as_fd(), length, access, page);
    map(Access::ReadWrite).or_else(|_| map(Access::ReadOnly)).ok()
}

#[cfg(test)]
mod tests;
