//! Measures this machine's thresholds: the size from which each alternative pays.
//!
//! ```text
//! two frames larger than the caches ─► per size: plain and alternative, interleaved ─► median ratio
//! smallest size from which all larger ones gain enough ─► Tuning
//! ```
//!
//! Memory is a memfd of ordinary pages, as frames are, and no line is all zeros, because some machines skip such writes. A helper
//! thread runs while sharing is measured. The measurement takes some seconds and reports its steps to the caller.
//! Nothing is installed or written.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memferry_shm::frame::{self, Pages};
use memferry_shm::mapping::Mapping;
use memferry_transfer::Region;
use thiserror::Error;

use super::kernels::team::CopyTeam;
use super::kernels::{self, OutsideRegion};
use super::manner::Manner;
use super::tuning::{self, Tuning};

#[derive(Debug, Error)]
pub enum MeasureError {
    /// Memory could not be allocated.
    #[error("cannot allocate {bytes} bytes to measure with: {source}; free some memory")]
    Memory { bytes: u64, source: io::Error },
    /// A bug in this module.
    #[error("bug in memferry: a measurement used an offset outside its memory")]
    Outside,
}

impl From<OutsideRegion> for MeasureError {
    fn from(_: OutsideRegion) -> Self {
        Self::Outside
    }
}

/// A threshold that no transfer reaches.
pub const NEVER: u64 = 1 << 40;
/// Minimum gain of bypassing the caches.
const GAIN: f64 = 1.03;
/// Minimum speed ratio when timing loads finds the memory near.
const TIMING_COST: f64 = 0.95;
/// Minimum gain of sharing, which occupies a second core.
const SHARE_GAIN: f64 = 1.15;
/// Minimum duration of a round, unless one call takes longer.
const ROUND: Duration = Duration::from_micros(60);
const ROUNDS: usize = 15;
/// Steps reported to the caller.
pub const STEPS: u32 = 6;

/// Powers of two times `from`, up to `to`.
fn sizes(from: u64, to: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(from), |size| size.checked_mul(2)).take_while(move |size| *size <= to)
}

/// The smallest size from which all gains reach `enough`. `gains` holds (size, gain), smallest size first.
fn threshold(gains: &[(u64, f64)], enough: f64) -> u64 {
    let gaining = gains.iter().rev().take_while(|(_, gain)| *gain >= enough);
    gaining.last().map_or(NEVER, |(size, _)| *size)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Whether the bytes of a measurement are in a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Moved the same way just before.
    Near,
    /// Not touched for a while.
    Far,
}

/// A region of a mapping.
fn part(mapping: &Mapping, offset: u64, length: u64) -> Result<Region<&Mapping>, OutsideRegion> {
    Region::new(mapping, offset, length).ok_or(OutsideRegion)
}

/// One way of processing `bytes` at an offset.
type Way<'a> = &'a mut dyn FnMut(u64, u64) -> Result<(), OutsideRegion>;

/// The memory used for measuring.
struct Field {
    source: Mapping,
    destination: Mapping,
    bytes: u64,
    /// Places handed out so far.
    turn: u64,
}

/// An odd number near 2^64 over the golden ratio: its multiples modulo 2^64 are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The place for a turn: far from those of recent turns, which caches may still hold.
fn spread(turn: u64, places: u64) -> u64 {
    ((u128::from(turn.wrapping_mul(GOLDEN)) * u128::from(places)) >> 64) as u64
}

impl Field {
    fn new() -> Result<Self, MeasureError> {
        let last_level = tuning::caches().into_iter().max().unwrap_or(8 << 20);
        let bytes = (4 * last_level).clamp(128 << 20, 512 << 20);
        let allocate = || {
            let failed =
                |error: frame::AllocateError| MeasureError::Memory { bytes, source: io::Error::other(error) };
            frame::allocate(bytes, Pages::Ordinary).map(|(_, mapping)| mapping).map_err(failed)
        };
        let field = Self { source: allocate()?, destination: allocate()?, bytes, turn: 0 };
        let block: Vec<u8> =
            (1..=1 << 17).flat_map(|word: u64| word.wrapping_mul(GOLDEN).to_le_bytes()).collect();
        for offset in (0..bytes).step_by(block.len()) {
            let written =
                field.source.write(offset, &block).and_then(|()| field.destination.write(offset, &block));
            written.map_err(|_| MeasureError::Outside)?;
        }
        Ok(field)
    }

    /// The offset of the next part of `bytes`.
    fn next_place(&mut self, bytes: u64) -> u64 {
        self.turn += 1;
        spread(self.turn, self.bytes / bytes) * bytes
    }

    /// Calls one way repeatedly; returns nanoseconds per call.
    fn round(&mut self, memory: Memory, bytes: u64, way: Way<'_>) -> Result<f64, OutsideRegion> {
        let mut place = self.next_place(bytes);
        if memory == Memory::Near {
            (0..3).try_for_each(|_| way(place, bytes))?;
        }
        let started = Instant::now();
        let mut calls = 0u32;
        loop {
            if memory == Memory::Far {
                place = self.next_place(bytes);
            }
            way(place, bytes)?;
            calls += 1;
            // Short calls are timed 16 at a time: reading the clock takes as long as one.
            if (bytes >= 1 << 16 || calls.is_multiple_of(16)) && started.elapsed() >= ROUND {
                return Ok(started.elapsed().as_nanos() as f64 / f64::from(calls));
            }
        }
    }

    /// How many times faster the second way is: the median ratio over interleaved rounds.
    fn gain(&mut self, memory: Memory, bytes: u64, ways: [Way<'_>; 2]) -> Result<f64, OutsideRegion> {
        let [plain, other] = ways;
        let mut gains = Vec::with_capacity(ROUNDS);
        for round in 0..ROUNDS {
            let other_first = round % 2 == 1;
            let early = if other_first { self.round(memory, bytes, other)? } else { 0.0 };
            let plain = self.round(memory, bytes, plain)?;
            let other = if other_first { early } else { self.round(memory, bytes, other)? };
            gains.push(plain / other);
        }
        Ok(median(gains))
    }
}

/// Measures the thresholds of this machine. `step` receives the name of each step, [`STEPS`] times.
///
/// Ignores request hints and the thresholds in use.
///
/// # Errors
/// [`MeasureError`].
pub fn measure(mut step: impl FnMut(&'static str)) -> Result<Tuning, MeasureError> {
    step("memory allocation");
    let mut field = Field::new()?;
    let mut tuning = Tuning::of_this_machine();
    step("latency of memory");
    tuning.far_ticks = far_ticks(&mut field)?;
    step("copies of uncached memory");
    tuning.stream_cold_bytes = stream_cold_bytes(&mut field, tuning.far_ticks)?;
    step("repeated copies of the same memory");
    tuning.stream_always_bytes = stream_always_bytes(&mut field)?.max(tuning.stream_cold_bytes);
    step("zeroing");
    tuning.zero_cold_bytes = zero_cold_bytes(&mut field, tuning.far_ticks)?;
    step("sharing copies");
    share(&mut field, &mut tuning)?;
    Ok(tuning)
}

/// Geometric mean of the ticks of cached and uncached loads; 0 if they do not differ enough.
fn far_ticks(field: &mut Field) -> Result<u64, OutsideRegion> {
    const TRIES: usize = 400;
    let mapping = field.source.clone();
    let mut far = Vec::new();
    for _ in 0..TRIES {
        let place = part(&mapping, field.next_place(4096), 4096)?;
        far.extend(kernels::region_ticks(&place, 0)?.and(kernels::region_ticks(&place, 1024)?));
    }
    // From the second-level cache or beyond, not from the first.
    let mut near = Vec::new();
    for _ in 0..2 {
        near.clear();
        for page in 0..TRIES as u64 {
            near.extend(kernels::region_ticks(&part(&mapping, page % 256 * 4096, 4096)?, 2048)?);
        }
    }
    far.sort_unstable();
    near.sort_unstable();
    let (Some(far), Some(near)) = (far.get(far.len() / 10), near.get(near.len() * 9 / 10)) else {
        return Ok(0);
    };
    Ok(if far * 2 >= near * 3 { ((far * near) as f64).sqrt() as u64 } else { 0 })
}

fn stream_cold_bytes(field: &mut Field, far_ticks: u64) -> Result<u64, OutsideRegion> {
    let source = field.source.clone();
    let destination = field.destination.clone();
    let from = part(&source, 0, field.bytes)?;
    let to = part(&destination, 0, field.bytes)?;
    let mut gains = Vec::new();
    for bytes in sizes(16 << 10, 4 << 20) {
        let mut plain = |at, bytes| kernels::copy(Manner::Cached, &from, at, &to, at, bytes);
        let mut other = |at, bytes| {
            let ends = (part(&source, at, bytes)?, part(&destination, at, bytes)?);
            let _ = kernels::is_far(&ends.1, bytes, far_ticks, Some(&ends.0))?;
            kernels::copy(Manner::Streaming, &from, at, &to, at, bytes)
        };
        gains.push((bytes, field.gain(Memory::Far, bytes, [&mut plain, &mut other])?));
    }
    Ok(threshold(&gains, GAIN))
}

fn stream_always_bytes(field: &mut Field) -> Result<u64, OutsideRegion> {
    let source = field.source.clone();
    let destination = field.destination.clone();
    let from = part(&source, 0, field.bytes)?;
    let to = part(&destination, 0, field.bytes)?;
    let mut gains = Vec::new();
    for bytes in sizes(1 << 20, field.bytes / 2) {
        let mut plain = |at, bytes| kernels::copy(Manner::Cached, &from, at, &to, at, bytes);
        let mut other = |at, bytes| kernels::copy(Manner::Streaming, &from, at, &to, at, bytes);
        gains.push((bytes, field.gain(Memory::Near, bytes, [&mut plain, &mut other])?));
    }
    Ok(threshold(&gains, GAIN))
}

/// The size from which far memory gains and timing loads costs little for near memory.
fn zero_cold_bytes(field: &mut Field, far_ticks: u64) -> Result<u64, OutsideRegion> {
    let destination = field.destination.clone();
    let to = part(&destination, 0, field.bytes)?;
    let mut far = Vec::new();
    let mut near = Vec::new();
    for bytes in sizes(16 << 10, 4 << 20) {
        let time_loads = |at, bytes| kernels::is_far(&part(&destination, at, bytes)?, bytes, far_ticks, None);
        let zero = |manner, at, bytes| kernels::fill(manner, &to, at, bytes, [0; 4]);
        let mut plain = |at, bytes| zero(Manner::Cached, at, bytes);
        let mut streaming =
            |at, bytes| time_loads(at, bytes).and_then(|_| zero(Manner::Streaming, at, bytes));
        let mut timed = |at, bytes| time_loads(at, bytes).and_then(|_| zero(Manner::Cached, at, bytes));
        far.push((bytes, field.gain(Memory::Far, bytes, [&mut plain, &mut streaming])?));
        near.push((bytes, field.gain(Memory::Near, bytes, [&mut plain, &mut timed])?));
    }
    Ok(threshold(&far, GAIN).max(threshold(&near, TIMING_COST)))
}

/// Ends the helper thread, also on failure.
struct Ending<'a>(&'a AtomicBool, &'a std::thread::Thread);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Measures copies shared with a spinning thread, and with one that must be woken for each.
fn share(field: &mut Field, tuning: &mut Tuning) -> Result<(), OutsideRegion> {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        let all = [
            &mut tuning.share_awake_bytes,
            &mut tuning.share_asleep_hot_bytes,
            &mut tuning.share_asleep_cold_bytes,
        ];
        all.into_iter().for_each(|threshold| *threshold = NEVER);
        return Ok(());
    }
    let over = AtomicBool::new(false);
    let sleeps = AtomicBool::new(false);
    let helping = std::sync::OnceLock::<std::thread::Thread>::new();
    let team = CopyTeam::new(1, |_| {});
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                if sleeps.load(Ordering::Relaxed) {
                    std::thread::park();
                }
                team.help(|| false);
                std::hint::spin_loop();
            }
        });
        let helper = helping.get_or_init(|| helper.thread().clone());
        let _ending = Ending(&over, helper);
        let awake = sharing(field, &team, Memory::Near, Manner::Cached, (8 << 10, 8 << 20), || {})?;
        sleeps.store(true, Ordering::Relaxed);
        let wake = || helper.unpark();
        let hot = sharing(field, &team, Memory::Near, Manner::Cached, (256 << 10, 16 << 20), wake)?;
        let cold = sharing(field, &team, Memory::Far, Manner::Streaming, (256 << 10, 16 << 20), wake)?;
        tuning.share_awake_bytes = threshold(&awake, SHARE_GAIN);
        tuning.share_asleep_hot_bytes = threshold(&hot, SHARE_GAIN);
        tuning.share_asleep_cold_bytes = threshold(&cold, SHARE_GAIN);
        Ok(())
    })
}

/// Gains of sharing over copying alone, for sizes from `least` to `most`.
fn sharing(
    field: &mut Field,
    team: &CopyTeam,
    memory: Memory,
    manner: Manner,
    (least, most): (u64, u64),
    wake: impl Fn(),
) -> Result<Vec<(u64, f64)>, OutsideRegion> {
    let source = field.source.clone();
    let destination = field.destination.clone();
    let from = part(&source, 0, field.bytes)?;
    let to = part(&destination, 0, field.bytes)?;
    let mut gains = Vec::new();
    for bytes in sizes(least, most) {
        let mut alone = |at, bytes| kernels::copy(manner, &from, at, &to, at, bytes);
        let mut together = |at, bytes| {
            wake();
            let piece = super::progress::piece_bytes(bytes, 1);
            team.copy(manner, (&from, at), (&to, at), bytes, piece).unwrap_or(Err(OutsideRegion))
        };
        gains.push((bytes, field.gain(memory, bytes, [&mut alone, &mut together])?));
    }
    Ok(gains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_starts_the_last_gains() {
        let gains = [(1, 2.0), (2, 1.0), (4, 1.1), (8, 1.2)];
        assert_eq!(threshold(&gains, 1.05), 4);
        assert_eq!(threshold(&gains, 1.15), 8);
        assert_eq!(threshold(&gains, 0.9), 1);
        assert_eq!(threshold(&gains, 1.5), NEVER);
        assert_eq!(threshold(&[], 0.0), NEVER);
    }

    #[test]
    fn places_are_spread_evenly() {
        for places in [1, 2, 7, 512] {
            let mut visits = vec![0; places as usize];
            (1..=4 * places).for_each(|turn| visits[spread(turn, places) as usize] += 1);
            assert!(visits.iter().all(|visits| (2..=6).contains(visits)), "{visits:?}");
        }
        let near = |turn: u64| (1..8).any(|back| spread(turn, 512).abs_diff(spread(turn + back, 512)) < 16);
        assert!(!(0..1000).any(near));
    }

    #[test]
    fn sizes_double_up_to_the_limit() {
        assert_eq!(sizes(4, 40).collect::<Vec<_>>(), [4, 8, 16, 32]);
    }
}
