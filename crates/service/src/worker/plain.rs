//! Plain requests, done without a lock: nops and short copies that have no terms.
//!
//! ```text
//! slot, copied once ─ plain? ─ path: may it be done now? ─ view: source, destination ─ copy ─► completion
//!                       └────────────────┴──────────────────────┴─ no: `serving` takes the request, with the table locked
//! ```
//!
//! A copy is one epoch of the worker, for which revocations wait: they wait for no other request, lock or client. Refusals are made by
//! the general path: the view only says what is allowed.

use memferry_path::{Path, QueueKey};
use memferry_shm::capability_view::{self, Reader};
use memferry_transfer::{Completion, EngineKind, Failure, Outcome, PriorityClass, wire};

use super::Worker;
use super::queues::Queue;
use super::serving::{Batch, completion_room, publish_early};
use crate::protocol::Violation;
use crate::worker_engine::WorkerEngine;
use memferry_kmod::ModuleEngine;

impl Worker {
    /// Does requests of a queue at once until one is not plain. Returns the first part of that one.
    pub(super) fn take_plain(
        &mut self,
        index: usize,
        batch: &mut Batch,
    ) -> Result<Option<wire::ShortSlot>, Violation> {
        let Some(queue) = self.queues.get_mut(index) else { return Ok(None) };
        let key = QueueKey(index as u32);
        let stopping = self.stopping.is_some();
        while let Some(slot) = batch.next(queue) {
            let done =
                if stopping { None } else { perform(&mut self.reader, &mut self.path, key, queue, &slot)? };
            let Some(outcome) = done else { return Ok(Some(slot)) };
            batch.count(&outcome);
            let tag = wire::tag_of(slot[0]);
            let staged = if outcome.result.is_ok() {
                queue.end.stage_short(wire::encode_success(tag, EngineKind::Cpu))
            } else {
                let completion = Completion { tag: u64::from(tag), inherited: false, outcome };
                queue.end.stage(&wire::encode_completion(&completion))
            };
            staged.map_err(|_| Violation::RingCounts)?;
            if batch.is_first_done() {
                let flag = publish_early(queue);
                if flag != 0 {
                    self.waker.wake(queue, flag);
                }
            }
        }
        Ok(None)
    }
}

/// Does a request, if it is plain, its turn has come, and the view knows its memory.
#[inline]
fn perform(
    reader: &mut Reader,
    path: &mut Path<WorkerEngine<ModuleEngine>>,
    key: QueueKey,
    queue: &mut Queue,
    slot: &wire::ShortSlot,
) -> Result<Option<Outcome>, Violation> {
    let Some(plain) = wire::decode_plain(slot) else { return Ok(None) };
    if queue.end.cancels_asked() && queue.end.cancel_requested(wire::tag_of(slot[0])) {
        return Ok(None);
    }
    let class = PriorityClass::Normal;
    let bytes = if plain.copies { plain.length } else { 0 };
    let room = completion_room(path, key, &mut queue.end)?;
    let Some(session) = path.may_do_at_once(key, room, class, bytes) else { return Ok(None) };
    let mut outcome = Outcome { result: Ok(()), bytes_done: bytes, value: 0, engine: EngineKind::Cpu };
    if plain.copies {
        let guard = reader.enter();
        let source = guard.source(session, &plain.source, bytes);
        let destination = guard.destination(session, &plain.destination, bytes);
        let Some((source, destination)) = source.zip(destination) else { return Ok(None) };
        if capability_view::copy(source, destination).is_err() {
            outcome.result = Err(Failure::MemoryFault);
            outcome.bytes_done = 0;
        }
        path.did_at_once(key, class, outcome.bytes_done);
    }
    Ok(Some(outcome))
}
