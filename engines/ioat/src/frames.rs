//! The frames that requests name, each mapped in the IOMMU once, for as long as the service shows it.
//!
//! ```text
//! mapped(frame) ─► waiting ─ a thread ─► Domain::map (pins the pages) ─► ready: a request gets its IOVA
//! unmapping(frame) ─► not found any more ─► Domain::unmap ─► the release is answered
//! ```
//!
//! Mapping takes long for long frames, and the thread of the service's events must not wait for it: until a frame is ready, the CPU does
//! the requests that name it. Unmapping is waited for: once the release is answered, the device does not reach the memory any more.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memferry_engine::{FrameWatcher, Handle, Mapping};

use crate::memory::Reached;
use crate::space::Space;
use crate::vfio::{Domain, whole_pages};

/// The frames of an engine's process. Clones share them.
#[derive(Debug)]
pub(crate) struct Frames<D>(Arc<Shared<D>>);

impl<D> Clone for Frames<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Shared<D> {
    /// The engine's, for lines to the administrator.
    name: String,
    domain: D,
    page_bytes: u64,
    lock_limit: Option<u64>,
    known: Mutex<Known>,
    /// A frame waits, or one is mapped or has failed.
    changed: Condvar,
    told_failed: AtomicBool,
}

#[derive(Debug)]
struct Known {
    space: Space,
    /// By the address in this process.
    frames: BTreeMap<usize, State>,
    waiting: VecDeque<Mapping>,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Waiting,
    /// The thread is mapping it, without the lock.
    BeingMapped,
    Ready(Reached),
    Failed,
}

impl<D: Domain + 'static> Frames<D> {
    /// No frames yet. `lock_limit` is named if memory cannot be pinned.
    pub(crate) fn new(name: &str, domain: D, lock_limit: Option<u64>) -> Self {
        let page_bytes = domain.page_bytes();
        let space = Space::new(domain.ranges(), page_bytes);
        let known = Known { space, frames: BTreeMap::new(), waiting: VecDeque::new(), is_closed: false };
        Self(Arc::new(Shared {
            name: name.to_owned(),
            domain,
            page_bytes,
            lock_limit,
            known: Mutex::new(known),
            changed: Condvar::new(),
            told_failed: AtomicBool::new(false),
        }))
    }

    /// Starts the thread that maps frames, which ends with [`close`](Self::close).
    pub(crate) fn start(&self) -> io::Result<()> {
        let frames = self.clone();
        let thread = std::thread::Builder::new().name("memferry-iommu".to_owned());
        thread.spawn(move || while frames.map_next() {}).map(drop)
    }

    pub(crate) fn close(&self) {
        self.known().is_closed = true;
        self.0.changed.notify_all();
    }

    /// Maps memory of the engine's own at once, for as long as the process lives.
    pub(crate) fn map_own(&self, memory: &Mapping) -> io::Result<Reached> {
        self.map(memory)
    }

    /// Finds what the device reaches, of the operands of one request: frames come and go only after that.
    pub(crate) fn finder(&self) -> impl Fn(&Mapping) -> Option<Reached> {
        let known = self.known();
        move |memory| match known.frames.get(&key(memory))? {
            State::Ready(reached) => Some(*reached),
            State::Waiting | State::BeingMapped | State::Failed => None,
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, known: MutexGuard<'a, Known>) -> MutexGuard<'a, Known> {
        self.0.changed.wait(known).unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps the frame that has waited longest. Returns whether there may be another one.
    fn map_next(&self) -> bool {
        let mut known = self.known();
        let memory = loop {
            if known.is_closed {
                return false;
            }
            if let Some(memory) = known.waiting.pop_front() {
                break memory;
            }
            known = self.wait(known);
        };
        known.frames.insert(key(&memory), State::BeingMapped);
        drop(known);
        let state = match self.map(&memory) {
            Ok(reached) => State::Ready(reached),
            Err(error) => {
                self.tell_failed(&memory, &error);
                State::Failed
            }
        };
        self.known().frames.insert(key(&memory), state);
        self.0.changed.notify_all();
        true
    }

    fn map(&self, memory: &Mapping) -> io::Result<Reached> {
        let pages = whole_pages(memory, self.0.page_bytes);
        let iova = self.known().space.take(pages).ok_or(io::ErrorKind::OutOfMemory)?;
        match self.0.domain.map(iova, memory) {
            Ok(()) => Ok(Reached { iova, bytes: memory.length_bytes() as u64 }),
            Err(error) => {
                self.known().space.give_back(iova);
                Err(error)
            }
        }
    }

    /// The first failure is reported: the others have the same cause in most cases.
    fn tell_failed(&self, memory: &Mapping, error: &io::Error) {
        if self.0.told_failed.swap(true, Ordering::Relaxed) {
            return;
        }
        let bytes = memory.length_bytes();
        let remedy = pin_remedy(error, self.0.lock_limit);
        let what = format_args!(
            "a frame of {bytes} bytes is not mapped for the device, and left to the CPU: {error}{remedy}"
        );
        tell(&self.0.name, what);
    }
}

/// What to do if memory cannot be pinned.
pub(crate) fn pin_remedy(error: &io::Error, lock_limit: Option<u64>) -> String {
    match lock_limit {
        Some(limit) if error.raw_os_error() == Some(libc::ENOMEM) => {
            format!("; the process may lock {limit} bytes: raise LimitMEMLOCK= of its unit, or `ulimit -l`")
        }
        _ => String::new(),
    }
}

impl<D: Domain + 'static> FrameWatcher for Frames<D> {
    fn mapped(&mut self, _: Handle, memory: &Mapping) {
        let mut known = self.known();
        known.frames.insert(key(memory), State::Waiting);
        known.waiting.push_back(memory.clone());
        self.0.changed.notify_all();
    }

    fn unmapping(&mut self, _: Handle, memory: &Mapping) {
        let mut known = self.known();
        known.waiting.retain(|waiting| key(waiting) != key(memory));
        while let Some(State::BeingMapped) = known.frames.get(&key(memory)) {
            known = self.wait(known);
        }
        let Some(State::Ready(reached)) = known.frames.remove(&key(memory)) else { return };
        drop(known);
        if let Err(error) = self.0.domain.unmap(reached.iova, memory) {
            // The device would keep what its owner gets back. The end of the process takes it all from the device.
            tell(
                &self.0.name,
                format_args!("the IOMMU keeps a frame that was released: {error}; the process ends"),
            );
            std::process::abort();
        }
        self.known().space.give_back(reached.iova);
    }
}

/// Tells mappings of this process apart.
fn key(memory: &Mapping) -> usize {
    memory.pointer().addr()
}

/// Writes a line for the administrator to standard error, as far as that is open.
pub(crate) fn tell(name: &str, what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "memferry engine {name}: {what}");
}

#[cfg(test)]
mod tests;
