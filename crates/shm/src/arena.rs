//! An arena: an allocator whose memory the service can read and write too.
//!
//! ```text
//! allocate(layout) ─ a segment with room? ─ yes ─────────────────────────► a block
//!                                         └ no ─ SegmentSource::segment ─► a block of a fresh segment
//! free(block) ─ zero it ─ segment empty? ─ a spare segment exists ─► SegmentSource::retire
//! locate(pointer, length) ─► segment id and offset, as a request to the service names memory
//! ```
//!
//! A block is held in one of three ways: through [`Allocator`](allocator_api2::alloc::Allocator), by collections that
//! form references to its bytes; as a [`Block`], which is read and written by copy; or as a raw pointer.
//!
//! Invariant A, on which the unsafe code here relies: a segment belongs to this arena alone, it stays mapped until it is
//! retired, and no two blocks in use share a byte. The arena's tables lie outside the segments, so a process that can
//! write a segment cannot corrupt them.
//!
//! Freeing a block twice is detected unless its place was allocated again in between: [`Arena::free`] returns an error
//! and changes nothing, and a collection's allocator panics. A forked child does not have the memory: there allocation
//! fails and freeing does nothing. The arena checks no access rights and does not talk to the service itself.

mod allocator;
mod block;
mod memfds;
mod pages;

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::error::Error;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error as ThisError;

pub use block::{Block, Landing, Promised};
pub use memfds::{Memfds, Registrar, SegmentError};

use crate::fork_guard::Forked;
use crate::mapping::Mapping;
use pages::{MAX_ALIGNMENT, PAGE, Pages, Shape, Wrong};

/// Where an arena's memory comes from.
///
/// # Safety
/// A segment is writable memory that nothing else refers to or hands out. It is filled with zeros, and has at least the
/// requested bytes after its first address that is a multiple of 4096. While the arena holds it, a write through another
/// mapping goes only to bytes where the holder of the block there requested it.
pub unsafe trait SegmentSource {
    /// Names a segment in requests to the service.
    type Id: Clone;
    type Error: Error + 'static;

    /// Makes a segment of at least `min_bytes`.
    ///
    /// # Errors
    /// When no segment can be made.
    fn segment(&self, min_bytes: u64) -> Result<(Mapping, Self::Id), Self::Error>;

    /// Takes a segment back. No block of it is in use, and the arena unmaps it when this returns.
    fn retire(&self, id: Self::Id);

    /// Checks that this is the process that owns the segments.
    ///
    /// # Errors
    /// [`Forked`] in a child.
    fn check_fork(&self) -> Result<(), Forked> {
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Size of a segment; a block that needs more gets a larger one.
    pub segment_bytes: u64,
    /// Fills freed blocks with zeros, so that a new block never shows bytes of an old one.
    pub zero_on_free: bool,
    /// Limit on the bytes of all segments together.
    pub limit_bytes: u64,
}

impl Default for Options {
    /// Segments of 4 MiB, zeroing on, and a limit of half the machine's memory. Every page of a segment is allocated at
    /// once, so without a limit one wrong length could take all memory.
    fn default() -> Self {
        Self { segment_bytes: 4 << 20, zero_on_free: true, limit_bytes: half_of_memory() }
    }
}

#[cfg(not(miri))]
fn half_of_memory() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(u64::from(system.mem_unit.max(1))) / 2
}

#[cfg(miri)]
fn half_of_memory() -> u64 {
    1 << 30
}

/// Counts of an arena.
///
/// ```
/// use memferry_shm::arena::Statistics;
///
/// /// Share of the segments' bytes that blocks use.
/// fn usage(arena: &Statistics) -> f64 {
///     arena.live_bytes as f64 / arena.segment_bytes.max(1) as f64
/// }
/// let arena = Statistics { live_bytes: 1 << 20, segment_bytes: 4 << 20, ..Statistics::default() };
/// assert_eq!(usage(&arena), 0.25);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    pub live_blocks: u64,
    /// Bytes of live blocks, each rounded up to its size class or to whole pages.
    pub live_bytes: u64,
    /// Highest `live_bytes` so far.
    pub peak_bytes: u64,
    /// Segments, in use or spare.
    pub segments: u64,
    pub segment_bytes: u64,
    /// Bytes of blocks that are not used again before their segment is retired.
    pub abandoned_bytes: u64,
}

/// Why an arena could not allocate a block; `E` is the error of its source of segments.
///
/// ```
/// use std::io;
///
/// use memferry_shm::arena::ArenaError;
///
/// let error = ArenaError::<io::Error>::Limit { wanted: 8 << 20, held: 60 << 20, limit: 64 << 20 };
/// assert!(error.to_string().contains("free some blocks"));
/// ```
#[derive(Debug, ThisError)]
pub enum ArenaError<E: Error + 'static> {
    #[error("cannot allocate a block of 0 bytes; ask for at least one")]
    Empty,
    #[error("{length} bytes aligned to {align} are more than can be addressed")]
    TooLong { length: usize, align: usize },
    /// Not a power of two, or larger than `most`.
    #[error("cannot align a block to {align} bytes; alignments are powers of two up to {most}")]
    Alignment { align: usize, most: usize },
    #[error(
        "a segment of {wanted} bytes would exceed the arena's limit of {limit} bytes, of which {held} are in use; free some blocks"
    )]
    Limit {
        /// Minimum bytes of the segment that the block needs.
        wanted: u64,
        /// Bytes of all present segments.
        held: u64,
        limit: u64,
    },
    #[error("cannot get a segment of {bytes} bytes: {source}")]
    Segment { bytes: u64, source: E },
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// The pointer and layout do not name a block in use. The arena is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
pub enum FreeError {
    /// No segment of this arena contains the address.
    #[error("{address:#x} is not in this arena")]
    Foreign { address: usize },
    /// No block begins there, or it was freed before.
    #[error("no block in use begins at {address:#x}; was it freed twice?")]
    NotLive { address: usize },
    /// The layout does not fit the block there.
    #[error(
        "the block at {address:#x} has {found} bytes, which does not fit a layout of {size} bytes aligned to {align}"
    )]
    Layout { address: usize, found: usize, size: usize, align: usize },
}

/// A thread-safe allocator over segments. Clones share it. It lives until the last clone and the last [`Block`] are
/// dropped.
pub struct Arena<S: SegmentSource>(Arc<Shared<S>>);

impl<S: SegmentSource> Clone for Arena<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Shared<S: SegmentSource> {
    source: S,
    options: Options,
    state: Mutex<State<S::Id>>,
}

struct State<Id> {
    /// Keyed by the address of the segment's first byte.
    segments: BTreeMap<usize, Segment<Id>>,
    /// Address of the segment that served the last allocation: the first one tried.
    recent: usize,
    /// Address of the one empty segment that is kept for the next allocation.
    spare: Option<usize>,
    /// Bytes of segments that were requested from the source and have not arrived.
    pending_bytes: u64,
    statistics: Statistics,
}

struct Segment<Id> {
    mapping: Mapping,
    id: Id,
    /// Bytes that were requested; the mapping may be longer.
    requested: u64,
    /// Bytes before its first page-aligned address.
    origin: usize,
    pages: Pages,
    /// Offset and length of blocks that were dropped while a transfer could still write them. They are never reused.
    abandoned: BTreeMap<usize, u64>,
    /// Part of the mapping was replaced by private pages, so `id` no longer names all of this memory.
    detached: bool,
}

struct Place<Id> {
    mapping: Mapping,
    id: Id,
    offset: usize,
}

impl<S: SegmentSource> Arena<S> {
    /// Makes an empty arena. The first allocation asks `source` for a segment.
    pub fn new(source: S, options: Options) -> Self {
        let state = State {
            segments: BTreeMap::new(),
            recent: 0,
            spare: None,
            pending_bytes: 0,
            statistics: Statistics::default(),
        };
        Self(Arc::new(Shared { source, options, state: Mutex::new(state) }))
    }

    pub fn source(&self) -> &S {
        &self.0.source
    }

    fn state(&self) -> MutexGuard<'_, State<S::Id>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates memory for `layout`. Its bytes are zero if [`Options::zero_on_free`] is set.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<u8>, ArenaError<S::Error>> {
        let place = self.place(layout)?;
        let pointer = place.mapping.pointer().wrapping_add(place.offset);
        NonNull::new(pointer).ok_or(ArenaError::Empty)
    }

    fn place(&self, layout: Layout) -> Result<Place<S::Id>, ArenaError<S::Error>> {
        self.0.source.check_fork()?;
        let length = layout.size();
        let align = layout.align();
        if length == 0 {
            return Err(ArenaError::Empty);
        }
        let shape = Shape::of(layout).ok_or(ArenaError::Alignment { align, most: MAX_ALIGNMENT })?;
        if let Some(place) = self.state().take(shape) {
            return Ok(place);
        }
        let needed = shape.segment_bytes().ok_or(ArenaError::TooLong { length, align })? as u64;
        let bytes = self.reserve(needed)?;
        // The lock is not held here: the source may wait for the service's reply.
        let fresh = self.0.source.segment(bytes);
        let mut state = self.state();
        state.pending_bytes -= bytes;
        let (mapping, id) = fresh.map_err(|source| ArenaError::Segment { bytes, source })?;
        let address = state.add(mapping, id, bytes);
        state.take_in(address, shape).ok_or(ArenaError::TooLong { length, align })
    }

    /// Reserves room under the limit for a segment of at least `needed` bytes. Returns the bytes to request.
    fn reserve(&self, needed: u64) -> Result<u64, ArenaError<S::Error>> {
        let limit = self.0.options.limit_bytes;
        let mut state = self.state();
        let room = |state: &State<S::Id>| {
            limit.saturating_sub(state.statistics.segment_bytes.saturating_add(state.pending_bytes))
        };
        let unused = if room(&state) < needed { state.remove_spare() } else { None };
        let room = room(&state);
        let held = state.statistics.segment_bytes.saturating_add(state.pending_bytes);
        let bytes = self.0.options.segment_bytes.min(room).max(needed);
        let reserved =
            if bytes <= room { Ok(bytes) } else { Err(ArenaError::Limit { wanted: needed, held, limit }) };
        state.pending_bytes += reserved.as_ref().map_or(0, |bytes| *bytes);
        drop(state);
        self.retire(unused);
        reserved
    }

    fn retire(&self, segment: Option<Segment<S::Id>>) {
        // The mapping outlives this call: until it returns, the service may still end transfers in the segment.
        if let Some(Segment { mapping, id, .. }) = segment {
            self.0.source.retire(id);
            drop(mapping);
        }
    }

    /// Frees a block. In a forked child this does nothing.
    ///
    /// # Errors
    /// [`FreeError`] when this is not a block in use; the arena is then unchanged.
    ///
    /// # Safety
    /// The block's bytes are not used any more.
    pub unsafe fn free(&self, pointer: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.give_back(pointer.as_ptr().addr(), layout)
    }

    /// As [`free`](Self::free), whose safety condition every caller in this module keeps.
    fn give_back(&self, address: usize, layout: Layout) -> Result<(), FreeError> {
        if self.0.source.check_fork().is_err() {
            return Ok(());
        }
        let mut state = self.state();
        let (segment, offset, shape) = state.check(address, layout)?;
        let pointer = segment.mapping.pointer().wrapping_add(offset);
        if self.0.options.zero_on_free {
            let held = if matches!(shape, Shape::Run { .. }) {
                // Zeroing a run takes long, so the lock is released. The run counts as in use, so the segment stays.
                segment.pages.begin_leaving(offset - segment.origin);
                drop(state);
                None
            } else {
                Some(state)
            };
            // SAFETY: A: `check` found a block in use with these bytes. The caller alone held it and now frees it.
            unsafe { std::ptr::write_bytes(pointer, 0, shape.bytes()) };
            state = held.unwrap_or_else(|| self.state());
        }
        let retired = state.release(address, shape, self.0.options.segment_bytes);
        drop(state);
        self.retire(retired);
        Ok(())
    }

    /// Frees a block that a transfer may still write. Its bytes are not reused before the segment is retired.
    fn abandon(&self, address: usize, layout: Layout) -> Result<(), FreeError> {
        if self.0.source.check_fork().is_err() {
            return Ok(());
        }
        let mut state = self.state();
        let (segment, offset, shape) = state.check(address, layout)?;
        segment.abandoned.insert(offset, shape.bytes() as u64);
        let empty = segment.in_use() == 0;
        state.statistics.live_blocks -= 1;
        state.statistics.live_bytes -= shape.bytes() as u64;
        state.statistics.abandoned_bytes += shape.bytes() as u64;
        let retired = if empty { state.remove_containing(address) } else { None };
        drop(state);
        self.retire(retired);
        Ok(())
    }

    /// The id of the segment that contains `length` bytes at `pointer`, and their offset in it. `None` unless one segment
    /// contains all of them, the arena still holds it, and no part of it was detached.
    pub fn locate(&self, pointer: *const u8, length: usize) -> Option<(S::Id, u64)> {
        self.0.source.check_fork().ok()?;
        let mut state = self.state();
        let (segment, offset) = state.segment_of(pointer.addr())?;
        let end = offset.checked_add(length)?;
        let whole = end <= segment.mapping.length_bytes() && !segment.detached;
        whole.then(|| (segment.id.clone(), offset as u64))
    }

    /// Retires the empty segment that is kept for the next allocation, if there is one.
    pub fn trim(&self) {
        if self.0.source.check_fork().is_ok() {
            let spare = self.state().remove_spare();
            self.retire(spare);
        }
    }

    /// Present counts; all zero in a forked child.
    pub fn statistics(&self) -> Statistics {
        // In a forked child, a lock that another thread held at the fork is never released.
        if self.0.source.check_fork().is_err() { Statistics::default() } else { self.state().statistics }
    }
}

impl<Id: Clone> Segment<Id> {
    fn take(&mut self, shape: Shape) -> Option<Place<Id>> {
        if self.detached {
            return None;
        }
        let offset = self.pages.take(shape)? + self.origin;
        Some(Place { mapping: self.mapping.clone(), id: self.id.clone(), offset })
    }
}

impl<Id> Segment<Id> {
    fn in_use(&self) -> usize {
        self.pages.live() - self.abandoned.len()
    }
}

impl<Id: Clone> State<Id> {
    /// Takes a block from the most recent segment, or from the first one with room.
    fn take(&mut self, shape: Shape) -> Option<Place<Id>> {
        self.take_in(self.recent, shape).or_else(|| {
            let mut segments = self.segments.iter_mut();
            let (address, place) =
                segments.find_map(|(address, segment)| Some((*address, segment.take(shape)?)))?;
            Some(self.count(address, shape, place))
        })
    }

    fn take_in(&mut self, address: usize, shape: Shape) -> Option<Place<Id>> {
        let place = self.segments.get_mut(&address)?.take(shape)?;
        Some(self.count(address, shape, place))
    }

    fn count(&mut self, address: usize, shape: Shape, place: Place<Id>) -> Place<Id> {
        self.recent = address;
        self.spare = self.spare.filter(|spare| *spare != address);
        let statistics = &mut self.statistics;
        statistics.live_blocks += 1;
        statistics.live_bytes += shape.bytes() as u64;
        statistics.peak_bytes = statistics.peak_bytes.max(statistics.live_bytes);
        place
    }

    fn add(&mut self, mapping: Mapping, id: Id, requested: u64) -> usize {
        let address = mapping.pointer().addr();
        let length = mapping.length_bytes();
        let first = address.next_multiple_of(PAGE);
        let origin = first - address;
        let pages = Pages::new(first / PAGE, length.saturating_sub(origin) / PAGE);
        let segment =
            Segment { mapping, id, requested, origin, pages, abandoned: BTreeMap::new(), detached: false };
        self.segments.insert(address, segment);
        self.statistics.segments += 1;
        self.statistics.segment_bytes += length as u64;
        address
    }

    fn segment_of(&mut self, address: usize) -> Option<(&mut Segment<Id>, usize)> {
        let (start, segment) = self.segments.range_mut(..=address).next_back()?;
        let offset = address - start;
        (offset < segment.mapping.length_bytes()).then_some((segment, offset))
    }

    /// Finds the block of `layout` at `address`: its segment, its offset there and its shape.
    fn check(
        &mut self,
        address: usize,
        layout: Layout,
    ) -> Result<(&mut Segment<Id>, usize, Shape), FreeError> {
        let size = layout.size();
        let align = layout.align();
        let (segment, offset) = self.segment_of(address).ok_or(FreeError::Foreign { address })?;
        let not_live = FreeError::NotLive { address };
        let shape = if size == 0 { None } else { Shape::of(layout) }.ok_or(not_live)?;
        let within = offset.checked_sub(segment.origin).ok_or(not_live)?;
        if segment.abandoned.contains_key(&offset) {
            return Err(not_live);
        }
        segment.pages.check(within, shape).map_err(|wrong| match wrong {
            Wrong::NotLive => not_live,
            Wrong::Shape(found) => FreeError::Layout { address, found: found.bytes(), size, align },
        })?;
        Ok((segment, offset, shape))
    }

    /// Frees a block that [`check`](Self::check) accepted. Returns its segment if that is to be retired.
    fn release(&mut self, address: usize, shape: Shape, usual_bytes: u64) -> Option<Segment<Id>> {
        self.statistics.live_blocks -= 1;
        self.statistics.live_bytes -= shape.bytes() as u64;
        let has_spare = self.spare.is_some();
        let (segment, offset) = self.segment_of(address)?;
        segment.pages.give(offset - segment.origin, shape);
        if segment.in_use() > 0 {
            return None;
        }
        let unusual = segment.requested > usual_bytes;
        if unusual || has_spare || segment.detached || !segment.abandoned.is_empty() {
            return self.remove_containing(address);
        }
        self.spare = Some(address - offset);
        None
    }

    fn remove_spare(&mut self) -> Option<Segment<Id>> {
        self.spare.take().and_then(|address| self.remove_containing(address))
    }

    fn remove_containing(&mut self, address: usize) -> Option<Segment<Id>> {
        let (_, offset) = self.segment_of(address)?;
        let segment = self.segments.remove(&(address - offset))?;
        self.statistics.segments -= 1;
        self.statistics.segment_bytes -= segment.mapping.length_bytes() as u64;
        self.statistics.abandoned_bytes -= segment.abandoned.values().sum::<u64>();
        Some(segment)
    }
}

impl<S: SegmentSource> Drop for Shared<S> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Segment { mapping, id, .. } in std::mem::take(&mut state.segments).into_values() {
            self.source.retire(id);
            drop(mapping);
        }
    }
}

#[cfg(test)]
mod tests;
