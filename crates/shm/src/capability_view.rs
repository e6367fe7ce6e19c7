//! What handles give access to, as a flat table that workers read without a lock, and copies between what they find there.
//!
//! ```text
//! writer, under its own lock       publish ─► entry alive        kill ─► entry dead, memory kept ─► retire: grace period ─► memory
//! Reader ─ enter ─► Guard ─ source, destination ─► addresses ─ copy ─► bytes moved, or MemoryFault
//! ```
//!
//! The table keeps the memory of each entry, and of each killed one until every epoch that began before the kill has ended
//! (invariant E). So what a [`Guard`] finds stays mapped while the guard lives, and after [`View::retire`] nothing is read or written
//! under what was killed before. The table only repeats what another one decides: what it does not answer is no refusal.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use memferry_transfer::{Handle, Rights, SessionId, Span};

use crate::bus_error::{self, MemoryFault};
use crate::capability_entry::{Entry, Fields};
use crate::epoch::{self, Readers};
use crate::mapping::{Access, Inner, Mapping};
use crate::parking::Fences;

/// Entries of a segment. Making one must not delay a caller that holds the capability table.
const SEGMENT: usize = 1 << 10;
/// Segments: enough for each index that a short slot can name.
const SEGMENTS: usize = 1 << 10;
/// Checks of a reader's word before the waiting thread sleeps between them: a thread in an epoch may wait for a page, or for this CPU.
const SPINS: u32 = 2000;
/// How long it sleeps. It does not call sched_yield(2), for which Linux may take the rest of its slice.
const PAUSE: Duration = Duration::from_micros(20);

type Segment = OnceLock<Box<[Entry]>>;

/// Capabilities that workers read while the service changes them.
pub struct View {
    segments: Box<[Segment]>,
    readers: Arc<Readers>,
    /// Locked by writers. The memory of entries killed since the last [`retire`](Self::retire).
    killed: Mutex<Vec<Mapping>>,
    /// Held for a grace period.
    retiring: Mutex<()>,
}

/// Segment of an index, and the place in it.
#[inline]
const fn place(index: u32) -> (usize, usize) {
    (index as usize / SEGMENT, index as usize % SEGMENT)
}

impl View {
    /// An empty table for at most `readers` threads.
    pub fn new(readers: usize, fences: Fences) -> Self {
        Self {
            segments: (0..SEGMENTS).map(|_| OnceLock::new()).collect(),
            readers: Arc::new(Readers::new(readers, fences)),
            killed: Mutex::default(),
            retiring: Mutex::default(),
        }
    }

    /// A reader for one more thread; `None` if there are as many as the table has room for.
    pub fn reader(self: &Arc<Self>) -> Option<Reader> {
        Some(Reader { epochs: self.readers.claim()?, view: Arc::clone(self) })
    }

    /// Makes `handle` of `session` give access to a range of `memory`. Whatever the entry gave access to before is killed.
    ///
    /// Does nothing if the range leaves the memory, or if the table has no entry for the handle's index.
    pub fn publish(
        &self,
        handle: Handle,
        session: SessionId,
        memory: &Mapping,
        range: (u64, u64),
        rights: Rights,
    ) {
        let (offset, length) = range;
        let available = memory.length_bytes() as u64;
        // Readers of the view use the CPU, which does not reach memory elsewhere.
        let is_usable = handle.generation() != 0 && !memory.is_elsewhere();
        if !is_usable || offset.checked_add(length).is_none_or(|end| end > available) {
            return;
        }
        let writable = memory.access() == Access::ReadWrite;
        let rights = if writable { rights } else { rights.difference(Rights::WRITE) };
        let Some(entry) = self.entry_to_write(handle.index()) else { return };
        let mut killed = self.killed();
        self.kill_entry(handle.index(), &mut killed);
        let base = memory.pointer().wrapping_add(offset as usize).expose_provenance() as u64;
        let kept = memory.clone().into_raw().expose_provenance() as u64;
        let fields = Fields { session: session.0, rights: rights.bits(), base, length, memory: kept };
        entry.publish(handle.generation(), &fields);
    }

    /// Ends the access that the entry of an index gives.
    ///
    /// Readers that found it earlier may use it until [`retire`](Self::retire) returns.
    pub fn kill(&self, index: u32) {
        self.kill_entry(index, &mut self.killed());
    }

    /// Waits until nothing uses what was killed before this call, and returns its memory. The calling thread must be in no epoch.
    /// It waits as long as the longest epoch takes.
    pub fn retire(&self) -> Vec<Mapping> {
        // Another thread may have taken the memory and still wait, so this waits for it also if nothing is left.
        let _retiring = self.retiring.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = std::mem::take(&mut *self.killed());
        if !memory.is_empty() {
            let mut spins = 0;
            self.readers.wait(|| {
                spins += 1;
                if spins < SPINS { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
            });
        }
        memory
    }

    fn killed(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.killed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill_entry(&self, index: u32, killed: &mut Vec<Mapping>) {
        if let Some(kept) = self.entry(index).and_then(Entry::kill) {
            // SAFETY: E: an alive entry has one pointer of `into_raw`, and the lock of `killed` is held from its death until here.
            killed.push(unsafe { Mapping::from_raw(std::ptr::with_exposed_provenance(kept as usize)) });
        }
    }

    #[inline]
    fn entry(&self, index: u32) -> Option<&Entry> {
        let (segment, at) = place(index);
        self.segments.get(segment)?.get()?.get(at)
    }

    fn entry_to_write(&self, index: u32) -> Option<&Entry> {
        let (segment, at) = place(index);
        self.segments.get(segment)?.get_or_init(|| (0..SEGMENT).map(|_| Entry::default()).collect()).get(at)
    }

    /// What an alive entry says of a handle, if its session has it.
    #[inline]
    fn look_up(&self, session: SessionId, handle: Handle) -> Option<Fields> {
        let fields = self.entry(handle.index())?.read(handle.generation())?;
        (fields.session == session.0).then_some(fields)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Readers hold the table, so none is left.
        let mut killed = Vec::new();
        let segments = self.segments.iter().filter_map(OnceLock::get);
        for entry in segments.flatten() {
            if let Some(kept) = entry.kill() {
                // SAFETY: E: an alive entry has one pointer of `into_raw`, which nothing else takes back: `self` is exclusive.
                killed.push(unsafe { Mapping::from_raw(std::ptr::with_exposed_provenance(kept as usize)) });
            }
        }
    }
}

/// One thread's access to a [`View`].
pub struct Reader {
    epochs: epoch::Reader,
    view: Arc<View>,
}

impl Reader {
    /// Begins an epoch. Revocations wait for its end, so it must be short, and wait for nothing but the memory that it copies.
    #[inline]
    pub fn enter(&mut self) -> Guard<'_> {
        Guard { _epoch: self.epochs.enter(), view: &self.view }
    }
}

/// An epoch in which handles can be looked up.
#[must_use = "what it finds lasts as long as it does"]
pub struct Guard<'r> {
    _epoch: epoch::Epoch<'r>,
    view: &'r View,
}

/// Bytes of a live capability that may be read.
#[derive(Clone, Copy)]
pub struct Source<'g>(Range<'g>);

/// Bytes of a live capability that may be written.
#[derive(Clone, Copy)]
pub struct Destination<'g>(Range<'g>);

#[derive(Clone, Copy)]
struct Range<'g> {
    start: *mut u8,
    length: u64,
    memory: *const Inner,
    _epoch: PhantomData<&'g ()>,
}

impl Guard<'_> {
    /// The bytes that `session` may read at a place. `None` if it may not, or if the table does not know.
    #[inline]
    pub fn source(&self, session: SessionId, place: &Span, length: u64) -> Option<Source<'_>> {
        self.range(session, place, length, Rights::READ).map(Source)
    }

    /// The bytes that `session` may write at a place. `None` if it may not, or if the table does not know.
    #[inline]
    pub fn destination(&self, session: SessionId, place: &Span, length: u64) -> Option<Destination<'_>> {
        self.range(session, place, length, Rights::WRITE).map(Destination)
    }

    #[inline]
    fn range(&self, session: SessionId, place: &Span, length: u64, needed: Rights) -> Option<Range<'_>> {
        let fields = self.view.look_up(session, place.handle)?;
        let is_inside = place.offset.checked_add(length).is_some_and(|end| end <= fields.length);
        if !is_inside || fields.rights & needed.bits() == 0 {
            return None;
        }
        let base: *mut u8 = std::ptr::with_exposed_provenance_mut(fields.base as usize);
        Some(Range {
            start: base.wrapping_add(place.offset as usize),
            length,
            memory: std::ptr::with_exposed_provenance(fields.memory as usize),
            _epoch: PhantomData,
        })
    }
}

/// Copies bytes as `memmove` does, through the caches, up to the shorter length: for copies of some KiB.
///
/// # Errors
/// [`MemoryFault`] if memory of either side failed, now or before.
#[inline]
pub fn copy(source: Source<'_>, destination: Destination<'_>) -> Result<(), MemoryFault> {
    let Source(from) = source;
    let Destination(to) = destination;
    let length = from.length.min(to.length) as usize;
    // SAFETY: E: the epoch in which both were found has not ended, so the view keeps their mappings.
    let memories = unsafe { [&*from.memory, &*to.memory] };
    bus_error::guarded_memories(memories, || {
        // SAFETY: E, M3: both ranges lie in mappings that the view keeps for this epoch, and the destination's is writable:
        // `publish` checked that. `copy` allows overlap, and no reference to the bytes is formed (M2).
        unsafe { std::ptr::copy(from.start, to.start, length) };
    })
}

#[cfg(test)]
mod tests;
