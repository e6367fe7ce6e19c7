//! The operations: one function each, which takes regions and returns a transfer.

use std::ops::Range;
use std::sync::Arc;

use memferry_transfer::{
    Copy2d, Fill2d, Lists, MAX_SEGMENTS, MAX_SOURCES, Operation, Pattern, Request, Segment, Side, Span, Task,
};
use smallvec::SmallVec;

use super::{Held, InvalidTransfer, Transfer};
use crate::frame::{ListItem, Piece, Region};

/// Moves no bytes. Use it to measure the path to the worker, or [`fenced`](Transfer::fenced) to wait for all earlier transfers.
#[inline(always)]
pub fn nop() -> Transfer {
    describe(Operation::Nop, SmallVec::new(), None)
}

/// Copies the whole source to the start of the destination, which may be longer. They may overlap, as with `memmove`
/// (`mem_copy` of Wicki 2014, listing 1).
#[inline(always)]
pub fn copy(source: impl Into<Region>, destination: impl Into<Region>) -> Transfer {
    let source = source.into();
    let destination = destination.into();
    let invalid = inverted_pair(&source, &destination).or_else(|| too_short(&source, &destination));
    let length = source.length();
    let operation =
        Operation::Copy { source: source.span(), destination: destination.span_for(length), length };
    describe(operation, pair(source, destination), invalid)
}

/// Fills the whole destination with a pattern. Its length must be a multiple of the pattern's (`mem_fill` of Wicki 2014,
/// listing 1); otherwise the transfer fails with [`Failure::FillLength`](crate::Failure::FillLength).
#[inline(always)]
pub fn fill(destination: impl Into<Region>, pattern: Pattern) -> Transfer {
    let destination = destination.into();
    let operation =
        Operation::Fill { destination: destination.span(), length: destination.length(), pattern };
    let invalid = inverted(Side::Destination, &destination.bounds());
    describe(operation, single(destination), invalid)
}

/// Fills the whole destination with zeros.
#[inline(always)]
pub fn zero(destination: impl Into<Region>) -> Transfer {
    fill(destination, Pattern::Byte(0))
}

/// Copies pixels along a 2-D walk of each side (`mem_copy_2d` of Wicki 2014, listing 4). The starts in `shape` are byte offsets
/// in the regions. The walks may leave the regions, but not their frames. A picture may be shifted over itself, as with `memmove`; other
/// walks with bytes in common, such as a turn in its own place, fail with [`Failure::Overlap`](crate::Failure::Overlap).
pub fn copy_2d(source: impl Into<Region>, destination: impl Into<Region>, shape: Copy2d) -> Transfer {
    let source = source.into();
    let destination = destination.into();
    let invalid = inverted_pair(&source, &destination);
    let operation = Operation::Copy2d {
        source: source.span_for_walk(&shape.count, &shape.source),
        destination: destination.span_for_walk(&shape.count, &shape.destination),
        shape,
    };
    describe(operation, pair(source, destination), invalid)
}

/// Writes one colour to the pixels of a 2-D walk (`mem_fill_2d` of Wicki 2014, listing 4). The start in `shape` is a byte offset
/// in the region. The walk may leave the region, but not its frame.
pub fn fill_2d(destination: impl Into<Region>, shape: Fill2d) -> Transfer {
    let destination = destination.into();
    let invalid = inverted(Side::Destination, &destination.bounds());
    let place = destination.span_for_walk(&shape.count, &shape.destination);
    describe(Operation::Fill2d { destination: place, shape }, single(destination), invalid)
}

/// Copies the bytes of the sources, in order, to the destinations, in order. Each list has up to 1024 segments; the two lists
/// have the same sum of bytes, and may be cut differently. Each piece is copied as with `memmove`, and a later piece reads what
/// an earlier one wrote.
///
/// ```
/// use memferry::{Client, scatter_gather};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// frame.write(0, b"one, two")?;
/// let words = [frame.slice(5..8), frame.slice(0..3)];
/// client.queue(4)?.run(scatter_gather(&words, [frame.slice(100..106)]))?;
/// let mut text = [0; 6];
/// frame.read(100, &mut text)?;
/// assert_eq!(&text, b"twoone");
/// # Ok::<(), memferry::Error>(())
/// ```
pub fn scatter_gather<'s, 'd>(
    sources: impl IntoIterator<Item = impl ListItem<'s>>,
    destinations: impl IntoIterator<Item = impl ListItem<'d>>,
) -> Transfer {
    let mut held = Held::new();
    let (source, source_error) = segments(Side::Source, sources, &mut held);
    let (destination, destination_error) = segments(Side::Destination, destinations, &mut held);
    let lists = Lists { source, destination };
    let one = lists.total_bytes(Side::Source);
    let other = lists.total_bytes(Side::Destination);
    let invalid = source_error.or(destination_error).or_else(|| unequal(one, other));
    describe(Operation::ScatterGather { lists: Arc::new(lists) }, held, invalid)
}

/// Writes the bytewise exclusive or of 1 to 64 sources to the destination. All have the same length. The destination may be
/// one of the sources; if it overlaps one in part, the transfer fails with [`Failure::Overlap`](crate::Failure::Overlap).
pub fn xor(sources: impl IntoIterator<Item = impl Into<Region>>, destination: impl Into<Region>) -> Transfer {
    let destination = destination.into();
    let length = destination.length();
    let mut held = Held::new();
    let mut invalid = None;
    let mut regions = sources.into_iter();
    let mut take = |source: Region| {
        invalid = invalid
            .or_else(|| inverted(Side::Source, &source.bounds()))
            .or_else(|| unequal(source.length(), length));
        let place = source.span();
        held.push(source.into_frame());
        place
    };
    let sources: Box<[Span]> = regions.by_ref().take(MAX_SOURCES).map(|source| take(source.into())).collect();
    let count = sources.len() + regions.count();
    if !(1..=MAX_SOURCES).contains(&count) {
        invalid = Some(InvalidTransfer::Sources { count });
    }
    let invalid = invalid.or_else(|| inverted(Side::Destination, &destination.bounds()));
    let operation = Operation::Xor { sources, destination: destination.span(), length };
    held.push(destination.into_frame());
    describe(operation, held, invalid)
}

/// Finds the offset in the regions of the first byte that differs; `None` if all are equal. Both regions have the same length.
pub fn compare(first: impl Into<Region>, second: impl Into<Region>) -> Transfer<Option<u64>> {
    let first = first.into();
    let second = second.into();
    let invalid = inverted(Side::Source, &first.bounds())
        .or_else(|| inverted(Side::Source, &second.bounds()))
        .or_else(|| unequal(first.length(), second.length()));
    let operation = Operation::Compare { first: first.span(), second: second.span(), length: first.length() };
    describe(operation, pair(first, second), invalid)
}

/// Computes the CRC-32C of the source. [`seed`](Transfer::seed) continues an earlier computation.
///
/// ```
/// use memferry::{Client, crc32c};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// frame.write(0, b"123456789")?;
/// let mut queue = client.queue(4)?;
/// let first: u32 = queue.run(crc32c(frame.slice(..4)))?.output;
/// let whole: u32 = queue.run(crc32c(frame.slice(4..9)).seed(first))?.output;
/// assert_eq!(whole, 0xe306_9283); // the check value of CRC-32C
/// # Ok::<(), memferry::Error>(())
/// ```
pub fn crc32c(source: impl Into<Region>) -> Transfer<u32> {
    let source = source.into();
    let operation = Operation::Crc { source: source.span(), length: source.length(), seed: 0 };
    let invalid = inverted(Side::Source, &source.bounds());
    describe(operation, single(source), invalid)
}

/// Copies as [`copy`], and computes the CRC-32C of the written bytes as [`crc32c`].
pub fn copy_crc32c(source: impl Into<Region>, destination: impl Into<Region>) -> Transfer<u32> {
    let source = source.into();
    let destination = destination.into();
    let invalid = inverted_pair(&source, &destination).or_else(|| too_short(&source, &destination));
    let length = source.length();
    let operation = Operation::CopyCrc {
        source: source.span(),
        destination: destination.span_for(length),
        length,
        seed: 0,
    };
    describe(operation, pair(source, destination), invalid)
}

impl Transfer<u32> {
    /// Continues the computation from `before`, the CRC of the preceding bytes.
    pub fn seed(mut self, before: u32) -> Self {
        self.description.work.change(|request| {
            if let Task::Transfer(Operation::Crc { seed, .. } | Operation::CopyCrc { seed, .. }) =
                &mut request.task
            {
                *seed = before;
            }
        });
        self
    }
}

/// Copies the whole source to the start of both destinations, which may be longer. If two of the three overlap in part, the
/// transfer fails with [`Failure::Overlap`](crate::Failure::Overlap).
pub fn dual_copy(source: impl Into<Region>, destinations: [impl Into<Region>; 2]) -> Transfer {
    let source = source.into();
    let [one, other] = destinations.map(Into::into);
    let invalid = inverted_pair(&source, &one)
        .or_else(|| inverted(Side::Destination, &other.bounds()))
        .or_else(|| too_short(&source, &one))
        .or_else(|| too_short(&source, &other));
    let length = source.length();
    let places = [one.span_for(length), other.span_for(length)];
    let operation = Operation::DualCopy { source: source.span(), destinations: places, length };
    describe(operation, [source, one, other].into_iter().map(Region::into_frame).collect(), invalid)
}

/// Repeats the transfers submitted next, up to and including the first that is not [linked](Transfer::linked): `rounds` times,
/// or, if `rounds` is 0, until [`Queue::stop`](crate::Queue::stop) or a stop of the service. All of them complete when the loop has
/// ended; the output of this one is the number of complete rounds. Transfers submitted after the loop start when it has ended.
pub fn repeat(rounds: u32) -> Transfer<u64> {
    Transfer::new(Request::repeat(rounds), SmallVec::new(), None)
}

#[inline(always)]
fn describe<T>(operation: Operation<Span>, held: Held, invalid: Option<InvalidTransfer>) -> Transfer<T> {
    Transfer::new(Request::new(operation), held, invalid)
}

/// The frames of two regions. Made from an array, because an iterator would cost as much as the copy of a short transfer.
#[inline(always)]
fn pair(one: Region, other: Region) -> Held {
    Held::from_buf([one.into_frame(), other.into_frame()])
}

#[inline(always)]
fn single(region: Region) -> Held {
    let mut held = Held::new();
    held.push(region.into_frame());
    held
}

/// One list of a scatter-gather transfer, and the first error in it. Moves the frames of its regions to `held`.
fn segments<'a>(
    side: Side,
    items: impl IntoIterator<Item = impl ListItem<'a>>,
    held: &mut Held,
) -> (Box<[Segment<Span>]>, Option<InvalidTransfer>) {
    let mut items = items.into_iter();
    let mut invalid = None;
    let mut take = |piece: Piece<'a>| {
        let bounds = piece.bounds();
        invalid = invalid.or_else(|| inverted(side, &bounds));
        let segment = Segment { place: piece.span(), length: bounds.end.saturating_sub(bounds.start) };
        let frame = piece.into_frame();
        // A frame that is held need not be held again for the next segment.
        if !held.last().is_some_and(|last| last.is(&frame)) {
            held.push(frame.into_owned());
        }
        segment
    };
    let list: Box<[_]> = items.by_ref().take(MAX_SEGMENTS).map(|item| take(item.into_piece())).collect();
    let count = list.len() + items.count();
    if count > MAX_SEGMENTS {
        invalid = Some(InvalidTransfer::Segments { side, count });
    }
    (list, invalid)
}

#[inline]
fn inverted(side: Side, bounds: &Range<u64>) -> Option<InvalidTransfer> {
    let error = InvalidTransfer::Inverted { side, start: bounds.start, end: bounds.end };
    (bounds.start > bounds.end).then_some(error)
}

#[inline]
fn inverted_pair(source: &Region, destination: &Region) -> Option<InvalidTransfer> {
    inverted(Side::Source, &source.bounds()).or_else(|| inverted(Side::Destination, &destination.bounds()))
}

#[inline]
fn too_short(source: &Region, destination: &Region) -> Option<InvalidTransfer> {
    let source_bytes = source.length();
    let destination_bytes = destination.length();
    let error = InvalidTransfer::TooShort { source_bytes, destination_bytes };
    (source_bytes > destination_bytes).then_some(error)
}

fn unequal(one_bytes: u64, other_bytes: u64) -> Option<InvalidTransfer> {
    (one_bytes != other_bytes).then_some(InvalidTransfer::Unequal { one_bytes, other_bytes })
}
