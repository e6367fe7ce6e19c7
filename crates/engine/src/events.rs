//! What becomes of the service's events about frames.
//!
//! ```text
//! Map { frame } ─► mmap, whole and shared ─► Mapped { is_writable }      nothing touches the bytes
//! Allocate { frame } ─► the watcher's own memory ─► Mapped, Failed       a name for it, in the same table
//! Export { frame } ─► a descriptor of that memory ─► Exported            it stays the frame's
//! Unmap { frame } ─► out of the table ─► Unmapped                        a job that has the mapping keeps it
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memferry_service::protocol::{FrameDone, FrameEvent, FrameResult};
use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::Handle;

use crate::connection::ConnectionError;
use crate::frames::Frames;
use crate::watcher::{Exported, NotExported, Remote, Watcher};

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
        (FrameEvent::Map { frame, length, user }, Some(descriptor)) => {
            frames.remove(frame);
            let mapping = map(&descriptor, length);
            drop(descriptor);
            let Some(mapping) = mapping else {
                return answer(FrameDone { frame, result: FrameResult::Failed }, &[]);
            };
            let is_writable = mapping.access() == Access::ReadWrite;
            let done = FrameDone { frame, result: FrameResult::Mapped { is_writable } };
            // The owner's registration waits for the answer, not for the watcher. Requests for the frame wait or are refused until then.
            if watcher.takes_long() {
                answer(done, &[])?;
                watcher.show_later(frame, user, mapping);
                return Ok(());
            }
            let watcher = watcher.get();
            let Some(watcher) = watcher.as_ref() else {
                frames.insert(frame, mapping);
                return answer(done, &[]);
            };
            answer(done, &[])?;
            watcher.mapped(frame, &mapping);
            frames.insert(frame, mapping);
            Ok(())
        }
        (FrameEvent::Allocate { frame, length }, None) => {
            let address = watcher.get_once_set().as_ref().and_then(|watcher| watcher.allocate(frame, length));
            answer(name_memory(frame, length, address, frames), &[])
        }
        (FrameEvent::Attach { frame, length, node, service, token, user }, None) => {
            let remote = Remote { node, service, token, user, length };
            let address = watcher.get_once_set().as_ref().and_then(|watcher| watcher.attach(frame, &remote));
            answer(name_memory(frame, length, address, frames), &[])
        }
        (FrameEvent::Unmap { frame }, None) => {
            watcher.forget(frame);
            if let (Some(watcher), Some(mapping)) = (watcher.get().as_ref(), frames.get(frame)) {
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
    let watcher = watcher.get();
    let watcher = watcher.as_ref().ok_or(NotExported::Unsupported)?;
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
