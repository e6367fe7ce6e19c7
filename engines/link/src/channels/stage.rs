//! The thread of channels without the thread: tests and a fuzz target play its peers and clients, and say when it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use memferry::{Client, NodeName};
use memferry_bulk::relay::Guest;

use super::steps::{Teller, ring};
use super::{Channels, News, State, clients};
use crate::backlog::Unsent;
use crate::message::Step;
use crate::packet::Packet;
use crate::strangers::Strangers;

/// A connection, as its peer has it.
struct Far {
    /// `None` when the peer has ended the connection.
    teller: Option<Teller>,
    sent: Receiver<(Packet, Unsent)>,
    /// Of messages that the peer has not read.
    unread: Vec<Unsent>,
    /// The peer's end of the socket, which the link may shut down.
    _stream: TcpStream,
}

/// The thread's state, and the way to it.
pub struct Stage {
    pub(super) state: State,
    pub(super) channels: Channels,
    news: Receiver<News>,
    pub(super) strangers: Strangers<u32>,
    far: BTreeMap<u64, Far>,
    last: u64,
    listener: TcpListener,
}

impl Stage {
    /// A link of these peers, none of which is connected.
    ///
    /// # Errors
    /// Those of sockets and of an eventfd.
    pub fn new(client: Client, known: BTreeSet<NodeName>) -> io::Result<Self> {
        let (sender, news) = mpsc::channel();
        let channels = Channels::new(sender)?;
        Ok(Self {
            state: State::new(client, known, channels.counts.clone()),
            channels,
            news,
            strangers: clients::strangers(),
            far: BTreeMap::new(),
            last: 0,
            listener: TcpListener::bind("127.0.0.1:0")?,
        })
    }

    /// A peer connects. Returns the number of the connection.
    ///
    /// # Errors
    /// Those of sockets.
    pub fn connect(&mut self, node: NodeName) -> io::Result<u64> {
        let stream = TcpStream::connect(self.listener.local_addr()?)?;
        let (own, _) = self.listener.accept()?;
        // Closing it sends a reset, so that no port stays in use for a minute.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        self.last += 1;
        let connection = self.last;
        let (sender, sent) = mpsc::channel();
        let teller = self.channels.connect(connection, node, (sender, own));
        self.far.insert(connection, Far { teller: Some(teller), sent, unread: Vec::new(), _stream: stream });
        Ok(connection)
    }

    /// A peer says something about a channel. Returns whether its connection may go on.
    pub fn tell(&self, connection: u64, (number, is_ours): (u32, bool), step: Step, bytes: &[u8]) -> bool {
        let teller = self.far.get(&connection).and_then(|far| far.teller.as_ref());
        teller.is_some_and(|teller| teller.tell(number, is_ours, step, bytes))
    }

    /// A peer ends its connection.
    pub fn disconnect(&mut self, connection: u64) {
        if let Some(far) = self.far.get_mut(&connection) {
            far.teller = None;
        }
    }

    /// A client's request was received. `false` if too many wait.
    pub fn welcome(&self, guest: Guest) -> bool {
        let Some(stranger) = self.strangers.admit(guest.user()) else { return false };
        self.channels.tell(News::Guest(Box::new(guest), stranger));
        true
    }

    /// The thread goes on for one round, and looks for clients that are gone if `looks`. Returns whether there was anything.
    pub fn round(&mut self, looks: bool) -> bool {
        self.state.round(&self.news, looks).unwrap_or(false)
    }

    /// The thread waits, for no time.
    pub fn wait(&mut self) {
        ring(&self.channels.bell);
        self.state.wait(&self.channels.bell);
    }

    /// The link gives up a connection that no channel uses. Returns whether it is given up.
    pub fn give_up(&self, connection: u64) -> bool {
        let teller = self.far.get(&connection).and_then(|far| far.teller.as_ref());
        teller.is_some_and(|teller| teller.uses().give_up())
    }

    /// The next message to a peer. It counts as unread until [`read`](Self::read).
    pub fn sent(&mut self, connection: u64) -> Option<Vec<u8>> {
        let far = self.far.get_mut(&connection)?;
        let (packet, unsent) = far.sent.try_recv().ok()?;
        far.unread.push(unsent);
        Some(packet.message().to_vec())
    }

    /// The peer reads what it was sent.
    pub fn read(&mut self, connection: u64) {
        if let Some(far) = self.far.get_mut(&connection) {
            far.unread.clear();
        }
    }

    /// Channels of a connection that one side has opened or asked for.
    pub fn count(&self, connection: u64, is_ours: bool) -> usize {
        self.state.of_peer(connection, is_ours)
    }
}
