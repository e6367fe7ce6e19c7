//! The configuration of one transfer: the structure of section 3.2.1 of Wicki's thesis, with additional settings.
//!
//! ```text
//! ChannelConfig ── validate ──► registers (Sdma::configure)
//!       ▲
//!       └── with_piece(Piece): size and both sides, from a planner
//! ```
//!
//! Fields that a caller computes are wider than their registers, so that validation can refuse large values instead of
//! truncating them. Big-endian access is not offered because the manual forbids it (section 16.4.8). The types here do not
//! check their values; `validate` does.

use memferry_registers::sdma::{AddressingMode, BurstSize, DataType, WriteMode};

use super::cause::Interrupts;

/// Size of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    Bits8,
    Bits16,
    Bits32,
}

impl Element {
    /// Every element size, smallest first.
    pub const ALL: [Self; 3] = [Self::Bits8, Self::Bits16, Self::Bits32];

    /// Size in bytes: 1, 2 or 4.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Bits8 => 1,
            Self::Bits16 => 2,
            Self::Bits32 => 4,
        }
    }

    /// The largest element whose size divides every value of which `bits` is the bitwise or: addresses, steps, lengths.
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

/// Size of one block in elements and frames (paper, 2.3.2.2).
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
    /// Maximum number of elements in a frame: CEN has 24 bits.
    pub const ELEMENTS_LIMIT: u32 = (1 << 24) - 1;
    /// Maximum number of frames in a block: CFN has 16 bits.
    pub const FRAMES_LIMIT: u32 = (1 << 16) - 1;

    /// Size of the block in bytes.
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

/// How the address advances on one side (paper, 2.3.2.2). Indexes are in bytes, counted from an element's last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// The address does not change, as for a device's data register.
    Constant,
    /// The address advances by the element size.
    PostIncrement,
    /// The address advances by the element size minus one plus the index.
    SingleIndex {
        /// A signed 16-bit value.
        element_index: i64,
    },
    /// Like `SingleIndex`, with the frame index after the last element of a frame.
    DoubleIndex {
        /// A signed 16-bit value.
        element_index: i64,
        /// A signed 32-bit value.
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

    /// The element index; zero for modes without one.
    pub const fn element_index(self) -> i64 {
        match self {
            Self::Constant | Self::PostIncrement => 0,
            Self::SingleIndex { element_index } | Self::DoubleIndex { element_index, .. } => element_index,
        }
    }

    /// The frame index; zero for modes without one.
    pub const fn frame_index(self) -> i64 {
        match self {
            Self::DoubleIndex { frame_index, .. } => frame_index,
            _ => 0,
        }
    }

    /// Distances in bytes between the starts of consecutive elements: within a frame, and across a frame boundary.
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
    /// How the address advances.
    pub addressing: Addressing,
    /// Whether one access of the port's width moves several elements; requires contiguous elements.
    pub packed: bool,
    /// Largest burst; requires packed access, except with a constant address.
    pub burst: BurstSize,
    /// Whether this side is a device's register instead of memory. A transfer between memories has no constant address.
    pub is_device: bool,
}

impl Side {
    /// Contiguous memory with the fastest access: packed, in bursts of 64 bytes.
    pub const fn memory(address: u64) -> Self {
        Self {
            address,
            addressing: Addressing::PostIncrement,
            packed: true,
            burst: BurstSize::Bytes64,
            is_device: false,
        }
    }

    /// A device's data register, with one element for each access.
    pub const fn device(address: u64) -> Self {
        Self {
            address,
            addressing: Addressing::Constant,
            packed: false,
            burst: BurstSize::Single,
            is_device: true,
        }
    }

    /// Memory accessed with an index, neither packed nor in bursts.
    pub const fn indexed(address: u64, addressing: Addressing) -> Self {
        Self { address, addressing, packed: false, burst: BurstSize::Single, is_device: false }
    }

    /// The lowest accessed address and the end of the highest element. Saturates for absurd unchecked configurations.
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

/// Operation on each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Copy,
    /// Copies elements that differ from the colour. Of 32-bit elements, only the low 24 bits are compared.
    TransparentCopy {
        /// A value of 24 bits.
        color: u32,
    },
    /// Writes the colour without reading a source. The upper eight bits of 32-bit elements become zero.
    Fill {
        /// A value of 24 bits.
        color: u32,
    },
}

impl Operation {
    /// The fill that writes `byte` everywhere, for elements of one or two bytes. The top byte of larger elements is zero.
    pub const fn fill_byte(byte: u8) -> Self {
        Self::Fill { color: byte as u32 * 0x0101 }
    }

    /// Whether the source is read.
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Fill { .. })
    }

    /// The colour; zero for a plain copy.
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
    /// Served before normal priority; requires [`Trusted`].
    High,
}

/// Permission to use high priority and supervisor channels.
///
/// [`Sdma::new`](super::Sdma::new) makes one for each driver; the driver's owner lends it to clients that it trusts.
#[derive(Debug)]
pub struct Trusted(pub(super) ());

/// Amount that each hardware request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncUnit {
    Element,
    Frame,
    /// A number of elements that is independent of the frames. The requesting side must have a constant address.
    Packet {
        /// From 1 to 65,535.
        elements: u32,
    },
    Block,
}

/// The hardware requests that start each part of a transfer (paper, 2.3.2.2; manual, 16.4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Synchronization {
    /// The request line, counted from zero as in the manual. The register counts from one.
    pub request: u32,
    /// Amount that each request moves.
    pub unit: SyncUnit,
    /// The side that makes the requests.
    pub by: Port,
    /// Whether the channel reads data before the destination requests it.
    pub prefetch: bool,
    /// Whether data of one request may wait in the FIFO for data of the next.
    pub buffering: bool,
}

/// The configuration of one channel for one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Priority on the read port.
    pub read_priority: Priority,
    /// Priority on the write port.
    pub write_priority: Priority,
    pub operation: Operation,
    /// Whether a write waits for the previous one.
    pub write_mode: WriteMode,
    pub size: TransferSize,
    /// The channel to start at the end of this one.
    pub link: Option<u8>,
    /// Source of the elements; a fill ignores it.
    pub source: Side,
    pub destination: Side,
    /// The hardware requests; `None` when software starts the transfer.
    pub synchronization: Option<Synchronization>,
    /// Causes that raise an interrupt.
    pub interrupts: Interrupts,
    /// Whether the channel makes privileged accesses; requires [`Trusted`].
    pub supervisor: bool,
    /// Whether the channel stops while a debugger has stopped the processor.
    pub suspend_sensitive: bool,
}

impl ChannelConfig {
    /// The configuration for one piece of a plan: normal priority, last write non-posted, interrupts for the end and for
    /// every error.
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

    pub const fn side(&self, port: Port) -> &Side {
        match port {
            Port::Source => &self.source,
            Port::Destination => &self.destination,
        }
    }

    /// Address and length of the range that a side accesses. `None` for the source of a fill, and for ranges beyond 64
    /// bits.
    pub fn range(&self, port: Port) -> Option<(u64, u64)> {
        if port == Port::Source && !self.operation.reads() {
            return None;
        }
        let (first, end) = self.side(port).extent(&self.size);
        Some((u64::try_from(first).ok()?, u64::try_from(end.saturating_sub(first)).ok()?))
    }
}

/// One hardware transfer of a plan, the output of a planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    pub size: TransferSize,
    pub source: Side,
    pub destination: Side,
}
