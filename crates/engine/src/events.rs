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
use crate::frames::{Frame, Frames};
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
            show(frame, Frame { mapping, user }, (frames, watcher), || answer(done, &[]))
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
            release(frame, frames, watcher);
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

/// Answers, and gives a frame to the watcher and to requests.
fn show(
    handle: Handle,
    frame: Frame,
    (frames, watcher): (&Frames, &Watcher),
    answer: impl FnOnce() -> Result<(), ConnectionError>,
) -> Result<(), ConnectionError> {
    let watching = watcher.get();
    let Some(watching) = watching.as_ref() else {
        frames.insert(handle, frame);
        return answer();
    };
    // The owner's registration waits for the answer, not for the watcher. Requests for the frame wait or are refused until then.
    answer()?;
    if watching.pins(&frame.mapping) {
        watcher.show_later(handle, frame);
    } else {
        watching.mapped(handle, &frame.mapping);
        frames.insert(handle, frame);
    }
    Ok(())
}

/// Takes a frame from requests and from the watcher. One that this process never had is fine: it may have been registered without it.
fn release(handle: Handle, frames: &Frames, watcher: &Watcher) {
    loop {
        let watching = watcher.get();
        if let (Some(mapping), Some(watching)) = (frames.remove(handle), watching.as_ref()) {
            watching.unmapping(handle, &mapping);
        }
        let is_shown = watcher.forget(handle);
        drop(watching);
        if !is_shown {
            return;
        }
        watcher.wait_for(handle);
    }
}

/// Keeps the name of memory elsewhere, if the watcher gave an address, and reports it. This comes before the answer, because the next request
/// may name it.
fn name_memory(frame: Handle, length: u64, address: Option<usize>, frames: &Frames) -> FrameDone {
    let named = address.zip(usize::try_from(length).ok());
    let mapping = named.and_then(|(address, length)| Mapping::elsewhere(address, length));
    let Some(mapping) = mapping else { return FrameDone { frame, result: FrameResult::Failed } };
    frames.insert(frame, Frame { mapping, user: 0 });
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
