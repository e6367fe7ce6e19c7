//! The software error register (9.2.15): errors that no completion record could take.

use bitfield_struct::bitfield;

/// First word of SWERROR. A one clears `valid` and `overflow`.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Swerr {
    pub valid: bool,
    /// A further error was not recorded.
    pub overflow: bool,
    /// The fields about the descriptor are valid.
    pub descriptor_valid: bool,
    pub queue_valid: bool,
    /// The descriptor came in a batch.
    pub batch: bool,
    /// The faulting access was a write.
    pub write: bool,
    pub privileged: bool,
    /// The error information is valid, whatever the code.
    pub information_valid: bool,
    /// A status of [`crate::record::Status`], or a code of [`other`].
    pub code: u8,
    pub queue: u8,
    #[bits(8)]
    __: u8,
    pub operation: u8,
    #[bits(20)]
    pub pasid: u32,
    #[bits(4)]
    __: u8,
}

/// Codes that are no operation's status (5.8.2).
pub mod other {
    /// PCI configuration was changed while the device was not disabled; the device is halted.
    pub const CONFIGURATION_CHANGED: u8 = 0x51;
    /// A command was written while another one was active.
    pub const COMMAND_ACTIVE: u8 = 0x52;
    /// A descriptor came to a dedicated work queue that was full, and was dropped.
    pub const QUEUE_FULL: u8 = 0x53;
}

/// The whole register, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SoftwareError {
    pub status: Swerr,
    /// The descriptor's place in its batch, if it came in one.
    pub batch_index: u16,
    /// Flags that were invalid, or other information by code.
    pub information: u32,
    /// Address of a page fault; its lower twelve bits may be zero.
    pub address: u64,
}

impl SoftwareError {
    /// The four words of the register.
    pub const fn into_words(self) -> [u64; 4] {
        let second = self.batch_index as u64 | (self.information as u64) << 32;
        [self.status.into_bits(), second, self.address, 0]
    }

    pub const fn from_words(words: [u64; 4]) -> Self {
        Self {
            status: Swerr::from_bits(words[0]),
            batch_index: words[1] as u16,
            information: (words[1] >> 32) as u32,
            address: words[2],
        }
    }
}
