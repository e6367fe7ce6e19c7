//! How long an engine that polls its device waits for requests meanwhile.
//!
//! ```text
//! requests under way ─► no pause for 2 ms, then a thirty-second of the time since the last news, up to 1 ms
//! none               ─► no pause for 200 us, then a sleep until a request comes
//! ```

use std::time::{Duration, Instant};

/// How long an engine without requests sleeps.
const IDLE: Duration = Duration::from_secs(1);
/// After the last request, so long the next one is waited for without a sleep.
const AWAKE: Duration = Duration::from_micros(200);
/// So long the device is polled without a pause: a few times what a piece of a request takes. A sleep ends some 50 to 200 us late.
const POLLING: Duration = Duration::from_millis(2);
/// After that, pauses are this part of the time since the last news.
const PAUSE_PART: u32 = 32;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// The pauses of an engine that polls its device for completions: limits for [`Engine::next`](crate::Engine::next).
///
/// ```
/// let mut pauses = memferry_engine::Pauses::new();
/// pauses.note_news(); // a request came
/// assert!(pauses.next(false).is_zero(), "the device is polled again at once");
/// ```
#[derive(Debug)]
pub struct Pauses {
    news: Instant,
}

impl Default for Pauses {
    fn default() -> Self {
        Self::new()
    }
}

impl Pauses {
    /// As if there had been news now.
    #[must_use]
    pub fn new() -> Self {
        Self { news: Instant::now() }
    }

    /// Notes that a request came, or that the device has come further.
    pub fn note_news(&mut self) {
        self.news = Instant::now();
    }

    /// How long to wait for the next request before the device is polled again. `is_idle` says that no request is under way. At most a
    /// second. If it is no time at all, other threads get the CPU first: the machine may have fewer CPUs than threads that want one.
    #[must_use]
    pub fn next(&self, is_idle: bool) -> Duration {
        let pause = pause(self.news.elapsed(), is_idle);
        if pause.is_zero() {
            std::thread::yield_now();
        }
        pause
    }
}

/// The pause after so long without news.
fn pause(quiet: Duration, is_idle: bool) -> Duration {
    match is_idle {
        true if quiet >= AWAKE => IDLE,
        true => Duration::ZERO,
        false if quiet < POLLING => Duration::ZERO,
        false => (quiet / PAUSE_PART).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_time_since_the_last_news() {
        let microseconds = Duration::from_micros;
        for (quiet, is_idle, expected) in [
            (0, true, 0),
            (199, true, 0),
            (200, true, 1_000_000),
            (0, false, 0),
            (1999, false, 0),
            (3200, false, 100),
            (32_000, false, 1000),
            (3_200_000, false, 1000),
        ] {
            let pause = pause(microseconds(quiet), is_idle);
            assert_eq!(pause, microseconds(expected), "{quiet} us, idle: {is_idle}");
        }
    }
}
