//! The time that a user's sockets take from the thread of all channels.
//!
//! ```text
//! calls on a client's socket ─ longer than any honest one ─► counted for its user ─ more than a part of all time? ─► the channel ends
//! ```
//!
//! A packet wakes every epoll instance that watches the socket at either end, and a user can make very many. It is CPU time that is
//! counted, so neither other threads nor a machine that stands still make anybody slow.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a user may take at once.
const BURST: Duration = Duration::from_millis(50);
/// The part of all time that a user may take.
const PART: u32 = 20;

/// What each user took that is not forgotten yet.
#[derive(Default)]
pub(super) struct Slowness(BTreeMap<u32, (Duration, Instant)>);

impl Slowness {
    /// Counts time that a user's socket took until `now`. Returns whether that is too much.
    pub(super) fn add(&mut self, user: u32, took: Duration, now: Instant) -> bool {
        if took.is_zero() {
            return false;
        }
        let (before, since) = self.0.get(&user).copied().unwrap_or((Duration::ZERO, now));
        let level = before.saturating_sub(now.saturating_duration_since(since) / PART) + took;
        self.0.insert(user, (level, now));
        level > BURST
    }

    /// Whether a user has taken too much.
    pub(super) fn is_over(&self, user: u32, now: Instant) -> bool {
        let left = |(level, since): &(Duration, Instant)| {
            level.saturating_sub(now.saturating_duration_since(*since) / PART)
        };
        self.0.get(&user).is_some_and(|taken| left(taken) > BURST)
    }

    /// Forgets users who have taken nothing for long enough.
    pub(super) fn forget(&mut self, now: Instant) {
        self.0.retain(|_, (level, since)| *level > now.saturating_duration_since(*since) / PART);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_a_part_of_the_time_and_no_more() {
        let mut slowness = Slowness::default();
        let begin = Instant::now();
        let each = Duration::from_millis(2);
        // As much as is forgotten meanwhile, for as long as one likes.
        let mut now = begin;
        for _ in 0..10_000 {
            assert!(!slowness.add(1, each, now));
            now += each * PART;
        }
        // Twice as much is soon too much.
        let steps = (0..).take_while(|_| {
            now += each * PART / 2;
            !slowness.add(1, each, now)
        });
        assert!(steps.count() < 60);
        assert!(slowness.is_over(1, now) && !slowness.is_over(2, now));
        assert!(!slowness.add(2, BURST, now), "others are not to blame");
        assert!(slowness.add(2, each, now));
        now += BURST * PART * 3;
        assert!(!slowness.is_over(1, now) && !slowness.is_over(2, now));
        slowness.forget(now);
        assert!(slowness.0.is_empty());
    }
}
