//! Figures 17 to 20 of Wicki 2014, live: a producer's frames moved to a consumer in another process, in each mode.
//!
//! ```text
//! round, for each size, the same frame or eight in turn:
//!   mapped each request ─ pre-mapped ─ offloaded ─ offloaded, eight at a time     consumer: take, then read every byte, or not
//! ```
//!
//! If the CPU copies, producer and consumer have a CPU each; if the engine copies, its worker has one and both processes share the
//! other, because only two are used. A batch begins with the order to put. Pre-mapped against mapped has the targets
//! of frames made for each request; the thesis's frame sets are mapped, so only mapping and faults are saved.

use std::time::Instant;

use memferry_bulk::Consumer;

use super::partner::{LONGEST, Partner};
use crate::BenchError;
use crate::children::Service;
use crate::pair::Reader;
use crate::placement::{Class, Pinned};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::since_ns;

const ROUNDS: usize = 9;

/// Bytes, name, frames per batch, and required ratio of mapping each time.
const SIZES: [(u64, &str, u64, Target); 6] = [
    (4 << 10, "4 KiB", 200, Target::AtLeast(8.0)),
    (64 << 10, "64 KiB", 100, Target::AtLeast(5.0)),
    (512 << 10, "512 KiB", 40, Target::None),
    (1 << 20, "1 MiB", 24, Target::AtLeast(3.0)),
    (4 << 20, "4 MiB", 16, Target::AtLeast(3.0)),
    (LONGEST, "32 MiB", 8, Target::AtLeast(1.9)),
];

/// Number of the producer's frames, and the scenario's name.
const SCENARIOS: [(u64, &str); 2] = [(1, "the same frame"), (8, "alternating frames")];

/// A mode, by its number for the partner, and the number of transfers in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    mode: u64,
    window: usize,
}

const MAPPED: Way = Way { mode: 0, window: 1 };
const PRE_MAPPED: Way = Way { mode: 1, window: 1 };
const OFFLOADED: Way = Way { mode: 2, window: 1 };
const EIGHT: Way = Way { mode: 2, window: 8 };
/// As offloaded, but the frame is last in a full cache.
const CROWDED: Way = Way { mode: 3, window: 1 };

/// One way over one set of frames.
struct Line {
    way: Way,
    frames: u64,
    set: u64,
    consumer: Consumer,
    /// By size and round: nanoseconds per request, not read and read.
    times: [Vec<(f64, f64)>; SIZES.len()],
}

impl Line {
    fn open(partner: &mut Partner, way: Way, frames: u64) -> Result<Self, BenchError> {
        let (set, receiver) = partner.open(way.mode, frames, LONGEST)?;
        let consumer = Consumer::new(receiver, &partner.client, way.window, LONGEST)?;
        Ok(Self { way, frames, set, consumer, times: Default::default() })
    }

    /// Nanoseconds per request, over `count` requests.
    fn batch(
        &mut self,
        partner: &mut Partner,
        (bytes, count): (u64, u64),
        reader: Option<&mut Reader>,
    ) -> Result<f64, BenchError> {
        let mut reader = reader;
        let started = Instant::now();
        partner.put(self.set, count, bytes)?;
        for _ in 0..count {
            let taken = self.consumer.take(None)?;
            if taken.length != bytes {
                return Err(format!("received {} of {bytes} bytes", taken.length).into());
            }
            if let (Some(reader), Some(frame)) = (&mut reader, self.consumer.frame(taken.frame)) {
                reader.frame(frame, bytes)?;
            }
        }
        Ok(since_ns(started) / count as f64)
    }

    fn round(&mut self, partner: &mut Partner, size: usize) -> Result<(), BenchError> {
        let (bytes, _, count, _) = SIZES[size];
        let mut reader = Reader::new();
        partner.pin(if self.way.mode < 2 { 1 } else { 0 })?;
        self.batch(partner, (bytes, self.frames.max(2)), None)?;
        let moved = self.batch(partner, (bytes, count), None)?;
        let read = self.batch(partner, (bytes, count), Some(&mut reader))?;
        self.times[size].push((moved, read));
        Ok(())
    }
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("modes", ROUNDS);
    let service = Service::start(run)?;
    let mut partner = Partner::start(run.directory(), &service)?;
    let _pinned = Pinned::to(0)?;
    let mut lines = Vec::new();
    for (frames, _) in SCENARIOS {
        for way in [MAPPED, PRE_MAPPED, OFFLOADED, EIGHT, CROWDED] {
            // Eight in flight need eight frames; the cache is tested with one.
            let wanted = match way {
                EIGHT => frames > 1,
                CROWDED => frames == 1,
                _ => true,
            };
            if wanted {
                lines.push(Line::open(&mut partner, way, frames)?);
            }
        }
    }
    for _ in 0..rounds {
        for size in 0..SIZES.len() {
            for line in &mut lines {
                line.round(&mut partner, size)?;
            }
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for (frames, scenario) in SCENARIOS {
        for size in 0..SIZES.len() {
            let of = |way: Way| {
                let line = lines.iter().find(|line| line.way == way && line.frames == frames);
                line.map(|line| &line.times[size][..])
            };
            rows.extend(rows_of(size, scenario, of));
        }
    }
    Ok(rows)
}

/// Rows of one size and scenario.
fn rows_of<'a>(size: usize, scenario: &str, of: impl Fn(Way) -> Option<&'a [(f64, f64)]>) -> Vec<Row> {
    let (bytes, name, _, target) = SIZES[size];
    let speed = |(_, read): &(f64, f64)| bytes as f64 / read;
    let mut rows = Vec::new();
    let ways = [
        (MAPPED, "mapped each request"),
        (PRE_MAPPED, "pre-mapped"),
        (OFFLOADED, "offloaded"),
        (EIGHT, "offloaded, eight at a time"),
    ];
    for (way, called) in ways {
        if let Some(times) = of(way) {
            let speeds: Vec<f64> = times.iter().map(speed).collect();
            let title = format!("{name}, {scenario}, {called}, moved and read");
            rows.push(Row::new(title, "GB/s", Target::None, &speeds));
        }
    }
    let comparisons = [
        (MAPPED, PRE_MAPPED, "mapped each request against pre-mapped, not read", target),
        (OFFLOADED, PRE_MAPPED, "time offloaded against pre-mapped, moved and read", Target::None),
        (EIGHT, OFFLOADED, "time of eight at a time against one, not read", Target::None),
        (CROWDED, OFFLOADED, "cache hit against pre-granted, not read", cache_target(bytes)),
    ];
    for (one, other, called, target) in comparisons {
        if let (Some(one), Some(other)) = (of(one), of(other)) {
            let read = called.ends_with("and read");
            let pick = |(moved, all): &(f64, f64)| if read { *all } else { *moved };
            let ratios: Vec<f64> =
                one.iter().zip(other).map(|(one, other)| pick(one) / pick(other)).collect();
            rows.push(Row::new(format!("{name}, {scenario}, {called}"), "ratio", target, &ratios));
        }
    }
    rows
}

/// From 64 KiB on, a cache hit may cost 1.05 times a pre-granted frame.
fn cache_target(bytes: u64) -> Target {
    if bytes >= 64 << 10 { Target::AtMost(1.05) } else { Target::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_per_round_with_targets() {
        let mapped = [(80.0, 90.0), (90.0, 99.0)];
        let before = [(10.0, 20.0), (10.0, 20.0)];
        let hit = [(10.4, 20.0); 2];
        let of = |way: Way| match way {
            MAPPED => Some(&mapped[..]),
            PRE_MAPPED | OFFLOADED => Some(&before[..]),
            CROWDED => Some(&hit[..]),
            _ => None,
        };
        let rows = serde_json::to_value(rows_of(1, "the same frame", of)).unwrap();
        let value = |name: &str| {
            let row =
                rows.as_array().unwrap().iter().find(|row| row["name"].as_str().unwrap().contains(name));
            (row.unwrap()["value"].as_f64().unwrap(), row.unwrap()["holds"].clone())
        };
        assert_eq!(value("mapped each request against"), (9.0, true.into()));
        assert_eq!(value("cache hit"), (1.04, true.into()));
        assert_eq!(value("pre-mapped, moved and read").0, 65536.0 / 20.0);
    }
}
