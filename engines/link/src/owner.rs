//! The side that has the memory: what was granted to users of other nodes, and accesses to it, done by the own service.
//!
//! ```text
//! Attach ─ accept_for ─► Frame of this link's session        only what was granted to that user of that node
//! Access ─► waits ─► slot of the staging frame ─ request to the service, which checks ─► Done, with the bytes that were read
//!                └─► slot of the window, if the grant is direct ─► Hold: the node reads the memory itself, or writes it
//!                                                               └─► too late: once more, by the staging frame
//! ```
//!
//! The service moves the bytes between the granted frame and memory of this link. So a revocation ends an access as any other request, and when
//! it is answered nothing is read or written any more.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use memferry::{
    CallError, Client, Failure, Frame, GrantToken, NodeName, OpenError, PeerReason, Queue, RefusalKind,
    Region, RemoteToken, Rights, ServiceId, SubmitError, SubmitReason, TicketId, TransferError, copy, crc32c,
    scatter_gather,
};
use thiserror::Error;

use crate::message::{Attachment, BadMessage, CHUNK_BYTES, Message, WINDOW};
use crate::packet::{Packet, Pool};
use crate::turns::{Needs, Turn};

/// Accesses that the service does at a time.
const SLOTS: u32 = 32;
/// Grants that all peers together can have taken up at a time: somewhat less than a session may have capabilities, unless the administrator
/// of the service says otherwise. Each peer has an equal share, so that none takes those of others.
const MAX_ATTACHMENTS: usize = 4000;
/// Shorter accesses are faster in one request of the service than in two.
const DIRECT_BYTES: u64 = 16 << 10;
/// How long the service may take to bring the memory of an access that uses it in place: this part of the time limit for a peer, and no
/// longer than this, as peers may have other limits. It may be late because this link's engine has as many requests as it takes, and these
/// may wait for that very peer.
const LATE_PART: u32 = 3;
const LATE: Duration = Duration::from_millis(500);
/// How long no memory is used in place after that.
const PAUSE: Duration = Duration::from_secs(10);
/// Frames that are given back in one turn: the service answers to each before the link goes on.
const DROPS: usize = 8;

/// Grants that one of so many peers can have taken up at a time.
pub const fn share(peers: usize) -> usize {
    let share = MAX_ATTACHMENTS / if peers == 0 { 1 } else { peers };
    if share == 0 { 1 } else { share }
}

/// Why the side that serves cannot go on: without its service there is nothing to serve.
#[derive(Debug, Error)]
pub(crate) enum OwnerError {
    #[error("the link cannot be a client of its service: {0}")]
    Frame(#[from] memferry::FrameError),
    #[error("the link cannot open a queue: {0}")]
    Queue(#[from] OpenError),
    #[error("the service does not say which run of it this is: {0}")]
    Identify(#[from] CallError),
    #[error("the service is lost; see its log")]
    Lost,
}

/// A request of a peer that waits or runs.
#[derive(Debug)]
struct Asked {
    operation: u32,
    transfer: u64,
    attachment: u32,
    task: Asks,
}

#[derive(Debug)]
enum Asks {
    Attach(ServiceId, GrantToken, u32),
    Read(Vec<(u64, u32)>),
    Write(Vec<(u64, u32)>, Vec<u8>),
    Crc { offset: u64, length: u64, seed: u32 },
}

/// What one connection has here.
#[derive(Default)]
pub(crate) struct Served {
    /// The administrator lets memory be used in place for this peer.
    allows_direct: bool,
    attachments: BTreeMap<u32, Attached>,
    /// By token and user: a grant that is taken up more than once is one capability.
    grants: BTreeMap<(u64, u32), u32>,
    last: u32,
    waiting: VecDeque<Asked>,
    running: usize,
}

impl Served {
    /// What a new connection has.
    pub(crate) fn new(allows_direct: bool) -> Self {
        Self { allows_direct, ..Self::default() }
    }

    /// Grants that the peer has taken up.
    pub(crate) fn grants(&self) -> u64 {
        self.attachments.len() as u64
    }

    /// A grant that is taken up once more is another capability than this attachment.
    fn forget_grant(&mut self, attachment: u32) {
        let Some(held) = self.attachments.get(&attachment) else { return };
        if self.grants.get(&held.grant) == Some(&attachment) {
            self.grants.remove(&held.grant);
        }
    }

    /// What the first request that waits needs.
    pub(crate) fn needs(&self) -> Option<Needs> {
        self.waiting.front().map(|asked| match asked.task {
            Asks::Attach(..) => Needs::Answer,
            Asks::Read(_) | Asks::Write(..) | Asks::Crc { .. } => Needs::Slot,
        })
    }
}

/// A grant that a peer has taken up.
struct Attached {
    frame: Frame,
    grant: (u64, u32),
    /// As often as it has to be given back.
    times: u32,
    /// Its memory may be used in place, and was so far when that was tried.
    is_direct: bool,
}

/// A request that the service does.
struct Running {
    connection: u64,
    operation: u32,
    attachment: u32,
    slot: u32,
    transfer: u64,
    /// Bytes to send when it has ended.
    read: u64,
    written: u64,
    in_place: Option<InPlace>,
}

/// An access that uses the memory in place.
struct InPlace {
    asked: Asked,
    stage: Stage,
}

enum Stage {
    /// The service has not brought the memory yet.
    Awaited,
    /// It is late, and was told not to.
    Withdrawn,
    Written,
    /// The answer was sent, with the bytes.
    Answered,
}

/// An access whose memory the service brought.
pub(crate) struct Brought<'a> {
    pub(crate) connection: u64,
    pub(crate) operation: u32,
    pub(crate) transfer: u64,
    /// What an access that writes brings.
    pub(crate) payload: Option<&'a [u8]>,
}

/// The connections that are served.
pub(crate) trait Connections {
    /// What one of them has here, while it lasts.
    fn served(&mut self, connection: u64) -> Option<&mut Served>;
}

/// An answer for a connection.
pub(crate) struct Answer {
    pub(crate) connection: u64,
    /// The transfer that it belongs to, if it is an access, and bytes that were written.
    pub(crate) access: Option<(u64, u64)>,
    pub(crate) message: Message,
    pub(crate) packet: Packet,
}

impl Answer {
    /// An answer without bytes.
    fn short(connection: u64, access: Option<(u64, u64)>, message: Message) -> Self {
        let packet = Packet::short(&message);
        Self { connection, access, message, packet }
    }
}

/// The link as a client of its service.
pub(crate) struct Owner {
    client: Client,
    /// This run of the service. Tokens of others name nothing here, or another grant.
    service: ServiceId,
    queue: Queue,
    /// For accesses by the window: they wait for places at this engine, and nothing else is to wait behind them.
    window_queue: Queue,
    staging: Frame,
    pool: Pool,
    /// As large as the staging frame, without memory: see [`direct`](crate::direct).
    window: Option<Frame>,
    /// Accesses whose memory the service brings, in the order in which they were begun.
    awaited: VecDeque<(Instant, TicketId)>,
    /// How long the service may take for one of them.
    late: Duration,
    /// When that was last looked at.
    looked: Instant,
    /// Until then no memory is used in place.
    pauses_until: Option<Instant>,
    /// Connections of accesses that wait again.
    again: Vec<u64>,
    free: Vec<u32>,
    running: HashMap<TicketId, Running>,
    /// Grants that one peer can have taken up at a time.
    share: usize,
    /// What peers gave back.
    unused: Vec<Frame>,
}

/// Why a request of a peer is not begun.
enum NotBegun {
    Refused(PeerReason),
    Lost,
}

impl From<PeerReason> for NotBegun {
    fn from(reason: PeerReason) -> Self {
        Self::Refused(reason)
    }
}

impl<T> From<SubmitError<T>> for NotBegun {
    fn from(error: SubmitError<T>) -> Self {
        match error.reason {
            SubmitReason::Full { .. } => Self::Refused(PeerReason::Busy),
            SubmitReason::ServiceLost | SubmitReason::Forked(_) => Self::Lost,
            // The limits of a message keep requests within those of the service.
            SubmitReason::Invalid(_) | SubmitReason::ForeignFrame | SubmitReason::Loop => {
                Self::Refused(PeerReason::Failed)
            }
        }
    }
}

impl Owner {
    /// A client that serves so many peers, which wait for `timeout` at most.
    pub(crate) fn new(
        client: Client,
        (peers, timeout): (usize, Duration),
        pool: Pool,
    ) -> Result<Self, OwnerError> {
        let service = client.identify(client.session())?.service;
        let queue = client.queue(2 * SLOTS)?;
        let window_queue = client.queue(2 * SLOTS)?;
        let staging = client.frame(u64::from(SLOTS) * CHUNK_BYTES).alloc()?;
        let free = (0..SLOTS).collect();
        let running = HashMap::new();
        let share = share(peers);
        Ok(Self {
            client,
            service,
            queue,
            window_queue,
            staging,
            pool,
            window: None,
            awaited: VecDeque::new(),
            late: (timeout / LATE_PART).min(LATE),
            looked: Instant::now(),
            pauses_until: None,
            again: Vec::new(),
            free,
            running,
            share,
            unused: Vec::new(),
        })
    }

    /// Makes the window, which these two name at this link's own engine.
    ///
    /// # Errors
    /// Those of the service: this user may have no frames of other nodes, or not so many bytes.
    pub(crate) fn open_window(&mut self, (node, service): (NodeName, ServiceId)) -> Result<(), CallError> {
        let length = u64::from(SLOTS) * CHUNK_BYTES;
        let rights = Rights::READ | Rights::WRITE;
        let token = GrantToken::from_raw(1 << 32);
        self.window =
            Some(self.client.accept_remote(RemoteToken { node, service, token, length, rights })?);
        Ok(())
    }

    /// Takes up a grant for a user of another node.
    fn attach(
        &self,
        served: &mut Served,
        node: NodeName,
        (token, user): (GrantToken, u32),
    ) -> Result<Attachment, NotBegun> {
        let grant = (token.to_raw(), user);
        if let Some(number) = served.grants.get(&grant)
            && let Some(held) = served.attachments.get_mut(number)
        {
            held.times = held.times.checked_add(1).ok_or(PeerReason::Busy)?;
            return Ok(Attachment {
                number: *number,
                length: held.frame.length(),
                rights: held.frame.rights(),
            });
        }
        if served.attachments.len() >= self.share {
            return Err(PeerReason::Busy.into());
        }
        let frame = self.client.accept_for(node, user, token).map_err(|error| match error {
            CallError::Refused(refusal) if refusal.kind == RefusalKind::Capability => {
                NotBegun::Refused(PeerReason::NoSuchGrant)
            }
            CallError::Refused(refusal) if refusal.kind == RefusalKind::Quota => {
                NotBegun::Refused(PeerReason::Busy)
            }
            // Without its session the link has nothing to serve any more.
            CallError::Ended(_) | CallError::ServiceLost => NotBegun::Lost,
            _ => NotBegun::Refused(PeerReason::Failed),
        })?;
        let number = (1..=u32::MAX).map(|more| served.last.wrapping_add(more));
        let number = number.into_iter().find(|number| !served.attachments.contains_key(number));
        let number = number.ok_or(PeerReason::Busy)?;
        served.last = number;
        let attachment = Attachment { number, length: frame.length(), rights: frame.rights() };
        let is_direct =
            served.allows_direct && self.window.is_some() && frame.rights().contains(Rights::DIRECT);
        served.grants.insert(grant, number);
        served.attachments.insert(number, Attached { frame, grant, times: 1, is_direct });
        Ok(attachment)
    }

    /// A peer uses no more what it took up.
    pub(crate) fn detach(&mut self, served: &mut Served, attachment: u32) {
        let Some(held) = served.attachments.get_mut(&attachment) else { return };
        held.times -= 1;
        if held.times == 0 {
            served.forget_grant(attachment);
            self.unused.extend(served.attachments.remove(&attachment).map(|held| held.frame));
        }
    }

    /// A connection has ended.
    pub(crate) fn give_back(&mut self, served: Served) {
        self.unused.extend(served.attachments.into_values().map(|held| held.frame));
    }

    /// Gives back some of what is unused. Returns whether there was any.
    pub(crate) fn drop_some(&mut self) -> bool {
        let kept = self.unused.len().saturating_sub(DROPS);
        !self.unused.split_off(kept).is_empty()
    }

    /// Takes a request of a peer.
    ///
    /// # Errors
    /// [`BadMessage::Window`] for one too many.
    pub(crate) fn ask(served: &mut Served, message: Message, payload: &[u8]) -> Result<(), BadMessage> {
        let (operation, transfer, attachment, task) = match message {
            Message::Attach { id, service, token, user } => (id, 0, 0, Asks::Attach(service, token, user)),
            Message::Access { operation, transfer, attachment, write: false, pieces } => {
                (operation, transfer, attachment, Asks::Read(pieces))
            }
            Message::Access { operation, transfer, attachment, write: true, pieces } => {
                (operation, transfer, attachment, Asks::Write(pieces, payload.to_vec()))
            }
            Message::Crc { operation, transfer, attachment, offset, length, seed } => {
                (operation, transfer, attachment, Asks::Crc { offset, length, seed })
            }
            _ => return Err(BadMessage::Malformed),
        };
        if served.waiting.len() + served.running >= WINDOW {
            return Err(BadMessage::Window);
        }
        served.waiting.push_back(Asked { operation, transfer, attachment, task });
        Ok(())
    }

    /// Starts the next request of a connection, if there is one and a slot for it. Adds an answer if it has one already.
    ///
    /// # Errors
    /// [`OwnerError::Lost`].
    pub(crate) fn start(
        &mut self,
        (node, connection): (NodeName, u64),
        served: &mut Served,
        answers: &mut Vec<Answer>,
    ) -> Result<Turn, OwnerError> {
        let Some(Asked { operation, task, .. }) = served.waiting.front() else {
            return Ok(Turn::Begun(None));
        };
        let operation = *operation;
        if let Asks::Attach(service, token, user) = *task {
            served.waiting.pop_front();
            let attached = if service == self.service {
                self.attach(served, node, (token, user))
            } else {
                Err(PeerReason::EarlierRun.into())
            };
            let outcome = match attached {
                Ok(attachment) => Ok(attachment),
                Err(NotBegun::Refused(reason)) => Err(reason),
                Err(NotBegun::Lost) => return Err(OwnerError::Lost),
            };
            let message = Message::Attached { id: operation, outcome };
            answers.push(Answer::short(connection, None, message));
            return Ok(Turn::Begun(served.needs()));
        }
        if self.queue.outstanding() + self.window_queue.outstanding() >= SLOTS as usize {
            return Ok(Turn::Full);
        }
        let Some(slot) = self.free.pop() else { return Ok(Turn::Full) };
        let Some(asked) = served.waiting.pop_front() else {
            self.free.push(slot);
            return Ok(Turn::Begun(None));
        };
        let window = self.window_for(served, &asked);
        match self.submit(served, &asked, slot, window.as_ref()) {
            Ok((ticket, read)) => {
                let Asked { transfer, attachment, .. } = asked;
                let written =
                    if let Asks::Write(_, payload) = &asked.task { payload.len() as u64 } else { 0 };
                let in_place = window.map(|_| InPlace { asked, stage: Stage::Awaited });
                if in_place.is_some() {
                    self.awaited.push_back((Instant::now(), ticket));
                }
                let running =
                    Running { connection, operation, attachment, slot, transfer, read, written, in_place };
                self.running.insert(ticket, running);
                served.running += 1;
            }
            Err(NotBegun::Refused(reason)) => {
                self.free.push(slot);
                let message = Message::Done { operation, outcome: Err(reason) };
                let access = Some((asked.transfer, 0));
                answers.push(Answer::short(connection, access, message));
            }
            Err(NotBegun::Lost) => return Err(OwnerError::Lost),
        }
        Ok(Turn::Begun(served.needs()))
    }

    /// The window, if an access is to use the memory in place.
    fn window_for(&self, served: &Served, asked: &Asked) -> Option<Frame> {
        let is_direct = served.attachments.get(&asked.attachment).is_some_and(|held| held.is_direct);
        let (Asks::Read(pieces) | Asks::Write(pieces, _)) = &asked.task else { return None };
        let [(_, length)] = pieces[..] else { return None };
        if self.pauses_until.is_some_and(|end| Instant::now() < end) {
            return None;
        }
        if is_direct && u64::from(length) >= DIRECT_BYTES { self.window.clone() } else { None }
    }

    /// Asks the service for an access, by the staging frame, or by the window.
    fn submit(
        &mut self,
        served: &Served,
        asked: &Asked,
        slot: u32,
        window: Option<&Frame>,
    ) -> Result<(TicketId, u64), NotBegun> {
        let held = served.attachments.get(&asked.attachment).ok_or(PeerReason::NoSuchGrant)?;
        let frame = &held.frame;
        let begin = u64::from(slot) * CHUNK_BYTES;
        let total = |pieces: &[(u64, u32)]| pieces.iter().map(|(_, length)| u64::from(*length)).sum::<u64>();
        let parts = |pieces: &[(u64, u32)]| -> Result<Vec<Region>, PeerReason> {
            let part = |&(offset, length): &(u64, u32)| {
                let end = offset.checked_add(u64::from(length)).filter(|end| *end <= frame.length());
                end.map(|end| frame.slice(offset..end)).ok_or(PeerReason::OutOfBounds)
            };
            pieces.iter().map(part).collect()
        };
        let queue = if window.is_some() { &mut self.window_queue } else { &mut self.queue };
        match &asked.task {
            // `start` has done it.
            Asks::Attach(..) => Err(PeerReason::Failed.into()),
            Asks::Read(pieces) => {
                let bytes = total(pieces);
                let staged = window.unwrap_or(&self.staging).slice(begin..begin + bytes);
                let mut parts = parts(pieces)?;
                let transfer = match parts.pop() {
                    Some(part) if parts.is_empty() => copy(part, staged),
                    last => scatter_gather(parts.iter().chain(&last), [staged]),
                };
                Ok((queue.submit(transfer)?.id(), bytes))
            }
            Asks::Write(pieces, payload) => {
                let mut parts = parts(pieces)?;
                if window.is_none() {
                    self.staging.write(begin, payload).map_err(|_| PeerReason::Failed)?;
                }
                let staged = window.unwrap_or(&self.staging).slice(begin..begin + total(pieces));
                let transfer = match parts.pop() {
                    Some(part) if parts.is_empty() => copy(staged, part),
                    last => scatter_gather([staged], parts.iter().chain(&last)),
                };
                Ok((queue.submit(transfer)?.id(), 0))
            }
            Asks::Crc { offset, length, seed } => {
                let end = offset.checked_add(*length).filter(|end| *end <= frame.length());
                let range = *offset..end.ok_or(PeerReason::OutOfBounds)?;
                let transfer = crc32c(frame.slice(range)).seed(*seed);
                Ok((queue.submit(transfer)?.id(), 0))
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
        while let Some(ended) = self.queue.poll().or_else(|| self.window_queue.poll()) {
            any = true;
            let failed_by = |failure| ended.as_ref().is_err_and(|error| error.failure == failure);
            let is_unsupported = failed_by(Failure::Unsupported);
            let is_cancelled = failed_by(Failure::Cancelled);
            let (id, outcome) = match &ended {
                Ok(done) => (done.id, Ok(done.output as u32)),
                Err(error) => (error.id, Err(reason(error)?)),
            };
            let Some(running) = self.running.remove(&id) else { continue };
            let Running { connection, operation, attachment, slot, transfer, read, written, in_place } =
                running;
            self.free.push(slot);
            let Some(served) = connections.served(connection) else { continue };
            let mut outcome = outcome;
            match in_place {
                Some(InPlace { stage: Stage::Answered, .. }) => {
                    // It was counted when it was answered.
                    if outcome.is_err() {
                        served.forget_grant(attachment);
                    }
                    continue;
                }
                Some(InPlace { asked, stage: Stage::Awaited }) if is_unsupported => {
                    // This engine does not have the memory.
                    served.running -= 1;
                    served.attachments.entry(attachment).and_modify(|held| held.is_direct = false);
                    served.waiting.push_front(asked);
                    self.again.push(connection);
                    continue;
                }
                Some(InPlace { asked, stage: Stage::Withdrawn }) if is_cancelled || is_unsupported => {
                    served.running -= 1;
                    served.waiting.push_front(asked);
                    self.again.push(connection);
                    continue;
                }
                // There are no bytes: those of the staging frame's slot are of another access.
                Some(InPlace { stage: Stage::Awaited | Stage::Withdrawn, .. }) => {
                    outcome = outcome.and(Err(PeerReason::Failed));
                }
                Some(InPlace { stage: Stage::Written, .. }) | None => {}
            }
            served.running -= 1;
            if matches!(outcome, Err(PeerReason::Revoked | PeerReason::Expired)) {
                served.forget_grant(attachment);
            }
            let access = Some((transfer, if outcome.is_ok() { written } else { 0 }));
            let message = Message::Done { operation, outcome };
            if outcome.is_err() || read == 0 {
                answers.push(Answer::short(connection, access, message));
                continue;
            }
            let mut packet = Packet::new(&self.pool, &message, read as usize);
            if self.staging.read(u64::from(slot) * CHUNK_BYTES, packet.payload_mut()).is_ok() {
                answers.push(Answer { connection, access, message, packet });
            } else {
                let message = Message::Done { operation, outcome: Err(PeerReason::Failed) };
                answers.push(Answer::short(connection, access, message));
            }
        }
        Ok(any)
    }

    /// Withdraws accesses whose memory the service is late with. They begin once more, by the staging frame: those of other nodes may wait
    /// for them, and these for others here. Returns whether there were any. Call it in each turn.
    /// `has_all_jobs` says that nothing which the service brought waits to be taken.
    pub(crate) fn withdraw_late(&mut self, has_all_jobs: bool) -> bool {
        let mut any = false;
        let now = Instant::now();
        let away = now - std::mem::replace(&mut self.looked, now);
        if away > self.late / 2 {
            // It was this process that did not run.
            self.awaited.iter_mut().for_each(|(since, _)| *since = (*since + away).min(now));
        }
        let late = if has_all_jobs { self.late } else { 2 * self.late };
        while let Some((since, ticket)) = self.awaited.front().copied() {
            let in_place = self.running.get_mut(&ticket).and_then(|running| running.in_place.as_mut());
            if let Some(in_place) = in_place.filter(|one| matches!(one.stage, Stage::Awaited)) {
                if since.elapsed() < late {
                    break;
                }
                in_place.stage = Stage::Withdrawn;
                self.pauses_until = Some(Instant::now() + PAUSE);
                // It may have ended: its completion is taken next, then.
                let _ = self.window_queue.cancel(ticket);
                any = true;
            }
            self.awaited.pop_front();
        }
        any
    }

    /// The service brought the memory of the access that has this slot of the window; `None` if there is no such access.
    pub(crate) fn brought(&self, slot: u32) -> Option<Brought<'_>> {
        let awaited = |running: &&Running| {
            running.slot == slot
                && running.in_place.as_ref().is_some_and(|one| matches!(one.stage, Stage::Awaited))
        };
        let running = self.running.values().find(awaited)?;
        let payload = match &running.in_place.as_ref()?.asked.task {
            Asks::Write(_, payload) => Some(&payload[..]),
            _ => None,
        };
        let Running { connection, operation, transfer, .. } = *running;
        Some(Brought { connection, operation, transfer, payload })
    }

    fn set_stage(&mut self, slot: u32, stage: Stage) {
        let of_slot = |running: &&mut Running| running.slot == slot;
        if let Some(in_place) = self.running.values_mut().find(of_slot).and_then(|one| one.in_place.as_mut())
        {
            in_place.stage = stage;
        }
    }

    /// The payload was written to the memory.
    pub(crate) fn written_in_place(&mut self, slot: u32) {
        self.set_stage(slot, Stage::Written);
    }

    /// The answer is sent, with the bytes. The peer may ask for the next access when it has it.
    pub(crate) fn answered_in_place(&mut self, served: &mut Served, slot: u32) {
        served.running -= 1;
        self.set_stage(slot, Stage::Answered);
    }

    /// Connections with an access that waits once more, because its memory is not to be had in place.
    pub(crate) fn take_again(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.again)
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
        // What the link itself cancels begins once more, and is not told to the peer: a revocation cancels, too.
        Failure::Revoked { .. } | Failure::Cancelled | Failure::StaleHandle { .. } => PeerReason::Revoked,
        Failure::Expired { .. } => PeerReason::Expired,
        Failure::MissingRight { .. } => PeerReason::MissingRight,
        Failure::OutOfBounds { .. } => PeerReason::OutOfBounds,
        Failure::WaitingQuota { .. } | Failure::ChannelsBusy { .. } => PeerReason::Busy,
        _ => PeerReason::Failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peer_takes_the_share_of_others() {
        for peers in [1, 2, 3, 63, 4000] {
            assert!(peers * share(peers) <= MAX_ATTACHMENTS, "{peers}");
        }
        assert_eq!((share(0), share(1), share(5000)), (MAX_ATTACHMENTS, MAX_ATTACHMENTS, 1));
    }

    #[test]
    fn a_lost_service_is_no_busy_one() {
        let of = |reason| {
            let transfer = Box::new(memferry::nop());
            NotBegun::from(SubmitError { reason, transfer })
        };
        assert!(matches!(of(SubmitReason::ServiceLost), NotBegun::Lost));
        let full = of(SubmitReason::Full { capacity: 1 });
        assert!(matches!(full, NotBegun::Refused(PeerReason::Busy)));
        assert!(matches!(of(SubmitReason::ForeignFrame), NotBegun::Refused(PeerReason::Failed)));
    }

    #[test]
    fn attachments_count_in_the_window_of_a_peer() {
        let mut served = Served::default();
        let token = GrantToken::from_raw(1 << 32);
        let attach = || Message::Attach { id: 1, service: ServiceId(1), token, user: 0 };
        for _ in 0..WINDOW {
            assert_eq!(Owner::ask(&mut served, attach(), &[]), Ok(()));
        }
        assert_eq!(Owner::ask(&mut served, attach(), &[]), Err(BadMessage::Window));
    }
}
