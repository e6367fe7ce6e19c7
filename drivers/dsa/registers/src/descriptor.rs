//! Descriptors: 64 bytes each, written to a portal or listed in a batch (8.1, 8.3).
//!
//! ```text
//! word 0   PASID, privilege │ flags │ operation code       word 4   transfer size or count │ interrupt handle
//! word 1   completion record                               word 5   second destination, expected result, or CRC seed
//! word 2   source, pattern, list, or readback address      word 6   address of the CRC seed
//! word 3   destination, second source, or pattern          word 7   unused
//! ```
//!
//! Words are little-endian. [`rules`] has the flags and reserved fields of each operation (tables 5-3 and 5-4).

use bitfield_struct::bitfield;
use core::fmt;

/// Words of 64 bits in a descriptor.
pub const WORDS: usize = 8;
/// Size and alignment in bytes; a list of descriptors has this alignment, too (8.3.2).
pub const BYTES: u64 = 64;

/// Operation codes (8.1.2).
pub mod opcode {
    pub const NOP: u8 = 0x00;
    pub const BATCH: u8 = 0x01;
    pub const DRAIN: u8 = 0x02;
    pub const MOVE: u8 = 0x03;
    pub const FILL: u8 = 0x04;
    pub const COMPARE: u8 = 0x05;
    pub const COMPARE_PATTERN: u8 = 0x06;
    pub const DUALCAST: u8 = 0x09;
    pub const CRC: u8 = 0x10;
    pub const COPY_CRC: u8 = 0x11;
    pub const FLUSH: u8 = 0x20;

    /// The codes of this module.
    pub const ALL: [u8; 11] =
        [NOP, BATCH, DRAIN, MOVE, FILL, COMPARE, COMPARE_PATTERN, DUALCAST, CRC, COPY_CRC, FLUSH];
}

/// Flags of a descriptor (8.1.3).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Flags {
    /// In a batch: begins when those before it are complete, and not at all if one of them failed.
    pub fence: bool,
    /// Waits for page faults to be resolved.
    pub block_on_fault: bool,
    /// The descriptor has the address of a completion record.
    pub record_valid: bool,
    /// Writes the completion record also if all went well.
    pub request_record: bool,
    pub request_interrupt: bool,
    /// Cache control 3.
    pub cache_control_3: bool,
    #[bits(1)]
    __: u8,
    /// The result decides between success and false predicate.
    pub check_result: bool,
    /// Cache control 1: writes to the cache rather than to memory.
    pub to_cache: bool,
    /// Traffic class B for the first address, the second, the third, and the completion record.
    pub first_class_b: bool,
    pub second_class_b: bool,
    pub third_class_b: bool,
    pub record_class_b: bool,
    pub strict_order: bool,
    /// Cache control 2: reads the destination back before the operation completes.
    pub readback: bool,
    #[bits(1)]
    __: u8,
    /// Operation-specific; see [`specific`].
    pub specific: u8,
    #[bits(8)]
    __: u8,
}

/// Values of the operation-specific flags.
pub mod specific {
    /// Batch: an operation of it failed before (8.3.2).
    pub const BATCH_ERROR: u8 = 1;
    /// Drain: the readback addresses are valid (8.3.3).
    pub const READBACK_1: u8 = 1;
    pub const READBACK_2: u8 = 2;
    /// Drain: no implicit readback on traffic class A, and on B.
    pub const NO_READBACK_A: u8 = 4;
    pub const NO_READBACK_B: u8 = 8;
    /// Fill: the pattern has 16 bytes (8.3.5).
    pub const PATTERN_16: u8 = 4;
    /// CRC: the seed is read from memory (8.3.12).
    pub const READ_SEED: u8 = 1;
    /// CRC: seed and result are neither inverted nor in standard bit order.
    pub const CRC_AS_IS: u8 = 2;
    /// CRC: bit 7 of each byte is the first.
    pub const DATA_AS_IS: u8 = 4;
    /// CRC: 64 bits.
    pub const CRC_64: u8 = 8;
}

/// An operation with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Nop,
    /// Executes a list of descriptors.
    Batch {
        list: u64,
        count: u32,
    },
    /// Completes when the descriptors before it in its work queue have.
    Drain,
    /// As memmove, if the device supports overlaps.
    Move {
        source: u64,
        destination: u64,
        bytes: u32,
    },
    /// Repeats eight bytes, the first in the lowest bits, from the first byte of the destination.
    Fill {
        pattern: u64,
        destination: u64,
        bytes: u32,
    },
    Compare {
        first: u64,
        second: u64,
        bytes: u32,
    },
    ComparePattern {
        pattern: u64,
        source: u64,
        bytes: u32,
    },
    /// Bits 11 to 0 of the destinations are equal.
    Dualcast {
        source: u64,
        destinations: [u64; 2],
        bytes: u32,
    },
    /// CRC-32C of the source, continued from a seed.
    Crc {
        source: u64,
        bytes: u32,
        seed: u32,
    },
    CopyCrc {
        source: u64,
        destination: u64,
        bytes: u32,
        seed: u32,
    },
    /// Flushes the CPUs' caches.
    Flush {
        destination: u64,
        bytes: u32,
    },
}

impl Operation {
    /// The code of the operation.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Nop => opcode::NOP,
            Self::Batch { .. } => opcode::BATCH,
            Self::Drain => opcode::DRAIN,
            Self::Move { .. } => opcode::MOVE,
            Self::Fill { .. } => opcode::FILL,
            Self::Compare { .. } => opcode::COMPARE,
            Self::ComparePattern { .. } => opcode::COMPARE_PATTERN,
            Self::Dualcast { .. } => opcode::DUALCAST,
            Self::Crc { .. } => opcode::CRC,
            Self::CopyCrc { .. } => opcode::COPY_CRC,
            Self::Flush { .. } => opcode::FLUSH,
        }
    }

    /// Transfer size, or the descriptors of a batch. Zero for operations that have neither.
    pub const fn size(&self) -> u32 {
        match self {
            Self::Nop | Self::Drain => 0,
            Self::Batch { count, .. } => *count,
            Self::Move { bytes, .. }
            | Self::Fill { bytes, .. }
            | Self::Compare { bytes, .. }
            | Self::ComparePattern { bytes, .. }
            | Self::Dualcast { bytes, .. }
            | Self::Crc { bytes, .. }
            | Self::CopyCrc { bytes, .. }
            | Self::Flush { bytes, .. } => *bytes,
        }
    }

    /// Bytes that it visits in memory: its transfer size, zero for a batch.
    pub const fn transfer_bytes(&self) -> u32 {
        match self {
            Self::Batch { .. } => 0,
            _ => self.size(),
        }
    }

    /// Addresses that it reads, as far as there are any.
    pub const fn reads(&self) -> [Option<u64>; 2] {
        match self {
            Self::Move { source, .. }
            | Self::ComparePattern { source, .. }
            | Self::Dualcast { source, .. }
            | Self::Crc { source, .. }
            | Self::CopyCrc { source, .. } => [Some(*source), None],
            Self::Compare { first, second, .. } => [Some(*first), Some(*second)],
            _ => [None, None],
        }
    }

    /// Addresses that it writes, or flushes from caches, as far as there are any.
    pub const fn writes(&self) -> [Option<u64>; 2] {
        match self {
            Self::Move { destination, .. }
            | Self::Fill { destination, .. }
            | Self::CopyCrc { destination, .. }
            | Self::Flush { destination, .. } => [Some(*destination), None],
            Self::Dualcast { destinations, .. } => [Some(destinations[0]), Some(destinations[1])],
            _ => [None, None],
        }
    }
}

/// A descriptor as the device takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Descriptor {
    pub words: [u64; WORDS],
}

impl Descriptor {
    /// The descriptor of an operation, without completion record and interrupt.
    pub const fn new(operation: &Operation, flags: Flags) -> Self {
        let mut words = [0; WORDS];
        words[0] = (flags.into_bits() as u64) << 32 | (operation.code() as u64) << 56;
        words[4] = operation.size() as u64;
        match operation {
            Operation::Nop | Operation::Drain => {}
            Operation::Batch { list, .. } => words[2] = *list,
            Operation::Move { source, destination, .. } => {
                words[2] = *source;
                words[3] = *destination;
            }
            Operation::Fill { pattern, destination, .. } => {
                words[2] = *pattern;
                words[3] = *destination;
            }
            Operation::Compare { first, second, .. } => {
                words[2] = *first;
                words[3] = *second;
            }
            Operation::ComparePattern { pattern, source, .. } => {
                words[2] = *source;
                words[3] = *pattern;
            }
            Operation::Dualcast { source, destinations, .. } => {
                words[2] = *source;
                words[3] = destinations[0];
                words[5] = destinations[1];
            }
            Operation::Crc { source, seed, .. } => {
                words[2] = *source;
                words[5] = *seed as u64;
            }
            Operation::CopyCrc { source, destination, seed, .. } => {
                words[2] = *source;
                words[3] = *destination;
                words[5] = *seed as u64;
            }
            Operation::Flush { destination, .. } => words[3] = *destination,
        }
        Self { words }
    }

    /// The same with a completion record at `address`.
    pub const fn with_record(mut self, address: u64) -> Self {
        self.words[1] = address;
        self.with_flags(self.flags().with_record_valid(true).with_request_record(true))
    }

    /// The same with an interrupt by `handle` at its completion.
    pub const fn with_interrupt(mut self, handle: u16) -> Self {
        self.words[4] = self.words[4] & 0xFFFF_FFFF | (handle as u64) << 32;
        self.with_flags(self.flags().with_request_interrupt(true))
    }

    /// The same with other flags.
    pub const fn with_flags(mut self, flags: Flags) -> Self {
        self.words[0] = self.words[0] & !0x00FF_FFFF_0000_0000 | (flags.into_bits() as u64 & 0xFF_FFFF) << 32;
        self
    }

    /// The same with an address space and a privilege, which the device takes in a shared work queue only.
    pub const fn with_pasid(mut self, pasid: u32, privileged: bool) -> Self {
        let trusted = (pasid & 0xF_FFFF) as u64 | (privileged as u64) << 31;
        self.words[0] = self.words[0] & !0xFFFF_FFFF | trusted;
        self
    }

    pub const fn pasid(&self) -> u32 {
        self.words[0] as u32 & 0xF_FFFF
    }

    pub const fn is_privileged(&self) -> bool {
        self.words[0] >> 31 & 1 == 1
    }

    pub const fn flags(&self) -> Flags {
        Flags::from_bits((self.words[0] >> 32) as u32 & 0xFF_FFFF)
    }

    pub const fn code(&self) -> u8 {
        (self.words[0] >> 56) as u8
    }

    /// Address of the completion record.
    pub const fn record(&self) -> u64 {
        self.words[1]
    }

    /// Transfer size, or the descriptors of a batch.
    pub const fn size(&self) -> u32 {
        self.words[4] as u32
    }

    pub const fn interrupt_handle(&self) -> u16 {
        (self.words[4] >> 32) as u16
    }

    /// The result that a comparison is checked against; only bit 0 counts (8.3.6).
    pub const fn expected_result(&self) -> u8 {
        self.words[5] as u8
    }

    /// Address of the CRC's seed, if it is read from memory.
    pub const fn seed_address(&self) -> u64 {
        self.words[6]
    }

    /// The operation; `None` for a code that is not in [`opcode`].
    pub const fn operation(&self) -> Option<Operation> {
        let words = &self.words;
        let bytes = self.size();
        Some(match self.code() {
            opcode::NOP => Operation::Nop,
            opcode::BATCH => Operation::Batch { list: words[2], count: bytes },
            opcode::DRAIN => Operation::Drain,
            opcode::MOVE => Operation::Move { source: words[2], destination: words[3], bytes },
            opcode::FILL => Operation::Fill { pattern: words[2], destination: words[3], bytes },
            opcode::COMPARE => Operation::Compare { first: words[2], second: words[3], bytes },
            opcode::COMPARE_PATTERN => {
                Operation::ComparePattern { source: words[2], pattern: words[3], bytes }
            }
            opcode::DUALCAST => {
                Operation::Dualcast { source: words[2], destinations: [words[3], words[5]], bytes }
            }
            opcode::CRC => Operation::Crc { source: words[2], bytes, seed: words[5] as u32 },
            opcode::COPY_CRC => {
                Operation::CopyCrc { source: words[2], destination: words[3], bytes, seed: words[5] as u32 }
            }
            opcode::FLUSH => Operation::Flush { destination: words[3], bytes },
            _ => return None,
        })
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation() {
            Some(operation) => write!(f, "{operation:?}")?,
            None => write!(f, "operation {:#04x}", self.code())?,
        }
        let flags = self.flags();
        write!(f, ", flags {:#08x}", flags.into_bits())?;
        if flags.record_valid() { write!(f, ", record at {:#x}", self.record()) } else { Ok(()) }
    }
}

/// What an operation's descriptors may have (tables 5-3 and 5-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Flags that may be set, as far as the device and the work queue permit.
    pub flags: Flags,
    /// Flags that must be set.
    pub required: Flags,
    /// Bits of each word that must be zero. Words 0 and 1 and the interrupt handle have rules of their own.
    pub reserved: [u64; WORDS],
}

/// Flags that every operation may have.
const COMMON: Flags = Flags::new()
    .with_fence(true)
    .with_record_valid(true)
    .with_request_record(true)
    .with_request_interrupt(true)
    .with_record_class_b(true);
/// Flags of operations that write memory.
const WRITES: Flags = COMMON
    .with_block_on_fault(true)
    .with_to_cache(true)
    .with_cache_control_3(true)
    .with_readback(true)
    .with_strict_order(true);
/// Flags of operations whose result the completion record has.
const RESULT: Flags = Flags::new().with_record_valid(true).with_request_record(true);
const NONE: Flags = Flags::new();
const ALL: u64 = u64::MAX;
/// Bytes 32 to 35.
const SIZE: u64 = 0xFFFF_FFFF;
/// Bytes 38 and 39.
const AFTER_HANDLE: u64 = 0xFFFF << 48;

/// The rules of an operation code; `None` if it is not in [`opcode`].
pub const fn rules(code: u8) -> Option<Rules> {
    let readbacks = specific::READBACK_1 | specific::READBACK_2;
    let suppressed = specific::NO_READBACK_A | specific::NO_READBACK_B;
    let of_crc = specific::READ_SEED | specific::CRC_AS_IS | specific::DATA_AS_IS | specific::CRC_64;
    let (flags, required, reserved) = match code {
        opcode::NOP => (COMMON, NONE, [0, 0, ALL, ALL, SIZE | AFTER_HANDLE, ALL, ALL, ALL]),
        opcode::BATCH => (
            COMMON.with_first_class_b(true).with_specific(specific::BATCH_ERROR),
            NONE,
            [0, 0, 0, ALL, AFTER_HANDLE, ALL, ALL, ALL],
        ),
        opcode::DRAIN => (
            COMMON.with_first_class_b(true).with_second_class_b(true).with_specific(readbacks | suppressed),
            NONE,
            [0, 0, 0, 0, SIZE | AFTER_HANDLE, ALL, ALL, ALL],
        ),
        opcode::MOVE => (
            WRITES.with_first_class_b(true).with_second_class_b(true),
            NONE,
            [0, 0, 0, 0, AFTER_HANDLE, ALL, ALL, ALL],
        ),
        opcode::FILL => (
            WRITES.with_second_class_b(true).with_specific(specific::PATTERN_16),
            NONE,
            [0, 0, 0, 0, AFTER_HANDLE, 0, ALL, ALL],
        ),
        opcode::COMPARE => (
            COMMON
                .with_block_on_fault(true)
                .with_check_result(true)
                .with_first_class_b(true)
                .with_second_class_b(true),
            RESULT,
            [0, 0, 0, 0, AFTER_HANDLE, !0xFF, ALL, ALL],
        ),
        opcode::COMPARE_PATTERN => (
            COMMON.with_block_on_fault(true).with_check_result(true).with_first_class_b(true),
            RESULT,
            [0, 0, 0, 0, AFTER_HANDLE, !0xFF, ALL, ALL],
        ),
        opcode::DUALCAST => (
            WRITES.with_first_class_b(true).with_second_class_b(true).with_third_class_b(true),
            NONE,
            [0, 0, 0, 0, AFTER_HANDLE, 0, ALL, ALL],
        ),
        opcode::CRC => (
            COMMON
                .with_block_on_fault(true)
                .with_first_class_b(true)
                .with_third_class_b(true)
                .with_specific(of_crc),
            RESULT,
            [0, 0, 0, ALL, AFTER_HANDLE, 0, 0, ALL],
        ),
        opcode::COPY_CRC => (
            WRITES
                .with_first_class_b(true)
                .with_second_class_b(true)
                .with_third_class_b(true)
                .with_specific(of_crc),
            RESULT,
            [0, 0, 0, 0, AFTER_HANDLE, 0, 0, ALL],
        ),
        // Of the cache control flags only 2 has a meaning (table 8-4).
        opcode::FLUSH => (
            WRITES.with_second_class_b(true).with_to_cache(false).with_cache_control_3(false),
            NONE,
            [0, 0, ALL, 0, AFTER_HANDLE, ALL, ALL, ALL],
        ),
        _ => return None,
    };
    Some(Rules { flags, required, reserved })
}
