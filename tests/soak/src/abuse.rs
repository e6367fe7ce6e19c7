//! The schedule of abuse: each kind recurs at random times with a certain frequency.
//!
//! ```text
//! Random ─► Schedule ─ due(now) ─► the next kind that is due; its next time is drawn
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

/// Mean interval of each kind.
const INTERVALS: [(Abuse, Duration); 5] = [
    (Abuse::KillClient, Duration::from_millis(1000)),
    (Abuse::StopClient, Duration::from_millis(1200)),
    (Abuse::StopService, Duration::from_millis(2500)),
    (Abuse::Ballast, Duration::from_secs(12)),
    (Abuse::KillFiles, Duration::from_secs(8)),
];

/// The next time of each kind.
pub(crate) struct Schedule {
    times: [Instant; INTERVALS.len()],
}

impl Schedule {
    pub(crate) fn new(now: Instant, random: &mut Random) -> Self {
        Self { times: INTERVALS.map(|(_, pace)| now + random.about(pace)) }
    }

    /// The kind of abuse that is due now.
    pub(crate) fn due(&mut self, now: Instant, random: &mut Random) -> Option<Abuse> {
        let index = (0..INTERVALS.len()).find(|index| self.times[*index] <= now)?;
        self.times[index] = now + random.about(INTERVALS[index].1);
        Some(INTERVALS[index].0)
    }
}

/// The lifetime of a service: some are short, some long enough to show slow growth.
pub(crate) fn life(duration: Duration, random: &mut Random) -> Duration {
    let long = (duration / 6).clamp(Duration::from_secs(5), Duration::from_secs(600));
    let life = if random.once_in(3) { long } else { long / 3 };
    random.about(life)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_recurs_at_its_pace() {
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
        for (abuse, pace) in INTERVALS {
            let count = seen.iter().filter(|done| **done == abuse).count();
            let expected = 60.0 / pace.as_secs_f64();
            assert!((0.5..1.7).contains(&(count as f64 / expected)), "{abuse:?}: {count} of {expected}");
        }
    }
}
