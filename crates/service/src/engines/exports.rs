//! Descriptors of engines' own memory, for the frames' owners.
//!
//! ```text
//! export(frame) ─► Queued ─ the engine takes its Export event ─► Delivered ─ its report, or its end ─► Over
//! ```
//!
//! The descriptor does not come this way: the attendant of the engine passes it to that of the client.

use memferry_shm::mapping::Mapping;
use memferry_transfer::{Handle, SessionId};

use super::{Engines, Peer};
use crate::protocol::{FrameEvent, Refusal, RefusalKind};
use crate::session::refusal;

/// Exports that one engine is asked for at the same time. Each client waits for one.
const MAX_EXPORTS: usize = 16;

/// A frame that an engine is asked to export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportRequest {
    /// The session of the engine.
    pub engine: SessionId,
    /// As the engine names it.
    pub frame: Handle,
}

/// How far an engine is with an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportState {
    /// It has not taken the event.
    Queued,
    /// It has taken the event and did not report it.
    Delivered,
    /// It has reported it, or is gone, or the frame was revoked before it took the event.
    Over,
}

impl Engines {
    /// Asks the engine that has the memory of a frame for a descriptor of it.
    pub(crate) fn export(&mut self, user: u32, mapping: &Mapping) -> Result<ExportRequest, Refusal> {
        let gone = || {
            let why = "the engine that has the memory of this frame is gone, and the frame with it; allocate another one";
            refusal(RefusalKind::System, why)
        };
        let place = |entry: &super::Entry| {
            let index = entry.by_key.get(&mapping.key()).copied()?;
            (entry.places[index as usize].own_bytes > 0).then_some(index)
        };
        let found = self.entries.iter_mut().find_map(|entry| Some((place(entry)?, entry)));
        let (index, entry) = found.ok_or_else(gone)?;
        if !entry.config.exports_to.contains(user) {
            let name = &entry.config.name;
            let why = format!(
                "the service's configuration gives user {user} no memory of engine {name} by descriptor (exports=); move the bytes by requests"
            );
            return Err(refusal(RefusalKind::Argument, why));
        }
        let frame = Handle::new(index, entry.places[index as usize].generation);
        let running = entry.engine.as_mut().filter(|engine| engine.cut.is_none()).ok_or_else(gone)?;
        let peer = &mut running.peer;
        let is_export = |(event, _): &&(FrameEvent, _)| matches!(event, FrameEvent::Export { .. });
        if peer.is_late || peer.events.iter().filter(is_export).count() >= MAX_EXPORTS {
            let why = format!("engine {} is busy with other memory; try again", entry.config.name);
            return Err(refusal(RefusalKind::System, why));
        }
        peer.events.push_back((FrameEvent::Export { frame }, None));
        Ok(ExportRequest { engine: peer.session, frame })
    }

    /// How far the engine is with an export.
    pub(crate) fn export_state(&self, request: &ExportRequest) -> ExportState {
        let running = self.entries.iter().filter_map(|entry| entry.engine.as_ref());
        let mut running = running.filter(|engine| engine.cut.is_none());
        let Some(engine) = running.find(|engine| engine.peer.session == request.engine) else {
            return ExportState::Over;
        };
        let event = FrameEvent::Export { frame: request.frame };
        if engine.peer.current == Some(event) {
            ExportState::Delivered
        } else if engine.peer.events.iter().any(|(other, _)| *other == event) {
            ExportState::Queued
        } else {
            ExportState::Over
        }
    }

    /// The engine took too long: nobody waits for its report any more. An event that it has not taken does not reach it.
    pub(crate) fn give_up_export(&mut self, request: &ExportRequest) {
        let running = self.entries.iter_mut().filter_map(|entry| entry.engine.as_mut());
        if let Some(engine) = running.into_iter().find(|engine| engine.peer.session == request.engine) {
            engine.peer.forget_export(request.frame);
            // One that never got the event is not to blame.
            engine.peer.is_late |= engine.peer.current == Some(FrameEvent::Export { frame: request.frame });
        }
    }
}

impl Peer {
    /// Takes back an event that the peer has not taken.
    pub(super) fn forget_export(&mut self, frame: Handle) {
        self.events.retain(|(event, _)| *event != FrameEvent::Export { frame });
    }
}
