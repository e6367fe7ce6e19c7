//! Requests and their rules.

use memferry_dsa_registers::capability::Opcap;
use memferry_dsa_registers::descriptor::{Flags, Operation};
use thiserror::Error;

/// What a work queue accepts. The control half reads it from the device ([`Dsa::limits`](crate::Dsa::limits)); under Linux it is in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the longest transfer.
    pub longest: u64,
    /// Descriptors of the largest batch. Less than two: no batches.
    pub largest_batch: u32,
    /// A batch may consist of one descriptor.
    pub batch_of_one: bool,
    pub operations: Opcap,
    /// Moves may overlap, as with memmove.
    pub overlapping_moves: bool,
    /// Data can be written to the cache.
    pub cache_control: bool,
    /// Descriptors may wait for page faults.
    pub block_on_fault: bool,
    /// Completion records name the operand of a fault, and may mask its address.
    pub fault_info: bool,
}

/// An operation and how it is carried out. Addresses are the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub operation: Operation,
    /// In a batch: begins when those before it are complete, and not at all if one of them failed.
    pub fence: bool,
    /// Hints that data should be written to the cache. Ignored by a device that cannot.
    pub to_cache: bool,
    /// Waits for page faults instead of ending early.
    pub block_on_fault: bool,
    /// Handle of an interrupt to raise at the completion.
    pub interrupt: Option<u16>,
}

/// Why a request cannot be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    #[error("the device or its work queue does not perform operation {code:#04x}: let the CPU do it")]
    Unsupported { code: u8 },
    #[error("a transfer of no bytes: complete it without the device")]
    NoBytes,
    #[error("a transfer of {bytes} bytes; the work queue's limit is {limit}: split it")]
    TooLong { bytes: u32, limit: u64 },
    #[error("{bytes} bytes from {address:#x} leave the address space: check the address")]
    LeavesAddressSpace { address: u64, bytes: u32 },
    #[error("buffers at {first:#x} and {second:#x} overlap in {bytes} bytes: let the CPU do it")]
    Overlap { first: u64, second: u64, bytes: u32 },
    #[error("the destinations {first:#x} and {second:#x} differ in their lower 12 bits: copy twice")]
    Misaligned { first: u64, second: u64 },
    #[error("a fence outside a batch: submit a drain, or wait for the completion")]
    FenceOutsideBatch,
    #[error("a batch or drain within a batch: submit it alone")]
    Nested,
    #[error("block on fault is not enabled for the work queue: resume the request at a fault")]
    CannotBlock,
}

impl Request {
    /// A request without fence, hint and interrupt, which ends early at a page fault.
    pub const fn new(operation: Operation) -> Self {
        Self { operation, fence: false, to_cache: false, block_on_fault: false, interrupt: None }
    }

    /// Checks the request against a work queue's limits; `in_batch` says where it is to be submitted.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn validate(&self, limits: &Limits, in_batch: bool) -> Result<(), RequestError> {
        let operation = &self.operation;
        let code = operation.code();
        if !limits.operations.contains(code) {
            return Err(RequestError::Unsupported { code });
        }
        match operation {
            // The driver makes the batch descriptors itself.
            Operation::Batch { .. } => return Err(RequestError::Nested),
            Operation::Drain if in_batch => return Err(RequestError::Nested),
            _ => {}
        }
        if self.fence && !in_batch {
            return Err(RequestError::FenceOutsideBatch);
        }
        if self.block_on_fault && !limits.block_on_fault {
            return Err(RequestError::CannotBlock);
        }
        match operation {
            Operation::Nop | Operation::Drain => Ok(()),
            _ => validate_bytes(operation, limits),
        }
    }

    /// Flags of the descriptor.
    pub(crate) fn flags(&self, limits: &Limits) -> Flags {
        let writes = self.operation.writes() != [None; 2];
        let is_flush = matches!(self.operation, Operation::Flush { .. });
        let transfers = self.operation.transfer_bytes() > 0;
        Flags::new()
            .with_fence(self.fence)
            .with_block_on_fault(self.block_on_fault && transfers)
            .with_to_cache(self.to_cache && limits.cache_control && writes && !is_flush)
    }
}

fn validate_bytes(operation: &Operation, limits: &Limits) -> Result<(), RequestError> {
    let bytes = operation.size();
    if bytes == 0 {
        return Err(RequestError::NoBytes);
    }
    if u64::from(bytes) > limits.longest {
        return Err(RequestError::TooLong { bytes, limit: limits.longest });
    }
    let reads = operation.reads();
    let writes = operation.writes();
    for address in reads.into_iter().chain(writes).flatten() {
        if address.checked_add(u64::from(bytes) - 1).is_none() {
            return Err(RequestError::LeavesAddressSpace { address, bytes });
        }
    }
    let overlaps = |first: u64, second: u64| first.abs_diff(second) < u64::from(bytes);
    let may_overlap = matches!(operation, Operation::Move { .. }) && limits.overlapping_moves;
    if !may_overlap {
        for second in writes.into_iter().flatten() {
            if let Some(first) = reads.into_iter().flatten().find(|first| overlaps(*first, second)) {
                return Err(RequestError::Overlap { first, second, bytes });
            }
        }
    }
    if let Operation::Dualcast { destinations: [first, second], .. } = *operation {
        if (first ^ second) & 0xFFF != 0 {
            return Err(RequestError::Misaligned { first, second });
        }
        if overlaps(first, second) {
            return Err(RequestError::Overlap { first, second, bytes });
        }
    }
    Ok(())
}
