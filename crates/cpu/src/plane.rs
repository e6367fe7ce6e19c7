//! 2-D operations: which pixels come next, and which kernel moves them.
//!
//! ```text
//! shape ─► Grid ─ may the order show? ─ yes ─► runs of pixels in the order of Wicki 2014, listing 3
//!                     no: source and destination apart, no pixel written twice
//!                     ▼
//!          axes and directions turned until the source runs upwards along x
//!                     ├─ destination upwards along x     ─► rows: copied, or colour-keyed
//!                     ├─ destination downwards along x   ─► rows reversed
//!                     ├─ destination upwards along y     ─► bands of tiles: `Tiling`
//!                     └─ neither                         ─► as above
//! ```
//!
//! The bytes done are all the state there is, so everything here is a function of them and of the descriptor. The kernels check
//! that they stay inside.

use std::borrow::Borrow;

use memferry_shm::mapping::Mapping;
use memferry_transfer::geometry::Extent;
use memferry_transfer::{CacheHint, Color24, Copy2d, Count2d, Fill2d, Pattern, PixelSize, Plane, Region};

use super::choice::Manner;
use super::kernels::{self, OutsideRegion, Run};
use super::kernels2d::{self, Rectangle, Stores};
use super::progress::address;
use super::tiling::Tiling;
use super::tuning::LEAST_BYTES;

/// Pictures of so many bytes and more are written past the caches, unless a hint says otherwise. Measured on Zen 4: from here on
/// that is faster even where the caches could hold both sides.
const STREAM_BYTES: u64 = 4 << 20;

/// Copies the pixels after the first `done` bytes, about `chunk_bytes` of them; tells how many bytes they are.
pub(super) fn copy<M: Borrow<Mapping>>(
    source: &Region<M>,
    destination: &Region<M>,
    shape: &Copy2d,
    hint: CacheHint,
    (done, chunk_bytes): (u64, u64),
) -> Result<u64, OutsideRegion> {
    let size = shape.count.pixel;
    let grid = Grid::new(&shape.count, [shape.source, shape.destination]);
    let free = grid.writes_once(1) && are_apart(source, destination, shape);
    let way = free.then(|| grid.upward()).and_then(Way::of);
    let stores = stores(hint, grid.total_bytes());
    let moved = match (way, shape.transparent) {
        (Some(Way::Rows(grid)), None) => grid.runs(done, chunk_bytes, |[from, to], pixels| match stores {
            Stores::Cached => {
                let from = inside(from)?;
                let to = inside(to)?;
                let bytes = pixels * size.bytes();
                kernels::copy(Manner::Cached, source, from, destination, to, bytes)
            }
            Stores::Streaming => kernels2d::copy(size, (source, from), (destination, to), pixels, stores),
        }),
        (Some(Way::Rows(grid)), Some(key)) => grid.runs(done, chunk_bytes, |[from, to], pixels| {
            kernels2d::copy_keyed(size, (source, from), (destination, to), pixels, (key, stores))
        }),
        (Some(Way::Reversed(grid)), None) => grid.runs(done, chunk_bytes, |[from, to], pixels| {
            let lowest = to - i128::from((pixels - 1) * size.bytes());
            kernels2d::reverse(size, (source, from), (destination, lowest), pixels, stores)
        }),
        (Some(Way::Transposed(grid)), None) => {
            let tiling = Tiling::new(&grid, address(destination), stores);
            tiling.chunk(done, chunk_bytes, |tiles| {
                let [from, to] = tiles.first;
                let from = Rectangle { region: source, first: from, pitch: grid.lines[0].down };
                let to = Rectangle { region: destination, first: to, pitch: grid.lines[1].across };
                kernels2d::transpose(size, &from, &to, (tiles.columns, tiles.rows), (tiles.after, stores))
            })
        }
        (_, transparent) => {
            return copy_pixels(source, destination, &grid, (done, chunk_bytes), transparent);
        }
    };
    kernels2d::settle(stores);
    moved
}

/// How whole lines of a picture of so many bytes are written.
fn stores(hint: CacheHint, bytes: u64) -> Stores {
    match hint {
        CacheHint::Keep => Stores::Cached,
        CacheHint::Stream if bytes >= LEAST_BYTES => Stores::Streaming,
        CacheHint::Auto if bytes >= STREAM_BYTES => Stores::Streaming,
        _ => Stores::Cached,
    }
}

/// Copies pixel by pixel, in the order of the grid.
fn copy_pixels<M: Borrow<Mapping>>(
    source: &Region<M>,
    destination: &Region<M>,
    grid: &Grid<2>,
    (done, chunk_bytes): (u64, u64),
    transparent: Option<Color24>,
) -> Result<u64, OutsideRegion> {
    let [from, to] = grid.lines.map(|line| step(line.across));
    let from = from?;
    let to = to?;
    grid.runs(done, chunk_bytes, |[from_first, to_first], pixels| {
        let from = Run { region: source, first: from_first, step: from };
        let to = Run { region: destination, first: to_first, step: to };
        kernels::copy_pixels(grid.pixel, from, to, pixels, transparent)
    })
}

/// Fills the pixels after the first `done` bytes, about `chunk_bytes` of them; tells how many bytes they are.
///
/// Pixels that share no byte become the same in any order.
pub(super) fn fill<M: Borrow<Mapping>>(
    destination: &Region<M>,
    shape: &Fill2d,
    done: u64,
    chunk_bytes: u64,
) -> Result<u64, OutsideRegion> {
    let size = shape.count.pixel;
    let grid = Grid::new(&shape.count, [shape.destination]);
    let grid = if grid.writes_once(0) { grid.upward() } else { grid };
    if grid.is_contiguous(0) {
        let value = shape.color.value();
        let word = match size {
            PixelSize::Bits8 => Pattern::Byte(value as u8),
            PixelSize::Bits16 => Pattern::Half(value as u16),
            PixelSize::Bits32 => Pattern::Color(shape.color),
        }
        .word_bytes();
        return grid.runs(done, chunk_bytes, |[to], pixels| {
            kernels::fill(Manner::Cached, destination, inside(to)?, pixels * size.bytes(), word)
        });
    }
    let step = step(grid.lines[0].across)?;
    grid.runs(done, chunk_bytes, |[first], pixels| {
        kernels::fill_pixels(size, Run { region: destination, first, step }, pixels, shape.color)
    })
}

fn inside(offset: i128) -> Result<u64, OutsideRegion> {
    u64::try_from(offset).map_err(|_| OutsideRegion)
}

fn step(bytes: i128) -> Result<i64, OutsideRegion> {
    i64::try_from(bytes).map_err(|_| OutsideRegion)
}

/// Whether no byte the shape reads lies among those it writes. Then the order of reads and writes shows nowhere.
fn are_apart<M: Borrow<Mapping>>(source: &Region<M>, destination: &Region<M>, shape: &Copy2d) -> bool {
    let range = |region: &Region<M>, plane: &Plane| match plane.extent(&shape.count) {
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

/// How a grid in any order can be moved faster than pixel by pixel: its source lies side by side along x.
enum Way {
    /// So does its destination.
    Rows(Grid<2>),
    /// So does its destination, the other way round.
    Reversed(Grid<2>),
    /// Its destination does along y.
    Transposed(Grid<2>),
}

impl Way {
    fn of(grid: Grid<2>) -> Option<Self> {
        let pixel = grid.pixel_bytes();
        let [source, destination] = grid.lines;
        if source.across != pixel {
            None
        } else if destination.across == pixel {
            Some(Self::Rows(grid))
        } else if destination.across == -pixel {
            Some(Self::Reversed(grid))
        } else if destination.down.abs() == pixel {
            Some(Self::Transposed(if destination.down < 0 { grid.upside_down() } else { grid }))
        } else {
            None
        }
    }
}

/// One side's walk: its start, and the distances between pixels of a row and between rows, bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) start: i128,
    pub(super) across: i128,
    pub(super) down: i128,
}

/// `N` walks side by side over the same number of pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid<const N: usize> {
    pub(super) pixel: PixelSize,
    pub(super) columns: u64,
    pub(super) rows: u64,
    pub(super) lines: [Line; N],
}

/// Farther than this apart, pixels lie in pages of their own: going farther costs no more.
pub(super) const PAGE_BYTES: u128 = 4096;

/// What going `bytes` farther costs, in bytes of a chunk. A chunk is to bound the time until the worker looks at its other
/// clients, and that is pages touched: a page touched for the first time costs the kernel microseconds.
pub(super) fn jump(bytes: i128) -> u64 {
    (bytes.unsigned_abs().min(PAGE_BYTES) / 4) as u64
}

impl<const N: usize> Grid<N> {
    fn new(count: &Count2d, planes: [Plane; N]) -> Self {
        let lines = planes.map(|plane| Line {
            start: i128::from(plane.start),
            across: i128::from(plane.x_step),
            down: plane.row_advance(count),
        });
        let columns = u64::from(count.x_count);
        let rows = u64::from(count.y_count);
        Self { pixel: count.pixel, columns, rows, lines }.merged()
    }

    /// Rows that go on in the rhythm of their pixels on every side are one long row. The order stays as it is.
    fn merged(self) -> Self {
        if self.columns == 1 {
            return Self { columns: self.rows, rows: 1, ..self }
                .with_lines(|line| (line.start, line.down, 0));
        }
        let columns = i128::from(self.columns);
        let goes_on = |line: &Line| line.across.checked_mul(columns) == Some(line.down);
        if self.rows > 1 && self.lines.iter().all(goes_on) {
            return Self { columns: self.columns * self.rows, rows: 1, ..self };
        }
        self
    }

    fn with_lines(self, change: impl Fn(Line) -> (i128, i128, i128)) -> Self {
        let lines = self.lines.map(|line| {
            let (start, across, down) = change(line);
            Line { start, across, down }
        });
        Self { lines, ..self }
    }

    /// The same pixels in an order in which the first line runs upwards along x, if it runs along an axis at all.
    fn upward(&self) -> Self {
        let pixel = self.pixel_bytes();
        let line = self.lines[0];
        let mut grid = *self;
        if line.across.abs() != pixel && line.down.abs() == pixel && self.rows > 1 {
            grid = Self { columns: self.rows, rows: self.columns, ..*self }
                .with_lines(|line| (line.start, line.down, line.across));
        }
        if grid.lines[0].across == -pixel {
            let last = i128::from(grid.columns.saturating_sub(1));
            grid = grid.with_lines(|line| (line.start + last * line.across, -line.across, line.down));
        }
        if grid.lines[0].down < 0 {
            grid = grid.upside_down();
        }
        grid.merged()
    }

    /// The same pixels, the last row first.
    fn upside_down(&self) -> Self {
        let last = i128::from(self.rows.saturating_sub(1));
        self.with_lines(|line| (line.start + last * line.down, line.across, -line.down))
    }

    pub(super) fn pixel_bytes(&self) -> i128 {
        i128::from(self.pixel.bytes())
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.columns * self.rows * self.pixel.bytes()
    }

    fn is_contiguous(&self, line: usize) -> bool {
        self.lines[line].across == self.pixel_bytes()
    }

    /// Whether the line visits no byte twice, as far as is easily seen: along one axis pixels lie side by side or farther
    /// apart, and along the other beyond all of those.
    fn writes_once(&self, line: usize) -> bool {
        let across = self.lines[line].across.abs();
        let down = self.lines[line].down.abs();
        let beyond = |step: i128, count: u64, other: i128| {
            let length = step.checked_mul(i128::from(count));
            step >= self.pixel_bytes() && length.is_some_and(|length| other >= length)
        };
        let single_row = self.rows <= 1 && across >= self.pixel_bytes();
        single_row || beyond(across, self.columns, down) || beyond(down, self.rows, across)
    }

    /// Bytes of a chunk that a pixel is charged: its own where pixels lie side by side, else what going to the next costs.
    fn pixel_cost(&self) -> u64 {
        let of_line = |line: &Line| jump(line.across).max(jump(line.down).div_ceil(self.columns.max(1)));
        self.lines.iter().map(of_line).fold(self.pixel.bytes(), u64::max)
    }

    /// Calls `run` with the offsets and pixels of each run after the first `done` bytes, at most `chunk_bytes` of them
    /// (but at least a pixel); tells how many bytes they are.
    fn runs(
        &self,
        done: u64,
        chunk_bytes: u64,
        mut run: impl FnMut([i128; N], u64) -> Result<(), OutsideRegion>,
    ) -> Result<u64, OutsideRegion> {
        let index = done / self.pixel.bytes();
        let pixels = (self.columns * self.rows).saturating_sub(index);
        let chunk = (chunk_bytes / self.pixel_cost()).max(1).min(pixels);
        let mut row = i128::from(index.checked_div(self.columns).unwrap_or(0));
        let mut x = index.checked_rem(self.columns).unwrap_or(0);
        let mut left = chunk;
        while left > 0 {
            let pixels = left.min(self.columns - x);
            run(self.lines.map(|line| line.start + row * line.down + i128::from(x) * line.across), pixels)?;
            left -= pixels;
            (row, x) = (row + 1, 0);
        }
        Ok(chunk * self.pixel.bytes())
    }
}
