//! The thread of channels, step by step: clients in this process, and peers that say what a test wants.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use memferry::{Armed, Refusal};
use memferry_bulk::{ConnectError, Content, Options, Receiver as End, Sender as Begin, connect_remote};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

const LONG: Duration = Duration::from_secs(30);
const NOW: Option<Duration> = Some(Duration::ZERO);

fn beta() -> NodeName {
    "beta".parse().unwrap()
}

/// The thread's state, and a socket for clients.
struct Scene {
    stage: Stage,
    listener: OwnedFd,
    path: PathBuf,
    client: Client,
}

impl Scene {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("memferry-channels-{}-{number}.sock", std::process::id()));
        let listener = clients::listen(&path).unwrap();
        let client = Client::embedded().unwrap();
        let stage = Stage::new(client.clone(), BTreeSet::from([beta()])).unwrap();
        Self { stage, listener, path, client }
    }

    fn peer(&mut self, node: NodeName) -> u64 {
        self.stage.connect(node).unwrap()
    }

    fn keys(&self) -> Vec<Key> {
        self.stage.state.open.keys().copied().collect()
    }

    fn unarmed(&self) -> Vec<Key> {
        self.stage.state.unarmed(&self.keys())
    }

    /// A client that wants to reach a user of `beta`. Its request is news for the thread.
    fn ask(&self) -> JoinHandle<Result<(Begin, End), ConnectError>> {
        let to = RemoteUser { node: beta(), user: 5 };
        let client = self.client.clone();
        let path = self.path.clone();
        let connecting =
            std::thread::spawn(move || connect_remote(path, to, "name", &client, Options::default()));
        let socket = rustix::net::accept_with(&self.listener, rustix::net::SocketFlags::CLOEXEC);
        let guest = Guest::receive(socket.unwrap(), &self.client, LONG).unwrap();
        assert!(self.stage.welcome(guest));
        connecting
    }

    /// The peer of a connection lets in all that ask it.
    fn let_in(&self, connection: u64) {
        let asked: Vec<_> = self.stage.state.opening.keys().copied().collect();
        for key in asked {
            let step = Step::Accepted { longest: 64 };
            assert!(self.stage.tell(connection, (key.number, true), step, &[]));
        }
    }

    /// Connects a client with a user of `beta`, by this connection.
    fn connect(&mut self, connection: u64) -> Result<(Begin, End), ConnectError> {
        let connecting = self.ask();
        self.stage.round(false);
        self.let_in(connection);
        self.stage.round(false);
        connecting.join().unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A short message of the peer.
fn slot() -> Step {
    Step::Slot([1 << 32, 5, 0, 0, 0, 0, 0, 0])
}

#[test]
fn only_clients_with_news_are_armed() {
    let mut scene = Scene::new();
    let peer = scene.peer(beta());
    let mut ends: Vec<_> = (0..5).map(|_| scene.connect(peer).unwrap()).collect();
    let keys = scene.keys();
    assert_eq!(keys.len(), 5);
    assert_eq!(scene.unarmed(), keys, "nobody was waited for yet");
    let bell = Arc::clone(&scene.stage.channels.bell);
    // What they said while they were connected may come first.
    for _ in 0..20 {
        if !scene.unarmed().is_empty() {
            scene.stage.state.carry_all(false);
            scene.stage.state.wait(&bell);
        }
    }
    assert_eq!(scene.unarmed(), [], "nobody said anything");
    ends[3].0.send(1, b"news", NOW).unwrap();
    scene.stage.state.wait(&bell);
    assert_eq!(scene.unarmed(), [keys[3]]);
    // Nothing that a client says after it was armed is missed, whether it was carried before or after its packet came.
    for round in 0..200 {
        let state = &mut scene.stage.state;
        ends[round % 5].0.send(1, b"more", NOW).unwrap();
        if round % 3 == 0 {
            assert!(state.carry_all(false));
        }
        let since = Instant::now();
        ends[round % 5].0.send(1, b"again", NOW).unwrap();
        state.wait(&bell);
        assert!(since.elapsed() < LIVENESS, "a client was not heard");
        assert!(state.carry_all(false));
        for key in &keys {
            state.change(*key, |relay| relay.retire(0).and_then(|()| relay.finished().map(drop)));
        }
        // The peer has finished with all that it was sent.
        while let Some(bytes) = scene.stage.sent(peer) {
            if let Ok((Message::Channel { number, step: Step::Slot(_), .. }, _)) = Message::decode(&bytes) {
                let key = Key { connection: peer, is_ours: true, number };
                scene.stage.state.change(key, |relay| relay.retire(1));
            }
        }
        scene.stage.read(peer);
    }
}

#[test]
fn a_peer_that_says_much_delays_its_own_channels() {
    let mut scene = Scene::new();
    let loud = scene.peer(beta());
    let other = scene.peer("gamma".parse().unwrap());
    for number in 0..10_000 {
        assert!(scene.stage.tell(loud, (number, true), Step::End, &[]));
    }
    let open = Step::Open { from: 1, to: 2, name: "name".to_owned(), longest: 3 };
    assert!(scene.stage.tell(other, (7, false), open, &[]));
    assert!(scene.stage.round(false));
    assert_eq!(scene.stage.state.asked.len(), 1, "it had its turn");
    assert_eq!(scene.stage.state.told, BTreeSet::from([loud]), "the loud one is not done");
    // The end of a connection is heard, and what waits for it is forgotten.
    scene.stage.disconnect(other);
    scene.stage.round(false);
    assert!(scene.stage.state.asked.is_empty() && !scene.stage.state.peers.contains_key(&other));
    while scene.stage.round(false) {}
    assert!(scene.stage.state.peers.contains_key(&loud));
}

#[test]
fn a_peer_has_no_more_room_by_connecting_again() {
    let mut scene = Scene::new();
    let contents = vec![0; 128 << 10];
    // The thread takes nothing meanwhile.
    let mut say = |node: NodeName, words: u32| {
        let connection = scene.peer(node);
        let is_taken = |number: &u32| scene.stage.tell(connection, (*number, true), Step::End, &contents);
        (0..words).take_while(is_taken).count()
    };
    assert!((1..2000).contains(&say(beta(), 2000)));
    assert_eq!(say(beta(), 1), 0);
    assert_eq!(say("gamma".parse().unwrap(), 1), 1, "another peer's words are its own");
    // The first connection was lost with the second one, and its words with it.
    while scene.stage.round(false) {}
    let again = scene.peer(beta());
    assert!(scene.stage.tell(again, (1, true), Step::End, &contents));
}

#[test]
fn a_connection_that_channels_use_is_not_given_up() {
    let mut scene = Scene::new();
    let peer = scene.peer(beta());
    let open = |name: &str| Step::Open { from: 1, to: user(), name: name.to_owned(), longest: 3 };
    // A user of the peer asks, which the thread has not seen, then waits here, then waits no more.
    assert!(scene.stage.tell(peer, (7, false), open("name"), &[]));
    assert!(!scene.stage.give_up(peer));
    scene.stage.round(false);
    assert!(!scene.stage.give_up(peer));
    assert!(scene.stage.tell(peer, (7, false), Step::End, &[]));
    scene.stage.round(false);
    // A client here asks, then has its channel until it is gone.
    let connecting = scene.ask();
    scene.stage.round(false);
    assert!(!scene.stage.give_up(peer));
    scene.let_in(peer);
    scene.stage.round(false);
    let ends = connecting.join().unwrap().unwrap();
    assert!(!scene.stage.give_up(peer));
    drop(ends);
    while !scene.keys().is_empty() {
        scene.stage.wait();
        scene.stage.round(true);
    }
    // Then no channel begins on it.
    assert!(scene.stage.give_up(peer));
    assert!(scene.stage.tell(peer, (8, false), open("name"), &[]));
    let connecting = scene.ask();
    scene.stage.round(false);
    assert!(scene.stage.state.asked.is_empty() && scene.stage.state.opening.is_empty());
    let refused = connecting.join().unwrap().map(drop);
    assert!(matches!(refused, Err(ConnectError::Link(LinkRefusal::NotConnected))), "{refused:?}");
}

#[test]
fn a_request_counts_until_it_was_dealt_with() {
    let mut scene = Scene::new();
    let guests: Vec<_> = (0..8).map(|_| scene.ask()).collect();
    assert!(scene.stage.strangers.admit(user()).is_none(), "the thread is slow");
    assert!(scene.stage.strangers.admit(user() + 1).is_some());
    scene.stage.round(false);
    assert!(scene.stage.strangers.admit(user()).is_some());
    for connecting in guests {
        let refused = connecting.join().unwrap().map(drop);
        assert!(matches!(refused, Err(ConnectError::Link(LinkRefusal::NotConnected))), "{refused:?}");
    }
}

/// Has a socket watched very often. The watches end with what this returns.
fn watched(socket: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let copies: Vec<_> = (0..250).map(|_| rustix::io::dup(socket).unwrap()).collect();
    let watch = |_| {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for copy in &copies {
            epoll::add(&instance, copy, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        }
        instance
    };
    let instances: Vec<_> = (0..120).map(watch).collect();
    copies.into_iter().chain(instances).collect()
}

/// Lets the peer send messages, each of which wakes the client. Returns how many it were until the channel was ended.
fn send_until_ended(scene: &mut Scene, end: &mut End, most: usize) -> usize {
    let [key] = scene.keys()[..] else { panic!("one channel") };
    for sent in 0..most {
        let _ = end.arm();
        scene.stage.state.step(key, slot(), Vec::new());
        if scene.stage.state.open.is_empty() {
            return sent;
        }
        let received = end.receive(Some(LONG)).unwrap();
        assert!(matches!(received.content, Content::Bytes(b"")));
        scene.stage.state.carry_all(false);
    }
    most
}

#[test]
fn a_user_whose_sockets_are_slow_loses_its_channels() {
    let mut scene = Scene::new();
    let peer = scene.peer(beta());
    let (_begin, mut end) = scene.connect(peer).unwrap();
    assert_eq!(send_until_ended(&mut scene, &mut end, 2000), 2000, "an honest one is none");
    let watches = watched(end.as_fd());
    let before = Instant::now();
    assert!(send_until_ended(&mut scene, &mut end, 2000) < 1900);
    // As it was when the channel was ended: nothing is forgotten in the time before.
    let slowness = &mut scene.stage.state.slowness;
    assert!(slowness.is_over(user(), before) && !slowness.is_over(user() + 1, before));
    // On a busy machine some is forgotten before the next request.
    slowness.add(user(), LONG, Instant::now());
    let refused = scene.connect(peer).map(drop);
    assert!(matches!(refused, Err(ConnectError::Link(LinkRefusal::Busy))), "{refused:?}");
    drop(watches);
    // Later it is forgotten.
    scene.stage.state.slowness = Slowness::default();
    let (_begin, mut end) = scene.connect(peer).unwrap();
    assert!(matches!(end.arm(), Ok(Armed::Waiting)));
}

#[test]
fn only_grants_that_do_not_exist_count_as_revoked() {
    let refused = |kind| CallError::Refused(Refusal { kind, message: String::new() });
    for kind in RefusalKind::ALL {
        let expected = Some(kind).filter(|kind| *kind != RefusalKind::Capability);
        assert_eq!(why_withheld(&refused(kind)), expected);
    }
    assert_eq!(why_withheld(&CallError::ServiceLost), Some(RefusalKind::System));
}
