//! The daemon's work for engine processes: frames are proposed to them before they are sealed, and events go to their sessions.
//!
//! ```text
//! memory mapped here ─► proposed ─► all engines have answered, or too late ─► Mapped: its attendant seals it
//! event for an engine ─► the session that asks ─► its attendant
//! ```

use std::time::{Duration, Instant};

use memferry_service::protocol::{self, Answer, Envelope, FrameEvent, Refusal};
use memferry_service::{FrameDelivery, FrameProposal};
use memferry_transfer::SessionId;
use rustix::io::Errno;

use crate::messages::{ClientId, ToAttendant};
use crate::{Daemon, Pending};

/// How long a client waits for an engine process to allocate a frame.
pub(crate) const ALLOCATION_LIMIT: Duration = Duration::from_secs(4);

/// A command that an engine process has to carry out first.
pub(crate) struct Allocating {
    pub(crate) client: ClientId,
    pub(crate) serial: u32,
    pub(crate) session: SessionId,
    pub(crate) proposal: FrameProposal,
    pub(crate) until: Instant,
}

impl Daemon {
    /// The time until [`serve_engines`](Self::serve_engines) has something to do without an event.
    pub(crate) fn engines_time_left(&self) -> Option<Duration> {
        let now = Instant::now();
        let proposed = self.proposed.values().min().map(|until| until.saturating_duration_since(now));
        let allocating = self.allocating.iter().map(|one| one.until.saturating_duration_since(now)).min();
        let exporting = self.exports_time_left(now);
        [proposed, allocating, exporting, self.service.engines_time_left()].into_iter().flatten().min()
    }

    /// Delivers events to engine processes, and goes on with frames that they have mapped or could not.
    pub(crate) fn serve_engines(&mut self) {
        if self.service.config().engines.is_empty() {
            return;
        }
        self.service.look_after_engines();
        self.finish_proposals();
        self.finish_allocations();
        self.finish_exports();
        for delivery in self.service.take_frame_deliveries() {
            if let Some((client, serial)) = self.asking.remove(&delivery.session) {
                match delivery.event {
                    FrameEvent::Export { frame } => {
                        self.deliver_export(client, serial, delivery.session, frame)
                    }
                    _ => self.deliver_event(client, serial, delivery),
                }
            }
        }
    }

    /// Has memory sealed that engine processes have mapped, or did not map in time.
    fn finish_proposals(&mut self) {
        let now = Instant::now();
        let mut done = Vec::new();
        for (client, until) in &self.proposed {
            let Some(connection) = self.connections.get(client) else { continue };
            let Some(Pending { proposals, .. }) = &connection.pending else { continue };
            let is_late = *until <= now;
            if is_late {
                self.service.expire_proposals(proposals, connection.user);
            }
            if is_late || self.service.proposals_are_answered(proposals) {
                done.push((*client, connection.user));
            }
        }
        for (client, user) in done {
            self.proposed.remove(&client);
            self.send(user, &ToAttendant::Mapped { client }, &[]);
        }
    }

    /// Answers clients whose frames engine processes have allocated, or did not in time.
    fn finish_allocations(&mut self) {
        let now = Instant::now();
        let service = &self.service;
        let mut answered = Vec::new();
        self.allocating.retain(|one| {
            let answer = service.allocated(one.session, &one.proposal, one.until <= now);
            let is_open = answer.is_none();
            answered.extend(answer.map(|answer| (one.client, one.serial, answer)));
            is_open
        });
        for (client, serial, answer) in answered {
            self.reply(client, serial, answer, (&[], None));
        }
    }

    fn deliver_event(&mut self, client: ClientId, serial: u32, delivery: FrameDelivery) {
        let Some(connection) = self.connections.get(&client) else { return };
        let user = connection.user;
        let body: Result<Answer, Refusal> = Ok(Answer::Frame(delivery.event));
        let descriptors: Vec<_> = delivery.memory.iter().collect();
        let bytes = protocol::encode(&Envelope { serial, descriptors: descriptors.len() as u8, body });
        match self.attendants.try_send(user, &ToAttendant::Answer { client, bytes }, &descriptors) {
            Ok(()) => {}
            // Too many descriptors are in flight to clients that do not read, which is not the engine's fault.
            Err(Errno::TOOMANYREFS) => {
                self.asking.insert(delivery.session, (client, serial));
                self.service.frame_undelivered(delivery);
            }
            Err(error) => self.give_up(user, error),
        }
    }

    /// The attendant that watched a client's process is gone.
    pub(crate) fn lose_watch(&mut self, client: ClientId, user: u32) {
        let session = self.leaving.get(&client).map(|(session, _)| *session);
        if session.is_some_and(|session| self.service.is_engine(session)) {
            // Nobody knows any more when the engine exits: its memory stays withheld.
            tracing::warn!(
                user,
                "the end of an engine process cannot be seen; restart the service to use the engine again"
            );
            self.leaving.remove(&client);
            self.attendants.remove_client(user);
            return;
        }
        self.client_left(client, user);
    }
}
