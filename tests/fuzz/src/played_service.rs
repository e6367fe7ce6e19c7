//! A service that a target plays, on a thread of its own: a real client connects to its socket, and a script says what it answers.
//!
//! ```text
//! target ─ script, connect ─► client ─ Hello, commands ─► thread ─ packets of the script ─► client
//!        ◄─ all packets that were sent, memory of queues ─┘    OVER ends the script
//! ```
//!
//! There is one thread and one socket for each target of a process. A client that is not answered is hung up on, so nothing waits for a
//! time limit.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_service::protocol::{Command, Envelope, Hello, decode};
use memferry_shm::conduit::{self, Packet};
use memferry_shm::mapping::Mapping;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// What a connection says to end the script.
const OVER: [u8; 4] = *b"OVER";

/// What a packet answers.
pub(crate) enum Asked {
    Hello,
    Command {
        serial: u32,
        command: Command,
        memory: Vec<OwnedFd>,
    },
    /// The packet of a client is no message.
    Nonsense,
}

/// A packet of the service. The descriptors are sent with it.
pub(crate) struct Answered {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Decides what the service says. `None` hangs up.
pub(crate) trait Script: Send {
    fn answer(&mut self, asked: Asked) -> Option<Vec<Answered>>;
}

/// A packet that was sent, with the number of its descriptors and the serial of the command that it answers.
pub(crate) struct Sent {
    pub(crate) serial: Option<u32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: usize,
}

/// All packets that were sent in a script.
pub(crate) type Record = Arc<Mutex<Vec<Sent>>>;

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both memories of a queue that a client opened.
pub(crate) struct Halves {
    pub(crate) client: Mapping,
    pub(crate) service: Mapping,
}

/// The thread of one target.
pub(crate) struct Played {
    path: PathBuf,
    scripts: Sender<(Box<dyn Script>, Record)>,
    ended: Receiver<()>,
}

impl Played {
    /// Starts the service of a target.
    pub(crate) fn start(target: &str) -> Self {
        let path = std::env::temp_dir().join(format!("memferry-fuzz-{}-{target}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let address = SocketAddrUnix::new(&path).expect("a short path");
        let listener = socket();
        rustix::net::bind(&listener, &address).expect("a free path");
        rustix::net::listen(&listener, 16).expect("a bound socket");
        let (scripts, next) = channel();
        let (end, ended) = channel();
        std::thread::spawn(move || play_all(&listener, &next, &end));
        Self { path, scripts, ended }
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Answers the clients that connect from now on by a script.
    pub(crate) fn begin(&self, script: Box<dyn Script>) -> Record {
        let record = Record::default();
        self.scripts.send((script, Arc::clone(&record))).expect("the thread runs");
        record
    }

    /// Ends the script. Its clients must be gone, or hung up on.
    pub(crate) fn end(&self) {
        let socket = socket();
        let address = SocketAddrUnix::new(&self.path).expect("a short path");
        rustix::net::connect(&socket, &address).expect("the thread listens");
        conduit::send(socket.as_fd(), &OVER, &[], true).expect("room for a packet");
        self.ended.recv().expect("the thread runs");
    }
}

fn socket() -> OwnedFd {
    let family = AddressFamily::UNIX;
    rustix::net::socket_with(family, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn play_all(listener: &OwnedFd, next: &Receiver<(Box<dyn Script>, Record)>, end: &Sender<()>) {
    while let Ok((mut script, record)) = next.recv() {
        while !play(listener, &mut *script, &record) {}
        if end.send(()).is_err() {
            return;
        }
    }
}

/// Answers one connection. Whether it ended the script.
fn play(listener: &OwnedFd, script: &mut dyn Script, record: &Record) -> bool {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).expect("a connection");
    while let Ok(packet) = conduit::receive(socket.as_fd(), true) {
        if packet.bytes == OVER {
            return true;
        }
        let asked = asked(packet);
        let serial = if let Asked::Command { serial, .. } = asked { Some(serial) } else { None };
        let Some(packets) = script.answer(asked) else { return false };
        for Answered { bytes, descriptors } in packets {
            let sent = Sent { serial, bytes: bytes.clone(), descriptors: descriptors.len() };
            locked(record).push(sent);
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let _ = conduit::send(socket.as_fd(), &bytes, &borrowed, false);
        }
    }
    false
}

fn asked(packet: Packet) -> Asked {
    let Packet { bytes, descriptors } = packet;
    if Hello::decode(&bytes).is_ok() {
        return Asked::Hello;
    }
    match decode::<Envelope<Command>>(&bytes) {
        Ok(Envelope { serial, body, .. }) => Asked::Command { serial, command: body, memory: descriptors },
        Err(_) => Asked::Nonsense,
    }
}
