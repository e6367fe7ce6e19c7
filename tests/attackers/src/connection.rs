//! A client that encodes the protocol itself, so that it can break the rules of it.
//!
//! No call lasts longer than [`CALL_LIMIT`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use memferry_service::protocol::{self, Answer, Command, Envelope, Hello, Refusal, VERSIONS, Welcome};
use memferry_shm::conduit::{self, Packet, ReceiveError};
use memferry_transfer::{Handle, Rights, SessionId};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::Failed;

/// Limit on a connect, a send and a receive.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// An answer or a refusal, and the descriptors that came with it.
type Reply = (Result<Answer, Refusal>, Vec<OwnedFd>);

pub struct Connection {
    socket: OwnedFd,
    serial: u32,
    session: SessionId,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects without a handshake.
///
/// # Errors
/// Those of `connect`.
pub(crate) fn dial(path: &Path) -> rustix::io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(CALL_LIMIT))?;
    set_socket_timeout(&socket, Timeout::Send, Some(CALL_LIMIT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Connection {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// If the service refuses, or does not answer in time.
    pub fn open(path: &Path) -> Result<Self, Failed> {
        let socket = dial(path)?;
        conduit::send(socket.as_fd(), &Hello { versions: VERSIONS, features: 0 }.encode(), &[], true)?;
        let welcome = Welcome::decode(&conduit::receive(socket.as_fd(), true)?.bytes)?;
        Ok(Self { socket, serial: 0, session: welcome.session })
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) fn encode(&mut self, command: Command) -> Vec<u8> {
        self.serial = self.serial.wrapping_add(1);
        let descriptors = command.descriptors();
        protocol::encode(&Envelope { serial: self.serial, descriptors, body: command })
    }

    /// Sends a command and does not wait for its answer.
    pub(crate) fn send(&mut self, command: Command, descriptors: &[BorrowedFd<'_>]) -> Result<(), Failed> {
        let bytes = self.encode(command);
        Ok(conduit::send(self.socket.as_fd(), &bytes, descriptors, true)?)
    }

    /// As [`send`](Self::send), but returns false if the socket is full.
    pub(crate) fn try_send(
        &mut self,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<bool, Failed> {
        let bytes = self.encode(command);
        match conduit::send(self.socket.as_fd(), &bytes, descriptors, false) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => {
                self.serial = self.serial.wrapping_sub(1);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next answer. `None` if there is none and `wait` is false.
    pub(crate) fn answer(&mut self, wait: bool) -> Result<Option<Reply>, Failed> {
        let Packet { bytes, descriptors } = match conduit::receive(self.socket.as_fd(), wait) {
            Ok(packet) => packet,
            Err(ReceiveError::WouldBlock) if !wait => return Ok(None),
            Err(ReceiveError::WouldBlock) => return Err(format!("no answer in {CALL_LIMIT:?}").into()),
            Err(error) => return Err(error.into()),
        };
        if let Some(violation) = protocol::decode_violation(&bytes) {
            return Err(violation.into());
        }
        let reply: protocol::Reply = protocol::decode(&bytes)?;
        Ok(Some((reply.body, descriptors)))
    }

    /// Takes all answers that have arrived.
    pub(crate) fn drain(&mut self) -> Result<(), Failed> {
        while self.answer(false)?.is_some() {}
        Ok(())
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(
        &mut self,
        command: Command,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), Failed> {
        self.send(command, descriptors)?;
        let (answer, descriptors) = self.answer(true)?.ok_or("no answer")?;
        Ok((answer?, descriptors))
    }

    pub(crate) fn register(&mut self, memfd: BorrowedFd<'_>, length: u64) -> Result<Handle, Failed> {
        match self.call(Command::Register { length, rights: Rights::all() }, &[memfd])? {
            (Answer::Handle(handle), _) => Ok(handle),
            (answer, _) => Err(format!("a strange answer to a registration: {answer:?}").into()),
        }
    }

    /// Polls whether the service has closed the connection.
    #[must_use]
    pub fn hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut entry = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut entry, Some(&Timespec::default())).is_ok()
            && entry[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}
