//! An arena: malloc's calls over memory that a service can move bytes in.
//!
//! ```text
//! allocate(layout) ─ a segment with room? ─ yes ─────────────────────────► a block
//!                                         └ no ─ SegmentSource::segment ─► a fresh segment, and a block of it
//! free(block) ─ zero it ─ last of its segment? ─ a spare is there already ─► SegmentSource::retire
//! locate(pointer, length) ─► the segment's name there and the offset: what a request to the service says
//! ```
//!
//! Three ways to hold a block: as an [`Allocator`](allocator_api2::alloc::Allocator) for collections, whose bytes this
//! process refers to; as a [`Block`], which is read and written by copy; and raw. Invariant A, which the unsafe code here
//! rests on: a segment is nobody else's memory, it stays mapped until it is retired, and no two blocks in use share a
//! byte. The book-keeping lies outside the segments, so whoever may write there cannot break it.
//!
//! A block that is given back twice is found out unless its place was handed out again meanwhile: [`Arena::free`] refuses
//! it and changes nothing, and a collection's allocator panics. A forked child has none of the memory: allocation fails
//! there, and giving back does nothing. It does not decide who may write where, and does not speak with a service.

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
use pages::{MOST_ALIGNMENT, PAGE, Pages, Shape, Wrong};

/// Where an arena's memory comes from.
///
/// # Safety
/// A segment is writable memory that nobody else refers to or hands out, filled with zeros, with at least the bytes asked
/// for after its first address that is a multiple of 4096. While the arena has it, other mappings of it are written only
/// where whoever holds the block there asked for it.
pub unsafe trait SegmentSource {
    /// A segment's name where it comes from.
    type Id: Clone;
    /// Why there is none.
    type Error: Error + 'static;

    /// A fresh segment of at least `least_bytes`, and its name.
    ///
    /// # Errors
    /// When it cannot be had.
    fn segment(&self, least_bytes: u64) -> Result<(Mapping, Self::Id), Self::Error>;

    /// Takes a segment back. No block of it is in use; its mapping goes when this returns.
    fn retire(&self, id: Self::Id);

    /// Whether this is the process that the segments belong to.
    ///
    /// # Errors
    /// [`Forked`] in a child.
    fn check_fork(&self) -> Result<(), Forked> {
        Ok(())
    }
}

/// How an arena works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of a segment, unless one block needs more.
    pub segment_bytes: u64,
    /// Whether blocks are filled with zeros when they are given back, so that no block ever holds another's old bytes.
    pub zero_on_free: bool,
    /// Bytes of all segments together.
    pub limit_bytes: u64,
}

impl Default for Options {
    /// Segments of 4 MiB, zeroed blocks, and half of the machine's memory: every page of a segment is there from the
    /// beginning, so without a limit one mistaken length would take all there is.
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

/// What an arena holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    pub live_blocks: u64,
    /// Bytes of these, rounded up to what each takes.
    pub live_bytes: u64,
    /// The most bytes that were ever in use.
    pub peak_bytes: u64,
    /// Segments, in use or spare.
    pub segments: u64,
    pub segment_bytes: u64,
    /// Bytes of blocks that will not be used again while their segment lives.
    pub abandoned_bytes: u64,
}

/// Why there is no block.
#[derive(Debug, ThisError)]
pub enum ArenaError<E: Error + 'static> {
    #[error("a block has at least one byte")]
    Empty,
    /// No address space is so large.
    #[error("{length} bytes aligned to {align} are more than can be addressed")]
    TooLong {
        length: usize,
        /// The alignment asked for.
        align: usize,
    },
    /// Not an alignment, or too large a one.
    #[error("cannot align a block to {align} bytes; alignments are powers of two up to {most}")]
    Alignment {
        /// What was asked for.
        align: usize,
        /// The largest there is.
        most: usize,
    },
    /// The arena is full.
    #[error(
        "{wanted} bytes more would exceed the arena's {limit}, of which it holds {held}; free some blocks"
    )]
    Limit {
        /// Bytes of the segment that would be needed.
        wanted: u64,
        /// Bytes of its segments.
        held: u64,
        limit: u64,
    },
    /// No segment could be had.
    #[error("cannot get a segment of {bytes} bytes: {source}")]
    Segment { bytes: u64, source: E },
    /// This is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// What was given back is no block in use; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
pub enum FreeError {
    /// It lies in no segment of this arena.
    #[error("{address:#x} is not in this arena")]
    Foreign { address: usize },
    /// No block begins there, or it was given back before.
    #[error("no block in use begins at {address:#x}; was it given back twice?")]
    NotLive { address: usize },
    /// The block there has other bytes.
    #[error(
        "the block at {address:#x} takes {found} bytes, which a layout of {size} aligned to {align} does not"
    )]
    Layout {
        address: usize,
        found: usize,
        /// Bytes of the layout given.
        size: usize,
        /// Alignment of the layout given.
        align: usize,
    },
}

/// A thread-safe allocator over segments. Clones share it; it lives until the last of them and of its [`Block`]s.
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
    /// By the address of their first byte.
    segments: BTreeMap<usize, Segment<Id>>,
    /// Where room was found last.
    recent: usize,
    /// The one segment that is kept though it is empty.
    spare: Option<usize>,
    /// Bytes of segments on their way here.
    coming: u64,
    statistics: Statistics,
}

struct Segment<Id> {
    mapping: Mapping,
    id: Id,
    /// Bytes that were asked for.
    asked: u64,
    /// Bytes before its first page.
    origin: usize,
    pages: Pages,
    /// Offsets of blocks that nobody holds and nobody may be given, with their bytes.
    abandoned: BTreeMap<usize, u64>,
    /// Whether part of it is no longer the memory that its name stands for.
    detached: bool,
}

struct Place<Id> {
    mapping: Mapping,
    id: Id,
    offset: usize,
}

impl<S: SegmentSource> Arena<S> {
    /// An arena that has no memory yet.
    pub fn new(source: S, options: Options) -> Self {
        let state = State {
            segments: BTreeMap::new(),
            recent: 0,
            spare: None,
            coming: 0,
            statistics: Statistics::default(),
        };
        Self(Arc::new(Shared { source, options, state: Mutex::new(state) }))
    }

    /// Where its memory comes from.
    pub fn source(&self) -> &S {
        &self.0.source
    }

    fn state(&self) -> MutexGuard<'_, State<S::Id>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `layout`, whose bytes are zero unless blocks are not zeroed.
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
        let shape = Shape::of(layout).ok_or(ArenaError::Alignment { align, most: MOST_ALIGNMENT })?;
        if let Some(place) = self.state().take(shape) {
            return Ok(place);
        }
        let least = shape.segment_bytes().ok_or(ArenaError::TooLong { length, align })? as u64;
        let bytes = self.announce(least)?;
        // Not under the lock: it may take a service's answer.
        let fresh = self.0.source.segment(bytes);
        let mut state = self.state();
        state.coming -= bytes;
        let (mapping, id) = fresh.map_err(|source| ArenaError::Segment { bytes, source })?;
        let address = state.add(mapping, id, bytes);
        state.take_in(address, shape).ok_or(ArenaError::TooLong { length, align })
    }

    /// Reserves room for a segment of at least `least` bytes under the limit; returns how many to ask for.
    fn announce(&self, least: u64) -> Result<u64, ArenaError<S::Error>> {
        let limit = self.0.options.limit_bytes;
        let mut state = self.state();
        let room = |state: &State<S::Id>| {
            limit.saturating_sub(state.statistics.segment_bytes.saturating_add(state.coming))
        };
        let unused = if room(&state) < least { state.remove_spare() } else { None };
        let room = room(&state);
        let held = state.statistics.segment_bytes.saturating_add(state.coming);
        let bytes = self.0.options.segment_bytes.min(room).max(least);
        let announced =
            if bytes <= room { Ok(bytes) } else { Err(ArenaError::Limit { wanted: least, held, limit }) };
        state.coming += announced.as_ref().map_or(0, |bytes| *bytes);
        drop(state);
        self.retire(unused);
        announced
    }

    fn retire(&self, segment: Option<Segment<S::Id>>) {
        // Before the mapping goes: the service may still be ending what it was told to give up there.
        if let Some(Segment { mapping, id, .. }) = segment {
            self.0.source.retire(id);
            drop(mapping);
        }
    }

    /// Gives a block back. In a forked child this does nothing.
    ///
    /// # Errors
    /// [`FreeError`] when this is no block in use, and nothing was changed.
    ///
    /// # Safety
    /// Nobody uses the block's bytes any more.
    pub unsafe fn free(&self, pointer: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.give_back(pointer.as_ptr().addr(), layout)
    }

    /// [`free`](Self::free), promised by its callers in this module.
    fn give_back(&self, address: usize, layout: Layout) -> Result<(), FreeError> {
        if self.0.source.check_fork().is_err() {
            return Ok(());
        }
        let mut state = self.state();
        let (segment, offset, shape) = state.check(address, layout)?;
        let pointer = segment.mapping.pointer().wrapping_add(offset);
        if self.0.options.zero_on_free {
            let held = if matches!(shape, Shape::Run { .. }) {
                // Others need not wait while it is zeroed. It counts as in use, so the segment stays.
                segment.pages.begin_leaving(offset - segment.origin);
                drop(state);
                None
            } else {
                Some(state)
            };
            // SAFETY: A: the check found a block of these bytes in use, which is the caller's alone and now given back.
            unsafe { std::ptr::write_bytes(pointer, 0, shape.bytes()) };
            state = held.unwrap_or_else(|| self.state());
        }
        let retired = state.release(address, shape, self.0.options.segment_bytes);
        drop(state);
        self.retire(retired);
        Ok(())
    }

    /// Gives a block back that may still be written to: nobody gets its bytes while the segment lives.
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

    /// The name of the segment that `length` bytes at `pointer` lie in, and their offset there. `None` unless all of them
    /// lie in one segment, the arena still has it, and it still is what its name stands for.
    pub fn locate(&self, pointer: *const u8, length: usize) -> Option<(S::Id, u64)> {
        self.0.source.check_fork().ok()?;
        let mut state = self.state();
        let (segment, offset) = state.segment_of(pointer.addr())?;
        let end = offset.checked_add(length)?;
        let whole = end <= segment.mapping.length_bytes() && !segment.detached;
        whole.then(|| (segment.id.clone(), offset as u64))
    }

    /// Gives back the segment that is kept for the next allocation, if there is one.
    pub fn trim(&self) {
        if self.0.source.check_fork().is_ok() {
            let spare = self.state().remove_spare();
            self.retire(spare);
        }
    }

    /// What it holds now.
    pub fn statistics(&self) -> Statistics {
        // In a forked child another thread's lock would never be released.
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
    /// A block of some segment that has room.
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

    fn add(&mut self, mapping: Mapping, id: Id, asked: u64) -> usize {
        let address = mapping.pointer().addr();
        let length = mapping.length_bytes();
        let first = address.next_multiple_of(PAGE);
        let origin = first - address;
        let pages = Pages::new(first / PAGE, length.saturating_sub(origin) / PAGE);
        let segment =
            Segment { mapping, id, asked, origin, pages, abandoned: BTreeMap::new(), detached: false };
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

    /// The block of `layout` at `address`: its segment, its offset there and its shape.
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

    /// Frees a block that was checked; returns its segment when nothing keeps it.
    fn release(&mut self, address: usize, shape: Shape, usual_bytes: u64) -> Option<Segment<Id>> {
        self.statistics.live_blocks -= 1;
        self.statistics.live_bytes -= shape.bytes() as u64;
        let spare_is_there = self.spare.is_some();
        let (segment, offset) = self.segment_of(address)?;
        segment.pages.give(offset - segment.origin, shape);
        if segment.in_use() > 0 {
            return None;
        }
        let unusual = segment.asked > usual_bytes;
        if unusual || spare_is_there || segment.detached || !segment.abandoned.is_empty() {
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
