//! Threads that connect to peers, take their connections, and pass on what they send.
//!
//! ```text
//! listener ─► thread: handshake ─┐
//! dialer of a peer ─► handshake ─┴─► Event::Up ─► Event::Bytes ... ─► Event::Down ─► the dialer tries again
//!                                                 writer thread ◄─ Sender
//! ```

use std::io;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::time::{Duration, Instant};

use memferry::NodeName;
use serde::{Deserialize, Serialize};

use crate::backlog::Unsent;
use crate::channels::{Channels, Teller, Uses};
use crate::config::{Config, connects};
use crate::message::Message;
use crate::packet::Packet;
use crate::report::{Rare, tell};
use crate::rests::Rests;
use crate::secure::{self, HandshakeError, Secured};
use crate::strangers::{Stranger, Strangers};
use crate::threads::spawn;
use crate::traffic::Snapshot;

/// Handshakes of strangers at a time, and of those from one address or network of IPv6. A peer is a stranger until its first message has come.
const MAX_HANDSHAKES: (usize, usize) = (16, 4);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Pauses between attempts to connect: doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Bytes of the address of a worker of UCX: about 100 for each network device.
const MAX_UCX_ADDRESS: usize = 16 << 10;
/// Messages that wait for the thread that handles them. Peers are not read while there are more.
const WAITING_MESSAGES: usize = 256;

/// The first message of each side on a new connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// Where UCX reaches this side; `None` if it does not.
    pub ucx: Option<UcxPeer>,
    /// Bytes must not go over UCX.
    pub require_encryption: bool,
}

/// How to reach a link by UCX.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UcxPeer {
    pub address: Vec<u8>,
    /// Goes before each message: only the peer of this connection knows it.
    pub key: u128,
}

/// What became of a connection.
pub(crate) enum Event {
    Up(Box<Up>),
    Bytes {
        connection: u64,
        bytes: Vec<u8>,
    },
    Down {
        connection: u64,
        why: String,
    },
    /// A peer that this node connects to could not be reached.
    Unreached {
        node: NodeName,
        why: String,
    },
    /// The administrator wants to know how it is.
    Status(mpsc::Sender<Snapshot>),
}

/// A connection whose peer is proved, and how to reach it.
pub(crate) struct Up {
    pub(crate) connection: u64,
    pub(crate) node: NodeName,
    pub(crate) greeting: Greeting,
    /// This side has said where UCX reaches it.
    pub(crate) offers_ucx: bool,
    /// The key that the peer puts before its messages over UCX.
    pub(crate) own_key: u128,
    /// What uses it for channels.
    pub(crate) uses: Uses,
    pub(crate) sender: Sender<(Packet, Unsent)>,
    stream: TcpStream,
}

impl Up {
    /// Ends the connection. Its threads end with it.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// What all threads share.
struct Shared {
    config: Config,
    ucx_address: Option<Vec<u8>>,
    events: SyncSender<Event>,
    next: AtomicU64,
    strangers: Strangers<IpAddr>,
    refusals: Rare,
    channels: Channels,
    rests: Rests,
}

/// Where a handshake comes from, for the counts: who has one address of an IPv6 network has all of them.
fn place_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        other => other,
    }
}

/// Events, and where others can be added.
pub(crate) type Events = (SyncSender<Event>, mpsc::Receiver<Event>);

/// Starts the threads. `ucx_address` is where UCX reaches this process.
pub(crate) fn start(
    config: &Config,
    ucx_address: Option<Vec<u8>>,
    (channels, rests): (Channels, Rests),
) -> io::Result<Events> {
    let (events, received) = mpsc::sync_channel(WAITING_MESSAGES);
    let shared = Shared {
        config: config.clone(),
        ucx_address,
        events: events.clone(),
        next: AtomicU64::new(1),
        strangers: Strangers::new(MAX_HANDSHAKES),
        refusals: Rare::default(),
        channels,
        rests,
    };
    let shared = Arc::new(shared);
    if let Some(address) = &config.listen {
        let listener = TcpListener::bind(address.as_str())
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
        let shared = Arc::clone(&shared);
        spawn("link-listener", move || listen(&shared, &listener))?;
    }
    for node in config.peers.keys().filter(|peer| connects(config.name, **peer)) {
        let shared = Arc::clone(&shared);
        let node = *node;
        spawn("link-dialer", move || dial(&shared, node))?;
    }
    Ok((events, received))
}

fn listen(shared: &Arc<Shared>, listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // For want of descriptors, as a rule: a pause lets others end.
            std::thread::sleep(PAUSES.0);
            continue;
        };
        let Ok(address) = stream.peer_addr() else { continue };
        let Some(stranger) = shared.strangers.admit(place_of(address.ip())) else {
            shared.refusals.tell(format_args!(
                "a connection from {address} was refused: too many handshakes are under way"
            ));
            continue;
        };
        let own = Arc::clone(shared);
        let spawned = spawn("link-peer", move || {
            let ended = secure::accept(stream, &own.config)
                .and_then(|secured| Ok(pass_on(&own, secured, Some(stranger))?));
            if let Err(error) = ended {
                own.refusals.tell(format_args!("a connection from {address} was refused: {error}"));
            }
        });
        if let Err(error) = spawned {
            shared.refusals.tell(format_args!("a connection from {address} was refused: {error}"));
        }
    }
}

/// Keeps a connection to a peer.
fn dial(shared: &Arc<Shared>, node: NodeName) {
    let mut pause = PAUSES.0;
    let mut reported = String::new();
    loop {
        match connect(shared, node).and_then(|secured| Ok(pass_on(shared, secured, None)?)) {
            Ok(()) => {
                reported.clear();
                pause = PAUSES.0;
            }
            Err(error) => {
                // An administrator needs each reason once, not with each attempt.
                let error = error.to_string();
                if reported != error {
                    let why = error.clone();
                    // Without a receiver the process ends.
                    let _ = shared.events.send(Event::Unreached { node, why });
                    tell(format_args!("no connection to {node}: {error}; it is tried again"));
                    reported = error;
                }
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}

fn connect(shared: &Shared, node: NodeName) -> Result<Secured, HandshakeError> {
    let peer = shared.config.peers.get(&node).ok_or(HandshakeError::Unknown)?;
    let address = peer.address.as_deref().ok_or(HandshakeError::Unknown)?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(stream) => return secure::open(stream, &shared.config, node),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// Exchanges greetings, then passes on messages until the connection ends. An error is one of the greetings, or of this side.
fn pass_on(shared: &Arc<Shared>, secured: Secured, stranger: Option<Stranger<IpAddr>>) -> io::Result<()> {
    let Secured { node, mut reader, mut writer } = secured;
    let mut key = [0; 16];
    // getrandom returns all bytes of requests as short as this.
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let own_key = u128::from_le_bytes(key);
    // While it rests, the peer learns of none, so that neither side uses it.
    let rests = shared.rests.left(node, Instant::now()).is_some();
    let address = shared.ucx_address.clone().filter(|_| !rests);
    let ucx = address.map(|address| UcxPeer { address, key: own_key });
    let offers_ucx = ucx.is_some();
    let require_encryption = shared.config.peers.get(&node).is_some_and(|peer| peer.require_encryption);
    let greeting = postcard::to_allocvec(&Greeting { ucx, require_encryption }).map_err(io::Error::other)?;
    writer.send(&greeting)?;
    let greeting = reader.receive()?;
    let greeting: Greeting = postcard::from_bytes(&greeting).map_err(io::Error::other)?;
    if greeting.ucx.as_ref().is_some_and(|ucx| ucx.address.len() > MAX_UCX_ADDRESS) {
        return Err(io::Error::other("its address for UCX is too long"));
    }
    reader.settle()?;
    drop(stranger);
    let (sender, to_send) = mpsc::channel::<(Packet, Unsent)>();
    let stream = reader.stream()?;
    let ended = reader.stream()?;
    spawn("link-writer", move || {
        // Ends when the other thread has dropped the sender, or the connection has ended.
        while let Ok((packet, _unsent)) = to_send.recv() {
            if writer.send(packet.message()).is_err() {
                break;
            }
        }
        let _ = ended.shutdown(Shutdown::Both);
    })?;
    let connection = shared.next.fetch_add(1, Ordering::Relaxed);
    let teller = shared.channels.connect(connection, node, (sender.clone(), stream.try_clone()?));
    let up = Up { connection, node, greeting, offers_ucx, own_key, uses: teller.uses(), sender, stream };
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    shared.events.send(Event::Up(Box::new(up))).map_err(gone)?;
    let why = receive_all(shared, connection, &mut reader, &teller);
    drop(teller);
    shared.events.send(Event::Down { connection, why }).map_err(gone)
}

/// Why a connection has ended, and what to do.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the other link closed the connection: it ended, was started again, or lost this one; they connect again by \
             themselves, and memferry-link status on the other node says what it saw"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// Passes on messages until the connection ends. Returns why it does.
fn receive_all(shared: &Shared, connection: u64, reader: &mut secure::Reader, teller: &Teller) -> String {
    let mut reported = Instant::now();
    loop {
        let bytes = match reader.receive() {
            Ok(bytes) => bytes,
            Err(error) => return reason(&error),
        };
        let to_node = if Message::is_of_channel(&bytes) {
            match Message::decode(&bytes) {
                Ok((Message::Channel { number, of_receiver: is_ours, step }, bytes)) => {
                    if !teller.tell(number, is_ours, step, bytes) {
                        return "it broke the protocol: it says more about channels than their credit allows"
                            .to_owned();
                    }
                }
                Ok(_) => {}
                Err(bad) => return format!("it broke the protocol: {bad}"),
            }
            // Other messages may wait behind those of channels. The peer lives.
            if reported.elapsed() < shared.config.timeout / 10 {
                continue;
            }
            reported = Instant::now();
            Message::Ping.encode(0)
        } else {
            bytes
        };
        if shared.events.send(Event::Bytes { connection, bytes: to_node }).is_err() {
            return "the link ends".to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_of_the_connection_is_told_in_words() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(other);
        let error = io::Read::read_exact(&mut &one, &mut [0; 2]).unwrap_err();
        assert!(reason(&error).starts_with("the other link closed the connection"), "{error}");
        let other = io::Error::new(io::ErrorKind::InvalidData, "an empty record");
        assert_eq!(reason(&other), "an empty record");
    }

    #[test]
    fn strangers_of_one_address_leave_room_for_others() {
        let strangers = Strangers::new(MAX_HANDSHAKES);
        let admit = |address: &str| strangers.admit(place_of(address.parse().unwrap()));
        let mut one: Vec<_> = (0..20).filter_map(|_| admit("192.0.2.1")).collect();
        assert_eq!(one.len(), MAX_HANDSHAKES.1);
        // All addresses of a network are one, and so are both ways to write one.
        assert!(admit("::ffff:192.0.2.1").is_none());
        let network: Vec<_> = (1..20).filter_map(|host| admit(&format!("2001:db8::{host}"))).collect();
        assert_eq!(network.len(), MAX_HANDSHAKES.1);
        let others: Vec<_> = (2..40).filter_map(|host| admit(&format!("192.0.2.{host}"))).collect();
        assert_eq!(others.len(), MAX_HANDSHAKES.0 - 2 * MAX_HANDSHAKES.1);
        one.pop();
        assert!(admit("192.0.2.1").is_some());
        drop((one, network, others));
        assert!(strangers.is_empty());
    }
}
