//! Plans an operation as a sequence of hardware transfers.
//!
//! ```text
//! copy     chunks, downward if an upward copy would overwrite its source; at most the distance if both overlap
//! fill     chunks of a fill value, or each byte of the pattern with a stride
//! 2-D      bands of rows, planned by the driver; pixel by pixel where their order is visible
//! lists    parts between segment ends: several as one linked list if there is room, else one copy each
//! device   one synchronized transfer: the device's request line triggers each part
//! ```
//!
//! Each step counts the bytes of the operation that it completes, so that the sum over finished steps is the progress.
//! Steps that belong together count with the last of them. No register is accessed here.

use std::iter::Peekable;

use memferry_drivers::sdma::{
    self, ChannelConfig, Element, Grid, LinearPieces, Piece, PlanePieces, Side, TransferSize, Walk,
};
use memferry_transfer::{Copy2d, Count2d, Fill2d, Operation, Pattern, PixelSize, Plane, Region};

use super::super::memory::BusMemory;
use super::lists::Pieces;
use super::step::{Step, Work, chunks, element, next_chunk};
use super::synchronized;
use memferry_driven_engines::copies::{Chunks, Part};
use memferry_driven_engines::{DeviceMemory, Unplannable, address};

/// The rest of an operation.
#[derive(Debug)]
pub(super) enum Plan {
    Nothing,
    Copy(Chunks),
    Fill(Fill),
    Walks(Box<Walks>),
    Lists(Box<Pieces>),
    Synchronized(Option<Box<ChannelConfig>>),
}

impl Plan {
    /// Plans steps of about `limit` bytes and linked lists of `segments` segments at most.
    pub(super) fn of(
        operation: &Operation<Region<BusMemory>>,
        (limit, segments): (u64, usize),
    ) -> Result<Self, Unplannable> {
        if let Operation::Synchronized { source, destination, shape } = operation {
            let config = synchronized::config(source, destination, shape)?;
            return Ok(Self::Synchronized(config.map(Box::new)));
        }
        operation
            .visit(|_, region, _| if region.memory().is_device() { Err(Unplannable) } else { Ok(()) })?;
        Ok(match operation {
            Operation::Copy { source, destination, length } => {
                let whole =
                    Part { source: address(source), destination: address(destination), bytes: *length };
                Self::Copy(chunks(whole, limit))
            }
            Operation::Fill { destination, length, pattern } => {
                Self::Fill(Fill::new(address(destination), *length, *pattern, limit))
            }
            Operation::Copy2d { source, destination, shape } => {
                Self::Walks(Box::new(Walks::of_copy(address(source), address(destination), shape, limit)?))
            }
            Operation::Fill2d { destination, shape } => {
                Self::Walks(Box::new(Walks::of_fill(address(destination), shape, limit)?))
            }
            Operation::ScatterGather { lists } => Self::Lists(Box::new(Pieces::new(lists, limit, segments))),
            _ => Self::Nothing,
        })
    }

    /// The request line that drives the operation.
    pub(super) fn line(&self) -> Option<u32> {
        match self {
            Self::Synchronized(Some(config)) => config.synchronization.map(|sync| sync.request),
            _ => None,
        }
    }

    pub(super) fn next(&mut self) -> Option<Step> {
        match self {
            Self::Nothing => None,
            Self::Copy(copy) => next_chunk(copy),
            Self::Fill(fill) => fill.next(),
            Self::Walks(walks) => walks.next(),
            Self::Lists(pieces) => pieces.next(),
            Self::Synchronized(config) => {
                let config = config.take()?;
                let bytes = config.size.bytes();
                Some(Step { work: Work::Transfer(config), bytes, whole: true })
            }
        }
    }
}

/// How a pattern is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Method {
    Byte,
    /// Elements that hold the pattern.
    Elements(Element),
    /// Each byte of the pattern separately, with a stride: it is unaligned or wider than the device's fill value.
    Strides,
}

#[derive(Debug)]
pub(super) struct Fill {
    destination: u64,
    length: u64,
    done: u64,
    word: [u8; 4],
    period: u64,
    chunk: u64,
    method: Method,
    /// Index of the next byte of the pattern, with strides.
    phase: u64,
}

impl Fill {
    fn new(destination: u64, length: u64, pattern: Pattern, limit: u64) -> Self {
        let word = pattern.word_bytes();
        let period = pattern.length_bytes();
        let method = if word == [word[0]; 4] {
            Method::Byte
        } else if period == 2 && destination.is_multiple_of(2) {
            Method::Elements(Element::Bits16)
        } else if period == 4 && destination.is_multiple_of(4) && word[3] == 0 {
            Method::Elements(Element::Bits32)
        } else {
            Method::Strides
        };
        // A frame is limited to this many elements, and with strides each pass must cover the whole chunk.
        let chunk = (limit / period).clamp(1, u64::from(TransferSize::ELEMENTS_LIMIT)) * period;
        Self { destination, length, done: 0, word, period, chunk, method, phase: 0 }
    }

    fn next(&mut self) -> Option<Step> {
        let bytes = (self.length - self.done).min(self.chunk);
        if bytes == 0 {
            return None;
        }
        let at = self.destination + self.done;
        match self.method {
            Method::Byte => {
                let piece = LinearPieces::fill_byte(at, bytes).ok()?.next()?;
                let operation = sdma::Operation::fill_byte(self.word[0]);
                let bytes = piece.size.bytes();
                self.done += bytes;
                Some(Step::new(operation, piece, bytes, true))
            }
            Method::Elements(element) => {
                let elements = u32::try_from(bytes / u64::from(element.bytes())).ok()?;
                let color = u32::from_le_bytes(self.word) & if self.period == 2 { 0xffff } else { 0xff_ffff };
                let size = TransferSize { element, elements, frames: 1 };
                let piece = Piece { size, source: Side::memory(at), destination: Side::memory(at) };
                self.done += bytes;
                Some(Step::new(sdma::Operation::Fill { color }, piece, bytes, true))
            }
            Method::Strides => {
                let phase = self.phase;
                let period = self.period;
                let x_count = u32::try_from(bytes / period).ok()?;
                let grid = Grid { element: Element::Bits8, x_count, y_count: 1 };
                let walk = Walk { start: at + phase, step: period as i64, row: 0 };
                let piece = PlanePieces::fill(grid, walk).ok()?.next()?;
                let color = u32::from(self.word[phase as usize]);
                self.phase = (phase + 1) % period;
                let whole = self.phase == 0;
                self.done += if whole { bytes } else { 0 };
                let bytes = if whole { bytes } else { 0 };
                Some(Step::new(sdma::Operation::Fill { color }, piece, bytes, whole))
            }
        }
    }
}

/// A 2-D copy or fill.
#[derive(Debug)]
pub(super) struct Walks {
    count: Count2d,
    source: Option<Walk>,
    destination: Walk,
    operation: sdma::Operation,
    at: (u32, u32),
    /// Width and height of a band in pixels.
    band: (u32, u32),
    /// The rest of the current band, and the band's bytes.
    pieces: Option<(Peekable<PlanePieces>, u64)>,
}

/// The driver's walk over a plane, if its pixels are aligned to their size.
fn walk(base: u64, plane: &Plane, count: &Count2d) -> Result<Walk, Unplannable> {
    let start = base.checked_add(plane.start).ok_or(Unplannable)?;
    let walk = Walk::from_steps(start, plane.x_step, plane.y_step, count.x_count).ok_or(Unplannable)?;
    let size = count.pixel.bytes();
    let strays = |step: i64, steps: u32| steps > 1 && !step.unsigned_abs().is_multiple_of(size);
    let aligned =
        start.is_multiple_of(size) && !strays(walk.step, count.x_count) && !strays(walk.row, count.y_count);
    if aligned { Ok(walk) } else { Err(Unplannable) }
}

impl Walks {
    fn of_copy(source: u64, destination: u64, shape: &Copy2d, limit: u64) -> Result<Self, Unplannable> {
        let operation = match shape.transparent {
            None => sdma::Operation::Copy,
            Some(color) => {
                sdma::Operation::TransparentCopy { color: color.value() & mask(shape.count.pixel) }
            }
        };
        if shape.count.pixels() == 0 {
            return Ok(Self::nothing(shape.count, operation));
        }
        let from = walk(source, &shape.source, &shape.count)?;
        let to = walk(destination, &shape.destination, &shape.count)?;
        let x_count = shape.count.x_count;
        let y_count = shape.count.y_count;
        let grid = Grid { element: element(shape.count.pixel), x_count, y_count };
        let free = sdma::any_order_will_do(&grid, &from, &to);
        let band = if free { band(&shape.count, limit) } else { (1, 1) };
        let source = Some(from);
        let destination = to;
        Ok(Self { count: shape.count, source, destination, operation, at: (0, 0), band, pieces: None })
    }

    fn of_fill(destination: u64, shape: &Fill2d, limit: u64) -> Result<Self, Unplannable> {
        let operation = sdma::Operation::Fill { color: shape.color.value() & mask(shape.count.pixel) };
        if shape.count.pixels() == 0 {
            return Ok(Self::nothing(shape.count, operation));
        }
        let destination = walk(destination, &shape.destination, &shape.count)?;
        let band = band(&shape.count, limit);
        Ok(Self { count: shape.count, source: None, destination, operation, at: (0, 0), band, pieces: None })
    }

    fn nothing(count: Count2d, operation: sdma::Operation) -> Self {
        let destination = Walk { start: 0, step: 0, row: 0 };
        Self {
            count,
            source: None,
            destination,
            operation,
            at: (0, count.y_count),
            band: (1, 1),
            pieces: None,
        }
    }

    fn next(&mut self) -> Option<Step> {
        if self.pieces.is_none() {
            self.pieces = Some(self.next_band()?);
        }
        let (pieces, bytes) = self.pieces.as_mut()?;
        let piece = pieces.next()?;
        let whole = pieces.peek().is_none();
        let bytes = if whole { *bytes } else { 0 };
        if whole {
            self.pieces = None;
        }
        Some(Step::new(self.operation, piece, bytes, whole))
    }

    fn next_band(&mut self) -> Option<(Peekable<PlanePieces>, u64)> {
        let ((x, y), (columns, rows)) = (self.at, self.band);
        if y >= self.count.y_count {
            return None;
        }
        let x_count = columns.min(self.count.x_count - x);
        let y_count = rows.min(self.count.y_count - y);
        let grid = Grid { element: element(self.count.pixel), x_count, y_count };
        let from_here = |walk: &Walk| {
            let offset = i128::from(walk.step) * i128::from(x) + i128::from(walk.row) * i128::from(y);
            Some(Walk { start: u64::try_from(i128::from(walk.start) + offset).ok()?, ..*walk })
        };
        let destination = from_here(&self.destination)?;
        let pieces = match (self.operation, &self.source) {
            (sdma::Operation::Copy, Some(source)) => PlanePieces::copy(grid, from_here(source)?, destination),
            (_, Some(source)) => PlanePieces::transparent_copy(grid, from_here(source)?, destination),
            (_, None) => PlanePieces::fill(grid, destination),
        };
        self.at = if x + x_count < self.count.x_count { (x + x_count, y) } else { (0, y + y_count) };
        let bytes = u64::from(x_count) * u64::from(y_count) * self.count.pixel.bytes();
        Some((pieces.ok()?.peekable(), bytes))
    }
}

/// The bits of a fill value that a pixel holds.
const fn mask(size: PixelSize) -> u32 {
    match size {
        PixelSize::Bits8 => 0xff,
        PixelSize::Bits16 => 0xffff,
        PixelSize::Bits32 => 0xff_ffff,
    }
}

/// Width and height of a band: whole rows, or part of one row.
fn band(count: &Count2d, limit: u64) -> (u32, u32) {
    let pixels = (limit / count.pixel.bytes()).max(1);
    let rows = pixels / u64::from(count.x_count).max(1);
    match rows {
        0 => (u32::try_from(pixels).unwrap_or(u32::MAX), 1),
        rows => (count.x_count, u32::try_from(rows).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_copy_covers_every_byte() {
        // Too many elements for a frame, and prime, so that frames of equal size are impossible.
        let distance = 33_554_467;
        let length = distance + 1000;
        for (source, destination) in [(0, distance), (distance, 0), (0, 2 * length)] {
            let mut copy = chunks(Part { source, destination, bytes: length }, u64::MAX);
            let steps: Vec<Step> = std::iter::from_fn(|| next_chunk(&mut copy)).collect();
            let moved = |step: &Step| match &step.work {
                Work::Transfer(config) => config.size.bytes(),
                Work::List(_) => 0,
            };
            assert!(steps.iter().all(|step| moved(step) == step.bytes), "{source} to {destination}");
            assert_eq!(steps.iter().map(moved).sum::<u64>(), length);
        }
    }

    #[test]
    fn long_fills_cover_every_byte() {
        let length = u64::from(TransferSize::ELEMENTS_LIMIT) * 9;
        for (pattern, destination) in [
            (Pattern::Byte(7), 0x1001),
            (Pattern::Half(0x1234), 0x1000),
            (Pattern::Half(0x1234), 0x1001),
            (Pattern::Word(0x12_3456), 0x1000),
            (Pattern::Word(0x1234_5678), 0x1000),
        ] {
            let whole = length.next_multiple_of(pattern.length_bytes());
            let mut fill = Fill::new(destination, whole, pattern, 1 << 32);
            let mut counted = 0;
            let mut written = 0;
            while let Some(Step { work: Work::Transfer(config), bytes, .. }) = fill.next() {
                counted += bytes;
                written += config.size.bytes();
            }
            assert_eq!((counted, written), (whole, whole), "{pattern:?} at {destination:#x}");
        }
    }
}
