//! When what is done to whom: each sort of abuse comes about so often, at random.
//!
//! ```text
//! Random ─► Schedule ─ due(now) ─► the next sort that is due, with its next time drawn
//! ```

use std::time::{Duration, Instant};

use crate::random::Random;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Abuse {
    /// A client is killed.
    KillClient,
    /// A client is stopped for a moment.
    StopClient,
    /// The service is stopped for a moment.
    StopService,
    /// Another process takes memory.
    Ballast,
    /// The file server is killed.
    KillFiles,
}

/// How often each comes about.
const PACE: [(Abuse, Duration); 5] = [
    (Abuse::KillClient, Duration::from_millis(1000)),
    (Abuse::StopClient, Duration::from_millis(1200)),
    (Abuse::StopService, Duration::from_millis(2500)),
    (Abuse::Ballast, Duration::from_secs(12)),
    (Abuse::KillFiles, Duration::from_secs(8)),
];

/// What is due when.
pub(crate) struct Schedule {
    times: [Instant; PACE.len()],
}

impl Schedule {
    pub(crate) fn new(now: Instant, random: &mut Random) -> Self {
        Self { times: PACE.map(|(_, pace)| now + random.about(pace)) }
    }

    /// What is to be done now.
    pub(crate) fn due(&mut self, now: Instant, random: &mut Random) -> Option<Abuse> {
        let index = (0..PACE.len()).find(|index| self.times[*index] <= now)?;
        self.times[index] = now + random.about(PACE[index].1);
        Some(PACE[index].0)
    }
}

/// How long a service may live before it is ended: some briefly, some for long, so that what grows slowly is seen.
pub(crate) fn life(whole: Duration, random: &mut Random) -> Duration {
    let long = (whole / 6).clamp(Duration::from_secs(5), Duration::from_secs(600));
    let life = if random.once_in(3) { long } else { long / 3 };
    random.about(life)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_about_and_not_all_at_once() {
        let mut random = Random::new(3);
        let now = Instant::now();
        let mut schedule = Schedule::new(now, &mut random);
        assert_eq!(schedule.due(now, &mut random), None);
        let mut seen = Vec::new();
        for tick in 0..6000 {
            while let Some(abuse) = schedule.due(now + Duration::from_millis(tick * 10), &mut random) {
                seen.push(abuse);
            }
        }
        for (abuse, pace) in PACE {
            let count = seen.iter().filter(|done| **done == abuse).count();
            let expected = 60.0 / pace.as_secs_f64();
            assert!((0.5..1.7).contains(&(count as f64 / expected)), "{abuse:?}: {count} of {expected}");
        }
    }
}
