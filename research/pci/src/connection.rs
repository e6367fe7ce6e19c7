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
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// What a look at the socket found.
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message),
    /// Nothing more for now.
    Nothing,
    /// The client has closed the connection.
    End,
}

#[derive(Debug)]
pub(crate) struct Connection {
    socket: UnixStream,
    header: Option<Header>,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// Bytes of replies that the client has not read.
    unsent: Vec<u8>,
}

impl Connection {
    /// # Errors
    /// Those of `fcntl`.
    pub(crate) fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, header: None, bytes: Vec::new(), descriptors: Vec::new(), unsent: Vec::new() })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether replies wait for the client; no command is read meanwhile.
    pub(crate) fn is_sending(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Reads the next command, as far as it has arrived.
    ///
    /// # Errors
    /// [`ConnectionError`]: the connection is of no more use.
    pub(crate) fn receive(&mut self) -> Result<Received, ConnectionError> {
        loop {
            let wanted = self.header.map_or(HEADER, |header| header.size as usize - HEADER);
            if self.bytes.len() == wanted {
                let bytes = std::mem::take(&mut self.bytes);
                if let Some(header) = self.header.take() {
                    let descriptors = std::mem::take(&mut self.descriptors);
                    return Ok(Received::Message(Message { header, payload: bytes, descriptors }));
                }
                let bytes: [u8; HEADER] = bytes.try_into().unwrap_or([0; HEADER]);
                self.header = Some(Header::decode(&bytes)?);
                continue;
            }
            match self.fill(wanted) {
                Ok(0) if self.bytes.is_empty() && self.header.is_none() => return Ok(Received::End),
                Ok(0) => return Err(ConnectionError::Cut),
                Ok(_) => {}
                Err(ConnectionError::System(Errno::AGAIN)) => return Ok(Received::Nothing),
                Err(ConnectionError::System(Errno::INTR)) => {}
                Err(ConnectionError::System(Errno::CONNRESET)) if self.header.is_none() => {
                    return Ok(Received::End);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads up to `wanted` bytes in total; the number of new ones.
    fn fill(&mut self, wanted: usize) -> Result<usize, ConnectionError> {
        let before = self.bytes.len();
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAXIMUM_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        self.bytes.resize(wanted, 0);
        let mut parts = [IoSliceMut::new(&mut self.bytes[before..])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags);
        self.bytes.truncate(before + got.as_ref().map_or(0, |got| got.bytes));
        let got = got?;
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
    pub(crate) fn send(&mut self, reply: Vec<u8>) -> Result<(), ConnectionError> {
        if self.unsent.is_empty() {
            self.unsent = reply;
        } else {
            self.unsent.extend(reply);
        }
        self.flush()
    }

    /// Sends what is left of replies.
    ///
    /// # Errors
    /// [`ConnectionError::System`].
    pub(crate) fn flush(&mut self) -> Result<(), ConnectionError> {
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
