//! Which 2-D copies within one memory are refused, by sets of bytes.
//!
//! The rule is that of docs/protocol.md: walks that have bytes in common are refused, unless one is the other shifted and visits no
//! byte twice, or both are equal. A line is a column of rows where the other walk's rows are as far apart as its pixels, or the other
//! walk is a line no longer than that. Rows run along the shorter step; the bytes between the pixels of a row count, unless both walks
//! have the same steps and their rows do not reach into each other; walks with different distances between rows count from their
//! first to their last byte.

use std::collections::BTreeSet;
use std::ops::Range;

use memferry_transfer::{Copy2d, Count2d, Plane};

/// The pixels of a walk by rows, and the distances between pixels and between rows.
struct Walk {
    rows: Vec<Vec<i128>>,
    across: i128,
    down: i128,
    pixel: i128,
}

impl Walk {
    fn new(count: &Count2d, plane: &Plane, offset: u64) -> Self {
        let columns = i128::from(count.x_count);
        let across = i128::from(plane.x_step);
        let down = (columns - 1) * across + i128::from(plane.y_step);
        let first = i128::from(offset) + i128::from(plane.start);
        let at = |x: u32, y: u32| first + i128::from(x) * across + i128::from(y) * down;
        let [across, down] = [across.abs(), down.abs()];
        let pixel = i128::from(count.pixel.bytes());
        let x_count = count.x_count;
        let y_count = count.y_count;
        if y_count == 1 || (x_count > 1 && across <= down) {
            let rows = (0..y_count).map(|y| (0..x_count).map(|x| at(x, y)).collect()).collect();
            Self { rows, across, down, pixel }
        } else {
            let rows = (0..x_count).map(|x| (0..y_count).map(|y| at(x, y)).collect()).collect();
            Self { rows, across: down, down: across, pixel }
        }
    }

    /// Each pixel a row.
    fn into_column(mut self) -> Self {
        self.rows = self.rows.concat().into_iter().map(|pixel| vec![pixel]).collect();
        self.down = self.across;
        self
    }

    fn range(&self, pixels: &[i128]) -> Range<i128> {
        let first = pixels.iter().min().copied().unwrap_or(0);
        first..pixels.iter().max().copied().unwrap_or(0) + self.pixel
    }

    fn bytes(&self, with_gaps: bool) -> BTreeSet<i128> {
        let row = |row: &Vec<i128>| -> Vec<i128> {
            match with_gaps {
                true => self.range(row).collect(),
                false => row.iter().flat_map(|first| *first..first + self.pixel).collect(),
            }
        };
        self.rows.iter().flat_map(row).collect()
    }

    fn visits_once(&self) -> bool {
        let pixels = self.rows.concat();
        let bytes: BTreeSet<_> = pixels.iter().flat_map(|first| *first..first + self.pixel).collect();
        let rows: Vec<_> = self.rows.iter().map(|row| self.range(row)).collect();
        let rows_apart = rows
            .iter()
            .enumerate()
            .all(|(index, one)| rows[..index].iter().all(|other| is_apart(one, other)));
        rows_apart && bytes.len() as i128 == pixels.len() as i128 * self.pixel
    }
}

fn is_apart(one: &Range<i128>, other: &Range<i128>) -> bool {
    one.end <= other.start || other.end <= one.start
}

/// Whether the copy is refused, when the walks count from these bytes of one memory.
pub(crate) fn is_tangled(shape: &Copy2d, source: u64, destination: u64) -> bool {
    let count = &shape.count;
    if count.x_count == 0 || count.y_count == 0 {
        return false;
    }
    let from = Walk::new(count, &shape.source, source);
    let to = Walk::new(count, &shape.destination, destination);
    let [one, other] = [from.rows.concat(), to.rows.concat()];
    if one == other {
        return false;
    }
    let is_shift = {
        let pixels = |plane: &Plane| -> Vec<i128> {
            let walk = (0..count.y_count).flat_map(|y| (0..count.x_count).map(move |x| (x, y)));
            let down = i128::from(count.x_count - 1) * i128::from(plane.x_step) + i128::from(plane.y_step);
            walk.map(|(x, y)| i128::from(x) * i128::from(plane.x_step) + i128::from(y) * down).collect()
        };
        pixels(&shape.source) == pixels(&shape.destination)
    };
    let may_shift = is_shift && from.visits_once();
    !may_shift && share_bytes(from, to)
}

fn share_bytes(mut one: Walk, mut other: Walk) -> bool {
    let [all, all_others] = [one.range(&one.rows.concat()), other.range(&other.rows.concat())];
    if is_apart(&all, &all_others) {
        return false;
    }
    let is_line_along = |line: &Walk, other: &Walk| {
        let matches = match &other.rows[..] {
            [row] => other.range(row).count() as i128 <= line.across,
            _ => line.across == other.down,
        };
        line.rows.len() == 1 && line.rows[0].len() > 1 && matches
    };
    if is_line_along(&one, &other) {
        one = one.into_column();
        one.across = other.across;
    } else if is_line_along(&other, &one) {
        other = other.into_column();
        other.across = one.across;
    }
    let [many, many_others] = [one.rows.len() > 1, other.rows.len() > 1];
    if many && many_others && one.down != other.down {
        return true;
    }
    let down = if many { one.down } else { other.down };
    let fits = |walk: &Walk| walk.rows.iter().all(|row| walk.range(row).clone().count() as i128 <= down);
    let exact = one.across == other.across && ((!many && !many_others) || (fits(&one) && fits(&other)));
    !one.bytes(!exact).is_disjoint(&other.bytes(!exact))
}
