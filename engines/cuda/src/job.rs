//! Jobs, and the steps that a stream is given for one.
//!
//! ```text
//! Job ─ checks: lengths, rights, overlaps ─► steps: copies, rows, fills, lists, by what the memory and the geometry allow
//! ```

use memferry_transfer::Pattern;

use crate::checks::{Copy, JobError, check_calls, check_lengths, check_sides};
use crate::driver::{Address, DeviceAddress, Element};
use crate::gather;
use crate::pieces::{Pieces, are_independent};
use crate::place::Place;

/// Rows of equal length at equal distances. The place begins with the first row and ends with the last.
#[derive(Clone, Debug)]
pub struct Rows {
    pub place: Place,
    pub pitch_bytes: u64,
}

/// What a stream does. At least one side of a copy is VRAM, unless it is a [`Detour`](Self::Detour).
#[derive(Clone, Debug)]
pub enum Job {
    Copy {
        from: Place,
        to: Place,
    },
    Copy2d {
        from: Rows,
        to: Rows,
        row_bytes: u64,
        rows: u64,
    },
    Fill {
        to: Place,
        pattern: Pattern,
    },
    Fill2d {
        to: Rows,
        pattern: Pattern,
        row_bytes: u64,
        rows: u64,
    },
    /// Copies the pieces in this order, or as if.
    Scatter(Pieces),
    /// A copy in host memory by the device, to measure whether that pays: in pieces through a place in VRAM, or without one
    /// directly, by device addresses of pinned memory.
    Detour {
        from: Place,
        to: Place,
        through: Option<Place>,
    },
}

/// The kernel takes no list with a piece of more than so many times the length below which it takes lists.
const LONGEST_OF_THRESHOLD: u64 = 16;

/// How the copies of a list are given to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    OneByOne,
    Batch,
    Kernel,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Copies(Vec<Copy>, Manner),
    Rows { from: (Address, u64), to: (Address, u64), row_bytes: u64, rows: u64 },
    Fill { to: DeviceAddress, element: Element, count: u64 },
    FillRows { to: (DeviceAddress, u64), element: Element, count: u64, rows: u64 },
}

/// What the plan depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planner {
    pub(crate) max_pitch_bytes: u64,
    pub(crate) has_batches: bool,
    pub(crate) has_kernel: bool,
    /// The kernel takes lists whose pieces are shorter than this on average.
    pub(crate) kernel_below_bytes: u64,
}

impl Planner {
    /// Takes the copies out of a list; what else the job has is kept.
    pub(crate) fn steps(&self, job: &mut Job) -> Result<Vec<Step>, JobError> {
        match job {
            Job::Copy { from, to } => {
                let copies = Vec::from_iter(copy(from, to)?);
                Ok(one_by_one(copies))
            }
            Job::Copy2d { from, to, row_bytes, rows } => self.copy_2d(from, to, *row_bytes, *rows),
            Job::Fill { to, pattern } => fill(vram(to)?, to.length_bytes(), *pattern),
            Job::Fill2d { to, pattern, row_bytes, rows } => self.fill_2d(to, *pattern, *row_bytes, *rows),
            Job::Scatter(pieces) => {
                let copies = pieces.take()?;
                let manner = self.manner(&copies);
                Ok(if copies.is_empty() { Vec::new() } else { vec![Step::Copies(copies, manner)] })
            }
            Job::Detour { from, to, through } => detour(from, to, through.as_ref()),
        }
    }

    fn copy_2d(&self, from: &Rows, to: &Rows, row_bytes: u64, rows: u64) -> Result<Vec<Step>, JobError> {
        check_rows(from, row_bytes, rows)?;
        check_rows(to, row_bytes, rows)?;
        check_apart(to, row_bytes, rows)?;
        let is_empty = row_bytes == 0 || rows == 0;
        let plane = |rows: &Rows| (rows.place.address(), rows.pitch_bytes);
        let from_plane = plane(from);
        let to_plane = plane(to);
        match check_sides(&from.place, &to.place) {
            // Rows of two pictures in one place may lie between each other.
            Err(JobError::Overlap) if !is_empty => {
                check_calls(rows)?;
                let copies: Vec<Copy> = row_copies(from_plane, to_plane, row_bytes, rows).collect();
                if !are_independent(&copies) {
                    return Err(JobError::Overlap);
                }
            }
            Err(JobError::Overlap) => {}
            other => other?,
        }
        if is_empty {
            return Ok(Vec::new());
        }
        let fits = |rows: &Rows| rows.pitch_bytes >= row_bytes && rows.pitch_bytes <= self.max_pitch_bytes;
        if fits(from) && fits(to) {
            return Ok(vec![Step::Rows { from: from_plane, to: to_plane, row_bytes, rows }]);
        }
        check_calls(rows)?;
        Ok(one_by_one(row_copies(from_plane, to_plane, row_bytes, rows).collect()))
    }

    fn fill_2d(&self, to: &Rows, pattern: Pattern, row_bytes: u64, rows: u64) -> Result<Vec<Step>, JobError> {
        check_rows(to, row_bytes, rows)?;
        check_apart(to, row_bytes, rows)?;
        let start = vram(&to.place)?;
        if row_bytes == 0 || rows == 0 {
            return Ok(Vec::new());
        }
        let element = element(pattern, start.0, row_bytes | to.pitch_bytes);
        let is_one_call = (row_bytes..=self.max_pitch_bytes).contains(&to.pitch_bytes);
        if let Some(element) = element.filter(|_| is_one_call) {
            let count = row_bytes / element.width();
            return Ok(vec![Step::FillRows { to: (start, to.pitch_bytes), element, count, rows }]);
        }
        let mut steps = Vec::new();
        for row in 0..rows {
            steps.extend(fill(start.plus(row * to.pitch_bytes), row_bytes, pattern)?);
            check_calls(steps.len() as u64)?;
        }
        Ok(steps)
    }

    fn manner(&self, copies: &[Copy]) -> Manner {
        if copies.len() < 2 || !are_independent(copies) {
            return Manner::OneByOne;
        }
        let total: u64 = copies.iter().map(|copy| copy.length).sum();
        let is_small = total / (copies.len() as u64) < self.kernel_below_bytes;
        // A block of the kernel copies a piece alone, so one long piece would last longer than all others.
        let is_even = copies.iter().all(|copy| copy.length / LONGEST_OF_THRESHOLD < self.kernel_below_bytes);
        if self.has_kernel && is_small && is_even && copies.len() <= gather::TABLE_PIECES {
            Manner::Kernel
        } else if self.has_batches {
            Manner::Batch
        } else {
            Manner::OneByOne
        }
    }
}

fn one_by_one(copies: Vec<Copy>) -> Vec<Step> {
    if copies.is_empty() { Vec::new() } else { vec![Step::Copies(copies, Manner::OneByOne)] }
}

/// The rows as copies.
pub(crate) fn row_copies(
    (from, from_pitch): (Address, u64),
    (to, to_pitch): (Address, u64),
    length: u64,
    rows: u64,
) -> impl Iterator<Item = Copy> {
    (0..rows).map(move |row| Copy { from: from.plus(row * from_pitch), to: to.plus(row * to_pitch), length })
}

/// `None`: nothing to copy.
fn copy(from: &Place, to: &Place) -> Result<Option<Copy>, JobError> {
    check_lengths(from, to)?;
    check_sides(from, to)?;
    let length = from.length_bytes();
    Ok((length > 0).then(|| Copy { from: from.address(), to: to.address(), length }))
}

fn check_rows(rows_of: &Rows, row_bytes: u64, rows: u64) -> Result<(), JobError> {
    let place_bytes = rows_of.place.length_bytes();
    let pitch_bytes = rows_of.pitch_bytes;
    let end =
        rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(pitch_bytes)?.checked_add(row_bytes));
    if end.is_some_and(|end| end <= place_bytes) { Ok(()) } else { Err(geometry(rows_of, row_bytes, rows)) }
}

/// Rows of a destination must not lie on each other.
fn check_apart(rows_of: &Rows, row_bytes: u64, rows: u64) -> Result<(), JobError> {
    if rows < 2 || rows_of.pitch_bytes >= row_bytes {
        Ok(())
    } else {
        Err(geometry(rows_of, row_bytes, rows))
    }
}

fn geometry(rows_of: &Rows, row_bytes: u64, rows: u64) -> JobError {
    let place_bytes = rows_of.place.length_bytes();
    let pitch_bytes = rows_of.pitch_bytes;
    JobError::Geometry { rows, row_bytes, pitch_bytes, place_bytes }
}

fn vram(place: &Place) -> Result<DeviceAddress, JobError> {
    match place.address() {
        Address::Vram(address) => Ok(address),
        Address::Host(_) | Address::Pinned(..) => Err(JobError::NoVram),
    }
}

/// The widest element that fills aligned memory with the pattern, if one does.
fn element(pattern: Pattern, address: u64, lengths: u64) -> Option<Element> {
    let [a, b, c, d] = pattern.word_bytes();
    let is_multiple = |width: u64| (address | lengths).is_multiple_of(width);
    match () {
        () if [b, c, d] == [a; 3] => Some(Element::One(a)),
        () if [a, b] == [c, d] && is_multiple(2) => Some(Element::Two(u16::from_le_bytes([a, b]))),
        () if is_multiple(4) => Some(Element::Four(u32::from_le_bytes([a, b, c, d]))),
        () => None,
    }
}

/// Fills that together repeat the pattern from the first byte on, whatever the alignment.
fn fill(to: DeviceAddress, length: u64, pattern: Pattern) -> Result<Vec<Step>, JobError> {
    if length == 0 {
        return Ok(Vec::new());
    }
    if let Some(element) = element(pattern, to.0, length) {
        return Ok(vec![Step::Fill { to, element, count: length / element.width() }]);
    }
    let bytes = pattern.word_bytes();
    let head = (to.0.next_multiple_of(4) - to.0).min(length);
    let words = (length - head) / 4;
    let byte_at = |at: u64| bytes[(at % 4) as usize];
    let single = |at: u64| Step::Fill { to: to.plus(at), element: Element::One(byte_at(at)), count: 1 };
    let word = u32::from_le_bytes([byte_at(head), byte_at(head + 1), byte_at(head + 2), byte_at(head + 3)]);
    let mut steps: Vec<Step> = (0..head).map(single).collect();
    if words > 0 {
        steps.push(Step::Fill { to: to.plus(head), element: Element::Four(word), count: words });
    }
    steps.extend((head + words * 4..length).map(single));
    Ok(steps)
}

fn detour(from: &Place, to: &Place, through: Option<&Place>) -> Result<Vec<Step>, JobError> {
    check_lengths(from, to)?;
    if to.is_read_only() {
        return Err(JobError::ReadOnly);
    }
    if from.overlaps(to) {
        return Err(JobError::Overlap);
    }
    let length = from.length_bytes();
    let from = from.address();
    let to = to.address();
    let Some(through) = through else {
        let are_pinned = matches!((from, to), (Address::Pinned(..), Address::Pinned(..)));
        let copies = if length == 0 { Vec::new() } else { vec![Copy { from, to, length }] };
        return if are_pinned { Ok(one_by_one(copies)) } else { Err(JobError::NoDetour) };
    };
    let is_host = |address| !matches!(address, Address::Vram(_));
    if !is_host(from) || !is_host(to) || !through.is_vram() || through.length_bytes() == 0 {
        return Err(JobError::NoDetour);
    }
    check_calls(length.div_ceil(through.length_bytes()).saturating_mul(2))?;
    let middle = through.address();
    let mut copies = Vec::new();
    for at in (0..length).step_by(through.length_bytes() as usize) {
        let length = through.length_bytes().min(length - at);
        copies.push(Copy { from: from.plus(at), to: middle, length });
        copies.push(Copy { from: middle, to: to.plus(at), length });
    }
    Ok(one_by_one(copies))
}
