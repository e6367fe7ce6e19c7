//! The slides' three policies on the I/OAT engine's model, tried with random callers (Papa 2014, "Copy memory support").
//!
//! ```text
//! seed ──► callers, classes, sizes, slices ──► Cftu::stream ─┬─ bytes that reach memory while low channels are suspended
//!                                                            └─ descriptors that channels fetch: whose memory
//! ```
//!
//! Both are observed on the device's side of the bus, not reported by the policy. [`Watched`] records when low channels have
//! to be silent. A faulty variant that takes the request to suspend for the acknowledgement shows that stray bytes would be
//! seen.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memferry_clock::Instant;
use memferry_path::policy::{Exclusive, Priority, Shared};
use memferry_path::{Acts, Ask, ChannelState, Choice, Outstanding, Policy, Slices};
use memferry_transfer::{PriorityClass, SessionId};

use super::cftu::{Cftu, CftuError, Machine};
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::rng::Rng;
use crate::verdict::{Basis, Verdict};

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "papa-policies", place: Place::Simulated, judge: kept }];

/// Number of seeds for each policy.
const SEEDS: u64 = 24;
/// Virtual time of each run.
const DURATION: Duration = Duration::from_micros(1_200);
/// Channels of the engine; the same number of callers can have an exclusive one.
const CHANNELS: usize = 4;

/// Wraps a policy and records when low requests have to be silent.
struct Watched<P> {
    inner: P,
    silent: Arc<AtomicBool>,
    /// Faulty variant: counts a request as silent when its suspension is requested, before it has stopped.
    hasty: bool,
}

impl<P: Policy> Policy for Watched<P> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
        self.inner.choose(ask, channels)
    }

    fn departed(&mut self, client: SessionId) {
        self.inner.departed(client);
    }

    fn acts(&self) -> Acts {
        self.inner.acts()
    }

    fn pace(&mut self, now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        let wake = self.inner.pace(now, running, turns);
        let mut low = running.iter().zip(turns.iter()).filter(|(one, _)| one.ask.class < PriorityClass::High);
        let is_silent = |(one, turns): (&Outstanding, &u32)| *turns == 0 && (one.at_rest || self.hasty);
        let silent = low.next().is_some_and(is_silent) && low.all(is_silent);
        self.silent.store(silent, Ordering::Relaxed);
        wake
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        self.inner.moved(ask, bytes);
    }
}

/// Observations of the priority policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    slices: u64,
    /// Bytes that copies of low callers wrote on the bus while they had to be silent.
    strayed: u64,
    /// The same as counted by the policy.
    counted: u64,
    /// Bytes of all low callers.
    low: u64,
    complaints: usize,
}

/// Random callers under the priority policy.
fn priority(machine: &Machine, seed: u64, hasty: bool) -> Result<Seen, CftuError> {
    let mut rng = Rng::new(seed);
    let period = 60 + rng.below(140);
    let slice = 10 + rng.below(period / 2 - 10);
    let slices = Slices::new(Duration::from_micros(period), Duration::from_micros(slice), 1);
    let silent = Arc::new(AtomicBool::new(false));
    let inner = Priority::new(slices.clone(), 0);
    let policy = Box::new(Watched { inner, silent: Arc::clone(&silent), hasty });
    let low = 1 + rng.below(5) as usize;
    let mut classes = vec![PriorityClass::High];
    classes.extend((0..low).map(|_| [PriorityClass::Low, PriorityClass::Normal][rng.below(2) as usize]));
    let mut cftu = Cftu::new(machine, &machine.caches()?, policy, &classes)?;
    let bytes = |cftu: &Cftu| (1..=low).map(|caller| cftu.written(caller)).sum::<u64>();
    let mut before = 0;
    let mut strayed = 0;
    let longest = 1 << (6 + rng.below(13));
    let lengths = |_| 1 + rng.below(longest);
    let until = cftu.now().after(DURATION);
    cftu.stream(until, lengths, |cftu| {
        let now = bytes(cftu);
        if silent.load(Ordering::Relaxed) {
            strayed += now - before;
        }
        before = now;
    })?;
    let counts = slices.counts();
    let low = bytes(&cftu);
    let complaints = cftu.complaints();
    Ok(Seen { slices: counts.slices, strayed, counted: counts.strayed_bytes, low, complaints })
}

/// For each channel, whose memory it was given; bytes of each caller; picoseconds of its longest copy or wait.
struct Shares {
    served: [u32; CHANNELS],
    moved: Vec<u64>,
    longest: Vec<u128>,
}

fn without_slices(
    machine: &Machine,
    seed: u64,
    policy: Box<dyn Policy>,
    callers: usize,
) -> Result<Shares, CftuError> {
    let mut rng = Rng::new(seed);
    let mut cftu = Cftu::new(machine, &machine.caches()?, policy, &vec![PriorityClass::Normal; callers])?;
    let until = cftu.now().after(DURATION);
    cftu.stream(until, |_| 1 + rng.below(32 << 10), |_| ())?;
    let longest = (0..callers).map(|caller| cftu.longest(caller)).collect();
    let moved = (0..callers).map(|caller| cftu.written(caller)).collect();
    Ok(Shares { served: cftu.served(), moved, longest })
}

fn kept(case: &Case<'_>) -> Result<Verdict, RunError> {
    let machine = Machine::new(case.parameters, 1)?;
    let mut finding = Finding::of(case.claim);
    let judged = judge(&machine, &mut finding);
    judged.map_err(|error| case.failed(error))?;
    Ok(finding.verdict(Place::Simulated, Basis::Explored))
}

fn judge(machine: &Machine, finding: &mut Finding<'_>) -> Result<(), CftuError> {
    let mut all = Seen::default();
    for seed in 0..SEEDS {
        let seen = priority(machine, seed, false)?;
        all.slices += seen.slices;
        all.strayed += seen.strayed;
        all.counted += seen.counted;
        all.low += seen.low;
        all.complaints += seen.complaints;
    }
    finding.figure("slices", all.slices as f64);
    finding.figure("bytes of low channels in them", all.strayed as f64);
    let words = format!(
        "priority: in {} slices by {SEEDS} seeds {} of the {} bytes of low callers \
                  reached memory after all of them had stopped",
        all.slices, all.strayed, all.low
    );
    finding.check(all.strayed + all.counted == 0 && all.slices > SEEDS && all.complaints == 0, words);
    let hasty = (0..4).map(|seed| priority(machine, seed, true)).collect::<Result<Vec<_>, _>>()?;
    let early: u64 = hasty.iter().map(|seen| seen.strayed).sum();
    let words = format!(
        "with slices counted from the request instead of the acknowledgement, {early} bytes would be seen"
    );
    finding.check(early > 0, words);
    exclusive(machine, finding)?;
    shared(machine, finding)
}

/// One to five callers; the fifth finds all channels bound.
fn exclusive(machine: &Machine, finding: &mut Finding<'_>) -> Result<(), CftuError> {
    let mut bound = true;
    let mut without = 0;
    for seed in 0..SEEDS {
        let callers = 1 + seed as usize % (CHANNELS + 1);
        let shares = without_slices(machine, seed, Box::new(Exclusive::new()), callers)?;
        bound &= shares.served.iter().all(|callers| callers.count_ones() <= 1);
        let waits = shares.moved.iter().filter(|bytes| **bytes == 0).count();
        bound &= waits == callers.saturating_sub(CHANNELS);
        without += waits;
    }
    let words = format!(
        "exclusive: no channel fetched a descriptor of a second caller's memory, and the {without} callers beyond {CHANNELS}, of \
                 {SEEDS} seeds, got no channel and moved no byte"
    );
    finding.check(bound && without > 0, words);
    Ok(())
}

/// Five to seven callers for four channels.
fn shared(machine: &Machine, finding: &mut Finding<'_>) -> Result<(), CftuError> {
    let mut open = true;
    let mut longest = 0;
    for seed in 0..SEEDS {
        let callers = 5 + seed as usize % 3;
        let shares = without_slices(machine, seed, Box::new(Shared::new()), callers)?;
        open &= shares.served.iter().all(|served| served.count_ones() as usize == callers);
        longest = shares.longest.into_iter().fold(longest, u128::max);
    }
    let words = format!(
        "shared: up to 7 callers each used all four channels; none waited longer than {:.0} us for 32 KiB, including copies in \
                 flight at the end",
        longest as f64 / 1e6
    );
    finding.check(open && longest < DURATION.as_nanos() * 1000 / 4, words);
    Ok(())
}
