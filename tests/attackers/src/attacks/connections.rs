//! Attacks by connections, the descriptors sent over them, and processes that share them.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use memferry_service::protocol::{Command, Hello, VERSIONS};
use memferry_shm::conduit::{self, MAXIMUM_DESCRIPTORS};
use memferry_transfer::{Operation, Request, Rights};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::Pid;

use crate::connection::{Connection, dial};
use crate::raw_queue::{self, RawQueue};
use crate::stage::{self, MOMENT, Stage, repeat_on};
use crate::{Failed, system};

const REGISTER: Command = Command::Register { length: 4096, rights: Rights::all() };

pub(super) fn connect_flood(stage: &Stage) -> Result<(), Failed> {
    const HELD: usize = 200;
    let held = Mutex::new(std::collections::VecDeque::new());
    let hello = Hello { versions: VERSIONS, features: 0 }.encode();
    repeat_on(stage, 4, || {
        drop(dial(&stage.socket)?);
        let greeted = dial(&stage.socket)?;
        let _ = conduit::send(greeted.as_fd(), &hello, &[], false);
        drop(greeted);
        let silent = dial(&stage.socket)?;
        let mut held = held.lock().map_err(|_| "a thread panicked")?;
        held.push_back(silent);
        if held.len() > HELD {
            held.pop_front();
        }
        Ok(())
    })
}

pub(super) fn session_quota(stage: &Stage) -> Result<(), Failed> {
    let mut held = vec![stage.connect()?];
    stage.running();
    loop {
        match stage.connect() {
            Ok(connection) => held.push(connection),
            Err(_) if held.iter().any(|connection| connection.hung_up()) => {
                return Err("the service ended a session".into());
            }
            Err(_) => {}
        }
    }
}

/// Sends a descriptor, so that the service has the last reference to it. The commands before it keep the service busy until the close
/// here. If the service is faster all the same, the close here is the one that waits, on its own thread.
fn give_away(connection: &mut Connection, descriptor: OwnedFd) -> Result<(), Failed> {
    const COMMANDS_BEFORE: usize = 16;
    for _ in 0..COMMANDS_BEFORE {
        connection.send(Command::Engines, &[])?;
    }
    connection.send(REGISTER, &[descriptor.as_fd()])?;
    std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(descriptor))?;
    Ok(())
}

/// A socket whose last close lingers for as long as its other end lives and does not read.
fn lingering() -> Result<(TcpStream, TcpStream), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    sockopt::set_socket_linger(&sender, Some(Duration::from_secs(600)))?;
    sender.set_nonblocking(true)?;
    while sender.write(&[0; 1 << 16]).is_ok() {}
    Ok((sender, receiver))
}

pub(super) fn lingering_sockets(stage: &Stage) -> Result<(), Failed> {
    const SOCKETS: usize = 500;
    let mut connection = stage.connect()?;
    let mut receivers = Vec::new();
    loop {
        if receivers.len() < SOCKETS {
            let (sender, receiver) = lingering()?;
            give_away(&mut connection, sender.into())?;
            receivers.push(receiver);
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
        stage.running();
        connection.drain()?;
        if connection.hung_up() {
            return Err("the service ended the connection".into());
        }
    }
}

/// Each close of a FUSE file sends a FLUSH, even if others have it open.
pub(super) fn fuse_files(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let file = std::mem::ManuallyDrop::new(stage.fuse()?.open()?);
    loop {
        stage.running();
        if !connection.try_send(REGISTER, &[file.as_fd()])? {
            std::thread::sleep(Duration::from_millis(1));
        }
        connection.drain()?;
        if connection.hung_up() {
            return Err("the service ended the connection".into());
        }
    }
}

/// The last close of a pipe's end needs the lock of the pipe.
pub(super) fn fuse_pipes(stage: &Stage) -> Result<(), Failed> {
    const PIPES: usize = 300;
    let mut connection = stage.connect()?;
    let source = stage.fuse()?.map()?;
    let mut sent = 0;
    loop {
        if sent < PIPES {
            let (read, write) = rustix::pipe::pipe()?;
            let source = source.clone();
            let at = sent * (1 << 20);
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(move || system::write_mapping(write.as_fd(), &source, at, 4096))?;
            std::thread::sleep(Duration::from_millis(2));
            give_away(&mut connection, read)?;
            sent += 1;
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
        if sent > 8 {
            stage.running();
        }
        connection.drain()?;
        if connection.hung_up() {
            return Err("the service ended the connection".into());
        }
    }
}

/// Sends before the service accepts, and leaves. Linux collects cycles of sockets that nobody holds.
pub(super) fn descriptors_in_flight(stage: &Stage) -> Result<(), Failed> {
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let hello = Hello { versions: VERSIONS, features: 0 }.encode();
    repeat_on(stage, 4, || {
        let socket = dial(&stage.socket)?;
        let mut ends: Vec<OwnedFd> = Vec::new();
        for _ in 0..MAXIMUM_DESCRIPTORS / 2 {
            let (one, other) = pair()?;
            // Each end waits in the queue of the other.
            conduit::send(one.as_fd(), b"x", &[one.as_fd(), other.as_fd()], false)?;
            conduit::send(other.as_fd(), b"x", &[one.as_fd(), other.as_fd()], false)?;
            ends.extend([one, other]);
        }
        let borrowed: Vec<_> = ends.iter().map(AsFd::as_fd).collect();
        if stage::rng().bool() {
            let _ = conduit::send(socket.as_fd(), &hello, &[], false);
        }
        for _ in 0..64 {
            if conduit::send(socket.as_fd(), b"nonsense", &borrowed, false).is_err() {
                break;
            }
        }
        Ok(())
    })
}

/// A child that holds the socket keeps the connection of a dead client open.
pub(super) fn fork_storm(stage: &Stage) -> Result<(), Failed> {
    const CHILDREN: usize = 64;
    let mut children: Vec<Pid> = Vec::new();
    let result = storm_of_children(stage, &mut children, CHILDREN);
    for child in children {
        system::end(child);
    }
    result
}

fn storm_of_children(stage: &Stage, children: &mut Vec<Pid>, limit: usize) -> Result<(), Failed> {
    let slots = [raw_queue::slot(&Request::new(Operation::Nop))?];
    let mut random = stage::rng();
    loop {
        let mut connection = stage.connect()?;
        let mut queue = RawQueue::open(&mut connection, 64)?;
        stage.running();
        for _ in 0..8 {
            queue.refill(&slots)?;
            children.push(system::fork(|| queue.ring())?);
            if children.len() > limit {
                system::end(children.swap_remove(random.usize(..children.len())));
            }
            std::thread::sleep(MOMENT);
        }
    }
}
