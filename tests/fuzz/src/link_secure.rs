//! A stranger on the network, against the handshake and the encrypted connection of two links.
//!
//! ```text
//! bytes ─────────────────► accept                        never a peer, whatever a stranger without keys says
//! bytes ─────────────────► open                          never a peer
//! open ─► changed ─► accept ─► writer ─► changed ─► reader    a peer if nothing was changed; then the messages as they were sent,
//!                                                              in order, and nothing else
//! ```

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memferry_link::message::MAX_MESSAGE;
use memferry_link::{Config, HandshakeError, KeyPair, PROTOCOL, Peer, Secured, accept, open};

use crate::input::Input;

/// Bytes of a greeting before the handshake.
const PREAMBLE: usize = 42;

/// Of the greeting, the verdict and two records.
const LAST_PIECE: usize = 3;

/// Longer than a handshake takes: the machine stood still, and the links' time is over.
const STALLED: Duration = Duration::from_secs(2);

/// Input: a byte for the part, then bytes of a stranger, or changes of what two links say.
pub fn link_secure(data: &[u8]) {
    let [part, rest @ ..] = data else { return };
    match part % 4 {
        0 => strange_opener(rest),
        1 => strange_taker(rest),
        2 => changed_handshake(rest),
        _ => changed_messages(rest),
    }
}

/// The configurations of two nodes that know each other.
fn nodes() -> &'static [Config; 2] {
    static NODES: OnceLock<[Config; 2]> = OnceLock::new();
    NODES.get_or_init(|| {
        let keys = [(); 2].map(|()| KeyPair::generate().expect("random bytes"));
        let node = |name: &str, own: usize, peer: &str| Config {
            name: name.parse().expect("a name"),
            keys: keys[own].clone(),
            listen: None,
            peers: BTreeMap::from([(
                peer.parse().expect("a name"),
                Peer { key: keys[1 - own].public, address: None, require_encryption: true, direct: false },
            )]),
            timeout: Duration::from_secs(1),
        };
        [node("alpha", 0, "beta"), node("beta", 1, "alpha")]
    })
}

/// A connection over the loopback device: ours, and the link's.
fn connection() -> (TcpStream, TcpStream) {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (theirs, _) = listener.accept().expect("a connection");
    ours.set_nodelay(true).expect("an option of TCP");
    // Closing it sends a reset, so that no port stays in use for a minute.
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::ZERO)).expect("an option of TCP");
    (ours, theirs)
}

/// Says all that there is, and no more.
fn say(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
}

/// A stranger opens the connection. The first byte says how much of a good greeting comes first.
fn strange_opener(bytes: &[u8]) {
    let [_, beta] = nodes();
    let (mut ours, theirs) = connection();
    let [start, bytes @ ..] = bytes else { return };
    let said = [&greeting()[..usize::from(*start).min(PREAMBLE)], bytes].concat();
    say(&mut ours, &said);
    let begun = Instant::now();
    let taken = accept(theirs, beta);
    if begun.elapsed() > STALLED {
        return assert!(taken.is_err(), "a stranger was taken for a peer");
    }
    let expected = verdict(&said);
    match &taken {
        Err(HandshakeError::NotLink) if said.len() >= PREAMBLE && expected.is_none() => {}
        Err(error) => assert!(said.len() < PREAMBLE || expected.is_some(), "{error}"),
        Ok(_) => panic!("a stranger was taken for a peer"),
    }
    let mut answer = Vec::new();
    let _ = ours.read_to_end(&mut answer);
    // A reset may take the answer away.
    assert!(answer.is_empty() || answer.first() == expected.as_ref(), "{answer:?}, expected {expected:?}");
    assert!(answer.len() <= 3, "something was said to a stranger");
}

fn greeting() -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    bytes[..8].copy_from_slice(b"MFLINK\r\n");
    bytes[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
    bytes[10..15].copy_from_slice(b"alpha");
    bytes[26..30].copy_from_slice(b"beta");
    bytes
}

/// What a link answers a greeting; nothing to what is none.
fn verdict(said: &[u8]) -> Option<u8> {
    let said = said.first_chunk::<PREAMBLE>()?;
    if &said[..8] != b"MFLINK\r\n" {
        None
    } else if said[8..10] != PROTOCOL.to_le_bytes() {
        Some(1)
    } else {
        Some(if *said == greeting()[..] { 0 } else { 2 })
    }
}

/// A stranger takes the connection.
fn strange_taker(bytes: &[u8]) {
    let [alpha, beta] = nodes();
    let (mut ours, theirs) = connection();
    say(&mut ours, bytes);
    let opened = open(theirs, alpha, beta.name);
    match (&opened, bytes) {
        (Ok(_), _) => panic!("a stranger was taken for a peer"),
        (Err(HandshakeError::Version { theirs }), [code, low, high, ..]) => {
            assert_eq!((*code, *theirs), (1, u16::from_le_bytes([*low, *high])));
        }
        (Err(HandshakeError::Unknown), [code, ..]) => assert_eq!(*code, 2),
        (Err(_), _) => {}
    }
    let mut said = Vec::new();
    let _ = ours.read_to_end(&mut said);
    // The greeting, and one record of the handshake if the verdict was to go on.
    assert!(said.len() <= PREAMBLE + 2 + 48, "{} bytes were said to a stranger", said.len());
}

/// Changes to what goes by: at a place, a byte is changed, left out or repeated, or all ends.
struct Changes<'a>(Input<'a>);

impl Changes<'_> {
    /// The bytes with a change, if there is one more.
    fn of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        let what = self.0.u8() % 6;
        let at = self.0.u32() as usize;
        let by = self.0.u8();
        let Some(at) = at.checked_rem(bytes.len()) else { return changed };
        match what {
            1 => changed[at] ^= by,
            2 => drop(changed.remove(at)),
            3 => changed.insert(at, by),
            4 => changed.truncate(at),
            5 => changed.extend_from_slice(&bytes[at..]),
            _ => {}
        }
        changed
    }
}

/// Two links that have shaken hands, with somebody between them.
struct Met {
    opened: Result<Secured, HandshakeError>,
    taken: Result<Secured, HandshakeError>,
    /// The sockets of the stranger between them: to the opener, and to the taker.
    left: TcpStream,
    right: TcpStream,
    /// Something else was passed on than what was said.
    is_touched: bool,
    /// The first piece of which something else was passed on than what was said, or that and more.
    harmed: Option<usize>,
}

fn handshake(changes: &mut Changes<'_>) -> Met {
    let [alpha, beta] = nodes();
    let (mut left, opener) = connection();
    let (mut right, taker) = connection();
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| open(opener, alpha, beta.name));
        let taken = scope.spawn(|| accept(taker, beta));
        let mut is_touched = false;
        let mut harmed = None;
        let mut passed = 0;
        // The greeting, the verdict, and a record of each side: its length and its bytes.
        let pieces = [(true, Some(PREAMBLE)), (false, Some(3)), (true, None), (false, None)];
        for (piece, (from_left, length)) in pieces.into_iter().enumerate() {
            let (from, to) = if from_left { (&mut left, &mut right) } else { (&mut right, &mut left) };
            let Some(bytes) = said_by(from, length) else { break };
            let changed = changes.of(&bytes);
            is_touched |= changed != bytes;
            if harmed.is_none() && !changed.starts_with(&bytes) {
                harmed = Some(piece);
            }
            let _ = to.write_all(&changed);
            // A greeting and a verdict of the right length are answered: the records after them show whether the change is noticed.
            let is_answered = length.is_some() && changed.len() == bytes.len();
            if changed != bytes && !is_answered {
                break;
            }
            passed += 1;
        }
        if passed < 4 {
            for stream in [&left, &right] {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        let opened = opened.join().expect("no panic");
        let taken = taken.join().expect("no panic");
        Met { opened, taken, left, right, is_touched, harmed }
    })
}

/// So many bytes, or a record with its length.
fn said_by(from: &mut TcpStream, length: Option<usize>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length.unwrap_or(2)];
    from.read_exact(&mut bytes).ok()?;
    if length.is_none() {
        let length = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        bytes.resize(2 + length, 0);
        from.read_exact(&mut bytes[2..]).ok()?;
    }
    Some(bytes)
}

fn changed_handshake(bytes: &[u8]) {
    let begun = Instant::now();
    let Met { opened, taken, is_touched, harmed, .. } = handshake(&mut Changes(Input::new(bytes)));
    if begun.elapsed() > STALLED {
        return;
    }
    assert!(is_touched || opened.is_ok() && taken.is_ok(), "{:?} {:?}", opened.err(), taken.err());
    assert!(harmed.is_none() || opened.is_err(), "the opener believes a changed handshake");
    // The last piece is the taker's record: it cannot learn of a change to that.
    let is_noticed = harmed.is_none_or(|piece| piece == LAST_PIECE || taken.is_err());
    assert!(is_noticed, "the taker believes a changed handshake");
}

fn changed_messages(bytes: &[u8]) {
    let begun = Instant::now();
    let mut input = Input::new(bytes);
    let count = 1 + input.u8() % 3;
    let messages: Vec<Vec<u8>> = (0..count)
        .map(|number| vec![number; usize::from(input.u8()) << (input.u8() % 10)])
        .map(|message| message[..message.len().min(MAX_MESSAGE)].to_vec())
        .collect();
    let Met { opened, taken, mut left, mut right, .. } = handshake(&mut Changes(Input::new(&[])));
    let (Ok(mut opened), Ok(mut taken)) = (opened, taken) else {
        return assert!(begun.elapsed() > STALLED, "two links that know each other do not meet");
    };
    let said = std::thread::scope(|scope| {
        let said = scope.spawn(|| {
            let mut said = Vec::new();
            let _ = left.read_to_end(&mut said);
            said
        });
        messages.iter().for_each(|message| opened.writer.send(message).expect("somebody reads"));
        drop(opened);
        said.join().expect("no panic")
    });
    let mut changes = Changes(input);
    let mut changed = said.clone();
    for _ in 0..1 + changes.0.u8() % 3 {
        changed = changes.of(&changed);
    }
    taken.reader.settle().expect("options of TCP");
    let received = std::thread::scope(|scope| {
        let saying = scope.spawn(|| say(&mut right, &changed));
        let mut received = Vec::new();
        while let Ok(message) = taken.reader.receive() {
            received.push(message);
        }
        // What is left of a connection that is of no use is not read.
        let _ = taken.reader.stream().map(|stream| stream.shutdown(Shutdown::Both));
        // Joined until the thread itself has ended: the scope would only wait for its function, and the fuzzer take the rest for a leak.
        saying.join().expect("no panic");
        received
    });
    assert!(messages.starts_with(&received), "a message was received that was not sent so");
    assert!(changed != said || received.len() == messages.len(), "{} of {}", received.len(), messages.len());
}
