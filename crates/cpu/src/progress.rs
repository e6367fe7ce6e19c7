//! Advances an operation by one chunk, resuming after any number of bytes, in safe code.
//!
//! ```text
//! (operation, bytes done, chunk) ──► the operation's share of the chunk
//!                                    Copy     up, or down from the end if the destination overlaps the source from above
//!                                    Fill     with the pattern rotated to the phase of the chunk's first byte
//!                                    2-D      plane
//!                                    lists    piece by piece
//!                                    others   blocks
//!                                ──► kernels, under bus_error::guarded ──► bytes moved
//! ```
//!
//! The count of bytes done is the only position kept. Two mappings of the same memory at different addresses are not recognised
//! as overlapping.

use std::borrow::Borrow;

use memferry_shm::bus_error::MemoryFault;
use memferry_shm::mapping::Mapping;
use memferry_transfer::{CacheHint, Failure, Lists, Operation, Pattern, Region, Segment, Watermark};

use super::choice;
use super::kernels;
use super::kernels::team::{Activity, CopyTeam};
use super::manner::{Manner, Work};
use super::state::{State, address, runs_down, step};
use super::{blocks, plane, tuning};

/// Settings of an engine.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    /// Bytes per chunk of a copy.
    pub(super) chunk_bytes: u64,
    /// Threads that may share long copies.
    pub(super) team: Option<&'a CopyTeam>,
    /// Written memory is read on another core.
    pub(super) read_elsewhere: bool,
}

/// Chooses how the operation's bytes are copied, on the first call.
fn choose_manner<M: Borrow<Mapping>>(
    state: &mut State,
    operation: &Operation<Region<M>>,
    hint: CacheHint,
    (total, read_elsewhere): (u64, bool),
) -> Result<(), Failure> {
    if state.manner.is_none() {
        let tuning = tuning::current();
        let work = match operation {
            Operation::Fill { pattern, .. } if pattern.word_bytes() == [0; 4] => Work::Zero,
            Operation::Fill { .. } => Work::Fill,
            _ => Work::Copy,
        };
        state.manner = match choice::by_hint_and_size(work, hint, total, tuning) {
            None if read_elsewhere && work == Work::Copy => Some(Manner::Streaming),
            Some(manner) => Some(manner),
            None => Some(match first_written(operation) {
                Some(((from, to), bytes)) => {
                    step([to.memory().borrow()], || choice::by_destination(work, (from, to), bytes, tuning))?
                }
                None => Manner::Cached,
            }),
        };
    }
    Ok(())
}

/// The first range the operation writes, the range copied there if any, and the length.
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

/// Source, destination and length of a copy or write.
type Sides<'a, M> = ((Option<&'a Region<M>>, &'a Region<M>), u64);

/// A cache line: writes that bypass the caches start at one.
const LINE: u64 = 64;

/// Bytes an operation visits per chunk. A chunk bounds the time until the worker polls its other clients, so it bounds bytes
/// touched: xor of 64 sources touches 65 bytes per byte of its destination. Operations with up to two operands get the whole
/// chunk; with more, each operand gets its share, at least a line or the chunk. `plane` computes the cost of
/// pixels.
///
/// Only the length of a turn depends on this. Policies and completions count bytes visited. Within the same share or rate,
/// xor of 64 sources touches 65 bytes where a copy touches two, and deadlines assume that both are
/// equally fast.
pub(super) fn visited_bytes<M>(operation: &Operation<Region<M>>, chunk_bytes: u64) -> u64 {
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
    // Whole blocks if possible: each block is a step.
    let step = if share < blocks::BLOCK as u64 { LINE } else { blocks::BLOCK as u64 };
    (share / step * step).max(LINE).min(chunk_bytes)
}

/// Moves the next bytes, at most the operation's share of a chunk (but at least one pixel or tile).
/// Returns whether the operation is complete.
pub(super) fn advance<M: Borrow<Mapping>>(
    operation: &Operation<Region<M>>,
    hint: CacheHint,
    state: &mut State,
    settings: Settings<'_>,
) -> Result<bool, Failure> {
    let total = operation.total_bytes();
    let chunk_bytes = settings.chunk_bytes;
    choose_manner(state, operation, hint, (total, settings.read_elsewhere))?;
    let length = total.saturating_sub(state.done).min(visited_bytes(operation, chunk_bytes));
    let done = state.done;
    if length > 0 {
        state.done += match operation {
            Operation::Nop => 0,
            Operation::Copy { source, destination, length: total } => {
                if let Some(shared) = shared_copy(source, destination, *total, state, settings)? {
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
            other => blocks::advance(other, state, length)?,
        };
    } else {
        blocks::begin(operation, state);
    }
    Ok(state.over || state.done >= total)
}

/// Bytes per piece of a copy of `length` bytes shared with `sharing` other threads.
pub(super) fn piece_bytes(length: u64, sharing: u64) -> u64 {
    let share = length.div_ceil(1 + sharing);
    (share / 2).clamp(MIN_PIECE, MAX_PIECE).min(share).next_multiple_of(64)
}

/// Copies one chunk per sharing thread if a thread shares and enough is left. Returns the bytes copied.
fn shared_copy<M: Borrow<Mapping>>(
    source: &Region<M>,
    destination: &Region<M>,
    total: u64,
    state: &mut State,
    settings: Settings<'_>,
) -> Result<Option<u64>, Failure> {
    let tuning = tuning::current();
    let done = state.done;
    let left = total - done;
    let Some(team) = settings.team.filter(|_| left >= tuning.share_awake_bytes) else { return Ok(None) };
    let least_asleep = match state.manner() {
        Manner::Cached => tuning.share_asleep_hot_bytes,
        Manner::Streaming | Manner::Flushing => tuning.share_asleep_cold_bytes,
    };
    let spinning = team.doing(Activity::Looking) as u64;
    if spinning == 0 && left >= least_asleep && !state.woke {
        team.wake_one();
        state.woke = true;
    }
    // A woken thread joins later; the copy is open to it from the first chunk.
    let sharing = spinning.max(u64::from(state.woke));
    if sharing == 0 || address(source).abs_diff(address(destination)) < total {
        return Ok(None);
    }
    let length = left.min(settings.chunk_bytes.saturating_mul(1 + sharing));
    let piece = piece_bytes(length, sharing);
    let from = (source, done);
    let to = (destination, done);
    team.copy(state.manner(), from, to, length, piece).map_err(|MemoryFault| Failure::MemoryFault)??;
    Ok(Some(length))
}

/// How much of the destination is final; `None` if the count of bytes done does not imply places.
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

/// A position in a segment list.
struct Cursor<'a, M> {
    left: &'a [Segment<Region<M>>],
    within: u64,
}

impl<'a, M> Cursor<'a, M> {
    /// The position `bytes` after the start of the list.
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

    fn advance(&mut self, bytes: u64) {
        self.within += bytes;
        self.skip_ended();
    }
}

/// Minimum piece of a shared copy: taking a piece moves a cache line between cores.
const MIN_PIECE: u64 = 64 << 10;
/// Maximum piece: the last one delays the end of the copy.
const MAX_PIECE: u64 = 1 << 20;

/// Shorter pieces of a list stay in the caches: the fence would cost more than bypassing saves.
const SHORT_PIECE: u64 = 16 << 10;

/// Moves the lists piece by piece. A piece whose destination overlaps its source from above is moved from its end.
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
        // The piece starts where the later of the two segments does.
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
        from.advance(bytes);
        to.advance(bytes);
    }
    Ok(moved)
}

/// The pattern's bytes, starting `offset` bytes into the fill.
fn phased(pattern: Pattern, offset: u64) -> [u8; 4] {
    let mut word = pattern.word_bytes();
    word.rotate_left((offset % 4) as usize);
    word
}
