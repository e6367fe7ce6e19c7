//! Part `latency`: one read of 4 KiB at a time, against what it consists of.
//!
//! ```text
//! client ─► service beta ─► link ─ am ─► link ─► service alpha ─► link ─ am ─► link ─► service beta ─► client
//! ```
//!
//! That is two messages of UCX, whose benchmark prints one way, and three round trips: client and service, service and link as its engine, link
//! and service as its client. Five threads poll for it: client, two workers and two links. With fewer CPUs the client sleeps while it waits,
//! and the row has no target.

use std::time::Duration;

use memferry::Rights;

use super::Scene;
use super::nodes::{Nodes, Reach, Way};
use crate::BenchError;
use crate::pair::poll_for;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{each_ns, median};

const ROUNDS: usize = 7;
const BYTES: u64 = 4 << 10;
/// Reads of a round while all are awake, and round trips of the service.
const READS: usize = 2000;
const BATCHES: usize = 40;
const TRIPS: usize = 500;
/// Messages of UCX's benchmark.
const MESSAGES: usize = 20_000;
/// Reads of a round after a rest.
const RARE_READS: usize = 10;
/// Longer than workers poll, and than links nap without news; shorter than after which naps are the longest.
const REST: Duration = Duration::from_millis(100);
/// Threads that poll while such a read is under way.
const POLLERS: usize = 5;
const OVER_PARTS: f64 = 1.2;

#[derive(Default)]
struct Figures {
    message: Vec<f64>,
    trip: Vec<f64>,
    awake: Vec<f64>,
    parked: Vec<f64>,
    over_parts: Vec<f64>,
}

pub(super) fn measure(run: &Run, scene: &Scene<'_>) -> Result<Vec<Row>, BenchError> {
    let nodes = Nodes::start(run, Way::Ucx(scene.ucx, scene.transport))?;
    let mut reach = Reach::open(&nodes, BYTES, Rights::READ)?;
    let cpus = std::thread::available_parallelism()?.get();
    let polls = cpus >= POLLERS;
    let (few, rare) = if run.quick() { (READS / 10, 3) } else { (READS, RARE_READS) };
    let rounds = run.part("remote latency", ROUNDS);
    let mut figures = Figures::default();
    for _ in 0..rounds {
        let (report, _) = scene.ucx.perftest(scene.transport, ("ucp_am_lat", BYTES, MESSAGES))?;
        let trip = trip_us(&mut reach)?;
        let awake = typical_us(&mut reach, few, polls, Duration::ZERO)?;
        figures.message.push(report.median_us);
        figures.trip.push(trip);
        figures.awake.push(awake);
        figures.over_parts.push(awake / (2.0 * report.median_us + 3.0 * trip));
        figures.parked.push(typical_us(&mut reach, rare, polls, REST)?);
        run.round_done();
    }
    Ok(rows(scene, &figures, (polls, cpus)))
}

/// The round trip of the service: the median of batches, for one is shorter than a reading of the clock allows.
fn trip_us(reach: &mut Reach) -> Result<f64, BenchError> {
    let mut times = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let each = each_ns(TRIPS, || {
            let ticket = reach.queue.submit(memferry::nop())?;
            poll_for(&mut reach.queue, ticket)
        })?;
        times.push(each / 1e3);
    }
    Ok(median(&times))
}

/// The median of so many reads, each after a rest.
fn typical_us(reach: &mut Reach, count: usize, polls: bool, rest: Duration) -> Result<f64, BenchError> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        times.push(reach.read(BYTES, polls)? * 1e6);
    }
    Ok(median(&times))
}

fn rows(scene: &Scene<'_>, figures: &Figures, (polls, cpus): (bool, usize)) -> Vec<Row> {
    let row = |what: &str, unit, target, values: &[f64]| {
        Row::new(format!("{}, 4 KiB: {what}", scene.title), unit, target, values)
    };
    let (title, target) = if polls {
        ("read, awake, against its parts".to_owned(), Target::AtMost(OVER_PARTS))
    } else {
        (format!("read, awake, against its parts, {cpus} CPUs for {POLLERS} threads"), Target::None)
    };
    vec![
        row("UCX's am_lat, one way", "us", Target::None, &figures.message),
        row("round trip of the service", "us", Target::None, &figures.trip),
        row("read, awake", "us", Target::None, &figures.awake),
        row(&title, "ratio", target, &figures.over_parts),
        row("read, after 100 ms of rest", "us", Target::None, &figures.parked),
    ]
}
