//! Messages with descriptors over a Unix socket of sequenced packets.
//!
//! A message is one packet: nothing is ever half read. What the peer sends is hostile: a packet or a descriptor list that
//! was cut short is an error, and every descriptor that came is owned from the moment it arrives, so none leaks.
//! What messages mean is the protocol's.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use thiserror::Error;

/// Longest message, bytes.
pub const MAXIMUM_BYTES: usize = 16 << 10;
/// Most descriptors a message may carry.
pub const MAXIMUM_DESCRIPTORS: usize = 4;

/// Most descriptors the kernel lets a packet carry (`SCM_MAX_FD`, unix(7)).
const KERNEL_DESCRIPTORS: usize = 253;

/// One message as it came.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors.
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
    /// The socket failed.
    #[error("receiving failed: {0}")]
    System(rustix::io::Errno),
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
    let mut bytes = vec![0; MAXIMUM_BYTES];
    // Room for all that the kernel lets a packet carry, so that it never closes any by itself.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let blocking = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let mut attempt = || {
        rustix::io::retry_on_intr(|| {
            let flags = RecvFlags::CMSG_CLOEXEC | blocking;
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
        })
    };
    // A peer that closed with our message unread resets the connection, once; what it sent before still waits.
    let received = match attempt() {
        Err(rustix::io::Errno::CONNRESET) => attempt(),
        other => other,
    };
    let received = received.map_err(|error| match error {
        rustix::io::Errno::AGAIN => ReceiveError::WouldBlock,
        rustix::io::Errno::CONNRESET => ReceiveError::Closed,
        other => ReceiveError::System(other),
    })?;
    let before = descriptors.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(ReceiveError::TooLong);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() - before > MAXIMUM_DESCRIPTORS {
        return Err(ReceiveError::TooManyDescriptors);
    }
    if received.bytes == 0 && descriptors.len() == before {
        return Err(ReceiveError::Closed);
    }
    bytes.truncate(received.bytes);
    Ok(bytes)
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
        return Err(rustix::io::Errno::INVAL);
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
        let (ours, theirs) = pair();
        send(ours.as_fd(), b"unread", &[], false).unwrap();
        send(theirs.as_fd(), b"farewell", &[], false).unwrap();
        drop(theirs);
        assert!(send(ours.as_fd(), b"too late", &[], false).is_err());
        assert_eq!(receive(ours.as_fd(), true).unwrap().bytes, b"farewell");
        assert_eq!(receive(ours.as_fd(), true).unwrap_err(), ReceiveError::Closed);
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
