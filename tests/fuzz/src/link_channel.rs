//! Other nodes and local clients that say anything, against the thread that carries channels between them.
//!
//! ```text
//! bytes ──► steps of peers, in any order ────► Stage::round ──► steps to peers    of channels that are open, within the credit, none
//!       ──► requests, slots, counts of clients ──►   │                            after the end; slots as a second reading has them
//!                                                    └────────► the client's view  of the channel that it asked for, and no other
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use memferry::{Client, Identity, NodeName};
use memferry_bulk::RemoteUser;
use memferry_link::Stage;
use memferry_link::message::{Message, Step};
use memferry_shm::conduit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, Shutdown};

use crate::bulk_slot::{
    AREA_BYTES, HELLO_BYTES, Hostile, LeavesNoThread, RECEIVER_CLOSED, RETIRED, SENDER_CLOSED, SLOTS, Slot,
    clients,
};
use crate::input::Input;

/// Channels that one side of a connection may have.
const MOST_OF_PEER: usize = 64;
/// What one input may have. The thread takes more words of a peer in one round.
const MOST_CLIENTS: usize = 8;
const MOST_CONNECTIONS: usize = 4;
const MOST_WORDS: usize = 32;
const NAMES: [&str; 2] = ["one", "two"];

/// Input: steps of one byte and its operands (see `step`).
pub fn link_channel(data: &[u8]) {
    static CLIENTS: OnceLock<Mutex<(Client, Client, Identity)>> = OnceLock::new();
    let clients =
        CLIENTS.get_or_init(|| Mutex::new(clients())).lock().unwrap_or_else(PoisonError::into_inner);
    let _threads = LeavesNoThread::new();
    let mut input = Input::new(data);
    let mut rig = Rig::new(&clients);
    while !input.is_empty() {
        rig.step(&mut input);
    }
    rig.round(true);
    rig.round(true);
}

fn node(which: u8) -> NodeName {
    ["beta", "gamma", "omega"][usize::from(which % 3)].parse().expect("a name")
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The connection, whether the link has opened the channel, and its number.
type Key = (u64, bool, u32);

/// A client of the link, and what it asked for.
struct Local {
    end: Hostile,
    name: &'static str,
    /// Whom it lets in, or the one whom it wants to reach.
    users: Vec<RemoteUser>,
    listens: bool,
    longest: u64,
    has_answer: bool,
}

enum Phase {
    /// The peer asked for a user here.
    Asked {
        from: u32,
        to: u32,
        name: String,
        longest: u64,
        /// What it said since, in this round: the link may have opened the channel before it took that.
        early: Vec<(Step, Vec<u8>)>,
    },
    /// The link asked the peer, for this client.
    Opening(usize),
    Open(Flow),
}

impl Phase {
    fn client(&self) -> Option<usize> {
        match self {
            Self::Asked { .. } => None,
            Self::Opening(client) | Self::Open(Flow { client, .. }) => Some(*client),
        }
    }
}

/// What went through an open channel.
struct Flow {
    client: usize,
    /// Slots taken of the client, and those that the peer has finished with.
    taken: u32,
    finished: u32,
    /// Bytes of the area that each slot taken and not finished uses.
    held: Vec<u32>,
    /// Slots put for the client, and those that the link says it has finished with.
    put: u32,
    reported: u32,
    /// The peer or the client broke a rule that ends the channel.
    must_end: bool,
}

impl Flow {
    fn new(client: usize) -> Self {
        Self { client, taken: 0, finished: 0, held: Vec::new(), put: 0, reported: 0, must_end: false }
    }
}

struct Rig<'a> {
    stage: Stage,
    service: &'a (Client, Client, Identity),
    nodes: BTreeMap<u64, NodeName>,
    locals: Vec<Local>,
    channels: BTreeMap<Key, Phase>,
    /// What peers said that the link has not taken yet.
    words: Vec<(Key, Step, Vec<u8>)>,
    /// The last number that the link gave a channel of each connection.
    last: BTreeMap<u64, u32>,
    /// Channels that were there before these words or since, and those that are refused: of these the link may say that they end.
    touched: BTreeSet<Key>,
    /// Tells messages of the longest length from each other.
    serial: u64,
}

impl<'a> Rig<'a> {
    fn new(service: &'a (Client, Client, Identity)) -> Self {
        let stage = Stage::new(service.0.clone(), BTreeSet::from([node(0), node(1)])).expect("sockets");
        Self {
            stage,
            service,
            nodes: BTreeMap::new(),
            locals: Vec::new(),
            channels: BTreeMap::new(),
            words: Vec::new(),
            last: BTreeMap::new(),
            touched: BTreeSet::new(),
            serial: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0 => self.connect(input.u8()),
            1 => self.arrive(input),
            2 | 3 => self.say(input),
            4 => self.say_right(input),
            5 => self.write(input),
            6 => self.retire(input),
            7 => self.misuse(input),
            8 => self.round(false),
            9 => self.round(true),
            10 => {
                self.round(false);
                self.stage.wait();
                self.take_messages();
            }
            _ => self.leave(input.u8()),
        }
    }

    fn connection(&self, which: u8) -> Option<u64> {
        let count = self.nodes.len();
        self.nodes.keys().nth(usize::from(which).checked_rem(count)?).copied()
    }

    fn connect(&mut self, which: u8) {
        if self.nodes.len() == MOST_CONNECTIONS {
            return;
        }
        self.round(false);
        let node = node(which % 2);
        // The link takes the new connection of a node for the one that it has.
        let before: Vec<u64> =
            self.nodes.iter().filter(|(_, old)| **old == node).map(|(key, _)| *key).collect();
        let connection = self.stage.connect(node).expect("a connection");
        let clients: Vec<usize> = before.into_iter().flat_map(|old| self.lose(old)).collect();
        self.nodes.insert(connection, node);
        self.round(false);
        clients.into_iter().for_each(|client| self.check_closed(client));
    }

    /// A peer reads all that it was sent, or its connection ends.
    fn leave(&mut self, which: u8) {
        let Some(connection) = self.connection(which >> 1) else { return };
        self.round(false);
        if which & 1 == 0 {
            return self.stage.read(connection);
        }
        self.stage.disconnect(connection);
        let clients = self.lose(connection);
        self.round(false);
        clients.into_iter().for_each(|client| self.check_closed(client));
    }

    /// A connection has ended, and its channels with it. What the link still says to it is nothing to anybody. Returns the clients of the
    /// channels.
    fn lose(&mut self, connection: u64) -> Vec<usize> {
        self.nodes.remove(&connection);
        let lost: Vec<Key> = self.channels.keys().filter(|key| key.0 == connection).copied().collect();
        lost.iter().filter_map(|key| self.channels.remove(key)).filter_map(|phase| phase.client()).collect()
    }

    /// A client asks for a channel.
    fn arrive(&mut self, input: &mut Input<'_>) {
        if self.locals.len() == MOST_CLIENTS {
            return;
        }
        self.round(false);
        let what = input.u8();
        let (link, other, identity) = self.service;
        self.serial += 1;
        let longest = self.serial;
        let listens = what & 1 == 1;
        let count = if listens { input.u8() % 4 } else { 1 };
        let users: Vec<RemoteUser> = (0..count)
            .map(|_| RemoteUser { node: node(input.u8()), user: u32::from(input.u8() % 4) })
            .collect();
        let name = NAMES[usize::from(what >> 1 & 1)];
        let mut identity = *identity;
        if what & 4 == 4 {
            // The client is of another service, so it has no session here.
            identity.service.0 ^= 1;
        }
        let mut request = Hostile::greeting(&identity, other.session(), longest);
        request.extend(if listens { 1_u32 } else { 2 }.to_le_bytes());
        request.extend(u32::from(count).to_le_bytes());
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(32, 0);
        request.extend(bytes);
        for one in &users {
            request.extend(one.node.to_bytes());
            request.extend(one.user.to_le_bytes());
        }
        let (end, guest) = Hostile::request(link, &request);
        let guest = guest.expect("a good request");
        if !self.stage.welcome(guest) {
            return;
        }
        self.locals.push(Local { end, name, users, listens, longest, has_answer: false });
        self.round(false);
    }

    /// A peer says something about any channel.
    fn say(&mut self, input: &mut Input<'_>) {
        let Some(connection) = self.connection(input.u8()) else { return };
        let what = input.u8();
        let key = (connection, what & 1 == 1, u32::from(input.u8() % 80));
        let step = match what >> 1 & 7 {
            0 | 1 => {
                self.serial += 1;
                let name = NAMES[usize::from(what >> 4 & 1)].to_owned();
                let to = if what & 32 == 0 { user() } else { user() + 1 };
                Step::Open { from: u32::from(what >> 6), to, name, longest: self.serial }
            }
            2 => {
                self.serial += 1;
                Step::Accepted { longest: self.serial }
            }
            3 | 4 => Step::Slot(Slot::any(input)),
            5 => Step::Finished(u32::from(input.u8())),
            6 => Step::Closed { sender: what & 16 == 16, receiver: what & 32 == 32 },
            _ => Step::End,
        };
        let mut bytes = Vec::new();
        if let Step::Slot(words) = &step {
            let wanted = contents(words);
            let length = if what & 128 == 0 { wanted } else { usize::from(input.u8()) };
            bytes = (0..length).map(|at| at as u8 ^ self.serial as u8).collect();
        }
        self.tell(key, step, bytes);
    }

    fn channel(&self, which: u8) -> Option<Key> {
        let count = self.channels.len();
        self.channels.keys().nth(usize::from(which).checked_rem(count)?).copied()
    }

    /// A peer says about a channel what fits there.
    fn say_right(&mut self, input: &mut Input<'_>) {
        let Some(key) = self.channel(input.u8()) else { return };
        let what = input.u8();
        match &self.channels[&key] {
            Phase::Asked { .. } => self.tell(key, Step::End, Vec::new()),
            Phase::Opening(_) => {
                self.serial += 1;
                self.tell(key, Step::Accepted { longest: self.serial }, Vec::new());
            }
            Phase::Open(flow) if what & 1 == 0 => {
                let open = flow.taken - flow.finished;
                self.tell(key, Step::Finished(u32::from(what >> 1) % (open + 1)), Vec::new());
            }
            Phase::Open(_) => {
                for _ in 0..=what >> 4 {
                    let words = [1 << 32, u64::from(what) | 5 << 32, 0, 7, 0, 0, 0, 0];
                    self.tell(key, Step::Slot(words), Vec::new());
                }
            }
        }
    }

    fn tell(&mut self, key: Key, step: Step, bytes: Vec<u8>) {
        // Of a channel that is asked for twice in a round, nobody could say which one the link has opened.
        let has_ended = |(other, said, _): &(Key, Step, Vec<u8>)| *other == key && *said == Step::End;
        let is_again = matches!(step, Step::Open { .. }) && self.words.iter().any(has_ended);
        if is_again || self.words.len() == MOST_WORDS {
            self.round(false);
        }
        // The reader of a connection passes on what a message can say.
        let message = Message::Channel { number: key.2, of_receiver: key.1, step: step.clone() };
        let mut encoded = message.encode(bytes.len());
        encoded.extend(&bytes);
        if Message::decode(&encoded).is_err() || !self.nodes.contains_key(&key.0) {
            return;
        }
        assert!(self.stage.tell(key.0, (key.2, key.1), step.clone(), &bytes), "little was said");
        self.words.push((key, step, bytes));
    }

    fn local(&mut self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.locals.len())
    }

    /// A client writes a slot, or anything.
    fn write(&mut self, input: &mut Input<'_>) {
        let Some(index) = self.local(input.u8()) else { return };
        self.round_if_said();
        let what = input.u8();
        let end = &mut self.locals[index].end;
        match what % 8 {
            0 => end.store(usize::from(input.u8()) << 2 | usize::from(input.u8() % 4), input.u64()),
            1 => end.fill_area(u64::from(input.u32()), &[what; 200]),
            2 => end.store(if what & 8 == 0 { SENDER_CLOSED } else { RECEIVER_CLOSED }, u64::from(what >> 4)),
            3 => {
                for _ in 0..what >> 2 {
                    end.put(&[1 << 32, 5 << 32, 0, u64::from(what), 0, 0, 0, 0]);
                }
            }
            _ => {
                let words = Slot::any(input);
                end.put(&words);
            }
        }
    }

    /// What peers said comes before what clients do now.
    fn round_if_said(&mut self) {
        if !self.words.is_empty() {
            self.round(false);
        }
    }

    /// A client has finished with some more, as an honest one.
    fn retire(&mut self, input: &mut Input<'_>) {
        let Some(index) = self.local(input.u8()) else { return };
        self.round_if_said();
        let more = u32::from(input.u8());
        let flow = self.channels.values().find_map(|phase| match phase {
            Phase::Open(flow) if flow.client == index => Some(flow),
            _ => None,
        });
        if let Some(flow) = flow {
            let open = flow.put.wrapping_sub(flow.reported);
            let count = flow.reported.wrapping_add(more % (open + 1));
            self.locals[index].end.store(RETIRED, u64::from(count));
        }
    }

    /// What a client does with its socket.
    fn misuse(&mut self, input: &mut Input<'_>) {
        let Some(index) = self.local(input.u8()) else { return };
        let what = input.u8();
        let end = &self.locals[index].end;
        match what % 4 {
            0 => {
                let _ = conduit::send(end.socket.as_fd(), &[what; 4], &[], false);
            }
            1 => {
                // Linux may refuse it here, else the link has to.
                let _ = conduit::send(end.socket.as_fd(), &[what; 4], &[end.memory.as_fd()], false);
            }
            2 => {
                let _ = conduit::send(end.socket.as_fd(), &vec![what; usize::from(what)], &[], false);
            }
            _ => {
                let way = if what & 8 == 0 { Shutdown::Both } else { Shutdown::Write };
                let _ = rustix::net::shutdown(&end.socket, way);
            }
        }
    }

    /// The thread takes all that was said, and carries what there is.
    fn round(&mut self, looks: bool) {
        self.stage.round(looks);
        self.touched = self.channels.keys().copied().collect();
        let words = std::mem::take(&mut self.words);
        for (key, step, bytes) in words {
            if self.nodes.contains_key(&key.0) {
                self.apply(key, step, &bytes);
                if self.channels.contains_key(&key) {
                    self.touched.insert(key);
                }
            }
        }
        self.take_messages();
        for phase in self.channels.values_mut() {
            if let Phase::Asked { early, .. } = phase {
                early.clear();
            }
        }
        for connection in self.nodes.keys() {
            for is_ours in [true, false] {
                assert!(self.stage.count(*connection, is_ours) <= MOST_OF_PEER);
            }
        }
        self.touched.clear();
    }

    /// What the link has to do with the words of a peer.
    fn apply(&mut self, key: Key, step: Step, bytes: &[u8]) {
        match step {
            Step::Open { from, to, name, longest } => {
                let of_peer = self.channels.keys().filter(|one| one.0 == key.0 && one.1 == key.1).count();
                if key.1 || self.channels.contains_key(&key) {
                    return;
                }
                if of_peer < MOST_OF_PEER {
                    self.channels.insert(key, Phase::Asked { from, to, name, longest, early: Vec::new() });
                } else {
                    self.touched.insert(key);
                }
            }
            Step::Accepted { longest } => {
                let Some(Phase::Opening(client)) = self.channels.get(&key) else { return };
                let client = *client;
                // Without an answer to the client, the link ends the channel.
                if self.answer(client) == Some(longest) {
                    self.channels.insert(key, Phase::Open(Flow::new(client)));
                }
            }
            Step::End => {
                if let Some(client) = self.channels.remove(&key).and_then(|phase| phase.client()) {
                    self.check_closed(client);
                }
            }
            step => match self.channels.get_mut(&key) {
                Some(Phase::Asked { early, .. }) => early.push((step, bytes.to_vec())),
                Some(Phase::Open(flow)) => apply_in(flow, &self.locals[flow.client].end, &step, bytes),
                Some(Phase::Opening(_)) | None => {}
            },
        }
    }

    /// What the link said to its peers.
    fn take_messages(&mut self) {
        let connections: Vec<u64> = self.nodes.keys().copied().collect();
        for connection in connections {
            while let Some(bytes) = self.stage.sent(connection) {
                let (message, contents) = Message::decode(&bytes).expect("a message that a link takes");
                let Message::Channel { number, of_receiver, step } = message else {
                    panic!("{message:?} is of no channel")
                };
                self.link_said((connection, !of_receiver, number), step, contents);
            }
        }
        for (key, phase) in &self.channels {
            assert!(!matches!(phase, Phase::Open(Flow { must_end: true, .. })), "{key:?} goes on");
        }
    }

    fn link_said(&mut self, key: Key, step: Step, bytes: &[u8]) {
        match step {
            Step::Open { from, to, name, longest } => {
                assert!(key.1 && !self.channels.contains_key(&key), "a number that is in use");
                // So late words of the peer are of no later channel.
                assert!(
                    self.last.insert(key.0, key.2).is_none_or(|last| key.2 > last),
                    "a number used again"
                );
                let client = self.locals.len() - 1;
                let local = &self.locals[client];
                assert!(!local.listens && name == local.name && longest == local.longest && from == user());
                assert_eq!(local.users, [RemoteUser { node: self.nodes[&key.0], user: to }]);
                self.channels.insert(key, Phase::Opening(client));
            }
            Step::Accepted { longest } => self.link_accepted(key, longest),
            Step::End => {
                // To what a peer asked for too much, too.
                let was = self.channels.remove(&key);
                assert!(was.is_some() || self.touched.contains(&key), "a second end of {key:?}");
                if let Some(client) = was.and_then(|phase| phase.client()) {
                    self.check_closed(client);
                }
            }
            step => {
                let Some(Phase::Open(flow)) = self.channels.get_mut(&key) else {
                    // It ended with the last words of the peer, which came while the link said this.
                    return assert!(self.touched.contains(&key), "{step:?} to {key:?}, which is not open");
                };
                said_in(flow, &self.locals[flow.client].end, &step, bytes);
            }
        }
    }

    /// The link lets a user of a peer reach a client here.
    fn link_accepted(&mut self, key: Key, longest: u64) {
        let Some(Phase::Asked { from, to, name, longest: theirs, early }) = self.channels.get_mut(&key)
        else {
            return assert!(self.touched.contains(&key), "{key:?} was not asked for");
        };
        let early = std::mem::take(early);
        let with = RemoteUser { node: self.nodes[&key.0], user: *from };
        let name = name.clone();
        let theirs = *theirs;
        assert_eq!(*to, user(), "a channel of another user");
        let client = self.locals.iter().position(|local| local.longest == longest).expect("a client");
        let local = &self.locals[client];
        assert!(local.listens && local.name == name && local.users.contains(&with), "{with} was let in");
        assert_eq!(self.answer(client), Some(theirs), "the client has no answer");
        let mut flow = Flow::new(client);
        for (step, bytes) in early {
            apply_in(&mut flow, &self.locals[client].end, &step, &bytes);
        }
        self.channels.insert(key, Phase::Open(flow));
    }

    /// The longest message of the other end, if the link has connected the client. It can do that once.
    fn answer(&mut self, client: usize) -> Option<u64> {
        let local = &mut self.locals[client];
        loop {
            let packet = conduit::receive(local.end.socket.as_fd(), false).ok()?;
            // The welcome comes first.
            if packet.descriptors.is_empty() {
                continue;
            }
            assert!(!local.has_answer, "connected twice");
            assert_eq!(packet.bytes.len(), HELLO_BYTES + 20);
            local.has_answer = true;
            local.end.take_memory(&packet.descriptors[0]);
            return packet.bytes[40..48].try_into().ok().map(u64::from_le_bytes);
        }
    }

    /// The client of a channel that has ended sees the end of its connection.
    fn check_closed(&self, client: usize) {
        let socket = &self.locals[client].end.socket;
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut bytes = [0; 64];
        loop {
            // Another thread may close it, if the user's sockets were slow.
            let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&limit));
            match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return,
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => panic!("the client of a channel that ended goes on"),
                Err(_) => return,
            }
        }
    }
}

/// Bytes that follow a slot.
fn contents(words: &[u64; 8]) -> usize {
    if let Some(Slot::Piece { length, .. }) = Slot::read(words) { length as usize } else { 0 }
}

/// What a step of the peer does to an open channel.
fn apply_in(flow: &mut Flow, client: &Hostile, step: &Step, bytes: &[u8]) {
    if flow.must_end {
        return;
    }
    match step {
        Step::Slot(words) => {
            let slot = Slot::read(words);
            let is_kind = matches!(
                slot,
                Some(Slot::Piece { .. } | Slot::Inline { .. } | Slot::Lent { .. } | Slot::Remote { .. })
            );
            let has_room = flow.put.wrapping_sub(flow.reported) < SLOTS;
            if !is_kind || !has_room || bytes.len() != contents(words) {
                flow.must_end = true;
                return;
            }
            assert_eq!(Slot::read(&client.their_slot(flow.put)), slot, "the client sees another slot");
            flow.put = flow.put.wrapping_add(1);
        }
        Step::Finished(count) => {
            if *count > flow.taken - flow.finished {
                flow.must_end = true;
                return;
            }
            flow.held.drain(..*count as usize);
            flow.finished += count;
            assert!(client.their(RETIRED) >= u64::from(flow.finished));
        }
        Step::Closed { sender, receiver } => {
            for (is_closed, word) in [(sender, SENDER_CLOSED), (receiver, RECEIVER_CLOSED)] {
                assert!(!is_closed || client.their(word) == 1);
            }
        }
        _ => {}
    }
}

/// What the link says to the peer of an open channel is what the client's memory says, within the credit.
fn said_in(flow: &mut Flow, client: &Hostile, step: &Step, bytes: &[u8]) {
    match step {
        Step::Slot(words) => {
            let own = client.slot(flow.taken).expect("a slot that the client wrote");
            let expected = Slot::read(&own).expect("a slot that is one");
            let said = Slot::read(words).expect("a slot that a link takes");
            match (&expected, &said) {
                (Slot::Piece { at, length, .. }, _) => {
                    assert_eq!(said, expected);
                    assert_eq!(bytes, client.area(*at, *length));
                }
                // Nobody here has granted anything, so no grant goes on.
                (
                    Slot::Remote { index, length, .. },
                    Slot::Remote { token, index: said, length: bytes, .. },
                ) => {
                    assert_eq!((*token, said, bytes), (0, index, length));
                }
                (Slot::Inline { .. } | Slot::Lent { .. }, _) => assert_eq!(said, expected),
                _ => panic!("{expected:?} went on as {said:?}"),
            }
            flow.taken += 1;
            flow.held.push(bytes.len() as u32);
            let held: u64 = flow.held.iter().map(|held| u64::from(*held)).sum();
            assert!(flow.taken - flow.finished <= SLOTS && held <= AREA_BYTES, "more than the credit");
        }
        Step::Finished(count) => {
            flow.reported = flow.reported.wrapping_add(*count);
            assert!(
                *count > 0 && flow.put.wrapping_sub(flow.reported) <= SLOTS,
                "finished with what was not sent"
            );
        }
        Step::Closed { sender, receiver } => {
            assert!(sender | receiver);
            assert!(client.slot(flow.taken).is_none(), "closed before its last slots");
        }
        _ => {}
    }
}
