//! Memory as the device addresses it.

use memferry_transfer::{EngineKind, Memory, Region};

/// Memory that a device reaches at consecutive addresses. Clones denote the same range.
pub trait DeviceMemory: Memory {
    /// Longest transfer in bytes: how far addresses reach, or what the caller submits at most.
    const LONGEST_BYTES: u64;
    /// What the engine calls itself in capabilities and completions.
    const KIND: EngineKind;

    /// The device's address of the first byte.
    fn device_address(&self) -> u64;

    /// Whether it is registers of a device, which are no plain memory.
    fn is_device(&self) -> bool {
        false
    }
}

/// The device's address of a region.
pub fn address<M: DeviceMemory>(region: &Region<M>) -> u64 {
    region.memory().device_address() + region.offset()
}

/// The device cannot perform the operation: elements are misaligned, operands overlap in a way that it does not support,
/// or device memory is used as plain memory. Or it would take so many requests that it does not pay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unplannable;
