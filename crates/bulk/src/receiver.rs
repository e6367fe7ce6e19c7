//! The receiving end of a connection.
//!
//! ```text
//! slots, in order ─► receive ─┬─ bytes: copied once into this end's own buffer ──► Message, the slot is retired
//!                             └─ LentFrame ─┬─ pull: the engine reads it into a frame ─ finish ─► retired
//!                                           ├─ read, copy_to: this CPU reads mapped memory
//!                                           └─ dropped, on any thread ─► retired
//! arm ─► the descriptor becomes readable with the next message, for event loops
//! ```
//!
//! The other end is not trusted: a slot is copied before it is decoded, numbers are checked against their bounds, and the buffer
//! grows only as a message's bytes arrive. A protocol violation ends the connection with a [`Violation`]. A refused, revoked or
//! late frame is an error of one message. Memory is admitted by a helper thread (`admission`), since the other end can hold it:
//! a slot that needs it waits there while calls return, and ends the connection after its time.
//!
//! Slots are retired in order: holding a lent frame stops the sender once 64 slots are behind it. A receiver serves one thread
//! at a time; the sender of the same end may be on another.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry::{
    Armed, CallError, Client, Frame, Queue, Refusal, RefusalKind, Region, RemoteToken, Rights, Ticket, copy,
};
use memferry_shm::bus_error::guarded;
use memferry_shm::parking::Spin;
use memferry_shm::ring::Consumer;
use memferry_shm::storage::RingStorage;
use rustix::io::Errno;

use crate::admission::{self, Admitter, Answer, MOST_LEFT, Refused};
use crate::buffer::Buffer;
use crate::closing::close_elsewhere;
use crate::error::{FinishError, PullReason, ReceiveError};
use crate::lent::{Import, LentFrame, Pledge, PullError};
use crate::peer::{Peer, Reach, SPIN, Sleep, Unready, deadline};
use crate::retirement::{FOR_ROOM, Retirement, Unretired};
use crate::socket::NoDescriptor;
use crate::wire::{
    AREA_AT, EXPORTS, INLINE_BYTES, MESSAGE_WAKE, RECEIVER_CLOSED, RECEIVER_PARKED, RING, SENDER_CLOSED,
    SLOT_WORDS, SLOTS, Slot, Violation,
};

/// How long a dropped receiver waits for each of its cancelled pulls to end.
const CANCEL_WAIT: Duration = Duration::from_secs(1);
/// How long a call waits for the admission of memory beyond its limit, and takes slots that are no message: ordinary admissions, and
/// what comes before one message, end within it.
const GRACE: Duration = Duration::from_millis(2);

/// The contents of a message.
#[derive(Debug)]
pub enum Content<'a> {
    /// Bytes, valid until the next call to the receiver.
    Bytes(&'a [u8]),
    /// A range of the other end's memory.
    Range(LentFrame),
}

#[derive(Debug)]
pub struct Message<'a> {
    /// The message's kind, chosen by the sender.
    pub kind: u32,
    pub content: Content<'a>,
}

/// A received message without its bytes.
enum Arrived {
    Bytes(u32, usize),
    Range(LentFrame),
}

/// A slot that waits for the admission of the memory that it names.
struct Admitting {
    slot: Slot,
    index: u32,
    once: bool,
    length: u64,
    unretired: Unretired,
    until: Option<Instant>,
}

/// A range that has been pulled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pulled {
    pub kind: u32,
    pub length: u64,
}

/// Receives messages from one other process.
pub struct Receiver {
    peer: Arc<Peer>,
    client: Client,
    /// Whose grants are accepted.
    grantor: Reach,
    longest: u64,
    ring: Consumer<SLOT_WORDS, SLOT_WORDS>,
    taken: u64,
    admitter: Admitter,
    /// How long the admission of a frame may take.
    patience: Duration,
    admitting: Option<Admitting>,
    retirement: Arc<Retirement>,
    /// By export number, and whether each is for one message only.
    imports: [Option<(Arc<Import>, bool)>; EXPORTS],
    buffer: Buffer,
    /// Kind and length of the message in progress, and the bytes received so far.
    partial: Option<(u32, u64, usize)>,
    queue: Option<Queue>,
    pulling: VecDeque<(Ticket, LentFrame)>,
    spin: Spin,
    broken: bool,
}

impl Receiver {
    pub(crate) fn new(
        peer: Arc<Peer>,
        client: Client,
        grantor: Reach,
        (longest, patience): (u64, Duration),
    ) -> Self {
        Self {
            admitter: Admitter::new(peer.user),
            patience,
            admitting: None,
            retirement: Arc::new(Retirement::new(Arc::clone(&peer))),
            peer,
            client,
            grantor,
            longest,
            ring: Consumer::new(RING),
            taken: 0,
            imports: [const { None }; EXPORTS],
            buffer: Buffer::default(),
            partial: None,
            queue: None,
            pulling: VecDeque::new(),
            spin: Spin::new(SPIN),
            broken: false,
        }
    }

    /// Waits up to `limit` for the next message, and up to 2 ms longer for memory that the other end lends mapped. If the other
    /// end holds that memory, calls time out until [`Options::admission`](crate::Options::admission) has passed, then the
    /// connection ends with [`ReceiveError::Held`].
    ///
    /// # Errors
    /// [`ReceiveError`].
    pub fn receive(&mut self, limit: Option<Duration>) -> Result<Message<'_>, ReceiveError> {
        self.receive_until(deadline(limit))
    }

    pub(crate) fn receive_until(&mut self, deadline: Option<Instant>) -> Result<Message<'_>, ReceiveError> {
        let arrived = self.next(deadline)?;
        Ok(match arrived {
            Arrived::Bytes(kind, length) => {
                Message { kind, content: Content::Bytes(self.buffer.first(length)) }
            }
            Arrived::Range(lent) => Message { kind: lent.kind, content: Content::Range(lent) },
        })
    }

    /// Whether a slot waits to be received. Does not block.
    pub fn ready(&self) -> bool {
        self.peer.check_fork().is_ok() && (self.admitting.is_some() || self.ring.ready(&self.peer.theirs))
    }

    /// Makes the [descriptor](Self::as_fd) readable with the next message or the end of the connection; returns
    /// [`Armed::Ready`] if there is one already. It applies once, or until a call waits for a message. One thread polls for
    /// both ends of a side.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`], [`ReceiveError::Forked`].
    pub fn arm(&mut self) -> Result<Armed, ReceiveError> {
        self.check()?;
        // A shortage is reported with the message that it concerns.
        let lacking = match self.peer.socket.take_in() {
            Ok(_) => false,
            Err(NoDescriptor::Shortage(_)) => true,
            Err(NoDescriptor::Broken(violation)) => return Err(self.end(violation)),
        };
        self.peer.arm(RECEIVER_PARKED);
        let room = self.peer.socket.had_room();
        let closed = self.peer.theirs.word(SENDER_CLOSED).load(Ordering::Acquire) != 0;
        // The descriptor's wake-up was for this side's sender; its wake-up is consumed, so report ready.
        let ready = lacking || room || closed || self.ready() || self.peer.lost();
        Ok(if ready { Armed::Ready } else { Armed::Waiting })
    }

    fn check(&self) -> Result<(), ReceiveError> {
        self.peer.check_fork()?;
        if self.broken { Err(ReceiveError::Broken(Violation::Earlier)) } else { Ok(()) }
    }

    fn end(&mut self, violation: Violation) -> ReceiveError {
        self.broken = true;
        ReceiveError::Broken(violation)
    }

    fn next(&mut self, deadline: Option<Instant>) -> Result<Arrived, ReceiveError> {
        self.check()?;
        let over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let late = || deadline.is_some_and(|deadline| Instant::now() >= deadline + GRACE);
        let mut waited = false;
        loop {
            let arrived = if let Some(admitting) = self.admitting.take() {
                self.admitted(admitting, deadline)
            } else {
                let Some(words) = self.ring.pop(&self.peer.theirs) else {
                    // A peer can take back slots while this end wakes.
                    if waited && over() {
                        return Err(ReceiveError::TimedOut);
                    }
                    self.wait(deadline)?;
                    waited = true;
                    continue;
                };
                if self.taken - self.retirement.count() >= u64::from(SLOTS) {
                    return Err(self.end(Violation::Overrun));
                }
                let unretired = Unretired::new(&self.retirement, self.taken);
                self.taken += 1;
                let taken = Slot::decode(&words).map_err(ReceiveError::Broken);
                taken.and_then(|slot| self.take(slot, unretired))
            };
            match arrived {
                Ok(None) => {}
                Ok(Some(arrived)) => return Ok(arrived),
                Err(error) => {
                    self.broken |= matches!(
                        error,
                        ReceiveError::Broken(_) | ReceiveError::MemoryFault | ReceiveError::Held { .. }
                    );
                    return Err(error);
                }
            }
            // A peer can send slots without messages endlessly.
            if self.admitting.is_none() && late() {
                return Err(ReceiveError::TimedOut);
            }
        }
    }

    fn take(&mut self, slot: Slot, unretired: Unretired) -> Result<Option<Arrived>, ReceiveError> {
        let before = self.partial.take();
        match slot {
            Slot::Inline { kind, length, bytes } => {
                self.buffer.part(0, length, INLINE_BYTES).copy_from_slice(&bytes[..length]);
                Ok(Some(Arrived::Bytes(kind, length)))
            }
            Slot::Piece { kind, first, total, at, length } => {
                self.piece((kind, total), if first { None } else { before }, (at, length))
            }
            Slot::Grant { index, token } => self.pledged(index, Pledge::Here(token)),
            Slot::Remote { index, token, length, service, withheld } => {
                let Reach::Remote(user) = self.grantor else {
                    return Err(ReceiveError::Broken(Violation::NoGrants));
                };
                if let Some(kind) = withheld {
                    self.imports[index as usize] = Some((Arc::new(Import::Withheld(kind)), false));
                    return Ok(None);
                }
                let rights = Rights::READ;
                let token = RemoteToken { node: user.node, service, token, length, rights };
                self.pledged(index, Pledge::There(token))
            }
            Slot::Descriptor { index, once, length } => {
                match self.peer.socket.descriptor(index) {
                    Ok(memory) => self.admit(memory, (slot, unretired), (index, once, length))?,
                    Err(NoDescriptor::Shortage(_)) => {
                        self.imports[index as usize] = Some((Arc::new(Import::Unmapped(None, length)), once));
                    }
                    Err(NoDescriptor::Broken(violation)) => return Err(ReceiveError::Broken(violation)),
                }
                Ok(None)
            }
            Slot::Lent { kind, index, offset, length } => {
                if let Some((memory, whole, once)) = self.unmapped(kind, index)? {
                    self.admit(memory, (slot, unretired), (index, once, whole))?;
                    return Ok(None);
                }
                let import = self.import(kind, index)?;
                Ok(Some(Arrived::Range(LentFrame { kind, import, offset, length, _unretired: unretired })))
            }
        }
    }

    /// Accepts a grant that was announced under this number, if that can be done now.
    fn pledged(&mut self, index: u32, pledge: Pledge) -> Result<Option<Arrived>, ReceiveError> {
        // Before the next one counts: the one of this number is used no more.
        self.imports[index as usize] = None;
        let accepted = accept(&self.client, self.grantor, pledge).map_err(ReceiveError::Broken)?;
        let import = accepted.map_or(Import::Pending(pledge), Import::Granted);
        self.imports[index as usize] = Some((Arc::new(import), false));
        Ok(None)
    }

    /// Appends a piece to its message. `before` is the part received so far, unless the piece is the first.
    fn piece(
        &mut self,
        (kind, total): (u32, u64),
        before: Option<(u32, u64, usize)>,
        (at, length): (u32, u32),
    ) -> Result<Option<Arrived>, ReceiveError> {
        let broken = |violation| Err(ReceiveError::Broken(violation));
        if total > self.longest {
            let what = "length of a message";
            let most = self.longest;
            return broken(Violation::Bounds { what, value: total, most });
        }
        let whole = total as usize;
        let received = match before {
            None => 0,
            Some((of, bytes, received)) if (of, bytes) == (kind, total) => received,
            Some(_) => return broken(Violation::Pieces),
        };
        let end = received + length as usize;
        if end > whole {
            return broken(Violation::Pieces);
        }
        let place = self.buffer.part(received, end, whole);
        // Bounds are checked: the whole area is mapped. Its memory is sealed and cannot shrink, but it can fail.
        let from = AREA_AT + u64::from(at);
        let area = self.peer.theirs.mapping();
        let read = guarded([area], || area.read(from, place));
        read.map_err(|_| ReceiveError::MemoryFault)?.map_err(|_| ReceiveError::MemoryFault)?;
        if end == whole {
            return Ok(Some(Arrived::Bytes(kind, whole)));
        }
        self.partial = Some((kind, total, end));
        Ok(None)
    }

    fn import(&mut self, kind: u32, index: u32) -> Result<Arc<Import>, ReceiveError> {
        let entry = &mut self.imports[index as usize];
        let Some((import, once)) = entry else {
            return Err(ReceiveError::Broken(Violation::NotExported(index)));
        };
        match &**import {
            Import::Pending(pledge) => {
                let frame = accept(&self.client, self.grantor, *pledge).map_err(ReceiveError::Broken)?;
                let frame = frame.map_err(|source| ReceiveError::Refused { kind, source })?;
                *import = Arc::new(Import::Granted(frame));
            }
            Import::Withheld(why) => {
                return Err(ReceiveError::Refused { kind, source: not_checked(*why) });
            }
            // Memory to be mapped was taken before.
            Import::Unmapped(..) => {
                return Err(ReceiveError::Shortage { kind, source: Errno::MFILE.into() });
            }
            Import::Granted(_) | Import::Mapped(_) => {}
        }
        let import = Arc::clone(import);
        let once = *once;
        if once {
            *entry = None;
        }
        Ok(import)
    }

    /// Takes the memory of an export that a lack of resources left unmapped: its descriptor, length, and use for one message.
    fn unmapped(&mut self, kind: u32, index: u32) -> Result<Option<(OwnedFd, u64, bool)>, ReceiveError> {
        let Some((import, once)) = &mut self.imports[index as usize] else { return Ok(None) };
        let once = *once;
        match Arc::get_mut(import) {
            Some(Import::Unmapped(memory, length)) => match memory.take() {
                Some(memory) => Ok(Some((memory, *length, once))),
                None => Err(ReceiveError::Shortage { kind, source: Errno::MFILE.into() }),
            },
            _ => Ok(None),
        }
    }

    /// Starts to admit the memory of export `index` for a slot.
    fn admit(
        &mut self,
        memory: OwnedFd,
        (slot, unretired): (Slot, Unretired),
        (index, once, length): (u32, bool, u64),
    ) -> Result<(), ReceiveError> {
        if admission::stuck(self.peer.user) >= MOST_LEFT {
            close_elsewhere(self.peer.user, vec![memory]);
            return Err(ReceiveError::Held { limit: self.patience });
        }
        let until = Instant::now().checked_add(self.patience);
        let admitting = Admitting { slot, index, once, length, unretired, until };
        match self.admitter.begin(memory, length) {
            Ok(()) => {
                self.admitting = Some(admitting);
                Ok(())
            }
            Err(refused) => self.mapped(&admitting, Err(refused)),
        }
    }

    /// Continues a slot whose memory is being admitted.
    fn admitted(
        &mut self,
        admitting: Admitting,
        deadline: Option<Instant>,
    ) -> Result<Option<Arrived>, ReceiveError> {
        let call = deadline.map(|deadline| deadline.max(Instant::now() + GRACE));
        let until = [call, admitting.until].into_iter().flatten().min();
        let Some(answer) = self.admitter.wait(until) else {
            if admitting.until.is_some_and(|until| until <= Instant::now()) {
                self.admitter.give_up();
                return Err(ReceiveError::Held { limit: self.patience });
            }
            self.admitting = Some(admitting);
            return Err(ReceiveError::TimedOut);
        };
        self.mapped(&admitting, answer)?;
        match admitting.slot {
            Slot::Lent { .. } => self.take(admitting.slot, admitting.unretired),
            _ => Ok(None),
        }
    }

    /// Stores the memory of an export. If a resource is lacking, the next message that lends it tries again.
    fn mapped(&mut self, admitting: &Admitting, answer: Answer) -> Result<(), ReceiveError> {
        let Admitting { slot, index, once, length, .. } = *admitting;
        let (import, lacking) = match answer {
            Ok(mapping) => (Import::Mapped(mapping), None),
            Err(Refused { why: NoDescriptor::Broken(violation), .. }) => {
                return Err(ReceiveError::Broken(violation));
            }
            Err(Refused { why: NoDescriptor::Shortage(error), memory }) => {
                (Import::Unmapped(memory, length), Some(error))
            }
        };
        self.imports[index as usize] = Some((Arc::new(import), once));
        match (slot, lacking) {
            (Slot::Lent { kind, .. }, Some(error)) => {
                Err(ReceiveError::Shortage { kind, source: error.into() })
            }
            _ => Ok(()),
        }
    }

    /// Starts a copy of a granted range by the engine into the first bytes of `to`; [`finish`](Self::finish) waits for it. Several
    /// pulls may be in progress.
    ///
    /// # Errors
    /// [`PullError`] with the lent frame.
    pub fn pull(&mut self, lent: LentFrame, to: impl Into<Region>) -> Result<(), PullError> {
        match self.begin(&lent, to.into()) {
            Ok(ticket) => {
                self.pulling.push_back((ticket, lent));
                Ok(())
            }
            Err(reason) => Err(PullError { reason, lent }),
        }
    }

    fn begin(&mut self, lent: &LentFrame, to: Region) -> Result<Ticket, PullReason> {
        let Import::Granted(frame) = &*lent.import else { return Err(PullReason::Mapped) };
        let length = lent.length;
        let available = to.length();
        if length > available {
            return Err(PullReason::Length { lent: length, available });
        }
        // The peer's offset and length may overflow; a saturated end is out of bounds too.
        let transfer = copy(frame.slice(lent.offset..lent.offset.saturating_add(length)), to);
        let queue = match &mut self.queue {
            Some(queue) => queue,
            none => none.insert(self.client.queue(SLOTS)?),
        };
        queue.submit(transfer).map_err(|refused| PullReason::Submit(refused.reason))
    }

    /// Number of pulls in progress.
    pub fn pulling(&self) -> usize {
        self.pulling.len()
    }

    /// Waits up to `limit` for the oldest pull. Afterwards the other end may reuse its memory.
    ///
    /// # Errors
    /// [`FinishError`].
    pub fn finish(&mut self, limit: Option<Duration>) -> Result<Pulled, FinishError> {
        self.peer.check_fork()?;
        let (Some((ticket, _)), Some(queue)) = (self.pulling.front(), &mut self.queue) else {
            return Err(FinishError::Nothing);
        };
        let ended = match limit {
            None => queue.wait(*ticket).map(Some),
            Some(limit) => queue.wait_for(*ticket, limit),
        };
        let outcome = match ended {
            Ok(None) => return Err(FinishError::TimedOut),
            Ok(Some(_)) => Ok(()),
            Err(error) => Err(error.failure),
        };
        let Some((_, LentFrame { kind, length, .. })) = self.pulling.pop_front() else {
            return Err(FinishError::Nothing);
        };
        outcome.map(|()| Pulled { kind, length }).map_err(|failure| FinishError::Failed { kind, failure })
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Result<(), ReceiveError> {
        let peer = &self.peer;
        let ring = &self.ring;
        let ready = || ring.ready(&peer.theirs);
        let closed = || peer.theirs.word(SENDER_CLOSED).load(Ordering::Acquire) != 0;
        let sleep = Sleep { parked: RECEIVER_PARKED, wake: MESSAGE_WAKE };
        match peer.wait(sleep, &mut self.spin, deadline, || ready() || closed()) {
            // The order matters: all that was sent before the close is visible once the close is.
            Ok(()) if closed() && !ready() => Err(ReceiveError::Closed),
            Ok(()) => Ok(()),
            Err(Unready::TimedOut) => Err(ReceiveError::TimedOut),
            Err(Unready::Lost) => Err(ReceiveError::PeerLost),
            Err(Unready::Forked(forked)) => Err(forked.into()),
        }
    }
}

/// Why a grant is refused that the link of the other node could not check.
fn not_checked(kind: RefusalKind) -> CallError {
    let message = format!(
        "the link of the sender's node could not check the grant ({}); the sender has to forget the frame and lend it again",
        kind.name()
    );
    CallError::Refused(Refusal { kind, message })
}

/// Accepts a grant of `expected`. The inner error is the service's.
fn accept(client: &Client, expected: Reach, pledge: Pledge) -> Result<Result<Frame, CallError>, Violation> {
    match (expected, pledge) {
        (Reach::Session(expected), Pledge::Here(token)) => match client.accept(token) {
            Ok(frame) => match frame.grantor() {
                Some(grantor) if grantor != expected => Err(Violation::Grantor { grantor }),
                _ => Ok(Ok(frame)),
            },
            Err(error) => Ok(Err(error)),
        },
        // The link of the other node has compared the grantor with its client.
        (Reach::Remote(_), Pledge::There(token)) => Ok(client.accept_remote(token)),
        _ => Err(Violation::NoGrants),
    }
}

#[cfg(test)]
impl Receiver {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for Receiver {
    /// Tells the other end that this one takes no more messages.
    fn drop(&mut self) {
        if self.peer.check_fork().is_err() {
            self.admitter.forget();
            return;
        }
        // Before the other end learns that its frames are no longer read.
        if let Some(queue) = &mut self.queue {
            for (ticket, _) in &self.pulling {
                let _ = queue.cancel(*ticket);
            }
            for (ticket, _) in &self.pulling {
                let _ = queue.wait_for(*ticket, CANCEL_WAIT);
            }
        }
        self.peer.own.word(RECEIVER_CLOSED).store(1, Ordering::Release);
        self.peer.wake(FOR_ROOM);
    }
}

/// The descriptor that an event loop polls for [readability](Receiver::arm) and must not read from. It stays readable once the
/// other process is gone.
impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.peer.descriptor()
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receiver({} slots taken, {} done with)", self.taken, self.retirement.count())
    }
}
