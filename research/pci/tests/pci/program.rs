//! The program: its socket, its ends, its messages to a person.

use std::io::{BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use memferry_pci::message::{HEADER, MAXIMUM, command};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;

use super::support::{CONFIG, header, map_payload, memfd, u32s, u64s};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("memferry-device-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn program(arguments: &[&str], socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry-device"));
    command.args(["serve", "ioat", "--socket"]).arg(socket).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Starts the program and waits for its first line.
fn start(arguments: &[&str], socket: &Path) -> Child {
    let mut child = program(arguments, socket).spawn().unwrap();
    let mut line = Vec::new();
    let stderr = child.stderr.as_mut().unwrap();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&line));
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    assert_eq!(line, format!("memferry-device: serving I/OAT at {}\n", socket.display()));
    child
}

fn signal(child: &Child, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Waits for the program's end; its exit code and its lines.
fn end(child: Child) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Starts the program on a socket that it should not serve.
fn refused(socket: &Path) -> (Option<i32>, String) {
    let mut child = program(&[], socket).spawn().unwrap();
    let mut text = String::new();
    std::io::BufReader::new(child.stderr.take().unwrap()).read_line(&mut text).unwrap();
    if text.contains("serving") {
        child.kill().unwrap();
    }
    (child.wait().unwrap().code(), text)
}

fn send(socket: &mut UnixStream, number: u16, payload: &[u8]) {
    socket.write_all(&header(1, number, HEADER + payload.len(), 0)).unwrap();
    socket.write_all(payload).unwrap();
}

/// A reply's errno and payload.
fn reply(socket: &mut UnixStream) -> (u32, Vec<u8>) {
    let mut header = [0; HEADER];
    socket.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
    let mut payload = vec![0; word(4) as usize - HEADER];
    socket.read_exact(&mut payload).unwrap();
    (word(12), payload)
}

fn connect(path: &Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    send(&mut socket, command::VERSION, &[0, 0, 1, 0]);
    assert_eq!(reply(&mut socket).0, 0);
    socket
}

fn vendor(socket: &mut UnixStream) -> Vec<u8> {
    send(socket, command::REGION_READ, &[u64s(&[0]), u32s(&[CONFIG, 4])].concat());
    reply(socket).1[16..].to_vec()
}

fn send_descriptors(socket: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) {
    let borrowed: Vec<_> = descriptors.iter().map(std::os::fd::AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    let parts = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::empty()).unwrap();
}

#[test]
fn ends_when_the_client_goes() {
    let folder = Folder::new("ends");
    let child = start(&["--version", "3.0"], &folder.socket());
    let mut socket = connect(&folder.socket());
    assert_eq!(vendor(&mut socket), [0x86, 0x80, 0x30, 0x34]);
    drop(socket);
    let (code, text) = end(child);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("ended: 2 commands"), "{text}");
    assert!(!folder.socket().exists(), "the socket is removed");
}

#[test]
fn messages_may_come_in_pieces_with_descriptors() {
    let folder = Folder::new("pieces");
    let child = start(&[], &folder.socket());
    let mut socket = connect(&folder.socket());
    let map = map_payload(3, 0, 0x1000, 4096);
    let whole = [&header(9, command::DMA_MAP, HEADER + map.len(), 0)[..], &map].concat();
    send_descriptors(&socket, &whole[..5], &[memfd(4096)]);
    for byte in &whole[5..] {
        socket.write_all(&[*byte]).unwrap();
    }
    assert_eq!(reply(&mut socket), (0, vec![]));
    // Two messages in one piece.
    let two = [whole.clone(), whole].concat();
    socket.write_all(&two).unwrap();
    assert_eq!(reply(&mut socket), (0, vec![]), "no descriptor: not the device's memory");
    assert_eq!(reply(&mut socket), (0, vec![]));
    drop(socket);
    assert_eq!(end(child).0, Some(0));
}

#[test]
fn broken_streams_end_with_their_reason() {
    let cases: [(&str, Vec<u8>, &str); 5] = [
        ("long", header(1, command::RESET, MAXIMUM + 1, 0).to_vec(), "a message of 1048609 bytes"),
        ("short", header(1, command::RESET, 3, 0).to_vec(), "a message of 3 bytes; a header alone has 16"),
        ("reply", header(1, command::RESET, HEADER, 1).to_vec(), "message 1 has type 1"),
        ("first", header(1, command::RESET, HEADER, 0).to_vec(), "first command is 13; VERSION comes first"),
        ("cut", header(1, command::RESET, HEADER, 0)[..7].to_vec(), "in the middle of a message"),
    ];
    for (name, bytes, reason) in cases {
        let folder = Folder::new(name);
        let child = start(&[], &folder.socket());
        let mut socket = UnixStream::connect(folder.socket()).unwrap();
        socket.write_all(&bytes).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{name}");
        let (code, text) = end(child);
        assert_eq!(code, Some(1), "{name}: {text}");
        assert!(text.contains("the connection ended: ") && text.contains(reason), "{name}: {text}");
    }
}

#[test]
fn too_many_descriptors_end_the_connection() {
    let folder = Folder::new("descriptors");
    let child = start(&[], &folder.socket());
    let socket = connect(&folder.socket());
    let many: Vec<OwnedFd> = (0..17).map(|_| memfd(4096)).collect();
    send_descriptors(&socket, &header(1, command::RESET, HEADER, 0), &many);
    let (code, text) = end(child);
    assert_eq!(code, Some(1));
    assert!(text.contains("more than 16 descriptors"), "{text}");
}

#[test]
fn a_second_client_is_refused() {
    let folder = Folder::new("second");
    let child = start(&["--keep"], &folder.socket());
    let mut first = connect(&folder.socket());
    let mut second = UnixStream::connect(folder.socket()).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap(), 0, "closed at once");
    assert_eq!(vendor(&mut first), [0x86, 0x80, 0x10, 0x37], "the first goes on");
    // The next client finds a device that was reset.
    send(&mut first, command::REGION_WRITE, &[u64s(&[4]), u32s(&[CONFIG, 2]), vec![6, 0]].concat());
    assert_eq!(reply(&mut first).0, 0);
    // Even if the program sees the end of the first one and the next one at once.
    signal(&child, Signal::STOP);
    drop(first);
    let mut next = UnixStream::connect(folder.socket()).unwrap();
    signal(&child, Signal::CONT);
    send(&mut next, command::VERSION, &[0, 0, 1, 0]);
    assert_eq!(reply(&mut next).0, 0);
    send(&mut next, command::REGION_READ, &[u64s(&[4]), u32s(&[CONFIG, 2])].concat());
    assert_eq!(reply(&mut next).1[16..], [0, 0], "the command register is reset");
    signal(&child, Signal::TERM);
    let (code, text) = end(child);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("refused a second client") && text.contains("waiting for the next one"), "{text}");
    assert!(!folder.socket().exists());
}

#[test]
fn a_client_that_does_not_read_does_not_stop_the_device() {
    let folder = Folder::new("deaf");
    let child = start(&[], &folder.socket());
    let mut socket = connect(&folder.socket());
    socket.set_nonblocking(true).unwrap();
    let payload = [u64s(&[0]), u32s(&[CONFIG, 4096])].concat();
    let ask = [&header(1, command::REGION_READ, HEADER + 16, 0)[..], &payload].concat();
    // Until neither side takes more.
    while socket.write(&ask).is_ok_and(|sent| sent == ask.len()) {}
    signal(&child, Signal::INT);
    assert_eq!(end(child).0, Some(0));
}

#[test]
fn bad_options_say_what_to_do() {
    let folder = Folder::new("options");
    let schedule = folder.0.join("faults");
    std::fs::write(&schedule, "channel 0 descriptor 1 halt nothing\n").unwrap();
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    let schedule = schedule.to_str().unwrap();
    let missing = folder.0.join("missing");
    let cases: [(&[&str], PathBuf, &str); 8] = [
        (&["--version", "1.2"], folder.socket(), "there is no version 1.2; choose 3.0, 3.2 or 3.3"),
        (&["--channels", "5"], folder.socket(), "1..=4"),
        (&["--id", "xyz"], folder.socket(), "at most four hexadecimal digits"),
        (
            &["--faults", schedule],
            folder.socket(),
            "faults: line 1, column 29: \"nothing\" is not expected; name an error",
        ),
        (&["--faults", missing.to_str().unwrap()], folder.socket(), "name a readable file with --faults"),
        (&["--channels", "1", "--faults", "/dev/zero"], folder.socket(), "at most 1048576 bytes; shorten it"),
        (&[], file, "exists and is no socket; choose another --socket"),
        (&[], missing.join("s"), "the folder must exist"),
    ];
    for (arguments, socket, expected) in cases {
        let (code, text) = end(program(arguments, &socket).spawn().unwrap());
        assert!(code != Some(0) && text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_socket_in_use_is_left_alone() {
    let folder = Folder::new("use");
    let mut child = start(&[], &folder.socket());
    for _ in 0..2 {
        let (code, text) = refused(&folder.socket());
        assert_eq!(code, Some(1));
        assert!(text.contains("another process listens there"), "{text}");
    }
    let mut socket = connect(&folder.socket());
    assert_eq!(vendor(&mut socket), [0x86, 0x80, 0x10, 0x37], "a second start is no client whose end counts");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(folder.socket().exists(), "a killed program leaves its socket");
    let child = start(&[], &folder.socket());
    drop(connect(&folder.socket()));
    assert_eq!(end(child).0, Some(0), "the next one replaces it");
}

#[test]
fn a_connection_without_a_version_is_no_client() {
    let folder = Folder::new("probe");
    let child = start(&[], &folder.socket());
    drop(UnixStream::connect(folder.socket()).unwrap());
    drop(connect(&folder.socket()));
    let (code, text) = end(child);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("ended: 1 commands") && !text.contains("gone"), "{text}");
}

#[test]
fn only_a_socket_without_a_listener_is_replaced() {
    let folder = Folder::new("other");
    let path = folder.socket();
    let datagrams = UnixDatagram::bind(&path).unwrap();
    let (code, text) = refused(&path);
    assert_eq!(code, Some(1));
    assert!(text.contains("whether a process listens there cannot be found out"), "{text}");
    assert!(path.exists());
    drop(datagrams);
    std::fs::remove_file(&path).unwrap();
    // A listener that accepts nothing, and whose queue is full.
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let waiting = UnixStream::connect(&path).unwrap();
    let (code, text) = refused(&path);
    assert_eq!(code, Some(1));
    assert!(text.contains("another process listens there"), "{text}");
    assert!(path.exists());
    drop((waiting, listener));
    let child = start(&[], &path);
    drop(connect(&path));
    assert_eq!(end(child).0, Some(0));
}
