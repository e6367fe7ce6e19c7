//! Failures of the other end's memory, socket and service must not harm this end.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use memferry::{RunError, ServiceConfig, copy};

use super::*;
use crate::lent::Import;
use crate::wire::AREA_AT;

#[test]
fn two_services_do_not_grant_to_each_other() {
    let kind = SocketType::SEQPACKET;
    let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let own = || Client::embedded_with(ServiceConfig::default()).unwrap();
    let ours = own();
    let theirs = own();
    std::thread::scope(|scope| {
        let there = scope.spawn(|| over(other, &theirs, Options::default()).unwrap());
        let (mut sender, _receiver) = over(one, &ours, Options::default()).unwrap();
        let _there = there.join().unwrap();
        let frame = ours.frame(4096).alloc().unwrap();
        assert!(!sender.can_grant());
        assert!(matches!(sender.lend(1, &frame, SOON), Err(SendError::OtherService)));
    });
}

/// A socket whose close lingers for an hour, and the end that it waits for.
pub(super) fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (taker, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 64 << 10]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    (stream, taker)
}

#[test]
fn what_was_lent_is_taken_back_before_the_end_is_told() {
    for is_lost in [false, true] {
        let ((ours, mut sender, _here), (theirs, _back, mut receiver)) = ends(Options::default());
        let frame = ours.frame(4096).alloc().unwrap();
        let loan = sender.lend(9, &frame, SOON).unwrap();
        // It stays lent, and the other end keeps what it accepted.
        let lent = receive_lent(&mut receiver);
        let Import::Granted(granted) = &*lent.import else { panic!("{lent:?}") };
        let own = theirs.frame(4096).alloc().unwrap();
        let mut queue = theirs.queue(2).unwrap();
        queue.run(copy(granted, &own)).unwrap();
        let ended = if is_lost {
            rustix::net::shutdown(receiver.as_fd(), rustix::net::Shutdown::Both).unwrap();
            matches!(sender.settle(loan, SOON), Err(SendError::PeerLost))
        } else {
            drop(receiver);
            matches!(sender.settle(loan, SOON), Err(SendError::Closed))
        };
        assert!(ended);
        match queue.run(copy(granted, &own)) {
            Err(RunError::Transfer(error)) => {
                assert!(matches!(error.failure, Failure::Revoked { .. }), "{error}");
            }
            other => panic!("{:?}", other.map(drop).map_err(|_| "not submitted")),
        }
        assert_eq!(sender.statistics().entries, 0);
    }
}

#[test]
fn a_slow_descriptor_does_not_delay_closing() {
    // The descriptor is still in the socket, or was received and not requested.
    for taken_in in [false, true] {
        let ((_one, sender, _here), (_other, back, mut receiver)) = ends(Options::default());
        let (slow, taker) = lingering();
        let socket = sender.peer().socket.as_fd();
        conduit::send(socket, &5u32.to_le_bytes(), &[slow.as_fd()], false).unwrap();
        drop(slow);
        if taken_in {
            receiver.arm().unwrap();
        }
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop((back, receiver));
            done.send(()).unwrap();
        });
        let ended = ended.recv_timeout(Duration::from_secs(20));
        // Ends a close that lingers, on whichever thread.
        drop(taker);
        assert_eq!(ended, Ok(()));
    }
}

#[test]
#[expect(unsafe_code, reason = "makes memory of its own process fail")]
fn failing_memory_is_an_error() {
    let ((_one, mut sender, _here), (_other, _back, mut receiver)) = ends(Options::default());
    let empty = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let area = receiver.peer().theirs.mapping().pointer().wrapping_add(AREA_AT as usize);
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: replaces the area, which is only copied from under a bus error guard, by pages of an empty file.
    let mapped =
        unsafe { libc::mmap(area.cast(), AREA_BYTES as usize, libc::PROT_READ, flags, empty.as_raw_fd(), 0) };
    assert_eq!(mapped, area.cast());
    sender.send(1, b"in a slot", SOON).unwrap();
    sender.send(2, &noise(5000, 1), SOON).unwrap();
    assert_eq!(receive_bytes(&mut receiver).0, 1);
    let failed = receiver.receive(SOON).map(|message| message.kind);
    assert!(matches!(failed, Err(ReceiveError::MemoryFault)), "{failed:?}");
    let again = receiver.receive(SOON).map(|message| message.kind);
    assert!(matches!(again, Err(ReceiveError::Broken(Violation::Earlier))), "{again:?}");
}
