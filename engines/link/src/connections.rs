//! Threads that connect to peers, take their connections, and pass on what they send.
//!
//! ```text
//! listener ─► thread: handshake ─┐
//! dialer of a peer ─► handshake ─┴─► Event::Up ─► Event::Bytes ... ─► Event::Down ─► the dialer tries again
//!                                                 writer thread ◄─ Sender
//! ```

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::time::Duration;

use memferry::NodeName;
use serde::{Deserialize, Serialize};

use crate::backlog::Unsent;
use crate::config::{Config, connects};
use crate::report::tell;
use crate::secure::{self, HandshakeError, Secured};

/// Handshakes of strangers at a time.
const MAX_HANDSHAKES: usize = 16;
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Pauses between attempts to connect: doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
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
    /// Goes before each message: it was told to the peer of this connection only.
    pub key: u128,
}

/// What became of a connection.
pub(crate) enum Event {
    Up(Box<Up>),
    Bytes { connection: u64, bytes: Vec<u8> },
    Down { connection: u64, why: String },
}

/// A connection whose peer is proved, and how to reach it.
pub(crate) struct Up {
    pub(crate) connection: u64,
    pub(crate) node: NodeName,
    pub(crate) greeting: Greeting,
    /// The key that the peer puts before its messages over UCX.
    pub(crate) own_key: u128,
    pub(crate) sender: Sender<(Vec<u8>, Unsent)>,
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
    handshakes: AtomicUsize,
}

/// Starts the threads. `ucx_address` is where UCX reaches this process.
pub(crate) fn start(config: &Config, ucx_address: Option<Vec<u8>>) -> io::Result<mpsc::Receiver<Event>> {
    let (events, received) = mpsc::sync_channel(WAITING_MESSAGES);
    let shared = Shared {
        config: config.clone(),
        ucx_address,
        events,
        next: AtomicU64::new(1),
        handshakes: AtomicUsize::new(0),
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
    Ok(received)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

fn listen(shared: &Arc<Shared>, listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // For want of descriptors, as a rule: a pause lets others end.
            std::thread::sleep(PAUSES.0);
            continue;
        };
        if shared.handshakes.fetch_add(1, Ordering::Relaxed) >= MAX_HANDSHAKES {
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let own = Arc::clone(shared);
        let spawned = spawn("link-peer", move || {
            let secured = secure::accept(stream, &own.config);
            own.handshakes.fetch_sub(1, Ordering::Relaxed);
            match secured {
                Ok(secured) => drop(follow(&own, secured)),
                Err(error) => tell(format_args!("a connection was refused: {error}")),
            }
        });
        if spawned.is_err() {
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Keeps a connection to a peer.
fn dial(shared: &Arc<Shared>, node: NodeName) {
    let mut pause = PAUSES.0;
    let mut told = String::new();
    loop {
        match connect(shared, node) {
            Ok(secured) => {
                told.clear();
                if follow(shared, secured).is_ok() {
                    pause = PAUSES.0;
                }
            }
            Err(error) => {
                // An administrator needs each reason once, not with each attempt.
                let error = error.to_string();
                if told != error {
                    tell(format_args!("no connection to {node}: {error}; it is tried again"));
                    told = error;
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

/// Exchanges greetings, then passes on messages until the connection ends.
fn follow(shared: &Arc<Shared>, secured: Secured) -> io::Result<()> {
    let Secured { node, mut reader, mut writer } = secured;
    let mut key = [0; 16];
    // getrandom returns all bytes of requests as short as this.
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let own_key = u128::from_le_bytes(key);
    let ucx = shared.ucx_address.clone().map(|address| UcxPeer { address, key: own_key });
    let require_encryption = shared.config.peers.get(&node).is_some_and(|peer| peer.require_encryption);
    let greeting = postcard::to_allocvec(&Greeting { ucx, require_encryption }).map_err(io::Error::other)?;
    writer.send(&greeting)?;
    let greeting = reader.receive()?;
    let greeting: Greeting = postcard::from_bytes(&greeting).map_err(io::Error::other)?;
    let (sender, to_send) = mpsc::channel::<(Vec<u8>, Unsent)>();
    let stream = reader.stream()?;
    let ended = reader.stream()?;
    spawn("link-writer", move || {
        // Ends when the other thread has dropped the sender, or the connection has ended.
        while let Ok((message, _unsent)) = to_send.recv() {
            if writer.send(&message).is_err() {
                break;
            }
        }
        let _ = ended.shutdown(Shutdown::Both);
    })?;
    let connection = shared.next.fetch_add(1, Ordering::Relaxed);
    let up = Up { connection, node, greeting, own_key, sender, stream };
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    shared.events.send(Event::Up(Box::new(up))).map_err(gone)?;
    let why = loop {
        match reader.receive() {
            Ok(bytes) => shared.events.send(Event::Bytes { connection, bytes }).map_err(gone)?,
            Err(error) => break error.to_string(),
        }
    };
    shared.events.send(Event::Down { connection, why }).map_err(gone)
}
