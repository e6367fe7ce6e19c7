//! Stage 4, completion: what is running, and the one completion each accepted request gets.
//!
//! ```text
//! reserve(queue) ─► Reservation ─► submit … ─► EngineCompletion ─► settle ─► QueueCompletion
//! ```
//!
//! A reservation is made before a request is taken, so completions cannot overflow a client's ring. A request is decided
//! once: the engine's completion says whether it ended early, and the first reason given for that stands. Writing
//! completions into rings is the caller's.

use memferry_transfer::{Completion, Failure, Outcome, PriorityClass, SessionId, Ticket};

use crate::capability::Claims;
use crate::policy::Ask;
use crate::request::{Origin, QueueCompletion, QueueKey, Retired};

/// Room for one completion in a queue's ring. Becomes a request's, be it submitted or refused.
#[derive(Debug)]
#[must_use = "a reservation counts as outstanding"]
pub struct Reservation {
    pub(crate) queue: QueueKey,
}

/// A request in an engine.
pub(crate) struct Running {
    pub(crate) ticket: Ticket,
    pub(crate) origin: Origin,
    pub(crate) claims: Claims,
    /// What it asked of the policy.
    pub(crate) ask: Ask,
    /// Policies pace it: not a device.
    pub(crate) is_paced: bool,
    /// Bytes that the policy was told of.
    pub(crate) charged: u64,
    /// Why it was asked to end early; the first reason stands.
    pub(crate) ending: Option<Failure>,
    /// Progress that the client can see, bytes.
    pub(crate) reported_bytes: u64,
}

impl Running {
    /// The request as the engine's completion left it; `quarantine` names its channel when that failed.
    pub(crate) fn retire(self, reported: &Outcome, quarantine: Option<u32>) -> Retired {
        let result = match (reported.result, self.ending) {
            (Err(Failure::Cancelled), Some(reason)) => Err(reason),
            (result, _) => result,
        };
        Retired {
            origin: self.origin,
            claims: self.claims,
            quarantine,
            places: 0,
            outcome: Outcome { result, ..*reported },
            inherited: false,
            watermarked: self.reported_bytes > 0,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) session: SessionId,
    pub(crate) user: u32,
    /// Reservations, requests, and completions that were not taken yet.
    pub(crate) outstanding: u32,
    /// Started requests that have not ended.
    pub(crate) active: u32,
    /// Nobody listens any more.
    pub(crate) closing: bool,
    /// The highest class its requests may use.
    pub(crate) class: PriorityClass,
}

/// The queues of one path and the requests running for them.
pub(crate) struct Ledger {
    queues: Vec<Option<Queue>>,
    running: Vec<Option<Running>>,
    /// How many run, and how many of them have a deadline: an idle path costs no look at every channel.
    count: usize,
    timed: usize,
}

impl Ledger {
    pub(crate) fn new(channels: u32) -> Self {
        let running = (0..channels).map(|_| None).collect();
        Self { queues: Vec::new(), running, count: 0, timed: 0 }
    }

    pub(crate) fn open(&mut self, session: SessionId, user: u32) -> QueueKey {
        let class = PriorityClass::Normal;
        let queue = Queue { session, user, outstanding: 0, active: 0, closing: false, class };
        let index = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        if index == self.queues.len() {
            self.queues.push(None);
        }
        self.queues[index] = Some(queue);
        QueueKey(index as u32)
    }

    #[inline]
    pub(crate) fn queue(&mut self, key: QueueKey) -> Option<&mut Queue> {
        self.queues.get_mut(key.0 as usize)?.as_mut()
    }

    /// Forgets closing queues with nothing outstanding; returns whose they were.
    #[inline]
    pub(crate) fn forget_closed(&mut self, key: QueueKey) -> Option<SessionId> {
        let slot = self.queues.get_mut(key.0 as usize)?;
        let queue = slot.filter(|queue| queue.closing && queue.outstanding == 0)?;
        *slot = None;
        Some(queue.session)
    }

    /// Whether queues of more than one user are open.
    pub(crate) fn is_crowded(&self) -> bool {
        let mut users = self.queues.iter().flatten().filter(|queue| !queue.closing).map(|queue| queue.user);
        users.next().is_some_and(|first| users.any(|user| user != first))
    }

    pub(crate) fn has_session(&self, session: SessionId) -> bool {
        self.queues.iter().flatten().any(|queue| queue.session == session)
    }

    pub(crate) fn start(&mut self, running: Running) {
        let channel = running.ticket.channel as usize;
        if let Some(slot) = self.running.get_mut(channel) {
            self.count += 1;
            self.timed += usize::from(running.ask.deadline.is_some());
            *slot = Some(running);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Requests running that have a deadline.
    pub(crate) fn timed(&self) -> usize {
        self.timed
    }

    pub(crate) fn running_now(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().flatten()
    }

    pub(crate) fn running(&mut self) -> impl Iterator<Item = &mut Running> {
        self.running.iter_mut().flatten()
    }

    /// Takes the running request of a ticket, `None` when the channel holds another one.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Running> {
        let slot = self.running.get_mut(ticket.channel as usize)?;
        let running = slot.take_if(|running| running.ticket == ticket)?;
        self.count -= 1;
        self.timed -= usize::from(running.ask.deadline.is_some());
        Some(running)
    }

    /// One of a queue's reservations has come to its end.
    #[inline]
    pub(crate) fn ended(&mut self, key: QueueKey) {
        if let Some(queue) = self.queue(key) {
            queue.outstanding = queue.outstanding.saturating_sub(1);
        }
    }

    /// The completion of a request that is over, `None` when its queue is closing.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        origin: Origin,
        outcome: Outcome,
        inherited: bool,
        watermarked: bool,
    ) -> Option<QueueCompletion> {
        if self.queue(origin.queue)?.closing {
            self.ended(origin.queue);
            return None;
        }
        let completion = Completion { tag: origin.tag, inherited, outcome };
        Some(QueueCompletion { queue: origin.queue, completion, watermarked })
    }
}
