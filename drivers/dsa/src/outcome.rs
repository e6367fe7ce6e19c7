//! How a request ended: a completion record, copied once and checked against its request.
//!
//! ```text
//! record ── is written? ── known status? ── does it fit the operation? ──► Done, Faulted, or Failed
//! ```

use memferry_dsa_registers::PAGE_BYTES;
use memferry_dsa_registers::descriptor::Operation;
use memferry_dsa_registers::record::{Record, Status, operand};
use thiserror::Error;

use crate::request::Limits;

/// What an operation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    None,
    /// CRC-32C, continued from the request's seed.
    Crc(u32),
    /// The compared bytes are equal.
    Equal,
    /// Offset of a difference: of the first one, but a comparison with a pattern may give an earlier offset (8.3.7).
    Difference(u32),
}

/// A page that the device could not reach. The bytes before it are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// An address in the page; `None` if the device does not say. The lower twelve bits mean nothing.
    pub address: Option<u64>,
    /// The device wanted to write it.
    pub write: bool,
    /// Bytes done of the whole request so far.
    pub bytes_done: u32,
    /// The bytes that are done are the last ones, as when a move's destination overlaps its source from above.
    pub reversed: bool,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The device refused the descriptor; nothing was moved.
    #[error("the device refused the descriptor: {0}")]
    Rejected(Status),
    /// A hardware error; it is unknown how many bytes were moved.
    #[error("the device failed: {0}")]
    Device(Status),
    /// The batch ended before this request, because of a fence behind a failure or a fault; nothing was moved.
    #[error("the batch ended before this request began: submit it again")]
    NotExecuted,
    /// The batch is complete and this request's completion record was not written; unknown how many bytes were moved.
    #[error("the completion record was not written, but that of the batch was")]
    NoRecord,
    /// The device was stopped before it wrote the completion record; unknown how many bytes were moved.
    #[error("the device was stopped before the request was complete")]
    Stopped,
    /// The completion record cannot be one of this request.
    #[error("the completion record makes no sense: {0:#x?}")]
    Nonsense(Record),
}

/// How a request ended, or that it waits for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done(Value),
    /// It has ended early, and keeps its ticket: touch the page and resume it, or release it and let the CPU do the rest.
    Faulted(Fault),
    Failed(Failure),
}

/// What a record says, once it is known to fit its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    Done(Value),
    /// The rest of the operation, and where the fault was.
    Faulted {
        rest: Operation,
        address: Option<u64>,
        write: bool,
        reversed: bool,
    },
    Failed(Failure),
}

/// Checks a written record of `operation`.
pub(crate) fn check(record: Record, operation: &Operation, limits: &Limits) -> Checked {
    let nonsense = Checked::Failed(Failure::Nonsense(record));
    let Some(status) = Status::from_code(record.head.status()) else { return nonsense };
    match status {
        Status::Success => done(&record, operation).map_or(nonsense, Checked::Done),
        Status::PageFault | Status::PageRequestFailed => {
            faulted(&record, operation, limits).unwrap_or(nonsense)
        }
        Status::ReadError | Status::WriteError | Status::TranslationError => {
            Checked::Failed(Failure::Device(status))
        }
        // No request checks a result, and batches are no requests.
        Status::FalsePredicate | Status::BatchFailed | Status::BatchPageFault => nonsense,
        _ if status.is_software_error() => nonsense,
        _ => Checked::Failed(Failure::Rejected(status)),
    }
}

fn done(record: &Record, operation: &Operation) -> Option<Value> {
    Some(match operation {
        Operation::Crc { .. } | Operation::CopyCrc { .. } => Value::Crc(record.value as u32),
        Operation::Compare { bytes, .. } | Operation::ComparePattern { bytes, .. } => {
            match (record.head.result(), record.head.completed()) {
                (0, _) => Value::Equal,
                (1, at) if at < *bytes => Value::Difference(at),
                _ => return None,
            }
        }
        _ => Value::None,
    })
}

fn faulted(record: &Record, operation: &Operation, limits: &Limits) -> Option<Checked> {
    let head = record.head;
    let reversed = match (operation, head.result()) {
        (_, 0) => false,
        // Only such a move may go from its end to its beginning (8.3.4).
        (Operation::Move { source, destination, bytes }, 1) => {
            let overlaps = source < destination && destination - source < u64::from(*bytes);
            if !(limits.overlapping_moves && overlaps) {
                return None;
            }
            true
        }
        (Operation::Move { .. } | Operation::Compare { .. } | Operation::ComparePattern { .. }, _) => {
            return None;
        }
        // Without a meaning for the others.
        _ => false,
    };
    let completed = head.completed();
    if completed >= operation.transfer_bytes() {
        return None;
    }
    let rest = rest_of(operation, completed, reversed, record.value as u32);
    let is_known = !(limits.fault_info && head.masked());
    let page = record.fault_address / PAGE_BYTES;
    let is_in = |address: u64| {
        let last = address.saturating_add(u64::from(rest.transfer_bytes()) - 1);
        address / PAGE_BYTES <= page && page <= last / PAGE_BYTES
    };
    let places = if head.write() { rest.writes() } else { rest.reads() };
    let is_flush = matches!(rest, Operation::Flush { .. });
    let flushed = if is_flush { rest.writes() } else { [None; 2] };
    let is_possible = places.into_iter().chain(flushed).flatten().any(is_in);
    let names_operand = !limits.fault_info || head.operand() <= operand::SECOND_DESTINATION;
    if is_known && !is_possible || !names_operand {
        return None;
    }
    let address = is_known.then_some(record.fault_address);
    Some(Checked::Faulted { rest, address, write: head.write() || is_flush, reversed })
}

/// What remains of an operation after `completed` bytes (8.3.4, 8.3.5, 8.3.12).
fn rest_of(operation: &Operation, completed: u32, reversed: bool, crc: u32) -> Operation {
    let by = u64::from(completed);
    let mut rest = *operation;
    match &mut rest {
        Operation::Nop | Operation::Drain | Operation::Batch { .. } => {}
        Operation::Move { bytes, .. } if reversed => *bytes -= completed,
        Operation::Move { source, destination, bytes } => {
            (*source, *destination, *bytes) = (*source + by, *destination + by, *bytes - completed);
        }
        Operation::Fill { pattern, destination, bytes } => {
            // The pattern begins with the first byte that is left.
            *pattern = pattern.rotate_right(completed % 8 * 8);
            (*destination, *bytes) = (*destination + by, *bytes - completed);
        }
        Operation::Compare { first, second, bytes } => {
            (*first, *second, *bytes) = (*first + by, *second + by, *bytes - completed);
        }
        Operation::ComparePattern { pattern, source, bytes } => {
            *pattern = pattern.rotate_right(completed % 8 * 8);
            (*source, *bytes) = (*source + by, *bytes - completed);
        }
        Operation::Dualcast { source, destinations, bytes } => {
            destinations.iter_mut().for_each(|destination| *destination += by);
            (*source, *bytes) = (*source + by, *bytes - completed);
        }
        Operation::Crc { source, bytes, seed } => {
            (*source, *bytes) = (*source + by, *bytes - completed);
            // Before the first byte the record has no CRC.
            *seed = if completed > 0 { crc } else { *seed };
        }
        Operation::CopyCrc { source, destination, bytes, seed } => {
            (*source, *destination, *bytes) = (*source + by, *destination + by, *bytes - completed);
            *seed = if completed > 0 { crc } else { *seed };
        }
        Operation::Flush { destination, bytes } => {
            (*destination, *bytes) = (*destination + by, *bytes - completed);
        }
    }
    rest
}
