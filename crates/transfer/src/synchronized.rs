//! Hardware-synchronized transfers: their shape, and how much each request of the device moves.
//!
//! ```text
//! device ── request line ──► a unit: element, frame, packet or block ──► register ⇄ memory ... until all frames are moved
//! ```
//!
//! After Wicki 2014, 2.3.2.2; the thesis's driver leaves them out (5.3). The request line belongs to the frame of the device's
//! register, so a holder of that capability can wait for this line only.

use crate::geometry::PixelSize;
use crate::side::Side;

/// The part that each request of the device moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncUnit {
    /// One element of [`Synchronized::element`] size.
    Element,
    /// One frame of [`Synchronized::elements`] elements.
    Frame,
    /// This many elements, independent of the frame's size.
    Packet {
        /// Elements of a packet, at least 1.
        elements: u16,
    },
    /// The whole transfer, at the first request.
    Block,
}

/// A transfer between a device's data register and contiguous memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Synchronized {
    /// The side that is the device's register; the other is memory.
    pub device: Side,
    /// Width of the register and of an element.
    pub element: PixelSize,
    /// Elements of a frame.
    pub elements: u32,
    /// Frames of the transfer.
    pub frames: u32,
    /// The part that each request moves.
    pub unit: SyncUnit,
}

impl Synchronized {
    /// Bytes of the whole transfer, saturating.
    pub const fn total_bytes(&self) -> u64 {
        let elements = self.elements as u64 * self.frames as u64;
        elements.saturating_mul(self.element.bytes())
    }

    /// Bytes that a side covers: one element for the register, the whole transfer for memory.
    pub const fn side_bytes(&self, side: Side) -> u64 {
        match (side, self.device) {
            (Side::Source, Side::Source) | (Side::Destination, Side::Destination) => self.element.bytes(),
            _ => self.total_bytes(),
        }
    }
}
