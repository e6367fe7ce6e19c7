//! Reference semantics of operations on memory, in the simplest possible form.
//!
//! ```text
//! Operation<Place> + memories ──► fits? ──► every byte or pixel in the operation's order ──► resulting memories
//! ```
//!
//! Deliberately independent of the code under test: it does not use [`memferry_transfer::geometry`], walks literally like
//! listing 3 of Wicki 2014 (section 3.3.2) in 128-bit arithmetic, and has no fast path. Its time is proportional to the
//! pixels, so bound the counts in a fuzzer.

use memferry_transfer::engine::LeavesRegion;
use memferry_transfer::{Color24, Count2d, Lists, Operation, Pattern, PixelSize, Plane, Reach, Segment};

use crate::tangled::is_tangled;

/// A byte range of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the memory.
    pub memory: usize,
    /// Offset of the first byte.
    pub offset: u64,
    pub length: u64,
}

/// Performs the whole operation; returns the destination bytes visited.
///
/// # Errors
/// [`LeavesRegion`] if it would leave a place; nothing is changed then. The source is checked first.
///
/// # Panics
/// If a place is not within the memories.
///
/// # Example
/// ```
/// use memferry_conformance::oracle::{Place, apply};
/// use memferry_transfer::{Operation, Pattern};
///
/// let mut memories = [vec![0; 8]];
/// let destination = Place { memory: 0, offset: 2, length: 5 };
/// let fill = Operation::Fill { destination, length: 4, pattern: Pattern::Half(0x0201) };
/// assert_eq!(apply(&fill, &mut memories), Ok(4));
/// assert_eq!(memories[0], [0, 0, 1, 2, 1, 2, 0, 0]);
///
/// let beyond = Operation::Fill { destination, length: 6, pattern: Pattern::Byte(9) };
/// assert!(apply(&beyond, &mut memories).is_err());
/// ```
pub fn apply(operation: &Operation<Place>, memories: &mut [Vec<u8>]) -> Result<u64, LeavesRegion> {
    apply_part(operation, memories, u64::MAX)
}

/// Performs the operation's first `bytes` bytes (whole pixels of a 2-D operation) in order; returns the destination bytes
/// visited.
///
/// A copy starts at its first byte, or at its last byte if [`runs_down`].
///
/// # Errors
/// As [`apply`], for the whole operation.
///
/// # Panics
/// As [`apply`].
pub fn apply_part(
    operation: &Operation<Place>,
    memories: &mut [Vec<u8>],
    bytes: u64,
) -> Result<u64, LeavesRegion> {
    fits(operation)?;
    Ok(match operation {
        // A device's data is not in memory; the device model's tests cover it.
        Operation::Nop | Operation::Synchronized { .. } => 0,
        Operation::Copy { source, destination, length }
        | Operation::CopyCrc { source, destination, length, .. } => {
            move_part(memories, source, destination, *length, bytes)
        }
        Operation::ScatterGather { lists } => {
            let mut left = bytes;
            for (source, destination) in pieces(lists) {
                left -= move_part(memories, &source, &destination, source.length, left);
            }
            bytes - left
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            let part = bytes.min(*length);
            for at in 0..part {
                let byte = read(memories, source, at);
                write(memories, one, at, byte);
                write(memories, other, at, byte);
            }
            part
        }
        Operation::Xor { sources, destination, length } => {
            let part = bytes.min(*length);
            for at in 0..part {
                let byte = sources.iter().fold(0, |byte, source| byte ^ read(memories, source, at));
                write(memories, destination, at, byte);
            }
            part
        }
        Operation::Compare { .. } => bytes.min(value(operation, memories)),
        Operation::Crc { length, .. } => bytes.min(*length),
        Operation::Fill { destination, length, pattern } => {
            let part = bytes.min(*length);
            let value = pattern_bytes(*pattern);
            for at in 0..part {
                let byte = value[at as usize % value.len()];
                memories[destination.memory][(destination.offset + at) as usize] = byte;
            }
            part
        }
        Operation::Copy2d { .. } | Operation::Fill2d { .. } => apply_pixels(operation, memories, bytes),
    })
}

/// Performs the first `bytes` bytes of a 2-D operation, in whole pixels.
fn apply_pixels(operation: &Operation<Place>, memories: &mut [Vec<u8>], bytes: u64) -> u64 {
    match operation {
        Operation::Copy2d { source, destination, shape } => {
            let reads = walk(&shape.source, &shape.count);
            let writes = walk(&shape.destination, &shape.count);
            visit_pixels(shape.count.pixel, bytes, reads.zip(writes), |size, (from, to)| {
                let pixel = read_pixel(memories, source, from, size);
                if shape.transparent.is_none_or(|color| !is_transparent(color, pixel, size)) {
                    write_pixel(memories, destination, to, pixel, size);
                }
            })
        }
        Operation::Fill2d { destination, shape } => {
            let writes = walk(&shape.destination, &shape.count);
            visit_pixels(shape.count.pixel, bytes, writes, |size, to| {
                write_pixel(memories, destination, to, shape.color.value(), size);
            })
        }
        _ => 0,
    }
}

/// Whether `found` can result from `before` by `bytes` bytes of a 2-D operation with pixels visited in any order: each
/// pixel has its old or new content, in numbers that fit `bytes`. Only if the order is invisible: no pixel shares a byte
/// with another or with the source; otherwise `false`.
///
/// # Panics
/// If the operation leaves its places or the memories differ in shape.
pub fn is_part_in_any_order(
    operation: &Operation<Place>,
    before: &[Vec<u8>],
    found: &[Vec<u8>],
    bytes: u64,
) -> bool {
    let (destination, plane, count, source) = match operation {
        Operation::Copy2d { source, destination, shape } => {
            (destination, &shape.destination, &shape.count, Some((source, &shape.source)))
        }
        Operation::Fill2d { destination, shape } => (destination, &shape.destination, &shape.count, None),
        _ => return false,
    };
    let size = size_of(count.pixel) as usize;
    let places = |place: &Place, plane: &Plane| -> Vec<(usize, usize)> {
        let first = |offset| (i128::from(place.offset) + offset) as usize;
        walk(plane, count)
            .flat_map(|offset| (0..size).map(move |byte| first(offset) + byte))
            .map(|at| (place.memory, at))
            .collect()
    };
    let written = places(destination, plane);
    let mut touched = std::collections::HashSet::new();
    let distinct = written.iter().all(|at| touched.insert(*at));
    let apart =
        source.is_none_or(|(place, plane)| places(place, plane).iter().all(|at| !touched.contains(at)));
    let mut after = before.to_vec();
    if !distinct || !apart || apply(operation, &mut after).is_err() {
        return false;
    }
    let pixel = |memories: &[Vec<u8>], at: &[(usize, usize)]| -> Vec<u8> {
        at.iter().map(|(memory, at)| memories[*memory][*at]).collect()
    };
    let mut new = 0;
    let mut old = 0;
    let each_is_either = written.chunks(size).all(|at| {
        let [was, shall, is] = [before, &after, found].map(|memories| pixel(memories, at));
        new += usize::from(was != shall && is == shall);
        old += usize::from(was != shall && is == was);
        is == was || is == shall
    });
    let others_stay = (0..before.len()).all(|memory| {
        (0..before[memory].len())
            .all(|at| touched.contains(&(memory, at)) || found[memory][at] == before[memory][at])
    });
    let visited = bytes as usize / size;
    each_is_either && others_stay && new <= visited && old <= written.len() / size - visited
}

/// The value that the operation's completion reports when it starts with these memories.
///
/// # Panics
/// As [`apply`].
pub fn value(operation: &Operation<Place>, memories: &[Vec<u8>]) -> u64 {
    match operation {
        Operation::Compare { first, second, length } => {
            let differs = |at: &u64| read(memories, first, *at) != read(memories, second, *at);
            (0..*length).find(differs).unwrap_or(*length)
        }
        Operation::Crc { source, length, seed } | Operation::CopyCrc { source, length, seed, .. } => {
            let crc = (0..*length).fold(!*seed, |crc, at| {
                let crc = crc ^ u32::from(read(memories, source, at));
                // Castagnoli's polynomial, bits reversed (RFC 3720, appendix B.4).
                (0..8).fold(crc, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
            });
            u64::from(!crc)
        }
        _ => 0,
    }
}

fn read(memories: &[Vec<u8>], place: &Place, at: u64) -> u8 {
    memories[place.memory][(place.offset + at) as usize]
}

fn write(memories: &mut [Vec<u8>], place: &Place, at: u64, byte: u8) {
    memories[place.memory][(place.offset + at) as usize] = byte;
}

/// Moves the first `part` bytes of a memmove of `length`, in its order; returns their number.
fn move_part(memories: &mut [Vec<u8>], source: &Place, destination: &Place, length: u64, part: u64) -> u64 {
    let part = part.min(length);
    for step in 0..part {
        let at = if is_upward(source, destination, length) { length - 1 - step } else { step };
        let byte = read(memories, source, at);
        write(memories, destination, at, byte);
    }
    part
}

/// The parts of a scatter-gather transfer: split wherever a segment of either list ends.
fn pieces(lists: &Lists<Place>) -> Vec<(Place, Place)> {
    let bytes = |list: &[Segment<Place>]| -> Vec<(usize, u64, usize)> {
        let segments = list.iter().enumerate();
        segments
            .flat_map(|(index, segment)| {
                (0..segment.length).map(move |at| (segment.place.memory, segment.place.offset + at, index))
            })
            .collect()
    };
    let mut pieces: Vec<(Place, Place)> = Vec::new();
    let mut last = None;
    for ((memory, offset, index), (to, to_offset, to_index)) in
        bytes(&lists.source).into_iter().zip(bytes(&lists.destination))
    {
        match pieces.last_mut().filter(|_| last == Some((index, to_index))) {
            Some((source, destination)) => {
                source.length += 1;
                destination.length += 1;
            }
            None => {
                let place = |memory, offset| Place { memory, offset, length: 1 };
                pieces.push((place(memory, offset), place(to, to_offset)));
            }
        }
        last = Some((index, to_index));
    }
    pieces
}

/// Whether all bytes that the operation accesses are within its places.
///
/// # Errors
/// [`LeavesRegion`]; the source is checked first.
pub fn fits(operation: &Operation<Place>) -> Result<(), LeavesRegion> {
    operation.visit(|side, place, reach| {
        let inside = match reach {
            Reach::Bytes(length) => length <= place.length,
            Reach::Walk(plane, count) => {
                let last = i128::from(place.length) - size_of(count.pixel);
                walk(&plane, &count).all(|offset| offset >= 0 && offset <= last)
            }
        };
        if inside { Ok(()) } else { Err(LeavesRegion { side }) }
    })
}

/// The first source of an xor that has some of the destination's bytes but is not the same range, the first operand of a dual
/// copy that overlaps a later one in that way, or the source of a 2-D copy that turns a picture in its own place: such a request is
/// refused. `None` for other operations.
///
/// ```
/// use memferry_conformance::oracle::{Place, overlapping_operand};
/// use memferry_transfer::Operation;
///
/// let at = |offset| Place { memory: 0, offset, length: 4 };
/// let xor = |from| Operation::Xor { sources: Box::new([at(8), from]), destination: at(4), length: 4 };
/// assert_eq!(overlapping_operand(&xor(at(4))), None);
/// assert_eq!(overlapping_operand(&xor(at(0))), None);
/// assert_eq!(overlapping_operand(&xor(at(1))), Some(1));
/// ```
pub fn overlapping_operand(operation: &Operation<Place>) -> Option<usize> {
    let overlap = |one: &Place, other: &Place, length: u64| {
        let bytes = |place: &Place| place.offset..place.offset + length;
        let common = bytes(one).any(|byte| bytes(other).contains(&byte));
        one.memory == other.memory && common && bytes(one) != bytes(other)
    };
    match operation {
        Operation::Xor { sources, destination, length } => {
            sources.iter().position(|source| overlap(source, destination, *length))
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            let of_source = overlap(source, one, *length) || overlap(source, other, *length);
            if of_source { Some(0) } else { overlap(one, other, *length).then_some(1) }
        }
        Operation::Copy2d { source, destination, shape } if source.memory == destination.memory => {
            is_tangled(shape, source.offset, destination.offset).then_some(0)
        }
        _ => None,
    }
}

/// Whether the operation is a copy that has to begin with its last byte: within one memory, upwards, overlapping.
pub fn runs_down(operation: &Operation<Place>) -> bool {
    match operation {
        Operation::Copy { source, destination, length }
        | Operation::CopyCrc { source, destination, length, .. } => is_upward(source, destination, *length),
        _ => false,
    }
}

/// Whether the destination overlaps the source from above.
fn is_upward(source: &Place, destination: &Place, length: u64) -> bool {
    source.memory == destination.memory
        && destination.offset > source.offset
        && destination.offset < source.offset + length
}

/// The operation with each place replaced by `name(place)`.
pub fn renamed<A, B>(operation: &Operation<A>, mut name: impl FnMut(&A) -> B) -> Operation<B> {
    let renamed = operation.try_map(|_, place, reach| {
        let start = if let Reach::Walk(plane, _) = reach { plane.start } else { 0 };
        Ok::<_, std::convert::Infallible>((name(place), start))
    });
    renamed.unwrap_or_else(|never| match never {})
}

/// Listing 3, in bytes: the offsets of the accessed pixels, in order.
fn walk(plane: &Plane, count: &Count2d) -> impl Iterator<Item = i128> {
    let mut addr = i128::from(plane.start);
    let x_step = i128::from(plane.x_step);
    let y_step = i128::from(plane.y_step);
    let x_count = count.x_count;
    // Without columns there is nothing to visit; skip up to four billion rows.
    let y_count = if x_count == 0 { 0 } else { count.y_count };
    (1..=y_count).flat_map(move |_| 1..=x_count).map(move |x| {
        let accessed = addr;
        addr += if x < x_count { x_step } else { y_step };
        accessed
    })
}

/// Visits pixels as long as whole ones fit into `bytes`; returns the bytes visited.
fn visit_pixels<T>(
    pixel: PixelSize,
    bytes: u64,
    pixels: impl Iterator<Item = T>,
    mut visit: impl FnMut(i128, T),
) -> u64 {
    let size = size_of(pixel);
    let whole = bytes / size as u64;
    let mut visited = 0;
    for place in pixels.take(usize::try_from(whole).unwrap_or(usize::MAX)) {
        visit(size, place);
        visited += size as u64;
    }
    visited
}

fn size_of(pixel: PixelSize) -> i128 {
    match pixel {
        PixelSize::Bits8 => 1,
        PixelSize::Bits16 => 2,
        PixelSize::Bits32 => 4,
    }
}

/// Reads a little-endian pixel.
fn read_pixel(memories: &[Vec<u8>], place: &Place, offset: i128, size: i128) -> u32 {
    (0..size).rev().fold(0, |value, byte| {
        let at = (i128::from(place.offset) + offset + byte) as usize;
        (value << 8) | u32::from(memories[place.memory][at])
    })
}

fn write_pixel(memories: &mut [Vec<u8>], place: &Place, offset: i128, value: u32, size: i128) {
    for byte in 0..size {
        let at = (i128::from(place.offset) + offset + byte) as usize;
        memories[place.memory][at] = (value >> (8 * byte)) as u8;
    }
}

/// Wicki 2014, 2.3.2.2: at most 24 bits are compared; smaller pixels are compared with the color's low bits.
fn is_transparent(color: Color24, pixel: u32, size: i128) -> bool {
    let compared = if size == 4 { 3 } else { size };
    (0..compared).all(|byte| (color.value() >> (8 * byte)) as u8 == (pixel >> (8 * byte)) as u8)
}

fn pattern_bytes(pattern: Pattern) -> Vec<u8> {
    match pattern {
        Pattern::Byte(value) => vec![value],
        Pattern::Half(value) => vec![value as u8, (value >> 8) as u8],
        Pattern::Color(color) => {
            let value = color.value();
            vec![value as u8, (value >> 8) as u8, (value >> 16) as u8, 0]
        }
        Pattern::Word(value) => {
            vec![value as u8, (value >> 8) as u8, (value >> 16) as u8, (value >> 24) as u8]
        }
    }
}

#[cfg(test)]
mod tests {
    use memferry_transfer::{Copy2d, Fill2d, Side};

    use super::*;

    const fn place(memory: usize, length: u64) -> Place {
        Place { memory, offset: 0, length }
    }

    #[test]
    fn a_part_in_any_order_counts_its_pixels() {
        let count = Count2d { pixel: PixelSize::Bits16, x_count: 3, y_count: 1 };
        let destination = Plane { start: 0, x_step: 2, y_step: 2 };
        let fill = |destination| Fill2d { count, destination, color: Color24::new(0x0808).unwrap() };
        let operation = Operation::Fill2d { destination: place(0, 6), shape: fill(destination) };
        let is_part =
            |found: [u8; 7], bytes| is_part_in_any_order(&operation, &[vec![1; 7]], &[found.to_vec()], bytes);
        assert!(is_part([1, 1, 8, 8, 1, 1, 1], 2) && is_part([8, 8, 1, 1, 8, 8, 1], 4));
        assert!(!is_part([1, 1, 8, 8, 1, 1, 1], 4), "fewer than were visited");
        assert!(!is_part([8, 8, 1, 1, 8, 8, 1], 2), "more than were visited");
        assert!(!is_part([8, 1, 1, 1, 1, 1, 1], 2), "half a pixel");
        assert!(!is_part([8, 8, 1, 1, 1, 1, 8], 2), "a byte outside");
        let twice = Fill2d { destination: Plane { x_step: 1, ..destination }, ..fill(destination) };
        let operation = Operation::Fill2d { destination: place(0, 6), shape: twice };
        assert!(!is_part_in_any_order(&operation, &[vec![1; 7]], &[vec![1; 7]], 0), "pixels overlap");
    }

    #[test]
    fn a_rotation_reads_columns_from_the_bottom() {
        // 0 1 2 / 3 4 5 rotated clockwise is 3 0 / 4 1 / 5 2.
        let count = Count2d { pixel: PixelSize::Bits8, x_count: 2, y_count: 3 };
        let shape = Copy2d {
            count,
            source: Plane { start: 3, x_step: -3, y_step: 4 },
            destination: Plane { start: 0, x_step: 1, y_step: 1 },
            transparent: None,
        };
        let turn = Operation::Copy2d { source: place(0, 6), destination: place(1, 6), shape };
        let mut memories = [vec![0, 1, 2, 3, 4, 5], vec![9; 6]];
        assert_eq!(apply(&turn, &mut memories), Ok(6));
        assert_eq!(memories[1], [3, 0, 4, 1, 5, 2]);
    }

    #[test]
    fn transparent_pixels_and_parts() {
        let count = Count2d { pixel: PixelSize::Bits32, x_count: 3, y_count: 1 };
        let plane = Plane { start: 0, x_step: 4, y_step: 4 };
        let shape = Copy2d { count, source: plane, destination: plane, transparent: Color24::new(0x03_0201) };
        let copy = Operation::Copy2d { source: place(0, 12), destination: place(1, 12), shape };
        let mut memories = [vec![1, 2, 3, 99, 1, 2, 4, 99, 5, 5, 5, 5], vec![0; 12]];
        assert_eq!(apply_part(&copy, &mut memories, 11), Ok(8));
        assert_eq!(memories[1], [0, 0, 0, 0, 1, 2, 4, 99, 0, 0, 0, 0]);
    }

    #[test]
    fn a_copy_within_one_memory_is_a_memmove() {
        for (from, to, moved) in [(0, 1, [0, 0, 1, 2]), (1, 0, [1, 2, 3, 3])] {
            let at = |offset| Place { memory: 0, offset, length: 3 };
            let copy = Operation::Copy { source: at(from), destination: at(to), length: 3 };
            let mut memories = [vec![0, 1, 2, 3]];
            assert_eq!(apply(&copy, &mut memories), Ok(3));
            assert_eq!(memories[0], moved);
        }
    }

    #[test]
    fn a_walk_out_of_its_place_is_refused() {
        let count = Count2d { pixel: PixelSize::Bits16, x_count: 2, y_count: 2 };
        let color = Color24::new(0x1234).unwrap();
        for (start, x_step) in [(0, -1), (3, 2), (5, 0), (u64::MAX, 0)] {
            let destination = Plane { start, x_step, y_step: 0 };
            let shape = Fill2d { count, destination, color };
            let mut memories = [vec![7; 6]];
            let fill = Operation::Fill2d { destination: place(0, 6), shape };
            assert_eq!(apply(&fill, &mut memories), Err(LeavesRegion { side: Side::Destination }));
            assert_eq!(memories[0], [7; 6]);
        }
    }
}
