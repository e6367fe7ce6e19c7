//! Which bytes come next: an operation resumed after any number of bytes, in safe code.
//!
//! ```text
//! (operation, bytes done, chunk) ──► Copy     up, or down from the end when that would overwrite bytes still to be read
//!                                    Fill     with the pattern turned to the phase of the chunk's first byte
//!                                    2-D      runs within rows, in the order of Wicki 2014, listing 3
//!                                ──► kernels ──► bytes moved
//! ```
//!
//! The bytes done are all the state there is. Where the outcome cannot differ from that of one pixel at a time, rows go
//! to the contiguous kernels. Two mappings of one memory at different addresses are not recognised as overlapping.

use memferry_memory::mapping::Mapping;
use memferry_transfer::geometry::Extent;
use memferry_transfer::{Copy2d, Count2d, Fill2d, Operation, Pattern, PixelSize, Plane, Region};

use super::kernels::{self, OutsideRegion, Run};

/// Moves the bytes after the first `done` of `operation`, at most `chunk_bytes` (but at least one pixel); tells how many.
pub(super) fn advance(
    operation: &Operation<Region<Mapping>>,
    done: u64,
    chunk_bytes: u64,
) -> Result<u64, OutsideRegion> {
    let length = operation.total_bytes().saturating_sub(done).min(chunk_bytes);
    if length == 0 {
        return Ok(0);
    }
    match operation {
        Operation::Nop => Ok(0),
        Operation::Copy { source, destination, length: total } => {
            let at = if runs_down(source, destination, *total) { total - done - length } else { done };
            kernels::copy(source, at, destination, at, length).map(|()| length)
        }
        Operation::Fill { destination, pattern, .. } => {
            kernels::fill(destination, done, length, phased(*pattern, done)).map(|()| length)
        }
        Operation::Copy2d { source, destination, shape } => {
            copy_2d(source, destination, shape, done, chunk_bytes)
        }
        Operation::Fill2d { destination, shape } => fill_2d(destination, shape, done, chunk_bytes),
    }
}

/// Whether a copy of `length` bytes must run from the end: its destination overlaps the source from above.
fn runs_down(source: &Region<Mapping>, destination: &Region<Mapping>, length: u64) -> bool {
    let (from, to) = (address(source), address(destination));
    from < to && to - from < length
}

/// Where the region lies in this process.
fn address(region: &Region<Mapping>) -> u64 {
    region.memory().pointer().addr() as u64 + region.offset()
}

/// The pattern's bytes as they follow one another from the byte `offset` bytes after its beginning.
fn phased(pattern: Pattern, offset: u64) -> [u8; 4] {
    let mut word = pattern.word_bytes();
    word.rotate_left((offset % 4) as usize);
    word
}

fn copy_2d(
    source: &Region<Mapping>,
    destination: &Region<Mapping>,
    shape: &Copy2d,
    done: u64,
    chunk_bytes: u64,
) -> Result<u64, OutsideRegion> {
    let size = shape.count.pixel;
    let grid = Grid::new(&shape.count, [shape.source, shape.destination]);
    let [from, to] = grid.lines;
    if shape.transparent.is_none() && grid.rows_are_contiguous() && are_apart(source, destination, shape) {
        return grid.runs(done, chunk_bytes, |[from, to], pixels| {
            kernels::copy(source, inside(from)?, destination, inside(to)?, pixels * size.bytes())
        });
    }
    grid.runs(done, chunk_bytes, |[from_first, to_first], pixels| {
        let from = Run { region: source, first: from_first, step: from.x_step };
        let to = Run { region: destination, first: to_first, step: to.x_step };
        kernels::copy_pixels(size, from, to, pixels, shape.transparent)
    })
}

fn fill_2d(
    destination: &Region<Mapping>,
    shape: &Fill2d,
    done: u64,
    chunk_bytes: u64,
) -> Result<u64, OutsideRegion> {
    let size = shape.count.pixel;
    let grid = Grid::new(&shape.count, [shape.destination]);
    let [to] = grid.lines;
    if grid.rows_are_contiguous() {
        let value = shape.color.value();
        let word = match size {
            PixelSize::Bits8 => Pattern::Byte(value as u8),
            PixelSize::Bits16 => Pattern::Half(value as u16),
            PixelSize::Bits32 => Pattern::Color(shape.color),
        }
        .word_bytes();
        return grid.runs(done, chunk_bytes, |[to], pixels| {
            kernels::fill(destination, inside(to)?, pixels * size.bytes(), word)
        });
    }
    grid.runs(done, chunk_bytes, |[first], pixels| {
        kernels::fill_pixels(size, Run { region: destination, first, step: to.x_step }, pixels, shape.color)
    })
}

fn inside(offset: i128) -> Result<u64, OutsideRegion> {
    u64::try_from(offset).map_err(|_| OutsideRegion)
}

/// Whether no byte the shape reads lies among those it writes. Then the order of reads and writes shows nowhere.
fn are_apart(source: &Region<Mapping>, destination: &Region<Mapping>, shape: &Copy2d) -> bool {
    let range = |region, plane: &Plane| match plane.extent(&shape.count) {
        Ok(Some(Extent { first, length })) => {
            let start = u128::from(address(region)) + u128::from(first);
            Some((start, start + u128::from(length)))
        }
        _ => None,
    };
    match (range(source, &shape.source), range(destination, &shape.destination)) {
        (Some((start, end)), Some((other_start, other_end))) => end <= other_start || other_end <= start,
        _ => false,
    }
}

/// One side's walk: its start, and the distances between pixels of a row and between rows, bytes.
#[derive(Clone, Copy)]
struct Line {
    start: i128,
    x_step: i64,
    row_advance: i128,
}

/// `N` walks side by side over the same number of pixels.
struct Grid<const N: usize> {
    pixel_bytes: u64,
    pixels: u64,
    row_pixels: u64,
    lines: [Line; N],
}

/// Farther than this apart, pixels lie in pages of their own: going farther costs no more.
const PAGE_BYTES: u128 = 4096;

impl<const N: usize> Grid<N> {
    /// Rows that go on in the rhythm of their pixels on every side are one long row.
    fn new(count: &Count2d, planes: [Plane; N]) -> Self {
        let single = count.x_count == 1;
        let one_row = single || planes.iter().all(|plane| plane.x_step == plane.y_step);
        let row_pixels = if one_row { count.pixels() } else { u64::from(count.x_count) };
        let lines = planes.map(|plane| Line {
            start: i128::from(plane.start),
            x_step: if single { plane.y_step } else { plane.x_step },
            row_advance: plane.row_advance(count),
        });
        Self { pixel_bytes: count.pixel.bytes(), pixels: count.pixels(), row_pixels, lines }
    }

    fn rows_are_contiguous(&self) -> bool {
        self.lines.iter().all(|line| i128::from(line.x_step) == i128::from(self.pixel_bytes))
    }

    /// Bytes of a chunk that a pixel is charged: its own where pixels lie side by side, else a quarter of the distance to the
    /// next. A chunk is to bound the time until the lane looks at its other clients, and that is pages touched: a page
    /// touched for the first time costs the kernel microseconds.
    fn pixel_cost(&self) -> u64 {
        let jump = |bytes: u128| (bytes.min(PAGE_BYTES) / 4) as u64;
        let of_line = |line: &Line| {
            let within = jump(u128::from(line.x_step.unsigned_abs()));
            let between = jump(line.row_advance.unsigned_abs()).div_ceil(self.row_pixels.max(1));
            within.max(between)
        };
        self.lines.iter().map(of_line).fold(self.pixel_bytes, u64::max)
    }

    /// Calls `run` with the offsets and pixels of each run after the first `done` bytes, at most `chunk_bytes` of them
    /// (but at least a pixel); tells how many bytes they are.
    fn runs(
        &self,
        done: u64,
        chunk_bytes: u64,
        mut run: impl FnMut([i128; N], u64) -> Result<(), OutsideRegion>,
    ) -> Result<u64, OutsideRegion> {
        let index = done / self.pixel_bytes;
        let chunk = (chunk_bytes / self.pixel_cost()).max(1).min(self.pixels.saturating_sub(index));
        let mut row = i128::from(index.checked_div(self.row_pixels).unwrap_or(0));
        let mut x = index.checked_rem(self.row_pixels).unwrap_or(0);
        let mut left = chunk;
        while left > 0 {
            let pixels = left.min(self.row_pixels - x);
            let offsets = self
                .lines
                .map(|line| line.start + row * line.row_advance + i128::from(x) * i128::from(line.x_step));
            run(offsets, pixels)?;
            left -= pixels;
            (row, x) = (row + 1, 0);
        }
        Ok(chunk * self.pixel_bytes)
    }
}
