//! Part `channels`: messages of a bulk channel between two nodes, beside the same channel on one node and beside a TCP socket.
//!
//! ```text
//! client ─ shared memory ─► link ═ encrypted, TCP ═ link ─ shared memory ─► client        both nodes are on this machine
//! client ─ shared memory ───────────────────────────────────────────────────► client
//! thread ─ TCP, in clear text ──────────────────────────────────────────────► thread
//! ```
//!
//! The links encrypt and the others do not, so the channel between nodes cannot come near either: the row says what it costs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use memferry::{Client, NodeName};
use memferry_bulk::{
    ConnectError, Content, LinkRefusal, Options, Receiver, RemoteListener, RemoteUser, Sender,
    connect_remote, over,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair};

use super::nodes::{NAMES, Node, Nodes, Way, patiently, user};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::random_bytes;

const ROUNDS: usize = 7;
/// How long one message may take before a channel counts as stuck.
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const MIB: f64 = (1 << 20) as f64;

struct Size {
    name: &'static str,
    bytes: usize,
    count: u32,
}

const SIZES: [Size; 2] = [
    Size { name: "64 KiB", bytes: 64 << 10, count: 2048 },
    Size { name: "1 MiB", bytes: 1 << 20, count: 128 },
];

type Ends = (Sender, Receiver);

/// MiB/s of each side, by round.
#[derive(Default)]
struct Figures {
    between: Vec<f64>,
    within: Vec<f64>,
    socket: Vec<f64>,
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let nodes = Nodes::start(run, Way::Encrypted)?;
    let mut between = between(&nodes)?;
    let mut within = within(&nodes)?;
    let mut socket = socket()?;
    let rounds = run.part("remote channels", ROUNDS);
    let mut figures: [Figures; SIZES.len()] = Default::default();
    for round in 0..rounds {
        for (size, figures) in SIZES.iter().zip(&mut figures) {
            let bytes = random_bytes(size.bytes, 7);
            for turn in 0..3 {
                match (turn + round) % 3 {
                    0 => figures.between.push(size.rate(send(&mut between, &bytes, size.count)?)),
                    1 => figures.within.push(size.rate(send(&mut within, &bytes, size.count)?)),
                    _ => figures.socket.push(size.rate(write(&mut socket, &bytes, size.count)?)),
                }
            }
        }
        run.round_done();
    }
    Ok(SIZES.iter().zip(&figures).flat_map(|(size, figures)| rows(size, figures)).collect())
}

impl Size {
    fn rate(&self, seconds: f64) -> f64 {
        self.bytes as f64 * f64::from(self.count) / MIB / seconds
    }
}

/// The sender of a client of alpha, and the receiver of one of beta. The other two are kept: a channel ends with them.
struct Channel {
    sender: Sender,
    receiver: Receiver,
    _back: (Receiver, Sender),
}

impl Channel {
    fn new((sender, taker): Ends, (giver, receiver): Ends) -> Self {
        Self { sender, receiver, _back: (taker, giver) }
    }
}

fn between(nodes: &Nodes) -> Result<Channel, BenchError> {
    let [alpha, beta] = NAMES.map(|name| name.parse::<NodeName>());
    let from = [RemoteUser { node: alpha?, user: user() }];
    let to = RemoteUser { node: beta?, user: user() };
    let listener = RemoteListener::new(&nodes.beta.channels, "bench", &from)?;
    let theirs = Client::connect(&nodes.beta.socket)?;
    let ours = Client::connect(&nodes.alpha.socket)?;
    // A link that is attached may not listen yet.
    patiently("the links to listen for channels", || {
        let listens = |node: &Node| -> Result<bool, BenchError> {
            let kind = SocketType::SEQPACKET;
            let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
            Ok(connect(&socket, &SocketAddrUnix::new(&node.channels)?).is_ok())
        };
        Ok((listens(&nodes.alpha)? && listens(&nodes.beta)?).then_some(()))
    })?;
    let options = Options { handshake: Duration::from_secs(5), ..Options::default() };
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(&theirs, options, LIMIT));
        let connected = patiently("the links to connect", || {
            match connect_remote(&nodes.alpha.channels, to, "bench", &ours, options) {
                Ok(ends) => Ok(Some(ends)),
                Err(
                    ConnectError::Socket { .. }
                    | ConnectError::Unanswered { .. }
                    | ConnectError::Link(LinkRefusal::NotConnected | LinkRefusal::Broken),
                ) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        let accepted = accepting.join().map_err(|_| "the thread that accepts panicked")??;
        Ok(Channel::new(connected, accepted))
    })
}

fn within(nodes: &Nodes) -> Result<Channel, BenchError> {
    let kind = SocketType::SEQPACKET;
    let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let clients = [Client::connect(&nodes.alpha.socket)?, Client::connect(&nodes.alpha.socket)?];
    std::thread::scope(|scope| {
        let there = scope.spawn(|| over(other, &clients[1], Options::default()));
        let here = over(one, &clients[0], Options::default())?;
        Ok(Channel::new(here, there.join().map_err(|_| "a thread panicked")??))
    })
}

fn socket() -> Result<(TcpStream, TcpStream), BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let writer = TcpStream::connect(listener.local_addr()?)?;
    writer.set_nodelay(true)?;
    Ok((writer, listener.accept()?.0))
}

/// Sends so many messages. Returns the seconds until all were received.
fn send(channel: &mut Channel, bytes: &[u8], count: u32) -> Result<f64, BenchError> {
    let Channel { sender, receiver, .. } = channel;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| (0..count).try_for_each(|kind| sender.send(kind, bytes, LIMIT)));
        for number in 0..count {
            let message = receiver.receive(LIMIT)?;
            // All bytes of the first one, of which there is one in each round.
            let is_right = match message.content {
                Content::Bytes(got) if number == 0 => got == bytes,
                Content::Bytes(got) => got.len() == bytes.len(),
                Content::Range(_) => false,
            };
            if !is_right || message.kind != number {
                return Err("another message arrived".into());
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        sending.join().map_err(|_| "the thread that sends panicked")??;
        Ok(seconds)
    })
}

/// As [`send`], over a socket.
fn write((writer, reader): &mut (TcpStream, TcpStream), bytes: &[u8], count: u32) -> Result<f64, BenchError> {
    let mut got = vec![0; bytes.len()];
    let started = Instant::now();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| (0..count).try_for_each(|_| writer.write_all(bytes)));
        for number in 0..count {
            reader.read_exact(&mut got)?;
            if number == 0 && got != bytes {
                return Err("other bytes arrived".into());
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        writing.join().map_err(|_| "the thread that writes panicked")??;
        Ok(seconds)
    })
}

fn rows(size: &Size, figures: &Figures) -> Vec<Row> {
    let row = |what: &str, unit, values: &[f64]| {
        Row::new(format!("channel, messages of {}: {what}", size.name), unit, Target::None, values)
    };
    let against = |theirs: &[f64]| -> Vec<f64> {
        figures.between.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
    };
    vec![
        row("between two nodes, encrypted", "MiB/s", &figures.between),
        row("on one node", "MiB/s", &figures.within),
        row("TCP socket, clear text", "MiB/s", &figures.socket),
        row("between nodes against one node", "ratio", &against(&figures.within)),
        row("between nodes against the socket", "ratio", &against(&figures.socket)),
    ]
}
