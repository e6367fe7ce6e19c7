//! The sending end of a connection.
//!
//! ```text
//! send(kind, bytes) ─ up to 40 bytes: in the slot ─ more: in pieces through the area ───────┐
//! lend(kind, range) ─ not exported? grant it, send the token in a slot ─ LentFrame ─────────┼─► slots, in order ─► peer
//! lend_mapped(...)  ─ not exported? send the descriptor over the socket, a slot ─ LentFrame ┘
//! settled(loan)     ◄─ slots the peer has finished with
//! ```
//!
//! Messages arrive in the order they were sent. There is room for 64 slots and 1 MiB of contents; a sender that fills it waits
//! for the receiver. A sender serves one thread at a time; the receiver of the same end may be on another.
//!
//! The other end reads lent memory until the loan is settled: do not change it before. A grant covers the exported range and
//! ends with [`Sender::forget`] or the sender. Mapped memory stays mapped in the other process until that process unmaps it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry::{Armed, CallError, Client, Grantee, Handle, Region, Rights};
use memferry_shm::parking::Spin;
use memferry_shm::ring::Producer;
use memferry_shm::storage::RingStorage;

use crate::area::Area;
use crate::error::SendError;
use crate::exports::{ExportStatistics, Exports, Lending};
use crate::frames::SharedFrame;
use crate::peer::{Peer, Reach, RemoteUser, SPIN, Sleep, Unready, Wake, deadline};
use crate::unrevoked::Unrevoked;
use crate::wire::{
    AREA_AT, INLINE_BYTES, MESSAGE_NEWS, MESSAGE_WAKE, PIECE_BYTES, RECEIVER_CLOSED, RECEIVER_PARKED,
    RETIRED, RING, ROOM_WAKE, SENDER_CLOSED, SENDER_PARKED, SLOT_WORDS, SLOTS, Slot, Violation,
};

/// Wakes the other end's receiver.
pub(crate) const FOR_MESSAGES: Wake =
    Wake { parked: RECEIVER_PARKED, wake: MESSAGE_WAKE, news: MESSAGE_NEWS };

/// Messages from this length are written past the caches. A core of another complex reads lines from this core's cache at
/// 1.5 GB/s (measured), a tenth of the speed of memory.
const PAST_CACHES: u64 = 32 << 10;

/// A lent range, until the other end has finished with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[must_use = "the other end may read the memory until the loan is settled"]
pub struct Loan(u64);

/// How a range is lent.
#[derive(Clone, Copy)]
enum How<'a> {
    Granted,
    Mapped(&'a SharedFrame),
    /// Mapped for one message only.
    MappedOnce(&'a SharedFrame),
}

/// Sends messages to one other process.
pub struct Sender {
    peer: Arc<Peer>,
    client: Client,
    grants_to: Reach,
    longest: u64,
    ring: Producer<SLOT_WORDS, SLOT_WORDS>,
    area: Area,
    /// Bytes of the area that each unretired slot uses.
    under_way: VecDeque<u32>,
    staged: u64,
    retired: u64,
    exports: Exports,
    unrevoked: Unrevoked,
    spin: Spin,
    broken: bool,
}

impl Sender {
    pub(crate) fn new(peer: Arc<Peer>, client: Client, grants_to: Reach, longest: u64) -> Self {
        Self {
            peer,
            client,
            grants_to,
            longest,
            ring: Producer::new(RING),
            area: Area::default(),
            under_way: VecDeque::new(),
            staged: 0,
            retired: 0,
            exports: Exports::empty(),
            unrevoked: Unrevoked::default(),
            spin: Spin::new(SPIN),
            broken: false,
        }
    }

    /// Bytes of the longest message that the other end accepts.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Whether frames can be lent by a grant: both processes must be clients of one service, or of the services of two nodes
    /// whose links connect them.
    pub fn can_grant(&self) -> bool {
        self.grants_to != Reach::Nothing
    }

    /// The other end's node and user, if it is on another node. The link of that node answers for the user.
    pub fn remote(&self) -> Option<RemoteUser> {
        self.peer.remote
    }

    /// Sends a message of any kind and length, including zero. Waits up to `limit` for room.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&mut self, kind: u32, bytes: &[u8], limit: Option<Duration>) -> Result<(), SendError> {
        let sent = self.send_until(kind, bytes, deadline(limit));
        self.or_take_back(sent)
    }

    fn send_until(&mut self, kind: u32, bytes: &[u8], deadline: Option<Instant>) -> Result<(), SendError> {
        self.check()?;
        let length = bytes.len() as u64;
        let longest = self.longest;
        if length > longest {
            return Err(SendError::TooLong { length, longest });
        }
        if bytes.len() <= INLINE_BYTES {
            self.room(deadline, |_| Some(()))?;
            let mut inline = [0; INLINE_BYTES];
            inline[..bytes.len()].copy_from_slice(bytes);
            self.put(&Slot::Inline { kind, length: bytes.len(), bytes: inline }, 0);
            return Ok(());
        }
        let mut first = true;
        for piece in bytes.chunks(PIECE_BYTES as usize) {
            let wanted = piece.len() as u32;
            let (at, took) = self.room(deadline, |area| area.take(wanted))?;
            let area = self.peer.own.mapping();
            let at_byte = AREA_AT + u64::from(at);
            // Cannot fail: this end owns the area, and the offset is within it.
            let _ = match length >= PAST_CACHES {
                true => area.write_past_caches(at_byte, piece),
                false => area.write(at_byte, piece),
            };
            self.put(&Slot::Piece { kind, first, total: length, at, length: wanted }, took);
            first = false;
        }
        Ok(())
    }

    /// Lends a range by a grant: the other end's engine can read this range and nothing else of the frame. Lending memory that
    /// the other end already has needs no call to the service. An export keeps its frame alive, and the other end's right to
    /// read it, until 63 other exports follow or it is [forgotten](Self::forget).
    ///
    /// # Errors
    /// [`SendError`]; [`SendError::Grant`] for memory of an arena: derive a frame from it first.
    pub fn lend(
        &mut self,
        kind: u32,
        range: impl Into<Region>,
        limit: Option<Duration>,
    ) -> Result<Loan, SendError> {
        self.lend_as(kind, &range.into(), How::Granted, deadline(limit))
    }

    /// Lends part of a frame by its memory: the other process maps the whole frame, once.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn lend_mapped(
        &mut self,
        kind: u32,
        frame: &SharedFrame,
        (offset, length): (u64, u64),
        limit: Option<Duration>,
    ) -> Result<Loan, SendError> {
        self.lend_as(kind, &frame.range(offset, length), How::Mapped(frame), deadline(limit))
    }

    /// Like [`lend_mapped`](Self::lend_mapped), but the other process maps the frame for this message only. It shows the cost
    /// of a request when no frames are shared in advance.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn lend_mapped_once(
        &mut self,
        kind: u32,
        frame: &SharedFrame,
        (offset, length): (u64, u64),
        limit: Option<Duration>,
    ) -> Result<Loan, SendError> {
        self.lend_as(kind, &frame.range(offset, length), How::MappedOnce(frame), deadline(limit))
    }

    /// Grants a range to the other end before any part of it is lent. Lending parts of it is then a cache hit.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn export(&mut self, range: impl Into<Region>, limit: Option<Duration>) -> Result<(), SendError> {
        let exported = self.exported(&range.into(), How::Granted, deadline(limit)).map(|_| ());
        self.or_take_back(exported)
    }

    /// Lets the other process map a frame before any part of it is lent.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn export_mapped(&mut self, frame: &SharedFrame, limit: Option<Duration>) -> Result<(), SendError> {
        let exported = self.exported(&frame.frame().slice(..), How::Mapped(frame), deadline(limit));
        self.or_take_back(exported.map(|_| ()))
    }

    /// Revokes the grants of a frame. The other end's transfers that read it are cancelled first. Later lends export the frame
    /// again.
    ///
    /// # Errors
    /// [`CallError`]; the frame is removed from the cache even then.
    pub fn forget(&mut self, frame: Handle) -> Result<(), CallError> {
        self.peer.check_fork()?;
        let forgotten = self.exports.forget(Some(frame));
        forgotten.into_iter().map(|lending| self.revoke(lending)).fold(Ok(()), Result::and)
    }

    fn revoke(&mut self, lending: Lending) -> Result<(), CallError> {
        let Some(token) = lending.grant() else { return Ok(()) };
        self.unrevoked.revoke(token, |token| self.client.revoke(token))
    }

    /// Whether the other end has finished with the lent range.
    ///
    /// # Errors
    /// [`SendError::Broken`], [`SendError::Forked`].
    pub fn settled(&mut self, loan: Loan) -> Result<bool, SendError> {
        let settled = self.settled_now(loan);
        self.or_take_back(settled)
    }

    fn settled_now(&mut self, loan: Loan) -> Result<bool, SendError> {
        self.peer.check_fork()?;
        self.refresh()?;
        Ok(self.retired >= loan.0)
    }

    /// Waits up to `limit` until the other end has finished with the lent range.
    ///
    /// # Errors
    /// [`SendError::TimedOut`]; [`SendError::PeerLost`], [`SendError::Closed`] and [`SendError::Broken`], after which nobody reads
    /// the range through this connection but a process that mapped it: its grant has been taken back. [`SendError::Unrevoked`] if that
    /// is not complete: call again to wait for it. [`SendError::Forked`].
    pub fn settle(&mut self, loan: Loan, limit: Option<Duration>) -> Result<(), SendError> {
        let settled = self.settle_until(loan, deadline(limit));
        self.or_take_back(settled)
    }

    fn settle_until(&mut self, loan: Loan, deadline: Option<Instant>) -> Result<(), SendError> {
        let mut waited = false;
        while !self.settled_now(loan)? {
            // A peer can take back its count while this end wakes.
            if waited && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(SendError::TimedOut);
            }
            self.wait(deadline)?;
            waited = true;
        }
        Ok(())
    }

    /// Makes the descriptor of this end's [receiver](crate::Receiver) readable when the other end finishes with more slots;
    /// returns [`Armed::Ready`] if it already has. For an event loop whose send found no room, or that waits for a loan.
    ///
    /// # Errors
    /// [`SendError::Closed`], [`SendError::PeerLost`], [`SendError::Broken`], [`SendError::Forked`].
    pub fn arm(&mut self) -> Result<Armed, SendError> {
        let armed = self.arm_now();
        self.or_take_back(armed)
    }

    fn arm_now(&mut self) -> Result<Armed, SendError> {
        self.check()?;
        self.peer.arm(SENDER_PARKED);
        if self.refresh()? {
            return Ok(Armed::Ready);
        }
        if self.peer.theirs.word(RECEIVER_CLOSED).load(Ordering::Acquire) != 0 {
            return Err(SendError::Closed);
        }
        if self.peer.lost() { Err(SendError::PeerLost) } else { Ok(Armed::Waiting) }
    }

    /// Counts of the export cache.
    pub fn statistics(&self) -> ExportStatistics {
        self.exports.statistics()
    }

    /// After the end of the connection nobody reads what was lent: it is taken back before the caller learns of the end.
    fn or_take_back<T>(&mut self, outcome: Result<T, SendError>) -> Result<T, SendError> {
        if matches!(outcome, Err(SendError::PeerLost | SendError::Closed | SendError::Broken(_))) {
            self.take_back().map_err(SendError::Unrevoked)?;
        }
        outcome
    }

    /// Revokes every grant. One that may still be used is tried again by the next call.
    fn take_back(&mut self) -> Result<(), CallError> {
        let lent = self.exports.forget(None);
        self.unrevoked
            .take_back(lent.into_iter().filter_map(Lending::grant), |token| self.client.revoke(token))
    }

    fn lend_as(
        &mut self,
        kind: u32,
        range: &Region,
        how: How<'_>,
        deadline: Option<Instant>,
    ) -> Result<Loan, SendError> {
        let lent = self.lend_until(kind, range, how, deadline);
        self.or_take_back(lent)
    }

    fn lend_until(
        &mut self,
        kind: u32,
        range: &Region,
        how: How<'_>,
        deadline: Option<Instant>,
    ) -> Result<Loan, SendError> {
        let (index, offset) = self.exported(range, how, deadline)?;
        if let Err(error) = self.room(deadline, |_| Some(())) {
            // The export was for one message, which was not sent.
            if matches!(how, How::MappedOnce(_)) {
                self.exports.remove(index);
            }
            return Err(error);
        }
        self.put(&Slot::Lent { kind, index, offset, length: range.length() }, 0);
        match how {
            How::MappedOnce(_) => self.exports.remove(index),
            How::Granted | How::Mapped(_) => self.exports.lent(index, self.staged),
        }
        Ok(Loan(self.staged))
    }

    /// The number of an export that contains the range, and the range's offset in it. Makes the export if needed.
    fn exported(
        &mut self,
        range: &Region,
        how: How<'_>,
        deadline: Option<Instant>,
    ) -> Result<(u32, u64), SendError> {
        self.check()?;
        let Range { start, end } = range.bounds();
        if start > end {
            return Err(SendError::Inverted { start, end });
        }
        let offset = range.offset();
        let length = range.length();
        let available = range.frame().length();
        if offset.checked_add(length).is_none_or(|end| end > available) {
            return Err(SendError::OutOfRange { offset, length, available });
        }
        let (shared, once) = match how {
            How::Granted => (None, false),
            How::Mapped(shared) => (Some(shared), false),
            How::MappedOnce(shared) => (Some(shared), true),
        };
        if shared.is_some() && self.peer.remote.is_some() {
            return Err(SendError::OtherNode);
        }
        if shared.is_none() && !self.client.owns(range.frame()) {
            return Err(SendError::ForeignFrame);
        }
        if !once && let Some(found) = self.exports.find(range, shared) {
            return Ok(found);
        }
        // While a slot is free, at least one export has no lent frame in use.
        self.room(deadline, |_| Some(()))?;
        let Some(shared) = shared else {
            return self.granted(range);
        };
        let index = self.place(&shared.frame().slice(..), Some(shared.clone()), Lending::Mapped)?;
        if let Err(error) = self.peer.socket.send(index, shared.descriptor()) {
            self.exports.remove(index);
            return Err(match error {
                rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => SendError::PeerLost,
                other => SendError::Descriptor(other.into()),
            });
        }
        self.put(&Slot::Descriptor { index, once, length: available }, 0);
        Ok((index, offset))
    }

    /// Grants a range and announces it.
    fn granted(&mut self, range: &Region) -> Result<(u32, u64), SendError> {
        let (grantee, service) = match self.grants_to {
            Reach::Nothing => return Err(SendError::OtherService),
            Reach::Session(session) => (Grantee::Session(session), None),
            Reach::Remote(RemoteUser { node, user }) => {
                let service = self.client.identify(self.client.session())?.service;
                (Grantee::Remote { node, user }, Some(service))
            }
        };
        let token = self.client.grant(range, Rights::READ, grantee)?.token();
        let index = self.place(range, None, Lending::Granted(token))?;
        let slot = match service {
            None => Slot::Grant { index, token },
            Some(service) => Slot::Remote { index, token, length: range.length(), service, withheld: None },
        };
        self.put(&slot, 0);
        Ok((index, 0))
    }

    fn place(
        &mut self,
        range: &Region,
        shared: Option<SharedFrame>,
        lending: Lending,
    ) -> Result<u32, SendError> {
        let (index, evicted) =
            self.exports.place(range, shared, lending, self.retired).ok_or(SendError::TimedOut)?;
        if let Some(lending) = evicted {
            // What cannot be revoked now is tried again at the end of the channel.
            let _ = self.revoke(lending);
        }
        Ok(index)
    }

    fn check(&self) -> Result<(), SendError> {
        self.peer.check_fork()?;
        if self.broken { Err(SendError::Broken(Violation::Earlier)) } else { Ok(()) }
    }

    /// Waits until a slot is free and `take` found its space in the area.
    fn room<T>(
        &mut self,
        deadline: Option<Instant>,
        take: impl Fn(&mut Area) -> Option<T>,
    ) -> Result<T, SendError> {
        // A peer that closed is distinguished from one that is slow.
        if self.peer.theirs.word(RECEIVER_CLOSED).load(Ordering::Acquire) != 0 {
            return Err(SendError::Closed);
        }
        // Free room does not prove that the peer lives. The check is a system call, so it is made once per lap.
        if self.peer.known_lost() || self.staged.is_multiple_of(u64::from(SLOTS)) && self.peer.lost() {
            return Err(SendError::PeerLost);
        }
        let mut waited = false;
        loop {
            if self.ring.free() > 0
                && let Some(taken) = take(&mut self.area)
            {
                return Ok(taken);
            }
            if !self.refresh()? {
                if waited && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(SendError::TimedOut);
                }
                self.wait(deadline)?;
                waited = true;
            }
        }
    }

    /// Reads how many slots the other end has finished with. Returns whether there are more than before.
    fn refresh(&mut self) -> Result<bool, SendError> {
        let claimed = self.peer.theirs.word(RETIRED).load(Ordering::Acquire) as u32;
        let before = self.ring.known_consumed();
        if let Err(impossible) = self.ring.consumed(claimed) {
            self.broken = true;
            return Err(SendError::Broken(impossible.into()));
        }
        let more = claimed.wrapping_sub(before);
        for _ in 0..more {
            self.area.give(self.under_way.pop_front().unwrap_or(0));
        }
        self.retired += u64::from(more);
        Ok(more > 0)
    }

    /// Waits until the other end finishes with more slots.
    fn wait(&mut self, deadline: Option<Instant>) -> Result<(), SendError> {
        let peer = &self.peer;
        let known = self.ring.known_consumed();
        let closed = || peer.theirs.word(RECEIVER_CLOSED).load(Ordering::Acquire) != 0;
        let more = || peer.theirs.word(RETIRED).load(Ordering::Relaxed) as u32 != known;
        let sleep = Sleep { parked: SENDER_PARKED, wake: ROOM_WAKE };
        let waited = peer.wait(sleep, &mut self.spin, deadline, || more() || closed());
        match waited {
            Ok(()) if !more() && closed() => Err(SendError::Closed),
            Ok(()) => Ok(()),
            Err(Unready::TimedOut) => Err(SendError::TimedOut),
            Err(Unready::Lost) => Err(SendError::PeerLost),
            Err(Unready::Forked(forked)) => Err(forked.into()),
        }
    }

    /// Writes a slot, for which the caller found room, and publishes it.
    fn put(&mut self, slot: &Slot, took: u32) {
        let staged = self.ring.stage(&self.peer.own, &slot.encode());
        debug_assert!(staged.is_ok(), "the caller waited for room");
        self.ring.publish(&self.peer.own);
        self.under_way.push_back(took);
        self.staged += 1;
        self.peer.wake(FOR_MESSAGES);
    }
}

#[cfg(test)]
impl Sender {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Writes any words as the next slot, even over slots in use.
    pub(crate) fn forge_over(&mut self, words: &[u64; SLOT_WORDS]) {
        let published = self.ring.staged();
        self.ring.consumed(published).unwrap();
        self.forge(words);
    }

    /// Writes any words as a slot.
    pub(crate) fn forge(&mut self, words: &[u64; SLOT_WORDS]) {
        self.ring.stage(&self.peer.own, words).unwrap();
        self.ring.publish(&self.peer.own);
        self.peer.wake(FOR_MESSAGES);
    }
}

impl Drop for Sender {
    /// Revokes every grant. The other end receives what was sent, then sees the connection closed.
    fn drop(&mut self) {
        // In a forked child the connection belongs to the parent, and its memory is not mapped.
        if self.peer.check_fork().is_err() {
            return;
        }
        self.peer.own.word(SENDER_CLOSED).store(1, Ordering::Release);
        self.peer.wake(FOR_MESSAGES);
        // One that takes too long goes on without this sender.
        while self.take_back().is_err() {
            self.unrevoked.leave_first();
        }
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sender({} slots sent, {} done with)", self.staged, self.retired)
    }
}
