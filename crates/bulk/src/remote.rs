//! Connects a process to one of another node: the links of both nodes stand between them.
//!
//! ```text
//! RemoteListener::accept ─┐ request: name, users, greeting, memory                 ┌─ request: node, user, name, greeting, memory
//!                         ├──────────────────► link ◄─ encrypted ─► link ◄─────────┤
//! connect_remote ─────────┘ ◄─ answer: who is at the other end, greeting, memory ──┘
//! ```
//!
//! To each process its own link is the other end of an ordinary connection, of which it carries the slots. The kernel tells the link
//! the user of a process; the links tell each other. Frames are lent by grants to the user of the other node; nothing is mapped there.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry::{Client, NodeName};
use memferry_shm::conduit;

use crate::closing::close_elsewhere;
use crate::connection::{
    HELLO_BYTES, Hello, Options, Own, Room, after, connected, failed, poll_until, readable, receive_packet,
    theirs,
};
use crate::error::{ConnectError, LinkRefusal};
use crate::peer::{Reach, RemoteUser};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::socket::Socket;

/// Where the link of a node takes channels, unless its administrator chose another place.
pub const CHANNELS: &str = "/run/memferry-link/channels.sock";

/// What a link says to a client whose request it takes: before, Linux refuses the memory that comes with it.
pub(crate) const WELCOME: [u8; 8] = *b"MFERLNK1";

/// Bytes of a channel's name at most.
const NAME_BYTES: usize = 32;
/// Users that a listener can let in.
const MOST_USERS: usize = 64;
const USER_BYTES: usize = NodeName::BYTES + 4;
/// Bytes of a request before its users.
const HEAD_BYTES: usize = HELLO_BYTES + 8 + NAME_BYTES;
const ANSWER_BYTES: usize = HELLO_BYTES + USER_BYTES;
const LISTEN: u32 = 1;
const CONNECT: u32 = 2;

/// Whether a channel can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// What a process asks the link of its node for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// One of these users may connect under the name.
    Listen { name: String, from: Vec<RemoteUser> },
    /// A process of this user that listens under the name.
    Connect { name: String, to: RemoteUser },
}

impl Wish {
    pub(crate) fn encode(&self, hello: &Hello) -> Vec<u8> {
        let (purpose, name, users) = match self {
            Self::Listen { name, from } => (LISTEN, name, &from[..]),
            Self::Connect { name, to } => (CONNECT, name, std::slice::from_ref(to)),
        };
        let mut bytes = hello.encode();
        bytes.extend(purpose.to_le_bytes());
        bytes.extend((users.len() as u32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.resize(HEAD_BYTES, 0);
        for user in users {
            push_user(&mut bytes, *user);
        }
        bytes
    }

    /// The greeting and the wish of a request that another process sent.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Hello, Self)> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let hello = Hello::decode(&head[..HELLO_BYTES])?;
        let word = |at: usize| {
            head[HELLO_BYTES + at..].first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_le_bytes(*bytes))
        };
        let name = &head[HELLO_BYTES + 8..];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        let is_padded = name[end..].iter().all(|byte| *byte == 0);
        let name = std::str::from_utf8(&name[..end]).ok().filter(|name| is_padded && is_name(name))?;
        let name = name.to_owned();
        let (users, odd) = rest.as_chunks::<USER_BYTES>();
        let from: Vec<_> = users.iter().map(take_user).collect::<Option<_>>()?;
        if !odd.is_empty() || word(4) as usize != from.len() || from.len() > MOST_USERS {
            return None;
        }
        match (word(0), &from[..]) {
            (LISTEN, _) => Some((hello, Self::Listen { name, from })),
            (CONNECT, [to]) => Some((hello, Self::Connect { name, to: *to })),
            _ => None,
        }
    }
}

fn push_user(bytes: &mut Vec<u8>, RemoteUser { node, user }: RemoteUser) {
    bytes.extend(node.to_bytes());
    bytes.extend(user.to_le_bytes());
}

fn take_user(bytes: &[u8; USER_BYTES]) -> Option<RemoteUser> {
    let (node, user) = bytes.split_first_chunk()?;
    let node = Some(NodeName::from_bytes(*node)).filter(NodeName::is_valid)?;
    Some(RemoteUser { node, user: u32::from_le_bytes(*user.first_chunk()?) })
}

/// The link's answer: who is at the other end.
pub(crate) fn answer(hello: &Hello, user: RemoteUser) -> Vec<u8> {
    let mut bytes = hello.encode();
    push_user(&mut bytes, user);
    bytes
}

/// The link's answer if it does not connect the two.
pub(crate) fn refusal(why: LinkRefusal) -> [u8; 4] {
    let code = LinkRefusal::ALL.iter().position(|one| *one == why).unwrap_or(0);
    (code as u32).to_le_bytes()
}

fn decode_refusal(bytes: &[u8]) -> Option<LinkRefusal> {
    let code = u32::from_le_bytes(bytes.try_into().ok()?);
    LinkRefusal::ALL.get(code as usize).copied()
}

/// Takes connections of processes on other nodes under a name of this user.
///
/// ```no_run
/// use memferry::Client;
/// use memferry_bulk::{CHANNELS, Options, RemoteListener, RemoteUser};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect("/run/memferry.sock")?;
/// let from = [RemoteUser { node: "alpha".parse()?, user: 1000 }];
/// let listener = RemoteListener::new(CHANNELS, "pictures", &from)?;
/// let (sender, mut receiver) = listener.accept(&client, Options::default(), None)?;
/// println!("{:?} is here", sender.remote());
/// receiver.receive(None)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RemoteListener {
    channels: PathBuf,
    wish: Wish,
}

impl RemoteListener {
    /// Names the channel and the users that may connect to it. `channels` is the socket of this node's link. The name is this
    /// user's: another user's processes cannot listen in its place.
    ///
    /// # Errors
    /// [`ConnectError::Name`], [`ConnectError::Users`].
    pub fn new(channels: impl AsRef<Path>, name: &str, from: &[RemoteUser]) -> Result<Self, ConnectError> {
        let given = from.len();
        if given > MOST_USERS {
            return Err(ConnectError::Users { given, most: MOST_USERS });
        }
        let wish = Wish::Listen { name: checked(name)?, from: from.to_vec() };
        Ok(Self { channels: channels.as_ref().to_owned(), wish })
    }

    /// Waits up to `limit` for one of the users. Several calls, of several processes too, wait side by side. Who connects while
    /// none waits is kept until the time of its own options is over.
    ///
    /// # Errors
    /// [`ConnectError`]; [`ConnectError::TimedOut`] if nobody connected.
    pub fn accept(
        &self,
        client: &Client,
        options: Options,
        limit: Option<Duration>,
    ) -> Result<(Sender, Receiver), ConnectError> {
        let until = limit.and_then(after);
        meet(&self.channels, &self.wish, client, (options, until))?.ok_or(ConnectError::TimedOut)
    }
}

/// Connects to a process of user `to` that [listens](RemoteListener) under the name on another node. `channels` is the socket of
/// this node's link. Waits up to [`Options::handshake`] for it to listen.
///
/// Senders and receivers are used as those of one machine, but for memory that is lent mapped. What is lent is granted to the
/// user of the other node and pulled from there.
///
/// # Errors
/// [`ConnectError`]; [`ConnectError::Unanswered`] if nobody listens who lets this user in.
pub fn connect_remote(
    channels: impl AsRef<Path>,
    to: RemoteUser,
    name: &str,
    client: &Client,
    options: Options,
) -> Result<(Sender, Receiver), ConnectError> {
    let name = checked(name)?;
    let wish = Wish::Connect { name: name.clone(), to };
    let until = after(options.handshake);
    let met = meet(channels.as_ref(), &wish, client, (options, until))?;
    met.ok_or(ConnectError::Unanswered { user: to, name })
}

fn checked(name: &str) -> Result<String, ConnectError> {
    if is_name(name) { Ok(name.to_owned()) } else { Err(ConnectError::Name(name.to_owned())) }
}

/// Asks the link, and waits for its answer; `None` if it did not come in time.
fn meet(
    channels: &Path,
    wish: &Wish,
    client: &Client,
    (options, until): (Options, Option<Instant>),
) -> Result<Option<(Sender, Receiver)>, ConnectError> {
    let own = Own::prepare(client, options.longest)?;
    let socket = connected(channels, options.handshake)?;
    let handshake = after(options.handshake);
    if !is_readable(&socket, [until, handshake].into_iter().flatten().min())? {
        if until.is_some_and(|until| until <= Instant::now()) {
            return Ok(None);
        }
        return Err(ConnectError::Handshake("the link of this node did not answer in time"));
    }
    take_welcome(&socket)?;
    own.send(&socket, &wish.encode(&own.hello))?;
    if !is_readable(&socket, until)? {
        return Ok(None);
    }
    let (bytes, came, process) = receive_packet(&socket, Room::Any, after(options.handshake))?;
    if let (true, Some(why)) = (came.is_empty(), decode_refusal(&bytes)) {
        return Err(why.into());
    }
    let parts = if bytes.len() == ANSWER_BYTES { bytes.split_first_chunk::<HELLO_BYTES>() } else { None };
    let hello = parts.and_then(|(hello, _)| Hello::decode(hello));
    let mut theirs = theirs(&socket, hello, came, process)?;
    let user = parts.and_then(|(_, user)| take_user(user.first_chunk()?));
    let user = user.ok_or(ConnectError::Handshake("the link names no user of another node"))?;
    theirs.remote = Some(user);
    let longest = theirs.hello.longest;
    let limit = (after(options.handshake), options.handshake);
    let (peer, session) = own.meet(client, socket, theirs, limit)?;
    // A grant of another service than the link's reaches nobody.
    let reach = session.map_or(Reach::Nothing, |_| Reach::Remote(user));
    let sender = Sender::new(Arc::clone(&peer), client.clone(), reach, longest);
    Ok(Some((sender, Receiver::new(peer, client.clone(), reach, (options.longest, options.admission)))))
}

/// Receives what a link says when it takes a request.
fn take_welcome(socket: &Socket) -> Result<(), ConnectError> {
    let mut came = Vec::new();
    let said = conduit::receive_with_one(socket.as_fd(), &mut came);
    close_elsewhere(socket.user(), came);
    match said {
        Ok((bytes, _)) if bytes == WELCOME => Ok(()),
        Err(conduit::ReceiveError::Closed) => Err(LinkRefusal::Busy.into()),
        Err(conduit::ReceiveError::System(source)) => Err(failed("recvmsg")(source)),
        _ => Err(ConnectError::Handshake("what listens is no link, or one of another version")),
    }
}

fn is_readable(socket: &Socket, until: Option<Instant>) -> Result<bool, ConnectError> {
    loop {
        let mut entry = [readable(socket)];
        poll_until(&mut entry, until).map_err(failed("poll"))?;
        if !entry[0].revents().is_empty() {
            return Ok(true);
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use memferry::Client;
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        let client = Client::embedded().unwrap();
        Own::prepare(&client, 77).unwrap().hello
    }

    fn user(node: &str, user: u32) -> RemoteUser {
        RemoteUser { node: node.parse().unwrap(), user }
    }

    #[test]
    fn requests_come_back_as_they_were_sent() {
        let hello = hello();
        let longest = "a".repeat(NAME_BYTES);
        for wish in [
            Wish::Listen { name: "x".to_owned(), from: vec![] },
            Wish::Listen { name: longest.clone(), from: vec![user("alpha", u32::MAX); MOST_USERS] },
            Wish::Connect { name: longest, to: user("b", 0) },
        ] {
            let bytes = wish.encode(&hello);
            assert_eq!(Wish::decode(&bytes), Some((hello, wish)));
            for wrong in [&bytes[1..], &bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat()] {
                assert_eq!(Wish::decode(wrong), None);
            }
        }
    }

    #[test]
    fn wrong_requests_are_refused() {
        let hello = hello();
        let good = Wish::Connect { name: "name".to_owned(), to: user("beta", 5) };
        let wrong = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.encode(&hello);
            change(&mut bytes);
            Wish::decode(&bytes)
        };
        assert_eq!(wrong(&|_| ()), Some((hello, good.clone())));
        let name = HELLO_BYTES + 8;
        for change in [
            &(|bytes: &mut Vec<u8>| bytes[HELLO_BYTES] = 3) as &dyn Fn(&mut Vec<u8>),
            &|bytes| bytes[HELLO_BYTES + 4] = 2,
            &|bytes| bytes[name] = b'/',
            &|bytes| bytes[name] = 0,
            &|bytes| bytes[name + NAME_BYTES - 1] = b'x',
            &|bytes| bytes[HEAD_BYTES] = b'B',
            &|bytes| bytes[0] ^= 1,
        ] {
            assert_eq!(wrong(change), None);
        }
        let users = vec![user("alpha", 1); MOST_USERS + 1];
        let many = Wish::Listen { name: "x".to_owned(), from: users.clone() }.encode(&hello);
        assert_eq!(Wish::decode(&many), None);
        let refused = RemoteListener::new(CHANNELS, "x", &users);
        assert!(matches!(refused, Err(ConnectError::Users { given: 65, most: 64 })));
        for name in ["", "a b", "a/b", "\u{e9}", &"a".repeat(33)] {
            assert!(matches!(RemoteListener::new(CHANNELS, name, &[]), Err(ConnectError::Name(_))), "{name}");
        }
    }

    #[test]
    fn refusals_come_back_as_they_were_sent() {
        for why in LinkRefusal::ALL {
            assert_eq!(decode_refusal(&refusal(why)), Some(why));
        }
        assert_eq!(decode_refusal(&5_u32.to_le_bytes()), None);
        assert_eq!(decode_refusal(&[0; 3]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Wish::decode(&bytes), None);
        }
    }
}
