//! Messages with descriptors over a Unix socket of sequenced packets (`SOCK_SEQPACKET`).
//!
//! A message is one packet, so it is never half read. The peer is not trusted: a truncated packet or descriptor list is an
//! error, and each received descriptor is owned at once, so none leaks. The wire protocol gives messages their meaning.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use thiserror::Error;

pub const MAXIMUM_BYTES: usize = 16 << 10;
/// Limit on the descriptors of one message.
pub const MAXIMUM_DESCRIPTORS: usize = 4;

/// Linux's limit on the descriptors of one packet (`SCM_MAX_FD`, unix(7)).
const KERNEL_DESCRIPTORS: usize = 253;
/// Room for `KERNEL_DESCRIPTORS` descriptors and the sender's credentials, so that Linux never truncates the list.
// SAFETY: `CMSG_SPACE` only computes with numbers.
const CONTROL_BYTES: usize = unsafe {
    libc::CMSG_SPACE((KERNEL_DESCRIPTORS * size_of::<libc::c_int>()) as u32)
        + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
} as usize;
/// Room for one descriptor and the sender's credentials.
// SAFETY: as above.
const ONE_BYTES: usize = unsafe {
    libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
} as usize;

/// `SO_PASSRIGHTS` (Linux 6.16); the same number on all supported architectures.
pub const SO_PASSRIGHTS: libc::c_int = 83;
/// `SO_PEERPIDFD` (Linux 6.5); the same number on all supported architectures.
const SO_PEERPIDFD: libc::c_int = 77;

#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReceiveError {
    #[error("the peer closed the connection")]
    Closed,
    /// The queue is empty and `wait` was false.
    #[error("no message waits")]
    WouldBlock,
    #[error("a packet is longer than {MAXIMUM_BYTES} bytes")]
    TooLong,
    /// Also returned when Linux truncated the descriptor list, for example at this process's descriptor limit.
    #[error("a packet carries more than {MAXIMUM_DESCRIPTORS} descriptors, or they could not be received")]
    TooManyDescriptors,
    #[error("receiving failed: {0}")]
    System(Errno),
}

/// Receives one packet, blocking if `wait`.
///
/// # Errors
/// [`ReceiveError`]; descriptors of a refused packet are closed.
pub fn receive(socket: BorrowedFd<'_>, wait: bool) -> Result<Packet, ReceiveError> {
    let mut descriptors = Vec::new();
    let bytes = receive_into(socket, wait, &mut descriptors)?;
    Ok(Packet { bytes, descriptors })
}

/// Receives one packet's bytes and appends its descriptors to `descriptors`, even those of a refused packet. Closing a
/// descriptor from a peer can block for as long as the peer likes, so the caller decides on which thread to close them.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive_into(
    socket: BorrowedFd<'_>,
    wait: bool,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Vec<u8>, ReceiveError> {
    receive_introduced(socket, wait, descriptors).map(|(bytes, _)| bytes)
}

/// As [`receive_into`], and returns the PID of the sender as Linux reports it. The PID is `None` unless `SO_PASSCRED` is set
/// on the socket and the sender is visible in this PID namespace.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive_introduced(
    socket: BorrowedFd<'_>,
    wait: bool,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<(Vec<u8>, Option<u32>), ReceiveError> {
    let received = receive_up_to(socket, wait, MAXIMUM_BYTES, descriptors)?;
    if received.lost_descriptors {
        return Err(ReceiveError::TooManyDescriptors);
    }
    Ok((received.bytes, received.process))
}

/// As [`receive_introduced`] without waiting, for a packet that may have one descriptor: of more, Linux gives this process one or two and
/// closes the others before the call returns, which takes as long as their sender likes.
///
/// # Errors
/// [`ReceiveError`]; [`ReceiveError::TooManyDescriptors`] for more.
pub fn receive_with_one(
    socket: BorrowedFd<'_>,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<(Vec<u8>, Option<u32>), ReceiveError> {
    let mut control = [0u64; ONE_BYTES.div_ceil(8)];
    let received = receive_with(socket, false, MAXIMUM_BYTES, (&mut control, descriptors))?;
    if received.lost_descriptors {
        return Err(ReceiveError::TooManyDescriptors);
    }
    Ok((received.bytes, received.process))
}

/// Result of [`receive_up_to`].
#[derive(Debug)]
pub struct ReceivedPacket {
    pub bytes: Vec<u8>,
    /// The PID of the sender, as in [`receive_introduced`].
    pub process: Option<u32>,
    /// There were more descriptors than [`MAXIMUM_DESCRIPTORS`], or than this process had room for.
    pub lost_descriptors: bool,
}

/// As [`receive_introduced`], for packets of up to `limit` bytes. It is no error if descriptors were lost.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive_up_to(
    socket: BorrowedFd<'_>,
    wait: bool,
    limit: usize,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<ReceivedPacket, ReceiveError> {
    let mut control = [0u64; CONTROL_BYTES.div_ceil(8)];
    receive_with(socket, wait, limit, (&mut control, descriptors))
}

fn receive_with(
    socket: BorrowedFd<'_>,
    wait: bool,
    limit: usize,
    (control, descriptors): (&mut [u64], &mut Vec<OwnedFd>),
) -> Result<ReceivedPacket, ReceiveError> {
    let mut bytes = vec![0; limit];
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    let mut attempt =
        || rustix::io::retry_on_intr(|| receive_message(socket, &mut bytes, control, flags, descriptors));
    // A peer that closed before it read our message causes ECONNRESET once. Its earlier messages are still queued.
    let received = match attempt() {
        Err(Errno::CONNRESET) => attempt(),
        other => other,
    };
    let received = received.map_err(|error| match error {
        Errno::AGAIN => ReceiveError::WouldBlock,
        Errno::CONNRESET => ReceiveError::Closed,
        other => ReceiveError::System(other),
    })?;
    if received.flags & libc::MSG_TRUNC != 0 {
        return Err(ReceiveError::TooLong);
    }
    let lost_descriptors =
        received.flags & libc::MSG_CTRUNC != 0 || received.descriptors > MAXIMUM_DESCRIPTORS;
    if received.bytes == 0 && received.descriptors == 0 && !lost_descriptors {
        return Err(ReceiveError::Closed);
    }
    bytes.truncate(received.bytes);
    Ok(ReceivedPacket { bytes, process: received.process, lost_descriptors })
}

/// Whether the receive queue is empty. Closing the socket then cannot block on queued descriptors. After a shutdown the queue
/// stays empty.
pub fn is_drained(socket: BorrowedFd<'_>) -> bool {
    // With SO_PASSCRED every packet carries credentials. Without room for them the flag MSG_CTRUNC marks even an empty
    // packet, which otherwise looks like the end of the stream.
    if rustix::net::sockopt::set_socket_passcred(socket, true).is_err() {
        return false;
    }
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    match receive_message(socket, &mut [], &mut [], flags, &mut Vec::new()) {
        Ok(received) => received.bytes == 0 && received.flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) == 0,
        Err(error) => error == Errno::AGAIN,
    }
}

/// Bytes sent on `socket` that the peer has not received yet, with the kernel's own for each packet; 0: it has received all.
///
/// # Errors
/// Those of `ioctl`.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> rustix::io::Result<u32> {
    let mut unread: libc::c_int = 0;
    // SAFETY: Linux writes one integer, which is borrowed here.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) } {
        0 => Ok(unread.unsigned_abs()),
        _ => Err(last_error()),
    }
}

/// The error of the libc call that failed last in this thread.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

struct Received {
    bytes: usize,
    flags: libc::c_int,
    descriptors: usize,
    process: Option<u32>,
}

/// Calls `recvmsg` through libc: a sender in another PID namespace has PID 0 here, which rustix's type cannot hold.
fn receive_message(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    control: &mut [u64],
    flags: libc::c_int,
    descriptors: &mut Vec<OwnedFd>,
) -> rustix::io::Result<Received> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a zeroed message header is a valid empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(control) as _;
    // SAFETY: the header names two buffers that are borrowed here, with their lengths.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    let Ok(received_bytes) = usize::try_from(received) else {
        return Err(last_error());
    };
    let before = descriptors.len();
    let mut process = None;
    // SAFETY: Linux filled the control buffer with whole headers, up to the length it returned, and data follows each. It
    // made the descriptors there for this call, so they have no other owner.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while let Some(head) = header.as_ref() {
            let data = libc::CMSG_DATA(header);
            #[allow(clippy::unnecessary_cast, reason = "the field is narrower in musl")]
            let length = head.cmsg_len as usize - libc::CMSG_LEN(0) as usize;
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..length / size_of::<libc::c_int>() {
                        let number = data.cast::<libc::c_int>().add(index).read_unaligned();
                        descriptors.push(OwnedFd::from_raw_fd(number));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                    let pid = data.cast::<libc::ucred>().read_unaligned().pid;
                    process = u32::try_from(pid).ok().filter(|pid| *pid != 0);
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    let descriptors = descriptors.len() - before;
    let flags = message.msg_flags;
    Ok(Received { bytes: received_bytes, flags, descriptors, process })
}

/// The process at the other end of a Unix socket.
#[derive(Debug)]
pub struct PeerProcess {
    /// A pidfd, which becomes readable when the process ends.
    pub descriptor: OwnedFd,
    /// The PID in this process's PID namespace.
    pub number: u32,
    /// The effective user ID when the process connected.
    pub user: u32,
}

/// Makes Linux refuse messages with descriptors to this Unix socket, and to the sockets that it accepts. Receiving or closing
/// such a message can block for as long as its sender likes.
///
/// # Errors
/// `NOPROTOOPT` before Linux 6.16.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
    pass_descriptors(socket, false)
}

/// Undoes [`refuse_descriptors`] for this socket.
///
/// # Errors
/// As [`refuse_descriptors`].
pub fn accept_descriptors(socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
    pass_descriptors(socket, true)
}

fn pass_descriptors(socket: BorrowedFd<'_>, pass: bool) -> rustix::io::Result<()> {
    let pass = libc::c_int::from(pass);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: Linux reads `length` bytes of an integer that lives during the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const pass).cast(),
            length,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Whether Linux refuses messages with descriptors to this socket.
pub fn refuses_descriptors(socket: BorrowedFd<'_>) -> bool {
    let mut passes: libc::c_int = 1;
    socket_option(socket, SO_PASSRIGHTS, &mut passes).is_ok() && passes == 0
}

/// Copies the bytes that wait in a stream socket without receiving them; returns their number, at most `bytes.len()`, and
/// whether a descriptor comes with them or directly behind them. Bytes that arrive later are not covered.
///
/// # Errors
/// Those of `recvmsg`: `AGAIN` when nothing waits.
pub fn peek(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> rustix::io::Result<(usize, bool)> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let seen = receive_message(socket, bytes, &mut [], flags, &mut Vec::new())?;
    Ok((seen.bytes, seen.flags & libc::MSG_CTRUNC != 0))
}

/// The process that made the connection.
///
/// # Errors
/// `SRCH` for a process that is outside this PID namespace or has ended; those of `getsockopt` and `pidfd_open`.
pub fn peer_process(socket: BorrowedFd<'_>) -> rustix::io::Result<PeerProcess> {
    let known = peer_credentials(socket)?;
    // Linux reports PID 0 for a process outside this PID namespace.
    let number = u32::try_from(known.pid).ok().filter(|number| *number != 0).ok_or(Errno::SRCH)?;
    let mut descriptor: libc::c_int = -1;
    let descriptor = match socket_option(socket, SO_PEERPIDFD, &mut descriptor) {
        // SAFETY: Linux made the descriptor for this call, so it has no other owner.
        Ok(()) => unsafe { OwnedFd::from_raw_fd(descriptor) },
        // Before Linux 6.5 only the PID is known, which another process may have by now.
        Err(Errno::NOPROTOOPT) => {
            let process = rustix::process::Pid::from_raw(known.pid).ok_or(Errno::SRCH)?;
            rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?
        }
        Err(error) => return Err(error),
    };
    Ok(PeerProcess { descriptor, number, user: known.uid })
}

/// The effective user of the process that made the connection, even if it is outside this PID namespace.
///
/// # Errors
/// Those of `getsockopt`.
pub fn peer_user(socket: BorrowedFd<'_>) -> rustix::io::Result<u32> {
    peer_credentials(socket).map(|known| known.uid)
}

fn peer_credentials(socket: BorrowedFd<'_>) -> rustix::io::Result<libc::ucred> {
    let mut known = libc::ucred { pid: 0, uid: 0, gid: 0 };
    socket_option(socket, libc::SO_PEERCRED, &mut known)?;
    Ok(known)
}

/// Reads a `SOL_SOCKET` option into `value`, a type for which every bit pattern is valid.
fn socket_option<T: Copy>(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: &mut T,
) -> rustix::io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let place = std::ptr::from_mut(value).cast();
    // SAFETY: Linux writes at most `length` bytes to a value that is borrowed here. Both types used with this function
    // consist of integers.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, place, &mut length) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Sends one packet, blocking if `wait`.
///
/// # Errors
/// Those of `sendmsg`: `AGAIN` when the socket is full, `PIPE` when the peer closed it. `INVAL` for more than
/// [`MAXIMUM_DESCRIPTORS`].
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAXIMUM_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let blocking = if wait { SendFlags::empty() } else { SendFlags::DONTWAIT };
    rustix::io::retry_on_intr(|| {
        let flags = SendFlags::NOSIGNAL | blocking;
        rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags)
    })?;
    Ok(())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn an_empty_packet_is_not_drained() {
        let gift = rustix::fs::memfd_create("gift", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for bytes in [&b""[..], b"x"] {
            for gifts in [&[][..], &[gift.as_fd()]] {
                let (ours, theirs) = pair();
                assert!(is_drained(theirs.as_fd()));
                send(ours.as_fd(), bytes, gifts, false).unwrap();
                for _ in 0..2 {
                    assert!(!is_drained(theirs.as_fd()), "{bytes:?}, {} descriptors", gifts.len());
                }
                drop(ours);
                assert!(!is_drained(theirs.as_fd()));
                let _ = receive(theirs.as_fd(), false);
                assert!(is_drained(theirs.as_fd()));
            }
        }
        let (ours, theirs) = pair();
        rustix::net::shutdown(&theirs, rustix::net::Shutdown::Both).unwrap();
        assert!(send(ours.as_fd(), b"x", &[], false).is_err());
        assert!(is_drained(theirs.as_fd()));
    }

    #[test]
    fn a_packet_carries_bytes_and_descriptors() {
        let (ours, theirs) = pair();
        let gift = rustix::fs::memfd_create("gift", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        send(ours.as_fd(), b"hello", &[gift.as_fd()], false).unwrap();
        let packet = receive(theirs.as_fd(), true).unwrap();
        assert_eq!(packet.bytes, b"hello");
        assert_eq!(packet.descriptors.len(), 1);
        assert_eq!(receive(theirs.as_fd(), false).unwrap_err(), ReceiveError::WouldBlock);
        drop(ours);
        assert_eq!(receive(theirs.as_fd(), true).unwrap_err(), ReceiveError::Closed);
    }

    #[test]
    fn receives_messages_sent_before_a_reset() {
        let _alone = crate::FORKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (ours, theirs) = pair();
        send(ours.as_fd(), b"unread", &[], false).unwrap();
        send(theirs.as_fd(), b"farewell", &[], false).unwrap();
        drop(theirs);
        assert!(send(ours.as_fd(), b"too late", &[], false).is_err());
        assert_eq!(receive(ours.as_fd(), true).unwrap().bytes, b"farewell");
        assert_eq!(receive(ours.as_fd(), true).unwrap_err(), ReceiveError::Closed);
    }

    #[test]
    fn reports_the_sender_when_passcred_is_set() {
        let (ours, theirs) = pair();
        let mut descriptors = Vec::new();
        let mut exchange = || {
            send(ours.as_fd(), b"hello", &[ours.as_fd()], false).unwrap();
            receive_introduced(theirs.as_fd(), true, &mut descriptors).unwrap()
        };
        assert_eq!(exchange(), (b"hello".to_vec(), None));
        rustix::net::sockopt::set_socket_passcred(&theirs, true).unwrap();
        assert_eq!(exchange(), (b"hello".to_vec(), Some(std::process::id())));
        assert_eq!(descriptors.len(), 2);
    }

    #[test]
    fn a_short_control_buffer_takes_few_descriptors() {
        let (ours, theirs) = pair();
        rustix::net::sockopt::set_socket_passcred(&theirs, true).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut send_many = |count: usize| {
            let mut control = SendAncillaryBuffer::new(&mut space);
            let many = vec![ours.as_fd(); count];
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            rustix::net::sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        };
        send_many(200);
        let mut came = Vec::new();
        assert_eq!(receive_with_one(theirs.as_fd(), &mut came), Err(ReceiveError::TooManyDescriptors));
        assert!(came.len() <= 2, "{} descriptors", came.len());
        came.clear();
        send_many(1);
        let received = receive_with_one(theirs.as_fd(), &mut came);
        assert_eq!(received, Ok((b"x".to_vec(), Some(std::process::id()))));
        assert_eq!(came.len(), 1);
        assert_eq!(receive_with_one(theirs.as_fd(), &mut came), Err(ReceiveError::WouldBlock));
    }

    #[test]
    fn reports_the_peer_process() {
        let (ours, _theirs) = pair();
        let peer = peer_process(ours.as_fd()).unwrap();
        assert_eq!((peer.number, peer.user), (std::process::id(), rustix::process::getuid().as_raw()));
        assert_eq!(peer_user(ours.as_fd()), Ok(peer.user));
        let signalled = rustix::process::pidfd_send_signal(&peer.descriptor, rustix::process::Signal::CONT);
        assert_eq!(signalled, Ok(()));
    }

    #[test]
    fn refuses_oversized_packets() {
        let (ours, theirs) = pair();
        send(ours.as_fd(), &[1; MAXIMUM_BYTES + 1], &[], false).unwrap();
        assert_eq!(receive(theirs.as_fd(), false).unwrap_err(), ReceiveError::TooLong);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
        for count in [5, 9] {
            let mut control = SendAncillaryBuffer::new(&mut space);
            let many = vec![ours.as_fd(); count];
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            rustix::net::sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
            assert_eq!(receive(theirs.as_fd(), false).unwrap_err(), ReceiveError::TooManyDescriptors);
        }
    }

    #[test]
    fn descriptors_are_seen_before_they_are_received() {
        let kind = rustix::net::SocketType::STREAM;
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None).unwrap();
        let mut bytes = [0; 100];
        assert_eq!(peek(ours.as_fd(), &mut bytes), Err(Errno::AGAIN));
        send(theirs.as_fd(), b"plain", &[], false).unwrap();
        assert_eq!(peek(ours.as_fd(), &mut bytes), Ok((5, false)));
        send(theirs.as_fd(), b"with", &[ours.as_fd()], false).unwrap();
        assert!(matches!(peek(ours.as_fd(), &mut bytes), Ok((_, true))));
        assert!(!refuses_descriptors(ours.as_fd()));
        match refuse_descriptors(ours.as_fd()) {
            Err(error) => assert_eq!(error, Errno::NOPROTOOPT),
            Ok(()) => {
                assert!(refuses_descriptors(ours.as_fd()));
                assert_eq!(send(theirs.as_fd(), b"x", &[ours.as_fd()], false), Err(Errno::PERM));
                accept_descriptors(ours.as_fd()).unwrap();
                assert_eq!(send(theirs.as_fd(), b"x", &[ours.as_fd()], false), Ok(()));
            }
        }
    }
}
