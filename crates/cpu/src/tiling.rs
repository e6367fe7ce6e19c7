//! A transposition in tiles: bands of source rows, tile by tile within a band.
//!
//! ```text
//! source                              destination
//! ┌──────┬──────┬─────┐ rows up to    ┌──┬────┬────┐
//! ├──────┼──────┼─────┤ a line        │0 │ 3  │ 6  │  a band is four lines of each destination row, the first one what is
//! │ 3    │ 4    │ 5   │ band          ├──┼────┼────┤  before a line
//! ├──────┼──────┼─────┤               │1 │ 4  │ 7  │
//! ```
//!
//! Which tile comes next is a function of the bytes done, of the descriptor and of where its memory is mapped, which stays. A chunk is tiles of one band,
//! at least one, as many as its bytes pay for. No memory is touched here.

use super::kernels::OutsideRegion;
use super::kernels2d::{DEPTH_BYTES, Stores, WIDTH_BYTES};
use super::plane::{Grid, PAGE_BYTES, jump};

/// Bytes of a cache line.
const LINE: i128 = 64;

/// Adjacent tiles of a band.
pub(super) struct Tiles {
    /// Offsets of their first pixel in the source and in the destination.
    pub(super) first: [i128; 2],
    /// Columns of the source.
    pub(super) columns: u64,
    pub(super) rows: u64,
    /// Bytes from the first pixel in the source to that of the tiles that follow.
    pub(super) after: i128,
}

/// The tiles of a grid whose source runs upwards along x and whose destination does along y.
pub(super) struct Tiling<'a> {
    grid: &'a Grid<2>,
    /// Rows of the first band.
    head: u64,
}

/// Rows that are done together.
#[derive(Clone, Copy)]
struct Band {
    /// Bytes of the bands before it.
    before: u64,
    first_row: u64,
    rows: u64,
}

impl<'a> Tiling<'a> {
    /// Bands end at lines of the destination, whose region lies at `address`, where its rows all begin alike and are streamed.
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

    /// The band that follows after `done` bytes.
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

    /// Calls `transpose` with the tiles after the first `done` bytes, for about `chunk_bytes`; tells how many bytes they are.
    pub(super) fn chunk(
        &self,
        done: u64,
        chunk_bytes: u64,
        transpose: impl FnOnce(&Tiles) -> Result<(), OutsideRegion>,
    ) -> Result<u64, OutsideRegion> {
        let band = self.band(done);
        let column_bytes = band.rows * self.grid.pixel.bytes();
        let first = (done - band.before).checked_div(column_bytes).unwrap_or(0);
        // A chunk ends after whole tiles, so it begins with one.
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
        let offset = |line: super::plane::Line| {
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

    /// What a tile costs beside its bytes: rows of the source and of the destination that go on in another page.
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
