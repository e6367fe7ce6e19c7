//! Wall time for a model of virtual time.
//!
//! ```text
//! machine's clock ── minus time lost ──► the device's time ── in slices ──► Device::advance
//! ```
//!
//! The device's time follows the machine's, so a guest's timers and the device agree. When the machine cannot compute the model as fast as
//! its time passes, the rest is dropped after a few milliseconds: the device is then slower than its parameters say, and the
//! socket is looked at all the same. Idle, the device has no next event and nobody wakes.

use std::time::{Duration, Instant as Wall};

use memferry_clock::Instant;

use crate::device::Device;
use crate::function::Function;

/// Device time of one step.
const SLICE: Duration = Duration::from_micros(100);
/// Longest computation between two looks at the socket.
const BUDGET: Duration = Duration::from_millis(2);

/// When to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// No event is pending: only a command wakes the device.
    Idle,
    After(Duration),
    /// The device is behind.
    Now,
}

/// The clock of one device.
#[derive(Debug)]
pub(crate) struct Pace {
    origin: Wall,
    lost: Duration,
}

impl Pace {
    /// A clock that continues from the device's time.
    pub(crate) fn new<F: Function>(device: &Device<F>) -> Self {
        let passed = Duration::from_nanos(device.now().nanoseconds());
        let now = Wall::now();
        Self { origin: now.checked_sub(passed).unwrap_or(now), lost: Duration::ZERO }
    }

    /// Runs the device until now, or for as long as a look at the socket can wait.
    pub(crate) fn run<F: Function>(&mut self, device: &mut Device<F>) -> Next {
        let begin = Wall::now();
        let target = Instant::ORIGIN.after(begin.duration_since(self.origin).saturating_sub(self.lost));
        loop {
            let behind = device.next_wake().filter(|due| *due <= target);
            let Some(due) = behind else {
                return match device.advance(target.max(device.now())) {
                    Some(due) if due <= target => continue,
                    Some(due) => Next::After(between(target, due)),
                    None => Next::Idle,
                };
            };
            device.advance(due.max(device.now()).after(SLICE).min(target));
            if begin.elapsed() > BUDGET {
                self.lost += between(device.now(), target);
                return Next::Now;
            }
        }
    }
}

fn between(from: Instant, to: Instant) -> Duration {
    let picoseconds = to.picoseconds().saturating_sub(from.picoseconds());
    Duration::from_nanos(u64::try_from(picoseconds.div_ceil(1000)).unwrap_or(u64::MAX))
}
