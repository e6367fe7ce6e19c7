//! A peer that sends descriptors that close slowly cannot exhaust this process. Its own test program, because pending
//! descriptors are counted per process.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use memferry::Client;
use memferry_bulk::{ConnectError, Listener, Options, connect};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, sockopt,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SOON: Option<Duration> = Some(Duration::from_secs(20));
/// Descriptors of one packet.
const MANY: usize = 200;

/// Sockets whose close lingers for an hour, or until their other ends (returned second) are closed.
fn lingering() -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Small buffers, so that few bytes fill them.
    sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let pair = |_| {
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (taker, _) = listener.accept().unwrap();
        sockopt::set_socket_send_buffer_size(&stream, 4096).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 16 << 10]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
        (stream, taker)
    };
    (0..MANY).map(pair).unzip()
}

/// Connects and sends many descriptors with an invalid greeting.
fn attack(path: &Path, slow: Vec<TcpStream>) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let gifts: Vec<_> = slow.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&gifts)));
    rustix::net::sendmsg(&socket, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    socket
}

#[test]
fn connections_wait_for_pending_closes() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    if most.is_some_and(|most| most < 2000) {
        println!("skipped: the limit of open files is below 2000");
        return;
    }
    let path = std::env::temp_dir().join(format!("memferry-closing-{}.sock", std::process::id()));
    let listener = Listener::bind(&path).unwrap();
    let client = Client::embedded().unwrap();
    let accept = || listener.accept(&client, Options::default(), SOON).map(drop);
    let mut takers = Vec::new();
    let mut attackers = Vec::new();
    for _ in 0..2 {
        let (slow, ends) = lingering();
        takers.extend(ends);
        attackers.push(attack(&path, slow));
        let refused = accept();
        assert!(matches!(refused, Err(ConnectError::Handshake(_))), "{refused:?}");
    }
    let (slow, ends) = lingering();
    takers.extend(ends);
    attackers.push(attack(&path, slow));
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..2 {
        let refused = accept();
        assert!(matches!(refused, Err(ConnectError::Closing { pending: 257.. })), "{refused:?}");
        let refused = connect(&path, &client, Options::default()).map(drop);
        assert!(matches!(refused, Err(ConnectError::Closing { .. })), "{refused:?}");
    }
    assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() <= open, "the third connection was accepted");
    drop(takers);
    // They are closed now, and the waiting connections are accepted in turn.
    let refused = accept();
    assert!(matches!(refused, Err(ConnectError::Handshake(_))), "{refused:?}");
    // Lives until the other end has identified its session.
    let other = Client::embedded().unwrap();
    std::thread::scope(|scope| {
        let connected = scope.spawn(|| connect(&path, &other, Options::default()).map(drop));
        let accepted = accept();
        let connected = connected.join().unwrap();
        assert!(accepted.is_ok() && connected.is_ok(), "{accepted:?}, {connected:?}");
    });
}
