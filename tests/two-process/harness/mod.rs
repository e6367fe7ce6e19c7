//! Shared by the two-process tests: a real service in its own process, and a client that can break every rule.
//!
//! ```text
//! Service::start ─ the built binary, a fresh socket ─► killed and removed on drop
//! Raw            ─ speaks the protocol byte by byte, without the client library
//! role           ─ runs this test binary again, as another process
//! ```
//!
//! No test relies on a sleep: it waits for a line, a packet or a completion.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memferry::{
    CallError, Client, Copy2d, Count2d, Done, Failure, Fill2d, Frame, FrameError, Output, PixelSize, Plane,
    Queue, RefusalKind, RunError, Ticket, Transfer, TransferError, copy, copy_2d, fill_2d,
};
use memferry_service::protocol::{
    self, Answer, Envelope, Hello, Refusal, Reply, VERSIONS, Violation, Welcome,
};
use memferry_shm::conduit::{self, Packet};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, Layout, ParkedWord};
use memferry_shm::storage::MappedWords;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};

/// How long a test waits for an event that must happen at once.
pub const SOON: Duration = Duration::from_secs(20);

/// A user that no test runs as.
const OTHER_USER: &str = "60001";

/// A service in its own process.
pub struct Service {
    pub child: Child,
    pub socket: PathBuf,
    directory: PathBuf,
}

pub fn fresh_directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("memferry-test-{}-{number}", std::process::id()));
    // A crashed run may have used the same number.
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).unwrap();
    directory
}

/// Copies a program with another process. A file that this process has open for writing may be inherited by a child that
/// another test forks, and then cannot be executed.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-p").args([from, to]).status().unwrap().success(), "{}", from.display());
}

/// The folder of this build's libraries to preload. Cargo does not build them for tests; `./x test` does, and names their folder.
pub fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("MEMFERRY_TEST_BUILT") {
            return folder.into();
        }
        let folder = Path::new(env!("CARGO_BIN_EXE_memferry")).parent().expect("target/PROFILE/memferry");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "memferry-recorder", "--package", "memferry-preload"]);
        build.arg("--target-dir").arg(folder.parent().expect("target"));
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the libraries cannot be built");
        folder.to_owned()
    })
}

impl Service {
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_memferry")), fresh_directory(), arguments)
    }

    /// Starts a service as `user`, with at most `descriptors` descriptors in each of its processes. Needs root.
    pub fn start_as(user: u32, descriptors: u64, arguments: &[&str]) -> Self {
        let directory = fresh_directory();
        std::os::unix::fs::chown(&directory, Some(user), Some(user)).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_memferry")).uid(user).gid(user);
        Self::start_by(command, directory, arguments)
    }

    /// Starts a service by `command`, to which the arguments of the binary are added. Removes `directory` in the end.
    pub fn start_by(command: Command, directory: PathBuf, arguments: &[&str]) -> Self {
        let socket = directory.join("memferry.sock");
        let child = Self::spawn(command, &socket, arguments);
        Self { child, socket, directory }
    }

    /// Kills the service, and starts another one at the same socket.
    pub fn replace(&mut self, arguments: &[&str]) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = Self::spawn(Command::new(env!("CARGO_BIN_EXE_memferry")), &self.socket, arguments);
    }

    fn spawn(mut command: Command, socket: &Path, arguments: &[&str]) -> Child {
        let mut child = command
            .arg("serve")
            .arg("--socket")
            .arg(socket)
            .args((!arguments.contains(&"--config")).then_some("--no-config"))
            .args(arguments)
            .env("MEMFERRY_LOG", std::env::var("MEMFERRY_TEST_LOG").unwrap_or_else(|_| "off".to_owned()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on "), "the service printed: {line}");
        child
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    /// Asserts that the service still serves: a new client moves bytes.
    pub fn assert_serves(&self) {
        assert_moves_bytes(&self.client());
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The service's process, its spawner, and the attendants.
    pub fn processes(&self) -> Vec<u32> {
        let mut found = vec![self.child.id()];
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            let of_parent = |number: &u32| parent_of(*number) == Some(parent);
            found.extend(numbers().filter(of_parent));
            next += 1;
        }
        found
    }

    /// Number of descriptors of these processes.
    pub fn descriptors(&self) -> usize {
        let open = |number: &u32| std::fs::read_dir(format!("/proc/{number}/fd")).map_or(0, Iterator::count);
        self.processes().iter().map(open).sum()
    }

    /// Stops all processes of the service and waits until no thread runs: the signal reaches the threads one after the other.
    pub fn stop(&self) {
        let processes = self.processes();
        for number in &processes {
            kill_process(Pid::from_raw(number.cast_signed()).unwrap(), Signal::STOP).unwrap();
        }
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| state(&stat) == 'T')
        };
        for number in processes {
            wait_until("the service stopped", || {
                std::fs::read_dir(format!("/proc/{number}/task")).unwrap().all(is_stopped)
            });
        }
    }

    /// Lets all processes go on after [`stop`](Self::stop).
    pub fn resume(&self) {
        for number in self.processes() {
            kill_process(Pid::from_raw(number.cast_signed()).unwrap(), Signal::CONT).unwrap();
        }
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// The contents of a file in `/proc/PID` of the service.
    pub fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    /// Whether no thread of the service was scheduled or used a CPU for a fifth of a second.
    pub fn is_quiet(&self) -> bool {
        let snapshot = || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            let of_task = |task: std::io::Result<std::fs::DirEntry>| {
                let read = |file| std::fs::read_to_string(task.as_ref().unwrap().path().join(file)).unwrap();
                let switches: String =
                    read("status").lines().filter(|line| line.contains("ctxt_switches")).collect();
                // Fields 14 and 15 of stat: ticks in user and kernel mode. The name before them may contain spaces.
                let times: Vec<String> = read("stat")
                    .rsplit(')')
                    .next()
                    .unwrap()
                    .split(' ')
                    .skip(12)
                    .take(2)
                    .map(str::to_owned)
                    .collect();
                (switches, times)
            };
            tasks.map(of_task).collect::<Vec<_>>()
        };
        let before = snapshot();
        std::thread::sleep(Duration::from_millis(200));
        snapshot() == before
    }

    /// Asserts that all threads of the service go to sleep.
    pub fn assert_idle(&self) {
        assert!((0..100).any(|_| self.is_quiet()), "threads of an idle service keep running");
    }

    /// Waits until the service has `sessions` sessions, as `client` sees it.
    pub fn wait_for_sessions(&self, client: &Client, sessions: usize) {
        wait_until("sessions", || client.status().unwrap().open_sessions == sessions as u64);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn numbers() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent_of(number: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// The state of a process or a thread from its `stat`, after the name, which may contain spaces.
fn state(stat: &str) -> char {
    stat.rsplit(')').next().unwrap().trim_start().chars().next().unwrap()
}

/// Waits for a condition that another process fulfils.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "timed out: {what}");
        std::thread::yield_now();
    }
}

/// Runs the keeper of an engine in a child, and waits for it: it must have one thread, and a test has more. The child ends with the test.
#[allow(unsafe_code, reason = "forks")]
pub fn in_child(run: impl FnOnce() -> bool) -> bool {
    let parent = rustix::process::getpid();
    // SAFETY: the child uses only what the forking thread had, and glibc keeps its allocator usable across a fork.
    match unsafe { libc::fork() } {
        0 => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            // One that ended before sends no signal.
            if rustix::process::getppid() != Some(parent) {
                std::process::exit(1);
            }
            std::process::exit((!run()).into());
        }
        child => {
            let child = Pid::from_raw(child).expect("a child");
            let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
            ended.ok().flatten().is_some_and(|(_, status)| status.exit_status() == Some(0))
        }
    }
}

/// A frame in the own memory of an engine, once the engine gives some.
pub fn far(client: &Client, engine: &str, length: u64) -> Frame {
    let mut frame = None;
    wait_until("the engine to give memory", || {
        frame = client.frame(length).home(engine).alloc().ok();
        frame.is_some()
    });
    frame.unwrap()
}

/// A frame in host memory that the engine of `far`, a frame in its own memory, has, too: a byte of `far` was copied to it. Whenever the engine
/// is late with one on a busy machine, the service offers it no frame of this user for ten seconds and more.
pub fn near(client: &Client, length: u64, far: &Frame) -> Frame {
    let mut queue = client.queue(2).unwrap();
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < 4 * SOON, "timed out: the engine to have a frame");
        let frame = match client.frame(length).alloc() {
            // An earlier one took long to map.
            Err(FrameError::Call(CallError::Refused(refusal))) if refusal.kind == RefusalKind::Frame => {
                continue;
            }
            allocated => allocated.unwrap(),
        };
        match queue.run(copy(far.slice(..1), frame.slice(..1))) {
            Err(RunError::Transfer(error)) if error.failure == Failure::Unsupported => {}
            copied => {
                copied.unwrap();
                return frame;
            }
        }
    }
}

/// Asserts that a client can copy bytes from one of its frames to another.
pub fn assert_moves_bytes(client: &Client) {
    moves_bytes(client).unwrap();
}

/// As [`assert_moves_bytes`], but the service may end meanwhile.
pub fn moves_bytes(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let source = client.frame(4096).alloc()?;
    let destination = client.frame(4096).alloc()?;
    source.write(7, b"still served")?;
    let mut queue = client.queue(4)?;
    let ticket = queue.submit(copy(&source, &destination))?;
    wait_for(&mut queue, ticket)?;
    let mut bytes = [0; 12];
    destination.read(7, &mut bytes)?;
    assert_eq!(&bytes, b"still served");
    Ok(())
}

/// Waits [`SOON`] for a transfer.
pub fn wait_for<T: Output>(queue: &mut Queue, ticket: Ticket<T>) -> Result<Done<T>, TransferError> {
    queue.wait_for(ticket, SOON).map(|done| done.expect("in time"))
}

/// Waits [`SOON`] for any transfer.
pub fn wait_for_any(queue: &mut Queue) -> Result<Done<u64>, TransferError> {
    queue.wait_any_for(SOON).map(|done| done.expect("in time"))
}

/// Waits for a transfer that must succeed.
pub fn done<T: Output>(queue: &mut Queue, ticket: Ticket<T>) -> Done<T> {
    wait_for(queue, ticket).unwrap()
}

/// Waits for a transfer that must fail; returns the reason.
pub fn failure<T: Output>(queue: &mut Queue, ticket: Ticket<T>) -> Failure {
    wait_for(queue, ticket).unwrap_err().failure
}

/// A fill that touches one byte for minutes unless it is cancelled.
pub fn endless(frame: &Frame) -> Transfer {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    let color = memferry::Color24::new(7).unwrap();
    fill_2d(frame, Fill2d { count, destination, color })
}

/// A copy that reads and writes one byte for minutes unless it is cancelled.
pub fn endless_copy(source: &Frame, destination: &Frame) -> Transfer {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let plane = Plane { start: 0, x_step: 0, y_step: 0 };
    let shape = Copy2d { count, source: plane, destination: plane, transparent: None };
    copy_2d(source, destination, shape)
}

/// A client that encodes the protocol itself.
pub struct Raw {
    pub socket: OwnedFd,
    pub serial: u32,
}

impl Raw {
    /// Connects without a handshake.
    pub fn connect(path: &Path) -> Self {
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { socket, serial: 0 }
    }

    /// Connects and shakes hands.
    pub fn open(path: &Path) -> Self {
        let raw = Self::connect(path);
        raw.send(&Hello { versions: VERSIONS, features: 0 }.encode(), &[]);
        Welcome::decode(&raw.receive().unwrap().bytes).unwrap();
        raw
    }

    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        conduit::send(self.socket.as_fd(), bytes, descriptors, true).unwrap();
    }

    /// The next packet; `None` if the service closed the connection.
    pub fn receive(&self) -> Option<Packet> {
        conduit::receive(self.socket.as_fd(), true).ok()
    }

    /// The farewell, which must be the last packet.
    pub fn farewell(&self) -> Violation {
        let packet = self.receive().expect("a farewell before the connection closes");
        let violation = protocol::decode_violation(&packet.bytes).expect("a farewell");
        assert!(self.receive().is_none(), "a packet after the farewell");
        violation
    }

    pub fn encode(&mut self, command: protocol::Command) -> Vec<u8> {
        self.serial += 1;
        let descriptors = command.descriptors();
        protocol::encode(&Envelope { serial: self.serial, descriptors, body: command })
    }

    pub fn command(
        &mut self,
        command: protocol::Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> (Result<Answer, Refusal>, Vec<OwnedFd>) {
        let bytes = self.encode(command);
        self.send(&bytes, descriptors);
        let packet = self.receive().expect("an answer");
        let reply: Reply = protocol::decode(&packet.bytes).expect("a reply");
        assert_eq!(reply.serial, self.serial);
        (reply.body, packet.descriptors)
    }

    /// Opens a queue pair. A test can write anything into the client's half.
    pub fn queue(&mut self, capacity: u32) -> RawQueue {
        let layout = Layout::new(capacity).unwrap();
        let (client, whole) = memferry_shm::frame::allocate_half(layout.client_bytes()).unwrap();
        let scribble = MappedWords::new(whole).unwrap();
        let own = scribble.clone();
        let command = protocol::Command::OpenQueue { capacity };
        let (answer, descriptors) = self.command(command, &[client.as_fd()]);
        assert!(matches!(answer, Ok(Answer::Queue { .. })), "{answer:?}");
        let [service, doorbell, parked] = <[OwnedFd; 3]>::try_from(descriptors).unwrap();
        let map = |fd: &OwnedFd, words: usize, access| {
            MappedWords::new(Mapping::shared(fd.as_fd(), words * 8, access, 4096).unwrap()).unwrap()
        };
        let peer = map(&service, layout.service_words(), Access::ReadOnly);
        let parked = map(&parked, ParkedWord::<MappedWords>::BYTES / 8, Access::ReadOnly);
        let end = ClientEnd::new(layout, own, peer, parked, Fences::Full).unwrap();
        RawQueue { end, scribble, client, service, doorbell }
    }
}

/// A queue pair of a client that may write anything into it.
pub struct RawQueue {
    pub end: ClientEnd<MappedWords>,
    pub scribble: MappedWords,
    pub client: OwnedFd,
    pub service: OwnedFd,
    pub doorbell: OwnedFd,
}

impl RawQueue {
    pub fn ring(&self) {
        rustix::io::write(&self.doorbell, &1u64.to_ne_bytes()).unwrap();
    }

    /// The next completion slot.
    pub fn completion(&mut self) -> [u64; 3] {
        let started = Instant::now();
        loop {
            if let Some(slot) = self.end.pop() {
                return slot;
            }
            assert!(started.elapsed() < SOON, "no completion");
            std::thread::yield_now();
        }
    }
}

/// This test binary in another process, running the test function named `role`.
pub struct Role {
    pub child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

const ROLE: &str = "MEMFERRY_TEST_ROLE";
const PREFIX: &str = "role says ";

impl Role {
    pub fn start(role: &str, socket: &Path) -> Self {
        Self::start_by(&mut Command::new(std::env::current_exe().unwrap()), role, socket)
    }

    /// Starts a role by a command that runs this test binary.
    pub fn start_by(command: &mut Command, role: &str, socket: &Path) -> Self {
        let mut child = command
            .args([role, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        Self { child, input, output: BufReader::new(output).lines() }
    }

    /// The next line that the role reported.
    pub fn receive_line(&mut self) -> String {
        loop {
            let line = self.output.next().expect("the role ended").unwrap();
            if let Some((_, reported)) = line.split_once(PREFIX) {
                return reported.to_owned();
            }
        }
    }

    pub fn send_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Starts a role as another user, if this one is root; returns the role, whose client is connected, and its user.
pub fn start_as_another_user(role: &str, socket: &Path) -> (Role, u32) {
    let mut peer = Role::start(role, socket);
    let own = rustix::process::geteuid();
    let user = if own.is_root() {
        peer.send_line(OTHER_USER);
        OTHER_USER.parse().unwrap()
    } else {
        println!("the peer has the same user: only root can start one of another");
        peer.send_line("stay");
        own.as_raw()
    };
    peer.receive_line();
    (peer, user)
}

/// What such a role does first.
pub fn connect_as_told(socket: &Path) -> Client {
    if next_order() == OTHER_USER {
        memferry_attackers::drop_to(OTHER_USER).unwrap();
    }
    let client = Client::connect(socket).unwrap();
    report(client.session());
    client
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The socket, if this process plays a role. A role's test function returns at once otherwise.
pub fn role_socket() -> Option<PathBuf> {
    std::env::var_os(ROLE).map(PathBuf::from)
}

/// Sends a line to the test that started this role.
pub fn report(what: impl std::fmt::Display) {
    println!("{PREFIX}{what}");
}

/// Waits for a line from the test that started this role.
pub fn next_order() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Forks a child that holds everything this process has open and sleeps until it is killed. Returns its id, for a [`Sleeper`].
#[allow(unsafe_code, reason = "forks")]
pub fn fork_a_sleeper() -> i32 {
    // SAFETY: the child only sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        set_alarm();
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    child
}

/// Called in a forked child: a signal ends the child if it hangs.
#[allow(unsafe_code, reason = "asks for a signal")]
pub fn set_alarm() {
    // SAFETY: asks for a signal later, which ends this process.
    unsafe { libc::alarm(120) };
}

/// The child of [`fork_a_sleeper`] in a role, killed however the test ends. It holds the test's output open, so a reader of that
/// output would wait for it.
pub struct Sleeper(Pid);

impl Sleeper {
    /// The child whose id the role reports.
    pub fn of(role: &mut Role) -> Self {
        Self(Pid::from_raw(role.receive_line().parse().unwrap()).unwrap())
    }

    /// Asserts that the child still lives.
    pub fn assert_lives(&self) {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        assert!(!matches!(state(&stat), 'Z' | 'X'), "{stat}");
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}
