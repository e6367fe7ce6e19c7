//! Descriptors of engines' memory on their way to clients, which does not lead through this process.
//!
//! ```text
//! client ─ Export ─► queued for the engine ─ it takes the event ─► a pair of sockets, closed here at once
//!                                                 ├─ Export ─────► attendant of the engine ─ Passed, descriptor ─┐ over the pair
//!                                                 └─ Exporting ──► attendant of the client ◄─────────────────────┘
//! ```
//!
//! Until the engine has taken the event, the client is answered here; from then on by its attendant, which sees the end of the pair if the
//! engine's connection ends.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use memferry_service::protocol::{self, Answer, Envelope, FrameEvent, Refusal, RefusalKind};
use memferry_service::{ExportRequest, ExportState};
use memferry_transfer::{Handle, SessionId};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};

use crate::Daemon;
use crate::messages::{ClientId, IN_FLIGHT, ToAttendant};

/// How long a client waits for an engine process to export a frame. Clients wait for five seconds.
const EXPORT_LIMIT: Duration = Duration::from_secs(4);
/// Exports of one user's sessions at the same time, so that others get theirs.
const MAX_EXPORTS_OF_USER: usize = 4;
/// The client's attendant waits for so much longer: when the client has its refusal, the engine counts as late.
const MARGIN: Duration = Duration::from_millis(100);

/// A client's command that an engine process has to carry out.
pub(crate) struct Exporting {
    client: ClientId,
    serial: u32,
    request: ExportRequest,
    until: Instant,
    /// The client's attendant answers it.
    is_passed_on: bool,
}

impl Exporting {
    fn new(client: ClientId, serial: u32, request: ExportRequest) -> Self {
        Self { client, serial, request, until: Instant::now() + EXPORT_LIMIT, is_passed_on: false }
    }
}

impl Daemon {
    /// Waits for the engine, unless the user waits for many already.
    pub(crate) fn begin_export(&mut self, client: ClientId, serial: u32, request: ExportRequest) {
        let user_of = |client| self.connections.get(&client).map(|connection| connection.user);
        let user = user_of(client);
        let same = self.exporting.iter().filter(|one| user_of(one.client) == user);
        if same.count() >= MAX_EXPORTS_OF_USER {
            self.service.give_up_export(&request);
            let why = "the sessions of this user wait for as many exports as a user may; try again";
            return self.refuse_export(client, serial, why);
        }
        self.exporting.push(Exporting::new(client, serial, request));
    }

    pub(crate) fn exports_time_left(&self, now: Instant) -> Option<Duration> {
        self.exporting.iter().map(|one| one.until.saturating_duration_since(now)).min()
    }

    /// Ends exports that engines have reported, or did not in time. Answers the clients of those that no engine has taken.
    pub(crate) fn finish_exports(&mut self) {
        let now = Instant::now();
        let service = &self.service;
        let mut refused = Vec::new();
        self.exporting.retain(|one| {
            let state = service.export_state(&one.request);
            let is_late = one.until <= now;
            let why = match state {
                ExportState::Queued | ExportState::Delivered if !is_late => return true,
                ExportState::Queued | ExportState::Delivered => {
                    service.give_up_export(&one.request);
                    "the engine did not export the frame in time; try again"
                }
                ExportState::Over => {
                    "the frame was revoked, or its engine is gone, before it was exported; allocate another one"
                }
            };
            if !one.is_passed_on {
                refused.push((one.client, one.serial, why));
            }
            false
        });
        for (client, serial, why) in refused {
            self.refuse_export(client, serial, why);
        }
    }

    fn refuse_export(&mut self, client: ClientId, serial: u32, why: &str) {
        let refusal = Refusal { kind: RefusalKind::System, message: why.to_owned() };
        self.reply(client, serial, Err(refusal), (&[], None));
    }

    /// An engine, which waits with `serial`, takes the event that it exports a frame.
    pub(crate) fn deliver_export(
        &mut self,
        engine: ClientId,
        serial: u32,
        session: SessionId,
        frame: Handle,
    ) {
        let pair = self.prepare_export(&ExportRequest { engine: session, frame });
        let Some(connection) = self.connections.get(&engine) else { return };
        let user = connection.user;
        let body: Result<Answer, Refusal> = Ok(Answer::Frame(FrameEvent::Export { frame }));
        let bytes = protocol::encode(&Envelope { serial, descriptors: 0, body });
        let message = ToAttendant::Export { client: engine, frame, bytes };
        // Without its end the engine's descriptor reaches nobody, and the other end tells the client's attendant.
        let is_sent = pair.is_some_and(|end| self.attendants.try_send(user, &message, &[&end]).is_ok());
        if !is_sent {
            self.send(user, &message, &[]);
        }
    }

    /// Has the attendant of the client that waits for this export wait for the descriptor. Returns the end for the engine's attendant.
    fn prepare_export(&mut self, request: &ExportRequest) -> Option<OwnedFd> {
        let waits = |one: &&mut Exporting| one.request == *request && !one.is_passed_on;
        let one = self.exporting.iter_mut().find(waits)?;
        one.is_passed_on = true;
        let client = one.client;
        let serial = one.serial;
        let left = one.until.saturating_duration_since(Instant::now());
        let user = self.connections.get(&client)?.user;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        // One way only. So neither end can hold a descriptor, whose closing might block, when it is closed here: nothing can be sent to
        // the engine's end, and nothing is sent to the other one before this process has closed it.
        let pair = pair.and_then(|(engine, client)| {
            rustix::net::shutdown(&engine, Shutdown::Read).map(|()| (engine, client))
        });
        let Ok((for_engine, for_client)) = pair else {
            self.refuse_export(
                client,
                serial,
                "the service is out of descriptors or memory; try again later",
            );
            return None;
        };
        let milliseconds = (left + MARGIN).as_millis() as u64;
        let message = ToAttendant::Exporting { client, serial, milliseconds };
        match self.attendants.try_send(user, &message, &[&for_client]) {
            Ok(()) => Some(for_engine),
            Err(rustix::io::Errno::TOOMANYREFS) => {
                self.refuse_export(client, serial, IN_FLIGHT);
                None
            }
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                self.refuse_export(client, serial, "the service is out of descriptors; try again later");
                None
            }
            Err(error) => {
                self.give_up(user, error);
                None
            }
        }
    }
}
