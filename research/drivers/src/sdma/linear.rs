//! Plans contiguous transfers: splits a size into hardware transfers, each of elements and frames.
//!
//! ```text
//! elements ── split ──► Blocks: (first element, elements, frames), each at most 2^24-1 by 2^16-1
//! addresses, bytes ── LinearPieces ──► Piece, Piece, ... each the input of one configuration
//! ```
//!
//! A number that factors within the limits becomes one block. Any other number becomes one block and a rest of a single
//! frame, up to the size of a block (almost 2^40 elements). The module only computes; it accesses no device.

use thiserror::Error;

use super::config::{Element, Piece, Side, TransferSize};

const ELEMENTS: u64 = TransferSize::ELEMENTS_LIMIT as u64;
const FRAMES: u64 = TransferSize::FRAMES_LIMIT as u64;

/// Elements of a frame when a size does not factor: a multiple of 64, so that a frame consists of whole bursts. Bursts do
/// not cross frames (manual, 16.4.13).
const WHOLE_FRAME: u64 = ELEMENTS - ELEMENTS % 64;

/// Number of frame counts to try as factors, besides a power of two. Without a factor, the rest costs only one small
/// transfer.
const TRIED: u64 = 64;

/// Part of a contiguous transfer that one hardware transfer moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of elements before this block.
    pub first_element: u64,
    /// Elements of a frame.
    pub elements: u32,
    pub frames: u32,
}

impl Block {
    /// Number of elements in the block.
    pub const fn total(&self) -> u64 {
        self.elements as u64 * self.frames as u64
    }
}

/// Iterator over the blocks of a number of elements; see [`split`].
#[derive(Clone, Debug)]
pub struct Blocks {
    done: u64,
    left: u64,
}

/// Splits a number of elements into adjoining blocks; no block for zero elements.
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

/// Elements and frames of the first block of `left` elements, which is not zero.
fn largest_block(left: u64) -> (u64, u64) {
    let min_frames = left.div_ceil(ELEMENTS);
    let candidates = min_frames..min_frames.saturating_add(TRIED);
    let mut candidates =
        candidates.chain(min_frames.checked_next_power_of_two()).filter(|frames| *frames <= FRAMES);
    let factor = candidates.find(|frames| left.is_multiple_of(*frames));
    match factor {
        Some(frames) => (left / frames, frames),
        None => (WHOLE_FRAME, (left / WHOLE_FRAME).min(FRAMES)),
    }
}

/// Reason why a contiguous transfer cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LinearError {
    #[error("the transfer has no bytes: give it at least one")]
    NoBytes,
    /// The end of the source or destination exceeds 32 bits.
    #[error("{length_bytes} bytes at {address:#x} exceed 32 bits: use memory that the device can access")]
    BeyondAddressSpace {
        /// Start address of the source or destination.
        address: u64,
        /// Size of the transfer.
        length_bytes: u64,
    },
}

/// Iterator over the hardware transfers that move a contiguous range.
#[derive(Clone, Debug)]
pub struct LinearPieces {
    source: u64,
    destination: u64,
    element: Element,
    blocks: Blocks,
}

impl LinearPieces {
    /// Plans a copy with the largest element that divides both addresses and the length.
    ///
    /// Packed access moves elements of any size at the port's width. Addresses increase, so a destination that overlaps
    /// the source must lie below it.
    ///
    /// # Errors
    /// [`LinearError`] when there are no bytes, or when the source or destination exceeds 32 bits.
    pub fn copy(source: u64, destination: u64, length_bytes: u64) -> Result<Self, LinearError> {
        let element = Element::largest_dividing(source | destination | length_bytes);
        Self::with_element(source, destination, length_bytes, element)
    }

    /// Plans a fill with one byte value. It uses elements of one or two bytes, because a fill's colour has no fourth byte.
    ///
    /// # Errors
    /// The errors of [`LinearPieces::copy`].
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
    fn blocks_cover_sizes_at_every_limit() {
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
    fn refuses_no_bytes_and_ranges_beyond_32_bits() {
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
        fn blocks_cover_any_size_once(elements in 0..=1u64 << 41) {
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
