//! Commands of engine processes, and what the daemon calls for them.
//!
//! ```text
//! daemon: memory of a client ─ propose_frame ─► engines' events ─ take_frame_deliveries ─► their sessions
//!         all have answered, or expire_proposals ─► sealed ─► frame_registered ─► workers know what each engine has
//! Allocate ─► engine's event ─► its report, or allocated(late) ─► registered: workers know it          lost with the engine's process
//! Export ─► engine's event ─► its report                                  attendants pass the descriptor on
//! AttachEngine, OpenEngine, NextFrame ─► registry of engines ─► workers
//! ```
//!
//! Only a daemon has engine processes: the commands of an embedded client are refused, because its service has none configured.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant as Stopwatch};

use memferry_cpu::IMMEDIATE_BYTES;
use memferry_external::layout::EngineLayout;
use memferry_external::{ExternalEngine, Fault, Lost};
use memferry_path::Accepted;
use memferry_shm::frame;
use memferry_shm::mapping::Mapping;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::ClientEnd;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{GrantToken, Handle, NodeName, Rights, SessionId};

use super::{Executed, Service, no_memory, no_resources, refused_capability};
use crate::bells::Bell;
use crate::engine_id::EngineId;
use crate::engines::{Engines, ExportRequest, ExportState, FrameDelivery, FrameProposal};
use crate::protocol::{
    Answer, EngineRole, ExternalStatus, FrameDone, FrameEvent, LINK, Refusal, RefusalKind, ServiceId,
};
use crate::session::{Introduced, refusal, session_closed};
use crate::shared::{Notice, WorkerCommand};

/// Refuses what is no node's name.
pub(super) fn check_node(node: NodeName) -> Result<(), Refusal> {
    if node.is_valid() {
        return Ok(());
    }
    Err(refusal(RefusalKind::Argument, memferry_transfer::BadNodeName))
}

impl Service {
    fn engine_processes(&self) -> MutexGuard<'_, Engines> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Capacity of each queue pair with an engine: a request for each engine channel.
    fn engine_capacity(&self) -> u32 {
        self.config.channels_per_worker.next_power_of_two().max(2)
    }

    pub(super) fn attach_engine(
        &self,
        session: SessionId,
        name: &str,
        role: &EngineRole,
    ) -> Result<Answer, Refusal> {
        let user = self.sessions().get(session).ok_or_else(session_closed)?.client.user;
        let stall = self.engine_processes().attach(session, user, name, role)?;
        let workers = self.workers.count() as u32;
        Ok(Answer::EngineAttached { workers, capacity: self.engine_capacity(), stall })
    }

    pub(super) fn open_engine(
        &self,
        session: SessionId,
        (workers, capacity): (u32, u32),
        memory: Option<Mapping>,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let expected = (self.workers.count() as u32, self.engine_capacity());
        if (workers, capacity) != expected {
            let why = format!(
                "the queue pairs are {} of {} requests, not {workers} of {capacity}",
                expected.0, expected.1
            );
            return Err(refusal(RefusalKind::Argument, why));
        }
        let layout =
            EngineLayout::new(workers, capacity).map_err(|error| refusal(RefusalKind::Argument, error))?;
        let memory = memory.ok_or_else(no_memory)?;
        if memory.page_bytes() != rustix::param::page_size() {
            return Err(refusal(
                RefusalKind::Frame,
                "the memory of an engine must not consist of huge pages",
            ));
        }
        let Introduced { asymmetric_fences, .. } =
            self.sessions().get(session).map(|open| open.client.clone()).ok_or_else(session_closed)?;
        let fences = if asymmetric_fences { self.fences } else { Fences::Full };
        let mut engines = self.engine_processes();
        let (id, description, config) = engines.opening(session)?;
        let shortest_bytes =
            config.shortest_bytes.unwrap_or_else(|| description.shortest_bytes.max(IMMEDIATE_BYTES + 1));
        let stall = config.stall;
        let (descriptor, own) =
            frame::allocate_sealed_named("memferry-engine", layout.service_bytes(), false)
                .map_err(|error| no_resources(&error))?;
        let (doorbell, bells) = Bell::of_engine(workers as usize).map_err(|error| no_resources(&error))?;
        let unaligned = || no_resources(&"its memory is not aligned");
        let service = MappedWords::new(own).ok_or_else(unaligned)?;
        let engine = MappedWords::new(memory).ok_or_else(unaligned)?;
        let channels = self.config.channels_per_worker;
        // Each worker gets its share of the engine, rounded up. All engines together have work of at most a quarter of a
        // worker's engine channels, which may fault with an engine that does not end.
        let most = channels / (4 * self.config.engines.len().max(1) as u32);
        let limit = description.channels.div_ceil(workers).min(most.max(1));
        let frames = engines.mapped(id);
        for (worker, bell) in bells.into_iter().enumerate() {
            let halves = layout.halves(&service, &engine, worker);
            let parts = halves.zip(layout.parked_words(&engine)).zip(layout.wake_word(&service));
            let ((client, peer), parked, wake) =
                parts.map(|((halves, parked), wake)| (halves, parked, wake)).ok_or_else(unaligned)?;
            let end = ClientEnd::new(layout.pair(), client, peer, parked, fences)
                .map_err(|error| no_resources(&error))?;
            let engine = Box::new(ExternalEngine::new(description, (end, wake), (channels, limit), stall));
            self.workers.get(worker).send(WorkerCommand::Engine { id, engine, shortest_bytes, bell });
            self.workers.get(worker).send(WorkerCommand::EngineFrames(id, frames.clone()));
        }
        engines.opened(id);
        Ok((Answer::EngineOpened, vec![descriptor, doorbell]))
    }

    pub(super) fn next_frame(&self, session: SessionId, done: Option<FrameDone>) -> Executed {
        match self.engine_processes().next(session, done) {
            Ok(()) => Executed::Waits,
            Err(refusal) => Executed::Done(Err(refusal), Vec::new()),
        }
    }

    /// Proposes memory of `user` to the engines that may have it, before it is sealed. `duplicate` gives a descriptor of it for each
    /// process that has to map it.
    pub fn propose_frame(
        &self,
        user: u32,
        length: u64,
        duplicate: impl Fn() -> Option<OwnedFd>,
    ) -> Vec<FrameProposal> {
        let mut engines = self.engine_processes();
        if engines.is_empty() {
            return Vec::new();
        }
        engines.propose(user, length, Stopwatch::now(), duplicate)
    }

    pub(super) fn allocate(&self, session: SessionId, home: &str, length: u64) -> Executed {
        let proposed = self
            .room_at_engine(session, length)
            .and_then(|user| self.engine_processes().allocate(user, home, length));
        match proposed {
            Ok(proposal) => Executed::Allocates(proposal),
            Err(refused) => Executed::Done(Err(refused), Vec::new()),
        }
    }

    /// Makes a frame that names memory of another node. What its owner granted is checked there at each access.
    pub(super) fn accept_remote(
        &self,
        session: SessionId,
        (node, service, token): (NodeName, ServiceId, GrantToken),
        length: u64,
        rights: Rights,
    ) -> Executed {
        let propose = || {
            check_node(node)?;
            if rights.contains(Rights::GRANT) {
                let why = "memory of another node cannot be granted on here; leave the right to grant out of the token, and have its owner \
                           grant to each user";
                return Err(refusal(RefusalKind::Argument, why));
            }
            let user = self.room_at_engine(session, length)?;
            let attach = |frame| FrameEvent::Attach { frame, length, node, service, token, user };
            self.engine_processes().ask_for_frame(user, LINK, (length, rights), attach)
        };
        match propose() {
            Ok(proposal) => Executed::Allocates(proposal),
            Err(refused) => Executed::Done(Err(refused), Vec::new()),
        }
    }

    /// Takes up a grant to a user of another node, for the link.
    pub(super) fn accept_for(
        &self,
        session: SessionId,
        to: (NodeName, u32),
        token: GrantToken,
    ) -> Result<Answer, Refusal> {
        let process = self.sessions().get(session).ok_or_else(session_closed)?.client.process;
        // Other processes of the same user are other engines, perhaps, and not what grantors of memory to other nodes trust.
        let link = {
            let engines = self.engine_processes();
            let mut states = engines.states();
            states
                .find(|state| state.config.name == LINK && state.is_connected)
                .and_then(|state| state.session)
        };
        let of_link = link.and_then(|link| self.sessions().get(link).map(|open| open.client.process));
        if of_link != Some(process) {
            let why = format!("only the process that is the engine {LINK:?} accepts grants for other nodes");
            return Err(refusal(RefusalKind::Argument, why));
        }
        let accepted = self.capabilities().accept_for(session, to, token);
        let Accepted { handle, length, rights, grantor } =
            accepted.map_err(|error| refused_capability(&error))?;
        Ok(Answer::Accepted { handle, length, rights, grantor })
    }

    /// The user of a session that may have one more frame of so many bytes at an engine.
    fn room_at_engine(&self, session: SessionId, length: u64) -> Result<u32, Refusal> {
        if length == 0 || isize::try_from(length).is_err() {
            let why = format!("{length} bytes are no length of a frame");
            return Err(refusal(RefusalKind::Argument, why));
        }
        let sessions = self.sessions();
        sessions.room_for_frame(session, length, &self.config.quotas)?;
        Ok(sessions.get(session).ok_or_else(session_closed)?.client.user)
    }

    /// The answer to a session that waits for an engine to allocate a frame; `None` while the engine has not answered. If it `is_late`, it
    /// is not waited for any more.
    pub fn allocated(
        &self,
        session: SessionId,
        proposal: &FrameProposal,
        is_late: bool,
    ) -> Option<Result<Answer, Refusal>> {
        let allocated = self.engine_processes().allocated(proposal, is_late)?;
        let proposals = std::slice::from_ref(proposal);
        let register = |length: u64| {
            let mapping = Mapping::reserved(length as usize).map_err(|error| no_resources(&error))?;
            let answer = self.register_mapping(session, mapping.clone(), proposal.rights)?;
            self.frame_registered(proposals, &mapping);
            Ok(answer)
        };
        Some(allocated.and_then(|length| {
            register(length).inspect_err(|_: &Refusal| self.withdraw_proposals(proposals))
        }))
    }

    pub(super) fn export(&self, session: SessionId, handle: Handle) -> Executed {
        let export = || {
            let user = self.sessions().get(session).ok_or_else(session_closed)?.client.user;
            let memory = self.home_of(session, handle)?;
            self.engine_processes().export(user, &memory)
        };
        match export() {
            Ok(request) => Executed::Exports(request),
            Err(refused) => Executed::Done(Err(refused), Vec::new()),
        }
    }

    /// The name of the memory of a frame that the session allocated at an engine.
    fn home_of(&self, session: SessionId, handle: Handle) -> Result<Mapping, Refusal> {
        let capabilities = self.capabilities();
        let memory = capabilities.registered(session, handle).map_err(|error| refused_capability(&error))?;
        let Some(memory) = memory else {
            let why = format!(
                "handle {handle} was derived or granted; only the session that allocated the frame can export it, as a whole"
            );
            return Err(refusal(RefusalKind::Capability, why));
        };
        if !memory.is_elsewhere() {
            let why = "the frame lies in memory of the host, not of an engine; map or pass the memfd that it was registered with";
            return Err(refusal(RefusalKind::Argument, why));
        }
        Ok(memory.clone())
    }

    /// How far an engine is with an export.
    pub fn export_state(&self, request: &ExportRequest) -> ExportState {
        self.engine_processes().export_state(request)
    }

    /// An engine took too long to export a frame. If it has not taken the event, it will not.
    pub fn give_up_export(&self, request: &ExportRequest) {
        self.engine_processes().give_up_export(request);
    }

    /// Whether the engines have mapped the memory, or could not.
    pub fn proposals_are_answered(&self, proposals: &[FrameProposal]) -> bool {
        self.engine_processes().are_answered(proposals)
    }

    /// Stops waiting for engines to map memory of `user`.
    pub fn expire_proposals(&self, proposals: &[FrameProposal], user: u32) {
        self.engine_processes().expire(proposals, user, Stopwatch::now());
    }

    /// The proposed memory is registered as a frame.
    pub fn frame_registered(&self, proposals: &[FrameProposal], mapping: &Mapping) {
        if proposals.is_empty() {
            return;
        }
        for (id, frame) in self.engine_processes().register(proposals, mapping) {
            for worker in self.workers.iter() {
                worker.send(WorkerCommand::EngineFrames(id, vec![(mapping.clone(), frame)]));
            }
        }
    }

    /// The proposed memory is not registered after all.
    pub fn withdraw_proposals(&self, proposals: &[FrameProposal]) {
        if !proposals.is_empty() {
            self.engine_processes().withdraw(proposals);
        }
    }

    /// The events that sessions of engines wait for now.
    pub fn take_frame_deliveries(&self) -> Vec<FrameDelivery> {
        self.engine_processes().take_deliveries()
    }

    /// An event could not be delivered, because too many descriptors are in flight to others.
    pub fn frame_undelivered(&self, delivery: FrameDelivery) {
        self.engine_processes().undelivered(delivery);
    }

    /// Whether the end of this session's process matters, because it may touch frames until then.
    pub fn is_engine(&self, session: SessionId) -> bool {
        self.engine_processes().is_engine(session)
    }

    /// The process of a session that was an engine has exited.
    pub fn engine_exited(&self, session: SessionId) {
        let exited = self.engine_processes().process_exited(session);
        if let Some((id, lost)) = exited {
            self.send_engine_lost(id, Lost::Gone);
            self.revoke_lost(&lost);
        }
    }

    /// Revokes frames whose memory is gone.
    fn revoke_lost(&self, lost: &[Mapping]) {
        if lost.is_empty() {
            return;
        }
        let keys: BTreeSet<_> = lost.iter().map(Mapping::key).collect();
        let mut sessions = self.sessions();
        let revoked =
            self.capabilities().revoke_lost(|mapping| keys.contains(&mapping.key()), super::PART_NODES);
        for (session, handle) in revoked {
            sessions.remove_frame(session, handle);
        }
        drop(sessions);
        self.cancel_revoked();
        self.shared.notify(Notice::Settled);
    }

    /// Goes on with engines that were cut off and whose processes live on.
    pub fn look_after_engines(&self) {
        let lingering = self.engine_processes().take_overdue(Stopwatch::now());
        lingering.into_iter().for_each(|id| self.send_engine_lost(id, Lost::Lingering));
    }

    /// The time until [`look_after_engines`](Self::look_after_engines) has something to do.
    pub fn engines_time_left(&self) -> Option<Duration> {
        self.engine_processes().time_left(Stopwatch::now())
    }

    /// The session of an engine process may have ended.
    pub(super) fn engine_session_ended(&self, session: SessionId) {
        let id = self.engine_processes().session_ended(session, Stopwatch::now());
        if let Some(id) = id {
            self.send_engine_lost(id, Lost::Cut);
        }
    }

    /// The session of an engine process that broke a rule.
    pub(super) fn faulty_engine(&self, id: EngineId, fault: Fault) -> Option<SessionId> {
        let session = self.engine_processes().session_of(id)?;
        let engine = self.config.engines.get(id.index).map(|engine| engine.name.as_str());
        tracing::warn!(engine, reason = %fault, "an engine process is cut off");
        Some(session)
    }

    /// Frames are unused. Returns whether workers have to forget them, because engines had some.
    pub(super) fn release_from_engines(&self, frames: &[Mapping]) -> bool {
        let mut engines = self.engine_processes();
        !engines.is_empty() && engines.release(frames)
    }

    fn send_engine_lost(&self, id: EngineId, how: Lost) {
        self.workers.iter().for_each(|worker| worker.send(WorkerCommand::EngineLost(id, how)));
    }

    pub(super) fn external_status(&self) -> Vec<ExternalStatus> {
        let engines = self.engine_processes();
        let sessions = self.sessions();
        let states = engines.states().zip(&self.shared.externals);
        let status = states.map(|(state, counters)| ExternalStatus {
            name: state.config.name.clone(),
            user: state.config.user,
            is_connected: state.is_connected,
            process: state.session.and_then(|session| sessions.get(session)).map(|open| open.client.process),
            frames: state.frames as u32,
            memory_bytes: state.memory.0,
            memory_used: state.memory.1,
            ..counters.status()
        });
        status.collect()
    }
}
