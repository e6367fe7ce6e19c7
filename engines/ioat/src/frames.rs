//! The frames that requests name, each mapped in the IOMMU once, until the service releases it.
//!
//! ```text
//! mapped(frame) ─► unused ─ first request ─► waiting ─ a thread ─► Domain::map by pieces (pins the pages) ─► ready: requests get its IOVA
//!                    ▲                                                 └─► failed: no memory or no room
//!                    └── another frame is released ─────────────────────────┘
//! unmapping(frame) ─► not found any more ─► Domain::unmap ─► the release is answered
//! ```
//!
//! A frame is not pinned before a request names it: until then its owner may not have sealed it, and could exchange its pages. Mapping takes
//! long for long frames, and neither the thread of the service's events nor the one of requests waits for it: until a frame is ready, the
//! CPU does the requests that name it. A release stops a mapping under way after its piece. Unmapping is waited for: once the release is
//! answered, the device does not reach the memory any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use memferry_engine::{FrameWatcher, Handle, Mapping, report};

use crate::memory::Reached;
use crate::space::Space;
use memferry_vfio::end_process;
use memferry_vfio::{Domain, whole_pages};

/// Pinning so much takes some ten milliseconds. A multiple of large pages.
const PIECE_BYTES: u64 = 64 << 20;

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
    /// Searched for long if it is full, so requests do not need it.
    space: Mutex<Space>,
    known: Mutex<Known>,
    /// A frame waits, or one is mapped or has failed.
    changed: Condvar,
}

#[derive(Debug)]
struct Known {
    /// By the address in this process.
    frames: BTreeMap<usize, State>,
    waiting: VecDeque<Mapping>,
    /// Failures that the administrator knows of.
    reported: BTreeSet<io::ErrorKind>,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No request has named it.
    Unused,
    Waiting,
    /// The thread is mapping it, without the lock.
    BeingMapped,
    /// As before, but it is being released.
    Unwanted,
    Ready(Reached),
    Failed {
        /// It may succeed when another frame is gone.
        for_lack: bool,
    },
}

/// Ends the process with the thread that has it, if that panics: a release would wait for ever.
struct EndsByPanic;

impl Drop for EndsByPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            end_process();
        }
    }
}

impl<D: Domain + 'static> Frames<D> {
    /// No frames yet. `lock_limit` is named if memory cannot be pinned.
    pub(crate) fn new(name: &str, domain: D, lock_limit: Option<u64>) -> Self {
        let page_bytes = domain.page_bytes();
        let space = Mutex::new(Space::new(domain.ranges(), page_bytes));
        let known = Known {
            frames: BTreeMap::new(),
            waiting: VecDeque::new(),
            reported: BTreeSet::new(),
            is_closed: false,
        };
        Self(Arc::new(Shared {
            name: name.to_owned(),
            domain,
            page_bytes,
            lock_limit,
            space,
            known: Mutex::new(known),
            changed: Condvar::new(),
        }))
    }

    /// Starts the thread that maps frames, which ends with [`close`](Self::close).
    pub(crate) fn start(&self) -> io::Result<()> {
        let frames = self.clone();
        let thread = std::thread::Builder::new().name("memferry-iommu".to_owned());
        let run = move || {
            let _ends = EndsByPanic;
            while frames.map_next() {}
        };
        thread.spawn(run).map(drop)
    }

    pub(crate) fn close(&self) {
        self.known().is_closed = true;
        self.0.changed.notify_all();
    }

    /// Maps memory of the engine's own at once, for as long as the process lives.
    pub(crate) fn map_own(&self, memory: &Mapping) -> io::Result<Reached> {
        self.map(memory, || true)
    }

    /// Finds what the device reaches, of the operands of one request: frames come and go only after that. One that no request has named
    /// before is mapped from now on.
    pub(crate) fn finder(&self) -> impl FnMut(&Mapping) -> Option<Reached> {
        let mut guard = self.known();
        move |memory| {
            let known = &mut *guard;
            match known.frames.get_mut(&key(memory))? {
                State::Ready(reached) => Some(*reached),
                state @ State::Unused => {
                    *state = State::Waiting;
                    known.waiting.push_back(memory.clone());
                    self.0.changed.notify_all();
                    None
                }
                State::Waiting | State::BeingMapped | State::Unwanted | State::Failed { .. } => None,
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.0.space.lock().unwrap_or_else(PoisonError::into_inner)
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
        let is_wanted = || matches!(self.known().frames.get(&key(&memory)), Some(State::BeingMapped));
        let state = match self.map(&memory, is_wanted) {
            Ok(reached) => State::Ready(reached),
            Err(error) => {
                self.report_failed(&memory, &error);
                let for_lack =
                    matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull);
                State::Failed { for_lack }
            }
        };
        self.known().frames.insert(key(&memory), state);
        self.0.changed.notify_all();
        true
    }

    /// Maps memory piece by piece while it is wanted: all of it, or nothing.
    fn map(&self, memory: &Mapping, is_wanted: impl Fn() -> bool) -> io::Result<Reached> {
        let bytes = whole_pages(memory, self.0.page_bytes);
        let iova = self.space().take(bytes).ok_or_else(|| {
            io::Error::new(io::ErrorKind::StorageFull, "the addresses that the IOMMU maps are all taken")
        })?;
        let mut mapped = 0;
        while mapped < bytes {
            let end = bytes.min(mapped + PIECE_BYTES);
            let piece = match is_wanted() {
                true => self.0.domain.map(iova, memory, mapped..end),
                false => Err(io::ErrorKind::Interrupted.into()),
            };
            if let Err(error) = piece {
                self.unmap(iova, memory, mapped);
                return Err(error);
            }
            mapped = end;
        }
        Ok(Reached { iova, bytes: memory.length_bytes() as u64 })
    }

    /// Takes what was mapped of memory from the device, and its addresses.
    fn unmap(&self, iova: u64, memory: &Mapping, mapped: u64) {
        let unmapped = if mapped > 0 { self.0.domain.unmap(iova, memory, mapped) } else { Ok(()) };
        if let Err(error) = unmapped {
            // The device would keep what its owner gets back. The end of the process takes it all from the device.
            let what = format_args!("the IOMMU keeps a frame that was released: {error}; the process ends");
            report(&self.0.name, what);
            end_process();
        }
        self.space().give_back(iova);
    }

    /// The first failure of each kind is reported: the others have the same cause in most cases.
    fn report_failed(&self, memory: &Mapping, error: &io::Error) {
        let is_release = error.kind() == io::ErrorKind::Interrupted;
        if is_release || !self.known().reported.insert(error.kind()) {
            return;
        }
        let bytes = memory.length_bytes();
        let remedy = pin_remedy(error, self.0.lock_limit);
        let what = format_args!(
            "a frame of {bytes} bytes is not mapped for the device, and left to the CPU: {error}{remedy}"
        );
        report(&self.0.name, what);
    }
}

/// What to do if memory cannot be pinned.
pub(crate) fn pin_remedy(error: &io::Error, lock_limit: Option<u64>) -> String {
    match (error.raw_os_error(), lock_limit) {
        (Some(libc::ENOMEM), Some(limit)) => {
            format!("; the process may lock {limit} bytes: raise LimitMEMLOCK= of its unit, or `ulimit -l`")
        }
        (Some(libc::ENOSPC), _) => {
            "; VFIO allows no more mappings: raise dma_entry_limit of the module vfio_iommu_type1".to_owned()
        }
        _ => String::new(),
    }
}

impl<D: Domain + 'static> FrameWatcher for Frames<D> {
    fn mapped(&self, _: Handle, memory: &Mapping) {
        self.known().frames.insert(key(memory), State::Unused);
    }

    fn unmapping(&self, _: Handle, memory: &Mapping) {
        let mut known = self.known();
        known.waiting.retain(|waiting| key(waiting) != key(memory));
        while let Some(state @ (State::BeingMapped | State::Unwanted)) = known.frames.get_mut(&key(memory)) {
            *state = State::Unwanted;
            known = self.wait(known);
        }
        let Some(State::Ready(reached)) = known.frames.remove(&key(memory)) else { return };
        drop(known);
        self.unmap(reached.iova, memory, whole_pages(memory, self.0.page_bytes));
        // There is room for others now.
        for state in self.known().frames.values_mut() {
            if let State::Failed { for_lack: true } = state {
                *state = State::Unused;
            }
        }
    }
}

/// Tells mappings of this process apart.
fn key(memory: &Mapping) -> usize {
    memory.pointer().addr()
}

#[cfg(test)]
mod tests;
