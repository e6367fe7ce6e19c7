//! Completion records: 32 bytes each, written by the device (8.2).
//!
//! ```text
//! word 0   status │ result │ fault information │ bytes completed      word 2   invalid flags, or CRC
//! word 1   address of the fault                                       word 3   unused
//! ```
//!
//! A status of zero means that the device has not written the record. What a reader does not expect has to be checked: other software may
//! have written the memory.

use bitfield_struct::bitfield;
use core::fmt;

/// Words of 64 bits in a record.
pub const WORDS: usize = 4;
/// Size and alignment in bytes.
pub const BYTES: u64 = 32;

/// Status of an operation (5.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    Success,
    /// A checked result was not the expected one.
    FalsePredicate,
    /// A page fault ended it early; the record says where.
    PageFault,
    /// A page request was answered with an error.
    PageRequestFailed,
    /// An operation of the batch did not succeed.
    BatchFailed,
    /// A page fault on the list of descriptors.
    BatchPageFault,
    UnsupportedOperation,
    InvalidFlags,
    ReservedField,
    InvalidSize,
    InvalidCount,
    InvalidValue,
    Overlap,
    DualcastMisaligned,
    ListMisaligned,
    InvalidInterruptHandle,
    RecordPageFault,
    RecordMisaligned,
    AddressMisaligned,
    InvalidPrivilege,
    InvalidTrafficClass,
    ReadbackPageFault,
    ReadError,
    WriteError,
    TranslationError,
}

/// Codes and words for people.
const STATUSES: [(u8, Status, &str); 25] = [
    (0x01, Status::Success, "success"),
    (0x02, Status::FalsePredicate, "success with false predicate"),
    (0x03, Status::PageFault, "partly done: page fault"),
    (0x04, Status::PageRequestFailed, "partly done: a page request failed"),
    (0x05, Status::BatchFailed, "an operation of the batch did not succeed"),
    (0x06, Status::BatchPageFault, "page fault on the batch's list"),
    (0x10, Status::UnsupportedOperation, "unsupported operation"),
    (0x11, Status::InvalidFlags, "invalid flags"),
    (0x12, Status::ReservedField, "a reserved field is not zero"),
    (0x13, Status::InvalidSize, "the transfer size is zero or too large"),
    (0x14, Status::InvalidCount, "the number of descriptors is out of range"),
    (0x15, Status::InvalidValue, "unsupported value of a field"),
    (0x16, Status::Overlap, "buffers overlap"),
    (0x17, Status::DualcastMisaligned, "the two destinations differ in their lower bits"),
    (0x18, Status::ListMisaligned, "the batch's list is misaligned"),
    (0x19, Status::InvalidInterruptHandle, "invalid interrupt handle"),
    (0x1A, Status::RecordPageFault, "page fault on the completion record"),
    (0x1B, Status::RecordMisaligned, "the completion record is misaligned"),
    (0x1C, Status::AddressMisaligned, "an address is misaligned"),
    (0x1D, Status::InvalidPrivilege, "privileged without the PCI capability"),
    (0x1E, Status::InvalidTrafficClass, "a traffic class is not enabled"),
    (0x1F, Status::ReadbackPageFault, "page fault on a readback address"),
    (0x20, Status::ReadError, "hardware error, such as on a read"),
    (0x21, Status::WriteError, "hardware error on a write"),
    (0x22, Status::TranslationError, "error of address translation"),
];

impl Status {
    /// The status of a code of six bits; `None` for one that this crate does not know, and for 0.
    pub fn from_code(code: u8) -> Option<Self> {
        STATUSES.iter().find(|(known, ..)| *known == code).map(|(_, status, _)| *status)
    }

    pub fn code(self) -> u8 {
        STATUSES.iter().find(|(_, status, _)| *status == self).map_or(0, |(code, ..)| *code)
    }

    /// Whether the operation did all it should.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success | Self::FalsePredicate)
    }

    /// Whether it is a page fault, so that the record has an address and a direction.
    pub const fn is_fault(self) -> bool {
        matches!(
            self,
            Self::PageFault
                | Self::PageRequestFailed
                | Self::BatchPageFault
                | Self::RecordPageFault
                | Self::ReadbackPageFault
        )
    }

    /// Whether a completion record never has it, because it is about the record itself (5.8.1).
    pub const fn is_software_error(self) -> bool {
        matches!(self, Self::RecordPageFault | Self::RecordMisaligned | Self::InvalidPrivilege)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = STATUSES.iter().find(|(_, status, _)| status == self).map_or("", |(.., words)| *words);
        write!(f, "{words} (status {:#04x})", self.code())
    }
}

/// Word 0 of a record.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Head {
    /// Zero: not written yet.
    #[bits(6)]
    pub status: u8,
    #[bits(1)]
    __: u8,
    /// The faulting access was a write.
    pub write: bool,
    /// Operation-specific: a difference was found, or the direction of a move.
    pub result: u8,
    /// The fault's address is masked or missing; only with fault information.
    pub masked: bool,
    /// The faulting operand; only with fault information. See [`operand`].
    #[bits(3)]
    pub operand: u8,
    #[bits(12)]
    __: u16,
    /// Bytes done before a fault, or descriptors of a batch.
    pub completed: u32,
}

/// Operands that a fault's record names (table 8-13).
pub mod operand {
    pub const UNKNOWN: u8 = 0;
    /// The source, the first source, or the list of a batch.
    pub const SOURCE: u8 = 1;
    /// The second source, or the address of a CRC's seed.
    pub const SECOND_SOURCE: u8 = 2;
    pub const DESTINATION: u8 = 3;
    pub const SECOND_DESTINATION: u8 = 4;
}

/// A record with its fields, whether or not they make sense together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Record {
    pub head: Head,
    pub fault_address: u64,
    /// Invalid flags in the lower 24 bits, or a CRC.
    pub value: u64,
}

impl Record {
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self { head: Head::from_bits(words[0]), fault_address: words[1], value: words[2] }
    }

    pub const fn into_words(self) -> [u64; WORDS] {
        [self.head.into_bits(), self.fault_address, self.value, 0]
    }
}
