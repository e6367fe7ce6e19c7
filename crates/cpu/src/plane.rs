//! 2-D operations: chooses the next pixels and the kernel that moves them.
//!
//! ```text
//! shape ─► Grid ─ does order matter? ─ yes ─► runs of pixels in the order of Wicki 2014, listing 3
//!                     no: source and destination apart, no pixel written twice
//!                     ▼
//!          swap and flip axes until the source runs upwards along x
//!                     ├─ destination upwards along x     ─► rows: copied, or colour-keyed
//!                     ├─ destination downwards along x   ─► rows reversed
//!                     ├─ destination upwards along y     ─► bands of tiles: `Tiling`
//!                     └─ neither                         ─► as above
//! ```
//!
//! The count of bytes done is the only state: everything here is a function of it and of the descriptor. The kernels check
//! ranges.

use std::borrow::Borrow;

use memferry_shm::mapping::Mapping;
use memferry_transfer::geometry::Extent;
use memferry_transfer::{CacheHint, Color24, Copy2d, Fill2d, Pattern, PixelSize, Plane, Region};

use super::grid::Grid;
use super::kernels::{self, OutsideRegion, Run};
use super::kernels2d::{self, Rectangle, Stores};
use super::manner::Manner;
use super::state::address;
use super::tiling::Tiling;
use super::tuning::MIN_BYTES;

/// Larger pictures bypass the caches, unless a hint says otherwise. Measured on Zen 4: from here on
/// that is faster even if both sides would fit the caches.
const STREAM_BYTES: u64 = 4 << 20;

/// Copies about `chunk_bytes` of pixels after the first `done` bytes; returns the bytes copied.
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

/// How whole lines of a picture of `bytes` bytes are written.
fn stores(hint: CacheHint, bytes: u64) -> Stores {
    match hint {
        CacheHint::Keep => Stores::Cached,
        CacheHint::Stream if bytes >= MIN_BYTES => Stores::Streaming,
        CacheHint::Auto if bytes >= STREAM_BYTES => Stores::Streaming,
        _ => Stores::Cached,
    }
}

/// Copies pixel by pixel in the grid's order.
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

/// Fills about `chunk_bytes` of pixels after the first `done` bytes; returns the bytes filled.
///
/// Pixels that share no byte may be filled in any order.
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

/// Whether the bytes read and the bytes written are disjoint. Then the order of reads and writes does not matter.
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

/// How a grid whose order does not matter is moved faster than pixel by pixel. The source is contiguous along x.
enum Way {
    /// The destination is contiguous along x.
    Rows(Grid<2>),
    /// The destination is contiguous along x, backwards.
    Reversed(Grid<2>),
    /// The destination is contiguous along y.
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
