//! Measures a transfer in comparison with a plain memcpy of the same size.
//!
//! ```text
//! rounds of (transfer, memcpy), interleaved ─► Comparison: the median of each ─► a line of text
//! ```
//!
//! The rounds are interleaved because the speed of a machine varies from second to second. The memcpy is a slice copy between
//! ordinary buffers of this process whose pages were touched before.

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

pub(crate) fn median<T: Copy + Ord + Default>(values: &mut [T]) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Pseudo-random bytes, determined by the seed.
pub(crate) fn random_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Times of transfers and of the memcpys compared with them.
#[derive(Default)]
pub(crate) struct Samples {
    bytes: u64,
    transfers: Vec<Duration>,
    cpu: Vec<Duration>,
    memcpys: Vec<Duration>,
}

impl Samples {
    /// Whether the samples so far, if any, have this length.
    pub(crate) fn have_length(&self, bytes: u64) -> bool {
        self.transfers.is_empty() || self.bytes == bytes
    }

    /// Measures `rounds` rounds after one unmeasured. `source` and `destination` are for the memcpy, as long as the transfers.
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
            let elapsed = started.elapsed();
            let cpu_time = thread_cpu().saturating_sub(cpu);
            let started = Instant::now();
            destination.copy_from_slice(black_box(source));
            black_box(&mut *destination);
            let copied = started.elapsed();
            if round > 0 {
                self.transfers.push(elapsed);
                self.cpu.push(cpu_time);
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

/// A useful number of rounds for a length.
pub(crate) fn rounds_for(bytes: u64) -> u32 {
    ((128 << 20) / bytes.max(1)).clamp(3, 15) as u32
}

/// Compares a transfer with a memcpy between buffers of random bytes.
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

/// A number of bytes in binary units.
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

/// A duration with about three digits.
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

/// Bytes per second, from bytes and a duration.
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
    fn sizes_and_times_have_fitting_units() {
        let sizes = [0, 1023, 1024, 1 << 20, 3 << 29].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "1.0 MiB", "1.50 GiB"]);
        let times = [20, 1_500, 2_000_000, 3_000_000_000];
        let times = times.map(|nanos| Time(Duration::from_nanos(nanos)).to_string());
        assert_eq!(times, ["20 ns", "1.5 us", "2.00 ms", "3.00 s"]);
        assert_eq!(Rate(1 << 20, Duration::from_millis(500)).to_string(), "2.0 MiB/s");
    }

    #[test]
    fn random_bytes_depend_on_length_and_seed() {
        assert_eq!(random_bytes(13, 5).len(), 13);
        assert_eq!(random_bytes(64, 5), random_bytes(64, 5));
        assert_ne!(random_bytes(64, 5), random_bytes(64, 8));
    }

    #[test]
    fn the_median_of_nothing_is_zero() {
        assert_eq!(median(&mut [9, 1, 5]), 5);
        assert_eq!(median::<u32>(&mut []), 0);
    }

    #[test]
    fn samples_have_one_length() {
        let mut samples = Samples::default();
        assert!(samples.have_length(8) && samples.have_length(3));
        samples.take(1, (&[1; 8], &mut [0; 8]), || Ok(())).unwrap();
        assert!(samples.have_length(8) && !samples.have_length(3));
    }

    #[test]
    fn a_failing_transfer_ends_the_comparison() {
        assert!(compare(10, || Err("no".into())).is_err());
        let comparison = compare(10, || Ok(())).unwrap();
        assert_eq!((comparison.bytes, comparison.rounds), (10, 15));
    }
}
