//! The service that these tests play.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command as Program};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memferry_external::layout::EngineLayout;
use memferry_external::{ExternalEngine, ExternalFrame};
use memferry_service::protocol::{
    self, Answer, Command, EngineRole, Envelope, FrameDone, Hello, Refusal, Reply, Welcome,
};
use memferry_shm::conduit;
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::ClientEnd;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Descriptor, Engine, Failure, Handle, Operation, Region, SessionId, Ticket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

use super::{NAME, PAGE, ROLE};

/// Limit of each wait.
pub(crate) const TIME: Duration = Duration::from_secs(20);
const CAPACITY: u32 = 8;

pub(crate) struct FakeService {
    listener: OwnedFd,
    path: PathBuf,
    /// The role's process, whose child is the keeper.
    role: Mutex<Child>,
}

impl FakeService {
    /// Listens, and starts an engine process.
    pub(crate) fn start(name: &str) -> Self {
        // An engine of a service before may still try to connect.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("memferry-engine-{name}-{}-{number}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let flags = SocketFlags::CLOEXEC;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        set_socket_timeout(&listener, Timeout::Recv, Some(TIME)).unwrap();
        let role = Program::new(std::env::current_exe().unwrap())
            .args(["plays_engine", "--exact", "--nocapture"])
            .env(ROLE, &path)
            .spawn()
            .unwrap();
        Self { listener, path, role: Mutex::new(role) }
    }

    /// Accepts a connection and its handshake.
    pub(crate) fn accept(&self) -> Peer {
        let socket = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(TIME)).unwrap();
        let process = socket_peercred(&socket).unwrap().pid;
        let peer = Peer { socket, process, serial: 0 };
        let hello = Hello::decode(&peer.receive().bytes).unwrap();
        let welcome =
            Welcome { version: hello.agree().unwrap(), features: hello.features, session: SessionId(1) };
        peer.send(&welcome.encode(), &[]);
        peer
    }

    /// Accepts a connection that becomes the keeper.
    pub(crate) fn keeper(&self) -> Peer {
        let mut keeper = self.accept();
        let (command, _) = keeper.command();
        assert_eq!(command, Command::AttachEngine { name: NAME.to_owned(), role: EngineRole::Keeper });
        keeper.reply(Answer::EngineAttached { workers: 1, capacity: CAPACITY, stall: TIME }, &[]);
        keeper
    }

    /// Accepts a connection that becomes the engine.
    pub(crate) fn engine(&self) -> Attached {
        self.attach(self.accept())
    }

    /// Attaches an engine that has connected.
    pub(crate) fn attach(&self, mut peer: Peer) -> Attached {
        let (command, _) = peer.command();
        let Command::AttachEngine { name, role: EngineRole::Engine(description) } = command else {
            panic!("{command:?}");
        };
        assert_eq!(name, NAME);
        peer.reply(Answer::EngineAttached { workers: 1, capacity: CAPACITY, stall: TIME }, &[]);
        let (command, mut descriptors) = peer.command();
        assert_eq!(command, Command::OpenEngine { workers: 1, capacity: CAPACITY });
        let memfd = descriptors.pop().unwrap();
        let layout = EngineLayout::new(1, CAPACITY).unwrap();
        let size = rustix::fs::fstat(&memfd).unwrap().st_size as u64;
        assert_eq!(size, layout.engine_bytes());
        let own = Mapping::shared(memfd.as_fd(), size as usize, Access::ReadOnly, PAGE as usize).unwrap();
        let (service, mapping) = frame::allocate_sealed(layout.service_bytes(), false).unwrap();
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        peer.reply(Answer::EngineOpened, &[service.as_fd(), doorbell.as_fd()]);
        let words = |mapping| MappedWords::new(mapping).unwrap();
        let service = words(mapping);
        let own = words(own);
        let (client, half) = layout.halves(&service, &own, 0).unwrap();
        let parked = layout.parked_words(&own).unwrap();
        let end = ClientEnd::new(layout.pair(), client, half, parked, Fences::Full).unwrap();
        let wake = layout.wake_word(&service).unwrap();
        let broker = ExternalEngine::new(description, (end, wake), (4, 4), TIME);
        Attached { peer, broker }
    }

    /// Whether a connection waits to be accepted.
    pub(crate) fn has_connection(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    /// Asks the keeper to end in order.
    pub(crate) fn terminate(&self, keeper: &Peer) {
        rustix::process::kill_process(keeper.process, Signal::TERM).unwrap();
    }

    /// How the keeper ended.
    pub(crate) fn exit_status(&self) -> Option<i32> {
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            if let Some(status) = self.role.lock().unwrap().try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for FakeService {
    fn drop(&mut self) {
        let mut role = self.role.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = role.kill();
        let _ = role.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The service's side of a session.
pub(crate) struct Peer {
    socket: OwnedFd,
    process: Pid,
    pub(crate) serial: u32,
}

impl Peer {
    fn receive(&self) -> conduit::Packet {
        conduit::receive(self.socket.as_fd(), true).expect("no message came")
    }

    /// Waits for the next command.
    pub(crate) fn command(&mut self) -> (Command, Vec<OwnedFd>) {
        let packet = self.receive();
        self.serial += 1;
        let command = protocol::decode_command(&packet.bytes, self.serial, packet.descriptors.len()).unwrap();
        (command, packet.descriptors)
    }

    /// The next command, which asks for an event. Returns what became of the last one.
    pub(crate) fn next_frame(&mut self) -> Option<FrameDone> {
        match self.command().0 {
            Command::NextFrame { done } => done,
            other => panic!("{other:?}"),
        }
    }

    /// As [`next_frame`](Self::next_frame), after an event.
    pub(crate) fn done(&mut self) -> FrameDone {
        self.next_frame().expect("it did not say what became of the event")
    }

    pub(crate) fn reply(&mut self, answer: Answer, descriptors: &[BorrowedFd<'_>]) {
        let reply: Reply =
            Envelope { serial: self.serial, descriptors: descriptors.len() as u8, body: Ok(answer) };
        self.send(&protocol::encode(&reply), descriptors);
    }

    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        let reply: Reply = Envelope { serial: self.serial, descriptors: 0, body: Err(refusal) };
        self.send(&protocol::encode(&reply), &[]);
    }

    pub(crate) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        conduit::send(self.socket.as_fd(), bytes, descriptors, true).unwrap();
    }

    /// Whether a message comes within `time`.
    pub(crate) fn has_message(&self, time: Duration) -> bool {
        let time = Timespec::try_from(time).unwrap();
        rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time)).unwrap() > 0
    }

    /// Whether the other side has ended the connection, or does within the limit.
    pub(crate) fn is_closed(&self) -> bool {
        loop {
            match conduit::receive(self.socket.as_fd(), true) {
                Ok(_) => {}
                Err(error) => return error == conduit::ReceiveError::Closed,
            }
        }
    }

    pub(crate) fn kill(&self) {
        rustix::process::kill_process(self.process, Signal::KILL).unwrap();
    }
}

/// An engine with its queue pair.
pub(crate) struct Attached {
    pub(crate) peer: Peer,
    broker: ExternalEngine,
}

impl Attached {
    /// Submits an operation on a frame.
    pub(crate) fn submit(
        &mut self,
        operation: impl FnOnce(ExternalFrame) -> Operation<Region<ExternalFrame>>,
        frame: Handle,
    ) -> Ticket {
        let frame = ExternalFrame { handle: frame, length: PAGE, is_writable: true, is_own: false };
        let ticket = self.broker.post(Descriptor::new(0, operation(frame)).unwrap()).unwrap();
        self.broker.ring_doorbell();
        ticket
    }

    fn submit_copy(&mut self, from: Handle, to: Handle, length: u64) -> Ticket {
        let to = ExternalFrame { handle: to, length: PAGE, is_writable: true, is_own: false };
        let part = |frame| Region::new(frame, 0, length).unwrap();
        self.submit(|from| Operation::Copy { source: part(from), destination: part(to), length }, from)
    }

    /// Copies the beginning of one frame to another.
    pub(crate) fn copy(&mut self, from: Handle, to: Handle, length: u64) -> Result<(), Failure> {
        self.submit_copy(from, to, length);
        self.result()
    }

    /// The same, cancelled before the engine's process, which stands still meanwhile, can take it.
    pub(crate) fn cancelled_copy(&mut self, from: Handle, to: Handle, length: u64) -> Result<(), Failure> {
        let process = self.peer.process;
        rustix::process::kill_process(process, Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        let ticket = self.submit_copy(from, to, length);
        self.broker.cancel(ticket);
        rustix::process::kill_process(process, Signal::CONT).unwrap();
        self.result()
    }

    /// How the request submitted last ended.
    fn result(&mut self) -> Result<(), Failure> {
        let end = Instant::now() + TIME;
        let mut completions = Vec::new();
        while completions.is_empty() {
            assert!(Instant::now() < end, "no completion came");
            self.broker.poll(memferry_clock::Instant::ORIGIN, &mut completions);
            assert_eq!(self.broker.fault(), None);
            std::thread::yield_now();
        }
        completions[0].outcome.result
    }

    /// Kills it, and waits until it has ended.
    pub(crate) fn kill(&self) {
        self.peer.kill();
        assert!(self.peer.is_closed());
    }
}
