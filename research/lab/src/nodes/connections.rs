//! Connections after the owner's link was started again: all peers dial at once, and few handshakes are admitted at a time.
//!
//! ```text
//! dialer ─ latency ─► admitted? ─ no ─► closed, pause doubled ─► dials again
//!                        └─ yes ─► handshake on one of some cores ─► connected
//! ```

use std::collections::BTreeMap;

use memferry_clock::{EventQueue, Instant};

use crate::parameters::{Parameters, ParametersError};
use crate::rng::Rng;

/// The rules and costs, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storm {
    /// Handshakes of strangers at a time.
    pub(super) admitted: usize,
    pub(super) pauses: (u64, u64),
    latency: u64,
    handshake: u64,
    processor: u64,
    cores: usize,
}

impl Storm {
    pub(super) fn new(parameters: &Parameters) -> Result<Self, ParametersError> {
        let milliseconds = |name| parameters.get(name).map(|value| (value * 1e6) as u64);
        let microseconds = |name| parameters.get(name).map(|value| (value * 1e3) as u64);
        Ok(Self {
            admitted: parameters.get("handshakes")? as usize,
            pauses: (milliseconds("first-pause")?, milliseconds("last-pause")?),
            latency: microseconds("latency")?,
            handshake: milliseconds("handshake")?,
            processor: microseconds("handshake-processor")?,
            cores: parameters.get("handshake-cores")? as usize,
        })
    }

    /// When the last of so many peers is connected.
    pub(super) fn last_connected(&self, peers: usize, seed: u64) -> u64 {
        let mut rng = Rng::new(seed);
        let mut events = EventQueue::new();
        let at = Instant::from_nanoseconds;
        // Their dialers were in some pause when the link came back.
        for peer in 0..peers {
            events.push(at(rng.below(self.pauses.1)), Dial::Comes(peer));
        }
        let mut pauses: BTreeMap<usize, u64> = BTreeMap::new();
        let mut cores = vec![0; self.cores.max(1)];
        let mut under_way = 0;
        let mut last = 0;
        while let Some((now, event)) = events.pop() {
            let now = now.nanoseconds();
            match event {
                Dial::Comes(peer) if under_way >= self.admitted => {
                    let pause = pauses.entry(peer).or_insert(self.pauses.0);
                    events.push(at(now + 2 * self.latency + *pause), Dial::Comes(peer));
                    *pause = (*pause * 2).min(self.pauses.1);
                }
                Dial::Comes(_) => {
                    under_way += 1;
                    let core = cores.iter_mut().min();
                    let done = core.map_or(now, |core| {
                        *core = (*core).max(now) + self.processor;
                        *core
                    });
                    events.push(at(done + self.handshake), Dial::Connected);
                }
                Dial::Connected => {
                    under_way -= 1;
                    last = now;
                }
            }
        }
        last
    }
}

enum Dial {
    Comes(usize),
    Connected,
}
