//! Compares 2-D walks with listing 3 of Wicki 2014 taken literally, or with its closed form for long walks.
//!
//! ```text
//! Count2d, Plane ──extent()──► Ok(range) or error
//!               ──walk───────► lowest and highest byte visited, in 128 bits      must be equal
//! ```
//!
//! Descriptors over a region are checked against the same range. No bytes are moved.

use memferry_transfer::geometry::{Addr2d, Extent, GeometryError};
use memferry_transfer::{Color24, Count2d, Descriptor, Fill2d, Memory, Operation, PixelSize, Plane, Region};

use crate::input::Input;

/// Maximum number of pixels for a step-by-step walk.
const WALKED_PIXELS: u64 = 1 << 12;

/// A memory with a length but no content.
#[derive(Clone, Debug)]
struct Length(u64);

impl Memory for Length {
    fn length(&self) -> u64 {
        self.0
    }
}

/// Input: a byte (pixel size in bits 1:0, small counts in bit 2, small steps in bit 3), counts, start, steps, and the
/// length of a region.
pub fn geometry(data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.u8();
    let pixel = [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32][usize::from(shape & 3) % 3];
    let mut x_count = input.u32();
    let mut y_count = input.u32();
    if shape & 4 != 0 {
        (x_count, y_count) = (x_count % 64, y_count % 64);
    }
    let count = Count2d { pixel, x_count, y_count };
    let start = input.u64();
    let mut x_step = input.u64() as i64;
    let mut y_step = input.u64() as i64;
    if shape & 8 != 0 {
        (x_step, y_step) = (x_step % 1024, y_step % 1024);
    }
    let plane = Plane { start, x_step, y_step };
    let expected = expected_extent(&count, &plane);
    assert_eq!(plane.extent(&count), expected, "{plane:?} {count:?}");
    if let Ok(Some(extent)) = expected {
        assert!(extent.length >= pixel.bytes());
    }
    region(&count, plane, input.u64(), expected);
    listing(&count, x_step as i32, y_step as i32, input.u32(), input.u32());
}

/// The lowest and the highest offset of a pixel's first byte; `None` if no pixel is visited.
fn offsets(count: &Count2d, plane: &Plane) -> Option<(i128, i128)> {
    let columns = i128::from(count.x_count);
    let rows = i128::from(count.y_count);
    if columns == 0 || rows == 0 {
        return None;
    }
    let start = i128::from(plane.start);
    let x_step = i128::from(plane.x_step);
    let y_step = i128::from(plane.y_step);
    if count.pixels() > WALKED_PIXELS {
        // Each of the two independent sums has its minimum and maximum at its ends.
        let across = (columns - 1) * x_step;
        let down = (rows - 1) * (across + y_step);
        return Some((start + across.min(0) + down.min(0), start + across.max(0) + down.max(0)));
    }
    let mut address = start;
    let mut lowest = start;
    let mut highest = start;
    for _ in 0..rows {
        for column in 0..columns {
            (lowest, highest) = (lowest.min(address), highest.max(address));
            address += if column + 1 < columns { x_step } else { y_step };
        }
    }
    Some((lowest, highest))
}

fn expected_extent(count: &Count2d, plane: &Plane) -> Result<Option<Extent>, GeometryError> {
    let Some((lowest, highest)) = offsets(count, plane) else { return Ok(None) };
    if lowest < 0 {
        let bytes = u64::try_from(-lowest).unwrap_or(u64::MAX);
        return Err(GeometryError::BeforeFrame { bytes });
    }
    let end = highest + i128::from(count.pixel.bytes());
    match (u64::try_from(lowest), u64::try_from(end)) {
        (Ok(first), Ok(end)) => Ok(Some(Extent { first, length: end - first })),
        _ => Err(GeometryError::EndOverflows),
    }
}

/// A descriptor is accepted exactly if every byte of its walk is within its region.
fn region(count: &Count2d, plane: Plane, length: u64, expected: Result<Option<Extent>, GeometryError>) {
    let inside = match expected {
        Ok(Some(extent)) => extent.first.checked_add(extent.length).is_some_and(|end| end <= length),
        Ok(None) => true,
        Err(_) => false,
    };
    let destination = Region::new(Length(length), 0, length).expect("the region is the whole memory");
    let color = Color24::new(0).expect("24 bits");
    let shape = Fill2d { count: *count, destination: plane, color };
    let descriptor = Descriptor::new(0, Operation::Fill2d { destination, shape });
    assert_eq!(descriptor.is_ok(), inside, "{plane:?} {count:?} in {length} bytes");
}

/// Converts the thesis's parameters to bytes; a start beyond 64 bits is refused.
fn listing(count: &Count2d, x_modify: i32, y_modify: i32, x_start: u32, y_start: u32) {
    let pixels = u128::from(x_start) + u128::from(count.y_count) * u128::from(y_start);
    let start = pixels * u128::from(count.pixel.bytes());
    let steps = [x_modify, y_modify].map(|step| i64::from(step) * count.pixel.bytes() as i64);
    match (Addr2d { x_start, y_start, x_modify, y_modify }).plane(count) {
        Ok(plane) => {
            assert_eq!((u128::from(plane.start), plane.x_step, plane.y_step), (start, steps[0], steps[1]));
        }
        Err(_) => assert!(start > u128::from(u64::MAX)),
    }
}
