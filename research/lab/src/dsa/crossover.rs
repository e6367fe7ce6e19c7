//! One core that copies by DSA, against one that copies itself.
//!
//! ```text
//! core: prepare ─ prepare ─ ... ─ ENQCMD or MOVDIR64B ─── until as many batches are in flight as allowed ─── record read
//!                                         └──► model: queue, engine, link ──► records ───────────────────────────┘
//! ```
//!
//! The core's times are charged here; the driver and the device's model are those of the product and of its tests. The core that copies
//! has the times that LightDSA's artifact gives, size by size.

use std::collections::{HashSet, VecDeque};

use memferry_clock::Instant;
use memferry_dsa::{Outcome, Queue, Request, SubmitError, Ticket};
use memferry_models::dsa::Timing;
use serde::Deserialize;

use super::machine::{DsaError, Machine, ModelPortal, RamWords, Setup, nth_move, timing};
use crate::paper::{Line, RunError};
use crate::parameters::{Parameters, ParametersError};
use crate::table::Series;

/// Most requests that the driver has here: eight batches of 128 and their descriptors.
const SLOTS: usize = 1280;
/// Bytes in flight that keep the link busy: batches of more take a time in proportion, and more of them in flight change nothing.
const ENOUGH_BYTES: u64 = 1 << 20;
/// Batches that are measured: at least as many as are in flight, and these.
const MEASURED_BATCHES: (u64, u64) = (4, 64);
/// Sizes among which crossovers are found: powers of two.
const SIZES: std::ops::RangeInclusive<u32> = 6..=20;
const MIB: f64 = (1 << 20) as f64;

/// How a core uses the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Way {
    /// Requests of a batch; one: without batch descriptors.
    #[serde(default = "one")]
    batch: u32,
    /// Batches in flight; one: each is waited for.
    #[serde(default = "one")]
    depth: u32,
    engines: u32,
    /// The work queue is shared.
    shared: bool,
}

const fn one() -> u32 {
    1
}

/// Times of the core, in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Core {
    prepare: u64,
    enqcmd: u64,
    movdir64b: u64,
    completion: u64,
}

impl Core {
    fn new(parameters: &Parameters) -> Result<Self, ParametersError> {
        let time = |name| parameters.get(name).map(|nanoseconds| (nanoseconds * 1e3) as u64);
        Ok(Self {
            prepare: time("prepare")?,
            enqcmd: time("enqcmd")?,
            movdir64b: time("movdir64b")?,
            completion: time("completion")?,
        })
    }
}

/// A core with a device.
struct Bench {
    core: Core,
    way: Way,
    bytes: u64,
    machine: Machine,
    queue: Queue<ModelPortal, RamWords, SLOTS>,
    /// Batches in flight, oldest first.
    flight: VecDeque<Vec<Ticket>>,
    /// Requests in flight that were found complete while something else was awaited.
    complete: HashSet<Ticket>,
    moves: u64,
    now: Instant,
}

impl Bench {
    fn new(core: Core, timing: Timing, way: Way, bytes: u64) -> Result<Self, DsaError> {
        let setup = Setup { engines: way.engines, queues: 1, shared: way.shared };
        let mut machine = Machine::new(timing, &setup)?;
        let lists = if way.batch > 1 { (way.depth as u16, way.batch as u16) } else { (0, 0) };
        let queue = machine.queue(0, 0, lists)?;
        let now = machine.now();
        let flight = VecDeque::new();
        let complete = HashSet::new();
        Ok(Self { core, way, bytes, machine, queue, flight, complete, moves: 0, now })
    }

    fn spend(&mut self, picoseconds: u64) {
        self.now = self.now.after_picoseconds(picoseconds.into());
        self.machine.advance(self.now);
    }

    /// Submits one batch; waits for an earlier one first if as many are in flight as allowed.
    fn turn(&mut self) -> Result<(), DsaError> {
        if self.flight.len() >= self.way.depth as usize {
            self.finish_oldest()?;
        }
        let descriptors = u64::from(self.way.batch) + u64::from(self.way.batch > 1);
        self.spend(self.core.prepare * descriptors);
        let requests: Vec<Request> = (0..u64::from(self.way.batch))
            .map(|index| Request::new(nth_move(self.moves + index, self.bytes)))
            .collect();
        let mut tickets = vec![Ticket::default(); requests.len()];
        loop {
            let sent = match requests.as_slice() {
                [one] => self.queue.submit(one).map(|ticket| tickets.fill(ticket)),
                all => self.queue.submit_batch(all, &mut tickets),
            };
            self.spend(if self.way.shared { self.core.enqcmd } else { self.core.movdir64b });
            match sent {
                Ok(()) => break,
                // The device answered Retry.
                Err(SubmitError::Busy { .. }) => {}
                // The record of a batch comes after those of its requests.
                Err(
                    SubmitError::NoEntry { .. } | SubmitError::NoList { .. } | SubmitError::NoSlot { .. },
                ) => {
                    self.collect()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.moves += u64::from(self.way.batch);
        self.flight.push_back(tickets);
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<(), DsaError> {
        let tickets = self.flight.pop_front().ok_or(DsaError::Stalled)?;
        for ticket in tickets {
            while !self.complete.remove(&ticket) {
                match self.queue.poll_ticket(ticket) {
                    Some(completion) => {
                        check(completion.outcome)?;
                        break;
                    }
                    None => self.await_event()?,
                }
            }
        }
        self.spend(self.core.completion);
        Ok(())
    }

    /// Takes what is complete; lets the device work if that frees nothing.
    fn collect(&mut self) -> Result<(), DsaError> {
        let outstanding = self.queue.outstanding();
        while let Some(completion) = self.queue.poll() {
            check(completion.outcome)?;
            self.complete.insert(completion.ticket);
        }
        if self.queue.outstanding() == outstanding { self.await_event() } else { Ok(()) }
    }

    /// Lets the device work until its next event.
    fn await_event(&mut self) -> Result<(), DsaError> {
        let wake = self.machine.next_wake().ok_or(DsaError::Stalled)?;
        self.now = self.now.max(wake);
        self.machine.advance(self.now);
        Ok(())
    }
}

fn check(outcome: Outcome) -> Result<(), DsaError> {
    if matches!(outcome, Outcome::Done(_)) { Ok(()) } else { Err(DsaError::Ended(format!("{outcome:?}"))) }
}

/// Nanoseconds of one request, in the long run.
fn nanoseconds_of_one(core: Core, timing: Timing, way: Way, bytes: u64) -> Result<f64, DsaError> {
    let of_batch = bytes * u64::from(way.batch);
    let less = ENOUGH_BYTES / u64::from(way.batch);
    if way.batch > 1 && less < bytes {
        return Ok(nanoseconds_of_one(core, timing, way, less)? * bytes as f64 / less as f64);
    }
    let most = (ENOUGH_BYTES / of_batch).max(2) as u32;
    let way = Way { depth: way.depth.min(most), ..way };
    let in_flight = u64::from(way.depth);
    let batches = (ENOUGH_BYTES / of_batch).clamp(MEASURED_BATCHES.0, MEASURED_BATCHES.1).max(in_flight);
    // What twice as many take longer: the beginning and the end are the same.
    let once = picoseconds_of_all(core, timing, (way, bytes), batches)?;
    let twice = picoseconds_of_all(core, timing, (way, bytes), 2 * batches)?;
    Ok((twice - once) as f64 / 1e3 / (batches * u64::from(way.batch)) as f64)
}

/// Picoseconds until so many batches are complete.
fn picoseconds_of_all(
    core: Core,
    timing: Timing,
    (way, bytes): (Way, u64),
    batches: u64,
) -> Result<u128, DsaError> {
    let mut bench = Bench::new(core, timing, way, bytes)?;
    let began = bench.now;
    for _ in 0..batches {
        bench.turn()?;
    }
    while !bench.flight.is_empty() {
        bench.finish_oldest()?;
    }
    Ok(bench.now.picoseconds() - began.picoseconds())
}

fn mib_per_second(bytes: u64, nanoseconds: f64) -> f64 {
    bytes as f64 / nanoseconds * 1e9 / MIB
}

/// Nanoseconds of a copy by the core, of a size that the parameters have.
fn copied_by_core(parameters: &Parameters, places: &str, bytes: u64) -> Result<f64, ParametersError> {
    let rate = parameters.get(&format!("cpu-{places}-{bytes}"))?;
    Ok(bytes as f64 / (rate * MIB) * 1e9)
}

/// A line over the sizes: of the device, or of the core that copies.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Copier {
    Core { cpu: String },
    Device(Way),
}

/// Points of a line, each computed from its x.
fn points(
    line: &Line<'_>,
    mut at: impl FnMut(f64) -> Result<Option<f64>, DsaError>,
) -> Result<Vec<Series>, RunError> {
    let mut found = Vec::new();
    for x in line.plan.points() {
        if let Some(y) = at(x).map_err(|error| line.failed(error))? {
            found.push((x, y));
        }
    }
    Ok(vec![Series { label: line.series.label.clone(), points: found }])
}

/// Throughput over the size.
pub(super) fn throughput(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let copier: Copier = line.settings()?;
    let core = Core::new(line.parameters)?;
    let timing = timing(line.parameters)?;
    points(line, |bytes| {
        let bytes = bytes as u64;
        let time = match &copier {
            Copier::Core { cpu } => copied_by_core(line.parameters, cpu, bytes)?,
            Copier::Device(way) => nanoseconds_of_one(core, timing, *way, bytes)?,
        };
        Ok(Some(mib_per_second(bytes, time)))
    })
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSize {
    bytes: u64,
    #[serde(default = "one")]
    depth: u32,
    engines: u32,
    shared: bool,
}

/// Throughput over the requests of a batch.
pub(super) fn by_batch(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let OfSize { bytes, depth, engines, shared } = line.settings()?;
    let core = Core::new(line.parameters)?;
    let timing = timing(line.parameters)?;
    points(line, |batch| {
        let way = Way { batch: batch as u32, depth, engines, shared };
        Ok(Some(mib_per_second(bytes, nanoseconds_of_one(core, timing, way, bytes)?)))
    })
}

/// Throughput over the requests in flight.
pub(super) fn by_depth(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let OfSize { bytes, engines, shared, .. } = line.settings()?;
    let core = Core::new(line.parameters)?;
    let timing = timing(line.parameters)?;
    points(line, |depth| {
        let way = Way { batch: 1, depth: depth as u32, engines, shared };
        Ok(Some(mib_per_second(bytes, nanoseconds_of_one(core, timing, way, bytes)?)))
    })
}

/// The smallest size from which on the device is faster, over the speed of the core.
pub(super) fn crossovers(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let way: Way = line.settings()?;
    let core = Core::new(line.parameters)?;
    let timing = timing(line.parameters)?;
    let mut times = Vec::new();
    for power in SIZES {
        let bytes = 1 << power;
        let device = nanoseconds_of_one(core, timing, way, bytes).map_err(|error| line.failed(error))?;
        times.push((bytes, device, copied_by_core(line.parameters, "sequential", bytes)?));
    }
    points(line, |speed| Ok(crossover(&times, speed).map(|bytes| bytes as f64)))
}

/// Of sizes with the times of device and core: the smallest from which on the device is faster than a core `speed` times as fast.
fn crossover(times: &[(u64, f64, f64)], speed: f64) -> Option<u64> {
    let is_faster = |(_, device, core): &&(u64, f64, f64)| *device < core / speed;
    times.iter().rev().take_while(is_faster).last().map(|(bytes, ..)| *bytes)
}

#[cfg(test)]
mod tests;
