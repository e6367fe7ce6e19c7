//! Commands that query the service: engines, status, the identity of a session, and the policy, which can also be changed.
//!
//! ```text
//! Engines, Policy, Status, Identify ─► sessions, workers' counters, policies ─► Answer
//! ```
//!
//! Every session may send them.

use std::sync::Arc;

use memferry_clock::Clock;
use memferry_cpu::CpuEngine;
use memferry_path::PolicySettings;
use memferry_transfer::{Engine, SessionId};

use super::Service;
use crate::MonotonicClock;
use crate::protocol::{
    Answer, EngineStatus, Identity, Refusal, RefusalKind, STATUS_SESSIONS, Status, ZeroedStatus,
};
use crate::session::{refusal, session_closed};
use crate::shared::WorkerCommand;

impl Service {
    /// Capabilities of the engines for a session. All workers have the same.
    pub(super) fn engines(&self, session: SessionId) -> Result<EngineStatus, Refusal> {
        let user = self.sessions().get(session).ok_or_else(session_closed)?.client.user;
        let engine = CpuEngine::new(self.config.channels_per_worker, self.config.chunk_bytes);
        let engine = engine.with_team(Arc::clone(&self.shared.team)).capabilities();
        Ok(EngineStatus {
            operations: engine.operations,
            longest_bytes: engine.longest_bytes,
            immediate_bytes: engine.immediate_bytes,
            preemption_bytes: engine.preemption_bytes,
            channels: engine.channels,
            engines: self.config.workers,
            class: self.config.class_of(user),
        })
    }

    /// Changes the policy if `change` is set, and returns the settings.
    pub(super) fn policy(
        &self,
        session: SessionId,
        change: Option<PolicySettings>,
    ) -> Result<Answer, Refusal> {
        let user = self.sessions().get(session).ok_or_else(session_closed)?.client.user;
        if let Some(settings) = change {
            let send = |worker, policy| self.workers.get(worker).send(WorkerCommand::Policy(policy));
            self.policies.change(user, settings, self.workers.count(), send)?;
        }
        Ok(Answer::Policy(Box::new(self.policies.settings())))
    }

    pub(super) fn status(&self, asking: SessionId) -> Status {
        let slices = self.policies.counts();
        let (open_sessions, sessions) = self.sessions().status(asking, STATUS_SESSIONS);
        let uptime = MonotonicClock.now().picoseconds().saturating_sub(self.started.picoseconds());
        Status {
            process: std::process::id(),
            uptime_seconds: u64::try_from(uptime / 1_000_000_000_000).unwrap_or(u64::MAX),
            policy: self.policies.settings().kind.name().to_owned(),
            slices: slices.slices,
            strayed_bytes: slices.strayed_bytes,
            open_sessions,
            sessions,
            workers: self
                .workers
                .iter()
                .map(|worker| worker.counters.status(self.config.channels_per_worker))
                .collect(),
            zeroed: self.zeroed.status(),
            module: self.workers.module_status(),
            latency: self.workers.latency(),
            refused: self.refused.status(),
            engines: self.external_status(),
        }
    }

    /// Counts buffers that were zeroed for an embedded client, or could not be.
    pub fn count_zeroed(&self, more: ZeroedStatus) {
        self.zeroed.add(more);
    }

    /// Counts a refused command.
    pub fn count_refusal(&self, kind: RefusalKind) {
        self.refused.add_command(kind);
    }

    /// Counts a client that was turned away before it had a session.
    pub fn count_turned_away(&self) {
        self.refused.add_turned_away();
    }

    /// Counts a session that ended because its client broke a rule.
    pub fn count_violation(&self) {
        self.refused.add_violation();
    }

    /// The user and process of a session.
    pub(super) fn identify(&self, session: SessionId) -> Result<Answer, Refusal> {
        let none = || refusal(RefusalKind::Argument, format!("session {session} is not open"));
        let sessions = self.sessions();
        let open = sessions.get(session).ok_or_else(none)?;
        Ok(Answer::Identity(Identity {
            service: self.id,
            user: open.client.user,
            process: open.client.process,
        }))
    }
}
