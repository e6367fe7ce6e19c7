//! The command line against a service that is not what it should be, and a service whose clients may be anyone.
//!
//! ```text
//! memferry status, policy, metrics ─► a fake service: silent, or with terminal escapes ─► a clean message, in time
//! unshare -U memferry serve        ─► users without an id there: refused as clients and as grantees
//! ```

mod harness;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use harness::{SOON, Service, assert_moves_bytes, fresh_directory};
use memferry::{CallError, Client, ConnectError, Grantee, RefusalKind, Rights, Violation};
use memferry_service::protocol::{self, Answer, Envelope, Hello, Refusal, Reply, Status, VERSIONS, Welcome};
use memferry_shm::conduit;
use memferry_transfer::SessionId;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const BINARY: &str = env!("CARGO_BIN_EXE_memferry");

/// What a terminal would obey: a title, a cleared screen, an overwritten line, a colour of one byte.
const HOSTILE: &str = "\x1b]0;owned\x07\x1b[2J\rgone\u{9b}31m";

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A socket on which `serve` answers one connection.
fn fake_service(directory: &Directory, serve: impl FnOnce(OwnedFd) + Send + 'static) -> PathBuf {
    let path = directory.0.join("fake.sock");
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 4).unwrap();
    std::thread::spawn(move || serve(rustix::net::accept(&socket).unwrap()));
    path
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    conduit::send(socket.as_fd(), bytes, &[], true).unwrap();
}

/// Shakes hands, and answers each command with `body`.
fn answer_all(socket: &OwnedFd, body: &Result<Answer, Refusal>) {
    let hello = conduit::receive(socket.as_fd(), true).unwrap();
    assert_eq!(Hello::decode(&hello.bytes).unwrap().versions, VERSIONS);
    send(socket, &Welcome { version: VERSIONS.1, features: 0, session: SessionId(1) }.encode());
    for serial in 1.. {
        if conduit::receive(socket.as_fd(), true).is_err() {
            return;
        }
        let reply: Reply = Envelope { serial, descriptors: 0, body: body.clone() };
        send(socket, &protocol::encode(&reply));
    }
}

fn run(command: &str, socket: &Path) -> (Output, String) {
    let output = Command::new(BINARY).args([command, "--socket"]).arg(socket).output().unwrap();
    let mut printed = output.stdout.clone();
    printed.extend(&output.stderr);
    (output, String::from_utf8(printed).unwrap())
}

fn assert_clean(printed: &str) {
    let is_safe = |letter: char| letter == '\n' || !letter.is_control();
    assert!(printed.chars().all(is_safe), "{printed:?}");
    assert!(printed.contains("gone"), "{printed:?}");
}

#[test]
fn texts_of_a_service_control_no_terminal() {
    for command in ["status", "policy", "metrics"] {
        let directory = Directory(fresh_directory());
        let refusal = Err(Refusal { kind: RefusalKind::System, message: HOSTILE.to_owned() });
        let socket = fake_service(&directory, move |socket| answer_all(&socket, &refusal));
        let (output, printed) = run(command, &socket);
        assert!(!output.status.success(), "{printed}");
        assert_clean(&printed);
    }
    let directory = Directory(fresh_directory());
    let unwelcome = Violation::Unwelcome(HOSTILE.to_owned());
    let socket = fake_service(&directory, move |socket| {
        drop(conduit::receive(socket.as_fd(), true));
        send(&socket, &protocol::encode_violation(&unwelcome));
    });
    let (output, printed) = run("status", &socket);
    assert!(!output.status.success(), "{printed}");
    assert_clean(&printed);
    for command in ["status", "metrics"] {
        let directory = Directory(fresh_directory());
        let status = Status { policy: HOSTILE.to_owned(), ..Status::default() };
        let body = Ok(Answer::Status(Box::new(status)));
        let socket = fake_service(&directory, move |socket| answer_all(&socket, &body));
        let (output, printed) = run(command, &socket);
        assert!(output.status.success(), "{printed}");
        assert_clean(&printed);
    }
}

#[test]
fn names_of_files_control_no_terminal() {
    let name = format!("/nonexistent/{HOSTILE}");
    let output = Command::new(BINARY).args(["copy", &name, "/nonexistent/x"]).output().unwrap();
    assert!(!output.status.success());
    assert_clean(&String::from_utf8(output.stderr).unwrap());
}

#[test]
fn a_silent_service_is_reported_in_time() {
    let directory = Directory(fresh_directory());
    let socket = fake_service(&directory, |_socket| std::thread::park());
    let started = Instant::now();
    let (output, printed) = run("status", &socket);
    assert!(!output.status.success() && printed.contains("did not answer within 5s"), "{printed}");
    assert!(started.elapsed() < SOON);
}

/// A service in a user namespace of its own; `None` where this system gives none.
fn start_confined(flags: &[&str]) -> Option<Service> {
    let possible = Command::new("unshare").args(flags).arg("true").stderr(Stdio::null()).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system does not give `unshare {}`", flags.join(" "));
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(flags).arg(BINARY);
    Some(Service::start_by(command, fresh_directory(), &[]))
}

#[test]
fn a_user_without_an_id_is_no_client() {
    let Some(service) = start_confined(&["-U"]) else { return };
    let refused = Client::connect(&service.socket).err().unwrap();
    let is_refusal = matches!(refused, ConnectError::Handshake { violation: Violation::Unwelcome(_), .. });
    assert!(is_refusal && refused.to_string().contains("stands for every user without an id"), "{refused}");
}

#[test]
fn a_user_without_an_id_is_no_grantee() {
    let Some(service) = start_confined(&["-U", "-r"]) else { return };
    // This user is 0 there, and all others are the overflow user.
    let client = Client::connect(&service.socket).unwrap();
    assert_moves_bytes(&client);
    let frame = client.frame(4096).alloc().unwrap();
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap().trim().parse().unwrap();
    let refused = client.grant(&frame, Rights::READ, Grantee::User(overflow)).unwrap_err();
    let is_refusal = matches!(&refused, CallError::Refused(refusal) if refusal.kind == RefusalKind::Argument);
    assert!(is_refusal && refused.to_string().contains("stands for every user without an id"), "{refused}");
    let granted = client.grant(&frame, Rights::READ, Grantee::User(0)).unwrap();
    Client::connect(&service.socket).unwrap().accept(granted.token()).unwrap();
}
