//! Wall time for a model of virtual time.
//!
//! ```text
//! machine's clock ── minus time lost ──► the device's time ── in slices ──► Timed::advance
//! ```
//!
//! The device's time follows the machine's, so a guest's timers and the device agree. When the machine cannot compute the model as fast as
//! its time passes, the rest is dropped after a few milliseconds: the device is then slower than its parameters say, and the
//! socket is looked at all the same. Idle, the device has no next event and nobody wakes.

use std::time::{Duration, Instant as Wall};

use memferry_clock::Instant;

/// A device of virtual time.
pub(crate) trait Timed {
    /// Runs until `now`. Returns the time of the next event.
    fn advance(&mut self, now: Instant) -> Option<Instant>;
    fn now(&self) -> Instant;
    fn next_wake(&self) -> Option<Instant>;
}

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
    pub(crate) fn new(device: &impl Timed) -> Self {
        let passed = Duration::from_nanos(device.now().nanoseconds());
        let now = Wall::now();
        Self { origin: now.checked_sub(passed).unwrap_or(now), lost: Duration::ZERO }
    }

    /// Runs the device until now, or for as long as a look at the socket can wait.
    pub(crate) fn run(&mut self, device: &mut impl Timed) -> Next {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::function::{Bar, Description, Function, Signalling};
    use crate::memory::Memory;

    /// A device with events in a fixed distance, each of which costs this much of the machine's time.
    struct Ticking {
        now: Instant,
        every: Option<Duration>,
        due: Option<Instant>,
        cost: Duration,
    }

    impl Function for Ticking {
        fn describe(&self) -> Description {
            Description {
                name: "ticking",
                vendor: 0,
                device: 0,
                revision: 0,
                class: [0; 3],
                bars: vec![Bar { index: 0, bytes: 4096 }],
                signalling: Signalling::Intx,
                registers: vec![],
            }
        }

        fn read(&mut self, _bar: usize, _offset: u64, _bytes: &mut [u8]) {}

        fn write(&mut self, _bar: usize, _offset: u64, _bytes: &[u8]) {}

        fn advance(&mut self, now: Instant) -> Option<Instant> {
            self.now = now;
            while let Some(due) = self.due.filter(|due| *due <= now) {
                let begin = Wall::now();
                while begin.elapsed() < self.cost {}
                self.due = self.every.map(|every| due.after(every));
            }
            self.due
        }

        fn now(&self) -> Instant {
            self.now
        }

        fn next_wake(&self) -> Option<Instant> {
            self.due
        }

        fn level(&self) -> bool {
            false
        }

        fn take_messages(&mut self) -> u64 {
            0
        }

        fn reset(&mut self) {}

        fn take_report(&mut self) -> Vec<String> {
            vec![]
        }
    }

    fn device(due: Option<Duration>, every: Option<Duration>, cost: Duration) -> Device<Ticking> {
        let due = due.map(|due| Instant::ORIGIN.after(due));
        Device::new(Ticking { now: Instant::ORIGIN, every, due, cost }, Memory::new())
    }

    #[test]
    fn an_idle_device_waits_for_commands_only() {
        let mut device = device(None, None, Duration::ZERO);
        assert_eq!(Pace::new(&device).run(&mut device), Next::Idle);
    }

    #[test]
    fn a_waiting_device_sleeps_until_its_event() {
        let mut device = device(Some(Duration::from_secs(3600)), None, Duration::ZERO);
        let Next::After(time) = Pace::new(&device).run(&mut device) else { panic!("it waits for an event") };
        assert!(time > Duration::from_secs(3000) && time <= Duration::from_secs(3600), "{time:?}");
    }

    #[test]
    fn time_that_cannot_be_computed_is_dropped() {
        // 200 microseconds of the device take five milliseconds of the machine.
        let every = Some(Duration::from_micros(200));
        let mut device = device(every, every, Duration::from_millis(5));
        let mut pace = Pace::new(&device);
        let begin = Wall::now();
        while begin.elapsed() < Duration::from_millis(40) {}
        assert_eq!(pace.run(&mut device), Next::Now, "it looks at the socket between");
        let one = device.now();
        assert!(one < Instant::ORIGIN.after(Duration::from_millis(1)), "{one:?}");
        assert!(pace.lost >= Duration::from_millis(39), "{:?}", pace.lost);
    }
}
