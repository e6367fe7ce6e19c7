//! Two walks of pixels compared: whether they have bytes in common.
//!
//! ```text
//! Count2d, Plane ─► Rows: along the shorter of the two steps, from the lowest address up ─ share_bytes ─► yes or maybe, or no
//! ```
//!
//! No pixel is looked at by itself: a client chooses the numbers, and every answer takes the same time. Nothing here touches
//! memory.

use crate::geometry::{Count2d, PixelSize, Plane};

/// The pixels of a walk from the lowest address up: rows of pixels that are `across` bytes apart, the rows `down` bytes. Another
/// walk may have visited them in this order.
#[derive(Clone, Copy)]
pub struct Rows {
    size: PixelSize,
    pixel: i128,
    first: i128,
    columns: u32,
    across: i128,
    rows: u32,
    down: i128,
}

impl Rows {
    /// The pixels of `plane`, counted from `before` bytes below its memory. `None` if there are none.
    pub fn new(count: &Count2d, plane: &Plane, before: u64) -> Option<Self> {
        if count.pixels() == 0 {
            return None;
        }
        let axis = |step: i128, count: u32| if count == 1 { (0, 1) } else { (step, count) };
        let (x_step, x_count) = axis(i128::from(plane.x_step), count.x_count);
        let (y_step, y_count) = axis(plane.row_advance(count), count.y_count);
        let lowest = |step: i128, count: u32| step.min(0) * (i128::from(count) - 1);
        let x = (x_step.abs(), x_count);
        let y = (y_step.abs(), y_count);
        // A single line is a row, whatever its direction.
        let along_x = y_count == 1 || (x_count != 1 && x.0 <= y.0);
        let ((across, columns), (down, rows)) = if along_x { (x, y) } else { (y, x) };
        let first = i128::from(before) + i128::from(plane.start);
        let first = first + lowest(x_step, x_count) + lowest(y_step, y_count);
        let pixel = i128::from(count.pixel.bytes());
        Some(Self { size: count.pixel, pixel, first, columns, across, rows, down })
    }

    /// The lowest byte of all pixels, which may lie before the memory unless [`Plane::extent`] was checked.
    pub fn first(&self) -> i128 {
        self.first
    }

    /// How many pixels a walk over these rows visits.
    pub fn count(&self) -> Count2d {
        Count2d { pixel: self.size, x_count: self.columns, y_count: self.rows }
    }

    /// Bytes from the first to the last pixel of a row.
    fn row_bytes(&self) -> i128 {
        (i128::from(self.columns) - 1) * self.across + self.pixel
    }

    /// Bytes from the first to the last of all.
    fn bytes(&self) -> i128 {
        (i128::from(self.rows) - 1) * self.down + self.row_bytes()
    }

    /// Whether no byte belongs to two pixels.
    pub fn visits_once(&self) -> bool {
        (self.columns == 1 || self.across >= self.pixel) && (self.rows == 1 || self.down >= self.row_bytes())
    }

    /// A single line as one pixel of each row, where the rows of the other walk are as far apart as its pixels, or the other walk is
    /// a line that is no longer than that.
    fn as_column_beside(self, other: &Self) -> Self {
        let matches =
            if other.rows > 1 { self.across == other.down } else { other.row_bytes() <= self.across };
        if self.rows == 1 && self.columns > 1 && matches {
            let across = other.across;
            return Self { columns: 1, across, rows: self.columns, down: self.across, ..self };
        }
        self
    }

    /// The walk over these rows, from the first pixel or from the last, counted from `before` bytes. `None` if no plane has such
    /// numbers.
    pub fn plane(&self, before: u64, from_the_end: bool) -> Option<Plane> {
        let within = self.row_bytes() - self.pixel;
        let last = self.bytes() - self.pixel;
        let sign = if from_the_end { -1 } else { 1 };
        let start = self.first - i128::from(before) + if from_the_end { last } else { 0 };
        Some(Plane {
            start: u64::try_from(start).ok()?,
            x_step: i64::try_from(sign * self.across).ok()?,
            y_step: i64::try_from(sign * (self.down - within)).ok()?,
        })
    }

    /// Whether two walks have bytes in common, or may have.
    ///
    /// Bytes between the pixels of a row count, unless both walks have the same steps and rows that do not reach into each other.
    /// If their rows are not equally far apart, everything from the first to the last byte counts.
    pub fn share_bytes(&self, other: &Self) -> bool {
        let one = self;
        let distance = other.first - one.first;
        if distance >= one.bytes() || -distance >= other.bytes() {
            return false;
        }
        let [one, other] = [one.as_column_beside(other), other.as_column_beside(one)];
        let down = match (one.rows, other.rows) {
            (1, 1) => 0,
            (1, _) => other.down,
            (_, 1) => one.down,
            _ if one.down == other.down => one.down,
            _ => return true,
        };
        // Row `i` of one and row `j` of the other meet if (i - j) * down is above `low` and below `high`.
        let low = distance - one.row_bytes();
        let high = distance + other.row_bytes();
        let (first, last) = if down == 0 {
            if low < 0 && 0 < high { (0, 0) } else { (1, 0) }
        } else {
            let first = (low.div_euclid(down) + 1).max(1 - i128::from(other.rows));
            (first, (high - 1).div_euclid(down).min(i128::from(one.rows) - 1))
        };
        let are_apart_in_rows = down == 0 || (one.row_bytes() <= down && other.row_bytes() <= down);
        if first > last || one.across != other.across || !are_apart_in_rows {
            return first <= last;
        }
        // Rows that do not reach into each other meet at most three of the other walk's.
        (first..=last).any(|row| pixels_meet(&one, &other, distance - row * down))
    }
}

/// Whether pixels of two rows have bytes in common, which begin `distance` bytes apart and have the same step.
fn pixels_meet(one: &Rows, other: &Rows, distance: i128) -> bool {
    let step = one.across;
    if step <= one.pixel {
        return true;
    }
    let meets = |column: i128| {
        let apart = (distance - column * step).abs();
        column > -i128::from(other.columns) && column < i128::from(one.columns) && apart < one.pixel
    };
    let nearest = distance.div_euclid(step);
    meets(nearest) || meets(nearest + 1)
}
