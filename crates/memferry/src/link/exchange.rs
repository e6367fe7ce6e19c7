//! Commands and answers on the socket, matched by serial.
//!
//! ```text
//! command ─► next serial ─ sent ─ answer with that serial ─► the caller
//!                           └ too late ─► owed: when it comes, what it made is given back, and a revocation's end is kept
//! ```
//!
//! The service is not trusted: an answer that no command awaits is a violation, and texts are cleaned before anyone reads them.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use memferry_service::printable::printable;
use memferry_service::protocol::{self, Answer, Command, Envelope, Refusal, Reply, Violation};
use memferry_shm::conduit::Packet;
use memferry_transfer::Handle;

use super::deadline::{Deadline, WaitError, borrowed};
use crate::error::CallError;

/// Answers that the service may owe. With more, the connection is given up.
const MAX_OWED: usize = 1024;
/// Answers that may be owed when something is given back. The service ends a session that does not read its answers, and nothing reads
/// them while this side sends.
const RELEASE_WINDOW: usize = 64;
/// Ends of late revocations that are kept for whoever revokes again.
const MAX_ENDED: usize = 256;

const TOO_LONG: CallError = CallError::Protocol("its answer is longer than the protocol allows");

/// What becomes of a command that cannot be sent in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unsent {
    /// Its caller may try again.
    Dropped,
    /// It gives something back, and nobody would: it is sent before a later command.
    Kept,
}

/// What to do with an answer that comes after its caller stopped waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owed {
    /// Nothing depends on it.
    Ignored,
    /// It may have made something for a caller that does not know about it.
    Released,
    Revocation(Handle),
}

impl Owed {
    fn of(command: &Command) -> Self {
        match command {
            Command::Revoke { handle } => Self::Revocation(*handle),
            Command::Register { .. }
            | Command::Allocate { .. }
            | Command::Derive { .. }
            | Command::Grant { .. }
            | Command::Accept { .. }
            | Command::AcceptRemote { .. }
            | Command::AcceptFor { .. }
            | Command::OpenQueue { .. } => Self::Released,
            _ => Self::Ignored,
        }
    }
}

/// The control side of one connection.
#[derive(Default)]
pub(crate) struct Exchange {
    /// Serial of the last command.
    serial: u32,
    /// Commands without an answer whose callers have stopped waiting.
    owed: BTreeMap<u32, Owed>,
    /// Commands that give something back, such as what late answers made, and are not sent yet.
    releases: Vec<Command>,
    /// Revocations that ended after their callers had stopped waiting.
    ended: BTreeMap<Handle, Result<(), Refusal>>,
}

impl Exchange {
    /// Whether the service has not answered earlier commands yet.
    pub(super) fn is_late(&self) -> bool {
        !self.owed.is_empty() || !self.releases.is_empty()
    }

    /// Whether it owes so many answers that the connection is not worth keeping.
    pub(super) fn is_overdue(&self) -> bool {
        self.owed.len() > MAX_OWED
    }

    /// Takes commands that are sent before the next one.
    pub(super) fn send_later(&mut self, releases: &mut Vec<Command>) {
        self.releases.append(releases);
    }

    /// Sends a command and waits for its answer until the deadline.
    pub(super) fn call(
        &mut self,
        socket: BorrowedFd<'_>,
        deadline: &Deadline,
        (command, descriptors): (Command, &[OwnedFd]),
        unsent: Unsent,
    ) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        if self.is_late() {
            self.take_late_answers(socket)?;
            self.send_releases(socket);
        }
        let too_late = timed_out(&command, deadline);
        let owed = Owed::of(&command);
        if let Owed::Revocation(handle) = owed
            && let Some(ended) = self.ended.remove(&handle)
        {
            return Ok(ended.map(|()| (Answer::Revoked, Vec::new()))?);
        }
        // A revocation that is under way is waited for again. The service would refuse a second one as already revoked, which
        // its caller would take for its completion.
        let same = self.owed.iter().find(|(_, other)| matches!(owed, Owed::Revocation(_)) && **other == owed);
        let serial = match same.map(|(serial, _)| *serial) {
            Some(serial) => serial,
            None if unsent == Unsent::Kept && self.owed.len() >= RELEASE_WINDOW => {
                self.releases.push(command);
                return Err(too_late);
            }
            None => {
                let kept = (unsent == Unsent::Kept).then(|| command.clone());
                let sent = self.send(socket, deadline, command, descriptors);
                if matches!(sent, Err(CallError::TimedOut { .. } | CallError::RevocationPending { .. })) {
                    self.releases.extend(kept);
                }
                sent?
            }
        };
        loop {
            let packet = match deadline.receive(socket) {
                Ok(packet) => packet,
                Err(WaitError::TimedOut) => {
                    self.owed.insert(serial, owed);
                    return Err(too_late);
                }
                Err(WaitError::TooLong) => return Err(TOO_LONG),
                Err(WaitError::Closed | WaitError::System(_)) => return Err(CallError::ServiceLost),
            };
            let (reply, descriptors) = decode(packet)?;
            if reply.serial == serial {
                self.owed.remove(&serial);
                return Ok((reply.body?, descriptors));
            }
            self.settle(reply)?;
        }
    }

    /// Sends a command and returns its serial.
    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        deadline: &Deadline,
        command: Command,
        descriptors: &[OwnedFd],
    ) -> Result<u32, CallError> {
        let serial = self.serial.wrapping_add(1);
        let too_late = timed_out(&command, deadline);
        let count = descriptors.len() as u8;
        let bytes = protocol::encode(&Envelope { serial, descriptors: count, body: command });
        match deadline.send(socket, &bytes, &borrowed(descriptors)) {
            Ok(()) => {
                self.serial = serial;
                Ok(serial)
            }
            Err(WaitError::TimedOut) => Err(too_late),
            // The service may have written why it closed the connection.
            Err(WaitError::Closed) => Err(self.reason_of_end(socket)),
            // It did not receive the command and will not answer.
            Err(WaitError::System(error)) => Err(CallError::Send(error.into())),
            Err(WaitError::TooLong) => Err(CallError::Send(std::io::ErrorKind::InvalidInput.into())),
        }
    }

    /// The last words of a service that closed the connection.
    fn reason_of_end(&mut self, socket: BorrowedFd<'_>) -> CallError {
        self.take_late_answers(socket).err().unwrap_or(CallError::ServiceLost)
    }

    /// Takes the answers that are there. More than were owed are a violation, so this ends.
    fn take_late_answers(&mut self, socket: BorrowedFd<'_>) -> Result<(), CallError> {
        let now = Deadline::after(Duration::ZERO);
        loop {
            match now.receive(socket) {
                Ok(packet) => self.settle(decode(packet)?.0)?,
                Err(WaitError::TooLong) => return Err(TOO_LONG),
                Err(WaitError::TimedOut | WaitError::Closed | WaitError::System(_)) => return Ok(()),
            }
        }
    }

    /// Gives back what waits for that, as far as it may.
    fn send_releases(&mut self, socket: BorrowedFd<'_>) {
        let now = Deadline::after(Duration::ZERO);
        while self.owed.len() < RELEASE_WINDOW
            && let Some(command) = self.releases.pop()
        {
            let Ok(serial) = self.send(socket, &now, command.clone(), &[]) else {
                self.releases.push(command);
                return;
            };
            self.owed.insert(serial, Owed::Ignored);
        }
    }

    /// Uses up an answer whose caller stopped waiting.
    fn settle(&mut self, reply: Reply) -> Result<(), CallError> {
        let owed =
            self.owed.remove(&reply.serial).ok_or(CallError::Protocol("it answered another command"))?;
        match (owed, reply.body) {
            (Owed::Released, Ok(Answer::Handle(handle) | Answer::Accepted { handle, .. })) => {
                self.releases.push(Command::Revoke { handle });
            }
            (Owed::Released, Ok(Answer::Queue { queue, .. })) => {
                self.releases.push(Command::CloseQueue { queue });
            }
            (Owed::Revocation(handle), ended) => self.keep(handle, ended.map(drop)),
            (Owed::Released | Owed::Ignored, _) => {}
        }
        Ok(())
    }

    /// Keeps the end of a revocation. Of too many, completed ones are forgotten first: the service refuses to repeat them.
    fn keep(&mut self, handle: Handle, ended: Result<(), Refusal>) {
        if self.ended.len() >= MAX_ENDED {
            let completed = self.ended.iter().find(|(_, ended)| ended.is_ok()).map(|(handle, _)| *handle);
            let forgotten = completed.or_else(|| self.ended.keys().next().copied());
            forgotten.map(|handle| self.ended.remove(&handle));
        }
        self.ended.insert(handle, ended);
    }
}

/// The error of a command whose answer did not come in time.
pub(super) fn timed_out(command: &Command, deadline: &Deadline) -> CallError {
    let after = deadline.limit();
    let command = match command {
        Command::Revoke { .. } => return CallError::RevocationPending { after },
        Command::Register { .. } => "register memory",
        Command::Derive { .. } => "derive a frame",
        Command::Grant { .. } => "grant memory",
        Command::Accept { .. } | Command::AcceptFor { .. } => "accept a grant",
        Command::AcceptRemote { .. } => "accept a grant of another node",
        Command::OpenQueue { .. } => "open a queue",
        Command::CloseQueue { .. } => "close a queue",
        Command::Notify { .. } => "signal completions",
        Command::Engines => "describe its engines",
        Command::Status => "report its status",
        Command::Policy { .. } => "show or change its policy",
        Command::Identify { .. } => "identify a session",
        Command::Allocate { .. } => "allocate memory at an engine",
        Command::Export { .. } => "export memory of an engine",
        Command::AttachEngine { .. } | Command::OpenEngine { .. } | Command::NextFrame { .. } => {
            "go on with an engine process"
        }
    };
    CallError::TimedOut { command, after }
}

/// Decodes an answer with its descriptors, or the last message of a session.
fn decode(packet: Packet) -> Result<(Reply, Vec<OwnedFd>), CallError> {
    if let Some(violation) = protocol::decode_violation(&packet.bytes) {
        return Err(CallError::Ended(violation.printable()));
    }
    let malformed = |_: Violation| CallError::Protocol("its answer is malformed");
    let reply: Reply = protocol::decode(&packet.bytes).map_err(malformed)?;
    if usize::from(reply.descriptors) != packet.descriptors.len() {
        return Err(CallError::Protocol("its answer announced another number of descriptors than it sent"));
    }
    Ok((cleaned(reply), packet.descriptors))
}

/// The reply with texts that are safe to print.
fn cleaned(mut reply: Reply) -> Reply {
    match &mut reply.body {
        Ok(Answer::Status(status)) => {
            status.policy = printable(&status.policy);
            status.engines.iter_mut().for_each(|engine| engine.name = printable(&engine.name));
        }
        Err(refusal) => refusal.message = printable(&refusal.message),
        Ok(_) => {}
    }
    reply
}
