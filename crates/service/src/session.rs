//! The sessions, their resources, and the quotas of their users.
//!
//! Pure data: no access to sockets, workers or memory. Quotas count by user id, which is the protection boundary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memferry_path::RevocationId;
use memferry_transfer::{Handle, SessionId};

use crate::config::Quotas;
use crate::counters::{QueueCounters, QueueTotals};
use crate::printable::printable;
use crate::protocol::{Refusal, RefusalKind, SessionStatus};

/// The verified identity of a client.
#[derive(Clone, Debug)]
pub struct Introduced {
    pub user: u32,
    pub process: u32,
    /// Whether membarrier may order its parking flags.
    pub asymmetric_fences: bool,
}

pub(crate) struct Session {
    pub(crate) client: Introduced,
    /// By number: where the open queues are.
    pub(crate) queues: BTreeMap<u32, Arc<QueueCounters>>,
    pub(crate) next_queue: u32,
    /// Queues whose signal is set.
    notified: BTreeSet<u32>,
    /// Registered frames and their bytes.
    pub(crate) frames: BTreeMap<Handle, u64>,
    /// Statistics of its queues, including closed ones that a worker has not released yet.
    counters: BTreeMap<u32, Arc<QueueCounters>>,
    /// Totals of released queues.
    released: QueueTotals,
    /// Number of its incomplete revocations.
    revoking: u32,
}

/// Resources of a user in all its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) sessions: u32,
    pub(crate) frames: u32,
    pub(crate) bytes: u64,
    pub(crate) queues: u32,
}

/// All sessions and incomplete revocations.
#[derive(Default)]
pub(crate) struct Sessions {
    open: BTreeMap<SessionId, Session>,
    users: BTreeMap<u32, Usage>,
    last: u64,
    /// Incomplete revocations and the session that requested each. They outlive the session, because a thread of an embedded
    /// client may be waiting for one.
    revocations: BTreeMap<RevocationId, SessionId>,
}

/// Maximum number of incomplete revocations per session.
const MAX_REVOCATIONS: u32 = 256;

pub(crate) fn refusal(kind: RefusalKind, message: impl ToString) -> Refusal {
    // Its words may be the client's own, and the packet of a refusal has to fit.
    Refusal { kind, message: printable(&message.to_string()) }
}

/// The refusal of commands of a closed session.
pub(crate) fn session_closed() -> Refusal {
    refusal(RefusalKind::Argument, "the session is closed; connect again")
}

fn quota_reached(what: &str, user: u32, limit: impl ToString) -> Refusal {
    let limit = limit.to_string();
    refusal(
        RefusalKind::Quota,
        format!("user {user} has reached its quota of {limit} {what}; release some first"),
    )
}

impl Sessions {
    pub(crate) fn open(&mut self, client: Introduced, quotas: &Quotas) -> Result<SessionId, Refusal> {
        let user = client.user;
        let usage = self.users.entry(user).or_default();
        if usage.sessions >= quotas.sessions {
            return Err(quota_reached("sessions", user, quotas.sessions));
        }
        usage.sessions += 1;
        self.last += 1;
        let id = SessionId(self.last);
        let session = Session {
            client,
            queues: BTreeMap::new(),
            next_queue: 0,
            notified: BTreeSet::new(),
            frames: BTreeMap::new(),
            counters: BTreeMap::new(),
            released: QueueTotals::default(),
            revoking: 0,
        };
        self.open.insert(id, session);
        Ok(id)
    }

    pub(crate) fn close(&mut self, id: SessionId) -> Option<Session> {
        let session = self.open.remove(&id)?;
        if let Some(usage) = self.users.get_mut(&session.client.user) {
            usage.sessions -= 1;
            usage.queues -= session.queues.len() as u32;
            usage.frames -= session.frames.len() as u32;
            usage.bytes -= session.frames.values().sum::<u64>();
            if *usage == Usage::default() {
                self.users.remove(&session.client.user);
            }
        }
        Some(session)
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.open.get(&id)
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.open.keys().copied().collect()
    }

    /// Checks that a session may start another revocation.
    pub(crate) fn room_for_revocation(&self, id: SessionId) -> Result<(), Refusal> {
        let full = self.get(id).is_some_and(|session| session.revoking >= MAX_REVOCATIONS);
        let message =
            || format!("{MAX_REVOCATIONS} revocations of this client are still running; wait for one");
        if full { Err(refusal(RefusalKind::Quota, message())) } else { Ok(()) }
    }

    pub(crate) fn add_revocation(&mut self, revocation: RevocationId, by: SessionId) {
        self.revocations.insert(revocation, by);
        if let Some(session) = self.open.get_mut(&by) {
            session.revoking += 1;
        }
    }

    /// Removes a revocation; whether its answer is still to be sent.
    pub(crate) fn answer_revocation(&mut self, revocation: RevocationId) -> bool {
        let Some(by) = self.revocations.remove(&revocation) else { return false };
        if let Some(session) = self.open.get_mut(&by) {
            session.revoking -= 1;
        }
        true
    }

    /// Checks that another frame of `bytes` is within the quotas.
    pub(crate) fn room_for_frame(&self, id: SessionId, bytes: u64, quotas: &Quotas) -> Result<(), Refusal> {
        let user = self.get(id).ok_or_else(session_closed)?.client.user;
        let usage = self.users.get(&user).copied().unwrap_or_default();
        if usage.frames >= quotas.frames {
            return Err(quota_reached("frames", user, quotas.frames));
        }
        if usage.bytes.checked_add(bytes).is_none_or(|bytes| bytes > quotas.bytes) {
            return Err(quota_reached("bytes in frames", user, quotas.bytes));
        }
        Ok(())
    }

    /// Checks that another queue is within the quotas.
    pub(crate) fn room_for_queue(&self, id: SessionId, quotas: &Quotas) -> Result<(), Refusal> {
        let user = self.get(id).ok_or_else(session_closed)?.client.user;
        let queues = self.users.get(&user).map_or(0, |usage| usage.queues);
        if queues >= quotas.queues { Err(quota_reached("queues", user, quotas.queues)) } else { Ok(()) }
    }

    pub(crate) fn add_frame(&mut self, id: SessionId, handle: Handle, bytes: u64) {
        let Some(session) = self.open.get_mut(&id) else { return };
        session.frames.insert(handle, bytes);
        let usage = self.users.entry(session.client.user).or_default();
        usage.frames += 1;
        usage.bytes += bytes;
    }

    /// Removes a frame and returns its bytes; 0 for a capability that was not registered as one.
    pub(crate) fn remove_frame(&mut self, id: SessionId, handle: Handle) -> u64 {
        let Some(session) = self.open.get_mut(&id) else { return 0 };
        let Some(bytes) = session.frames.remove(&handle) else { return 0 };
        if let Some(usage) = self.users.get_mut(&session.client.user) {
            usage.frames -= 1;
            usage.bytes -= bytes;
        }
        bytes
    }

    /// Adds a queue and returns its number.
    pub(crate) fn add_queue(
        &mut self,
        id: SessionId,
        counters: &Arc<QueueCounters>,
        quotas: &Quotas,
    ) -> Result<u32, Refusal> {
        let session = self.open.get_mut(&id).ok_or_else(session_closed)?;
        let usage = self.users.entry(session.client.user).or_default();
        if usage.queues >= quotas.queues {
            return Err(quota_reached("queues", session.client.user, quotas.queues));
        }
        let used_up =
            || refusal(RefusalKind::Quota, "this session has used up its queue numbers; connect again");
        let queue = session.next_queue;
        session.next_queue = queue.checked_add(1).ok_or_else(used_up)?;
        usage.queues += 1;
        session.queues.insert(queue, Arc::clone(counters));
        Ok(queue)
    }

    /// Where a session's queue is.
    pub(crate) fn find_queue(&self, id: SessionId, queue: u32) -> Option<Arc<QueueCounters>> {
        self.get(id)?.queues.get(&queue).cloned()
    }

    /// Records that a queue's signal is set; false if it was already.
    pub(crate) fn set_notified(&mut self, id: SessionId, queue: u32) -> bool {
        self.open.get_mut(&id).is_some_and(|session| session.notified.insert(queue))
    }

    pub(crate) fn remove_queue(&mut self, id: SessionId, queue: u32) -> Option<Arc<QueueCounters>> {
        let session = self.open.get_mut(&id)?;
        let counters = session.queues.remove(&queue)?;
        session.notified.remove(&queue);
        if let Some(usage) = self.users.get_mut(&session.client.user) {
            usage.queues -= 1;
        }
        Some(counters)
    }

    /// Adds the statistics of a queue that a worker serves.
    pub(crate) fn add_counters(&mut self, id: SessionId, queue: u32, counters: &Arc<QueueCounters>) {
        if let Some(session) = self.open.get_mut(&id) {
            session.counters.insert(queue, Arc::clone(counters));
        }
    }

    /// A worker has released a queue: its statistics go to the session's totals.
    pub(crate) fn queue_released(&mut self, id: SessionId, queue: u32) {
        let Some(session) = self.open.get_mut(&id) else { return };
        if let Some(counters) = session.counters.remove(&queue) {
            session.released = session.released.plus(counters.totals());
        }
    }

    /// The number of sessions, and the status of at most `limit`: `asking` first, then the oldest.
    pub(crate) fn status(&self, asking: SessionId, limit: usize) -> (u64, Vec<SessionStatus>) {
        let status = |(id, session): (&SessionId, &Session)| {
            let counted = session.counters.values().map(|counters| counters.totals());
            let totals = counted.fold(session.released, QueueTotals::plus);
            SessionStatus {
                session: *id,
                user: session.client.user,
                process: session.client.process,
                queues: session.queues.len() as u32,
                frames: session.frames.len() as u32,
                bytes: session.frames.values().sum(),
                requests: totals.requests,
                outstanding: totals.outstanding,
                waiting: totals.waiting,
                failures: totals.failures,
                bytes_moved: totals.bytes,
            }
        };
        let asking = self.open.get_key_value(&asking);
        let others = self.open.iter().filter(|(id, _)| asking.is_none_or(|(asking, _)| asking != *id));
        (self.open.len() as u64, asking.into_iter().chain(others).take(limit).map(status).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Loads;

    fn client(user: u32, process: u32) -> Introduced {
        Introduced { user, process, asymmetric_fences: true }
    }

    #[test]
    fn quotas_count_all_sessions_of_a_user() {
        let quotas = Quotas { sessions: 2, frames: 2, bytes: 100, queues: 1, ..Quotas::default() };
        let mut sessions = Sessions::default();
        let a = sessions.open(client(7, 1), &quotas).unwrap();
        let b = sessions.open(client(7, 2), &quotas).unwrap();
        assert_eq!(sessions.open(client(7, 3), &quotas).unwrap_err().kind, RefusalKind::Quota);
        let other = sessions.open(client(8, 4), &quotas).unwrap();
        sessions.room_for_frame(a, 60, &quotas).unwrap();
        sessions.add_frame(a, Handle::new(0, 1), 60);
        assert!(sessions.room_for_frame(b, 60, &quotas).is_err());
        assert!(sessions.room_for_frame(b, u64::MAX, &quotas).is_err());
        sessions.room_for_frame(other, 100, &quotas).unwrap();
        sessions.add_frame(b, Handle::new(1, 1), 1);
        assert!(sessions.room_for_frame(b, 1, &quotas).is_err(), "frames");
        sessions.remove_frame(b, Handle::new(1, 1));
        let counters = Arc::new(QueueCounters::at(3, &Loads::new(4)));
        let queue = sessions.add_queue(a, &counters, &quotas).unwrap();
        assert!(sessions.add_queue(b, &counters, &quotas).is_err());
        assert!(sessions.remove_queue(a, queue).is_some_and(|found| found.worker() == 3));
        assert!(sessions.remove_queue(a, queue).is_none());
        sessions.add_queue(b, &counters, &quotas).unwrap();
        sessions.close(a);
        sessions.close(b);
        sessions.room_for_frame(other, 100, &quotas).unwrap();
        assert_eq!(sessions.users.len(), 1);
    }

    #[test]
    fn incomplete_revocations_are_limited() {
        let mut sessions = Sessions::default();
        let [a, b] = [1, 2].map(|process| sessions.open(client(7, process), &Quotas::default()).unwrap());
        let mut table: memferry_path::Capabilities<memferry_shm::mapping::Mapping> =
            memferry_path::Capabilities::new(1);
        let ids: Vec<_> = (0..MAX_REVOCATIONS).map(|_| table.close(a)).collect();
        for id in &ids {
            sessions.room_for_revocation(a).unwrap();
            sessions.add_revocation(*id, a);
        }
        assert_eq!(sessions.room_for_revocation(a).unwrap_err().kind, RefusalKind::Quota);
        sessions.room_for_revocation(b).unwrap();
        assert!(sessions.answer_revocation(ids[7]));
        assert!(!sessions.answer_revocation(ids[7]));
        sessions.room_for_revocation(a).unwrap();
        // Revocations of a closed session are still answered.
        sessions.close(a);
        assert!(ids.iter().filter(|id| sessions.answer_revocation(**id)).count() == ids.len() - 1);
    }
}
