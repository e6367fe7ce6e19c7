//! What can be set for one transfer: the structure of section 3.2.1 of Wicki's thesis, and what it left out.
//!
//! ```text
//! ChannelConfig ── validate ──► registers (Sdma::configure)
//!       ▲
//!       └── with_piece(Piece): size and both sides, from a planner
//! ```
//!
//! Fields are wider than the registers' where a caller computes them, so that a value too large is refused instead of
//! losing bits. Big-endian access is not offered: the manual forbids it (section 16.4.8). Nothing here is checked.

use memferry_registers::sdma::{AddressingMode, BurstSize, DataType, WriteMode};

use super::interrupt::Interrupts;

/// Size of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    Bits8,
    Bits16,
    Bits32,
}

impl Element {
    /// Every size, by rising number of bytes.
    pub const ALL: [Self; 3] = [Self::Bits8, Self::Bits16, Self::Bits32];

    /// Bytes of an element: 1, 2 or 4.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Bits8 => 1,
            Self::Bits16 => 2,
            Self::Bits32 => 4,
        }
    }

    /// The largest element whose bytes divide every bit set in `bits`, the addresses, steps and lengths or'ed together.
    pub const fn largest_dividing(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Bits32,
            2 => Self::Bits16,
            _ => Self::Bits8,
        }
    }

    pub const fn data_type(self) -> DataType {
        match self {
            Self::Bits8 => DataType::Bits8,
            Self::Bits16 => DataType::Bits16,
            Self::Bits32 => DataType::Bits32,
        }
    }
}

/// How much one block moves, in the device's terms (paper, 2.3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferSize {
    /// Size of an element.
    pub element: Element,
    /// Elements of a frame: 1 to [`TransferSize::ELEMENTS_LIMIT`].
    pub elements: u32,
    /// Frames of the block: 1 to [`TransferSize::FRAMES_LIMIT`].
    pub frames: u32,
}

impl TransferSize {
    /// Most elements of a frame: the register has 24 bits.
    pub const ELEMENTS_LIMIT: u32 = (1 << 24) - 1;
    /// Most frames of a block: the register has 16 bits.
    pub const FRAMES_LIMIT: u32 = (1 << 16) - 1;

    /// Bytes of the block.
    pub const fn bytes(&self) -> u64 {
        self.element.bytes() as u64 * self.elements as u64 * self.frames as u64
    }
}

/// One of the device's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    Source,
    Destination,
}

impl core::fmt::Display for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// How a side's address moves (paper, 2.3.2.2). Indexes are in bytes, counted from an element's last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// Never; for a device's data register.
    Constant,
    /// By the element's size.
    PostIncrement,
    /// By the element's size less one, and the index.
    SingleIndex {
        /// Fits 16 bits, signed.
        element_index: i64,
    },
    /// The same within a frame; the frame index stands in for the element index after a frame's last element.
    DoubleIndex {
        /// Fits 16 bits, signed.
        element_index: i64,
        /// Fits 32 bits, signed.
        frame_index: i64,
    },
}

impl Addressing {
    pub const fn mode(self) -> AddressingMode {
        match self {
            Self::Constant => AddressingMode::Constant,
            Self::PostIncrement => AddressingMode::PostIncrement,
            Self::SingleIndex { .. } => AddressingMode::SingleIndex,
            Self::DoubleIndex { .. } => AddressingMode::DoubleIndex,
        }
    }

    /// The element index, zero for the modes without.
    pub const fn element_index(self) -> i64 {
        match self {
            Self::Constant | Self::PostIncrement => 0,
            Self::SingleIndex { element_index } | Self::DoubleIndex { element_index, .. } => element_index,
        }
    }

    /// The frame index, zero for the modes without.
    pub const fn frame_index(self) -> i64 {
        match self {
            Self::DoubleIndex { frame_index, .. } => frame_index,
            _ => 0,
        }
    }

    /// Bytes from an element's start to the next one's: within a frame, and after its last element.
    pub(super) const fn steps(self, element: Element) -> (i128, i128) {
        let size = element.bytes() as i128;
        match self {
            Self::Constant => (0, 0),
            Self::PostIncrement => (size, size),
            Self::SingleIndex { element_index } => {
                (size - 1 + element_index as i128, size - 1 + element_index as i128)
            }
            Self::DoubleIndex { element_index, frame_index } => {
                (size - 1 + element_index as i128, size - 1 + frame_index as i128)
            }
        }
    }
}

/// One side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    /// Physical address of the first element's first byte.
    pub address: u64,
    /// How the address moves.
    pub addressing: Addressing,
    /// Whether several elements go in one access of the port's width; needs neighbouring elements.
    pub packed: bool,
    /// Largest burst; needs packed access, except with a constant address.
    pub burst: BurstSize,
    /// Whether this is a device's register rather than memory: only there may the address stay.
    pub is_device: bool,
}

impl Side {
    /// Contiguous memory, accessed as fast as the device can: packed, in bursts of 64 bytes.
    pub const fn memory(address: u64) -> Self {
        Self {
            address,
            addressing: Addressing::PostIncrement,
            packed: true,
            burst: BurstSize::Bytes64,
            is_device: false,
        }
    }

    /// A device's data register, one element each access.
    pub const fn device(address: u64) -> Self {
        Self {
            address,
            addressing: Addressing::Constant,
            packed: false,
            burst: BurstSize::Single,
            is_device: true,
        }
    }

    /// Memory walked with an index, which allows neither packed access nor bursts unless elements are neighbours.
    pub const fn indexed(address: u64, addressing: Addressing) -> Self {
        Self { address, addressing, packed: false, burst: BurstSize::Single, is_device: false }
    }

    /// The lowest address accessed and the one after the highest. What no machine has, in a configuration that was not
    /// checked, stops at the ends of 128 bits.
    pub(super) const fn extent(&self, size: &TransferSize) -> (i128, i128) {
        let (step, frame_step) = self.addressing.steps(size.element);
        let along = step * (size.elements as i128 - 1);
        let down = (along + frame_step).saturating_mul(size.frames as i128 - 1);
        let mut first = self.address as i128;
        let mut last = self.address as i128;
        if along < 0 {
            first += along
        } else {
            last += along
        }
        if down < 0 {
            first = first.saturating_add(down);
        } else {
            last = last.saturating_add(down);
        }
        (first, last.saturating_add(size.element.bytes() as i128))
    }
}

/// What happens to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Copy,
    /// It is copied unless it equals the colour, of which 32-bit elements compare the low 24 bits.
    TransparentCopy {
        /// 24 bits.
        color: u32,
    },
    /// The destination's becomes the colour; the upper eight bits of 32-bit elements become zero. Nothing is read.
    Fill {
        /// 24 bits.
        color: u32,
    },
}

impl Operation {
    /// The fill that writes `byte` everywhere with elements of one or two bytes (those of four would get a zero byte).
    pub const fn fill_byte(byte: u8) -> Self {
        Self::Fill { color: byte as u32 * 0x0101 }
    }

    /// Whether the source is read.
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Fill { .. })
    }

    /// The colour, zero for a plain copy.
    pub const fn color(self) -> u32 {
        match self {
            Self::Copy => 0,
            Self::TransparentCopy { color } | Self::Fill { color } => color,
        }
    }
}

/// Priority of a channel on one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    Normal,
    /// Before the ordinary queue; only for those who hold [`Trusted`](super::Trusted).
    High,
}

/// How much each request of the hardware moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncUnit {
    Element,
    Frame,
    /// So many elements, whatever a frame has; the side that asks has a constant address.
    Packet {
        /// 1 to 65,535.
        elements: u32,
    },
    Block,
}

/// The request line that starts each part of the transfer (paper, 2.3.2.2; manual, 16.4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Synchronization {
    /// The request line, from zero as the manual numbers them; the register counts from one.
    pub request: u32,
    /// How much each request moves.
    pub unit: SyncUnit,
    /// The side that asks.
    pub by: Port,
    /// Whether data is read before the destination asks for it.
    pub prefetch: bool,
    /// Whether data of one request may wait in the FIFO for that of the next.
    pub buffering: bool,
}

/// A transfer as one channel makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Priority on the read port.
    pub read_priority: Priority,
    /// Priority on the write port.
    pub write_priority: Priority,
    /// What happens to each element.
    pub operation: Operation,
    /// Whether writes wait for one another.
    pub write_mode: WriteMode,
    /// How much is moved.
    pub size: TransferSize,
    /// The channel that starts when this one ends.
    pub link: Option<u8>,
    /// Where elements come from; not looked at by a fill.
    pub source: Side,
    pub destination: Side,
    /// The request line, or none when software starts the transfer.
    pub synchronization: Option<Synchronization>,
    /// What raises an interrupt.
    pub interrupts: Interrupts,
    /// Whether the channel belongs to privileged software; only for those who hold [`Trusted`](super::Trusted).
    pub supervisor: bool,
    /// Whether the channel stops while a debugger has stopped the processor.
    pub suspend_sensitive: bool,
}

impl ChannelConfig {
    /// The transfer of a piece that a planner made: ordinary priority, last write non-posted, an interrupt at the end
    /// and for every error.
    pub const fn new(operation: Operation, piece: Piece) -> Self {
        Self {
            read_priority: Priority::Normal,
            write_priority: Priority::Normal,
            operation,
            write_mode: WriteMode::LastNonPosted,
            size: piece.size,
            link: None,
            source: piece.source,
            destination: piece.destination,
            synchronization: None,
            interrupts: Interrupts::END_AND_ERRORS,
            supervisor: false,
            suspend_sensitive: false,
        }
    }

    /// The same settings for another piece.
    pub const fn with_piece(self, piece: Piece) -> Self {
        Self { size: piece.size, source: piece.source, destination: piece.destination, ..self }
    }

    /// The side of a port.
    pub const fn side(&self, port: Port) -> &Side {
        match port {
            Port::Source => &self.source,
            Port::Destination => &self.destination,
        }
    }

    /// The range that a side accesses as address and length; nothing for a fill's source, or when it leaves 64 bits.
    pub fn range(&self, port: Port) -> Option<(u64, u64)> {
        if port == Port::Source && !self.operation.reads() {
            return None;
        }
        let (first, end) = self.side(port).extent(&self.size);
        Some((u64::try_from(first).ok()?, u64::try_from(end.saturating_sub(first)).ok()?))
    }
}

/// What one hardware transfer moves: a planner's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    pub size: TransferSize,
    pub source: Side,
    pub destination: Side,
}
