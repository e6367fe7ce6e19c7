//! The thread of channels, step by step: clients in this process, and peers that say what a test wants.

use std::net::TcpListener;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use memferry::{Armed, Refusal};
use memferry_bulk::{ConnectError, Content, Options, Receiver as End, Sender as Begin, connect_remote};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::strangers::Strangers;

const LONG: Duration = Duration::from_secs(30);
const NOW: Option<Duration> = Some(Duration::ZERO);

fn beta() -> NodeName {
    "beta".parse().unwrap()
}

/// The thread's state, and what it would be told by.
struct Stage {
    state: State,
    bell: Arc<OwnedFd>,
    news: (Sender<News>, Receiver<News>),
    listener: OwnedFd,
    path: PathBuf,
    client: Client,
    strangers: Strangers<u32>,
    /// What is sent to peers.
    sent: Vec<Receiver<(Packet, Unsent)>>,
}

impl Stage {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("memferry-channels-{}-{number}.sock", std::process::id()));
        let listener = clients::listen(&path).unwrap();
        let client = Client::embedded().unwrap();
        let state = State::new(client.clone(), BTreeSet::from([beta()]), Counts::default());
        let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let strangers = clients::strangers();
        let sent = Vec::new();
        Self { state, bell, news: mpsc::channel(), listener, path, client, strangers, sent }
    }

    fn unarmed(&self) -> Vec<Key> {
        let keys: Vec<Key> = self.state.open.keys().copied().collect();
        self.state.unarmed(&keys)
    }

    fn peer(&mut self, connection: u64, node: NodeName) -> Teller {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (sender, sent) = mpsc::channel();
        self.sent.push(sent);
        let (teller, steps) = steps::queue(connection, self.news.0.clone(), Arc::clone(&self.bell));
        self.state.handle(News::Up { connection, node, sender, stream, steps });
        teller
    }

    /// Deals with the news that there are.
    fn handle_news(&mut self) {
        while let Ok(news) = self.news.1.try_recv() {
            self.state.handle(news);
        }
    }

    /// Connects a client with a user of `beta`, by the first peer.
    fn connect(&mut self, teller: &Teller) -> Result<(Begin, End), ConnectError> {
        let to = RemoteUser { node: beta(), user: 5 };
        let client = self.client.clone();
        let path = self.path.clone();
        std::thread::scope(|scope| {
            let connecting =
                scope.spawn(move || connect_remote(path, to, "name", &client, Options::default()));
            let socket = rustix::net::accept_with(&self.listener, rustix::net::SocketFlags::CLOEXEC);
            let guest = Guest::receive(socket.unwrap(), &self.client, LONG).unwrap();
            let stranger = self.strangers.admit(guest.user()).unwrap();
            self.news.0.send(News::Guest(Box::new(guest), stranger)).unwrap();
            self.handle_news();
            let asked: Vec<_> = self.state.opening.keys().copied().collect();
            for key in asked {
                assert!(teller.tell(key.number, true, Step::Accepted { longest: 64 }, &[]));
            }
            self.handle_news();
            self.state.take_told();
            connecting.join().unwrap()
        })
    }
}

impl Drop for Stage {
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
    let mut stage = Stage::new();
    let teller = stage.peer(1, beta());
    let mut ends: Vec<_> = (0..5).map(|_| stage.connect(&teller).unwrap()).collect();
    let keys: Vec<_> = stage.state.open.keys().copied().collect();
    assert_eq!(keys.len(), 5);
    assert_eq!(stage.unarmed(), keys, "nobody was waited for yet");
    let bell = Arc::clone(&stage.bell);
    // What they said while they were connected may come first.
    for _ in 0..20 {
        if !stage.unarmed().is_empty() {
            stage.state.carry_all(false);
            stage.state.wait(&bell);
        }
    }
    assert_eq!(stage.unarmed(), [], "nobody said anything");
    ends[3].0.send(1, b"news", NOW).unwrap();
    stage.state.wait(&bell);
    assert_eq!(stage.unarmed(), [keys[3]]);
    // Nothing that a client says after it was armed is missed, whether it was carried before or after its packet came.
    for round in 0..200 {
        ends[round % 5].0.send(1, b"more", NOW).unwrap();
        if round % 3 == 0 {
            assert!(stage.state.carry_all(false));
        }
        let since = Instant::now();
        ends[round % 5].0.send(1, b"again", NOW).unwrap();
        stage.state.wait(&bell);
        assert!(since.elapsed() < LIVENESS, "a client was not heard");
        assert!(stage.state.carry_all(false));
        for key in &keys {
            stage.state.change(*key, |relay| relay.retire(0).and_then(|()| relay.finished().map(drop)));
        }
        // The peer has finished with all that it was sent.
        let sent: Vec<_> = std::iter::from_fn(|| stage.sent[0].try_recv().ok()).collect();
        for (packet, _) in &sent {
            if let Ok((Message::Channel { number, step: Step::Slot(_), .. }, _)) =
                Message::decode(packet.message())
            {
                let key = Key { connection: 1, is_ours: true, number };
                stage.state.change(key, |relay| relay.retire(1));
            }
        }
    }
}

#[test]
fn a_peer_that_says_much_delays_its_own_channels() {
    let mut stage = Stage::new();
    let loud = stage.peer(1, beta());
    let other = stage.peer(2, "gamma".parse().unwrap());
    for number in 0..10_000 {
        assert!(loud.tell(number, true, Step::End, &[]));
    }
    let open = Step::Open { from: 1, to: 2, name: "name".to_owned(), longest: 3 };
    assert!(other.tell(7, false, open, &[]));
    stage.handle_news();
    assert!(stage.state.take_told());
    assert_eq!(stage.state.asked.len(), 1, "it had its turn");
    assert_eq!(stage.state.told, BTreeSet::from([1]), "the loud one is not done");
    // The end of a connection is heard, and what waits for it is forgotten.
    drop(other);
    stage.handle_news();
    stage.state.take_told();
    assert!(stage.state.asked.is_empty() && !stage.state.peers.contains_key(&2));
    while stage.state.take_told() {}
    assert!(stage.state.peers.contains_key(&1));
}

#[test]
fn a_request_counts_until_it_was_dealt_with() {
    let mut stage = Stage::new();
    let guests: Vec<_> = (0..8)
        .map(|_| {
            let client = stage.client.clone();
            let path = stage.path.clone();
            let to = RemoteUser { node: beta(), user: 5 };
            let connecting =
                std::thread::spawn(move || connect_remote(path, to, "name", &client, Options::default()));
            let socket = rustix::net::accept_with(&stage.listener, rustix::net::SocketFlags::CLOEXEC);
            let guest = Guest::receive(socket.unwrap(), &stage.client, LONG).unwrap();
            let stranger = stage.strangers.admit(guest.user()).unwrap();
            stage.news.0.send(News::Guest(Box::new(guest), stranger)).unwrap();
            connecting
        })
        .collect();
    assert!(stage.strangers.admit(user()).is_none(), "the thread is slow");
    assert!(stage.strangers.admit(user() + 1).is_some());
    stage.handle_news();
    assert!(stage.strangers.admit(user()).is_some());
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
fn send_until_ended(stage: &mut Stage, end: &mut End, most: usize) -> usize {
    let [key] = stage.state.open.keys().copied().collect::<Vec<_>>()[..] else { panic!("one channel") };
    for sent in 0..most {
        let _ = end.arm();
        stage.state.step(key, slot(), Vec::new());
        if stage.state.open.is_empty() {
            return sent;
        }
        let received = end.receive(Some(LONG)).unwrap();
        assert!(matches!(received.content, Content::Bytes(b"")));
        stage.state.carry_all(false);
    }
    most
}

#[test]
fn a_user_whose_sockets_are_slow_loses_its_channels() {
    let mut stage = Stage::new();
    let teller = stage.peer(1, beta());
    let (_begin, mut end) = stage.connect(&teller).unwrap();
    assert_eq!(send_until_ended(&mut stage, &mut end, 2000), 2000, "an honest one is none");
    let watches = watched(end.as_fd());
    let before = Instant::now();
    assert!(send_until_ended(&mut stage, &mut end, 2000) < 1900);
    // As it was when the channel was ended: nothing is forgotten in the time before.
    let slowness = &mut stage.state.slowness;
    assert!(slowness.is_over(user(), before) && !slowness.is_over(user() + 1, before));
    // On a busy machine some is forgotten before the next request.
    slowness.add(user(), LONG, Instant::now());
    let refused = stage.connect(&teller).map(drop);
    assert!(matches!(refused, Err(ConnectError::Link(LinkRefusal::Busy))), "{refused:?}");
    drop(watches);
    // Later it is forgotten.
    stage.state.slowness = Slowness::default();
    let (_begin, mut end) = stage.connect(&teller).unwrap();
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
