//! Transposes in tiles: bands of source rows, tile by tile within a band.
//!
//! ```text
//! source                              destination
//! ┌──────┬──────┬─────┐ rows up to    ┌──┬────┬────┐
//! ├──────┼──────┼─────┤ a line        │0 │ 3  │ 6  │  a band is four lines of each destination row;
//! │ 3    │ 4    │ 5   │ band          ├──┼────┼────┤  the first band ends at a line boundary
//! ├──────┼──────┼─────┤               │1 │ 4  │ 7  │
//! ```
//!
//! The next tile is a function of the bytes done, the descriptor and the address of its memory, which is fixed. A chunk is
//! one or more tiles of one band, as many as its bytes allow. This module touches no memory.

use super::grid::{Grid, Line, PAGE_BYTES, jump};
use super::kernels::OutsideRegion;
use super::kernels2d::{DEPTH_BYTES, Stores, WIDTH_BYTES};

/// Bytes of a cache line.
const LINE: i128 = 64;

/// Adjacent tiles of a band.
pub(super) struct Tiles {
    /// Offsets of their first pixel in source and destination.
    pub(super) first: [i128; 2],
    /// Columns of the source.
    pub(super) columns: u64,
    pub(super) rows: u64,
    /// Bytes from the first source pixel to that of the tiles that follow.
    pub(super) after: i128,
}

/// The tiles of a grid whose source is contiguous along x and whose destination is contiguous along y.
pub(super) struct Tiling<'a> {
    grid: &'a Grid<2>,
    /// Rows of the first band.
    head: u64,
}

/// Source rows processed together.
#[derive(Clone, Copy)]
struct Band {
    /// Bytes of earlier bands.
    before: u64,
    first_row: u64,
    rows: u64,
}

impl<'a> Tiling<'a> {
    /// Bands end at cache lines of the destination if it is streamed and all its rows have the same alignment.
    pub(super) fn new(grid: &'a Grid<2>, address: u64, stores: Stores) -> Self {
        let head = grid.rows.min(Self::depth(grid));
        let to = grid.lines[1];
        let to_line = (-to.start - i128::from(address)).rem_euclid(LINE);
        let alike = stores == Stores::Streaming && to.across % LINE == 0 && to_line % grid.pixel_bytes() == 0;
        let head = if alike && to_line > 0 { head.min((to_line / grid.pixel_bytes()) as u64) } else { head };
        Self { grid, head }
    }

    /// Rows of a band.
    fn depth(grid: &Grid<2>) -> u64 {
        DEPTH_BYTES as u64 / grid.pixel.bytes()
    }

    /// Columns of a tile.
    fn width(&self) -> u64 {
        WIDTH_BYTES as u64 / self.grid.pixel.bytes()
    }

    /// The band that contains byte `done`.
    fn band(&self, done: u64) -> Band {
        let row_bytes = self.grid.columns * self.grid.pixel.bytes();
        let head_bytes = self.head * row_bytes;
        if done < head_bytes {
            return Band { before: 0, first_row: 0, rows: self.head };
        }
        let depth = Self::depth(self.grid);
        let index = (done - head_bytes).checked_div(depth * row_bytes).unwrap_or(0);
        let first_row = self.head + index * depth;
        let rows = depth.min(self.grid.rows.saturating_sub(first_row));
        Band { before: first_row * row_bytes, first_row, rows }
    }

    /// Calls `transpose` with about `chunk_bytes` of tiles after the first `done` bytes; returns the bytes transposed.
    pub(super) fn chunk(
        &self,
        done: u64,
        chunk_bytes: u64,
        transpose: impl FnOnce(&Tiles) -> Result<(), OutsideRegion>,
    ) -> Result<u64, OutsideRegion> {
        let band = self.band(done);
        let column_bytes = band.rows * self.grid.pixel.bytes();
        let first = (done - band.before).checked_div(column_bytes).unwrap_or(0);
        // Chunks end after whole tiles, so this one begins with one.
        let first = first / self.width() * self.width();
        let mut columns = 0;
        let mut cost = 0;
        while first + columns < self.grid.columns {
            let tile = self.width().min(self.grid.columns - first - columns);
            cost += tile * column_bytes + self.new_pages(&band, first + columns, tile);
            if columns > 0 && cost > chunk_bytes {
                break;
            }
            columns += tile;
        }
        let offset = |line: Line| {
            line.start + i128::from(band.first_row) * line.down + i128::from(first) * line.across
        };
        let across = i128::from(columns) * self.grid.pixel_bytes();
        let ends = first + columns == self.grid.columns;
        let down =
            self.grid.lines[0].down * i128::from(band.rows) - i128::from(first) * self.grid.pixel_bytes();
        let after = if ends { down } else { across };
        transpose(&Tiles { first: self.grid.lines.map(offset), columns, rows: band.rows, after })?;
        Ok(columns * column_bytes)
    }

    /// Cost of a tile besides its bytes: rows of source and destination that enter another page.
    fn new_pages(&self, band: &Band, column: u64, columns: u64) -> u64 {
        let [from, to] = self.grid.lines;
        let page = |offset: i128| offset.div_euclid(PAGE_BYTES as i128);
        let enters = |start: i128, at: u64, count: u64| {
            let first = i128::from(at);
            let last = i128::from(at + count) - 1;
            let [before, last] = [first - 1, last].map(|index| page(start + index * self.grid.pixel_bytes()));
            at == 0 || before != last
        };
        let of_source = if enters(from.start, column, columns) { band.rows * jump(from.down) } else { 0 };
        let first_row = band.first_row;
        let of_destination =
            if enters(to.start, first_row, band.rows) { columns * jump(to.across) } else { 0 };
        of_source + of_destination
    }
}
