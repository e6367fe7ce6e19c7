//! Messages with descriptors over a Unix socket of sequenced packets.
//!
//! A message is one packet: nothing is ever half read. What the peer sends is hostile: a packet or a descriptor list that
//! was cut short is an error, and every descriptor that came is owned from the moment it arrives, so none leaks.
//! What messages mean is the protocol's.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use thiserror::Error;

pub const MAXIMUM_BYTES: usize = 16 << 10;
/// Most descriptors a message may carry.
pub const MAXIMUM_DESCRIPTORS: usize = 4;

/// Most descriptors the kernel lets a packet carry (`SCM_MAX_FD`, unix(7)).
const KERNEL_DESCRIPTORS: usize = 253;
/// Room for all of these and the sender's credentials, so that the kernel never closes any by itself.
// SAFETY: a computation with two numbers.
const CONTROL_BYTES: usize = unsafe {
    libc::CMSG_SPACE((KERNEL_DESCRIPTORS * size_of::<libc::c_int>()) as u32)
        + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
} as usize;

/// `SO_PEERPIDFD` (Linux 6.5), the same on all architectures that this runs on.
const SO_PEERPIDFD: libc::c_int = 77;

/// One message as it came.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Why no message came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReceiveError {
    /// The peer is gone.
    #[error("the peer closed the connection")]
    Closed,
    /// Nothing waits and the call was not to block.
    #[error("no message waits")]
    WouldBlock,
    /// The packet is longer than any message.
    #[error("a packet is longer than {MAXIMUM_BYTES} bytes")]
    TooLong,
    /// More descriptors than any message carries.
    #[error("a packet carries more than {MAXIMUM_DESCRIPTORS} descriptors, or they could not be taken")]
    TooManyDescriptors,
    #[error("receiving failed: {0}")]
    System(Errno),
}

/// Receives one packet; `wait` says whether to block for it.
///
/// # Errors
/// [`ReceiveError`]; descriptors that came with a refused packet are closed.
pub fn receive(socket: BorrowedFd<'_>, wait: bool) -> Result<Packet, ReceiveError> {
    let mut descriptors = Vec::new();
    let bytes = receive_into(socket, wait, &mut descriptors)?;
    Ok(Packet { bytes, descriptors })
}

/// Receives one packet's bytes; its descriptors are appended to `descriptors`, those of a refused packet too. Closing a
/// descriptor of a peer's may block for as long as the peer likes, so who must not wait decides where that is done.
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

/// As [`receive_into`], with the process that sent the packet, by the kernel's word: where the socket asks for that
/// (`SO_PASSCRED`) and this process can see the other.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive_introduced(
    socket: BorrowedFd<'_>,
    wait: bool,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<(Vec<u8>, Option<u32>), ReceiveError> {
    let mut bytes = vec![0; MAXIMUM_BYTES];
    let mut control = [0u64; CONTROL_BYTES.div_ceil(8)];
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    let mut attempt = || {
        rustix::io::retry_on_intr(|| receive_message(socket, &mut bytes, &mut control, flags, descriptors))
    };
    // A peer that closed with our message unread resets the connection, once; what it sent before still waits.
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
    if received.flags & libc::MSG_CTRUNC != 0 || received.descriptors > MAXIMUM_DESCRIPTORS {
        return Err(ReceiveError::TooManyDescriptors);
    }
    if received.bytes == 0 && received.descriptors == 0 {
        return Err(ReceiveError::Closed);
    }
    bytes.truncate(received.bytes);
    Ok((bytes, received.process))
}

/// Whether nothing waits to be received: closing such a socket waits for nobody. When it was shut down, nothing comes any more.
pub fn is_drained(socket: BorrowedFd<'_>) -> bool {
    // Every packet has credentials then, an empty one too, and there is no room for them: so it is told from the end.
    if rustix::net::sockopt::set_socket_passcred(socket, true).is_err() {
        return false;
    }
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    match receive_message(socket, &mut [], &mut [], flags, &mut Vec::new()) {
        Ok(received) => received.bytes == 0 && received.flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) == 0,
        Err(error) => error == Errno::AGAIN,
    }
}

/// What one call gave.
struct Received {
    bytes: usize,
    flags: libc::c_int,
    descriptors: usize,
    process: Option<u32>,
}

/// One `recvmsg`. By hand, since a process of another PID namespace has number 0 here, which rustix's credentials cannot be.
fn receive_message(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    control: &mut [u64],
    flags: libc::c_int,
    descriptors: &mut Vec<OwnedFd>,
) -> rustix::io::Result<Received> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a message header of zeros is a valid, empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(control) as _;
    // SAFETY: the header names two buffers that are borrowed here, with their lengths.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    let Ok(received_bytes) = usize::try_from(received) else {
        let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(number));
    };
    let before = descriptors.len();
    let mut process = None;
    // SAFETY: the kernel filled the control buffer with whole headers, as far as it says; data lies behind each. Every
    // descriptor there is new and nobody else's.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while let Some(head) = header.as_ref() {
            let data = libc::CMSG_DATA(header);
            #[allow(clippy::unnecessary_cast, reason = "it is shorter in musl")]
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
    /// Readable when it has ended.
    pub descriptor: OwnedFd,
    /// Its number, as this process sees it.
    pub number: u32,
    /// Its effective user when it connected.
    pub user: u32,
}

/// Who made the connection, and a descriptor of that process.
///
/// # Errors
/// `SRCH` for a process that this one's PID namespace does not show, or that has ended; those of `getsockopt` and
/// `pidfd_open`.
pub fn peer_process(socket: BorrowedFd<'_>) -> rustix::io::Result<PeerProcess> {
    let known = peer_credentials(socket)?;
    // The kernel has no number but 0 for who cannot be seen.
    let number = u32::try_from(known.pid).ok().filter(|number| *number != 0).ok_or(Errno::SRCH)?;
    let mut descriptor: libc::c_int = -1;
    let descriptor = match socket_option(socket, SO_PEERPIDFD, &mut descriptor) {
        // SAFETY: the kernel made it for this call, so nobody else has it.
        Ok(()) => unsafe { OwnedFd::from_raw_fd(descriptor) },
        // Before Linux 6.5: by its number, which may be another's by now.
        Err(Errno::NOPROTOOPT) => {
            let process = rustix::process::Pid::from_raw(known.pid).ok_or(Errno::SRCH)?;
            rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?
        }
        Err(error) => return Err(error),
    };
    Ok(PeerProcess { descriptor, number, user: known.uid })
}

/// The effective user of who made the connection, whether his process can be seen from here or not.
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

/// Reads an option of the socket layer into `value`: plain numbers, any bits of which are good.
fn socket_option<T: Copy>(
    socket: BorrowedFd<'_>,
    option: libc::c_int,
    value: &mut T,
) -> rustix::io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let place = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `length` bytes to a value that is borrowed here; both types it is called with are
    // made of integers.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, place, &mut length) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Sends one packet, without blocking when `wait` is false.
///
/// # Errors
/// The socket's: `AGAIN` when it is full, `PIPE` when the peer is gone.
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
    fn a_socket_is_drained_when_nothing_waits_in_it_not_even_an_empty_packet() {
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
    fn a_packet_brings_its_bytes_and_descriptors() {
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
    fn the_last_words_of_a_peer_that_did_not_listen_are_heard() {
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
    fn the_kernel_says_who_sent_a_packet_where_it_is_asked() {
        let (ours, theirs) = pair();
        let mut came = Vec::new();
        let mut sent_by = || {
            send(ours.as_fd(), b"hello", &[ours.as_fd()], false).unwrap();
            receive_introduced(theirs.as_fd(), true, &mut came).unwrap()
        };
        assert_eq!(sent_by(), (b"hello".to_vec(), None));
        rustix::net::sockopt::set_socket_passcred(&theirs, true).unwrap();
        assert_eq!(sent_by(), (b"hello".to_vec(), Some(std::process::id())));
        assert_eq!(came.len(), 2);
    }

    #[test]
    fn the_process_at_the_other_end_is_known() {
        let (ours, _theirs) = pair();
        let peer = peer_process(ours.as_fd()).unwrap();
        assert_eq!((peer.number, peer.user), (std::process::id(), rustix::process::getuid().as_raw()));
        assert_eq!(peer_user(ours.as_fd()), Ok(peer.user));
        let signalled = rustix::process::pidfd_send_signal(&peer.descriptor, rustix::process::Signal::CONT);
        assert_eq!(signalled, Ok(()));
    }

    #[test]
    fn packets_and_descriptor_lists_that_are_too_long_are_refused() {
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
}
