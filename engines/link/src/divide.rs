//! Requests as pieces: what goes between a frame of another node and frames of this one.
//!
//! ```text
//! Operation ─ divide ─► Transfer { direction, pieces: remote offset, local memory }, or Crc        else: unsupported
//! pieces ─ take_chunk ─► those of the next message
//! ```

use std::collections::VecDeque;

use memferry_engine::{Mapping, Operation, Region};

use crate::message::{CHUNK_BYTES, MAX_PIECES};

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
    Transfer { write: bool, pieces: VecDeque<Piece> },
    Crc { offset: u64, length: u64, seed: u32 },
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
    Some((frame, Work::Transfer { write, pieces }))
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
        let (frame, Work::Transfer { write: false, mut pieces }) = divide(&operation).unwrap() else {
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
            let Some((_, Work::Transfer { write: writes, mut pieces })) = divide(&operation) else {
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
