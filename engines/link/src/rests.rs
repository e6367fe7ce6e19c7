//! Peers that UCX does not reach: bytes go over the encrypted connection for a while.
//!
//! ```text
//! connections lost with accesses over UCX and no answer ─ three in a row ─► UCX rests: greetings offer none ─ minutes ─► it is tried again
//! ```
//!
//! UCX can make an endpoint and deliver nothing, for instance behind a filter. The link would lose the peer and connect again for ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry::NodeName;

/// Connections in a row that are lost before UCX rests.
const LOSSES: u32 = 3;
/// How long it rests: doubled from the first to the last, as long as it delivers nothing in between.
const PAUSES: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(3600));

struct Rest {
    losses: u32,
    pause: Duration,
    until: Option<Instant>,
}

/// The peers that UCX has not reached of late. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Rests(Arc<Mutex<BTreeMap<NodeName, Rest>>>);

impl Rests {
    fn all(&self) -> MutexGuard<'_, BTreeMap<NodeName, Rest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// UCX has delivered something.
    pub(crate) fn delivered(&self, node: NodeName) {
        self.all().remove(&node);
    }

    /// A connection was lost on which UCX delivered nothing. Returns how long UCX rests now, if it does.
    pub(crate) fn lost(&self, node: NodeName, now: Instant) -> Option<Duration> {
        let mut all = self.all();
        let rest = all.entry(node).or_insert(Rest { losses: 0, pause: PAUSES.0, until: None });
        rest.losses += 1;
        if rest.losses < LOSSES {
            return None;
        }
        // Once it has rested, one more loss is enough.
        let pause = rest.pause;
        rest.until = Some(now + pause);
        rest.pause = (pause * 2).min(PAUSES.1);
        Some(pause)
    }

    /// How long UCX still rests for a peer, if it does.
    pub(crate) fn left(&self, node: NodeName, now: Instant) -> Option<Duration> {
        let until = self.all().get(&node)?.until?;
        Some(until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ucx_rests_after_losses_in_a_row_and_is_tried_again() {
        let [alpha, beta] = ["alpha", "beta"].map(|name| name.parse::<NodeName>().unwrap());
        let rests = Rests::default();
        let mut now = Instant::now();
        for _ in 0..10 {
            assert_eq!(rests.lost(alpha, now), None);
            assert_eq!(rests.lost(alpha, now), None);
            rests.delivered(alpha);
        }
        assert_eq!((rests.lost(alpha, now), rests.lost(alpha, now)), (None, None));
        assert_eq!(rests.left(alpha, now), None);
        let mut expected = PAUSES.0;
        for _ in 0..6 {
            assert_eq!(rests.lost(alpha, now), Some(expected), "one more is enough");
            assert_eq!(rests.left(alpha, now), Some(expected));
            assert_eq!(rests.left(beta, now), None, "others are another matter");
            now += expected;
            assert_eq!(rests.left(alpha, now), None, "it is tried again");
            expected = (expected * 2).min(PAUSES.1);
        }
        assert_eq!(expected, PAUSES.1);
        rests.delivered(alpha);
        assert_eq!(rests.lost(alpha, now), None);
    }
}
