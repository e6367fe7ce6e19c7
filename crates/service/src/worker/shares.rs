//! Fair shares of a worker's time among the users that it serves.
//!
//! ```text
//! pick: of the users with work, the one that has spent least ─► a slice: its requests, a part of one of its transfers ─► charge
//! ```
//!
//! Everything that a user makes the worker do is charged: decoding, refusing, cancels, lists, moving bytes, completions,
//! wake-ups. So a user whose requests cost much is served less often, and one that asks for little is served next. A user that was
//! idle has no claim to the time it did not use, but for a short credit.
//!
//! A user whose memory makes the worker sleep in the kernel rests for a while: its pages are swapped out, or it has them moved all the time.
//! The worker cannot serve others while it sleeps, so such a user must not have many slices.
//!
//! With a single user nothing is measured. Policies that pace running requests divide the engine's time themselves; requests
//! are taken in slices under them too.

use std::time::{Duration, Instant as Stopwatch};

/// Time for which a user's requests are taken before another user's turn. One request may exceed it.
pub(super) const SLICE: Duration = Duration::from_micros(50);
/// Time that a part of a transfer should take.
const PART: Duration = Duration::from_micros(50);
/// How far a user that was idle is ahead of the others.
const CREDIT: u64 = 1_000_000;
/// A slice in which the worker slept this long was slow.
pub(super) const SLOW: Duration = Duration::from_millis(2);
/// After a slow slice its user rests for so many times its duration.
pub(super) const REST: u32 = 200;
/// Bytes of the smallest part of a transfer.
const MIN_PART_BYTES: u64 = 4 << 10;
/// Bytes of a user's first part.
const FIRST_PART_BYTES: u64 = 32 << 10;

/// What one user has had of the worker's time.
pub(super) struct Share {
    pub(super) user: u32,
    /// Indices of its awake queues.
    queues: Vec<usize>,
    /// Number of its queues, awake or not.
    open: usize,
    /// The queue that is served first in the next slice, as a position in `queues`.
    next: usize,
    /// Nanoseconds spent, on a clock that all users share.
    spent: u64,
    /// Bytes of a part of a transfer that take about [`PART`].
    pub(super) part_bytes: u64,
    /// It gets no slice before.
    rests_until: Option<Stopwatch>,
}

impl Share {
    pub(super) fn queues(&self) -> &[usize] {
        &self.queues
    }

    /// Its awake queues in the order of service, beginning with another one each time.
    pub(super) fn rotate(&mut self) -> Vec<usize> {
        let split = self.next % self.queues.len().max(1);
        self.next = self.next.wrapping_add(1);
        let (last, first) = self.queues.split_at(split);
        [first, last].concat()
    }
}

#[derive(Default)]
pub(super) struct Shares {
    users: Vec<Share>,
    /// By index: the position of each awake queue in the list of its user.
    places: Vec<usize>,
    /// Time spent by the user that was picked last.
    floor: u64,
}

impl Shares {
    /// Adds a queue of `user`, which is not awake yet.
    pub(super) fn open(&mut self, user: u32) {
        match self.of_user(user) {
            Some(share) => share.open += 1,
            None => self.users.push(Share {
                user,
                queues: Vec::new(),
                open: 1,
                next: 0,
                spent: self.floor,
                part_bytes: FIRST_PART_BYTES,
                rests_until: None,
            }),
        }
    }

    /// Removes a queue of `user`, which is not awake any more.
    ///
    /// What the user owes stays: another queue would end its rest otherwise.
    pub(super) fn close(&mut self, user: u32) {
        if let Some(share) = self.of_user(user) {
            share.open -= 1;
        }
        let now = Stopwatch::now();
        let floor = self.floor;
        let owes = |share: &Share| share.spent > floor || share.rests_until.is_some_and(|until| until > now);
        self.users.retain(|share| share.open > 0 || owes(share));
    }

    /// A queue of `user` is awake now.
    pub(super) fn rouse(&mut self, user: u32, queue: usize) {
        if queue >= self.places.len() {
            self.places.resize(queue + 1, 0);
        }
        let Some(share) = self.users.iter_mut().find(|share| share.user == user) else { return };
        self.places[queue] = share.queues.len();
        share.queues.push(queue);
    }

    /// An awake queue of `user` is dormant or closed now.
    pub(super) fn forget(&mut self, user: u32, queue: usize) {
        let Some(share) = self.users.iter_mut().find(|share| share.user == user) else { return };
        let at = self.places[queue];
        share.queues.swap_remove(at);
        if let Some(moved) = share.queues.get(at) {
            self.places[*moved] = at;
        }
    }

    pub(super) fn of_user(&mut self, user: u32) -> Option<&mut Share> {
        self.users.iter_mut().find(|share| share.user == user)
    }

    /// Whether several users share the worker.
    pub(super) fn are_several(&self) -> bool {
        self.users.iter().filter(|share| share.open > 0).nth(1).is_some()
    }

    /// The user that has spent least of those for which `has_work` holds.
    pub(super) fn pick(&mut self, mut has_work: impl FnMut(&Share) -> bool) -> Option<&mut Share> {
        let oldest_claim = self.floor.saturating_sub(CREDIT);
        let mut best: Option<(usize, u64)> = None;
        for (index, share) in self.users.iter().enumerate() {
            let spent = share.spent.max(oldest_claim);
            if share.rests_until.is_some() {
                continue;
            }
            if best.is_none_or(|(_, least)| spent < least) && has_work(share) {
                best = Some((index, spent));
            }
        }
        let (index, spent) = best?;
        self.floor = self.floor.max(spent);
        let share = &mut self.users[index];
        share.spent = spent;
        Some(share)
    }

    /// Charges a user for a slice.
    pub(super) fn charge(&mut self, user: u32, elapsed: Duration) {
        if let Some(share) = self.of_user(user) {
            share.spent = share.spent.saturating_add(elapsed.as_nanos() as u64);
        }
    }

    /// Lets a user rest after a slice in which its memory made the worker sleep.
    pub(super) fn rest(&mut self, user: u32, slept: Duration) {
        if let Some(share) = self.of_user(user) {
            share.rests_until = Some(Stopwatch::now() + slept * REST);
            share.part_bytes = MIN_PART_BYTES;
        }
    }

    /// Ends the rests that are over. Returns the end of the next one.
    pub(super) fn wake(&mut self) -> Option<Stopwatch> {
        self.users.iter().any(|share| share.rests_until.is_some()).then(|| {
            let now = Stopwatch::now();
            for share in &mut self.users {
                share.rests_until = share.rests_until.filter(|until| *until > now);
            }
        })?;
        self.users.iter().filter_map(|share| share.rests_until).min()
    }

    /// Whether a user rests. Nobody does with the worker for itself.
    pub(super) fn rests(&self, user: u32) -> bool {
        self.are_several() && self.users.iter().any(|share| share.user == user && share.rests_until.is_some())
    }

    /// Whether any user rests, alone or not.
    pub(super) fn any_rests(&self) -> bool {
        self.users.iter().any(|share| share.rests_until.is_some())
    }

    /// Adapts the parts of a user's transfers to the time that one has taken: at most `max_bytes`.
    pub(super) fn adapt(&mut self, user: u32, elapsed: Duration, max_bytes: u64) {
        let Some(share) = self.of_user(user) else { return };
        if elapsed > 2 * PART {
            share.part_bytes = (share.part_bytes / 2).max(MIN_PART_BYTES);
        } else if elapsed < PART {
            share.part_bytes = share.part_bytes.saturating_mul(2);
        }
        share.part_bytes = share.part_bytes.min(max_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Shares {
        let mut shares = Shares::default();
        for (user, queue) in [(1, 0), (2, 1), (2, 2)] {
            shares.open(user);
            shares.rouse(user, queue);
        }
        shares
    }

    fn slice(shares: &mut Shares, cost: impl Fn(u32) -> u64, working: &[u32]) -> Option<u32> {
        let user = shares.pick(|share| working.contains(&share.user))?.user;
        shares.charge(user, Duration::from_nanos(cost(user)));
        Some(user)
    }

    #[test]
    fn a_user_with_costly_requests_gets_fewer_slices() {
        let mut shares = shares();
        let cost = |user| if user == 2 { 100_000 } else { 1000 };
        let slices: Vec<_> = (0..10_100).filter_map(|_| slice(&mut shares, cost, &[1, 2])).collect();
        let costly = slices.iter().filter(|user| **user == 2).count();
        assert!((99..=102).contains(&costly), "{costly} slices of 100 times the cost");
    }

    #[test]
    fn an_idle_user_is_served_next_and_saves_no_more_than_its_credit() {
        let mut shares = shares();
        for _ in 0..1000 {
            assert_eq!(slice(&mut shares, |_| 100_000, &[2]), Some(2));
        }
        let of_first = (0..1000).take_while(|_| slice(&mut shares, |_| 100_000, &[1, 2]) == Some(1)).count();
        assert!((1..=CREDIT as usize / 100_000 + 2).contains(&of_first), "{of_first}");
    }

    #[test]
    fn no_slice_without_work() {
        let mut shares = shares();
        assert!(shares.are_several());
        assert_eq!(slice(&mut shares, |_| 1, &[]), None);
        shares.close(2);
        assert!(shares.are_several());
        shares.close(2);
        assert!(!shares.are_several());
        assert_eq!(slice(&mut shares, |_| 1, &[2]), None);
    }

    #[test]
    fn a_resting_user_gets_no_slice_unless_it_is_alone() {
        let mut shares = shares();
        shares.rest(2, Duration::from_secs(5));
        assert!(shares.rests(2) && !shares.rests(1) && shares.any_rests());
        assert_eq!(slice(&mut shares, |_| 1, &[2]), None);
        assert_eq!(slice(&mut shares, |_| 1, &[1, 2]), Some(1));
        assert!(shares.wake().is_some(), "not over yet");
        shares.close(1);
        assert!(!shares.rests(2), "it is alone");
        shares.rest(2, Duration::ZERO);
        assert_eq!(shares.wake(), None);
        assert!(!shares.any_rests());
    }

    #[test]
    fn a_user_that_opens_another_queue_keeps_its_rest_and_its_debts() {
        let mut shares = shares();
        shares.rest(1, Duration::from_secs(5));
        shares.close(1);
        assert!(!shares.are_several());
        shares.open(1);
        assert!(shares.rests(1));
        shares.charge(2, Duration::from_secs(1));
        shares.close(2);
        shares.close(2);
        shares.open(2);
        shares.open(3);
        assert_eq!(slice(&mut shares, |_| 1, &[2, 3]), Some(3));
        // Nothing owed, nothing kept.
        shares.close(3);
        shares.close(2);
        shares.floor = u64::MAX;
        shares.rest(1, Duration::ZERO);
        shares.close(1);
        assert!(shares.users.is_empty());
    }

    #[test]
    fn queues_of_a_user_come_first_in_turn() {
        let mut shares = shares();
        let share = shares.of_user(2).unwrap();
        assert_eq!(share.rotate(), [1, 2]);
        assert_eq!(share.rotate(), [2, 1]);
        assert_eq!(share.rotate(), [1, 2]);
        assert_eq!(share.queues(), [1, 2]);
    }

    #[test]
    fn a_slice_serves_awake_queues_only() {
        let mut shares = shares();
        shares.open(2);
        shares.rouse(2, 7);
        shares.forget(2, 1);
        assert_eq!(shares.of_user(2).unwrap().queues(), [7, 2]);
        shares.forget(2, 2);
        shares.rouse(2, 1);
        shares.forget(2, 7);
        assert_eq!(shares.of_user(2).unwrap().queues(), [1]);
        shares.forget(2, 1);
        assert!(shares.are_several(), "its queues are open still");
    }

    #[test]
    fn parts_follow_the_time_they_take() {
        let mut shares = shares();
        for _ in 0..10 {
            shares.adapt(1, Duration::from_micros(10), 256 << 10);
        }
        assert_eq!(shares.of_user(1).unwrap().part_bytes, 256 << 10);
        for _ in 0..20 {
            shares.adapt(1, Duration::from_millis(3), 256 << 10);
        }
        assert_eq!(shares.of_user(1).unwrap().part_bytes, MIN_PART_BYTES);
    }
}
