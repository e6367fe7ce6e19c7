//! The side that has the memory: what was granted to users of other nodes, and accesses to it, done by the own service.
//!
//! ```text
//! Attach ─ accept_for ─► Frame of this link's session        only what was granted to that user of that node
//! Access ─► waits ─► slot of the staging frame ─ request to the service, which checks ─► Done, with the bytes that were read
//! ```
//!
//! The service moves the bytes between the granted frame and memory of this link. So a revocation ends an access as any other request, and when
//! it is answered nothing is read or written any more.

use std::collections::{BTreeMap, HashMap, VecDeque};

use memferry::{
    CallError, Client, Failure, Frame, GrantToken, NodeName, OpenError, PeerReason, Queue, RefusalKind,
    Region, TicketId, TransferError, copy, crc32c, scatter_gather,
};
use thiserror::Error;

use crate::message::{Attachment, BadMessage, CHUNK_BYTES, Message, WINDOW};

/// Accesses that the service does at a time.
const SLOTS: u32 = 32;
/// Grants that one link can have taken up at a time.
const MAX_ATTACHMENTS: usize = 4096;

/// Why the side that serves cannot go on: without its service there is nothing to serve.
#[derive(Debug, Error)]
pub(crate) enum OwnerError {
    #[error("the link cannot be a client of its service: {0}")]
    Frame(#[from] memferry::FrameError),
    #[error("the link cannot open a queue: {0}")]
    Queue(#[from] OpenError),
    #[error("the service is lost")]
    Lost,
}

/// A request of a peer that waits or runs.
#[derive(Debug)]
struct Asked {
    operation: u32,
    attachment: u32,
    task: Asks,
}

#[derive(Debug)]
enum Asks {
    Read(Vec<(u64, u32)>),
    Write(Vec<(u64, u32)>, Vec<u8>),
    Crc { offset: u64, length: u64, seed: u32 },
}

/// What one connection has here.
#[derive(Default)]
pub(crate) struct Served {
    attachments: BTreeMap<u32, Frame>,
    last: u32,
    waiting: VecDeque<Asked>,
    running: usize,
}

/// A request that the service does.
struct Running {
    connection: u64,
    operation: u32,
    slot: u32,
    /// Bytes to send when it has ended.
    read: u64,
}

/// The connections that are served.
pub(crate) trait Connections {
    /// What one of them has here, while it lasts.
    fn served(&mut self, connection: u64) -> Option<&mut Served>;
}

/// An answer for a connection.
pub(crate) struct Answer {
    pub(crate) connection: u64,
    pub(crate) message: Message,
    pub(crate) payload: Vec<u8>,
}

/// The link as a client of its service.
pub(crate) struct Owner {
    client: Client,
    queue: Queue,
    staging: Frame,
    free: Vec<u32>,
    running: HashMap<TicketId, Running>,
}

impl Owner {
    pub(crate) fn new(client: Client) -> Result<Self, OwnerError> {
        let queue = client.queue(2 * SLOTS)?;
        let staging = client.frame(u64::from(SLOTS) * CHUNK_BYTES).alloc()?;
        Ok(Self { client, queue, staging, free: (0..SLOTS).collect(), running: HashMap::new() })
    }

    /// Takes up a grant for a user of another node.
    pub(crate) fn attach(
        &self,
        served: &mut Served,
        node: NodeName,
        user: u32,
        token: GrantToken,
    ) -> Result<Attachment, PeerReason> {
        if served.attachments.len() >= MAX_ATTACHMENTS {
            return Err(PeerReason::Busy);
        }
        let frame = self.client.accept_for(node, user, token).map_err(|error| match error {
            CallError::Refused(refusal) if refusal.kind == RefusalKind::Capability => PeerReason::NoSuchGrant,
            CallError::Refused(refusal) if refusal.kind == RefusalKind::Quota => PeerReason::Busy,
            _ => PeerReason::Failed,
        })?;
        let number = (1..=u32::MAX).map(|more| served.last.wrapping_add(more));
        let number = number.into_iter().find(|number| !served.attachments.contains_key(number));
        let number = number.ok_or(PeerReason::Busy)?;
        served.last = number;
        let attachment = Attachment { number, length: frame.length(), rights: frame.rights() };
        served.attachments.insert(number, frame);
        Ok(attachment)
    }

    /// Gives back what a link no longer uses.
    pub(crate) fn detach(served: &mut Served, attachment: u32) {
        served.attachments.remove(&attachment);
    }

    /// Takes a request of a peer.
    ///
    /// # Errors
    /// [`BadMessage::Window`] for one too many.
    pub(crate) fn ask(served: &mut Served, message: Message, payload: &[u8]) -> Result<(), BadMessage> {
        let (operation, attachment, task) = match message {
            Message::Access { operation, attachment, write: false, pieces } => {
                (operation, attachment, Asks::Read(pieces))
            }
            Message::Access { operation, attachment, write: true, pieces } => {
                (operation, attachment, Asks::Write(pieces, payload.to_vec()))
            }
            Message::Crc { operation, attachment, offset, length, seed } => {
                (operation, attachment, Asks::Crc { offset, length, seed })
            }
            _ => return Err(BadMessage::Malformed),
        };
        if served.waiting.len() + served.running >= WINDOW {
            return Err(BadMessage::Window);
        }
        served.waiting.push_back(Asked { operation, attachment, task });
        Ok(())
    }

    /// Starts the next request of a connection, if there is one and a slot for it. Adds an answer if it is refused. Returns whether it did
    /// anything.
    pub(crate) fn start(&mut self, connection: u64, served: &mut Served, answers: &mut Vec<Answer>) -> bool {
        if served.waiting.is_empty() || self.queue.outstanding() >= SLOTS as usize {
            return false;
        }
        let Some(slot) = self.free.pop() else { return false };
        let Some(asked) = served.waiting.pop_front() else { return false };
        match self.submit(served, &asked, slot) {
            Ok((ticket, read)) => {
                let running = Running { connection, operation: asked.operation, slot, read };
                self.running.insert(ticket, running);
                served.running += 1;
            }
            Err(reason) => {
                self.free.push(slot);
                let message = Message::Done { operation: asked.operation, outcome: Err(reason) };
                answers.push(Answer { connection, message, payload: Vec::new() });
            }
        }
        true
    }

    fn submit(&mut self, served: &Served, asked: &Asked, slot: u32) -> Result<(TicketId, u64), PeerReason> {
        let frame = served.attachments.get(&asked.attachment).ok_or(PeerReason::NoSuchGrant)?;
        let begin = u64::from(slot) * CHUNK_BYTES;
        let total = |pieces: &[(u64, u32)]| pieces.iter().map(|(_, length)| u64::from(*length)).sum::<u64>();
        let parts = |pieces: &[(u64, u32)]| -> Result<Vec<Region>, PeerReason> {
            let part = |&(offset, length): &(u64, u32)| {
                let end = offset.checked_add(u64::from(length)).filter(|end| *end <= frame.length());
                end.map(|end| frame.slice(offset..end)).ok_or(PeerReason::OutOfBounds)
            };
            pieces.iter().map(part).collect()
        };
        let busy = |_| PeerReason::Busy;
        match &asked.task {
            Asks::Read(pieces) => {
                let bytes = total(pieces);
                let staged = self.staging.slice(begin..begin + bytes);
                let mut parts = parts(pieces)?;
                let transfer = match parts.pop() {
                    Some(part) if parts.is_empty() => copy(part, staged),
                    last => scatter_gather(parts.iter().chain(&last), [staged]),
                };
                Ok((self.queue.submit(transfer).map_err(busy)?.id(), bytes))
            }
            Asks::Write(pieces, payload) => {
                let mut parts = parts(pieces)?;
                self.staging.write(begin, payload).map_err(|_| PeerReason::Failed)?;
                let staged = self.staging.slice(begin..begin + total(pieces));
                let transfer = match parts.pop() {
                    Some(part) if parts.is_empty() => copy(staged, part),
                    last => scatter_gather([staged], parts.iter().chain(&last)),
                };
                Ok((self.queue.submit(transfer).map_err(busy)?.id(), 0))
            }
            Asks::Crc { offset, length, seed } => {
                let end = offset.checked_add(*length).filter(|end| *end <= frame.length());
                let range = *offset..end.ok_or(PeerReason::OutOfBounds)?;
                let transfer = crc32c(frame.slice(range)).seed(*seed);
                Ok((self.queue.submit(transfer).map_err(|_| PeerReason::Busy)?.id(), 0))
            }
        }
    }

    /// Takes the requests that ended. Returns the answers to those whose connection still is.
    ///
    /// # Errors
    /// [`OwnerError::Lost`].
    pub(crate) fn poll(
        &mut self,
        connections: &mut impl Connections,
        answers: &mut Vec<Answer>,
    ) -> Result<bool, OwnerError> {
        let mut any = false;
        while let Some(ended) = self.queue.poll() {
            any = true;
            let (id, outcome) = match &ended {
                Ok(done) => (done.id, Ok(done.output as u32)),
                Err(error) => (error.id, Err(reason(error)?)),
            };
            let Some(Running { connection, operation, slot, read }) = self.running.remove(&id) else {
                continue;
            };
            self.free.push(slot);
            let Some(served) = connections.served(connection) else { continue };
            served.running -= 1;
            let mut payload = Vec::new();
            let mut outcome = outcome;
            if outcome.is_ok() && read > 0 {
                payload.resize(read as usize, 0);
                if self.staging.read(u64::from(slot) * CHUNK_BYTES, &mut payload).is_err() {
                    payload.clear();
                    outcome = Err(PeerReason::Failed);
                }
            }
            answers.push(Answer { connection, message: Message::Done { operation, outcome }, payload });
        }
        Ok(any)
    }

    /// Whether the service does anything for a peer.
    pub(crate) fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }
}

/// Why the service refused or failed.
fn reason(error: &TransferError) -> Result<PeerReason, OwnerError> {
    Ok(match error.failure {
        Failure::ServiceLost => return Err(OwnerError::Lost),
        // The link cancels nothing: a revocation does.
        Failure::Revoked { .. } | Failure::Cancelled | Failure::StaleHandle { .. } => PeerReason::Revoked,
        Failure::Expired { .. } => PeerReason::Expired,
        Failure::MissingRight { .. } => PeerReason::MissingRight,
        Failure::OutOfBounds { .. } => PeerReason::OutOfBounds,
        Failure::WaitingQuota { .. } | Failure::ChannelsBusy { .. } => PeerReason::Busy,
        _ => PeerReason::Failed,
    })
}
