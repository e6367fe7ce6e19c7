//! A request as the jobs of one stream, in order.
//!
//! ```text
//! copy, list ─► pairs of places ─┬─ one side VRAM, apart ──► cut at PART_BYTES ─┐
//!                                └─ both in host memory, or on each other ──►   ├─► parts
//!                                     through a buffer in VRAM, in an order     │
//!                                     that overwrites nothing before it is read │
//! 2-D ─┬─ rows at distances that the driver takes ─► bands of rows ─────────────┤
//!      └─ other walks, if they are short ─► row by row, or pixel by pixel ──────┘
//! ```
//!
//! Parts are short, so that a request can be cancelled between them, and shows how far it has come.

use std::collections::VecDeque;

use memferry_engine::{Mapping, Operation, Pattern, Region};
use memferry_transfer::{Color24, Copy2d, Count2d, Fill2d, Lists, PixelSize, Plane, Segment};

use crate::gather;
use crate::job::{Job, Rows};
use crate::pieces::Pieces;
use crate::place::Place;

/// Bytes of a part, unless a row is longer.
const PART_BYTES: u64 = 32 << 20;
/// Pieces of a part: what one launch of the gather kernel takes.
const PART_PIECES: usize = gather::TABLE_PIECES;
/// Rows or pixels that are moved one by one.
const MOST_RUNS: u64 = 1 << 14;

/// One job of a request, and the bytes of the request that it does.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) job: Job,
    pub(crate) bytes: u64,
}

/// Which bytes of the request are done after some parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Upward,
    /// The last ones: it goes from the end to the beginning.
    Downward,
    /// Only of lists and 2-D requests, whose progress clients are not shown.
    Unclear,
}

#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) parts: VecDeque<Part>,
    pub(crate) direction: Direction,
}

/// Divides a request. `whole` finds the place of a whole memory; `buffer` is VRAM of the stream that the parts go to.
///
/// `None`: the device cannot do it, or not with less than a call for each of very many pieces.
pub(crate) fn divide(
    operation: &Operation<Region<Mapping>>,
    mut whole: impl FnMut(&Mapping) -> Option<Place>,
    buffer: &Place,
) -> Option<Parts> {
    let mut builder = Builder::new(buffer);
    let mut place = |region: &Region<Mapping>| part(&whole(region.memory())?, region);
    match operation {
        Operation::Copy { source, destination, .. } => {
            let from = place(source)?;
            let to = place(destination)?;
            builder.add(&from, &to)?;
            if builder.direction == Direction::Unclear {
                let is_downward = to.is_after(&from);
                builder.direction = if is_downward { Direction::Downward } else { Direction::Upward };
            }
        }
        Operation::ScatterGather { lists } => builder.add_lists(lists, whole)?,
        Operation::Fill { destination, pattern, .. } => builder.fill(&place(destination)?, *pattern)?,
        Operation::Copy2d { source, destination, shape } => {
            builder.copy_2d(&place(source)?, &place(destination)?, shape)?;
        }
        Operation::Fill2d { destination, shape } => builder.fill_2d(&place(destination)?, shape)?,
        _ => return None,
    }
    Some(builder.finish())
}

struct Builder<'a> {
    buffer: &'a Place,
    parts: VecDeque<Part>,
    /// Of the part that is being made.
    pieces: Pieces,
    bytes: u64,
    direction: Direction,
}

impl<'a> Builder<'a> {
    fn new(buffer: &'a Place) -> Self {
        let direction = Direction::Upward;
        Self { buffer, parts: VecDeque::new(), pieces: Pieces::default(), bytes: 0, direction }
    }

    fn finish(mut self) -> Parts {
        self.end_part();
        Parts { parts: self.parts, direction: self.direction }
    }

    fn end_part(&mut self) {
        let pieces = std::mem::take(&mut self.pieces);
        let bytes = std::mem::take(&mut self.bytes);
        if pieces.count() > 0 {
            self.parts.push_back(Part { job: Job::Scatter(pieces), bytes });
        }
    }

    /// Counts what was pushed, and ends the part if that is enough.
    fn pushed(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= PART_BYTES || self.pieces.count() >= PART_PIECES {
            self.end_part();
        }
    }

    /// Copies from one place to another of the same length, after all that was added before.
    fn add(&mut self, from: &Place, to: &Place) -> Option<()> {
        if from.length_bytes() != to.length_bytes() {
            return None;
        }
        self.add_part((from, 0), (to, 0), from.length_bytes())
    }

    /// The same with so many bytes at offsets, which are inside the places.
    fn add_part(
        &mut self,
        (from, from_at): (&Place, u64),
        (to, to_at): (&Place, u64),
        length: u64,
    ) -> Option<()> {
        let is_same = from.is_same_memory(to);
        if is_same || (!from.is_vram() && !to.is_vram()) {
            let from = from.part(from_at..from_at + length)?;
            let to = to.part(to_at..to_at + length)?;
            let overlap = from.overlaps(&to);
            if overlap {
                self.direction = Direction::Unclear;
            }
            if overlap || !from.is_vram() {
                return self.add_by_buffer(&from, &to);
            }
        }
        if to.is_read_only() {
            return None;
        }
        let mut at = 0;
        while at < length {
            let bytes = (length - at).min(PART_BYTES - self.bytes);
            self.pieces.push_part((from, from_at + at), (to, to_at + at), bytes);
            self.pushed(bytes);
            at += bytes;
        }
        Some(())
    }

    /// Begins at the end if the destination is the later of two places that lie on each other.
    fn add_by_buffer(&mut self, from: &Place, to: &Place) -> Option<()> {
        let step = self.buffer.length_bytes();
        let length = from.length_bytes();
        let count = length.div_ceil(step);
        let is_downward = from.overlaps(to) && to.is_after(from);
        for number in 0..count {
            let at = step * if is_downward { count - 1 - number } else { number };
            let end = length.min(at + step);
            let middle = self.buffer.part(0..end - at)?;
            self.pieces.push(&from.part(at..end)?, &middle);
            self.pieces.push(&middle, &to.part(at..end)?);
            self.pushed(end - at);
        }
        Some(())
    }

    /// A piece ends where a segment of either list ends.
    fn add_lists(
        &mut self,
        lists: &Lists<Region<Mapping>>,
        mut whole: impl FnMut(&Mapping) -> Option<Place>,
    ) -> Option<()> {
        let mut sources = Segments::new(&lists.source);
        let mut destinations = Segments::new(&lists.destination);
        let mut left: u64 = lists.source.iter().map(|segment| segment.length).sum();
        while left > 0 {
            let length = sources.left(&mut whole)?.min(destinations.left(&mut whole)?);
            self.add_part(sources.take(length)?, destinations.take(length)?, length)?;
            left -= length;
        }
        Some(())
    }

    fn fill(&mut self, to: &Place, pattern: Pattern) -> Option<()> {
        if !to.is_vram() {
            return None;
        }
        // Each part begins with the pattern's first byte.
        const { assert!(PART_BYTES.is_multiple_of(4)) };
        let mut at = 0;
        while at < to.length_bytes() {
            let end = to.length_bytes().min(at + PART_BYTES);
            let job = Job::Fill { to: to.part(at..end)?, pattern };
            self.parts.push_back(Part { job, bytes: end - at });
            at = end;
        }
        Some(())
    }

    fn copy_2d(&mut self, from: &Place, to: &Place, shape: &Copy2d) -> Option<()> {
        let Copy2d { count, source, destination, transparent: None } = *shape else { return None };
        if count.pixels() == 0 {
            return Some(());
        }
        let has_vram = from.is_vram() || to.is_vram();
        let walks = [Walk::new(source, &count), Walk::new(destination, &count)];
        if let [Some(from_walk), Some(to_walk)] = walks
            && from_walk.is_backward == to_walk.is_backward
        {
            let is_plain = from_walk.is_forward_by(0) && to_walk.is_forward_by(to_walk.row_bytes)
                || from_walk.is_upward_by(0) && to_walk.is_upward_by(to_walk.row_bytes);
            if is_plain && has_vram && !from.overlaps(to) {
                for rows in bands(&count, to_walk.row_bytes) {
                    let bytes = rows.count() * to_walk.row_bytes;
                    let job = Job::Copy2d {
                        from: from_walk.rows(from, rows)?,
                        to: to_walk.rows(to, rows)?,
                        row_bytes: to_walk.row_bytes,
                        rows: rows.count(),
                    };
                    self.parts.push_back(Part { job, bytes });
                }
                return Some(());
            }
            return few_runs(u64::from(count.y_count))?
                .try_for_each(|row| self.add(&from_walk.row(from, row)?, &to_walk.row(to, row)?));
        }
        few_runs(count.pixels())?.try_for_each(|number| {
            self.add(&pixel(from, source, &count, number)?, &pixel(to, destination, &count, number)?)
        })
    }

    fn fill_2d(&mut self, to: &Place, shape: &Fill2d) -> Option<()> {
        let Fill2d { count, destination, color } = *shape;
        if count.pixels() == 0 {
            return Some(());
        }
        if !to.is_vram() {
            return None;
        }
        let pattern = pattern(count.pixel, color);
        let mut single = |to: Option<Place>| {
            let to = to?;
            let bytes = to.length_bytes();
            self.parts.push_back(Part { job: Job::Fill { to, pattern }, bytes });
            Some(())
        };
        let Some(walk) = Walk::new(destination, &count) else {
            return few_runs(count.pixels())?
                .try_for_each(|number| single(pixel(to, destination, &count, number)));
        };
        if !walk.is_forward_by(walk.row_bytes) && !walk.is_upward_by(walk.row_bytes) {
            return few_runs(u64::from(count.y_count))?.try_for_each(|row| single(walk.row(to, row)));
        }
        for rows in bands(&count, walk.row_bytes) {
            let bytes = rows.count() * walk.row_bytes;
            let row_bytes = walk.row_bytes;
            let job = Job::Fill2d { to: walk.rows(to, rows)?, pattern, row_bytes, rows: rows.count() };
            self.parts.push_back(Part { job, bytes });
        }
        Some(())
    }
}

/// A region of its memory.
fn part(whole: &Place, region: &Region<Mapping>) -> Option<Place> {
    whole.part(region.offset()..region.offset().checked_add(region.length())?)
}

/// One list of a request, as it is taken piece by piece.
struct Segments<'a> {
    rest: std::slice::Iter<'a, Segment<Region<Mapping>>>,
    /// The memory of the last segment, which is often also that of the next one.
    memory: Option<(&'a Mapping, Place)>,
    /// Of the next byte.
    offset: u64,
    /// Bytes of the segment that follow.
    left: u64,
}

impl<'a> Segments<'a> {
    fn new(list: &'a [Segment<Region<Mapping>>]) -> Self {
        Self { rest: list.iter(), memory: None, offset: 0, left: 0 }
    }

    /// How many bytes follow in one segment; `None` if nothing does, or its memory is not here.
    fn left(&mut self, whole: &mut impl FnMut(&Mapping) -> Option<Place>) -> Option<u64> {
        while self.left == 0 {
            let Segment { place: region, length } = self.rest.next()?;
            let mapping = region.memory();
            let place = match &self.memory {
                Some((last, place)) if last.is(mapping) => place,
                _ => &self.memory.insert((mapping, whole(mapping)?)).1,
            };
            if region.offset().checked_add(*length)? > place.length_bytes() {
                return None;
            }
            self.offset = region.offset();
            self.left = *length;
        }
        Some(self.left)
    }

    /// The place of so many bytes, at most those that [follow](Self::left), as a memory and an offset in it.
    fn take(&mut self, length: u64) -> Option<(&Place, u64)> {
        let offset = self.offset;
        self.offset += length;
        self.left -= length;
        Some((&self.memory.as_ref()?.1, offset))
    }
}

/// The colour as pixels of this size.
fn pattern(pixel: PixelSize, color: Color24) -> Pattern {
    match pixel {
        PixelSize::Bits8 => Pattern::Byte(color.value() as u8),
        PixelSize::Bits16 => Pattern::Half(color.value() as u16),
        PixelSize::Bits32 => Pattern::Color(color),
    }
}

/// The numbers of rows or pixels to be moved one by one; `None` if they are too many.
fn few_runs(count: u64) -> Option<std::ops::Range<u64>> {
    (count <= MOST_RUNS).then_some(0..count)
}

/// A pixel of a walk.
fn pixel(place: &Place, plane: Plane, count: &Count2d, number: u64) -> Option<Place> {
    let width = u64::from(count.x_count);
    let offset = plane.offset_of(count, (number % width) as u32, (number / width) as u32);
    let start = u64::try_from(offset).ok()?;
    place.part(start..start.checked_add(count.pixel.bytes())?)
}

/// Rows from one number up to another.
#[derive(Clone, Copy)]
struct Band {
    first: u64,
    end: u64,
}

impl Band {
    fn count(self) -> u64 {
        self.end - self.first
    }
}

fn bands(count: &Count2d, row_bytes: u64) -> impl Iterator<Item = Band> {
    let rows = u64::from(count.y_count);
    let step = (PART_BYTES / row_bytes).max(1);
    (0..rows.div_ceil(step)).map(move |band| {
        let first = band * step;
        Band { first, end: rows.min(first + step) }
    })
}

/// A walk whose rows are consecutive bytes.
#[derive(Clone, Copy)]
struct Walk {
    /// Offset of the lowest byte of the first row.
    first: i128,
    /// From one row to the next.
    distance: i128,
    row_bytes: u64,
    /// Its pixels come from the end of each row.
    is_backward: bool,
}

impl Walk {
    fn new(plane: Plane, count: &Count2d) -> Option<Self> {
        let pixel = i128::from(count.pixel.bytes());
        let row_bytes = u64::from(count.x_count) * count.pixel.bytes();
        let step = i128::from(plane.x_step);
        let is_backward = count.x_count > 1 && step == -pixel;
        if count.x_count > 1 && step.abs() != pixel {
            return None;
        }
        let before = if is_backward { i128::from(row_bytes) - pixel } else { 0 };
        let distance = if count.y_count > 1 { plane.row_advance(count) } else { i128::from(row_bytes) };
        Some(Self { first: i128::from(plane.start) - before, distance, row_bytes, is_backward })
    }

    /// Whether each row lies at least so many bytes after the one before.
    fn is_forward_by(&self, bytes: u64) -> bool {
        self.distance >= i128::from(bytes)
    }

    /// Whether each row lies at least so many bytes before the one before.
    fn is_upward_by(&self, bytes: u64) -> bool {
        self.distance <= -i128::from(bytes)
    }

    fn row(&self, place: &Place, row: u64) -> Option<Place> {
        let start = u64::try_from(self.first + i128::from(row) * self.distance).ok()?;
        place.part(start..start.checked_add(self.row_bytes)?)
    }

    /// Rows as a job takes them, the lowest one first.
    fn rows(&self, place: &Place, Band { first, end }: Band) -> Option<Rows> {
        let offset = |row: u64| self.first + i128::from(row) * self.distance;
        let (lowest, highest) = if self.distance < 0 { (end - 1, first) } else { (first, end - 1) };
        let start = u64::try_from(offset(lowest)).ok()?;
        let last = u64::try_from(offset(highest)).ok()?;
        let place = place.part(start..last.checked_add(self.row_bytes)?)?;
        Some(Rows { place, pitch_bytes: u64::try_from(self.distance.abs()).ok()? })
    }
}
