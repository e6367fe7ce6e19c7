//! Bulk channels between nodes: this link is the other end of the connection to each client here, and carries what that sends.
//!
//! ```text
//! client ─ request ─► Guest ─ listens, or Open ─► the peer: Accepted ─► Relay ─ slots, counts ─► the peer ─► its client
//! reader of a connection ─ Steps ─► this thread ◄─ descriptors of clients
//! ```
//!
//! The kernel says which user a client is. The peer says which of its users opens a channel, and its word counts for its own node only: frames
//! are granted to that node's users, by their own owners. One thread serves all channels. A client that takes nothing fills its own credit, and
//! a peer that reads nothing stops the channels to it. The thread waits for the service when a grant is announced. A client can make
//! calls on its socket slow. A user whose calls take too much CPU time loses its channels (`slowness`).

mod clients;
mod slowness;
mod stage;
mod steps;
mod uses;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry::{CallError, Client, NodeName, RefusalKind};
use memferry_bulk::relay::{Carried, Closed, Guest, Relay, Wish};
use memferry_bulk::{LinkRefusal, RemoteUser, Violation};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use self::slowness::Slowness;
use self::steps::{MAX_WAITING, Steps, Told, ring};
use self::uses::Use;
use self::waiting::{Place, Waiting};
use crate::backlog::{Backlog, Unsent};
use crate::config::Config;
use crate::message::{Message, Step};
use crate::packet::Packet;
use crate::report::Rare;
use crate::strangers::Stranger;
use crate::threads::spawn;

pub use self::stage::Stage;
pub(crate) use self::steps::Teller;
pub(crate) use self::uses::Uses;

/// Channels of one connection that each side may have opened.
pub(crate) const MAX_OF_PEER: usize = 64;
/// Channels of one user here, with those that wait, and of all users.
const MAX_OF_USER: usize = 32;
const MAX_GUESTS: usize = 512;
/// How long a client may take for its request, and hold the memory that it brings.
const PATIENCE: Duration = Duration::from_secs(3);
/// Slots of one channel that are carried before others get their turn.
const BURST: usize = 16;
/// News, and words of one peer, that are dealt with before others get their turn.
const NEWS: usize = 64;
/// How often clients are looked at that may be gone without a word.
const LIVENESS: Duration = Duration::from_millis(100);
/// How soon a peer is looked at again that does not read fast enough.
const STALL: Duration = Duration::from_millis(2);

/// What the thread has to know.
pub(crate) enum News {
    Up {
        connection: u64,
        node: NodeName,
        sender: Sender<(Packet, Unsent)>,
        stream: TcpStream,
        steps: Steps,
    },
    /// The peer of a connection said something, or it has ended.
    Told {
        connection: u64,
    },
    Guest(Box<Guest>, Stranger<u32>),
}

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct Channels {
    news: Sender<News>,
    bell: Arc<OwnedFd>,
    counts: Counts,
    /// What each peer said that was not dealt with, over all its connections.
    waiting: Arc<Mutex<BTreeMap<NodeName, Backlog>>>,
}

/// Channels that are open to each peer.
pub(crate) type Counts = Arc<Mutex<BTreeMap<NodeName, u64>>>;

impl Channels {
    /// The way to a thread that gets these news.
    fn new(news: Sender<News>) -> io::Result<Self> {
        let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { news, bell, counts: Counts::default(), waiting: Arc::default() })
    }

    fn tell(&self, news: News) {
        if self.news.send(news).is_ok() {
            ring(&self.bell);
        }
    }

    /// A connection to a peer is there. Its reader tells what the peer says, until it drops what this returns.
    pub(crate) fn connect(
        &self,
        connection: u64,
        node: NodeName,
        (sender, stream): (Sender<(Packet, Unsent)>, TcpStream),
    ) -> Teller {
        let waiting = locked(&self.waiting).entry(node).or_insert_with(|| Backlog::of(MAX_WAITING)).clone();
        let way = (self.news.clone(), Arc::clone(&self.bell));
        let (teller, steps) = steps::queue(connection, waiting, way);
        self.tell(News::Up { connection, node, sender, stream, steps });
        teller
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
    let (sender, news) = mpsc::channel();
    let channels = Channels::new(sender)?;
    let bell = Arc::clone(&channels.bell);
    let known = config.peers.keys().copied().collect();
    let mut state = State::new(client.clone(), known, Arc::clone(&channels.counts));
    spawn("link-channels", move || state.run(&news, &bell))?;
    let Some(path) = path else { return Ok(channels) };
    let listened = clients::listen(path).and_then(|socket| {
        let channels = channels.clone();
        let client = client.clone();
        spawn("link-clients", move || clients::take(&socket, &client, &channels))
    });
    if let Err(error) = listened {
        let path = path.display();
        crate::report::tell(format_args!(
            "no channels between nodes, for there is no socket {path}: {error}"
        ));
    }
    Ok(channels)
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
    steps: Steps,
    last: u32,
}

/// A channel that a user of a peer asked for.
struct Asked {
    from: u32,
    to: u32,
    name: String,
    longest: u64,
    _used: Use,
}

/// A client here whose channel a peer was asked for.
struct Opening {
    guest: Guest,
    to: RemoteUser,
    used: Use,
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
    /// The client's next news make its descriptor readable. Those that it is readable for are to be taken in first.
    is_armed: bool,
    _used: Use,
}

impl Open {
    fn new(relay: Relay, user: u32, with: RemoteUser, used: Use) -> Self {
        Self { relay, user, with, told: Closed::default(), lost: None, is_armed: false, _used: used }
    }
}

/// Why a channel ends here.
enum End {
    /// The client is gone.
    Gone,
    /// One of the two broke the rules.
    Broken(Violation),
    /// The client's socket takes the time of all channels.
    Slow,
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
    /// Connections whose peers said something that was not dealt with yet.
    told: BTreeSet<u64>,
    /// The channel that was carried last.
    served: Option<Key>,
    /// Clients that wait for one of a peer, and users of peers that wait for one here.
    waiting: Waiting<Guest, Key>,
    opening: BTreeMap<Key, Opening>,
    asked: BTreeMap<Key, Asked>,
    open: BTreeMap<Key, Open>,
    counts: Counts,
    slowness: Slowness,
    refusals: Rare,
}

impl State {
    fn new(client: Client, known: BTreeSet<NodeName>, counts: Counts) -> Self {
        Self {
            client,
            known,
            peers: BTreeMap::new(),
            told: BTreeSet::new(),
            served: None,
            waiting: Waiting::default(),
            opening: BTreeMap::new(),
            asked: BTreeMap::new(),
            open: BTreeMap::new(),
            counts,
            slowness: Slowness::default(),
            refusals: Rare::default(),
        }
    }

    fn run(&mut self, news: &Receiver<News>, bell: &OwnedFd) {
        let mut looked = Instant::now();
        loop {
            let looks = looked.elapsed() >= LIVENESS;
            if looks {
                looked = Instant::now();
            }
            match self.round(news, looks) {
                None => return,
                Some(true) => {}
                Some(false) => self.wait(bell),
            }
        }
    }

    /// Deals with a part of all that there is, and with clients that may be gone if `looks`. Returns whether there was anything; `None`
    /// if no more news can come.
    fn round(&mut self, news: &Receiver<News>, looks: bool) -> Option<bool> {
        let mut any = false;
        for _ in 0..NEWS {
            match news.try_recv() {
                Ok(one) => self.handle(one),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return None,
            }
            any = true;
        }
        any |= self.take_told();
        if looks {
            self.forget_gone();
            self.slowness.forget(Instant::now());
            self.count();
        }
        Some(any | self.carry_all(looks))
    }

    fn handle(&mut self, news: News) {
        match news {
            News::Up { connection, node, sender, stream, steps } => {
                let before = self.peers.iter().find(|(_, peer)| peer.node == node);
                if let Some(before) = before.map(|(connection, _)| *connection) {
                    self.lose(before);
                }
                let backlog = Backlog::default();
                self.peers.insert(connection, Peer { node, sender, stream, backlog, steps, last: 0 });
            }
            News::Told { connection } => {
                if let Some(peer) = self.peers.get(&connection) {
                    peer.steps.see_note();
                    self.told.insert(connection);
                }
            }
            News::Guest(guest, stranger) => self.welcome(*guest, stranger),
        }
    }

    /// Deals with what peers said, a part of each. Returns whether there was anything.
    fn take_told(&mut self) -> bool {
        let connections: Vec<_> = self.told.iter().copied().collect();
        for connection in &connections {
            for _ in 0..NEWS {
                match self.peers.get(connection).map(|peer| peer.steps.next()) {
                    Some(Ok(Told { number, is_ours, step, bytes, .. })) => {
                        self.step(Key { connection: *connection, is_ours, number }, step, bytes);
                    }
                    Some(Err(TryRecvError::Empty)) => {
                        self.told.remove(connection);
                        break;
                    }
                    Some(Err(TryRecvError::Disconnected)) | None => {
                        self.lose(*connection);
                        break;
                    }
                }
            }
        }
        !connections.is_empty()
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
        self.told.remove(&connection);
        let of_it = |key: &&Key| key.connection == connection;
        let asked: Vec<_> = self.asked.keys().filter(of_it).copied().collect();
        asked.into_iter().for_each(|key| self.forget_asked(key));
        let open: Vec<_> = self.open.keys().filter(of_it).copied().collect();
        open.into_iter().for_each(|key| self.discard(key));
        let opening: Vec<_> = self.opening.keys().filter(of_it).copied().collect();
        for key in opening {
            if let Some(Opening { guest, .. }) = self.opening.remove(&key) {
                self.refuse(guest, LinkRefusal::Broken);
            }
        }
    }

    fn forget_asked(&mut self, key: Key) {
        if let Some(Asked { to, name, .. }) = self.asked.remove(&key) {
            self.waiting.forget(&(to, name), key);
        }
    }

    fn refuse(&mut self, guest: Guest, why: LinkRefusal) {
        let user = guest.user();
        let took = guest.refuse(why);
        self.slowness.add(user, took, Instant::now());
    }

    /// Ends the connection to a client, which wakes all that watch it.
    fn discard(&mut self, key: Key) {
        let Some(Open { relay, user, .. }) = self.open.remove(&key) else { return };
        let now = Instant::now();
        if self.slowness.is_over(user, now) {
            // Its part of the time of this thread is used up. If no thread starts, it ends here all the same.
            let _ = spawn("link-slow", move || {
                relay.end();
            });
        } else {
            self.slowness.add(user, relay.end(), now);
        }
    }

    /// How many channels of a connection one side has opened or asked for.
    fn of_peer(&self, connection: u64, is_ours: bool) -> usize {
        let keys = self.opening.keys().chain(self.asked.keys()).chain(self.open.keys());
        keys.filter(|key| key.connection == connection && key.is_ours == is_ours).count()
    }

    /// The users of the clients here, once for each.
    fn users(&self) -> impl Iterator<Item = u32> {
        let waiting = self.waiting.guests().chain(self.opening.values().map(|one| &one.guest));
        waiting.map(Guest::user).chain(self.open.values().map(|open| open.user))
    }

    fn welcome(&mut self, guest: Guest, stranger: Stranger<u32>) {
        let user = guest.user();
        if self.slowness.is_over(user, Instant::now()) {
            // Its part of the time of this thread is used up. If no thread starts, the client sees the end of the connection.
            let _ = spawn("link-slow", move || {
                let _ = guest.refuse(LinkRefusal::Busy);
                drop(stranger);
            });
            return;
        }
        let of_user = self.users().filter(|one| *one == user).count();
        if of_user >= MAX_OF_USER || self.users().count() >= MAX_GUESTS {
            return self.refuse(guest, LinkRefusal::TooMany);
        }
        let (name, to) = match guest.wish() {
            Wish::Listen { name, .. } => {
                let place = (user, name.clone());
                self.waiting.listen(place.clone(), guest);
                return self.join(&place);
            }
            Wish::Connect { name, to } => (name.clone(), *to),
        };
        if !self.known.contains(&to.node) {
            return self.refuse(guest, LinkRefusal::UnknownNode);
        }
        let Some(connection) = self.peers.iter().find(|(_, peer)| peer.node == to.node).map(|(key, _)| *key)
        else {
            return self.refuse(guest, LinkRefusal::NotConnected);
        };
        if self.of_peer(connection, true) >= MAX_OF_PEER {
            return self.refuse(guest, LinkRefusal::TooMany);
        }
        // While it is given up to try UCX again, it is as good as lost.
        let Some(used) = self.use_of(connection) else {
            return self.refuse(guest, LinkRefusal::NotConnected);
        };
        let Some(key) = self.next_key(connection) else { return self.refuse(guest, LinkRefusal::TooMany) };
        let step = Step::Open { from: user, to: to.user, name, longest: guest.longest() };
        self.send(key, step, &[]);
        self.opening.insert(key, Opening { guest, to, used });
    }

    fn use_of(&self, connection: u64) -> Option<Use> {
        self.peers.get(&connection)?.steps.begin_use()
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

    /// Connects users of peers with clients that wait for them, at one place.
    fn join(&mut self, place: &Place) {
        for key in self.waiting.asked(place) {
            let node = self.peers.get(&key.connection).map(|peer| peer.node);
            let asked = self.asked.get(&key);
            let Some((node, Asked { from, longest, .. })) = node.zip(asked) else { continue };
            let with = RemoteUser { node, user: *from };
            let longest = *longest;
            let lets_in =
                |guest: &Guest| matches!(guest.wish(), Wish::Listen { from, .. } if from.contains(&with));
            while let Some(used) = self.use_of(key.connection)
                && let Some(guest) = self.waiting.take(place, lets_in)
            {
                // One that is gone leaves its place to the next one.
                if guest.is_gone() {
                    continue;
                }
                let own = guest.longest();
                if !self.open(key, Opening { guest, to: with, used }, longest) {
                    continue;
                }
                self.forget_asked(key);
                self.send(key, Step::Accepted { longest: own }, &[]);
                break;
            }
        }
    }

    /// Connects a client with a user of a peer. Returns whether that was possible.
    fn open(&mut self, key: Key, Opening { guest, to, used }: Opening, longest: u64) -> bool {
        let user = guest.user();
        let Ok(relay) = guest.join(to, longest) else { return false };
        self.slowness.add(user, relay.take_slow_time(), Instant::now());
        self.open.insert(key, Open::new(relay, user, to, used));
        true
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
                let Some(used) = self.use_of(key.connection) else { return };
                let place = (to, name.clone());
                self.asked.insert(key, Asked { from, to, name, longest, _used: used });
                self.waiting.ask(place.clone(), key);
                self.join(&place);
            }
            Step::Accepted { longest } => {
                let Some(opening) = self.opening.remove(&key) else { return };
                if !self.open(key, opening, longest) {
                    self.send(key, Step::End, &[]);
                }
            }
            Step::Slot(slot) => self.change(key, |relay| relay.put(&Carried { slot, bytes })),
            Step::Finished(count) => self.change(key, |relay| relay.retire(count)),
            Step::Closed { sender, receiver } => self.change(key, |relay| {
                relay.close(Closed { sender, receiver });
                Ok(())
            }),
            Step::End => {
                self.forget_asked(key);
                // The client learns of it by the end of its connection. What came before it is in its memory.
                self.discard(key);
                if let Some(Opening { guest, .. }) = self.opening.remove(&key) {
                    self.refuse(guest, LinkRefusal::Broken);
                }
            }
        }
    }

    /// Does what the peer says to a channel that is open. The two may end one at the same time, so that others are no mistakes.
    fn change(&mut self, key: Key, change: impl FnOnce(&mut Relay) -> Result<(), Violation>) {
        let Some(open) = self.open.get_mut(&key) else { return };
        let changed = change(&mut open.relay);
        let is_over = self.slowness.add(open.user, open.relay.take_slow_time(), Instant::now());
        match changed {
            Err(violation) => self.end(key, &End::Broken(violation)),
            Ok(()) if is_over => self.end(key, &End::Slow),
            Ok(()) => {}
        }
    }

    fn end(&mut self, key: Key, why: &End) {
        let Some(Open { user, with, .. }) = self.open.get(&key) else { return };
        let why = match why {
            End::Gone => None,
            End::Broken(violation) => Some(violation.to_string()),
            End::Slow => Some("its socket takes the time of others, because very many watch it".to_owned()),
        };
        if let Some(why) = why {
            self.refusals.tell(format_args!("a channel of user {user} here with {with} has ended: {why}"));
        }
        self.discard(key);
        self.send(key, Step::End, &[]);
    }

    fn send(&self, key: Key, step: Step, payload: &[u8]) {
        let Some(peer) = self.peers.get(&key.connection) else { return };
        let message = Message::Channel { number: key.number, of_receiver: !key.is_ours, step };
        let packet = Packet::with(&message, payload);
        match peer.backlog.add(packet.memory()) {
            // It fails if the connection has ended, which other news report.
            Some(unsent) => drop(peer.sender.send((packet, unsent))),
            // It opens channels, and does not read the answers.
            None => drop(peer.stream.shutdown(Shutdown::Both)),
        }
    }

    /// Forgets clients that do not wait any more.
    fn forget_gone(&mut self) {
        self.waiting.retain(|guest| !guest.is_gone());
        let gone = self.opening.iter().filter(|(_, one)| one.guest.is_gone());
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
                // Slots may be left, so its next news are awaited anew once there is room.
                open.is_armed = false;
                // A peer that reads nothing does not keep what clients have left.
                let is_over = open.lost.is_some_and(|since| since.elapsed() > PATIENCE);
                return if is_over { Err(End::Gone) } else { Ok(any) };
            }
            let Some(mut carried) = open.relay.take()? else {
                is_empty = true;
                break;
            };
            let is_grant = carried.grant().is_some();
            self.check_grant(open, &mut carried)?;
            self.send(key, Step::Slot(carried.slot), &carried.bytes);
            any = true;
            // What a client left goes on for as long as the peer takes some of it.
            open.lost = open.lost.map(|_| Instant::now());
            // The service was asked, which took as long as some slots do.
            if is_grant {
                break;
            }
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
            Err(error) => {
                carried.withhold_grant(why_withheld(&error));
                Ok(())
            }
        }
    }

    /// Whether the peer of a channel reads fast enough to be sent more.
    fn has_room(&self, key: &Key) -> bool {
        self.peers.get(&key.connection).is_some_and(|peer| peer.backlog.has_room())
    }

    /// Clients among these whose next news would wake nobody: those that had some. Arming takes several system calls for each.
    fn unarmed(&self, keys: &[Key]) -> Vec<Key> {
        let is_unarmed = |key: &&Key| self.open.get(key).is_some_and(|open| !open.is_armed);
        keys.iter().filter(is_unarmed).copied().collect()
    }

    /// Makes a client's next news wake this thread. Returns whether there are some already.
    fn arm(&mut self, key: Key) -> Result<bool, End> {
        let Some(open) = self.open.get_mut(&key) else { return Ok(false) };
        let armed = open.relay.arm();
        open.is_armed = true;
        let is_over = self.slowness.add(open.user, open.relay.take_slow_time(), Instant::now());
        let is_ready = armed?;
        if is_over { Err(End::Slow) } else { Ok(is_ready) }
    }

    /// Waits for the next news, or for those of a client.
    fn wait(&mut self, bell: &OwnedFd) {
        // Once for all that follows: room that comes meanwhile would leave a client that is neither armed nor looked at.
        let (keys, stalled): (Vec<_>, Vec<_>) = self.open.keys().partition(|key| self.has_room(key));
        let mut any = false;
        for key in self.unarmed(&keys) {
            any |= match self.arm(key) {
                Ok(is_ready) => is_ready,
                Err(why) => {
                    self.end(key, &why);
                    true
                }
            };
        }
        if any {
            return;
        }
        let limit = if stalled.is_empty() { LIVENESS } else { STALL };
        let mut entries = vec![PollFd::new(bell, PollFlags::IN)];
        let opens = keys.iter().filter_map(|key| self.open.get(key));
        let wanted = PollFlags::IN | PollFlags::RDHUP;
        entries.extend(opens.map(|open| PollFd::from_borrowed_fd(open.relay.as_fd(), wanted)));
        let timespec = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
        // An interrupted wait is one that ends early.
        let _ = rustix::event::poll(&mut entries, Some(&timespec));
        let seen: Vec<_> =
            entries[1..].iter().zip(&keys).map(|(entry, key)| (*key, entry.revents())).collect();
        // A client that has shut down one direction only is gone, too: its socket is readable for good.
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        for (key, events) in seen.into_iter().filter(|(_, events)| !events.is_empty()) {
            let Some(open) = self.open.get_mut(&key) else { continue };
            open.is_armed = false;
            if events.intersects(ended) {
                open.lost.get_or_insert_with(Instant::now);
            }
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
    }
}

/// Why a grant is withheld that the service did not let this link take up; `None` if there is no such grant, also not any more. Another one
/// may have its number later.
fn why_withheld(error: &CallError) -> Option<RefusalKind> {
    match error {
        CallError::Refused(refusal) => Some(refusal.kind).filter(|kind| *kind != RefusalKind::Capability),
        _ => Some(RefusalKind::System),
    }
}

#[cfg(test)]
mod tests;
