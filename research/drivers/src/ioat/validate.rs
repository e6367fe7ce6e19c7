//! The rules that rings and requests keep, each with its own error.
//!
//! ```text
//! RingConfig ──► alignment ──► size ──► place ──► Ok          Request ──► device can ──► length ──► sources ──► addresses ──► Ok
//! ```
//!
//! The first broken rule is reported. Whether the caller may touch the memory at all is not looked at.

use memferry_registers::ioat::descriptor::{LEAST_SOURCES, MOST_SOURCES};
use memferry_registers::ioat::{COMPLETION_ALIGNMENT, DESCRIPTOR_BYTES};
use thiserror::Error;

use super::request::{Operation, RingConfig};

/// Descriptors of a ring at least: one of its slots stays empty, and another may wait behind an extension.
const LEAST_SLOTS: u16 = 4;
/// Descriptors of a ring at most: the count is of 16 bits, and has to tell forward from back.
const MOST_SLOTS: u16 = 1 << 15;

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes of a descriptor at most.
    pub longest: u64,
    pub fills: bool,
    pub xor: bool,
}

/// A rule that a ring breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// Descriptors do not lie on multiples of their size.
    #[error("the ring at {address:#x} is not on a multiple of {DESCRIPTOR_BYTES}: align it")]
    Misaligned { address: u64 },
    /// The completion word does not lie on a multiple of its size.
    #[error("the completion word at {address:#x} is not on a multiple of {COMPLETION_ALIGNMENT}: align it")]
    CompletionMisaligned { address: u64 },
    #[error("the completion word's address is zero, which stands for none: give the device a word")]
    NoCompletion,
    #[error("a ring of {slots} descriptors is too small: it needs {LEAST_SLOTS}")]
    TooSmall { slots: u16 },
    #[error("a ring of {slots} descriptors is too large for the count: {MOST_SLOTS} at most")]
    TooLarge { slots: u16 },
    /// The ring leaves the address space.
    #[error("the ring at {address:#x} leaves the address space: place it lower")]
    LeavesAddressSpace { address: u64 },
    /// The completion word is one of the ring's.
    #[error("the completion word at {address:#x} lies in the ring: place it beside")]
    CompletionInRing { address: u64 },
}

/// A rule that a request breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The device does not fill.
    #[error("this device does not fill: copy from memory that holds the pattern")]
    NoFills,
    /// The device does no XOR.
    #[error("this device does no xor: let the CPU do it")]
    NoXor,
    #[error("the request moves no bytes: leave it out, or ask for nothing")]
    NoBytes,
    /// More than one descriptor may move.
    #[error("{bytes} bytes, one descriptor moves {limit} at most: cut the request")]
    TooLong { bytes: u64, limit: u64 },
    #[error("an xor of {sources} sources: it has at least {LEAST_SOURCES}, one is a copy")]
    TooFewSources { sources: usize },
    #[error("an xor of {sources} sources: it has at most {MOST_SOURCES}, go over them by turns")]
    TooManySources { sources: usize },
    /// A side leaves the address space.
    #[error("{bytes} bytes at {address:#x} leave the address space: make the request shorter")]
    LeavesAddressSpace { address: u64, bytes: u64 },
}

pub(super) fn check_ring(ring: &RingConfig) -> Result<(), RingError> {
    let RingConfig { ring: address, slots, completion } = *ring;
    if !address.is_multiple_of(DESCRIPTOR_BYTES) {
        return Err(RingError::Misaligned { address });
    }
    if !completion.is_multiple_of(COMPLETION_ALIGNMENT) {
        return Err(RingError::CompletionMisaligned { address: completion });
    }
    if completion == 0 {
        return Err(RingError::NoCompletion);
    }
    if slots < LEAST_SLOTS {
        return Err(RingError::TooSmall { slots });
    }
    if slots > MOST_SLOTS {
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

pub(super) fn check_request(operation: &Operation<'_>, limits: &Limits) -> Result<(), RequestError> {
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
                count if count < LEAST_SOURCES => Err(RequestError::TooFewSources { sources: count }),
                count if count > MOST_SOURCES => Err(RequestError::TooManySources { sources: count }),
                _ => {
                    sources.iter().try_for_each(|source| inside(*source, bytes))?;
                    inside(destination, bytes)
                }
            }
        }
    }
}
