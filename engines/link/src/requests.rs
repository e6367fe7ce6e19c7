//! The side that uses memory of other nodes: requests of the own service, divided into accesses.
//!
//! ```text
//! Job ─ divide ─► Request ─► accesses under way, in order ─► answers: bytes into local frames, progress
//!                                                         └─► all answered ─► completed, once
//! ```
//!
//! What is sent and what comes lies in buffers of the link. So a request whose peer is lost, or too slow, or that is cancelled ends at once:
//! nothing touches its memory. Answers to its accesses are awaited and thrown away.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memferry_engine::{Engine, Failure, Job, Mapping, PeerReason, WorkId, guarded};

use crate::divide::{Piece, Work, take_chunk};
use crate::message::{CRC_BYTES, Message};
use crate::packet::{Packet, Pool};

/// Accesses of one request that are under way at a time: enough to keep both services and the wire busy.
const AHEAD: usize = 8;
/// What a peer has to reach over a whole request: as the own service demands of this link.
const SLOWEST_BYTES_PER_SECOND: u64 = 32 << 20;
/// Times the limit for one access that a request may take besides the time for its bytes. The own service grants as many of its longer limit.
const GRACE: u32 = 4;

/// How long a request may take, with `bytes` of it and of those before it, if one access may take `limit`. It is less than what the own
/// service grants, which cuts off a link that is slower, and with it all nodes and users.
pub(crate) fn time_for(bytes: u64, limit: Duration) -> Duration {
    limit.saturating_mul(GRACE).saturating_add(Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND))
}

/// An access under way, or one that is done while an earlier one is not.
#[derive(Debug)]
struct Sent {
    operation: u32,
    bytes: u64,
    /// Where the bytes go that are read.
    pieces: Vec<Piece>,
    since: Instant,
    is_done: bool,
}

/// A request of the own service.
#[derive(Debug)]
pub(crate) struct Request {
    job: Job,
    /// Its number at both nodes.
    transfer: u64,
    /// The frame of the other node, by its address here.
    pub(crate) frame: usize,
    work: Work,
    /// Bytes of the whole request.
    total: u64,
    since: Instant,
    /// How long it may take.
    time: Duration,
    sent: VecDeque<Sent>,
    /// Accesses that were answered.
    accesses: u64,
    /// The bytes of the first accesses, all of them done.
    done_bytes: u64,
    /// The CRC of these bytes.
    value: u32,
    failure: Option<Failure>,
}

impl Request {
    /// A request that begins now, and may take `time_for` of its bytes.
    pub(crate) fn new(
        (job, transfer): (Job, u64),
        frame: usize,
        work: Work,
        time_for: impl FnOnce(u64) -> Duration,
    ) -> Self {
        let value = if let Work::Crc { seed, .. } = work { seed } else { 0 };
        let total = job.operation().total_bytes();
        let time = time_for(total);
        let since = Instant::now();
        Self {
            job,
            transfer,
            accesses: 0,
            frame,
            work,
            total,
            since,
            time,
            sent: VecDeque::new(),
            done_bytes: 0,
            value,
            failure: None,
        }
    }

    /// Bytes of the whole request.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The service counts its limits from then on, or a little later.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Its number at both nodes.
    pub(crate) fn transfer(&self) -> u64 {
        self.transfer
    }

    /// Accesses that were answered.
    pub(crate) fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Bytes done that were read over the link, and written.
    pub(crate) fn travelled(&self) -> (u64, u64) {
        match self.work {
            Work::Transfer { write: false, .. } => (self.done_bytes, 0),
            Work::Transfer { write: true, .. } => (0, self.done_bytes),
            Work::Crc { .. } => (0, 0),
        }
    }

    /// Why it fails, if it does.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Bytes from the first one on that are done.
    pub(crate) fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    /// Whether it takes longer than it may.
    pub(crate) fn is_overdue(&self) -> bool {
        self.since.elapsed() > self.time
    }

    pub(crate) fn id(&self) -> WorkId {
        self.job.id()
    }

    /// Makes it end as failed, once nothing of it is under way or nobody waits for that.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    /// The next access to send, under the number `operation`; `None` if there is none now.
    pub(crate) fn next(&mut self, pool: &Pool, operation: u32, attachment: u32) -> Option<Packet> {
        let ahead = if matches!(self.work, Work::Transfer { in_order: true, .. }) { 1 } else { AHEAD };
        if self.failure.is_some() || self.sent.len() >= ahead {
            return None;
        }
        match &mut self.work {
            Work::Transfer { write, pieces, .. } => {
                let write = *write;
                let chunk = take_chunk(pieces);
                if chunk.is_empty() {
                    return None;
                }
                let bytes: u64 = chunk.iter().map(|piece| piece.length).sum();
                let named = chunk.iter().map(|piece| (piece.remote, piece.length as u32)).collect();
                let access =
                    Message::Access { operation, transfer: self.transfer, attachment, write, pieces: named };
                let mut packet = Packet::new(pool, &access, if write { bytes as usize } else { 0 });
                if write && gather(&chunk, packet.payload_mut()).is_err() {
                    self.fail(Failure::MemoryFault);
                    return None;
                }
                let pieces = if write { Vec::new() } else { chunk };
                self.note_sent(operation, bytes, pieces);
                Some(packet)
            }
            Work::Crc { offset, length, .. } => {
                // One after the other: each begins with the value of the one before.
                if *length == 0 || !self.sent.is_empty() {
                    return None;
                }
                let bytes = (*length).min(CRC_BYTES);
                let message = Message::Crc {
                    operation,
                    transfer: self.transfer,
                    attachment,
                    offset: *offset,
                    length: bytes,
                    seed: self.value,
                };
                *offset += bytes;
                *length -= bytes;
                self.note_sent(operation, bytes, Vec::new());
                Some(Packet::short(&message))
            }
        }
    }

    fn note_sent(&mut self, operation: u32, bytes: u64, pieces: Vec<Piece>) {
        self.sent.push_back(Sent { operation, bytes, pieces, since: Instant::now(), is_done: false });
    }

    /// Whether an access was not answered for longer than `limit`. The own service would cut off a link that waits for ever.
    pub(crate) fn is_late(&self, limit: Duration) -> bool {
        self.sent.iter().any(|one| !one.is_done && one.since.elapsed() > limit)
    }

    /// Takes the answer to an access. Returns false if it is no answer to what was asked.
    pub(crate) fn answered(
        &mut self,
        engine: &Engine,
        operation: u32,
        outcome: Result<u32, PeerReason>,
        payload: &[u8],
    ) -> bool {
        let is_it = |one: &&mut Sent| one.operation == operation && !one.is_done;
        let Some(access) = self.sent.iter_mut().find(is_it) else { return false };
        let reads = !access.pieces.is_empty();
        let expected = if reads && outcome.is_ok() { access.bytes } else { 0 };
        if payload.len() as u64 != expected {
            return false;
        }
        access.is_done = true;
        self.accesses += 1;
        let scattered = if reads && outcome.is_ok() && self.failure.is_none() {
            scatter(&access.pieces, payload)
        } else {
            Ok(())
        };
        match (outcome, scattered) {
            (Err(reason), _) => self.fail(Failure::PeerRefused { reason }),
            (_, Err(failure)) => self.fail(failure),
            (Ok(value), Ok(())) => {
                if matches!(self.work, Work::Crc { .. }) {
                    self.value = value;
                }
            }
        }
        let before = self.done_bytes;
        while self.sent.front().is_some_and(|first| first.is_done) {
            let first = self.sent.pop_front();
            // What was done behind a failure does not count.
            if self.failure.is_none() {
                self.done_bytes += first.map_or(0, |first| first.bytes);
            }
        }
        if self.done_bytes > before {
            engine.progress(self.id(), self.done_bytes, false);
        }
        true
    }

    /// Whether nothing of it is under way and nothing is left to send.
    pub(crate) fn is_over(&self) -> bool {
        let is_sent = match &self.work {
            Work::Transfer { pieces, .. } => pieces.is_empty(),
            Work::Crc { length, .. } => *length == 0,
        };
        self.sent.is_empty() && (is_sent || self.failure.is_some())
    }

    /// Completes it. Its memory is not touched any more.
    pub(crate) fn complete(self, engine: &mut Engine) {
        let outcome = match self.failure {
            Some(failure) => self.job.failed(failure, self.done_bytes),
            None => self.job.succeeded_with(u64::from(self.value)),
        };
        engine.complete(self.job.id(), outcome);
    }

    /// The accesses under way, and since when.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (u32, Instant)> {
        self.sent.iter().filter(|one| !one.is_done).map(|one| (one.operation, one.since))
    }
}

/// Reads the bytes of local frames that a message brings.
fn gather(pieces: &[Piece], mut bytes: &mut [u8]) -> Result<(), Failure> {
    for piece in pieces {
        let (part, rest) = bytes.split_at_mut(piece.length as usize);
        access(&piece.local, || piece.local.read(piece.offset, part))?;
        bytes = rest;
    }
    Ok(())
}

/// Writes bytes that came to local frames.
fn scatter(pieces: &[Piece], mut bytes: &[u8]) -> Result<(), Failure> {
    for piece in pieces {
        let (part, rest) = bytes.split_at(piece.length as usize);
        access(&piece.local, || piece.local.write(piece.offset, part))?;
        bytes = rest;
    }
    Ok(())
}

/// Reads or writes a frame, whose pages may fail. Admission checked range and rights.
fn access<E>(memory: &Mapping, access: impl FnOnce() -> Result<(), E>) -> Result<(), Failure> {
    match guarded([memory], access) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Failure::MemoryFault),
    }
}

#[cfg(test)]
mod tests {
    use memferry_engine::{Descriptor, Lists, Operation, Region, Segment};

    use super::*;
    use crate::divide::divide;

    /// A list that reads four parts of 200 KiB of another node, each written `step` bytes after the one before.
    fn request(step: u64) -> Request {
        request_with(step, |_| Duration::ZERO)
    }

    fn request_with(step: u64, time_for: impl FnOnce(u64) -> Duration) -> Request {
        let far = Mapping::elsewhere(1 << 48, 1 << 30).unwrap();
        let near = Mapping::owned(vec![0; 1 << 20]);
        let length = 200 << 10;
        let list = |memory: &Mapping, step: u64| {
            let part = |number: u64| Segment {
                place: Region::new(memory.clone(), number * step, length).unwrap(),
                length,
            };
            (0..4).map(part).collect()
        };
        let lists = Lists { source: list(&far, 1 << 20), destination: list(&near, step) };
        let operation = Operation::ScatterGather { lists: std::sync::Arc::new(lists) };
        let (frame, work) = divide(&operation).unwrap();
        let id = WorkId { worker: 0, tag: 0 };
        Request::new((Job::new(id, Descriptor::new(0, operation).unwrap()), 0), frame, work, time_for)
    }

    fn under_way(request: &mut Request) -> usize {
        (0..).map_while(|operation| request.next(&Pool::default(), operation, 1)).count()
    }

    #[test]
    fn a_request_ends_before_the_own_service_ends_the_link() {
        let limit = Duration::from_millis(1500);
        // As the service counts, with a longer limit.
        let granted = |bytes: u64| 4 * Duration::from_millis(2000) + Duration::from_secs(bytes / (32 << 20));
        for bytes in [0, 1, 32 << 20, 1 << 30, u64::MAX] {
            let time = time_for(bytes, limit);
            assert!(time + Duration::from_secs(2) <= granted(bytes) && time >= 4 * limit, "{bytes}");
        }
        assert_eq!(time_for(1 << 30, limit), Duration::from_secs(6 + 32));
        assert!(!request_with(0, |_| Duration::MAX).is_overdue());
        assert!(request_with(0, |bytes| Duration::from_secs(bytes - (800 << 10))).is_overdue());
    }

    #[test]
    fn bytes_that_are_written_twice_wait_for_each_other() {
        assert_eq!(under_way(&mut request(200 << 10)), 4, "800 KiB in messages of 256");
        assert_eq!(under_way(&mut request((200 << 10) - 1)), 1);
        let mut failed = request(200 << 10);
        failed.fail(Failure::Cancelled);
        assert_eq!((under_way(&mut failed), failed.is_over()), (0, true));
    }
}
