//! What an engine process announces when it connects, and the checks of it.

use memferry_transfer::Operations;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum of [`EngineDescription::alignment_bytes`]: a large page.
const MAX_ALIGNMENT: u32 = 2 << 20;
/// Maximum of [`EngineDescription::channels`].
const MAX_CHANNELS: u32 = 1 << 12;
/// Maximum of [`EngineDescription::longest_bytes`]: what the service lets one request move.
const LONGEST_BYTES: u64 = 1 << 40;

/// An engine's capabilities and cost, announced once for each connection.
///
/// ```
/// use memferry_external::EngineDescription;
/// use memferry_transfer::Operations;
///
/// let description = EngineDescription { operations: Operations::COPY, ..EngineDescription::default() };
/// assert_eq!(description.check(), Ok(()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineDescription {
    /// Kinds of operations that it performs.
    pub operations: Operations,
    /// Longest transfer in bytes, counted as [`total_bytes`](memferry_transfer::Operation::total_bytes).
    pub longest_bytes: u64,
    /// Shortest transfer in bytes for which handing it over pays.
    pub shortest_bytes: u64,
    /// Every offset and length is a multiple of this many bytes, a power of two.
    pub alignment_bytes: u32,
    /// Requests of all workers that it takes at a time.
    pub channels: u32,
    /// Bytes of memory of its own in which clients can have frames; 0 if it has none.
    pub memory_bytes: u64,
}

impl Default for EngineDescription {
    /// Everything that the CPU does with memory, from 64 KiB on, 8 requests at a time.
    fn default() -> Self {
        Self {
            operations: Operations::OF_MEMORY,
            longest_bytes: LONGEST_BYTES,
            shortest_bytes: 64 << 10,
            alignment_bytes: 1,
            channels: 8,
            memory_bytes: 0,
        }
    }
}

/// Why a description is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DescriptionError {
    /// It names no operation, one that does not exist, or one driven by a device.
    #[error("the operations {0:#x} have to be some of {all:#x}", all = Operations::OF_MEMORY.bits())]
    Operations(u32),
    /// The alignment is no power of two, or too large.
    #[error("the alignment of {0} bytes has to be a power of two up to {MAX_ALIGNMENT}")]
    Alignment(u32),
    /// The number of channels is 0 or too large.
    #[error("{0} channels are not from 1 to {MAX_CHANNELS}")]
    Channels(u32),
    /// The longest transfer is empty, too long, or shorter than the shortest.
    #[error(
        "transfers from {shortest} to {longest} bytes have to lie between 0 and {LONGEST_BYTES}, and the longest cannot be 0"
    )]
    Lengths {
        /// The minimum that was announced.
        shortest: u64,
        /// The maximum that was announced.
        longest: u64,
    },
}

impl EngineDescription {
    /// Checks every number.
    ///
    /// # Errors
    /// [`DescriptionError`] for the first one that is wrong.
    pub fn check(&self) -> Result<(), DescriptionError> {
        let Self { operations, longest_bytes: longest, shortest_bytes: shortest, .. } = *self;
        let Self { alignment_bytes, channels, .. } = *self;
        if operations.is_empty() || !Operations::OF_MEMORY.contains(operations) {
            return Err(DescriptionError::Operations(operations.bits()));
        }
        if !alignment_bytes.is_power_of_two() || alignment_bytes > MAX_ALIGNMENT {
            return Err(DescriptionError::Alignment(alignment_bytes));
        }
        if channels == 0 || channels > MAX_CHANNELS {
            return Err(DescriptionError::Channels(channels));
        }
        if longest == 0 || longest > LONGEST_BYTES || shortest > longest {
            return Err(DescriptionError::Lengths { shortest, longest });
        }
        Ok(())
    }
}
