//! Requests done at once: whether one may be, and the bytes that policies lend for them.
//!
//! ```text
//! may_do_at_once ─┬─ closing, no room, behind a waiting request or an order ─► no     (`allowed_at_once` answers this for a batch)
//!                 ├─ nothing moves, or the policy does not pace ─────────────► yes
//!                 ├─ enough is left of what the policy lent, or it lends more ► yes
//!                 └─ it does not ─────────────────────────────────────────────► no: through a channel, which it paces
//! did_at_once    ─► less is left                     end_batch, run ─► the policy takes back what is left
//! ```
//!
//! A request done at once uses no channel, so it asks for none, and busy channels do not matter. It may overtake requests of other
//! queues, which costs these at most its own time; a worker's time shares charge that to its user. It never overtakes a request of its
//! own queue that has not started.
//!
//! Policies that pace promise bytes, so they lend bytes in bulk, in advance: what is done at once never exceeds what was lent, and
//! each loan is taken back before the policy next decides who moves. No request needs a clock or a call of the policy, except the
//! first of a batch and one in every [`AT_MOST`] bytes. A request that moves nothing needs no loan.

use memferry_transfer::{Engine, PriorityClass, SessionId};

use super::Path;
use crate::policy::{Acts, Ask, Policy};
use crate::request::QueueKey;

/// Maximum bytes of one loan.
const AT_MOST: u64 = 64 << 10;

const CLASSES: [PriorityClass; 3] = [PriorityClass::Low, PriorityClass::Normal, PriorityClass::High];

/// What a policy lent for requests of one class of a queue.
#[derive(Clone, Copy, Default)]
pub(crate) struct Loan {
    /// 0 if there is no loan.
    lent: u64,
    left: u64,
}

/// What requests of a queue may do at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtOnce {
    /// Whose handles its operands are.
    pub session: SessionId,
    /// Requests of the queue that have no completion yet. They need room for one each.
    pub outstanding: u32,
    /// The longest request that is done at once, in bytes.
    pub longest_bytes: u64,
    /// Ask [`lends`](Path::lends) before a request, and report its bytes by [`did_at_once`](Path::did_at_once).
    pub paces: bool,
}

impl<E: Engine> Path<E> {
    /// What the next requests of a queue and class may [do at once](crate::Immediate), if they may at all: no earlier one of the queue
    /// has to start. It holds until another request of the queue is submitted.
    #[inline]
    pub fn allowed_at_once(&mut self, key: QueueKey, class: PriorityClass) -> Option<AtOnce> {
        let queue = self.ledger.queue(key)?;
        let may_start = !queue.closing && class <= queue.class;
        let session = queue.session;
        let outstanding = queue.outstanding;
        let paces = self.acts.contains(Acts::PACES);
        let allowed = AtOnce { session, outstanding, longest_bytes: self.immediate_bytes, paces };
        (may_start && !self.is_held_back(key)).then_some(allowed)
    }

    /// Whether the policy lets a request that is done at once move so many bytes.
    #[inline]
    pub fn lends(&mut self, key: QueueKey, class: PriorityClass, bytes: u64) -> bool {
        let Some(queue) = self.ledger.queue(key) else { return false };
        let is_enough = bytes <= queue.loans[class.index()].left;
        is_enough || !self.acts.contains(Acts::PACES) || self.borrow(key, class, bytes)
    }

    /// Whether the next request of a queue may be done at once if it moves `bytes` for `class`, has no link, no fence and no deadline,
    /// and fewer than `room` are outstanding. Returns the queue's session. Do it, or submit it.
    #[inline]
    pub fn may_do_at_once(
        &mut self,
        key: QueueKey,
        room: u32,
        class: PriorityClass,
        bytes: u64,
    ) -> Option<SessionId> {
        let allowed = self.allowed_at_once(key, class)?;
        let may_start = allowed.outstanding < room && bytes <= allowed.longest_bytes;
        (may_start && self.lends(key, class, bytes)).then_some(allowed.session)
    }

    /// Counts a request that was done at once and moved `bytes`.
    #[inline]
    pub fn did_at_once(&mut self, key: QueueKey, class: PriorityClass, bytes: u64) {
        self.bytes_moved[class.index()] += bytes;
        if self.acts.contains(Acts::PACES)
            && let Some(queue) = self.ledger.queue(key)
        {
            let loan = &mut queue.loans[class.index()];
            loan.left = loan.left.saturating_sub(bytes);
        }
    }

    /// Ends a batch of requests done at once: the policy takes back what it lent.
    #[inline]
    pub fn end_batch(&mut self) {
        if !self.borrowers.is_empty() {
            self.return_loans();
        }
    }

    /// Whether the next request of a queue must not start, because an earlier one has not.
    #[inline]
    pub(super) fn is_held_back(&mut self, key: QueueKey) -> bool {
        self.channels.waits(key) || self.orders.get(key).is_some()
    }

    /// Has the policy lend bytes for a request that moves `bytes`.
    #[cold]
    fn borrow(&mut self, key: QueueKey, class: PriorityClass, bytes: u64) -> bool {
        let Some(queue) = self.ledger.queue(key) else { return false };
        let ask = Ask { client: queue.session, user: queue.user, class, bytes, deadline: None };
        let loan = &mut queue.loans[class.index()];
        give_back(&mut *self.policy, &ask, loan);
        let lent = self.policy.lend(&ask, AT_MOST.max(bytes));
        if lent == 0 {
            return false;
        }
        *loan = Loan { lent, left: lent };
        self.borrowers.push(key);
        lent >= bytes
    }

    /// Gives all loans back to the policy.
    #[cold]
    pub(super) fn return_loans(&mut self) {
        for key in self.borrowers.drain(..) {
            let Some(queue) = self.ledger.queue(key) else { continue };
            for class in CLASSES {
                let ask = Ask { client: queue.session, user: queue.user, class, bytes: 0, deadline: None };
                give_back(&mut *self.policy, &ask, &mut queue.loans[class.index()]);
            }
        }
    }

    /// Forgets all loans, whose policy is gone.
    pub(super) fn forget_loans(&mut self) {
        for key in self.borrowers.drain(..) {
            if let Some(queue) = self.ledger.queue(key) {
                queue.loans = Default::default();
            }
        }
    }
}

fn give_back(policy: &mut dyn Policy, ask: &Ask, loan: &mut Loan) {
    let Loan { lent, left } = std::mem::take(loan);
    if lent > 0 {
        policy.take_back(ask, lent - left, left);
    }
}
