//! Which bytes come next: an operation resumed after any number of bytes, in safe code.
//!
//! ```text
//! (operation, bytes done, chunk) ──► share of the chunk, where operands are many
//!                                    Copy     up, or down from the end when that would overwrite bytes still to be read
//!                                    Fill     with the pattern turned to the phase of the chunk's first byte
//!                                    2-D      plane
//!                                    lists    piece by piece
//!                                    others   blocks
//!                                ──► kernels, under bus_error::guarded ──► bytes moved
//! ```
//!
//! The bytes done are all the state there is. Two mappings of one memory at different addresses are not recognised as
//! overlapping.

use std::borrow::Borrow;

use memferry_shm::bus_error::{MemoryFault, guarded};
use memferry_shm::mapping::Mapping;
use memferry_transfer::{CacheHint, Failure, Lists, Operation, Pattern, Region, Segment, Watermark};

use super::choice::{self, Manner, Work};
use super::kernels::team::{Activity, CopyTeam};
use super::kernels::{self, OutsideRegion};
use super::{blocks, plane, tuning};

/// How far an operation has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) done: u64,
    /// What was found so far.
    pub(super) value: u64,
    /// Nothing is left to do, whatever the bytes.
    pub(super) over: bool,
    /// How its bytes are copied, once that was decided.
    manner: Option<Manner>,
    /// Somebody was woken to share it.
    woke: bool,
}

/// What an engine moves bytes with.
#[derive(Clone, Copy)]
pub(super) struct Means<'a> {
    /// Bytes a copy moves at a time.
    pub(super) chunk_bytes: u64,
    /// Who may share long copies.
    pub(super) team: Option<&'a CopyTeam>,
    /// What is written will be read on another core.
    pub(super) for_others: bool,
}

impl State {
    /// How its bytes are copied.
    pub(super) fn manner(&self) -> Manner {
        self.manner.unwrap_or(Manner::Cached)
    }

    /// Decides how the operation's bytes are copied, unless that was done.
    fn choose<M: Borrow<Mapping>>(
        &mut self,
        operation: &Operation<Region<M>>,
        hint: CacheHint,
        (total, for_others): (u64, bool),
    ) -> Result<(), Failure> {
        if self.manner.is_none() {
            let tuning = tuning::current();
            let work = match operation {
                Operation::Fill { pattern, .. } if pattern.word_bytes() == [0; 4] => Work::Zero,
                Operation::Fill { .. } => Work::Fill,
                _ => Work::Copy,
            };
            self.manner = match choice::without_looking(work, hint, total, tuning) {
                None if for_others && work == Work::Copy => Some(Manner::Streaming),
                Some(manner) => Some(manner),
                None => Some(match first_written(operation) {
                    Some(((from, to), bytes)) => {
                        step([to.memory().borrow()], || choice::by_looking((from, to), bytes, tuning))?
                    }
                    None => Manner::Cached,
                }),
            };
        }
        Ok(())
    }
}

/// The first range an operation writes, the range that is copied there where there is one, and the bytes.
fn first_written<M>(operation: &Operation<Region<M>>) -> Option<Sides<'_, M>> {
    match operation {
        Operation::Copy { source, destination, length }
        | Operation::CopyCrc { source, destination, length, .. }
        | Operation::DualCopy { source, destinations: [destination, _], length } => {
            Some(((Some(source), destination), *length))
        }
        Operation::Xor { destination, length, .. } | Operation::Fill { destination, length, .. } => {
            Some(((None, destination), *length))
        }
        Operation::ScatterGather { lists } => {
            let source = lists.source.first();
            let destination = lists.destination.first()?;
            Some(((source.map(|segment| &segment.place), &destination.place), destination.length))
        }
        Operation::Nop
        | Operation::Copy2d { .. }
        | Operation::Fill2d { .. }
        | Operation::Compare { .. }
        | Operation::Crc { .. }
        | Operation::Synchronized { .. } => None,
    }
}

/// Source and destination, and how many bytes go there.
type Sides<'a, M> = ((Option<&'a Region<M>>, &'a Region<M>), u64);

impl From<OutsideRegion> for Failure {
    /// The descriptor was checked, so this is an error of this module; nothing was touched.
    fn from(_: OutsideRegion) -> Self {
        Self::ChannelFaulted
    }
}

/// Runs one step over `mappings` and nothing else.
pub(super) fn step<T, const N: usize>(
    mappings: [&Mapping; N],
    access: impl FnOnce() -> Result<T, OutsideRegion>,
) -> Result<T, Failure> {
    Ok(guarded(mappings, access).map_err(|MemoryFault| Failure::MemoryFault)??)
}

/// A cache line: what is written past the caches begins with one.
const LINE: u64 = 64;

/// Bytes that an operation visits in a chunk. A chunk is to bound the time until the worker looks at its other clients, and that is
/// bytes touched: for each byte of its destination an exclusive or of 64 sources touches 65. A copy touches two and has the whole
/// chunk, as has what touches one; of more operands, each has its share, though never less than a line, or the chunk. What a
/// pixel takes of a chunk is `plane`'s affair.
///
/// This bounds a turn and changes nothing in what is charged: policies are told of bytes visited, as completions are. Within the
/// same share or rate an exclusive or of 64 sources touches 65 bytes where a copy touches two, and a deadline is reckoned as if it
/// were as fast.
fn visited_bytes<M>(operation: &Operation<Region<M>>, chunk_bytes: u64) -> u64 {
    let operands = match operation {
        Operation::Xor { sources, .. } => 1 + sources.len() as u64,
        Operation::DualCopy { .. } => 3,
        Operation::Nop
        | Operation::Copy { .. }
        | Operation::CopyCrc { .. }
        | Operation::Compare { .. }
        | Operation::Crc { .. }
        | Operation::Fill { .. }
        | Operation::ScatterGather { .. }
        | Operation::Copy2d { .. }
        | Operation::Fill2d { .. }
        | Operation::Synchronized { .. } => return chunk_bytes,
    };
    if operands <= 2 {
        return chunk_bytes;
    }
    let share = chunk_bytes.saturating_mul(2) / operands;
    // Whole blocks, where it has some: each is a step of its own.
    let step = if share < blocks::BLOCK as u64 { LINE } else { blocks::BLOCK as u64 };
    (share / step * step).max(LINE).min(chunk_bytes)
}

/// Moves the bytes after those that are done, at most what a chunk has for the operation (but at least one pixel, or tile of them);
/// tells whether all is done.
pub(super) fn advance<M: Borrow<Mapping>>(
    operation: &Operation<Region<M>>,
    hint: CacheHint,
    state: &mut State,
    means: Means<'_>,
) -> Result<bool, Failure> {
    let total = operation.total_bytes();
    let chunk_bytes = means.chunk_bytes;
    state.choose(operation, hint, (total, means.for_others))?;
    let length = total.saturating_sub(state.done).min(visited_bytes(operation, chunk_bytes));
    let done = state.done;
    if length > 0 {
        state.done += match operation {
            Operation::Nop => 0,
            Operation::Copy { source, destination, length: total } => {
                if let Some(shared) = shared_copy(source, destination, *total, state, means)? {
                    state.done += shared;
                    return Ok(state.done >= *total);
                }
                let at = if runs_down(source, destination, *total) { total - done - length } else { done };
                step([source.memory().borrow(), destination.memory().borrow()], || {
                    kernels::copy(state.manner(), source, at, destination, at, length).map(|()| length)
                })?
            }
            Operation::Fill { destination, pattern, .. } => step([destination.memory().borrow()], || {
                kernels::fill(state.manner(), destination, done, length, phased(*pattern, done))
                    .map(|()| length)
            })?,
            Operation::Copy2d { source, destination, shape } => {
                step([source.memory().borrow(), destination.memory().borrow()], || {
                    plane::copy(source, destination, shape, hint, (done, chunk_bytes))
                })?
            }
            Operation::Fill2d { destination, shape } => {
                step([destination.memory().borrow()], || plane::fill(destination, shape, done, chunk_bytes))?
            }
            Operation::ScatterGather { lists } => scatter_gather(lists, state.manner(), done, length)?,
            looks => blocks::advance(looks, state, length)?,
        };
    } else {
        blocks::begin(operation, state);
    }
    Ok(state.over || state.done >= total)
}

/// Bytes of a piece of so many that are shared with so many others.
pub(super) fn piece_bytes(length: u64, sharing: u64) -> u64 {
    let share = length.div_ceil(1 + sharing);
    (share / 2).clamp(LEAST_PIECE, MOST_PIECE).min(share).next_multiple_of(64)
}

/// Copies a chunk for each that shares the work, when somebody does and the rest is long enough; the bytes copied.
fn shared_copy<M: Borrow<Mapping>>(
    source: &Region<M>,
    destination: &Region<M>,
    total: u64,
    state: &mut State,
    means: Means<'_>,
) -> Result<Option<u64>, Failure> {
    let tuning = tuning::current();
    let done = state.done;
    let left = total - done;
    let Some(team) = means.team.filter(|_| left >= tuning.share_awake_bytes) else { return Ok(None) };
    let least_asleep = match state.manner() {
        Manner::Cached => tuning.share_asleep_hot_bytes,
        Manner::Streaming | Manner::Flushing => tuning.share_asleep_cold_bytes,
    };
    let looking = team.doing(Activity::Looking) as u64;
    if looking == 0 && left >= least_asleep && !state.woke {
        team.wake_one();
        state.woke = true;
    }
    // Who was woken comes later: the copy is open to it from its first chunk on.
    let sharing = looking.max(u64::from(state.woke));
    if sharing == 0 || address(source).abs_diff(address(destination)) < total {
        return Ok(None);
    }
    let length = left.min(means.chunk_bytes.saturating_mul(1 + sharing));
    let piece = piece_bytes(length, sharing);
    let from = (source, done);
    let to = (destination, done);
    team.copy(state.manner(), from, to, length, piece).map_err(|MemoryFault| Failure::MemoryFault)??;
    Ok(Some(length))
}

/// How far a transfer's destination is final; `None` where bytes done say nothing about places.
pub(super) fn watermark<M: Borrow<Mapping>>(
    operation: &Operation<Region<M>>,
    done: u64,
) -> Option<Watermark> {
    let downward = match operation {
        Operation::Copy { source, destination, length }
        | Operation::CopyCrc { source, destination, length, .. } => runs_down(source, destination, *length),
        Operation::Fill { .. } | Operation::Xor { .. } | Operation::DualCopy { .. } => false,
        Operation::Nop
        | Operation::ScatterGather { .. }
        | Operation::Copy2d { .. }
        | Operation::Fill2d { .. }
        | Operation::Compare { .. }
        | Operation::Crc { .. }
        | Operation::Synchronized { .. } => return None,
    };
    Some(Watermark { bytes: done, downward })
}

/// A place in a list: the segment, and where in it.
struct Cursor<'a, M> {
    left: &'a [Segment<Region<M>>],
    within: u64,
}

impl<'a, M> Cursor<'a, M> {
    /// The place `bytes` after the list's first.
    fn at(list: &'a [Segment<Region<M>>], bytes: u64) -> Self {
        let mut cursor = Self { left: list, within: bytes };
        cursor.skip_ended();
        cursor
    }

    fn skip_ended(&mut self) {
        while let [segment, left @ ..] = self.left
            && self.within >= segment.length
        {
            self.within -= segment.length;
            self.left = left;
        }
    }

    fn go_on(&mut self, bytes: u64) {
        self.within += bytes;
        self.skip_ended();
    }
}

/// Shared copies are cut in pieces of this many bytes at least: taking one costs a line that goes from core to core.
const LEAST_PIECE: u64 = 64 << 10;
/// And at most: so long one may have to wait for the other at the end.
const MOST_PIECE: u64 = 1 << 20;

/// Below this many bytes a piece of a list stays in the caches: the fence after it would cost more than it saves.
const SHORT_PIECE: u64 = 16 << 10;

/// Moves piece by piece; a piece that overlaps itself upwards begins with its end.
fn scatter_gather<M: Borrow<Mapping>>(
    lists: &Lists<Region<M>>,
    manner: Manner,
    done: u64,
    length: u64,
) -> Result<u64, Failure> {
    let mut from = Cursor::at(&lists.source, done);
    let mut to = Cursor::at(&lists.destination, done);
    let mut moved = 0;
    while moved < length
        && let (Some(source), Some(destination)) = (from.left.first(), to.left.first())
    {
        // The piece began where the later of the two segments did.
        let before = from.within.min(to.within);
        let after = (source.length - from.within).min(destination.length - to.within);
        let bytes = after.min(length - moved);
        let source = &source.place;
        let destination = &destination.place;
        let start = from.within - before;
        let other_start = to.within - before;
        let low = address(source) + start;
        let high = address(destination) + other_start;
        let down = low < high && high - low < before + after;
        let at = if down { after - bytes } else { before };
        let manner = if bytes < SHORT_PIECE { Manner::Cached } else { manner };
        step([source.memory().borrow(), destination.memory().borrow()], || {
            kernels::copy(manner, source, start + at, destination, other_start + at, bytes)
        })?;
        moved += bytes;
        from.go_on(bytes);
        to.go_on(bytes);
    }
    Ok(moved)
}

/// Whether a copy of `length` bytes must run from the end: its destination overlaps the source from above.
pub(super) fn runs_down<M: Borrow<Mapping>>(
    source: &Region<M>,
    destination: &Region<M>,
    length: u64,
) -> bool {
    let from = address(source);
    let to = address(destination);
    from < to && to - from < length
}

/// Where the region lies in this process.
pub(super) fn address<M: Borrow<Mapping>>(region: &Region<M>) -> u64 {
    region.memory().borrow().pointer().addr() as u64 + region.offset()
}

/// The pattern's bytes as they follow one another from the byte `offset` bytes after its beginning.
fn phased(pattern: Pattern, offset: u64) -> [u8; 4] {
    let mut word = pattern.word_bytes();
    word.rotate_left((offset % 4) as usize);
    word
}
