//! The rules for rings and requests, each with its own error.
//!
//! ```text
//! RingConfig ──► alignment ──► size ──► place ──► Ok     Request ──► operation ──► length ──► sources ──► addresses ──► Ok
//! ```
//!
//! Validation reports the first broken rule. It does not check the client's rights to the memory.

use memferry_ioat_registers::descriptor::{MAX_SOURCES, MIN_SOURCES};
use memferry_ioat_registers::{COMPLETION_ALIGNMENT, DESCRIPTOR_BYTES};
use thiserror::Error;

use super::request::{Operation, Request, RingConfig};

/// Minimum number of descriptors in a ring: one slot stays empty, one may hold an extension that is not done yet, and an
/// XOR needs two.
const MIN_SLOTS: u16 = 4;
/// Maximum number of descriptors in a ring: half the range of the 16-bit DMACOUNT, so that the order of two counts is clear.
const MAX_SLOTS: u16 = 1 << 15;

/// Limits and operations of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// Maximum number of bytes that one descriptor moves.
    pub longest: u64,
    pub fills: bool,
    pub xor: bool,
}

/// A rule that a ring breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    #[error("the ring at {address:#x} is not on a multiple of {DESCRIPTOR_BYTES}: align it")]
    Misaligned { address: u64 },
    #[error("the completion word at {address:#x} is not on a multiple of {COMPLETION_ALIGNMENT}: align it")]
    CompletionMisaligned { address: u64 },
    #[error("the completion word's address is zero: give the channel a completion word")]
    NoCompletion,
    #[error("a ring of {slots} descriptors is too small: use at least {MIN_SLOTS}")]
    TooSmall { slots: u16 },
    #[error("a ring of {slots} descriptors is too large: use at most {MAX_SLOTS}")]
    TooLarge { slots: u16 },
    /// The ring's end exceeds 64 bits.
    #[error("the ring at {address:#x} leaves the address space: place it lower")]
    LeavesAddressSpace { address: u64 },
    #[error("the completion word at {address:#x} lies in the ring: place it outside")]
    CompletionInRing { address: u64 },
}

/// A rule that a request breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    #[error("this device cannot fill: copy from memory that holds the pattern")]
    NoFills,
    #[error("this device cannot xor: let the CPU do it")]
    NoXor,
    #[error("the request moves no bytes: omit it, or use a null operation")]
    NoBytes,
    #[error("{bytes} bytes exceed one descriptor's limit of {limit}: split the request")]
    TooLong { bytes: u64, limit: u64 },
    #[error("an xor of {sources} sources: it needs at least {MIN_SOURCES}, use a copy for one")]
    TooFewSources { sources: usize },
    #[error("an xor of {sources} sources: it takes at most {MAX_SOURCES}, use several requests")]
    TooManySources { sources: usize },
    /// The end of a source or destination exceeds 64 bits.
    #[error("{bytes} bytes at {address:#x} leave the address space: make the request shorter")]
    LeavesAddressSpace { address: u64, bytes: u64 },
}

impl RingConfig {
    /// Checks every rule for rings.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn validate(&self) -> Result<(), RingError> {
        let Self { ring: address, slots, completion } = *self;
        if !address.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(RingError::Misaligned { address });
        }
        if !completion.is_multiple_of(COMPLETION_ALIGNMENT) {
            return Err(RingError::CompletionMisaligned { address: completion });
        }
        if completion == 0 {
            return Err(RingError::NoCompletion);
        }
        if slots < MIN_SLOTS {
            return Err(RingError::TooSmall { slots });
        }
        if slots > MAX_SLOTS {
            return Err(RingError::TooLarge { slots });
        }
        let Some(end) = address.checked_add(u64::from(slots) * DESCRIPTOR_BYTES) else {
            return Err(RingError::LeavesAddressSpace { address });
        };
        if (address..end).contains(&completion) {
            return Err(RingError::CompletionInRing { address: completion });
        }
        Ok(())
    }
}

impl Request<'_> {
    /// Checks every rule for requests to a device with these limits.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn validate(&self, limits: &Limits) -> Result<(), RequestError> {
        check_request(&self.operation, limits)
    }
}

fn check_request(operation: &Operation<'_>, limits: &Limits) -> Result<(), RequestError> {
    let length = |bytes: u64| match bytes {
        0 => Err(RequestError::NoBytes),
        bytes if bytes > limits.longest => Err(RequestError::TooLong { bytes, limit: limits.longest }),
        _ => Ok(()),
    };
    let inside = |address: u64, bytes: u64| match address.checked_add(bytes) {
        Some(_) => Ok(()),
        None => Err(RequestError::LeavesAddressSpace { address, bytes }),
    };
    match *operation {
        Operation::Null => Ok(()),
        Operation::Copy { source, destination, bytes } => {
            length(bytes)?;
            inside(source, bytes)?;
            inside(destination, bytes)
        }
        Operation::Fill { .. } if !limits.fills => Err(RequestError::NoFills),
        Operation::Fill { destination, bytes, .. } => {
            length(bytes)?;
            inside(destination, bytes)
        }
        Operation::Xor { .. } if !limits.xor => Err(RequestError::NoXor),
        Operation::Xor { sources, destination, bytes } => {
            length(bytes)?;
            match sources.len() {
                count if count < MIN_SOURCES => Err(RequestError::TooFewSources { sources: count }),
                count if count > MAX_SOURCES => Err(RequestError::TooManySources { sources: count }),
                _ => {
                    sources.iter().try_for_each(|source| inside(*source, bytes))?;
                    inside(destination, bytes)
                }
            }
        }
    }
}
