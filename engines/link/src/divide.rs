//! Requests as pieces: what goes between a frame of another node and frames of this one.
//!
//! ```text
//! Operation ─ divide ─► Transfer { direction, pieces: remote offset, local memory }, or Crc        else: unsupported
//! pieces ─ take_chunk ─► those of the next message
//! ```

use std::collections::VecDeque;

use memferry::{Copy2d, Plane};
use memferry_engine::{Mapping, Operation, Region};

use crate::message::{CHUNK_BYTES, MAX_PIECES};

/// Rows or pixels of a 2-D copy at most: each becomes a piece.
const MAX_PARTS: u64 = 1 << 16;

/// Bytes of a frame of another node, and their place here.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) remote: u64,
    pub(crate) local: Mapping,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// What a request asks of another node.
#[derive(Debug)]
pub(crate) enum Work {
    /// If `in_order`, what is written comes twice somewhere: a message is sent when the one before was answered.
    Transfer {
        write: bool,
        pieces: VecDeque<Piece>,
        in_order: bool,
    },
    Crc {
        offset: u64,
        length: u64,
        seed: u32,
    },
}

/// The frame of another node that an operation names, by its address; `None` if it names none, or others too.
pub(crate) fn frame_of(operation: &Operation<Region<Mapping>>) -> Option<usize> {
    let mut found = None;
    let only = operation.visit(|side, region, _| {
        let memory = region.memory();
        if !memory.is_elsewhere() {
            return Ok(());
        }
        let one = (side, memory.pointer().addr());
        if *found.get_or_insert(one) == one { Ok(()) } else { Err(()) }
    });
    only.ok()?;
    found.map(|(_, frame)| frame)
}

/// The frame of another node that an operation is about, by its address, and what it asks; `None` for what a link cannot do.
pub(crate) fn divide(operation: &Operation<Region<Mapping>>) -> Option<(usize, Work)> {
    match operation {
        Operation::Copy { source, destination, length } => {
            pair([(source, *length)].into_iter(), [(destination, *length)].into_iter())
        }
        Operation::ScatterGather { lists } => {
            let source = lists.source.iter().map(|segment| (&segment.place, segment.length));
            let destination = lists.destination.iter().map(|segment| (&segment.place, segment.length));
            pair(source, destination)
        }
        Operation::Copy2d { source, destination, shape } if shape.transparent.is_none() => {
            let parts = parts_of(shape)?;
            let place = |region: &Region<Mapping>, plane: &Plane| {
                let first = i128::from(region.offset()) + i128::from(plane.start);
                (region.memory().clone(), first)
            };
            walk(place(source, &shape.source), place(destination, &shape.destination), parts)
        }
        Operation::Crc { source, length, seed } if source.memory().is_elsewhere() => {
            let work = Work::Crc { offset: source.offset(), length: *length, seed: *seed };
            Some((source.memory().pointer().addr(), work))
        }
        _ => None,
    }
}

/// Pairs two lists of equal totals.
fn pair<'a>(
    mut sources: impl Iterator<Item = (&'a Region<Mapping>, u64)>,
    mut destinations: impl Iterator<Item = (&'a Region<Mapping>, u64)>,
) -> Option<(usize, Work)> {
    let mut found: Option<(usize, bool)> = None;
    let mut pieces: VecDeque<Piece> = VecDeque::new();
    let mut from = sources.next();
    let mut to = destinations.next();
    let mut taken = [0, 0];
    while let (Some((source, left)), Some((destination, room))) = (from, to) {
        let write = destination.memory().is_elsewhere();
        let (far, near) = if write { (destination, source) } else { (source, destination) };
        // Between two nodes, or within one: by way of a frame here.
        if !far.memory().is_elsewhere() || near.memory().is_elsewhere() {
            return None;
        }
        let frame = far.memory().pointer().addr();
        if *found.get_or_insert((frame, write)) != (frame, write) {
            return None;
        }
        let length = (left - taken[0]).min(room - taken[1]);
        let [source_at, destination_at] = [source.offset() + taken[0], destination.offset() + taken[1]];
        let (remote, offset) = if write { (destination_at, source_at) } else { (source_at, destination_at) };
        push(&mut pieces, Piece { remote, local: near.memory().clone(), offset, length });
        taken = [taken[0] + length, taken[1] + length];
        if taken[0] == left {
            from = sources.next();
            taken[0] = 0;
        }
        if taken[1] == room {
            to = destinations.next();
            taken[1] = 0;
        }
    }
    let (frame, write) = found?;
    Some((frame, transfer(write, pieces)))
}

fn transfer(write: bool, pieces: VecDeque<Piece>) -> Work {
    let in_order = writes_twice(write, &pieces);
    Work::Transfer { write, pieces, in_order }
}

/// Whether any byte is written twice.
fn writes_twice(write: bool, pieces: &VecDeque<Piece>) -> bool {
    let written = |piece: &Piece| if write { (0, piece.remote) } else { (piece.local.key(), piece.offset) };
    let mut ranges: Vec<_> = pieces.iter().map(|piece| (written(piece), piece.length)).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| {
        let ((memory, begin), length) = pair[0];
        memory == pair[1].0.0 && begin + length > pair[1].0.1
    })
}

/// Consecutive bytes of a 2-D copy: where they begin on both sides, from its first pixels, and how many. In the order of the pixels.
struct Parts {
    length: u64,
    /// Steps of both sides from one to the next in a line, and from the last of a line to the first of the next.
    steps: [(i128, i128); 2],
    columns: u32,
    rows: u32,
}

/// The parts of a picture: rows, if their pixels are consecutive on both sides, else pixels. `None` if there are too many.
fn parts_of(shape: &Copy2d) -> Option<Parts> {
    let count = &shape.count;
    let pixel = count.pixel.bytes();
    let planes = [&shape.source, &shape.destination];
    let is_row =
        count.x_count == 1 || planes.iter().all(|plane| i128::from(plane.x_step) == i128::from(pixel));
    let across = |plane: &Plane| i128::from(plane.x_step) * (i128::from(count.x_count) - 1);
    let (columns, length) =
        if is_row { (1, pixel * u64::from(count.x_count)) } else { (count.x_count, pixel) };
    let steps = planes.map(|plane| {
        let next = across(plane) + i128::from(plane.y_step);
        if is_row { (0, next) } else { (i128::from(plane.x_step), next - across(plane)) }
    });
    let rows = if count.x_count == 0 { 0 } else { count.y_count };
    let fits = u64::from(columns) * u64::from(rows) <= MAX_PARTS;
    fits.then_some(Parts { length, steps, columns, rows })
}

/// The pieces of a 2-D copy from one place to another: memory, and offset of the first pixel. Admission checked that all lie there.
fn walk(from: (Mapping, i128), to: (Mapping, i128), parts: Parts) -> Option<(usize, Work)> {
    let write = to.0.is_elsewhere();
    let (far, near) = if write { (&to.0, &from.0) } else { (&from.0, &to.0) };
    if !far.is_elsewhere() || near.is_elsewhere() {
        return None;
    }
    let mut pieces = VecDeque::new();
    let mut at = [from.1, to.1];
    for _ in 0..parts.rows {
        for column in 0..parts.columns {
            let [source, destination] = [u64::try_from(at[0]).ok()?, u64::try_from(at[1]).ok()?];
            let (remote, offset) = if write { (destination, source) } else { (source, destination) };
            push(&mut pieces, Piece { remote, local: near.clone(), offset, length: parts.length });
            let is_last = column + 1 == parts.columns;
            for (place, (across, down)) in at.iter_mut().zip(parts.steps) {
                *place += if is_last { down } else { across };
            }
        }
    }
    Some((far.pointer().addr(), transfer(write, pieces)))
}

/// Adds a piece, to the last one if it continues that.
fn push(pieces: &mut VecDeque<Piece>, piece: Piece) {
    if piece.length == 0 {
        return;
    }
    if let Some(last) = pieces.back_mut()
        && last.local.is(&piece.local)
        && last.remote + last.length == piece.remote
        && last.offset + last.length == piece.offset
    {
        last.length += piece.length;
        return;
    }
    pieces.push_back(piece);
}

/// Takes the pieces of the next message, and divides the last one of them if need be.
pub(crate) fn take_chunk(pieces: &mut VecDeque<Piece>) -> Vec<Piece> {
    let mut chunk = Vec::new();
    let mut room = CHUNK_BYTES;
    while chunk.len() < MAX_PIECES
        && room > 0
        && let Some(first) = pieces.front_mut()
    {
        let length = first.length.min(room);
        chunk.push(Piece { length, ..first.clone() });
        room -= length;
        if length == first.length {
            pieces.pop_front();
        } else {
            first.remote += length;
            first.offset += length;
            first.length -= length;
        }
    }
    chunk
}

#[cfg(test)]
mod tests {
    use memferry_engine::Segment;
    use proptest::prelude::*;

    use super::*;

    fn region(memory: &Mapping, offset: u64, length: u64) -> Region<Mapping> {
        Region::new(memory.clone(), offset, length).unwrap()
    }

    fn far() -> Mapping {
        Mapping::elsewhere(1 << 48, 1 << 30).unwrap()
    }

    fn near() -> Mapping {
        Mapping::owned(vec![0; 1 << 20])
    }

    #[test]
    fn a_copy_is_divided_into_messages() {
        let source = region(&far(), 5, 1 << 20);
        let destination = region(&near(), 0, 1 << 20);
        let operation = Operation::Copy { source, destination, length: CHUNK_BYTES * 2 + 7 };
        let (frame, Work::Transfer { write: false, mut pieces, .. }) = divide(&operation).unwrap() else {
            panic!("a write")
        };
        assert_eq!(frame, 1 << 48);
        let mut next = || {
            let chunk = take_chunk(&mut pieces);
            chunk.iter().map(|piece| (piece.remote, piece.offset, piece.length)).collect::<Vec<_>>()
        };
        assert_eq!(next(), [(5, 0, CHUNK_BYTES)]);
        assert_eq!(next(), [(5 + CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES)]);
        assert_eq!(next(), [(5 + 2 * CHUNK_BYTES, 2 * CHUNK_BYTES, 7)]);
        assert!(next().is_empty());
    }

    #[test]
    fn what_a_link_cannot_do_is_unsupported() {
        let other = Mapping::elsewhere(1 << 50, 4096).unwrap();
        for (source, destination) in [(near(), near()), (far(), far()), (far(), other.clone())] {
            let source = region(&source, 0, 8);
            let destination = region(&destination, 8, 8);
            assert!(divide(&Operation::Copy { source, destination, length: 8 }).is_none());
        }
        let local = near();
        let segment = |memory: &Mapping| Segment { place: region(memory, 0, 8), length: 8 };
        // Two frames of other nodes, and both directions in one list.
        for (source, destination) in [
            ([segment(&far()), segment(&other)], [segment(&local), segment(&local)]),
            ([segment(&far()), segment(&local)], [segment(&local), segment(&far())]),
        ] {
            let both = lists(source.into(), destination.into());
            assert!(divide(&both).is_none());
        }
    }

    fn lists(
        source: Vec<Segment<Region<Mapping>>>,
        destination: Vec<Segment<Region<Mapping>>>,
    ) -> Operation<Region<Mapping>> {
        let lists = memferry_engine::Lists {
            source: source.into_boxed_slice(),
            destination: destination.into_boxed_slice(),
        };
        Operation::ScatterGather { lists: std::sync::Arc::new(lists) }
    }

    proptest! {
        /// Byte by byte, the pieces say the same as the lists.
        #[test]
        fn pieces_pair_the_bytes_of_both_lists(
            lengths in proptest::collection::vec(0..300_u64, 1..100),
            cuts in proptest::collection::vec(1..500_u64, 1..100),
            write: bool,
        ) {
            let total: u64 = lengths.iter().sum();
            let mut other = Vec::new();
            let mut left = total;
            for cut in cuts {
                let length = cut.min(left);
                other.push(length);
                left -= length;
            }
            other.push(left);
            let far = far();
            let near = near();
            // Gaps of varying length between segments.
            let list = |memory: &Mapping, lengths: &[u64]| {
                let mut at = 0;
                lengths.iter().enumerate().map(|(index, length)| {
                    at += index as u64 % 3;
                    let segment = Segment { place: region(memory, at, *length), length: *length };
                    at += length;
                    segment
                }).collect::<Vec<_>>()
            };
            let one = list(&far, &lengths);
            let two = list(&near, &other);
            let places = |list: &[Segment<Region<Mapping>>]| -> Vec<u64> {
                list.iter().flat_map(|part| (0..part.length).map(|at| part.place.offset() + at)).collect()
            };
            let expected: Vec<_> = places(&one).into_iter().zip(places(&two)).collect();
            let operation = if write { lists(two, one) } else { lists(one, two) };
            let Some((_, Work::Transfer { write: writes, mut pieces, .. })) = divide(&operation) else {
                panic!("no transfer")
            };
            prop_assert_eq!(writes, write);
            let mut found = Vec::new();
            loop {
                let chunk = take_chunk(&mut pieces);
                if chunk.is_empty() {
                    break;
                }
                prop_assert!(chunk.len() <= MAX_PIECES);
                prop_assert!(chunk.iter().map(|piece| piece.length).sum::<u64>() <= CHUNK_BYTES);
                for piece in chunk {
                    found.extend((0..piece.length).map(|at| (piece.remote + at, piece.offset + at)));
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
