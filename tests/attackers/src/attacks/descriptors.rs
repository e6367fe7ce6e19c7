//! Attacks by descriptors: those that the service sends, those that it is the last to close, and files that it maps.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use memferry_service::protocol::{Command, Hello, NotifyBy, VERSIONS};
use memferry_shm::conduit;
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::queue_pair::Layout;
use memferry_transfer::{Operation, Request, Rights};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::net::{Shutdown, sockopt};
use rustix::process::Pid;

use crate::connection::{Connection, dial};
use crate::raw_queue::{self, RawQueue};
use crate::stage::{self, Stage, crowd};
use crate::{Failed, system};

/// Sessions that end with answers unread. Linux counts the descriptors in them as in flight, on the account of the user who sent them,
/// which is the service's. At the limit, that user can send no descriptor to anybody.
pub(super) fn unread_answers(stage: &Stage) -> Result<(), Failed> {
    let enough = stage.size(6000, 400);
    let mut kept = Vec::new();
    stage.connect()?;
    loop {
        match leave_unread(stage) {
            Ok(connection) => kept.push(connection),
            Err(_) => {
                stage.running();
                // Stays at the limit, where some calls succeed.
                kept.truncate(kept.len().saturating_sub(1));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if kept.len() >= enough {
            stage.running();
            kept.remove(0);
        }
    }
}

fn leave_unread(stage: &Stage) -> Result<Connection, Failed> {
    // One more unread answer with descriptors ends the session before its queues are closed.
    const ANSWERS: u32 = 7;
    let mut connection = stage.connect()?;
    for queue in 0..ANSWERS {
        let (memory, _mapping) = frame::allocate_half(Layout::new(2)?.client_bytes())?;
        connection.send(Command::OpenQueue { capacity: 2 }, &[memory.as_fd()])?;
        connection.send(Command::CloseQueue { queue }, &[])?;
    }
    rustix::net::shutdown(&connection, Shutdown::Write)?;
    Ok(connection)
}

/// As [`unread_answers`], with as many bytes as a socket holds.
pub(super) fn unread_bytes(stage: &Stage) -> Result<(), Failed> {
    let enough = stage.size(20_000, 200);
    let mut kept = Vec::new();
    loop {
        match stage.connect() {
            Ok(mut connection) => {
                while connection.send(Command::Status, &[]).is_ok() {}
                kept.push(connection);
            }
            Err(error) if kept.is_empty() => return Err(error),
            Err(_) => {
                stage.running();
                // Stays at the limit, where some connections are accepted.
                kept.remove(0);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if kept.len() >= enough {
            stage.running();
            kept.remove(0);
        }
    }
}

/// Makes sockets whose last close lingers until the other end is closed.
struct Lingering(TcpListener);

impl Lingering {
    fn new() -> Result<Self, Failed> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        sockopt::set_socket_recv_buffer_size(&listener, 4096)?;
        Ok(Self(listener))
    }

    fn pair(&self) -> Result<(TcpStream, TcpStream), Failed> {
        let mut sender = TcpStream::connect(self.0.local_addr()?)?;
        let (receiver, _) = self.0.accept()?;
        sockopt::set_socket_send_buffer_size(&sender, 4096)?;
        sockopt::set_socket_linger(&sender, Some(Duration::from_secs(600)))?;
        sender.set_nonblocking(true)?;
        while sender.write(&[0; 1 << 14]).is_ok() {}
        Ok((sender, receiver))
    }
}

/// Closes a socket that may linger, on a thread of its own: if it could not be sent, or the service was faster, this is its last close.
fn let_linger(sender: TcpStream) -> Result<(), Failed> {
    std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(sender))?;
    Ok(())
}

/// Whether the service answers a new client in time.
fn answers(stage: &Stage, limit: Duration) -> bool {
    let Ok(socket) = dial(&stage.socket) else { return false };
    let _ = sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(limit));
    let hello = Hello { versions: VERSIONS, features: 0 }.encode();
    conduit::send(socket.as_fd(), &hello, &[], false).is_ok()
        && conduit::receive(socket.as_fd(), true).is_ok()
}

/// Connections with a rule broken in the first message and a socket that lingers in the second. The attendant closes such a connection
/// at once; if the control thread still holds it then, that is the one to wait.
pub(super) fn last_closes(stage: &Stage) -> Result<(), Failed> {
    let sockets = Lingering::new()?;
    let began = Instant::now();
    stage.connect()?;
    let hog = |_: usize| {
        let until = Instant::now() + Duration::from_millis(10);
        while Instant::now() < until {}
    };
    let mut attempts = 0;
    crowd(2, hog, || {
        loop {
            let (sender, receiver) = sockets.pair()?;
            let socket = dial(&stage.socket)?;
            let _ = conduit::send(socket.as_fd(), b"nonsense", &[], false);
            let _ = conduit::send(socket.as_fd(), b"x", &[sender.as_fd()], false);
            let_linger(sender)?;
            drop(socket);
            attempts += 1;
            if !answers(stage, Duration::from_millis(200)) && !answers(stage, Duration::from_secs(2)) {
                eprintln!("stuck after {attempts} attempts, {:?}", began.elapsed());
                stage.running();
                // For as long as the attacker likes.
                while !answers(stage, Duration::from_secs(2)) {}
                eprintln!("not stuck any more");
            }
            if began.elapsed() > Duration::from_secs(15) {
                stage.running();
            }
            drop(receiver);
        }
    })
}

/// A file mapped many times, in which a hole is punched while the service admits it: the punch walks all mappings, and whoever maps or
/// unmaps the file waits for that. Once the service has sealed it, nothing can be punched and the next file follows. So its client
/// leaves meanwhile, or seals the file in a way that the service refuses, and the service unmaps it unsealed.
pub(super) fn slow_maps(stage: &Stage) -> Result<(), Failed> {
    let processes = stage.size(16, 12);
    stage.connect()?;
    let mut random = stage::rng();
    loop {
        let file = rustix::fs::memfd_create("often-mapped", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, 4096)?;
        let mut children = Vec::new();
        let result = map_often(&file, processes, &mut children);
        if result.is_ok() {
            stage.running();
            punch_while_admitted(stage, &file, &mut random);
        }
        children.into_iter().for_each(system::end);
        result?;
    }
}

/// Maps the file 60,000 times in each of many processes.
fn map_often(file: &OwnedFd, processes: usize, children: &mut Vec<Pid>) -> Result<(), Failed> {
    const MAPS: usize = 60_000;
    let (done, mapped) = rustix::pipe::pipe()?;
    for _ in 0..processes {
        let child = system::fork(|| {
            let map = |_| Mapping::shared(file.as_fd(), 4096, Access::ReadWrite, 4096);
            let held: Vec<_> = (0..MAPS).map_while(|index| map(index).ok()).collect();
            let _ = rustix::io::write(&mapped, &[1]);
            std::mem::forget(held);
        });
        children.push(child?);
    }
    for _ in 0..processes {
        rustix::io::read(&done, &mut [0])?;
    }
    Ok(())
}

/// Registers the file again and again, and punches it at a random moment of that, until it is sealed.
fn punch_while_admitted(stage: &Stage, file: &OwnedFd, random: &mut fastrand::Rng) {
    const ATTEMPTS: usize = 200;
    for _ in 0..ATTEMPTS {
        let Ok(mut connection) = stage.connect() else { return };
        let register = Command::Register { length: 4096, rights: Rights::all() };
        if connection.send(register, &[file.as_fd()]).is_err() {
            continue;
        }
        let punched = random.u64(0..300);
        let last = random.u64(0..300);
        let seals_itself = random.u8(0..4) == 0;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let is_open = std::thread::scope(|scope| {
            let punch = scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(punched));
                rustix::fs::fallocate(file, how, 0, 4096).is_ok()
            });
            std::thread::sleep(Duration::from_micros(last));
            if seals_itself {
                let _ = rustix::fs::fcntl_add_seals(file, SealFlags::SEAL);
                // Its refusal, or the end of the connection.
                let _ = connection.answer(true);
            }
            drop(connection);
            punch.join().unwrap_or(false)
        });
        if !is_open || seals_itself {
            return;
        }
    }
}

/// Blocks the own attendant by its write to an eventfd, so that connections beyond the quota are turned away elsewhere, with sockets
/// in them whose close lingers.
pub(super) fn turned_away(stage: &Stage) -> Result<(), Failed> {
    const SESSIONS: usize = 64;
    let connections = stage.size(80_000, 3_000);
    let sockets = Lingering::new()?;
    let mut connection = stage.connect()?;
    let mut queue = RawQueue::open(&mut connection, 64)?;
    let notify = Command::Notify { queue: queue.number, by: NotifyBy::Event };
    let (_, mut descriptors) = connection.call(notify, &[])?;
    let signal: OwnedFd = descriptors.pop().ok_or("a signal without a descriptor")?;
    let mut held: Vec<OwnedFd> = Vec::new();
    for _ in 1..SESSIONS {
        held.push(dial(&stage.socket)?);
    }
    std::thread::sleep(Duration::from_millis(100));
    rustix::fs::fcntl_setfl(&signal, OFlags::RDWR)?;
    rustix::io::write(&signal, &(u64::MAX - 1).to_ne_bytes())?;
    queue.raise(queue.end.signal_wanted());
    queue.refill(&[raw_queue::slot(&Request::new(Operation::Nop))?])?;
    std::thread::sleep(Duration::from_millis(100));
    let mut receivers = Vec::new();
    for number in 0..connections {
        let socket = dial(&stage.socket)?;
        // Fewer in the middle: there it is enough that each takes a descriptor.
        if number < 400 || number % 8 == 0 {
            let (sender, receiver) = sockets.pair()?;
            let _ = conduit::send(socket.as_fd(), b"x", &[sender.as_fd()], false);
            let_linger(sender)?;
            receivers.push(receiver);
        } else {
            let _ = conduit::send(socket.as_fd(), b"x", &[], false);
        }
    }
    stage.running();
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
