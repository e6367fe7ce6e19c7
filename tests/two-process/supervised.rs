//! The service under a supervisor: socket activation, notifications, restarts; and several services that start at once.
//!
//! ```text
//! socket of the test ─ descriptor 3, LISTEN_FDS ─► service ─ killed, restarted ─► serves clients of both
//! NOTIFY_SOCKET      ◄─ READY, STATUS, STOPPING
//! one stale path     ─ many services ─► one listens, the others fail with a message
//! ```
//!
//! No test sleeps: it waits for a process's output or exit.

mod harness;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use harness::{SOON, Service, assert_moves_bytes, endless, fresh_directory, moves_bytes};
use memferry::{Client, Failure, Pattern, Queue, Ticket, TransferError, fill, nop, repeat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};

const BINARY: &str = env!("CARGO_BIN_EXE_memferry");

/// A directory removed with its test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        Self(fresh_directory())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process killed with its test.
struct Started(Child);

impl Started {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// The first line of output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// The error messages, after the process failed.
    fn failure(mut self) -> String {
        let mut errors = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(1), "{errors}");
        errors
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn listening(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 64).unwrap();
    socket
}

/// A service with `socket` as descriptor 3 and these environment variables; `$$` is its process id.
fn activated(socket: impl Into<OwnedFd>, environment: &str, arguments: &[&str]) -> Started {
    let script = format!("exec 3<&0 0</dev/null; export {environment}; exec \"$0\" serve --no-config \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(BINARY).args(arguments).stdin(Stdio::from(socket.into()));
    command.env("MEMFERRY_LOG", "off").stdout(Stdio::piped()).stderr(Stdio::piped());
    Started(command.spawn().unwrap())
}

const ONE: &str = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=memferry";

#[test]
fn an_activated_socket_is_served_and_kept() {
    let place = Place::new();
    let path = place.path("s");
    let socket = listening(&path);
    for signal in [Signal::TERM, Signal::INT] {
        let mut service = activated(socket.try_clone().unwrap(), ONE, &[]);
        assert_eq!(service.line(), format!("listening on {}\n", path.display()));
        assert_moves_bytes(&Client::connect(&path).unwrap());
        service.signal(signal);
        assert!(service.0.wait().unwrap().success());
        assert!(path.exists());
    }
    assert!(!place.path("s.lock").exists());
}

#[test]
fn wrong_sockets_are_refused_with_a_remedy() {
    let place = Place::new();
    let packets = || {
        let kind = SocketType::SEQPACKET;
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    };
    let stream = OwnedFd::from(UnixListener::bind(place.path("stream")).unwrap());
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let internet = OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let unlinked = OwnedFd::from(UnixStream::pair().unwrap().0);
    for (socket, environment, expected) in [
        (stream, ONE, "ListenSequentialPacket="),
        (internet, ONE, "ListenSequentialPacket="),
        (unlinked, ONE, "ListenSequentialPacket="),
        (file, ONE, "fd 3 is not a socket"),
        (packets(), ONE, "it does not listen"),
        (packets(), "LISTEN_PID=$$ LISTEN_FDS=0", "0 sockets came"),
        (
            packets(),
            "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a:b",
            "2 sockets came (a:b), it listens on one",
        ),
        (packets(), "LISTEN_PID=$$ LISTEN_FDS=many", "LISTEN_FDS is 'many', it has to be a number"),
        (packets(), "LISTEN_PID=mine LISTEN_FDS=1", "LISTEN_PID is 'mine'"),
    ] {
        let errors = activated(socket, environment, &[]).failure();
        assert!(
            errors.contains("cannot take over the socket") && errors.contains(expected),
            "{expected}: {errors}"
        );
    }
}

#[test]
fn sockets_of_another_process_are_ignored() {
    let place = Place::new();
    let given = place.path("given");
    let own = place.path("own");
    let own_text = own.to_str().unwrap();
    let mut service = activated(listening(&given), "LISTEN_PID=1 LISTEN_FDS=1", &["--socket", own_text]);
    assert_eq!(service.line(), format!("listening on {own_text}\n"));
    assert_moves_bytes(&Client::connect(&own).unwrap());
}

#[test]
fn systemd_activates_the_service() {
    let tool = "/usr/bin/systemd-socket-activate";
    if !Path::new(tool).exists() {
        return;
    }
    let place = Place::new();
    let path = place.path("s");
    let mut command = Command::new(tool);
    command.arg("--seqpacket").arg("-l").arg(&path).arg("-E").arg("MEMFERRY_LOG=off");
    command.arg(BINARY).args(["serve", "--no-config"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut service = Started(command.spawn().unwrap());
    let mut errors = BufReader::new(service.0.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("Listening on") {
        line.clear();
        assert_ne!(errors.read_line(&mut line).unwrap(), 0);
    }
    // systemd-socket-activate starts the service at the first connection.
    assert_moves_bytes(&Client::connect(&path).unwrap());
    assert_eq!(service.line(), format!("listening on {}\n", path.display()));
    service.signal(Signal::TERM);
    assert!(service.0.wait().unwrap().success());
    assert!(path.exists());
}

#[test]
fn the_unit_files_pass_systemd_analyze() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let units = ["systemd", "cuda", "ioat"].map(|folder| std::fs::read_dir(packaging.join(folder)).unwrap());
    let place = Place::new();
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify").arg("--man=no");
    for unit in units.into_iter().flatten() {
        let unit = unit.unwrap().path();
        if unit.extension().is_some_and(|extension| extension == "1") {
            continue;
        }
        let text = std::fs::read_to_string(&unit).unwrap();
        // The started program must exist: use the command just built.
        let copy = place.path(unit.file_name().unwrap().to_str().unwrap());
        let text = text
            .replace("/usr/bin/memferry-engine-cuda", BINARY)
            .replace("/usr/bin/memferry-engine-ioat", BINARY)
            .replace("/usr/bin/memferry", BINARY)
            .replace("/usr/lib/memferry/engines/%i", BINARY);
        std::fs::write(&copy, text).unwrap();
        verify.arg(copy);
    }
    assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 8);
    // Without systemd there is no systemd-analyze to run.
    let Ok(output) = verify.output() else { return };
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Submits requests of which some end soon, some never, and some wait for an engine channel.
fn load(client: &Client) -> (Queue, Vec<Ticket>) {
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(64).unwrap();
    let mut submit = |transfer| queue.submit(transfer).unwrap();
    let mut tickets = vec![submit(fill(&frame, Pattern::Byte(1)))];
    tickets.extend((0..4).map(|_| submit(endless(&frame))));
    tickets.extend((0..30).map(|_| submit(nop())));
    (queue, tickets)
}

/// Asserts that every ticket gets one completion, with a result that a stop or a kill may cause.
fn assert_one_completion_each(mut queue: Queue, tickets: &[Ticket], killed: bool) {
    let mut ended = Vec::new();
    for _ in 0..tickets.len() {
        ended.push(match harness::wait_for_any(&mut queue) {
            Ok(done) => done.id,
            Err(TransferError { id, failure: Failure::ServiceLost, .. }) => id,
            Err(TransferError { id, failure: Failure::Cancelled | Failure::ServiceStopping, .. })
                if !killed =>
            {
                id
            }
            Err(other) => panic!("{other:?}"),
        });
    }
    ended.sort();
    let mut submitted: Vec<_> = tickets.iter().map(|ticket| ticket.id()).collect();
    submitted.sort();
    assert_eq!(ended, submitted);
    assert_eq!(queue.poll(), None);
}

/// Connects and is served. Connecting never fails; but the service that stops may let a client in just before, and be gone when it asks.
fn come(path: &Path) {
    let start = Instant::now();
    while let Err(error) = moves_bytes(&Client::connect(path).unwrap()) {
        let why = error.to_string();
        let is_end = why.contains("the service was lost") || why.contains("the service is stopping");
        assert!(is_end && start.elapsed() < SOON, "{why}");
    }
}

#[test]
fn requests_end_once_across_restarts() {
    let place = Place::new();
    let path = place.path("s");
    let socket = listening(&path);
    let start = || {
        let mut service = activated(socket.try_clone().unwrap(), ONE, &["--channels=8", "--grace-ms=50"]);
        assert!(service.line().starts_with("listening on "));
        service
    };
    let mut service = start();
    for signal in [Signal::TERM, Signal::KILL, Signal::TERM, Signal::KILL] {
        let client = Client::connect(&path).unwrap();
        let loads: Vec<_> = (0..3).map(|_| load(&client)).collect();
        // Stopped, so that these clients connect both before and after the service takes its last requests.
        service.signal(Signal::STOP);
        let newcomers: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || come(&path))
            })
            .collect();
        service.signal(signal);
        service.signal(Signal::CONT);
        let ended = service.0.wait().unwrap();
        assert_eq!(ended.success(), signal == Signal::TERM, "{ended:?}");
        for (queue, tickets) in loads {
            assert_one_completion_each(queue, &tickets, signal == Signal::KILL);
        }
        service = start();
        newcomers.into_iter().for_each(|newcomer| newcomer.join().unwrap());
    }
}

fn next_notification(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 512];
    socket.set_read_timeout(Some(SOON)).unwrap();
    // A receive with a timeout can be interrupted at any time.
    let length = loop {
        match socket.recv(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received.unwrap(),
        }
    };
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn the_supervisor_is_notified() {
    let place = Place::new();
    let path = place.path("s");
    let notified = place.path("notify");
    let name = format!("memferry-test-{}", std::process::id());
    let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
    for (socket, environment) in [
        (UnixDatagram::bind(&notified).unwrap(), notified.display().to_string()),
        (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}")),
    ] {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--no-config", "--workers=1", "--socket"]).arg(&path);
        command.env("NOTIFY_SOCKET", environment).env("MEMFERRY_LOG", "off").stdout(Stdio::piped());
        let mut service = Started(command.spawn().unwrap());
        assert_eq!(
            next_notification(&socket),
            format!("READY=1\nSTATUS=Listening on {} with 1 workers\n", path.display())
        );
        // Ready means that clients can connect.
        assert_moves_bytes(&Client::connect(&path).unwrap());
        service.signal(Signal::TERM);
        assert!(next_notification(&socket).starts_with("STOPPING=1\nSTATUS="));
        assert!(service.0.wait().unwrap().success());
    }
}

#[test]
fn an_unreachable_supervisor_is_ignored() {
    let place = Place::new();
    for name in ["/nonexistent/notify", "vsock:2:1234", "@", "relative"] {
        let path = place.path("s");
        let mut command = Command::new(BINARY);
        command.args(["serve", "--no-config", "--socket"]).arg(&path).env("NOTIFY_SOCKET", name);
        let mut service = Started(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
        assert!(service.line().starts_with("listening on "), "{name}");
        service.signal(Signal::TERM);
        assert!(service.0.wait().unwrap().success());
    }
}

#[test]
fn one_of_many_concurrent_services_listens() {
    let place = Place::new();
    let path = place.path("s");
    for round in 0..5 {
        let start = |_| {
            let mut command = Command::new(BINARY);
            command.args(["serve", "--no-config", "--workers=1", "--socket"]).arg(&path);
            command.env("MEMFERRY_LOG", "off").stdout(Stdio::piped()).stderr(Stdio::piped());
            Started(command.spawn().unwrap())
        };
        let started: Vec<_> = (0..8).map(start).collect();
        let mut listening = Vec::new();
        let mut refused = 0;
        for mut service in started {
            if service.line().is_empty() {
                let errors = service.failure();
                assert!(errors.contains("a service is already listening on"), "{errors}");
                refused += 1;
            } else {
                listening.push(service);
            }
        }
        assert_eq!((listening.len(), refused), (1, 7), "round {round}");
        // Clients reach the one that listens.
        let client = Client::connect(&path).unwrap();
        assert_eq!(client.status().unwrap().process, listening[0].0.id());
        // Killed, so that the socket and the lock file remain for the next round.
        listening[0].signal(Signal::KILL);
        listening[0].0.wait().unwrap();
        assert!(path.exists() && place.path("s.lock").exists());
    }
}

#[test]
fn a_loop_that_runs_when_its_service_stops_makes_all_its_rounds() {
    const ROUNDS: u32 = 100;
    let mut service = Service::start(&["--workers=1", "--grace-ms=60000"]);
    let client = service.client();
    let frame = client.frame(16 << 20).alloc().unwrap();
    let mut queue = client.queue(4).unwrap();
    let rounds = queue.submit(repeat(ROUNDS)).unwrap();
    let filled = queue.submit(fill(&frame, Pattern::Byte(1))).unwrap();
    harness::wait_until("the loop to run", || {
        let mut first = [0];
        frame.read(0, &mut first).unwrap();
        first == [1]
    });
    service.signal(Signal::TERM);
    assert_eq!(queue.wait(rounds).unwrap().output, u64::from(ROUNDS));
    assert_eq!(queue.wait(filled).unwrap().bytes_done, u64::from(ROUNDS) * frame.length());
    assert!(service.wait().success());
}

#[test]
fn a_clean_exit_leaves_no_files() {
    let mut service = Service::start(&[]);
    let directory = service.socket.parent().unwrap().to_owned();
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2, "the socket and its lock file");
    service.signal(Signal::TERM);
    assert!(service.wait().success());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}
