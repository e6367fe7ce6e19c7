//! What the link of a node does for a channel to another one: it is the other end of the connection to its own client, and carries what
//! that sends.
//!
//! ```text
//! client ─ slots, area ─► Relay::take ─ Carried ─► the other node ─► Relay::put ─ the same slot, the same place in the area ─► client
//!        ◄─ finished ──── Relay::retire ◄───────── count ◄────────── Relay::finished ◄───────────────────────────── retired ─┘
//! ```
//!
//! The memories of both relays are images of the far clients' memories, so the credit of the connection is that of the whole channel: the
//! 64 slots and 1 MiB of contents that a client may have under way are all that is under way between the nodes. A client that
//! takes nothing stops its own sender and nobody else. Neither clients nor other links are believed: slots are copied, then checked.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry::{Client, GrantToken, RefusalKind, ServiceId, SessionId};
use memferry_shm::bus_error::guarded as guarded_memory;
use memferry_shm::conduit;
use memferry_shm::ring::{Consumer, Producer};
use memferry_shm::storage::RingStorage;
use rustix::net::sockopt;

use crate::closing::{check_room, close_elsewhere};
use crate::connection::{Hello, Met, Own, Room, after, failed, guarded, receive_packet, theirs};
use crate::error::{ConnectError, LinkRefusal};
use crate::peer::{Peer, RemoteUser};
pub use crate::remote::Wish;
use crate::remote::{WELCOME, answer, refusal};
use crate::retirement::FOR_ROOM;
use crate::sender::FOR_MESSAGES;
use crate::socket::{NoDescriptor, Socket};
use crate::wire::{
    AREA_AT, AREA_BYTES, RECEIVER_CLOSED, RECEIVER_PARKED, RETIRED, RING, SENDER_CLOSED, SENDER_PARKED,
    SLOT_WORDS, SLOTS, Slot, Violation,
};

/// Words of a slot.
pub const WORDS: usize = SLOT_WORDS;

/// Whether a channel can have this name.
pub fn is_name(name: &str) -> bool {
    crate::remote::is_name(name)
}

/// Prepares the socket on which a link listens: the kernel adds the sender's process to each packet, and refuses descriptors, which Linux
/// can from 6.16, until a client's request is awaited. A connection that is not taken is then closed at once.
///
/// # Errors
/// Those of `setsockopt`.
pub fn prepare(listener: BorrowedFd<'_>) -> std::io::Result<()> {
    sockopt::set_socket_passcred(listener, true)?;
    let _ = conduit::refuse_descriptors(listener);
    Ok(())
}

/// Closes a connection of `user` that is not taken, without waiting for descriptors that the client left in it.
pub fn turn_away(socket: OwnedFd, user: u32) {
    // After that nothing more can come.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    if !conduit::is_drained(socket.as_fd()) {
        close_elsewhere(user, vec![socket]);
    }
}

/// A request of a client, whose socket belongs to it.
struct Request {
    hello: Hello,
    own: Hello,
    descriptor: OwnedFd,
    met: Met,
    wish: Wish,
}

/// A client of this node that asked for a channel and waits for the other end.
pub struct Guest {
    hello: Hello,
    /// What this end will answer with; its memory is already part of `peer`.
    own: Hello,
    descriptor: OwnedFd,
    peer: Arc<Peer>,
    session: Option<SessionId>,
    wish: Wish,
}

impl Guest {
    /// Receives the request of a client, and admits its memory. That takes as long as the client likes, up to `limit`. A client that is
    /// not taken because this process or its service lacks something hears that the link is busy.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn receive(socket: OwnedFd, client: &Client, limit: Duration) -> Result<Self, ConnectError> {
        let mut socket = guarded(socket)?;
        socket.time_calls();
        let until = after(limit);
        // A client that has not sent its request takes the end of the connection for a busy link.
        check_room(socket.user())?;
        // The one that comes with the request. Linux before 6.16 has refused none.
        let _ = conduit::accept_descriptors(socket.as_fd());
        socket.answer(&WELCOME, None).map_err(failed("sendmsg"))?;
        match Self::request(&mut socket, client, (until, limit)) {
            Ok(request) => {
                let Request { hello, own, descriptor, met, wish } = request;
                // It was time of this thread, not of the one that carries messages.
                let _ = socket.take_slow_time();
                let (peer, session) = met.over(socket);
                Ok(Self { hello, own, descriptor, peer, session, wish })
            }
            Err(error) => {
                if error.is_shortage() {
                    let _ = socket.answer(&refusal(LinkRefusal::Busy), None);
                }
                Err(error)
            }
        }
    }

    fn request(
        socket: &mut Socket,
        client: &Client,
        (until, limit): (Option<Instant>, Duration),
    ) -> Result<Request, ConnectError> {
        let (bytes, came, process) = receive_packet(socket, Room::One, until)?;
        let Some((hello, wish)) = Wish::decode(&bytes) else {
            close_elsewhere(socket.user(), came);
            return Err(ConnectError::Handshake("the process sent no request for a channel"));
        };
        let theirs = theirs(socket, Some(hello), came, process)?;
        if let Err(error) = socket.refuse_descriptors() {
            close_elsewhere(socket.user(), vec![theirs.memory]);
            return Err(error);
        }
        let prepared = Own::prepare(client, 0).and_then(|own| Ok((own.copy()?, own)));
        let ((greeting, descriptor), own) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                close_elsewhere(socket.user(), vec![theirs.memory]);
                return Err(error);
            }
        };
        let met = own.admit(client, socket, theirs, (until, limit))?;
        Ok(Request { hello, own: greeting, descriptor, met, wish })
    }

    /// The client's user, as the kernel says.
    pub fn user(&self) -> u32 {
        self.peer.user
    }

    /// What it asked for.
    pub fn wish(&self) -> &Wish {
        &self.wish
    }

    /// Bytes of the longest message that it takes.
    pub fn longest(&self) -> u64 {
        self.hello.longest
    }

    /// Whether it does not wait any more.
    pub fn is_gone(&self) -> bool {
        self.peer.lost()
    }

    /// Tells the client why it is not connected. Returns the CPU time that its socket took beyond an honest one's.
    pub fn refuse(self, why: LinkRefusal) -> Duration {
        // A client that is gone needs no answer.
        let _ = self.peer.socket.answer(&refusal(why), None);
        self.peer.socket.take_slow_time()
    }

    /// Connects the client with a user of another node, who takes messages of up to `longest` bytes.
    ///
    /// # Errors
    /// [`ConnectError::System`].
    pub fn join(self, user: RemoteUser, longest: u64) -> Result<Relay, ConnectError> {
        let mut hello = self.own;
        hello.longest = longest;
        let answer = answer(&hello, user);
        self.peer.socket.answer(&answer, Some(self.descriptor.as_fd())).map_err(failed("sendmsg"))?;
        Ok(Relay {
            peer: self.peer,
            session: self.session,
            slots: Consumer::new(RING),
            taken: 0,
            finished: 0,
            held: VecDeque::new(),
            images: Producer::new(RING),
            reported: 0,
            closed: Closed::default(),
        })
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.peer.descriptor()
    }
}

/// Which ends of a client are closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Closed {
    /// It sends no more.
    pub sender: bool,
    /// It takes no more.
    pub receiver: bool,
}

/// A slot on its way to another node, with the contents that it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    pub slot: [u64; WORDS],
    pub bytes: Vec<u8>,
}

impl Carried {
    /// The grant that the slot announces, if it does.
    pub fn grant(&self) -> Option<GrantToken> {
        match Slot::decode(&self.slot) {
            Ok(Slot::Remote { token, .. }) => Some(token),
            _ => None,
        }
    }

    /// Puts a grant that does not exist in the place of the one that the slot announces: because that does not exist any more, or, with
    /// `why`, because it could not be checked.
    pub fn withhold_grant(&mut self, why: Option<RefusalKind>) {
        if let Ok(Slot::Remote { index, length, .. }) = Slot::decode(&self.slot) {
            let token = GrantToken::from_raw(0);
            self.slot = Slot::Remote { index, token, length, service: ServiceId(0), withheld: why }.encode();
        }
    }
}

/// The link's end of the connection to a client whose channel goes to another node.
pub struct Relay {
    peer: Arc<Peer>,
    session: Option<SessionId>,
    slots: Consumer<SLOT_WORDS, SLOT_WORDS>,
    taken: u64,
    /// Slots that the far end has finished with.
    finished: u64,
    /// Bytes of the area that each slot taken and not finished uses.
    held: VecDeque<u32>,
    images: Producer<SLOT_WORDS, SLOT_WORDS>,
    /// What `finished` has returned so far, modulo 2^32.
    reported: u32,
    /// What `closed` returned last.
    closed: Closed,
}

impl Relay {
    /// The client's session, if it is a client of the link's service.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// The next slot of the client, if there is one.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn take(&mut self) -> Result<Option<Carried>, Violation> {
        let Some(words) = self.slots.pop(&self.peer.theirs) else { return Ok(None) };
        if self.taken - self.finished >= u64::from(SLOTS) {
            return Err(Violation::Overrun);
        }
        let slot = Slot::decode(&words)?;
        let mut bytes = Vec::new();
        match slot {
            Slot::Piece { at, length, .. } => {
                let held: u64 = self.held.iter().map(|held| u64::from(*held)).sum();
                let value = held + u64::from(length);
                if value > u64::from(AREA_BYTES) {
                    let most = u64::from(AREA_BYTES);
                    return Err(Violation::Bounds { what: "bytes in the area", value, most });
                }
                bytes.resize(length as usize, 0);
                let area = self.peer.theirs.mapping();
                let read = guarded_memory([area], || area.read(AREA_AT + u64::from(at), &mut bytes));
                read.map_err(|_| Violation::Memory)?.map_err(|_| Violation::Memory)?;
            }
            Slot::Remote { .. } if self.session.is_none() => return Err(Violation::NoGrants),
            // Links withhold grants, and clients make them.
            Slot::Remote { withheld: Some(_), .. } => return Err(Violation::NotRemote),
            Slot::Grant { .. } | Slot::Descriptor { .. } => return Err(Violation::NotRemote),
            Slot::Inline { .. } | Slot::Lent { .. } | Slot::Remote { .. } => {}
        }
        self.taken += 1;
        self.held.push_back(bytes.len() as u32);
        // Encoded again, so that nothing else of the client's words goes on.
        Ok(Some(Carried { slot: slot.encode(), bytes }))
    }

    /// Passes a slot of the far end on to the client.
    ///
    /// # Errors
    /// [`Violation`] of the far end, or of this client, if it lies about what it has finished with.
    pub fn put(&mut self, carried: &Carried) -> Result<(), Violation> {
        let slot = Slot::decode(&carried.slot)?;
        let got = carried.bytes.len() as u64;
        match slot {
            Slot::Piece { at, length, .. } if u64::from(length) == got => {
                self.check_room()?;
                // The place is within the area: the slot was decoded.
                let _ = self.peer.own.mapping().write(AREA_AT + u64::from(at), &carried.bytes);
            }
            Slot::Piece { length, .. } => {
                let most = u64::from(length);
                return Err(Violation::Bounds { what: "length of contents", value: got, most });
            }
            Slot::Inline { .. } | Slot::Lent { .. } | Slot::Remote { .. } if got == 0 => self.check_room()?,
            _ => return Err(Violation::NotRemote),
        }
        if self.images.stage(&self.peer.own, &slot.encode()).is_err() {
            return Err(Violation::Overrun);
        }
        self.images.publish(&self.peer.own);
        self.peer.wake(FOR_MESSAGES);
        Ok(())
    }

    fn check_room(&mut self) -> Result<(), Violation> {
        if self.images.free() == 0 { Err(Violation::Overrun) } else { Ok(()) }
    }

    /// How many more slots the client has finished with since the last call.
    ///
    /// # Errors
    /// [`Violation::Count`].
    pub fn finished(&mut self) -> Result<u32, Violation> {
        let claimed = self.peer.theirs.word(RETIRED).load(Ordering::Acquire) as u32;
        self.images.consumed(claimed)?;
        let more = claimed.wrapping_sub(self.reported);
        self.reported = claimed;
        Ok(more)
    }

    /// The far end has finished with so many more slots of the client.
    ///
    /// # Errors
    /// [`Violation::Bounds`] if the client did not send so many.
    pub fn retire(&mut self, count: u32) -> Result<(), Violation> {
        let value = u64::from(count);
        let most = self.taken - self.finished;
        if value > most {
            return Err(Violation::Bounds { what: "count of finished slots", value, most });
        }
        self.held.drain(..count as usize);
        self.finished += value;
        self.peer.own.word(RETIRED).store(self.finished & u64::from(u32::MAX), Ordering::Release);
        self.peer.wake(FOR_ROOM);
        Ok(())
    }

    /// Which ends the client has closed. What it sent before it closed its sender is there to be taken after this call.
    pub fn closed(&mut self) -> Closed {
        self.closed = self.closed_now();
        self.closed
    }

    fn closed_now(&self) -> Closed {
        let is_set = |word: usize| self.peer.theirs.word(word).load(Ordering::Acquire) != 0;
        Closed { sender: is_set(SENDER_CLOSED), receiver: is_set(RECEIVER_CLOSED) }
    }

    /// The far end has closed these of its ends.
    pub fn close(&mut self, closed: Closed) {
        for (is_closed, word, wake) in
            [(closed.sender, SENDER_CLOSED, FOR_MESSAGES), (closed.receiver, RECEIVER_CLOSED, FOR_ROOM)]
        {
            if is_closed {
                self.peer.own.word(word).store(1, Ordering::Release);
                self.peer.wake(wake);
            }
        }
    }

    /// Makes the descriptor readable with the client's next news. Returns whether there are some already.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn arm(&mut self) -> Result<bool, Violation> {
        match self.peer.socket.take_in() {
            Ok(_) if !self.peer.socket.holds_descriptors() => {}
            // Of this process, and no mistake of the client's. The packet is still there.
            Err(NoDescriptor::Shortage(_)) => {}
            Ok(_) | Err(NoDescriptor::Broken(_)) => return Err(Violation::NotRemote),
        }
        let _ = self.peer.socket.had_room();
        self.peer.arm(RECEIVER_PARKED);
        self.peer.arm(SENDER_PARKED);
        let claimed = self.peer.theirs.word(RETIRED).load(Ordering::Acquire) as u32;
        let has_slot = self.slots.ready(&self.peer.theirs);
        Ok(has_slot || claimed != self.reported || self.closed_now() != self.closed)
    }

    /// Whether the client is gone. What it sent before can still be taken.
    pub fn is_lost(&self) -> bool {
        self.peer.lost()
    }

    /// CPU time of this thread that the client's socket took since the last call, beyond that of an honest client. A client can have its
    /// socket watched by so many epoll instances that each packet takes long.
    pub fn take_slow_time(&self) -> Duration {
        self.peer.socket.take_slow_time()
    }

    /// Ends the connection. Returns what [`take_slow_time`](Self::take_slow_time) would.
    pub fn end(self) -> Duration {
        let peer = Arc::clone(&self.peer);
        drop(self);
        peer.socket.take_slow_time()
    }
}

impl Drop for Relay {
    /// Ends the connection at once, and wakes the client, which would notice it with its next look at the socket only.
    fn drop(&mut self) {
        self.peer.socket.shut_down();
        self.peer.wake(FOR_MESSAGES);
        self.peer.wake(FOR_ROOM);
    }
}

impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.peer.descriptor()
    }
}

#[cfg(test)]
impl Relay {
    /// Treats the socket as on Linux before 6.16.
    pub(crate) fn examine(&mut self) -> Result<(), ConnectError> {
        Arc::get_mut(&mut self.peer).map_or(Ok(()), |peer| peer.socket.examine())
    }
}
