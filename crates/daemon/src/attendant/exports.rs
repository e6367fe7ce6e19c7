//! Descriptors of engines' memory: taken from an engine in one attendant, given to a client in another, or in the same.
//!
//! ```text
//! control ─ Export ───► the engine's ─ event ─► engine ─ NextFrame, descriptor ─► Passed, descriptor ─┐
//! control ─ Exporting ► the client's ◄────────────────────────────── pair of sockets ◄────────────────┘
//!                          └─ answer, descriptor ─► client                 pair ended, or too late: a refusal
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use memferry_service::protocol::{
    self, Answer, Command, Envelope, FrameDone, FrameResult, RefusalKind, Reply,
};
use memferry_shm::conduit::{self, ReceiveError};
use memferry_transfer::Handle;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::client::{Export, State};
use super::{Attendant, Ended, OUT_OF_DESCRIPTORS, Watched};
use crate::messages::{self, ClientId, FromAttendant, IN_FLIGHT, Passed};

impl Attendant {
    /// Sends an engine the event that it exports a frame.
    pub(super) fn export(
        &mut self,
        id: ClientId,
        frame: Handle,
        bytes: &[u8],
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), Ended> {
        if let Some(client) = self.clients.get_mut(&id) {
            // Nothing is ever sent to this end, so closing it cannot block.
            client.export = descriptors.pop().map(|pair| (frame, pair));
        }
        self.answer(id, bytes, &[])
    }

    /// An engine has sent a command. If that is the report on an export, passes it on.
    pub(super) fn pass_on(&mut self, id: ClientId, command: &Command, descriptors: &[OwnedFd]) {
        let Command::NextFrame { done } = command else { return };
        let Some((frame, pair)) = self.clients.get_mut(&id).and_then(|client| client.export.take()) else {
            return;
        };
        let passed = match done {
            Some(FrameDone { frame: named, result }) if *named == frame => match *result {
                FrameResult::Exported { kind, length } => Passed::Exported { kind, length },
                FrameResult::NotExported => Passed::Unsupported,
                FrameResult::Failed => Passed::Failed,
                FrameResult::Mapped { .. } | FrameResult::Unmapped => return,
            },
            _ => return,
        };
        let given: Vec<_> = descriptors.iter().collect();
        // The pair has room for one message. The client's attendant may be gone.
        if messages::send(pair.as_fd(), &passed, &given, false) == Err(Errno::TOOMANYREFS) {
            let _ = messages::send(pair.as_fd(), &Passed::InFlight, &[], false);
        }
    }

    /// An engine exports a client's frame: waits for the descriptor.
    pub(super) fn exporting(
        &mut self,
        id: ClientId,
        (serial, limit): (u32, Duration),
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<(), Ended> {
        let Some(pair) = descriptors.pop() else {
            return self.not_exported(id, serial, RefusalKind::System, OUT_OF_DESCRIPTORS);
        };
        if !self.clients.contains_key(&id) {
            self.jobs.close_connection(pair);
            return Ok(());
        }
        let Some(token) = self.watch(pair.as_fd(), Watched::Export(id), EventFlags::IN) else {
            self.jobs.close_connection(pair);
            return self.not_exported(id, serial, RefusalKind::System, OUT_OF_DESCRIPTORS);
        };
        if let Some(client) = self.clients.get_mut(&id) {
            let deadline = Instant::now() + limit;
            client.state = State::Exporting(Export { serial, deadline, pair, token });
        }
        Ok(())
    }

    /// The other end has sent the engine's report, or is gone.
    pub(super) fn exported(&mut self, id: ClientId) -> Result<(), Ended> {
        let Some(export) = self.take_export(id) else { return Ok(()) };
        let mut descriptors = Vec::new();
        let received = conduit::receive_into(export.pair.as_fd(), false, &mut descriptors);
        if let Err(ReceiveError::WouldBlock) = received {
            if let Some(client) = self.clients.get_mut(&id) {
                client.state = State::Exporting(export);
            }
            return Ok(());
        }
        let serial = export.serial;
        self.stop_export(export);
        let passed = received.ok().and_then(|bytes| protocol::decode::<Passed>(&bytes).ok());
        let done = match (passed, descriptors.as_slice()) {
            (Some(Passed::Exported { kind, length }), [descriptor]) => {
                let body = Ok(Answer::Exported { kind, length });
                let reply: Reply = Envelope { serial, descriptors: 1, body };
                self.give(id, serial, &protocol::encode(&reply), descriptor)
            }
            (Some(Passed::Unsupported), _) => {
                let why = "the engine gives out no descriptors of its memory; move the bytes by requests";
                self.not_exported(id, serial, RefusalKind::Argument, why)
            }
            (Some(Passed::Failed), _) => {
                let why = "the engine could not export the frame; move the bytes by requests, or see its log";
                self.not_exported(id, serial, RefusalKind::System, why)
            }
            (Some(Passed::InFlight), _) => self.not_exported(id, serial, RefusalKind::System, IN_FLIGHT),
            (Some(Passed::Exported { .. }), _) => {
                self.not_exported(id, serial, RefusalKind::System, OUT_OF_DESCRIPTORS)
            }
            (None, _) => {
                let why = "the engine ended, broke the protocol, or was not reached, before it exported the frame; try again, or allocate another one if it is gone";
                self.not_exported(id, serial, RefusalKind::System, why)
            }
        };
        descriptors.into_iter().for_each(|descriptor| self.jobs.close(descriptor));
        done
    }

    /// Answers a client with a descriptor.
    fn give(&mut self, id: ClientId, serial: u32, bytes: &[u8], descriptor: &OwnedFd) -> Result<(), Ended> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let result = client.send(bytes, &[descriptor]);
        if result == Err(Errno::TOOMANYREFS) {
            return self.not_exported(id, serial, RefusalKind::System, IN_FLIGHT);
        }
        self.sent(id, result)
    }

    fn not_exported(&mut self, id: ClientId, serial: u32, kind: RefusalKind, why: &str) -> Result<(), Ended> {
        self.report(&FromAttendant::NotExported { client: id }, &[])?;
        self.refuse(id, serial, kind, &why)
    }

    /// Takes the export that a client waits for.
    fn take_export(&mut self, id: ClientId) -> Option<Export> {
        let client = self.clients.get_mut(&id)?;
        match std::mem::replace(&mut client.state, State::Waiting) {
            State::Exporting(export) => {
                client.state = State::Idle;
                Some(export)
            }
            other => {
                client.state = other;
                None
            }
        }
    }

    /// Nobody waits for an export any more. What may still come of it is closed where that may block.
    pub(super) fn stop_export(&mut self, Export { pair, token, .. }: Export) {
        self.unwatch(pair.as_fd(), token);
        self.jobs.close_connection(pair);
    }

    /// Refuses exports that took too long.
    pub(super) fn end_overdue_exports(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let is_overdue =
            |client: &super::Client| client.export_deadline().is_some_and(|deadline| deadline <= now);
        let overdue: Vec<_> =
            self.clients.iter().filter(|(_, client)| is_overdue(client)).map(|(id, _)| *id).collect();
        for id in overdue {
            let Some(export) = self.take_export(id) else { continue };
            let serial = export.serial;
            self.stop_export(export);
            let why = "the engine did not export the frame in time; try again";
            self.not_exported(id, serial, RefusalKind::System, why)?;
        }
        Ok(())
    }
}
