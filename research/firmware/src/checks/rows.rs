//! Checks of contiguous transfers: copies, fills and transparent copies.
//!
//! The destination begins 128 bytes into its buffer, so that the comparison also detects writes before it.

use memferry_drivers::sdma::{ChannelConfig, Element, LinearPieces, Operation, Piece, Side, TransferSize};

use super::{Bench, Failure, compare, fill_buffers};
use crate::hardware::Buffer;

const OFFSET: u32 = 128;
const ELEMENTS: u32 = 64;
const FRAMES: u32 = 16;

fn piece(element: Element) -> Piece {
    Piece {
        size: TransferSize { element, elements: ELEMENTS, frames: FRAMES },
        source: Side::memory(Buffer::SOURCE.at(0)),
        destination: Side::memory(Buffer::DESTINATION.at(OFFSET)),
    }
}

/// Converts an offset in the destination buffer into an offset in the transfer; `None` outside the transfer.
fn in_transfer(offset: u32, length: u32) -> Option<u32> {
    offset.checked_sub(OFFSET).filter(|at| *at < length)
}

fn copy(element: Element) -> Result<(), Failure> {
    fill_buffers();
    Bench::new(0)?.transfer(&ChannelConfig::new(Operation::Copy, piece(element)))?;
    let length = ELEMENTS * FRAMES * element.bytes();
    compare(|offset| Some(Buffer::SOURCE.get(in_transfer(offset, length)?)))
}

pub(super) fn copy_8() -> Result<(), Failure> {
    copy(Element::Bits8)
}

pub(super) fn copy_16() -> Result<(), Failure> {
    copy(Element::Bits16)
}

pub(super) fn copy_32() -> Result<(), Failure> {
    copy(Element::Bits32)
}

/// Copies `length` bytes from offset `start` of the source, as planned by the driver.
fn planned_copy(start: u32, length: u32) -> Result<(), Failure> {
    fill_buffers();
    let plan = LinearPieces::copy(Buffer::SOURCE.at(start), Buffer::DESTINATION.at(OFFSET), length.into())?;
    Bench::new(9)?.transfer_all(Operation::Copy, plan)?;
    compare(|offset| Some(Buffer::SOURCE.get(start + in_transfer(offset, length)?)))
}

pub(super) fn copy_60000() -> Result<(), Failure> {
    planned_copy(0, 60_000)
}

pub(super) fn copy_odd() -> Result<(), Failure> {
    planned_copy(3, 4093)
}

fn fill(element: Element, color: u32) -> Result<(), Failure> {
    fill_buffers();
    Bench::new(1)?.transfer(&ChannelConfig::new(Operation::Fill { color }, piece(element)))?;
    let bytes = color.to_le_bytes();
    let length = ELEMENTS * FRAMES * element.bytes();
    compare(|offset| Some(bytes[(in_transfer(offset, length)? % element.bytes()) as usize]))
}

pub(super) fn fill_8() -> Result<(), Failure> {
    fill(Element::Bits8, 0x5a)
}

pub(super) fn fill_16() -> Result<(), Failure> {
    fill(Element::Bits16, 0x1234)
}

pub(super) fn fill_32() -> Result<(), Failure> {
    fill(Element::Bits32, 0x00ab_cdef)
}

/// Gives every third element the colour, which the copy must not write.
fn transparent(element: Element, color: u32) -> Result<(), Failure> {
    fill_buffers();
    let size = element.bytes();
    let colored = color.to_le_bytes();
    for at in 0..ELEMENTS * FRAMES * size {
        let is_colored = (at / size).is_multiple_of(3);
        let byte = colored[(at % size) as usize];
        // Other elements differ from the colour in each byte.
        Buffer::SOURCE.set(at, if is_colored { byte } else { !byte ^ (at as u8 & 0x7f) });
    }
    let config = ChannelConfig::new(Operation::TransparentCopy { color }, piece(element));
    Bench::new(2)?.transfer(&config)?;
    compare(|offset| {
        let at = in_transfer(offset, ELEMENTS * FRAMES * size)?;
        (!(at / size).is_multiple_of(3)).then(|| Buffer::SOURCE.get(at))
    })
}

pub(super) fn transparent_16() -> Result<(), Failure> {
    transparent(Element::Bits16, 0x5a5a)
}

pub(super) fn transparent_32() -> Result<(), Failure> {
    transparent(Element::Bits32, 0x005a_5a5a)
}
