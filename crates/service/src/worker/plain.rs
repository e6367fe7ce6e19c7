//! Plain requests, done without a lock: nops and short copies that have no terms.
//!
//! ```text
//! slot, copied once ─ plain? ─ path: may it be done now? ─ view: source, destination ─ copy ─► completion
//!                       └────────────────┴──────────────────────┴─ no: `serving` takes the request, with the table locked
//! ```
//!
//! A copy is one epoch of the worker, for which revocations wait: they wait for no other request, lock or client. Refusals are made by
//! the general path: the view only says what is allowed.

use memferry_path::{AtOnce, Path, QueueKey};
use memferry_shm::capability_view::{self, Reader};
use memferry_transfer::{Completion, EngineKind, Failure, Outcome, PriorityClass, wire};

use super::Worker;
use super::queues::Queue;
use super::serving::{Batch, publish_early};
use crate::protocol::Violation;
use crate::worker_engine::WorkerEngine;
use memferry_kmod::ModuleEngine;

/// The class of plain requests, which name none.
const CLASS: PriorityClass = PriorityClass::Normal;

/// What became of a request that may be plain.
enum Tried {
    /// So many bytes were moved.
    Moved(u64),
    MemoryFailed,
    /// It is left to the general path.
    Left,
}

impl Worker {
    /// Does requests of a queue at once until one is not plain. Returns the first part of that one.
    pub(super) fn take_plain(
        &mut self,
        index: usize,
        batch: &mut Batch,
    ) -> Result<Option<wire::ShortSlot>, Violation> {
        let Some(queue) = self.queues.get_mut(index) else { return Ok(None) };
        let key = QueueKey(index as u32);
        // Plain requests change none of this, so once is enough.
        let allowed = if self.stopping.is_some() { None } else { self.path.allowed_at_once(key, CLASS) };
        while let Some(slot) = batch.next(queue) {
            let Some(allowed) = &allowed else { return Ok(Some(slot)) };
            let tag = wire::tag_of(slot[0]);
            let is_first = batch.is_first();
            let staged = match perform(&mut self.reader, &mut self.path, (key, allowed), queue, &slot)? {
                Tried::Moved(bytes) => {
                    batch.count_plain(bytes, false);
                    let success = wire::encode_success(tag, EngineKind::Cpu);
                    if is_first {
                        // Room before completions, as at the end of a batch.
                        queue.end.publish_consumed();
                        queue.end.put_short(success)
                    } else {
                        queue.end.stage_short(success)
                    }
                }
                Tried::MemoryFailed => {
                    batch.count_plain(0, true);
                    let result = Err(Failure::MemoryFault);
                    let outcome = Outcome { result, bytes_done: 0, value: 0, engine: EngineKind::Cpu };
                    let completion = Completion { tag: u64::from(tag), inherited: false, outcome };
                    queue.end.stage(&wire::encode_completion(&completion))
                }
                Tried::Left => return Ok(Some(slot)),
            };
            staged.map_err(|_| Violation::RingCounts)?;
            if is_first {
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
// Called, it would pass the slot and its result through memory.
#[inline(always)]
fn perform(
    reader: &mut Reader,
    path: &mut Path<WorkerEngine<ModuleEngine>>,
    (key, allowed): (QueueKey, &AtOnce),
    queue: &mut Queue,
    slot: &wire::ShortSlot,
) -> Result<Tried, Violation> {
    let Some(plain) = wire::decode_plain(slot) else { return Ok(Tried::Left) };
    let end = &mut queue.end;
    if end.cancels_asked() && end.cancel_requested(wire::tag_of(slot[0])) {
        return Ok(Tried::Left);
    }
    // The client's count is read only when the known room is used up.
    if allowed.outstanding >= end.known_completion_room()
        && allowed.outstanding >= end.completion_room().map_err(|_| Violation::RingCounts)?
    {
        return Ok(Tried::Left);
    }
    if !plain.copies {
        return Ok(Tried::Moved(0));
    }
    let bytes = plain.length;
    if bytes > allowed.longest_bytes || allowed.paces && !path.lends(key, CLASS, bytes) {
        return Ok(Tried::Left);
    }
    let guard = reader.enter();
    let source = guard.source(allowed.session, &plain.source, bytes);
    let destination = guard.destination(allowed.session, &plain.destination, bytes);
    let Some((source, destination)) = source.zip(destination) else { return Ok(Tried::Left) };
    let is_copied = capability_view::copy(source, destination).is_ok();
    drop(guard);
    path.did_at_once(key, CLASS, if is_copied { bytes } else { 0 });
    Ok(if is_copied { Tried::Moved(bytes) } else { Tried::MemoryFailed })
}
