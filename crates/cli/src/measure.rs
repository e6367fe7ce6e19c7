//! Timing a transfer beside a plain memcpy of the same size, and saying so in words.
//!
//! ```text
//! rounds of (transfer, memcpy), interleaved ─► Comparison: the median of each ─► a line for people
//! ```
//!
//! Interleaved, because machines change their speed from one second to the next. The memcpy is a slice copy between
//! ordinary buffers of this process that were touched before.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::CommandError;

/// CPU time this thread has used.
pub(crate) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The middle of several measurements.
pub(crate) fn median<T: Copy + Ord + Default>(values: &mut [T]) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Bytes without pattern, the same for the same seed.
pub(crate) fn random_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Measurements of transfers and of memcpys beside them.
#[derive(Default)]
pub(crate) struct Samples {
    bytes: u64,
    transfers: Vec<Duration>,
    cpu: Vec<Duration>,
    memcpys: Vec<Duration>,
}

impl Samples {
    /// Whether what was measured so far, if anything, was as long.
    pub(crate) fn are_of(&self, bytes: u64) -> bool {
        self.transfers.is_empty() || self.bytes == bytes
    }

    /// Measures `rounds` times, one unmeasured round ahead. `source` and `destination` are for the memcpy, as long as those before.
    pub(crate) fn take(
        &mut self,
        rounds: u32,
        (source, destination): (&[u8], &mut [u8]),
        mut transfer: impl FnMut() -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        self.bytes = source.len() as u64;
        for round in 0..=rounds {
            let cpu = thread_cpu();
            let started = Instant::now();
            transfer()?;
            let took = started.elapsed();
            let spent = thread_cpu().saturating_sub(cpu);
            let started = Instant::now();
            destination.copy_from_slice(black_box(source));
            black_box(&mut *destination);
            let copied = started.elapsed();
            if round > 0 {
                self.transfers.push(took);
                self.cpu.push(spent);
                self.memcpys.push(copied);
            }
        }
        Ok(())
    }

    pub(crate) fn comparison(mut self) -> Comparison {
        Comparison {
            bytes: self.bytes,
            rounds: self.transfers.len(),
            transfer: median(&mut self.transfers),
            cpu: median(&mut self.cpu),
            memcpy: median(&mut self.memcpys),
        }
    }
}

/// How many rounds are worth while for that many bytes.
pub(crate) fn rounds_for(bytes: u64) -> u32 {
    ((128 << 20) / bytes.max(1)).clamp(3, 15) as u32
}

/// Compares with a memcpy between random buffers made for it.
pub(crate) fn compare(
    bytes: u64,
    transfer: impl FnMut() -> Result<(), CommandError>,
) -> Result<Comparison, CommandError> {
    let source = random_bytes(usize::try_from(bytes)?, bytes);
    let mut destination = vec![0; source.len()];
    let mut samples = Samples::default();
    samples.take(rounds_for(bytes), (&source, &mut destination), transfer)?;
    Ok(samples.comparison())
}

/// Medians of a transfer and of a memcpy of the same size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) transfer: Duration,
    pub(crate) cpu: Duration,
    pub(crate) memcpy: Duration,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = self.memcpy.as_secs_f64() / self.transfer.as_secs_f64().max(1e-9);
        write!(
            f,
            "{} in {} ({}); plain memcpy alongside {}: {ratio:.2} of memcpy's speed (median of {})",
            Bytes(self.bytes),
            Time(self.transfer),
            Rate(self.bytes, self.transfer),
            Time(self.memcpy),
            self.rounds
        )
    }
}

/// Bytes in binary units.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        match self.0 {
            0..0x400 => write!(f, "{} bytes", self.0),
            0x400..0x10_0000 => write!(f, "{:.1} KiB", value / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.1} MiB", value / (1024.0 * 1024.0)),
            _ => write!(f, "{:.2} GiB", value / (1024.0 * 1024.0 * 1024.0)),
        }
    }
}

/// A duration with three digits or so.
pub(crate) struct Time(pub(crate) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds >= 1.0 {
            write!(f, "{seconds:.2} s")
        } else if seconds >= 1e-3 {
            write!(f, "{:.2} ms", seconds * 1e3)
        } else if seconds >= 1e-6 {
            write!(f, "{:.1} us", seconds * 1e6)
        } else {
            write!(f, "{} ns", self.0.as_nanos())
        }
    }
}

/// Bytes over a time, per second.
pub(crate) struct Rate(pub(crate) u64, pub(crate) Duration);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.0 as f64 / self.1.as_secs_f64().max(1e-9);
        write!(f, "{}/s", Bytes(rate as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_said_in_fitting_units() {
        let sizes = [0, 1023, 1024, 1 << 20, 3 << 29].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "1.0 MiB", "1.50 GiB"]);
        let times = [20, 1_500, 2_000_000, 3_000_000_000];
        let times = times.map(|nanos| Time(Duration::from_nanos(nanos)).to_string());
        assert_eq!(times, ["20 ns", "1.5 us", "2.00 ms", "3.00 s"]);
        assert_eq!(Rate(1 << 20, Duration::from_millis(500)).to_string(), "2.0 MiB/s");
    }

    #[test]
    fn random_bytes_have_the_length_asked_for_and_differ_by_seed() {
        assert_eq!(random_bytes(13, 5).len(), 13);
        assert_eq!(random_bytes(64, 5), random_bytes(64, 5));
        assert_ne!(random_bytes(64, 5), random_bytes(64, 8));
    }

    #[test]
    fn median_is_the_middle_and_nothing_of_nothing() {
        assert_eq!(median(&mut [9, 1, 5]), 5);
        assert_eq!(median::<u32>(&mut []), 0);
    }

    #[test]
    fn samples_are_of_one_length() {
        let mut samples = Samples::default();
        assert!(samples.are_of(8) && samples.are_of(3));
        samples.take(1, (&[1; 8], &mut [0; 8]), || Ok(())).unwrap();
        assert!(samples.are_of(8) && !samples.are_of(3));
    }

    #[test]
    fn a_failing_transfer_ends_the_comparison() {
        assert!(compare(10, || Err("no".into())).is_err());
        let comparison = compare(10, || Ok(())).unwrap();
        assert_eq!((comparison.bytes, comparison.rounds), (10, 15));
    }
}
