//! Bulk channels between nodes: this link is the other end of the connection to each client here, and carries what that sends.
//!
//! ```text
//! client ─ request ─► Guest ─ listens, or Open ─► the peer: Accepted ─► Relay ─ slots, counts ─► the peer ─► its client
//! reader of a connection ─ News ─► this thread ◄─ descriptors of clients
//! ```
//!
//! The kernel says which user a client is. The peer says which of its users opens a channel, and its word counts for its own node only: frames
//! are granted to that node's users, by their own owners. One thread serves all channels. A client that takes nothing fills its own credit, and
//! a peer that reads nothing stops the channels to it. The thread waits for the service when a grant is announced, and each packet from or to a
//! client takes it the time that the client's socket makes it take: so the socket is for users that may hold up the channels of others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry::{Client, NodeName};
use memferry_bulk::relay::{self, Carried, Closed, Guest, Relay, Wish};
use memferry_bulk::{LinkRefusal, RemoteUser, Violation};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::backlog::{Backlog, Unsent};
use crate::config::Config;
use crate::message::{Message, Step};
use crate::packet::{Packet, Pool};
use crate::report::Rare;
use crate::threads::spawn;

/// Channels of one connection that each side may have opened.
pub(crate) const MAX_OF_PEER: usize = 64;
/// Channels of one user here, with those that wait, and of all users.
const MAX_OF_USER: usize = 32;
const MAX_GUESTS: usize = 512;
/// Requests of clients that are received at a time, and those of one user.
const MAX_STRANGERS: (usize, usize) = (32, 8);
/// How long a client may take for its request, and hold the memory that it brings.
const PATIENCE: Duration = Duration::from_secs(3);
/// Slots of one channel that are carried before others get their turn.
const BURST: usize = 16;
/// News that wait for the thread. Peers are not read while there are more.
const WAITING_NEWS: usize = 256;
/// How often clients are looked at that may be gone without a word.
const LIVENESS: Duration = Duration::from_millis(100);
/// How soon a peer is looked at again that does not read fast enough.
const STALL: Duration = Duration::from_millis(2);

/// What the thread has to know.
pub(crate) enum News {
    Up { connection: u64, node: NodeName, sender: Sender<(Packet, Unsent)>, stream: TcpStream },
    Step { connection: u64, number: u32, is_ours: bool, step: Step, bytes: Vec<u8> },
    Down { connection: u64 },
    Guest(Box<Guest>),
}

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct Channels {
    news: SyncSender<News>,
    bell: Arc<OwnedFd>,
    counts: Counts,
}

/// Channels that are open to each peer.
pub(crate) type Counts = Arc<Mutex<BTreeMap<NodeName, u64>>>;

impl Channels {
    pub(crate) fn tell(&self, news: News) {
        if self.news.send(news).is_ok() {
            // It fails if the counter is full: then the thread is awake.
            let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Channels that are open to a peer.
    pub(crate) fn count(&self, node: NodeName) -> u64 {
        locked(&self.counts).get(&node).copied().unwrap_or(0)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread, and one that takes clients at `path`, if there is to be one. Without clients here the channels of peers wait for ever.
pub(crate) fn start(client: &Client, config: &Config, path: Option<&Path>) -> io::Result<Channels> {
    let (sender, news) = mpsc::sync_channel(WAITING_NEWS);
    let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let counts = Counts::default();
    let channels = Channels { news: sender, bell: Arc::clone(&bell), counts: Arc::clone(&counts) };
    let known = config.peers.keys().copied().collect();
    let mut state = State::new(client.clone(), known, counts);
    spawn("link-channels", move || state.run(&news, &bell))?;
    let Some(path) = path else { return Ok(channels) };
    let listened = listen(path).and_then(|socket| {
        let channels = channels.clone();
        let client = client.clone();
        spawn("link-clients", move || take_clients(&socket, &client, &channels))
    });
    if let Err(error) = listened {
        let path = path.display();
        crate::report::tell(format_args!(
            "no channels between nodes, for there is no socket {path}: {error}"
        ));
    }
    Ok(channels)
}

/// Listens at `path`, for all users. A socket that nobody listens on any more is replaced; another file is not.
fn listen(path: &Path) -> io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    let open = || rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(path)?;
    let socket = open()?;
    relay::prepare(socket.as_fd())?;
    if let Err(error) = rustix::net::bind(&socket, &address) {
        let ended = rustix::net::connect(open()?, &address) == Err(rustix::io::Errno::CONNREFUSED);
        let is_socket = || {
            use std::os::unix::fs::FileTypeExt;
            std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        };
        if error != rustix::io::Errno::ADDRINUSE || !ended || !is_socket() {
            return Err(error.into());
        }
        std::fs::remove_file(path)?;
        rustix::net::bind(&socket, &address)?;
    }
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// Users whose requests are being received.
#[derive(Clone, Default)]
struct Strangers(Arc<Mutex<BTreeMap<u32, usize>>>);

struct Stranger {
    all: Strangers,
    user: u32,
}

impl Strangers {
    fn admit(&self, user: u32) -> Option<Stranger> {
        let mut counts = locked(&self.0);
        let of_user = counts.get(&user).copied().unwrap_or(0);
        if counts.values().sum::<usize>() >= MAX_STRANGERS.0 || of_user >= MAX_STRANGERS.1 {
            return None;
        }
        counts.insert(user, of_user + 1);
        Some(Stranger { all: self.clone(), user })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut counts = locked(&self.all.0);
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

fn take_clients(listener: &OwnedFd, client: &Client, channels: &Channels) {
    let strangers = Strangers::default();
    let refusals = Arc::new(Rare::default());
    loop {
        let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
            // For want of descriptors, as a rule: a pause lets others end.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let Ok(peer) = sockopt::socket_peercred(&socket) else {
            relay::turn_away(socket, u32::MAX);
            continue;
        };
        let user = peer.uid.as_raw();
        // A client that is not taken sees the end of the connection.
        let Some(stranger) = strangers.admit(user) else {
            refusals.tell(format_args!("a process of user {user} was refused: too many ask for channels"));
            relay::turn_away(socket, user);
            continue;
        };
        let client = client.clone();
        let channels = channels.clone();
        let own = Arc::clone(&refusals);
        let spawned = spawn("link-client", move || {
            match Guest::receive(socket, &client, PATIENCE) {
                Ok(guest) => channels.tell(News::Guest(Box::new(guest))),
                Err(error) => own.tell(format_args!("a process of user {user} was refused: {error}")),
            }
            drop(stranger);
        });
        if let Err(error) = spawned {
            refusals.tell(format_args!("a process of user {user} was refused: {error}"));
        }
    }
}

/// Names a channel: the connection, which side opened it, and the number that this side gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    connection: u64,
    is_ours: bool,
    number: u32,
}

/// A connection to a peer.
struct Peer {
    node: NodeName,
    sender: Sender<(Packet, Unsent)>,
    stream: TcpStream,
    backlog: Backlog,
    last: u32,
}

/// A channel that a user of a peer asked for.
struct Asked {
    from: u32,
    to: u32,
    name: String,
    longest: u64,
}

/// A channel whose both ends are there.
struct Open {
    relay: Relay,
    /// The user here, and the one there.
    user: u32,
    with: RemoteUser,
    /// What the peer knows of the client's ends.
    told: Closed,
    /// Since when the client is known to be gone.
    lost: Option<Instant>,
}

/// Why a channel ends here.
enum End {
    /// The client is gone.
    Gone,
    /// One of the two broke the rules.
    Broken(Violation),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

struct State {
    client: Client,
    known: BTreeSet<NodeName>,
    peers: BTreeMap<u64, Peer>,
    /// The channel that was carried last.
    served: Option<Key>,
    /// Clients that wait for one of a peer, in the order in which they came.
    listening: Vec<Guest>,
    /// Those whose channel a peer was asked for, and whom it is to reach.
    opening: BTreeMap<Key, (Guest, RemoteUser)>,
    asked: BTreeMap<Key, Asked>,
    open: BTreeMap<Key, Open>,
    counts: Counts,
    refusals: Rare,
}

impl State {
    fn new(client: Client, known: BTreeSet<NodeName>, counts: Counts) -> Self {
        Self {
            client,
            known,
            peers: BTreeMap::new(),
            served: None,
            listening: Vec::new(),
            opening: BTreeMap::new(),
            asked: BTreeMap::new(),
            open: BTreeMap::new(),
            counts,
            refusals: Rare::default(),
        }
    }

    fn run(&mut self, news: &Receiver<News>, bell: &OwnedFd) {
        let mut looked = Instant::now();
        loop {
            let mut any = false;
            for _ in 0..WAITING_NEWS {
                match news.try_recv() {
                    Ok(one) => self.handle(one),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
                any = true;
            }
            let looks = looked.elapsed() >= LIVENESS;
            if looks {
                looked = Instant::now();
                self.forget_gone();
                self.count();
            }
            any |= self.carry_all(looks);
            if !any {
                self.wait(bell);
            }
        }
    }

    fn handle(&mut self, news: News) {
        match news {
            News::Up { connection, node, sender, stream } => {
                let before = self.peers.iter().find(|(_, peer)| peer.node == node);
                if let Some(before) = before.map(|(connection, _)| *connection) {
                    self.lose(before);
                }
                let backlog = Backlog::default();
                self.peers.insert(connection, Peer { node, sender, stream, backlog, last: 0 });
            }
            News::Step { connection, number, is_ours, step, bytes } => {
                self.step(Key { connection, is_ours, number }, step, bytes);
            }
            News::Down { connection } => self.lose(connection),
            News::Guest(guest) => self.welcome(*guest),
        }
    }

    fn count(&self) {
        let mut counts = BTreeMap::new();
        for open in self.open.values() {
            *counts.entry(open.with.node).or_default() += 1;
        }
        *locked(&self.counts) = counts;
    }

    /// A connection has ended, and its channels with it.
    fn lose(&mut self, connection: u64) {
        self.peers.remove(&connection);
        let of_it = |key: &Key| key.connection == connection;
        self.asked.retain(|key, _| !of_it(key));
        self.open.retain(|key, _| !of_it(key));
        let keys: Vec<_> = self.opening.keys().filter(|key| of_it(key)).copied().collect();
        for key in keys {
            if let Some((guest, _)) = self.opening.remove(&key) {
                guest.refuse(LinkRefusal::Broken);
            }
        }
    }

    /// How many channels of a connection one side has opened or asked for.
    fn of_peer(&self, connection: u64, is_ours: bool) -> usize {
        let keys = self.opening.keys().chain(self.asked.keys()).chain(self.open.keys());
        keys.filter(|key| key.connection == connection && key.is_ours == is_ours).count()
    }

    /// The users of the clients here, once for each.
    fn users(&self) -> impl Iterator<Item = u32> {
        let waiting = self.listening.iter().chain(self.opening.values().map(|(guest, _)| guest));
        waiting.map(Guest::user).chain(self.open.values().map(|open| open.user))
    }

    fn welcome(&mut self, guest: Guest) {
        let of_user = self.users().filter(|user| *user == guest.user()).count();
        if of_user >= MAX_OF_USER || self.users().count() >= MAX_GUESTS {
            return guest.refuse(LinkRefusal::TooMany);
        }
        let (name, to) = match guest.wish() {
            Wish::Listen { .. } => {
                self.listening.push(guest);
                return self.join_asked();
            }
            Wish::Connect { name, to } => (name.clone(), *to),
        };
        if !self.known.contains(&to.node) {
            return guest.refuse(LinkRefusal::UnknownNode);
        }
        let Some(connection) = self.peers.iter().find(|(_, peer)| peer.node == to.node).map(|(key, _)| *key)
        else {
            return guest.refuse(LinkRefusal::NotConnected);
        };
        if self.of_peer(connection, true) >= MAX_OF_PEER {
            return guest.refuse(LinkRefusal::TooMany);
        }
        let Some(key) = self.next_key(connection) else { return guest.refuse(LinkRefusal::TooMany) };
        let step = Step::Open { from: guest.user(), to: to.user, name, longest: guest.longest() };
        self.send(key, step, &[]);
        self.opening.insert(key, (guest, to));
    }

    /// A number that no channel of this side has.
    fn next_key(&mut self, connection: u64) -> Option<Key> {
        let last = self.peers.get(&connection)?.last;
        let keys =
            (1..=u32::MAX).map(|more| Key { connection, is_ours: true, number: last.wrapping_add(more) });
        let is_used = |key: &Key| self.opening.contains_key(key) || self.open.contains_key(key);
        let key = keys.into_iter().find(|key| !is_used(key))?;
        self.peers.get_mut(&connection)?.last = key.number;
        Some(key)
    }

    /// Connects what peers asked for with clients that wait for it.
    fn join_asked(&mut self) {
        let keys: Vec<_> = self.asked.keys().copied().collect();
        for key in keys {
            let Some(node) = self.peers.get(&key.connection).map(|peer| peer.node) else { continue };
            while let Some(asked) = self.asked.get(&key) {
                let with = RemoteUser { node, user: asked.from };
                let waits = |guest: &Guest| {
                    let Wish::Listen { name, from } = guest.wish() else { return false };
                    guest.user() == asked.to && *name == asked.name && from.contains(&with)
                };
                let Some(index) = self.listening.iter().position(waits) else { break };
                let guest = self.listening.remove(index);
                // One that is gone leaves its place to the next one.
                if guest.is_gone() {
                    continue;
                }
                let user = guest.user();
                let longest = guest.longest();
                let Ok(relay) = guest.join(with, asked.longest) else { continue };
                self.asked.remove(&key);
                self.send(key, Step::Accepted { longest }, &[]);
                self.open.insert(key, Open { relay, user, with, told: Closed::default(), lost: None });
            }
        }
    }

    fn step(&mut self, key: Key, step: Step, bytes: Vec<u8>) {
        match step {
            Step::Open { from, to, name, longest } => {
                if key.is_ours || self.asked.contains_key(&key) || self.open.contains_key(&key) {
                    return;
                }
                if self.of_peer(key.connection, false) >= MAX_OF_PEER {
                    return self.send(key, Step::End, &[]);
                }
                self.asked.insert(key, Asked { from, to, name, longest });
                self.join_asked();
            }
            Step::Accepted { longest } => {
                let Some((guest, with)) = self.opening.remove(&key) else { return };
                let user = guest.user();
                match guest.join(with, longest) {
                    Ok(relay) => {
                        let told = Closed::default();
                        self.open.insert(key, Open { relay, user, with, told, lost: None });
                    }
                    Err(_) => self.send(key, Step::End, &[]),
                }
            }
            Step::Slot(slot) => self.change(key, |relay| relay.put(&Carried { slot, bytes })),
            Step::Finished(count) => self.change(key, |relay| relay.retire(count)),
            Step::Closed { sender, receiver } => self.change(key, |relay| {
                relay.close(Closed { sender, receiver });
                Ok(())
            }),
            Step::End => {
                self.asked.remove(&key);
                // The client learns of it by the end of its connection. What came before it is in its memory.
                self.open.remove(&key);
                if let Some((guest, _)) = self.opening.remove(&key) {
                    guest.refuse(LinkRefusal::Broken);
                }
            }
        }
    }

    /// Does what the peer says to a channel that is open. The two may end one at the same time, so that others are no mistakes.
    fn change(&mut self, key: Key, change: impl FnOnce(&mut Relay) -> Result<(), Violation>) {
        if let Some(open) = self.open.get_mut(&key)
            && let Err(violation) = change(&mut open.relay)
        {
            self.end(key, &End::Broken(violation));
        }
    }

    fn end(&mut self, key: Key, why: &End) {
        let Some(open) = self.open.remove(&key) else { return };
        if let End::Broken(violation) = why {
            let Open { user, with, .. } = &open;
            self.refusals
                .tell(format_args!("a channel of user {user} here with {with} has ended: {violation}"));
        }
        self.send(key, Step::End, &[]);
    }

    fn send(&self, key: Key, step: Step, payload: &[u8]) {
        let Some(peer) = self.peers.get(&key.connection) else { return };
        let message = Message::Channel { number: key.number, of_receiver: !key.is_ours, step };
        // Pieces are too short for buffers that are kept.
        let mut packet = Packet::new(&Pool::default(), &message, payload.len());
        packet.payload_mut().copy_from_slice(payload);
        match peer.backlog.add(packet.memory()) {
            // It fails if the connection has ended, which other news report.
            Some(unsent) => drop(peer.sender.send((packet, unsent))),
            // It opens channels, and does not read the answers.
            None => drop(peer.stream.shutdown(Shutdown::Both)),
        }
    }

    /// Forgets clients that do not wait any more.
    fn forget_gone(&mut self) {
        self.listening.retain(|guest| !guest.is_gone());
        let gone = self.opening.iter().filter(|(_, (guest, _))| guest.is_gone());
        let gone: Vec<_> = gone.map(|(key, _)| *key).collect();
        for key in gone {
            self.opening.remove(&key);
            self.send(key, Step::End, &[]);
        }
    }

    /// Carries what clients sent. Returns whether there was anything.
    fn carry_all(&mut self, looks: bool) -> bool {
        let mut any = false;
        let mut keys: Vec<_> = self.open.keys().copied().collect();
        // From the one after the last that sent something: room is short when a peer is slow, and is not for the first ones only.
        let later = self.served.map_or(0, |last| keys.partition_point(|key| *key <= last));
        keys.rotate_left(later);
        for key in keys {
            match self.carry(key, looks) {
                Ok(true) => {
                    any = true;
                    self.served = Some(key);
                }
                Ok(false) => {}
                Err(why) => self.end(key, &why),
            }
        }
        any
    }

    fn carry(&mut self, key: Key, looks: bool) -> Result<bool, End> {
        let Some(mut open) = self.open.remove(&key) else { return Ok(false) };
        let carried = self.carry_from(key, &mut open, looks);
        self.open.insert(key, open);
        carried
    }

    fn carry_from(&self, key: Key, open: &mut Open, looks: bool) -> Result<bool, End> {
        let Some(peer) = self.peers.get(&key.connection) else { return Err(End::Gone) };
        let mut any = false;
        // What a client sent before it closed or was gone is there when that is seen.
        if open.lost.is_none() && looks && open.relay.is_lost() {
            open.lost = Some(Instant::now());
        }
        let finished = open.relay.finished()?;
        if finished > 0 {
            self.send(key, Step::Finished(finished), &[]);
            any = true;
        }
        let closed = open.relay.closed();
        // A client that takes it back is not asked.
        let closed = Closed {
            sender: closed.sender || open.told.sender,
            receiver: closed.receiver || open.told.receiver,
        };
        let mut is_empty = false;
        for _ in 0..BURST {
            if !peer.backlog.has_room() {
                // A peer that reads nothing does not keep what clients have left.
                let is_over = open.lost.is_some_and(|since| since.elapsed() > PATIENCE);
                return if is_over { Err(End::Gone) } else { Ok(any) };
            }
            let Some(mut carried) = open.relay.take()? else {
                is_empty = true;
                break;
            };
            self.check_grant(open, &mut carried)?;
            self.send(key, Step::Slot(carried.slot), &carried.bytes);
            any = true;
        }
        if is_empty && closed != open.told {
            let Closed { sender, receiver } = closed;
            self.send(key, Step::Closed { sender, receiver }, &[]);
            open.told = closed;
            any = true;
        }
        if is_empty && open.lost.is_some() { Err(End::Gone) } else { Ok(any) }
    }

    /// A client can announce grants that it made, and no others: the one at the other end takes them for its own.
    fn check_grant(&self, open: &Open, carried: &mut Carried) -> Result<(), End> {
        let Some(token) = carried.grant() else { return Ok(()) };
        match self.client.accept_for(open.with.node, open.with.user, token) {
            Ok(frame) => match frame.grantor() {
                Some(grantor) if Some(grantor) != open.relay.session() => {
                    Err(Violation::Grantor { grantor }.into())
                }
                _ => Ok(()),
            },
            // Revoked already, or never made; another one may have the number later.
            Err(_) => {
                carried.forget_grant();
                Ok(())
            }
        }
    }

    /// Waits for the next news, or for those of a client.
    fn wait(&mut self, bell: &OwnedFd) {
        let mut limit = LIVENESS;
        let mut broken = Vec::new();
        let mut keys = Vec::new();
        for (key, open) in &mut self.open {
            if !self.peers.get(&key.connection).is_some_and(|peer| peer.backlog.has_room()) {
                limit = limit.min(STALL);
                continue;
            }
            match open.relay.arm() {
                Ok(is_ready) if is_ready => limit = Duration::ZERO,
                Ok(_) => keys.push(*key),
                Err(violation) => broken.push((*key, violation)),
            }
        }
        if !broken.is_empty() {
            return broken.into_iter().for_each(|(key, why)| self.end(key, &End::Broken(why)));
        }
        if limit.is_zero() {
            return;
        }
        let mut entries = vec![PollFd::new(bell, PollFlags::IN)];
        let opens = keys.iter().filter_map(|key| self.open.get(key));
        let wanted = PollFlags::IN | PollFlags::RDHUP;
        entries.extend(opens.map(|open| PollFd::from_borrowed_fd(open.relay.as_fd(), wanted)));
        let timespec = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
        // An interrupted wait is one that ends early.
        let _ = rustix::event::poll(&mut entries, Some(&timespec));
        // A client that has shut down one direction only is gone, too: its socket is readable for good.
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        let hung_up = |entry: &PollFd<'_>| entry.revents().intersects(ended);
        let gone: Vec<_> =
            entries[1..].iter().zip(&keys).filter(|(entry, _)| hung_up(entry)).map(|(_, key)| *key).collect();
        for key in gone {
            if let Some(open) = self.open.get_mut(&key) {
                open.lost.get_or_insert_with(Instant::now);
            }
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
    }
}
