//! How many dormant queues a turn looks at: more, the longer turns take.
//!
//! ```text
//! end of a turn ─ long turns: always, short ones: one in eight ─► clock ─► time of a turn ─► looks of the next turns
//! ```
//!
//! A client can make its own requests slow, and with them the turns, so the time is measured, not estimated. It does not look itself.

use std::time::{Duration, Instant as Stopwatch};

/// Looks of the shortest turn, and of a poll. A look takes about 5 ns, a short turn 250 ns.
pub(super) const LOOKS: usize = 4;
/// A turn is followed by one more look for so much of its time: a thirtieth of it for looks, and a round of 2,047 dormant queues
/// within 300 µs, or two turns if they take longer.
const NANOSECONDS_PER_LOOK: u128 = 150;
/// Short turns between two reads of the clock.
const TURNS_PER_CLOCK_READ: u32 = 8;
/// A turn that takes longer is long: reading the clock costs a fiftieth of it.
const LONG_TURN: Duration = Duration::from_micros(1);
/// At most so much time counts for turns that were timed together: a worker without work makes none.
const MAX_COUNTED: Duration = Duration::from_micros(500);

/// The looks of the next turn.
pub(super) struct LookPace {
    looks: usize,
    clock: fn() -> Stopwatch,
    /// When the clock was read last.
    since: Stopwatch,
    /// Turns since then, and until it is read again.
    turns: u32,
    turns_to_time: u32,
}

impl Default for LookPace {
    fn default() -> Self {
        Self::by(Stopwatch::now)
    }
}

impl LookPace {
    /// By the time of a clock.
    pub(super) fn by(clock: fn() -> Stopwatch) -> Self {
        Self { looks: LOOKS, clock, since: clock(), turns: 0, turns_to_time: 1 }
    }

    #[inline]
    pub(super) const fn looks(&self) -> usize {
        self.looks
    }

    /// The next turn looks at all.
    pub(super) const fn look_at_all(&mut self) {
        self.looks = usize::MAX;
        self.turns_to_time = 1;
    }

    /// A turn is over.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        self.turns += 1;
        if self.turns >= self.turns_to_time {
            self.read_clock();
        }
    }

    fn read_clock(&mut self) {
        let now = (self.clock)();
        let each = now.saturating_duration_since(self.since).min(MAX_COUNTED) / self.turns;
        self.looks = LOOKS + (each.as_nanos() / NANOSECONDS_PER_LOOK) as usize;
        self.since = now;
        self.turns = 0;
        self.turns_to_time = if each > LONG_TURN { 1 } else { TURNS_PER_CLOCK_READ };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static TIME: Cell<(Stopwatch, u32)> = Cell::new((Stopwatch::now(), 0));
    }

    /// The time of this thread's test. Counts how often it is read.
    fn clock() -> Stopwatch {
        TIME.with(|time| {
            let (now, reads) = time.get();
            time.set((now, reads + 1));
            now
        })
    }

    fn turn(pace: &mut LookPace, time: Duration) {
        TIME.with(|cell| {
            let (now, reads) = cell.get();
            cell.set((now + time, reads));
        });
        pace.end_turn();
    }

    #[test]
    fn slow_turns_look_at_more() {
        let mut pace = LookPace::by(clock);
        let mut in_turns_of = |micros: u64, turns: u32| {
            (0..turns).for_each(|_| turn(&mut pace, Duration::from_micros(micros)));
            pace.looks()
        };
        assert_eq!(in_turns_of(0, 100), LOOKS);
        // All of 2,047 queues within 300 µs, once the clock was read.
        let looks = in_turns_of(50, TURNS_PER_CLOCK_READ + 1);
        assert!(300 / 50 * looks >= 2000, "{looks}");
        assert!(in_turns_of(300, 1) >= 2000);
        let most = in_turns_of(1_000_000, 1);
        assert!((2047..4000).contains(&most), "an idle time is no turn: {most}");
        assert_eq!(in_turns_of(0, 2), LOOKS);
    }

    #[test]
    fn the_clock_is_read_seldom_in_short_turns() {
        let mut pace = LookPace::by(clock);
        let reads = || TIME.with(|time| time.get().1);
        let before = reads();
        (0..801).for_each(|_| turn(&mut pace, Duration::from_nanos(250)));
        assert_eq!(reads() - before, 101);
        let before = reads();
        (0..800).for_each(|_| turn(&mut pace, Duration::from_micros(5)));
        assert!((792..=800).contains(&(reads() - before)));
    }
}
