//! Contiguous transfers: how a size becomes elements and frames, and how many hardware transfers that takes.
//!
//! ```text
//! elements ── split ──► Blocks: (first element, elements, frames) of at most 2^24-1 by 2^16-1, exact together
//! addresses, bytes ── LinearPieces ──► Piece, Piece, ... each the input of one configuration
//! ```
//!
//! A number that factors within the limits is one block; any other is one block and a rest of a single frame, as far
//! as a block reaches (2^40 elements, nearly). Pure arithmetic: nothing is configured here.

use thiserror::Error;

use super::config::{Element, Piece, Side, TransferSize};

const ELEMENTS: u64 = TransferSize::ELEMENTS_LIMIT as u64;
const FRAMES: u64 = TransferSize::FRAMES_LIMIT as u64;

/// Elements of a frame when a size does not factor: a multiple of 64, since bursts do not cross frames (manual,
/// 16.4.13) and a frame of whole bursts leaves none short.
const WHOLE_FRAME: u64 = ELEMENTS - ELEMENTS % 64;

/// Numbers of frames tried for a size that factors, besides a power of two: the rest costs one small transfer only.
const TRIED: u64 = 64;

/// A part of a contiguous transfer that one hardware transfer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Elements before this block.
    pub first_element: u64,
    /// Elements of a frame.
    pub elements: u32,
    pub frames: u32,
}

impl Block {
    /// Elements of the block.
    pub const fn total(&self) -> u64 {
        self.elements as u64 * self.frames as u64
    }
}

/// The blocks that together move a number of elements.
#[derive(Clone, Debug)]
pub struct Blocks {
    done: u64,
    left: u64,
}

/// Splits a number of elements into blocks that follow each other; none for zero elements.
///
/// ```
/// use memferry_drivers::sdma::split;
/// let blocks: Vec<(u32, u32)> = split(1 << 24).map(|block| (block.elements, block.frames)).collect();
/// assert_eq!(blocks, [(1 << 23, 2)]);
/// ```
pub const fn split(elements: u64) -> Blocks {
    Blocks { done: 0, left: elements }
}

impl Iterator for Blocks {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        if self.left == 0 {
            return None;
        }
        let (elements, frames) = largest_block(self.left);
        let block = Block { first_element: self.done, elements: elements as u32, frames: frames as u32 };
        self.done = self.done.saturating_add(block.total());
        self.left -= block.total();
        Some(block)
    }
}

/// Elements and frames of a block of at most `left` elements, which is not zero.
fn largest_block(left: u64) -> (u64, u64) {
    let fewest = left.div_ceil(ELEMENTS);
    let few = fewest..fewest.saturating_add(TRIED);
    let mut tried = few.chain(fewest.checked_next_power_of_two()).filter(|frames| *frames <= FRAMES);
    let factor = tried.find(|frames| left.is_multiple_of(*frames));
    match factor {
        Some(frames) => (left / frames, frames),
        None => (WHOLE_FRAME, (left / WHOLE_FRAME).min(FRAMES)),
    }
}

/// Why a contiguous transfer cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LinearError {
    /// Nothing is to be moved.
    #[error("the transfer has no bytes: give it at least one")]
    NoBytes,
    /// A side reaches beyond 32 bits.
    #[error("{length_bytes} bytes at {address:#x} reach beyond 32 bits: use memory that the device reaches")]
    BeyondAddressSpace {
        /// Start of the side.
        address: u64,
        /// Bytes of the transfer.
        length_bytes: u64,
    },
}

/// The hardware transfers that together move a contiguous range.
#[derive(Clone, Debug)]
pub struct LinearPieces {
    source: u64,
    destination: u64,
    element: Element,
    blocks: Blocks,
}

impl LinearPieces {
    /// Plans a copy with the largest element that fits both addresses and the length. Packed access makes elements of
    /// any size move at the port's width, so an odd address costs no more hardware transfers than an even one. Addresses
    /// rise, so a destination that overlaps the source must lie below it.
    ///
    /// # Errors
    /// [`LinearError`] when there is nothing to move, or a side leaves the device's addresses.
    pub fn copy(source: u64, destination: u64, length_bytes: u64) -> Result<Self, LinearError> {
        let element = Element::largest_dividing(source | destination | length_bytes);
        Self::with_element(source, destination, length_bytes, element)
    }

    /// Plans a fill with one byte value: elements of one or two bytes, since a fill's colour has no fourth byte.
    ///
    /// # Errors
    /// As [`LinearPieces::copy`].
    pub fn fill_byte(destination: u64, length_bytes: u64) -> Result<Self, LinearError> {
        let element = match Element::largest_dividing(destination | length_bytes) {
            Element::Bits8 => Element::Bits8,
            Element::Bits16 | Element::Bits32 => Element::Bits16,
        };
        Self::with_element(0, destination, length_bytes, element)
    }

    pub(super) fn with_element(
        source: u64,
        destination: u64,
        length_bytes: u64,
        element: Element,
    ) -> Result<Self, LinearError> {
        if length_bytes == 0 {
            return Err(LinearError::NoBytes);
        }
        for address in [source, destination] {
            if address.checked_add(length_bytes).is_none_or(|end| end > 1 << 32) {
                return Err(LinearError::BeyondAddressSpace { address, length_bytes });
            }
        }
        let blocks = split(length_bytes / u64::from(element.bytes()));
        Ok(Self { source, destination, element, blocks })
    }
}

impl Iterator for LinearPieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let block = self.blocks.next()?;
        let offset = block.first_element * u64::from(self.element.bytes());
        Some(Piece {
            size: TransferSize { element: self.element, elements: block.elements, frames: block.frames },
            source: Side::memory(self.source + offset),
            destination: Side::memory(self.destination + offset),
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::{ChannelConfig, Operation};
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn check_blocks(elements: u64) -> usize {
        let blocks: Vec<Block> = split(elements).collect();
        let mut next = 0;
        for block in &blocks {
            assert_eq!(block.first_element, next);
            assert!((1..=TransferSize::ELEMENTS_LIMIT).contains(&block.elements), "{block:?}");
            assert!((1..=TransferSize::FRAMES_LIMIT).contains(&block.frames), "{block:?}");
            next += block.total();
        }
        assert_eq!(next, elements);
        blocks.len()
    }

    #[test]
    fn sizes_at_every_limit_are_covered_exactly() {
        assert_eq!(check_blocks(0), 0);
        for power in 0..42 {
            for near in -2i64..=2 {
                check_blocks((1u64 << power).saturating_add_signed(near));
            }
        }
        for elements in [ELEMENTS, ELEMENTS * FRAMES, WHOLE_FRAME * FRAMES] {
            for near in -2i64..=2 {
                check_blocks(elements.saturating_add_signed(near));
            }
        }
    }

    #[test]
    fn sizes_that_factor_take_one_transfer() {
        for elements in [1, ELEMENTS, 1 << 24, 1 << 32, 1 << 38, ELEMENTS * FRAMES] {
            assert_eq!(check_blocks(elements), 1, "{elements}");
        }
    }

    #[test]
    fn primes_beyond_a_frame_take_two_transfers() {
        assert_eq!(check_blocks(4_294_967_291), 2);
    }

    #[test]
    fn refuses_no_bytes_and_ranges_beyond_the_address_space() {
        assert_eq!(LinearPieces::copy(0, 0, 0).err(), Some(LinearError::NoBytes));
        let beyond = LinearError::BeyondAddressSpace { address: 0xffff_fffc, length_bytes: 5 };
        assert_eq!(LinearPieces::copy(0, 0xffff_fffc, 5).err(), Some(beyond));
        assert!(LinearPieces::copy(0, 0xffff_fffc, 4).is_ok());
    }

    #[test]
    fn fill_never_uses_elements_of_four_bytes() {
        let elements = |destination, length| {
            LinearPieces::fill_byte(destination, length).unwrap().map(|piece| piece.size.element).next()
        };
        assert_eq!(elements(0, 16), Some(Element::Bits16));
        assert_eq!(elements(1, 16), Some(Element::Bits8));
        assert_eq!(elements(0, 15), Some(Element::Bits8));
    }

    proptest! {
        #[test]
        fn blocks_cover_any_size_without_gap_or_overlap(elements in 0..=1u64 << 41) {
            check_blocks(elements);
        }

        #[test]
        fn pieces_are_valid_and_adjoin(source in 0..=u32::MAX, destination in 0..=u32::MAX, length in 1..=u32::MAX) {
            let source = u64::from(source);
            let destination = u64::from(destination);
            let length = u64::from(length);
            prop_assume!(source.max(destination) + length <= 1 << 32);
            let mut done = 0;
            for piece in LinearPieces::copy(source, destination, length).unwrap() {
                prop_assert_eq!(piece.source.address, source + done);
                prop_assert_eq!(piece.destination.address, destination + done);
                let config = ChannelConfig::new(Operation::Copy, piece);
                prop_assert_eq!(config.validate(None), Ok(()));
                done += piece.size.bytes();
            }
            prop_assert_eq!(done, length);
        }
    }
}
