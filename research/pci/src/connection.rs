//! A client's socket: whole messages in, replies out, without ever waiting.
//!
//! ```text
//! recvmsg ──► header, payload, descriptors ──► Message        Vec of reply bytes ──► sendmsg, as far as the client reads
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use thiserror::Error;

use crate::message::{HEADER, Header, MAXIMUM_DESCRIPTORS, StreamError};

/// Reads of one call of [`Connection::receive`], so that a client that sends without end leaves time for everything else.
const READS: u32 = 64;

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConnectionError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("the client closed the socket in the middle of a message")]
    Cut,
    #[error("a message with more than {MAXIMUM_DESCRIPTORS} descriptors")]
    TooManyDescriptors,
    #[error("the client's socket: {0}")]
    System(#[from] Errno),
}

/// A command as it arrived.
#[derive(Debug)]
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// The result of reading the socket.
#[derive(Debug)]
pub enum Received {
    Message(Message),
    /// Nothing more for now.
    Nothing,
    /// The client has closed the connection.
    End,
}

/// A client's socket, which is never waited for.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    header: Option<Header>,
    /// Room for all of the header, or of the payload after it.
    bytes: Vec<u8>,
    /// Bytes that have arrived there.
    filled: usize,
    descriptors: Vec<OwnedFd>,
    /// Bytes of replies that the client has not read.
    unsent: Vec<u8>,
}

impl Connection {
    /// Makes the socket non-blocking.
    ///
    /// # Errors
    /// Those of `fcntl`.
    pub fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let bytes = vec![0; HEADER];
        Ok(Self { socket, header: None, bytes, filled: 0, descriptors: Vec::new(), unsent: Vec::new() })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether replies wait for the client; no command is read meanwhile.
    pub fn is_sending(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Reads the next command, as far as it has arrived.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection is of no more use.
    pub fn receive(&mut self) -> Result<Received, ConnectionError> {
        let mut reads = 0;
        loop {
            if self.filled == self.bytes.len() {
                match self.whole()? {
                    Some(message) => return Ok(Received::Message(message)),
                    None => continue,
                }
            }
            if reads == READS {
                return Ok(Received::Nothing);
            }
            reads += 1;
            match self.fill() {
                // All that the client had sent before it went was read.
                Ok(0) | Err(ConnectionError::System(Errno::CONNRESET)) => {
                    let between = self.filled == 0 && self.header.is_none();
                    return if between { Ok(Received::End) } else { Err(ConnectionError::Cut) };
                }
                Ok(_) | Err(ConnectionError::System(Errno::INTR)) => {}
                Err(ConnectionError::System(Errno::AGAIN)) => return Ok(Received::Nothing),
                Err(error) => return Err(error),
            }
        }
    }

    /// All bytes of a header have arrived, or of a payload: the message, if it is whole.
    fn whole(&mut self) -> Result<Option<Message>, ConnectionError> {
        self.filled = 0;
        if let Some(header) = self.header.take() {
            let payload = std::mem::replace(&mut self.bytes, vec![0; HEADER]);
            let descriptors = std::mem::take(&mut self.descriptors);
            return Ok(Some(Message { header, payload, descriptors }));
        }
        let bytes: [u8; HEADER] = std::mem::take(&mut self.bytes).try_into().unwrap_or([0; HEADER]);
        let header = Header::decode(&bytes)?;
        self.bytes = vec![0; (header.size as usize).saturating_sub(HEADER)];
        self.header = Some(header);
        Ok(None)
    }

    /// Reads bytes that are missing; the number of new ones.
    fn fill(&mut self) -> Result<usize, ConnectionError> {
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAXIMUM_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(self.bytes.get_mut(self.filled..).unwrap_or_default())];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)?;
        self.filled += got.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > MAXIMUM_DESCRIPTORS {
            return Err(ConnectionError::TooManyDescriptors);
        }
        Ok(got.bytes)
    }

    /// Sends a reply, as far as the client takes it now.
    ///
    /// # Errors
    /// [`ConnectionError::System`].
    pub fn send(&mut self, reply: Vec<u8>) -> Result<(), ConnectionError> {
        if self.unsent.is_empty() {
            self.unsent = reply;
        } else {
            self.unsent.extend(reply);
        }
        self.flush()
    }

    /// Sends the rest of replies.
    ///
    /// # Errors
    /// [`ConnectionError::System`].
    pub fn flush(&mut self) -> Result<(), ConnectionError> {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.socket, &self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => {
                    self.unsent.drain(..sent);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
