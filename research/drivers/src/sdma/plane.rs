//! Plans 2-D transfers: converts a walk in pixels into the device's indexes, in one or more hardware transfers.
//!
//! ```text
//! x_modify, y_modify (pixels) ── Walk::from_modify ──► Walk (bytes) ─┐
//! Grid: element, x_count, y_count ───────────────────────────────────┴─ PlanePieces ──► Piece, Piece, ...
//!
//! elements of a frame along x, frames along y      if the steps along x fit the 16-bit element indexes
//! elements of a frame along y, frames along x      if the steps along y fit them, and the order does not matter
//! frames of one element, one transfer per row      otherwise: the frame index has 32 bits
//! ```
//!
//! The formulas are those of section 3.4 of Wicki's thesis: the device counts indexes in bytes from the last byte of an
//! element. The caller has already checked that the walk stays in its memory; this module only checks for 32 bits.

use thiserror::Error;

use super::config::{Addressing, Element, Piece, Port, Side, TransferSize};

/// The device's index for a modifier in pixels: `(modify - 1) * size + 1` (paper, section 3.4).
///
/// ```
/// use memferry_drivers::sdma::{Element, index_of_modify};
/// assert_eq!(index_of_modify(1, Element::Bits32), 1); // the next pixel
/// assert_eq!(index_of_modify(-1, Element::Bits32), -7); // the one before
/// ```
pub const fn index_of_modify(modify: i64, element: Element) -> i64 {
    index_of_step(modify as i128 * element.bytes() as i128, element) as i64
}

/// The device's index for a step in bytes.
const fn index_of_step(step: i128, element: Element) -> i128 {
    step - element.bytes() as i128 + 1
}

/// Size and number of the pixels of a 2-D transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Size of a pixel.
    pub element: Element,
    /// Pixels of a row.
    pub x_count: u32,
    /// Number of rows in the grid.
    pub y_count: u32,
}

/// Sequence of pixel addresses on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Physical address of the first pixel.
    pub start: u64,
    /// Distance in bytes from a pixel to the next one of its row.
    pub step: i64,
    /// Distance in bytes from the first pixel of a row to the first pixel of the next row.
    pub row: i64,
}

impl Walk {
    /// The walk that adds `y_step` bytes after the last pixel of a row and `x_step` after every other pixel (listing 3 of
    /// the thesis, in bytes). `None` when the length of a row exceeds 64 bits.
    pub fn from_steps(start: u64, x_step: i64, y_step: i64, x_count: u32) -> Option<Self> {
        let along = x_step.checked_mul(i64::from(x_count).saturating_sub(1))?;
        Some(Self { start, step: x_step, row: along.checked_add(y_step)? })
    }

    /// The walk with modifiers in pixels, as in the thesis. `None` when the length of a row exceeds 64 bits.
    pub fn from_modify(start: u64, x_modify: i32, y_modify: i32, grid: &Grid) -> Option<Self> {
        let size = i64::from(grid.element.bytes());
        Self::from_steps(start, i64::from(x_modify) * size, i64::from(y_modify) * size, grid.x_count)
    }
}

/// Reason why a 2-D transfer cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlaneError {
    #[error("a transfer of {x_count} by {y_count} pixels is empty: give it at least one pixel")]
    NoPixels {
        /// Pixels of a row.
        x_count: u32,
        /// Number of rows in the grid.
        y_count: u32,
    },
    /// A pixel's address is not a multiple of its size.
    #[error(
        "the {port} walk misaligns pixels of {bytes} bytes: use smaller pixels, or align start and pitch"
    )]
    Misaligned {
        port: Port,
        /// Size of a pixel in bytes.
        bytes: u32,
    },
    /// The walk leaves the device's address space.
    #[error("the {port} walk covers {first:#x} to {end:#x}, outside 32 bits: check start, steps and counts")]
    LeavesAddressSpace {
        port: Port,
        /// The lowest address, which may be negative.
        first: i128,
        /// The end of the highest pixel.
        end: i128,
    },
}

/// Number of pixels in one direction, and the distance in bytes between them on each side.
#[derive(Clone, Copy, Debug)]
struct Axis {
    count: u64,
    source: i128,
    destination: i128,
}

impl Axis {
    const POINT: Self = Self { count: 1, source: 0, destination: 0 };

    const fn stride(&self, port: Port) -> i128 {
        match port {
            Port::Source => self.source,
            Port::Destination => self.destination,
        }
    }

    fn all(&self, test: impl Fn(i128) -> bool) -> bool {
        self.count == 1 || (test(self.source) && test(self.destination))
    }
}

/// Iterator over the hardware transfers of a 2-D transfer.
#[derive(Clone, Debug)]
pub struct PlanePieces {
    element: Element,
    /// Start addresses of source and destination.
    start: [u64; 2],
    /// Along a frame, from frame to frame, from transfer to transfer.
    axes: [Axis; 3],
    /// Position of the next piece on each axis. The last one equals its axis's count at the end.
    at: [u64; 3],
}

impl PlanePieces {
    /// Plans a copy. When the pixels of a row are contiguous on both sides, misaligned pixels are moved in smaller
    /// elements.
    ///
    /// # Errors
    /// [`PlaneError`] when there are no pixels, a pixel is misaligned, or a side exceeds the device's address space.
    pub fn copy(grid: Grid, source: Walk, destination: Walk) -> Result<Self, PlaneError> {
        Self::plan(grid, source, destination, true)
    }

    /// Plans a transparent copy. It compares whole pixels and does not split them.
    ///
    /// # Errors
    /// The errors of [`PlanePieces::copy`].
    pub fn transparent_copy(grid: Grid, source: Walk, destination: Walk) -> Result<Self, PlaneError> {
        Self::plan(grid, source, destination, false)
    }

    /// Plans a fill. The sources of its pieces are meaningless.
    ///
    /// # Errors
    /// The errors of [`PlanePieces::copy`].
    pub fn fill(grid: Grid, destination: Walk) -> Result<Self, PlaneError> {
        Self::plan(grid, destination, destination, false)
    }

    fn plan(grid: Grid, source: Walk, destination: Walk, divisible: bool) -> Result<Self, PlaneError> {
        let x_count = u64::from(grid.x_count);
        let y_count = u64::from(grid.y_count);
        if x_count == 0 || y_count == 0 {
            return Err(PlaneError::NoPixels { x_count: grid.x_count, y_count: grid.y_count });
        }
        let mut element = grid.element;
        let size = i128::from(element.bytes());
        let [mut x, y] = axes(&grid, &source, &destination);
        let start = [source.start, destination.start];
        check_reach(&x, &y, start, size)?;
        if divisible && x.all(|step| step == size) {
            let rows = if y_count > 1 { source.row | destination.row } else { 0 };
            let bits = source.start | destination.start | rows as u64;
            element = Element::largest_dividing(bits | u64::from(element.bytes()));
            let part = u64::from(element.bytes());
            x = Axis { count: x_count * size as u64 / part, source: part.into(), destination: part.into() };
        }
        check_alignment(&x, &y, start, element)?;
        let any_order = source == destination || order_is_free(&x, &y, start, element);
        Ok(Self { element, start, axes: arrange(x, y, element, any_order), at: [0; 3] })
    }
}

/// Checks that both walks stay within 32 bits, which also keeps later arithmetic from overflowing.
fn check_reach(x: &Axis, y: &Axis, start: [u64; 2], size: i128) -> Result<(), PlaneError> {
    for (port, start) in [Port::Source, Port::Destination].into_iter().zip(start) {
        let (first, end) = reach(x, y, port, start, size);
        if first < 0 || end > 1 << 32 {
            return Err(PlaneError::LeavesAddressSpace { port, first, end });
        }
    }
    Ok(())
}

/// The lowest address of a walk and the end of its highest pixel.
fn reach(x: &Axis, y: &Axis, port: Port, start: u64, size: i128) -> (i128, i128) {
    let along = x.stride(port) * (i128::from(x.count) - 1);
    let down = y.stride(port) * (i128::from(y.count) - 1);
    let start = i128::from(start);
    (start + along.min(0) + down.min(0), start + along.max(0) + down.max(0) + size)
}

fn check_alignment(x: &Axis, y: &Axis, start: [u64; 2], element: Element) -> Result<(), PlaneError> {
    let bytes = element.bytes();
    for (port, start) in [Port::Source, Port::Destination].into_iter().zip(start) {
        let is_misaligned = |axis: &Axis| axis.count > 1 && axis.stride(port) % i128::from(bytes) != 0;
        if !start.is_multiple_of(u64::from(bytes)) || is_misaligned(x) || is_misaligned(y) {
            return Err(PlaneError::Misaligned { port, bytes });
        }
    }
    Ok(())
}

/// The axes of a grid: along a row, and from row to row.
fn axes(grid: &Grid, source: &Walk, destination: &Walk) -> [Axis; 2] {
    let axis = |count: u32, source: i64, destination: i64| Axis {
        count: count.into(),
        source: source.into(),
        destination: destination.into(),
    };
    [axis(grid.x_count, source.step, destination.step), axis(grid.y_count, source.row, destination.row)]
}

/// Whether the pixels of a copy may be moved in any order: no destination pixel is written twice, and the address ranges
/// of both sides are disjoint. A simple check that may return `false` where any order would do.
pub fn any_order_will_do(grid: &Grid, source: &Walk, destination: &Walk) -> bool {
    let [x, y] = axes(grid, source, destination);
    order_is_free(&x, &y, [source.start, destination.start], grid.element)
}

fn order_is_free(x: &Axis, y: &Axis, start: [u64; 2], element: Element) -> bool {
    let size = i128::from(element.bytes());
    let (from, from_end) = reach(x, y, Port::Source, start[0], size);
    let (to, to_end) = reach(x, y, Port::Destination, start[1], size);
    let sides_disjoint = from_end <= to || to_end <= from;
    let pixels_disjoint = |inner: &Axis, outer: &Axis| {
        let inner_span = inner.destination.abs() * (i128::from(inner.count) - 1) + size;
        let inner_disjoint = inner.count == 1 || inner.destination.abs() >= size;
        inner_disjoint && (outer.count == 1 || outer.destination.abs() >= inner_span)
    };
    sides_disjoint && (pixels_disjoint(x, y) || pixels_disjoint(y, x))
}

/// Assigns the axes to elements of a frame, frames of a transfer, and transfers.
fn arrange(x: Axis, y: Axis, element: Element, any_order: bool) -> [Axis; 3] {
    // Rows that continue each other with the same step are one long row.
    let rows_adjoin = |stride: fn(&Axis) -> i128| stride(&y) == stride(&x) * i128::from(x.count);
    if y.count > 1 && rows_adjoin(|axis| axis.source) && rows_adjoin(|axis| axis.destination) {
        return arrange(Axis { count: x.count * y.count, ..x }, Axis::POINT, element, any_order);
    }
    if x.count == 1 && y.count > 1 {
        return arrange(y, Axis::POINT, element, any_order);
    }
    let fits_16_bits = |step: i128| i16::try_from(index_of_step(step, element)).is_ok();
    let fits_32_bits = |step: i128| i32::try_from(index_of_step(step, element)).is_ok();
    if x.all(fits_16_bits) {
        [x, y, Axis::POINT]
    } else if any_order && y.all(fits_16_bits) {
        [y, x, Axis::POINT]
    } else if any_order && y.all(fits_32_bits) && (y.count > x.count || !x.all(fits_32_bits)) {
        [Axis::POINT, y, x]
    } else {
        [Axis::POINT, x, y]
    }
}

impl Iterator for PlanePieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let [along, frames, transfers] = self.axes;
        if self.at[2] == transfers.count {
            return None;
        }
        let elements = (along.count - self.at[0]).min(TransferSize::ELEMENTS_LIMIT.into());
        let mut rows = (frames.count - self.at[1]).min(TransferSize::FRAMES_LIMIT.into());
        let fits = |port| i32::try_from(index_of_step(self.between(port, elements), self.element)).is_ok();
        if !(fits(Port::Source) && fits(Port::Destination)) {
            rows = 1;
        }
        let piece = Piece {
            size: TransferSize { element: self.element, elements: elements as u32, frames: rows as u32 },
            source: self.side(Port::Source, elements, rows),
            destination: self.side(Port::Destination, elements, rows),
        };
        self.advance(elements, rows);
        Some(piece)
    }
}

impl PlanePieces {
    /// Distance in bytes from a frame's last element to the next frame's first.
    fn between(&self, port: Port, elements: u64) -> i128 {
        self.axes[1].stride(port) - self.axes[0].stride(port) * (i128::from(elements) - 1)
    }

    fn side(&self, port: Port, elements: u64, frames: u64) -> Side {
        let size = i128::from(self.element.bytes());
        let offset = self.axes.iter().zip(self.at);
        let offset: i128 = offset.map(|(axis, at)| axis.stride(port) * i128::from(at)).sum();
        // The address fits 32 bits, because `check_reach` covered the whole walk.
        let address = (i128::from(self.start[port as usize]) + offset) as u64;
        let between = self.between(port, elements);
        let within = if elements > 1 { self.axes[0].stride(port) } else { between };
        let between = if frames > 1 { between } else { within };
        if (elements == 1 && frames == 1) || (within == size && between == size) {
            return Side::memory(address);
        }
        let element_index = index_of_step(within, self.element) as i64;
        let frame_index = index_of_step(between, self.element) as i64;
        if within == between && i16::try_from(element_index).is_ok() {
            return Side::indexed(address, Addressing::SingleIndex { element_index });
        }
        if elements == 1 {
            return Side::indexed(address, Addressing::DoubleIndex { element_index: 1, frame_index });
        }
        let addressing = Addressing::DoubleIndex { element_index, frame_index };
        let side = Side::indexed(address, addressing);
        if within == size { Side { addressing, ..Side::memory(address) } } else { side }
    }

    fn advance(&mut self, elements: u64, frames: u64) {
        self.at[1] += frames;
        if self.at[1] == self.axes[1].count {
            self.at[1] = 0;
            self.at[0] += elements;
        }
        if self.at[0] == self.axes[0].count {
            self.at[0] = 0;
            self.at[2] += 1;
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
