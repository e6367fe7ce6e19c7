//! What a hardware-synchronized transfer moves, and how much of it each time the device asks.
//!
//! ```text
//! device ── request line ──► a unit: element, frame, packet or block ──► register ⇄ memory ... until all frames are moved
//! ```
//!
//! After Wicki 2014, 2.3.2.2, whose driver left it out (5.3). Which line a device asks with belongs to the memory that its
//! register is: whoever holds the capability may wait for that line, and for no other.

use crate::geometry::PixelSize;
use crate::side::Side;

/// How much each request of the device moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncUnit {
    /// One element.
    Element,
    /// One frame.
    Frame,
    /// So many elements, whatever a frame has.
    Packet {
        /// At least 1.
        elements: u16,
    },
    /// Everything.
    Block,
}

/// A transfer between a device's data register and contiguous memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Synchronized {
    /// Which side is the device's register; the other is memory.
    pub device: Side,
    /// Width of the register, and so of an element.
    pub element: PixelSize,
    /// Elements of a frame.
    pub elements: u32,
    /// Frames of the transfer.
    pub frames: u32,
    /// What each request moves.
    pub unit: SyncUnit,
}

impl Synchronized {
    /// Bytes of the whole transfer, saturating.
    pub const fn total_bytes(&self) -> u64 {
        let elements = self.elements as u64 * self.frames as u64;
        elements.saturating_mul(self.element.bytes())
    }

    /// Bytes that a side covers: the register, or all of the memory.
    pub const fn side_bytes(&self, side: Side) -> u64 {
        match (side, self.device) {
            (Side::Source, Side::Source) | (Side::Destination, Side::Destination) => self.element.bytes(),
            _ => self.total_bytes(),
        }
    }
}
