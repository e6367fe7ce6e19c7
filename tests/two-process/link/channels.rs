//! Bulk channels between clients of different nodes.

use std::path::PathBuf;
use std::time::Duration;

use memferry::{Client, Failure, PeerReason};
use memferry_bulk::{
    ConnectError, Content, FinishError, LentFrame, LinkRefusal, Options, ReceiveError, Receiver,
    RemoteListener, RemoteUser, SendError, Sender, SharedFrame, connect_remote,
};
use memferry_conformance::noise;
use memferry_link::message::{Message, Step};
use rustix::process::{Signal, kill_process};

use super::harness::{self, Role, next_order, report, role_socket, wait_until};
use super::hostile::Hostile;
use super::networks::Networks;
use super::{MIB, Node, Way, contents, host, in_place_of_link, nodes, refused, two_nodes, user};

const LONG: Option<Duration> = Some(harness::SOON);
const BRIEF: Option<Duration> = Some(Duration::from_millis(50));

fn channels(node: &Node) -> PathBuf {
    node.service.socket.with_file_name("channels.sock")
}

fn user_of(node: &Node) -> RemoteUser {
    RemoteUser { node: node.name, user: user() }
}

fn listener(at: &Node, name: &str, from: &[RemoteUser]) -> RemoteListener {
    let client = at.client();
    wait_until("the socket of the link", || listens(at, &client));
    RemoteListener::new(channels(at), name, from).unwrap()
}

/// Whether the link of the node takes requests: its socket's file is there a little earlier.
fn listens(at: &Node, client: &Client) -> bool {
    let nobody = RemoteUser { node: "nobody".parse().unwrap(), user: 0 };
    let outcome = connect_remote(channels(at), nobody, "name", client, patient()).map(drop);
    !matches!(outcome, Err(ConnectError::Socket { .. }))
}

fn patient() -> Options {
    Options { handshake: harness::SOON, ..Options::default() }
}

/// Connects, once the links are connected.
fn connect(
    from: &Node,
    client: &Client,
    (to, name): (RemoteUser, &str),
    options: Options,
) -> Result<(Sender, Receiver), ConnectError> {
    let mut connected = None;
    wait_until("the links", || {
        let outcome = connect_remote(channels(from), to, name, client, options);
        let is_early = matches!(
            outcome,
            Err(ConnectError::Link(LinkRefusal::NotConnected | LinkRefusal::Broken)
                | ConnectError::Socket { .. })
        );
        connected = if is_early { None } else { Some(outcome) };
        connected.is_some()
    });
    connected.unwrap()
}

/// One end of a channel, and its client.
struct End {
    client: Client,
    sender: Sender,
    receiver: Receiver,
}

/// Both ends of a channel, that of the client which connected first.
fn channel(from: &Node, to: &Node, name: &str) -> (End, End) {
    let listener = listener(to, name, &[user_of(from)]);
    let accepting = to.client();
    let accepted = {
        let client = accepting.clone();
        std::thread::spawn(move || {
            let mut accepted = None;
            // The socket may still be that of a link which ended.
            wait_until("a client of the other node", || {
                let outcome = listener.accept(&client, patient(), LONG);
                let is_early = matches!(outcome, Err(ConnectError::Socket { .. }));
                accepted = if is_early { None } else { Some(outcome.unwrap()) };
                accepted.is_some()
            });
            accepted.unwrap()
        })
    };
    let client = from.client();
    let (sender, receiver) = connect(from, &client, (user_of(to), name), patient()).unwrap();
    let one = End { client, sender, receiver };
    let (sender, receiver) = accepted.join().unwrap();
    (one, End { client: accepting, sender, receiver })
}

fn text(receiver: &mut Receiver) -> Vec<u8> {
    match receiver.receive(LONG).unwrap().content {
        Content::Bytes(bytes) => bytes.to_vec(),
        Content::Range(_) => panic!("a frame"),
    }
}

fn lent(receiver: &mut Receiver) -> LentFrame {
    match receiver.receive(LONG).unwrap().content {
        Content::Range(lent) => lent,
        Content::Bytes(_) => panic!("bytes"),
    }
}

/// Lends parts of a frame, which the other end pulls: the same ones of one grant. Then the owner forgets it.
fn lend_and_pull(one: &mut End, other: &mut End, what: &str) {
    let theirs = SharedFrame::allocate(&one.client, 3 * MIB).unwrap();
    theirs.frame().write(0, &noise(3 << 20, 4)).unwrap();
    one.sender.export(theirs.frame(), LONG).unwrap();
    let mapped = one.sender.lend_mapped(1, &theirs, (0, 8), LONG);
    assert!(matches!(mapped, Err(SendError::OtherNode)), "{what}");
    let mut pulled = 0;
    while pulled < 4 {
        // The link may be late for a frame, as with other requests.
        let own = host(&other.client, 3 * MIB);
        let range = pulled * 4097..2 * MIB + pulled;
        let loan = one.sender.lend(9, theirs.frame().slice(range.clone()), LONG).unwrap();
        other.receiver.receive_and_pull(&own);
        match other.receiver.finish(LONG) {
            Ok(done) => {
                assert_eq!((done.kind, done.length), (9, range.end - range.start), "{what}");
                let [start, end] = [range.start, range.end].map(|at| at as usize);
                assert!(contents(&own)[..end - start] == contents(theirs.frame())[start..end], "{what}");
                pulled += 1;
            }
            Err(FinishError::Failed { failure: Failure::Unsupported | Failure::PeerLost, .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        one.sender.settle(loan, LONG).unwrap();
    }
    assert_eq!(one.sender.statistics().misses, 1, "{what}: one grant for all");
    let _loan = one.sender.lend(9, theirs.frame().slice(..4096), LONG).unwrap();
    one.sender.forget(theirs.frame().handle()).unwrap();
    let own = host(&other.client, MIB);
    other.receiver.receive_and_pull(&own);
    let Err(FinishError::Failed { failure, .. }) = other.receiver.finish(LONG) else { panic!("{what}") };
    let reasons = [PeerReason::Revoked, PeerReason::NoSuchGrant].map(refused);
    assert!(reasons.contains(&Some(failure)), "{what}: {failure}");
}

trait ReceiveAndPull {
    fn receive_and_pull(&mut self, own: &memferry::Frame);
}

impl ReceiveAndPull for Receiver {
    fn receive_and_pull(&mut self, own: &memferry::Frame) {
        let lent = lent(self);
        self.pull(lent, own).unwrap();
    }
}

#[test]
fn messages_and_frames_go_between_two_nodes() {
    for way in Way::all() {
        let (alpha, beta) = two_nodes(way);
        let (mut one, mut other) = channel(&alpha, &beta, "things");
        assert_eq!(one.sender.remote(), Some(user_of(&beta)));
        assert_eq!(other.sender.remote(), Some(user_of(&alpha)));
        // Short ones, one that fills the area many times, and one of no bytes, in order and in both directions.
        let long = &noise(5 << 20, 1)[..];
        std::thread::scope(|scope| {
            for (sender, name) in [(&mut one.sender, "there"), (&mut other.sender, "back")] {
                scope.spawn(move || {
                    (0..200).for_each(|kind| sender.send(kind, name.as_bytes(), LONG).unwrap());
                    sender.send(7, long, LONG).unwrap();
                    sender.send(8, b"", LONG).unwrap();
                });
            }
            for (receiver, name) in [(&mut other.receiver, "there"), (&mut one.receiver, "back")] {
                scope.spawn(move || {
                    for number in 0..200 {
                        let message = receiver.receive(LONG).unwrap();
                        assert_eq!(message.kind, number);
                        assert!(matches!(message.content, Content::Bytes(bytes) if bytes == name.as_bytes()));
                    }
                    assert!(text(receiver) == long, "{way:?}");
                    assert_eq!(text(receiver), b"");
                });
            }
        });
        lend_and_pull(&mut one, &mut other, &format!("{way:?}, there"));
        lend_and_pull(&mut other, &mut one, &format!("{way:?}, back"));
        // What was sent before the end is received.
        one.sender.send(1, b"the last", LONG).unwrap();
        drop((one.sender, one.receiver));
        assert_eq!(text(&mut other.receiver), b"the last");
        assert!(matches!(other.receiver.receive(LONG), Err(ReceiveError::Closed)));
        wait_until("the end to be closed", || {
            matches!(other.sender.send(1, b"x", BRIEF), Err(SendError::Closed | SendError::PeerLost))
        });
    }
}

#[test]
fn a_slow_reader_stops_its_own_channel_only() {
    let (alpha, beta) = two_nodes(Way::Encrypted);
    let (mut slow, mut late) = channel(&alpha, &beta, "slow");
    let (mut fast, mut other) = channel(&alpha, &beta, "fast");
    let mut sent = 0_u64;
    let body = noise(100 << 10, 3);
    // All credit of the one is used up. It is that of one channel, not of one at each node.
    let full = loop {
        match slow.sender.send(5, &body, BRIEF) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, SendError::TimedOut), "{full}");
    assert!((5..=11).contains(&sent), "{sent} messages of 100 KiB in 1 MiB");
    for number in 0..300 {
        fast.sender.send(number, &body, LONG).unwrap();
        assert!(text(&mut other.receiver) == body);
    }
    for _ in 0..sent {
        assert!(text(&mut late.receiver) == body);
    }
    slow.sender.send(6, b"again", LONG).unwrap();
    // The message that found no room in time was sent in part, or not at all.
    assert_eq!(text(&mut late.receiver), b"again");
}

#[test]
fn only_those_who_are_let_in_come_in() {
    let (alpha, beta) = two_nodes(Way::Encrypted);
    let accepting = beta.client();
    let waits = |name: &'static str, from: RemoteUser| {
        let listener = listener(&beta, name, &[from]);
        let client = accepting.clone();
        std::thread::spawn(move || {
            listener.accept(&client, patient(), Some(Duration::from_secs(3))).map(drop)
        })
    };
    let own = user_of(&alpha);
    let waiting = [
        waits("others", RemoteUser { user: own.user.wrapping_add(1), ..own }),
        waits("elsewhere", RemoteUser { node: beta.name, ..own }),
        waits("name", own),
    ];
    let client = alpha.client();
    // The links are connected, and the right name is found.
    let beta_user = user_of(&beta);
    let right = connect(&alpha, &client, (beta_user, "name"), patient());
    assert!(right.is_ok(), "{right:?}");
    let short = Options { handshake: Duration::from_millis(200), ..Options::default() };
    for (to, name) in [
        (beta_user, "others"),
        (beta_user, "elsewhere"),
        (beta_user, "guessed"),
        (RemoteUser { user: beta_user.user.wrapping_add(1), ..beta_user }, "others"),
    ] {
        let refused = connect_remote(channels(&alpha), to, name, &client, short).map(drop).unwrap_err();
        assert!(matches!(refused, ConnectError::Unanswered { .. }), "{to} {name}: {refused}");
    }
    let unknown = RemoteUser { node: "nobody".parse().unwrap(), user: 0 };
    let refused = connect_remote(channels(&alpha), unknown, "name", &client, short).map(drop).unwrap_err();
    assert!(matches!(refused, ConnectError::Link(LinkRefusal::UnknownNode)), "{refused}");
    let [others, elsewhere, name] = waiting.map(|thread| thread.join().unwrap());
    assert!(name.is_ok());
    for early in [others, elsewhere] {
        assert!(matches!(early, Err(ConnectError::TimedOut)), "{early:?}");
    }
    // A user has so many channels and no more.
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let listener = listener(&beta, "many", &[own]);
            let client = beta.client();
            std::thread::spawn(move || {
                listener.accept(&client, patient(), Some(Duration::from_secs(2))).map(drop)
            })
        })
        .collect();
    let ended: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap().unwrap_err()).collect();
    let late = ended.iter().filter(|error| matches!(error, ConnectError::TimedOut)).count();
    assert!((1..=32).contains(&late), "{late} waited to the end");
}

/// The role of a client that connects to `to` and sends, until it is killed.
#[test]
fn channel_client() {
    let Some(socket) = role_socket() else { return };
    let client = Client::connect(&socket).unwrap();
    let order = next_order();
    let (node, user) = order.split_once(':').unwrap();
    let to = RemoteUser { node: node.parse().unwrap(), user: user.parse().unwrap() };
    let path = socket.with_file_name("channels.sock");
    let (mut sender, _receiver) = connect_remote(path, to, "mortal", &client, patient()).unwrap();
    sender.send(3, b"before the end", None).unwrap();
    report("sent");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_client_or_link_that_dies_ends_the_channel_at_both_nodes() {
    let (alpha, mut beta) = two_nodes(Way::Encrypted);
    let (mut one, mut other) = channel(&alpha, &beta, "first");
    // A client's process is killed.
    let listening = listener(&beta, "mortal", &[user_of(&alpha)]);
    let client = beta.client();
    let mut role = Role::start("channels::channel_client", &alpha.service.socket);
    role.send_line(&user_of(&beta).to_string());
    let (mut sender, mut receiver) = listening.accept(&client, patient(), LONG).unwrap();
    role.receive_line();
    role.kill();
    assert_eq!(text(&mut receiver), b"before the end");
    assert!(matches!(receiver.receive(LONG), Err(ReceiveError::PeerLost)));
    wait_until("the sender to notice", || matches!(sender.send(1, b"x", BRIEF), Err(SendError::PeerLost)));
    // The process of a link is killed.
    one.sender.send(1, b"x", LONG).unwrap();
    text(&mut other.receiver);
    kill_process(beta.engine(), Signal::KILL).unwrap();
    assert!(matches!(other.receiver.receive(LONG), Err(ReceiveError::PeerLost)));
    assert!(matches!(one.receiver.receive(LONG), Err(ReceiveError::PeerLost)));
    // The next one connects again, and so do clients.
    beta.engine();
    let (mut one, mut other) = channel(&alpha, &beta, "first");
    one.sender.send(1, b"again", LONG).unwrap();
    assert_eq!(text(&mut other.receiver), b"again");
    drop(beta.link.take());
}

/// A peer's word about a channel.
fn say(peer: &mut Hostile, (number, of_receiver): (u32, bool), step: Step, bytes: &[u8]) {
    peer.send(&Message::Channel { number, of_receiver, step }, bytes);
}

/// What the node says next about a channel that it opened, if `is_ours`, or that the peer opened.
fn said(peer: &mut Hostile, is_ours: bool, node: &Node) -> (u32, Step) {
    loop {
        match peer.receive() {
            Some((Message::Channel { number, of_receiver, step }, _)) if of_receiver == is_ours => {
                return (number, step);
            }
            Some(_) => {}
            None => panic!("{}", node.told()),
        }
    }
}

/// Steps of a channel, each with the bytes behind it.
type Steps = Vec<(Step, Vec<u8>)>;

/// What a peer may say that ends a channel.
fn mistakes() -> Vec<(&'static str, Steps)> {
    // Of kind 5, and without bytes.
    let good = [1 << 32, 5, 0, 0, 0, 0, 0, 0];
    let piece = |length: u64| [2 << 32 | 1 << 40, length << 32, length, 0, 0, 0, 0, 0];
    vec![
        ("more than the credit", vec![(Step::Slot(good), vec![]); 65]),
        ("a slot of no type", vec![(Step::Slot([9 << 32, 0, 0, 0, 0, 0, 0, 0]), vec![])]),
        ("a grant of this node", vec![(Step::Slot([3 << 32, 0, 7, 0, 0, 0, 0, 0]), vec![])]),
        ("a descriptor", vec![(Step::Slot([4 << 32, 0, 7, 0, 0, 0, 0, 0]), vec![])]),
        ("contents that are too short", vec![(Step::Slot(piece(100)), vec![1; 99])]),
        ("contents of none", vec![(Step::Slot(good), vec![1])]),
        ("a piece that is too long", vec![(Step::Slot(piece(129 << 10)), vec![1; 128 << 10])]),
        ("finished with what was not sent", vec![(Step::Finished(u32::MAX), vec![])]),
    ]
}

#[test]
fn a_hostile_link_ends_its_own_channels_only() {
    let (alpha, mut beta) = two_nodes(Way::Encrypted);
    let (listener, config) = in_place_of_link(&mut beta);
    let process = alpha.engine();
    let mut peer = Hostile::meet(&listener, &config);
    let client = alpha.client();
    let to = user_of(&beta);
    // What it says of channels that are not there is nothing.
    for step in [Step::Accepted { longest: 1 }, Step::Slot([0; 8]), Step::Finished(7), Step::End] {
        say(&mut peer, (4_000_000, true), step.clone(), &[]);
        say(&mut peer, (4_000_000, false), step, &[]);
    }
    for (what, steps) in mistakes() {
        let (mut ends, number) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| connect(&alpha, &client, (to, "any"), patient()).unwrap());
            let (number, opened) = said(&mut peer, false, &alpha);
            assert!(matches!(opened, Step::Open { from, .. } if from == user()), "{what}: {opened:?}");
            say(&mut peer, (number, true), Step::Accepted { longest: 64 }, &[]);
            (connecting.join().unwrap(), number)
        });
        for (step, bytes) in steps {
            say(&mut peer, (number, true), step, &bytes);
        }
        // The client takes nothing before that, so it gives no credit.
        assert_eq!(said(&mut peer, false, &alpha), (number, Step::End), "{what}");
        // What came before the mistake is received.
        let ended = loop {
            match ends.1.receive(LONG) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(ended, ReceiveError::PeerLost), "{what}: {ended}");
    }
    // More channels than it may open, under names that nobody has.
    for number in 0..70 {
        let name = "guessed".to_owned();
        say(&mut peer, (number, false), Step::Open { from: 0, to: user(), name, longest: 1 }, &[]);
    }
    for number in 64..70 {
        assert_eq!(said(&mut peer, true, &alpha), (number, Step::End));
    }
    // A name that is none ends the connection, as other messages that are none.
    let name = "../socket".to_owned();
    say(&mut peer, (99, false), Step::Open { from: 0, to: user(), name, longest: 1 }, &[]);
    while peer.receive().is_some() {}
    wait_until("the link to say so", || alpha.told().contains("it names a channel as none is named"));
    assert_eq!(alpha.engine(), process, "the link did not go down");
}

#[test]
fn a_node_that_is_cut_off_ends_its_channels_and_no_others() {
    let Some(networks) = Networks::new() else { return };
    let ways = Way::all().into_iter().filter(|way| *way != Way::SharedMemory);
    for way in ways.map(|way| if way == Way::Tcp { Way::Network } else { way }) {
        let addresses = ["10.77.0.10", "10.77.0.11", "10.77.0.12"];
        let names = ["alpha", "beta", "gamma"];
        let place = |number: usize| (names[number], addresses[number], networks.command(number));
        let all = nodes(way, &[place(0), place(1), place(2)]);
        let (mut one, mut other) = channel(&all[0], &all[1], "both");
        let (mut third, mut fourth) = channel(&all[2], &all[1], "both");
        lend_and_pull(&mut one, &mut other, "alpha to beta");
        lend_and_pull(&mut fourth, &mut third, "beta to gamma");
        networks.set(0, "down");
        assert!(matches!(one.receiver.receive(LONG), Err(ReceiveError::PeerLost)), "{way:?}");
        assert!(matches!(other.receiver.receive(LONG), Err(ReceiveError::PeerLost)), "{way:?}");
        third.sender.send(1, b"still here", LONG).unwrap();
        assert_eq!(text(&mut fourth.receiver), b"still here", "{way:?}");
        networks.set(0, "up");
        let (mut one, mut other) = channel(&all[0], &all[1], "both");
        one.sender.send(1, b"again", LONG).unwrap();
        assert_eq!(text(&mut other.receiver), b"again", "{way:?}");
    }
}
