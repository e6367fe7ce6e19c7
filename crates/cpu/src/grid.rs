//! The pixels of a 2-D operation as a grid: the same count of rows and columns on each side, with its own distances.
//!
//! Reorders and merges grids whose order does not matter, and cuts them into runs. Touches no memory.

use memferry_transfer::{Count2d, PixelSize, Plane};

use super::kernels::OutsideRegion;

/// One side of a grid: its start, and the distances in bytes between pixels and between rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) start: i128,
    pub(super) across: i128,
    pub(super) down: i128,
}

/// `N` sides with the same number of pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid<const N: usize> {
    pub(super) pixel: PixelSize,
    pub(super) columns: u64,
    pub(super) rows: u64,
    pub(super) lines: [Line; N],
}

/// Pixels farther apart than this lie in different pages; larger distances cost no more.
pub(super) const PAGE_BYTES: u128 = 4096;

/// Cost of a step of `bytes`, in bytes of a chunk. A chunk bounds the time until the worker polls its other
/// clients, which depends on pages touched: the first touch of a page costs microseconds in the kernel.
pub(super) fn jump(bytes: i128) -> u64 {
    (bytes.unsigned_abs().min(PAGE_BYTES) / 4) as u64
}

impl<const N: usize> Grid<N> {
    pub(super) fn new(count: &Count2d, planes: [Plane; N]) -> Self {
        let lines = planes.map(|plane| Line {
            start: i128::from(plane.start),
            across: i128::from(plane.x_step),
            down: plane.row_advance(count),
        });
        let columns = u64::from(count.x_count);
        let rows = u64::from(count.y_count);
        Self { pixel: count.pixel, columns, rows, lines }.merged()
    }

    /// Joins rows that continue each other on every side into one row. Keeps the order.
    fn merged(self) -> Self {
        if self.columns == 1 {
            return Self { columns: self.rows, rows: 1, ..self }
                .with_lines(|line| (line.start, line.down, 0));
        }
        let columns = i128::from(self.columns);
        let continues = |line: &Line| line.across.checked_mul(columns) == Some(line.down);
        if self.rows > 1 && self.lines.iter().all(continues) {
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

    /// The same pixels, ordered so that the first side runs upwards along x, if it runs along an axis at all.
    pub(super) fn upward(&self) -> Self {
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

    /// The same pixels, last row first.
    pub(super) fn upside_down(&self) -> Self {
        let last = i128::from(self.rows.saturating_sub(1));
        self.with_lines(|line| (line.start + last * line.down, line.across, -line.down))
    }

    pub(super) fn pixel_bytes(&self) -> i128 {
        i128::from(self.pixel.bytes())
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.columns * self.rows * self.pixel.bytes()
    }

    pub(super) fn is_contiguous(&self, line: usize) -> bool {
        self.lines[line].across == self.pixel_bytes()
    }

    /// Whether the side visits no byte twice, by a sufficient condition: pixels along one axis do not overlap,
    /// and each step along the other axis passes all of them.
    pub(super) fn writes_once(&self, line: usize) -> bool {
        let across = self.lines[line].across.abs();
        let down = self.lines[line].down.abs();
        let beyond = |step: i128, count: u64, other: i128| {
            let length = step.checked_mul(i128::from(count));
            step >= self.pixel_bytes() && length.is_some_and(|length| other >= length)
        };
        let single_row = self.rows <= 1 && across >= self.pixel_bytes();
        single_row || beyond(across, self.columns, down) || beyond(down, self.rows, across)
    }

    /// Bytes of a chunk charged per pixel: its size if pixels are contiguous, else the cost of the step to the next.
    fn pixel_cost(&self) -> u64 {
        let of_line = |line: &Line| jump(line.across).max(jump(line.down).div_ceil(self.columns.max(1)));
        self.lines.iter().map(of_line).fold(self.pixel.bytes(), u64::max)
    }

    /// Calls `run` with the offsets and length of each run after the first `done` bytes, for at most `chunk_bytes`
    /// (but at least one pixel); returns the bytes visited.
    pub(super) fn runs(
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
