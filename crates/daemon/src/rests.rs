//! Users whose memory held up everybody's mappings, and how long theirs wait for that.
//!
//! ```text
//! control thread   ─ timed(user, mmap)   ─┐
//! unmapping thread ─ timed(user, munmap) ─┴─► slept long? ─► sum of the user's delays ─► too much? ─► the user rests: no memory of
//!                                                                                                 its own is mapped or unmapped
//! ```
//!
//! A process changes one mapping at a time. Mapping and unmapping memory takes a lock of that memory, which its owner can hold: Linux
//! visits all mappings of a hole that is punched. Attendants refuse memory that takes long to map, but an owner can begin just after
//! that. So such delays cost their user a rest, many times as long. A long delay costs at least twice the rest before.
//!
//! On a machine with too much to do, a thread of the service may be preempted while it holds the lock that the call waits for, and then
//! a user did nothing. So delays are only added up, less what a rest for them would have paid meanwhile, and cost a rest once the sum is
//! more than a loaded machine makes. In the long run they take the same share of the time either way.
//!
//! Memory that is sealed cannot be punched and is not timed. Nothing here maps or waits.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry_service::times_slept;

/// A call that takes longer is slow.
const SLOW: Duration = Duration::from_millis(10);
/// A rest lasts this many times as long as the call.
const REST: u32 = 50;
/// Delays of this sum cost a rest. Without an attack, one of 280 ms was met in 40 minutes of the soak beside a compiler on two CPUs.
pub(crate) const ALLOWED: Duration = Duration::from_millis(500);
/// A call that takes as long makes a rest at least twice as long as the last one.
const LONG: Duration = Duration::from_millis(100);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(600);
/// Time after a rest in which a long call costs twice as much.
const MEMORY: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(crate) struct Rests(Mutex<State>);

#[derive(Default)]
struct State {
    /// Users for whom calls are running.
    running: Vec<u32>,
    rests: BTreeMap<u32, Rest>,
    /// Delays of users that no rest has paid yet, with the time of the last one.
    delays: BTreeMap<u32, (Duration, Instant)>,
}

#[derive(Clone, Copy)]
struct Rest {
    /// Of the longest of the rests that are remembered.
    length: Duration,
    until: Instant,
}

impl Rests {
    /// Makes a call that maps or unmaps memory of `user`. If this thread slept long in it, a rest of that user begins.
    pub(crate) fn timed<T>(&self, user: u32, call: impl FnOnce() -> T) -> T {
        let alone = self.lock().enter(user);
        let slept_before = times_slept();
        let started = Instant::now();
        let value = call();
        let elapsed = started.elapsed();
        // A thread that was preempted has not slept.
        let blocked = elapsed >= SLOW && times_slept() > slept_before;
        let mut state = self.lock();
        state.leave(user);
        // Beside a call for another user it may have waited for that.
        if blocked && alone {
            match state.delayed(user, elapsed, Instant::now()) {
                Some(rest) => {
                    tracing::warn!(user, ?elapsed, ?rest, "memory of this user held up all mappings")
                }
                None => tracing::debug!(
                    user,
                    ?elapsed,
                    "memory of this user held up all mappings for a short time"
                ),
            }
        }
        value
    }

    /// What is left of a user's rest.
    pub(crate) fn time_left(&self, user: u32) -> Option<Duration> {
        self.lock().time_left(user, Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns whether no call runs for another user.
    fn enter(&mut self, user: u32) -> bool {
        let alone = self.running.iter().all(|other| *other == user);
        self.running.push(user);
        alone
    }

    fn leave(&mut self, user: u32) {
        if let Some(at) = self.running.iter().position(|running| *running == user) {
            self.running.swap_remove(at);
        }
    }

    /// Counts a slow call. Returns how long its user rests from now on, if the call costs a rest.
    fn delayed(&mut self, user: u32, elapsed: Duration, now: Instant) -> Option<Duration> {
        let unpaid = |(sum, since): (Duration, Instant)| {
            sum.saturating_sub(now.saturating_duration_since(since) / REST)
        };
        self.delays.retain(|_, delay| !unpaid(*delay).is_zero());
        let sum = elapsed + self.delays.get(&user).copied().map_or(Duration::ZERO, unpaid);
        self.delays.insert(user, (sum, now));
        (sum >= ALLOWED).then(|| self.begin(user, elapsed, now))
    }

    /// Begins the rest after a slow call, and returns how long it takes from now on.
    fn begin(&mut self, user: u32, elapsed: Duration, now: Instant) -> Duration {
        self.rests.retain(|_, rest| now < rest.until + MEMORY);
        let last = self.rests.get(&user).copied().unwrap_or(Rest { length: Duration::ZERO, until: now });
        let again = if elapsed >= LONG { last.length * 2 } else { Duration::ZERO };
        let length = (elapsed * REST).max(again).clamp(SHORTEST, LONGEST);
        // Neither does a short delay end a rest that goes on, nor make a longer one forgotten.
        let until = last.until.max(now + length);
        self.rests.insert(user, Rest { length: length.max(last.length), until });
        until.saturating_duration_since(now)
    }

    fn time_left(&self, user: u32, now: Instant) -> Option<Duration> {
        let left = self.rests.get(&user)?.until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_long_call_doubles_the_rest_until_it_is_forgotten() {
        let mut state = State::default();
        let began = Instant::now();
        assert_eq!(state.begin(7, LONG, began), 5 * SECOND);
        assert_eq!(state.begin(7, LONG, began + 5 * SECOND), 10 * SECOND);
        assert_eq!(state.begin(7, SECOND, began + 15 * SECOND), 50 * SECOND);
        assert_eq!(state.begin(7, 60 * SECOND, began + 60 * SECOND), LONGEST);
        assert_eq!(state.begin(8, SECOND / 100, began + 60 * SECOND), SECOND);
        let calm = began + 60 * SECOND + LONGEST + MEMORY;
        assert_eq!(state.begin(7, SECOND / 100, calm), SECOND);
        assert_eq!(state.rests.len(), 1);
    }

    #[test]
    fn short_delays_cost_a_rest_in_sum() {
        let mut state = State::default();
        let began = Instant::now();
        for _ in 0..49 {
            assert_eq!(state.delayed(7, SLOW, began), None);
        }
        assert_eq!(state.delayed(8, SLOW, began), None, "that of another user");
        assert_eq!(state.delayed(7, SLOW, began), Some(SECOND));
        // A rest has paid for the last one only.
        assert_eq!(state.delayed(7, 2 * SLOW, began + SECOND / 2), Some(SECOND));
        assert_eq!(state.delayed(7, ALLOWED, began + 60 * SECOND), Some(25 * SECOND));
    }

    #[test]
    fn delays_of_a_loaded_machine_cost_nothing() {
        let mut state = State::default();
        let began = Instant::now();
        for turn in 0..1000 {
            assert_eq!(state.delayed(7, SLOW, began + turn * SECOND / 2), None);
        }
        for turn in 0..1000 {
            let paid = began + (1000 + turn * 15) * SECOND;
            assert_eq!(state.delayed(7, 3 * LONG, paid), None);
        }
        let after = began + 20_000 * SECOND;
        assert_eq!(state.delayed(7, 3 * LONG, after), None);
        assert_eq!(state.delayed(7, 3 * LONG, after + SECOND), Some(15 * SECOND));
        state.delayed(8, SLOW, after + 100 * SECOND);
        assert_eq!(state.delays.len(), 1, "what is paid is forgotten");
    }

    #[test]
    fn short_delays_do_not_double_rests() {
        let mut state = State::default();
        let began = Instant::now();
        for turn in 0..20 {
            assert_eq!(state.begin(7, SLOW, began + turn * SECOND), SECOND);
        }
        assert_eq!(state.begin(7, SECOND / 20, began + 20 * SECOND), SECOND * 5 / 2);
    }

    #[test]
    fn a_short_delay_hides_no_long_one() {
        let mut state = State::default();
        let began = Instant::now();
        assert_eq!(state.begin(7, SECOND, began), 50 * SECOND);
        assert_eq!(state.begin(7, SECOND / 100, began + SECOND), 49 * SECOND, "the first rest goes on");
        let after = began + 50 * SECOND;
        assert_eq!(state.begin(7, SECOND / 100, after), SECOND);
        assert_eq!(state.begin(7, LONG, after + SECOND), 100 * SECOND, "twice the longest");
    }

    #[test]
    fn only_the_user_itself_rests() {
        let mut state = State::default();
        let now = Instant::now();
        state.begin(7, SECOND / 100, now);
        assert_eq!(state.time_left(7, now), Some(SECOND));
        assert_eq!(state.time_left(7, now + SECOND), None);
        assert_eq!(state.time_left(8, now), None);
    }

    #[test]
    fn a_call_beside_one_of_another_user_proves_nothing() {
        let mut state = State::default();
        assert!(state.enter(7));
        assert!(state.enter(7));
        assert!(!state.enter(8));
        state.leave(7);
        assert!(!state.enter(8));
        state.leave(7);
        assert!(state.enter(8));
    }

    #[test]
    fn a_call_that_sleeps_long_costs_a_rest() {
        let rests = Rests::default();
        rests.timed(7, || ());
        assert_eq!(rests.time_left(7), None);
        // The call under test, not a wait for something.
        rests.timed(7, || std::thread::sleep(ALLOWED));
        assert!(rests.time_left(7).is_some());
    }
}
