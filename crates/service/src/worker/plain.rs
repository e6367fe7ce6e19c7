//! Plain requests, done without a lock: nops and short copies that have no terms.
//!
//! ```text
//! slot, copied once ─ plain? ─ path: may it be done now? ─ view: source, destination ─ copy ─► completion
//!                       └────────────────┴──────────────────────┴─ no: `serving` takes the request, with the table locked
//! ```
//!
//! A batch is one epoch of the worker, for which revocations wait. It ends before the worker locks anything or wakes a client.
//! Refusals are made by the general path: the view only says what is allowed.

use memferry_path::{Path, QueueKey};
use memferry_shm::capability_view::{self, Guard};
use memferry_transfer::{Completion, EngineKind, Failure, Operation, Outcome, wire};

use super::serving::{Batch, publish_first};
use super::{Queue, Worker};
use crate::protocol::Violation;
use crate::worker_engine::WorkerEngine;
use memferry_kmod::ModuleEngine;

impl Worker {
    /// Does requests of a queue at once until one is not plain. Returns whether `slot` has that one.
    pub(super) fn take_plain(
        &mut self,
        index: usize,
        slot: &mut wire::SubmissionSlot,
        batch: &mut Batch,
    ) -> Result<bool, Violation> {
        let Some(queue) = self.queues[index].as_mut() else { return Ok(false) };
        let key = QueueKey(index as u32);
        let stopping = self.stopping.is_some();
        let mut guard = self.reader.enter();
        while batch.takes(queue, slot) {
            let done = if stopping { None } else { perform(&guard, &mut self.path, key, queue, slot) };
            let Some(outcome) = done else { return Ok(true) };
            batch.count(&outcome);
            let completion = Completion { tag: wire::tag_of(slot), inherited: false, outcome };
            queue.end.stage(&wire::encode_completion(&completion)).map_err(|_| Violation::RingCounts)?;
            if batch.is_first_done() {
                let flag = publish_first(queue);
                if flag != 0 {
                    // The client can influence how long this takes, and revocations wait for the epoch.
                    drop(guard);
                    self.waker.wake(queue, flag);
                    guard = self.reader.enter();
                }
            }
        }
        Ok(false)
    }
}

/// Does a request, if it is plain, its turn has come, and the view knows its memory.
#[inline]
fn perform(
    guard: &Guard<'_>,
    path: &mut Path<WorkerEngine<ModuleEngine>>,
    key: QueueKey,
    queue: &mut Queue,
    slot: &wire::SubmissionSlot,
) -> Option<Outcome> {
    let end = &mut queue.end;
    let operation = wire::decode_plain(slot)?;
    if end.cancels_asked() && end.cancel_requested(wire::tag_of(slot)) {
        return None;
    }
    let session = path.admits_plain(key, end.known_completion_room(), operation.total_bytes())?;
    let mut outcome = Outcome { result: Ok(()), bytes_done: 0, value: 0, engine: EngineKind::Cpu };
    if let Operation::Copy { source, destination, length } = operation {
        let source = guard.source(session, &source, length)?;
        let destination = guard.destination(session, &destination, length)?;
        match capability_view::copy(source, destination) {
            Ok(()) => outcome.bytes_done = length,
            Err(_) => outcome.result = Err(Failure::MemoryFault),
        }
        path.count_plain(outcome.bytes_done);
    }
    Some(outcome)
}
