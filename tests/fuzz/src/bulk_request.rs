//! Requests of clients to the link of their node: bytes and descriptors that are anything.
//!
//! ```text
//! bytes, descriptor ──► Guest::receive ──► a wish, or an error    as a second reading of the bytes says
//!                          └─► refuse or join ──► the client's answer
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use memferry::{Client, Identity, NodeName, SessionId};
use memferry_bulk::relay::{Guest, Wish, is_name};
use memferry_bulk::{LinkRefusal, RemoteUser};
use memferry_shm::{conduit, frame};
use rustix::fs::MemfdFlags;

use crate::bulk_slot::{HELLO_BYTES, Hostile, LeavesNoThread, MEMORY_BYTES, clients, send_request};
use crate::input::Input;

/// Bytes of a request before its users.
const HEAD_BYTES: usize = HELLO_BYTES + 40;
const USER_BYTES: usize = 20;

/// Input: a byte for the form, one for the descriptor, then the request, of which a good greeting may be made.
pub fn bulk_request(data: &[u8]) {
    static CLIENTS: OnceLock<Mutex<(Client, Client, Identity)>> = OnceLock::new();
    let clients =
        CLIENTS.get_or_init(|| Mutex::new(clients())).lock().unwrap_or_else(PoisonError::into_inner);
    let _threads = LeavesNoThread::new();
    let (link, other, identity) = &*clients;
    let mut input = Input::new(data);
    let form = input.u8();
    let gift = input.u8();
    let rest = data.get(2..).unwrap_or_default();
    let request = match form % 3 {
        0 => rest.to_vec(),
        1 => [&Hostile::greeting(identity, other.session(), 9)[..], rest].concat(),
        _ => written(identity, other.session(), rest),
    };
    // No packet of the kernel's is longer.
    let request = &request[..request.len().min(conduit::MAXIMUM_BYTES + 1)];
    let descriptors = gifts(gift);
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let expected = read(request).filter(|(greeting, _)| {
        // The session of a client of this service has to be one of this process.
        let is_there = || link.identify(SessionId(greeting.session)).is_ok();
        let is_there = greeting.service != identity.service.0 || is_there();
        gift % 8 < 4 && is_there
    });
    let (ours, guest) = send_request(link, |ours| {
        conduit::send(ours.as_fd(), request, &borrowed, false).expect("room for a packet");
    });
    match (guest, expected) {
        (Ok(guest), Some((greeting, wish))) => {
            assert_eq!((guest.wish(), guest.longest()), (&wish, greeting.longest));
            assert!(!guest.is_gone());
            let welcome = conduit::receive(ours.as_fd(), false).expect("the link says welcome first");
            assert_eq!(welcome.bytes, b"MFERLNK1");
            answer(guest, ours, form);
        }
        (Err(_), None) => {}
        (Ok(guest), None) => panic!("a wrong request was taken: {:?}", guest.wish()),
        (Err(error), Some(_)) => panic!("a good request was refused: {error}"),
    }
}

/// What the client gets of a guest that is refused, or joined.
fn answer(guest: Guest, client: OwnedFd, form: u8) {
    if form & 64 == 0 {
        let why = [LinkRefusal::UnknownNode, LinkRefusal::TooMany, LinkRefusal::Busy][usize::from(form % 3)];
        guest.refuse(why);
        let answer = conduit::receive(client.as_fd(), false).expect("a refusal");
        assert_eq!(answer.bytes.len(), 4);
        return assert!(answer.descriptors.is_empty());
    }
    let node: NodeName = "beta".parse().expect("a name");
    let user = RemoteUser { node, user: u32::from(form) };
    let relay = guest.join(user, 1 << 40).expect("a client that waits");
    let answer = conduit::receive(client.as_fd(), false).expect("an answer");
    assert_eq!((answer.bytes.len(), answer.descriptors.len()), (HELLO_BYTES + USER_BYTES, 1));
    assert_eq!(answer.bytes[HELLO_BYTES..][..16], node.to_bytes());
    assert_eq!(answer.bytes[HELLO_BYTES + 16..], user.user.to_le_bytes());
    assert!(!relay.is_lost());
}

/// Descriptors with a request: the first four forms are one good memory.
fn gifts(which: u8) -> Vec<OwnedFd> {
    let good = || frame::allocate_sealed(MEMORY_BYTES, false).map(|(memory, _)| memory).ok();
    let empty = |bytes: u64| {
        let memory =
            rustix::fs::memfd_create("request", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).ok()?;
        rustix::fs::ftruncate(&memory, bytes).ok()?;
        Some(memory)
    };
    match which % 8 {
        0..=3 => good().into_iter().collect(),
        4 => Vec::new(),
        5 => empty(u64::from(which) << 12).into_iter().collect(),
        6 => rustix::pipe::pipe().map(|(read, _)| read).into_iter().collect(),
        _ => [good(), good()].into_iter().flatten().collect(),
    }
}

/// A greeting, as a second reading has it.
struct Greeting {
    service: u128,
    session: u64,
    longest: u64,
}

fn read(bytes: &[u8]) -> Option<(Greeting, Wish)> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    if bytes.len() < HEAD_BYTES || bytes.len() > conduit::MAXIMUM_BYTES || &bytes[..8] != b"MFERBLK3" {
        return None;
    }
    if word(48)? != MEMORY_BYTES {
        return None;
    }
    let service = u128::from(word(16)?) | u128::from(word(24)?) << 64;
    let greeting = Greeting { service, session: word(32)?, longest: word(40)? };
    let name = std::str::from_utf8(&bytes[HELLO_BYTES + 8..HEAD_BYTES]).ok()?.trim_end_matches('\0');
    if !is_name(name) {
        return None;
    }
    let users = bytes[HEAD_BYTES..].chunks(USER_BYTES).map(|user| {
        let node = NodeName::from_bytes(*user.first_chunk()?);
        let number = u32::from_le_bytes(user.get(16..)?.try_into().ok()?);
        node.is_valid().then_some(RemoteUser { node, user: number })
    });
    let users: Vec<RemoteUser> = users.collect::<Option<_>>()?;
    if half(HELLO_BYTES + 4)? as usize != users.len() || users.len() > 64 {
        return None;
    }
    let name = name.to_owned();
    match (half(HELLO_BYTES)?, &users[..]) {
        (1, _) => Some((greeting, Wish::Listen { name, from: users })),
        (2, [to]) => Some((greeting, Wish::Connect { name, to: *to })),
        _ => None,
    }
}

/// A request that is mostly right: purpose, name and users by the input.
fn written(identity: &Identity, session: SessionId, rest: &[u8]) -> Vec<u8> {
    let mut input = Input::new(rest);
    let [purpose, length, count, node] = std::array::from_fn(|_| input.u8());
    let mut bytes = Hostile::greeting(identity, session, input.u64());
    bytes.extend((u32::from(purpose) % 4).to_le_bytes());
    bytes.extend(u32::from(count % 66).to_le_bytes());
    let mut name: Vec<u8> = (0..length % 34).map(|_| b'-' + input.u8() % 80).collect();
    name.resize(32, 0);
    bytes.extend(name);
    for user in 0..count % 66 {
        let mut name = [0; 16];
        name[..4].copy_from_slice(b"node");
        name[4] = if node < 200 { b'a' + user % 26 } else { user };
        bytes.extend(name);
        bytes.extend(input.u32().to_le_bytes());
    }
    bytes
}
