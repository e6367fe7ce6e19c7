//! The encrypted connection of two links: a handshake in which both prove their keys, then messages.
//!
//! ```text
//! opener  Preamble { magic, version, own name, peer's name } ─►
//!         ◄─ verdict { 0 go on, 1 other version, 2 unknown names; version }             in clear text, and bound to the handshake
//!         Noise KK: both know the other's key ─► ◄─
//!         messages ─► ◄─                      records of up to 65,535 bytes; a record says whether its message goes on
//! ```
//!
//! A replayed handshake gets as far as the first record, which fails, because both sides bring fresh keys; a replayed record fails, because
//! records are counted. So a peer is proved to the one that was connected to when its first message has come: until then all that it does has to
//! be done within one time limit, and it counts as a stranger.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry::NodeName;
use snow::{Builder, HandshakeState, StatelessTransportState};
use thiserror::Error;

use crate::config::{Config, PATTERN};
use crate::message::MAX_MESSAGE;

/// Version of the protocol between links.
pub const PROTOCOL: u16 = 1;

const MAGIC: [u8; 8] = *b"MFLINK\r\n";
const PREAMBLE_BYTES: usize = 8 + 2 + 2 * NodeName::BYTES;
/// Longest record with its tag.
const RECORD_BYTES: usize = 65_535;
const TAG_BYTES: usize = 16;
/// Bytes of a message in one record: a byte says whether it is the last one.
const PART_BYTES: usize = RECORD_BYTES - TAG_BYTES - 1;
/// How long a handshake may take, with the first message of each side.
const PATIENCE: Duration = Duration::from_secs(3);

const GO_ON: u8 = 0;
const OTHER_VERSION: u8 = 1;
const UNKNOWN: u8 = 2;

/// Why two links do not come together.
#[derive(Debug, Error)]
pub enum HandshakeError {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("the other side is no memferry link")]
    NotLink,
    #[error(
        "the other link speaks version {theirs} of the protocol, this one {PROTOCOL}; update the older one"
    )]
    Version { theirs: u16 },
    #[error(
        "a node that calls itself {from} asks for {to}; this is {own}, and {from} has to be one of its peers"
    )]
    Names { from: NodeName, to: NodeName, own: NodeName },
    #[error(
        "the other link does not know this node: name it below [peers] there, and check the address here"
    )]
    Unknown,
    #[error(
        "the keys do not match: each node has to know the key that `memferry-link keygen` printed on the other ({0})"
    )]
    Key(snow::Error),
    #[error(
        "the other link closed the connection: its process ended, it is busy with strangers, or the keys do not match (each node has to know the key that `memferry-link keygen` printed on the other)"
    )]
    Closed,
    #[error("node {0} connects by itself, or its configuration is wrong: its name comes first")]
    Direction(NodeName),
}

/// The two ends of a connection whose peer is proved when its first message has come.
pub struct Secured {
    pub node: NodeName,
    pub reader: Reader,
    pub writer: Writer,
}

/// A connection whose other side has so much time for all that it does.
struct Patient<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Patient<'_> {
    fn new(stream: &TcpStream) -> io::Result<Patient<'_>> {
        stream.set_nodelay(true)?;
        Ok(Patient { stream, until: Instant::now() + PATIENCE })
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn preamble(version: u16, from: NodeName, to: NodeName) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&version.to_le_bytes());
    bytes[10..26].copy_from_slice(&from.to_bytes());
    bytes[26..].copy_from_slice(&to.to_bytes());
    bytes
}

fn builder<'a>(
    config: &'a Config,
    peer: NodeName,
    prologue: &'a [u8],
) -> Result<Builder<'a>, HandshakeError> {
    let known = config.peers.get(&peer).ok_or(HandshakeError::Unknown)?;
    let parameters = PATTERN.parse().map_err(HandshakeError::Key)?;
    Builder::new(parameters)
        .local_private_key(&config.keys.private)
        .and_then(|builder| builder.remote_public_key(&known.key))
        .and_then(|builder| builder.prologue(prologue))
        .map_err(HandshakeError::Key)
}

/// Opens the connection to a peer.
///
/// # Errors
/// [`HandshakeError`].
pub fn open(connection: TcpStream, config: &Config, peer: NodeName) -> Result<Secured, HandshakeError> {
    let mut stream = Patient::new(&connection)?;
    let until = stream.until;
    let prologue = preamble(PROTOCOL, config.name, peer);
    stream.write_all(&prologue)?;
    let mut verdict = [0; 3];
    stream.read_exact(&mut verdict)?;
    let theirs = u16::from_le_bytes([verdict[1], verdict[2]]);
    match verdict[0] {
        GO_ON if theirs == PROTOCOL => {}
        OTHER_VERSION => return Err(HandshakeError::Version { theirs }),
        UNKNOWN => return Err(HandshakeError::Unknown),
        _ => return Err(HandshakeError::NotLink),
    }
    let mut state = builder(config, peer, &prologue)?.build_initiator().map_err(HandshakeError::Key)?;
    send_step(&mut stream, &mut state)?;
    receive_step(&mut stream, &mut state)?;
    finish(connection, state, peer, until)
}

/// Takes a connection that a peer has opened.
///
/// # Errors
/// [`HandshakeError`].
pub fn accept(connection: TcpStream, config: &Config) -> Result<Secured, HandshakeError> {
    let mut stream = Patient::new(&connection)?;
    let until = stream.until;
    let mut prologue = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut prologue)?;
    if prologue[..8] != MAGIC {
        return Err(HandshakeError::NotLink);
    }
    let theirs = u16::from_le_bytes([prologue[8], prologue[9]]);
    let name = |at: usize| {
        let mut bytes = [0; NodeName::BYTES];
        bytes.copy_from_slice(&prologue[at..at + NodeName::BYTES]);
        NodeName::from_bytes(bytes)
    };
    let from = name(10);
    let to = name(26);
    let verdict = |code: u8| [code, PROTOCOL.to_le_bytes()[0], PROTOCOL.to_le_bytes()[1]];
    if theirs != PROTOCOL {
        stream.write_all(&verdict(OTHER_VERSION))?;
        return Err(HandshakeError::Version { theirs });
    }
    if to != config.name || !config.peers.contains_key(&from) {
        stream.write_all(&verdict(UNKNOWN))?;
        return Err(HandshakeError::Names { from, to, own: config.name });
    }
    if crate::config::connects(config.name, from) {
        stream.write_all(&verdict(UNKNOWN))?;
        return Err(HandshakeError::Direction(from));
    }
    stream.write_all(&verdict(GO_ON))?;
    let mut state = builder(config, from, &prologue)?.build_responder().map_err(HandshakeError::Key)?;
    receive_step(&mut stream, &mut state)?;
    send_step(&mut stream, &mut state)?;
    finish(connection, state, from, until)
}

fn send_step(stream: &mut Patient<'_>, state: &mut HandshakeState) -> Result<(), HandshakeError> {
    let mut record = [0; 256];
    let length = state.write_message(&[], &mut record).map_err(HandshakeError::Key)?;
    stream.write_all(&(length as u16).to_le_bytes())?;
    stream.write_all(&record[..length])?;
    Ok(())
}

fn receive_step(stream: &mut Patient<'_>, state: &mut HandshakeState) -> Result<(), HandshakeError> {
    let mut length = [0; 2];
    // A peer to which this side's key is wrong closes the connection here.
    stream.read_exact(&mut length).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => HandshakeError::Closed,
        _ => HandshakeError::System(error),
    })?;
    let mut record = [0; 256];
    let length = usize::from(u16::from_le_bytes(length));
    let record = record.get_mut(..length).ok_or(HandshakeError::NotLink)?;
    stream.read_exact(record)?;
    let mut nothing = [0; 256];
    state.read_message(record, &mut nothing).map(drop).map_err(HandshakeError::Key)
}

fn finish(
    stream: TcpStream,
    state: HandshakeState,
    node: NodeName,
    until: Instant,
) -> Result<Secured, HandshakeError> {
    let state = Arc::new(state.into_stateless_transport_mode().map_err(HandshakeError::Key)?);
    let writer = Writer { stream: stream.try_clone()?, state: Arc::clone(&state), count: 0 };
    let reader = Reader { stream, state, count: 0, record: vec![0; RECORD_BYTES], until: Some(until) };
    Ok(Secured { node, reader, writer })
}

/// Encrypts and sends messages.
pub struct Writer {
    stream: TcpStream,
    state: Arc<StatelessTransportState>,
    count: u64,
}

impl Writer {
    /// Sends a message.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut record = vec![0; 2 + RECORD_BYTES];
        let mut part = Vec::with_capacity(1 + PART_BYTES);
        let mut left = message;
        loop {
            let (bytes, rest) = left.split_at(left.len().min(PART_BYTES));
            part.clear();
            part.push(u8::from(rest.is_empty()));
            part.extend_from_slice(bytes);
            let written = self.state.write_message(self.count, &part, &mut record[2..]);
            let written = written.map_err(io::Error::other)?;
            self.count += 1;
            record[..2].copy_from_slice(&(written as u16).to_le_bytes());
            self.stream.write_all(&record[..2 + written])?;
            left = rest;
            if left.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Receives and decrypts messages.
pub struct Reader {
    stream: TcpStream,
    state: Arc<StatelessTransportState>,
    count: u64,
    record: Vec<u8>,
    /// Until the first message has come: when it has to be there.
    until: Option<Instant>,
}

impl Reader {
    /// The peer is proved by a message that came. From here on a thread that reads or writes waits as long as it takes: another one notices a
    /// silent peer.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn settle(&mut self) -> io::Result<()> {
        self.until = None;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)
    }

    fn fill(stream: &mut TcpStream, until: Option<Instant>, bytes: &mut [u8]) -> io::Result<()> {
        match until {
            Some(until) => Patient { stream, until }.read_exact(bytes),
            None => stream.read_exact(bytes),
        }
    }

    /// The connection, to end it from another thread.
    ///
    /// # Errors
    /// Those of `dup`.
    pub fn stream(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// The next message.
    ///
    /// # Errors
    /// Those of the connection, and records that the peer did not send, or that are too long. The connection is of no use then.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut message = Vec::new();
        let mut part = vec![0; RECORD_BYTES];
        let malformed = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
        loop {
            let mut length = [0; 2];
            Self::fill(&mut self.stream, self.until, &mut length)?;
            let record = &mut self.record[..usize::from(u16::from_le_bytes(length))];
            Self::fill(&mut self.stream, self.until, record)?;
            let read = self.state.read_message(self.count, record, &mut part);
            let read = read.map_err(|_| malformed("a record that the peer did not send, or not now"))?;
            self.count += 1;
            let (is_last, bytes) = part[..read].split_first().ok_or(malformed("an empty record"))?;
            if message.len() + bytes.len() > MAX_MESSAGE {
                return Err(malformed("a message that is too long"));
            }
            message.extend_from_slice(bytes);
            if *is_last == 1 {
                return Ok(message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::TcpListener;

    use super::*;
    use crate::config::{KeyPair, Peer};

    fn config(name: &str, keys: &KeyPair, peer: &str, key: [u8; 32]) -> Config {
        let peer = peer.parse().unwrap();
        let entry = Peer { key, address: None, require_encryption: false, direct: false };
        let peers = BTreeMap::from([(peer, entry)]);
        Config { name: name.parse().unwrap(), keys: keys.clone(), listen: None, peers, timeout: PATIENCE }
    }

    type Outcome = Result<Secured, HandshakeError>;

    /// What both sides of a handshake say.
    fn connect(opener: &Config, to: &str, taker: &Config) -> (Outcome, Outcome) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| accept(listener.accept().unwrap().0, taker));
            let opened = open(TcpStream::connect(address).unwrap(), opener, to.parse().unwrap());
            (opened, taken.join().unwrap())
        })
    }

    #[test]
    fn two_links_prove_their_keys_and_exchange_messages() {
        let keys = [KeyPair::generate().unwrap(), KeyPair::generate().unwrap()];
        let alpha = config("alpha", &keys[0], "beta", keys[1].public);
        let beta = config("beta", &keys[1], "alpha", keys[0].public);
        let (opened, taken) = connect(&alpha, "beta", &beta);
        let mut one = opened.unwrap();
        let mut other = taken.unwrap();
        assert_eq!((one.node, other.node), ("beta".parse().unwrap(), "alpha".parse().unwrap()));
        let lengths = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, MAX_MESSAGE];
        std::thread::scope(|scope| {
            scope.spawn(|| lengths.iter().for_each(|length| one.writer.send(&vec![7; *length]).unwrap()));
            for length in lengths {
                assert_eq!(other.reader.receive().unwrap(), vec![7; length]);
            }
        });
        // A record that was sent before, one that was changed, and one that is too long.
        one.writer.count = 0;
        one.writer.send(b"replayed").unwrap();
        assert!(other.reader.receive().is_err());
        let (opened, taken) = connect(&alpha, "beta", &beta);
        let mut one = opened.unwrap();
        let mut other = taken.unwrap();
        one.writer.stream.write_all(&[20, 0]).unwrap();
        one.writer.stream.write_all(&[9; 20]).unwrap();
        assert!(other.reader.receive().is_err());
        let (opened, taken) = connect(&alpha, "beta", &beta);
        let mut one = opened.unwrap();
        let mut other = taken.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = one.writer.send(&vec![7; MAX_MESSAGE + 1]);
            });
            assert!(other.reader.receive().is_err());
        });
    }

    #[test]
    fn strangers_are_refused_with_a_reason() {
        let keys = [KeyPair::generate().unwrap(), KeyPair::generate().unwrap()];
        let wrong = KeyPair::generate().unwrap();
        let alpha = config("alpha", &keys[0], "beta", keys[1].public);
        let beta = config("beta", &keys[1], "alpha", keys[0].public);
        let text = |outcome: &Outcome| outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        // Another key than the peer's, on either side.
        for (one, other) in [
            (&config("alpha", &wrong, "beta", keys[1].public), &beta),
            (&alpha, &config("beta", &wrong, "alpha", keys[0].public)),
        ] {
            let (opened, taken) = connect(one, "beta", other);
            assert!(text(&opened).contains("keys do not match"), "{}", text(&opened));
            assert!(text(&taken).contains("keys do not match"), "{}", text(&taken));
        }
        // Another name, on either side.
        let (opened, taken) = connect(&config("delta", &keys[0], "beta", keys[1].public), "beta", &beta);
        assert!(text(&opened).contains("does not know this node"), "{}", text(&opened));
        assert!(text(&taken).contains("calls itself delta"), "{}", text(&taken));
        let gamma = config("gamma", &keys[1], "alpha", keys[0].public);
        let (opened, _) = connect(&alpha, "beta", &gamma);
        assert!(text(&opened).contains("does not know this node"), "{}", text(&opened));
        // The wrong one connects.
        let (_, taken) = connect(&beta, "alpha", &alpha);
        assert!(text(&taken).contains("its name comes first"), "{}", text(&taken));
    }

    #[test]
    fn a_replayed_handshake_proves_nothing_and_a_slow_one_ends() {
        let keys = [KeyPair::generate().unwrap(), KeyPair::generate().unwrap()];
        let alpha = config("alpha", &keys[0], "beta", keys[1].public);
        let beta = config("beta", &keys[1], "alpha", keys[0].public);
        let prologue = preamble(PROTOCOL, alpha.name, beta.name);
        let mut state = builder(&alpha, beta.name, &prologue).unwrap().build_initiator().unwrap();
        let mut record = [0; 256];
        let length = state.write_message(&[], &mut record).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let [early, late] = [listener.local_addr().unwrap(); 2].map(|address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&prologue).unwrap();
            stream.write_all(&(length as u16).to_le_bytes()).unwrap();
            stream.write_all(&record[..length]).unwrap();
            stream
        });
        // What was heard before, and then nothing, or a record in parts that come for ever.
        let mut taken = [0; 2].map(|_| accept(listener.accept().unwrap().0, &beta).unwrap());
        std::thread::scope(|scope| {
            let dripping = scope.spawn(move || {
                let mut late = late;
                late.write_all(&60_000_u16.to_le_bytes()).unwrap();
                while late.write_all(&[0]).is_ok() {
                    std::thread::sleep(PATIENCE / 20);
                }
            });
            for one in taken.iter_mut().rev() {
                let ended = one.reader.receive().err().map(|error| error.kind());
                let is_late = matches!(ended, Some(io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
                assert!(is_late, "{ended:?}");
            }
            drop(taken);
            dripping.join().unwrap();
        });
        drop(early);
    }

    #[test]
    fn other_versions_and_other_protocols_are_told_apart() {
        let keys = KeyPair::generate().unwrap();
        let beta = config("beta", &keys, "alpha", keys.public);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let newer = preamble(PROTOCOL + 1, "alpha".parse().unwrap(), beta.name);
        for (sent, verdict, said) in [
            (&newer[..], Some(OTHER_VERSION), "speaks version 2"),
            (&[b'G'; PREAMBLE_BYTES][..], None, "no memferry link"),
        ] {
            let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            stream.write_all(sent).unwrap();
            let refused = accept(listener.accept().unwrap().0, &beta).err().unwrap().to_string();
            assert!(refused.contains(said), "{refused}");
            let mut answer = [0; 3];
            let answered = stream.read_exact(&mut answer).is_ok();
            assert_eq!(answered.then_some(answer[0]), verdict);
        }
    }
}
