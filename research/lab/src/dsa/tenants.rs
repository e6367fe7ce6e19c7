//! Several tenants of one device, with and without the service between them.
//!
//! ```text
//! without: a driver for each tenant ─► one shared work queue, or one each ─► model
//! with:    requests ─► Path: capability, policy ─► DsaEngine: 16 engine channels ─► driver ─► one work queue ─► model
//! ```
//!
//! Every tenant keeps as many requests outstanding. The times of processors are not charged: what differs is the order in which the device
//! gets the work. A tenant's place among those that submit at one instant is drawn from the plan's seed.

use std::collections::VecDeque;

use memferry_clock::Instant;
use memferry_driven::{BusMemory, DSA_SLOTS, DsaEngine, DsaOptions, DsaRegisters, Present};
use memferry_dsa::{Outcome, Queue, Request as Move, SubmitError, Ticket};
use memferry_models::dsa::Timing;
use memferry_path::{Capabilities, Path, PathLimits, PolicyKind, QueueKey};
use memferry_transfer::{Handle, Request, Rights, SessionId, Span};
use serde::Deserialize;

use super::machine::{
    AREA, BASE, Device, DsaError, Machine, ModelPortal, RamWords, Setup, TIMEOUT, nth_move, timing,
};
use crate::paper::{Line, RunError};
use crate::parameters::Parameters;
use crate::rng::Rng;
use crate::table::Series;

/// Bytes of the first tenant's requests.
const SHORT: u64 = 4096;
/// Engines of the device's group. Among several, the model gives read buffers to the first ones first, which no document says.
const ENGINES: u32 = 1;
/// Lines of the model's accesses: more than in its default, which only saves time here.
const BURST_LINES: u32 = 8;
/// Engine channels of the service.
const CHANNELS: u32 = 16;
/// Requests of the driver of one tenant.
const SLOTS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Between {
    SharedQueue,
    OwnQueues,
    Service,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Quantity {
    Share,
    P99,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    way: Between,
    policy: Option<PolicyKind>,
    of: Quantity,
    /// Bytes of one step of the service's engine.
    chunk: Option<u64>,
}

/// What one tenant has done in the measured time.
#[derive(Clone, Debug, Default)]
struct Done {
    bytes: u64,
    /// Picoseconds of each request.
    times: Vec<u64>,
}

/// The load: sizes, depth, and times.
#[derive(Clone, Debug)]
struct Load {
    sizes: Vec<u64>,
    depth: u64,
    warm: u64,
    measured: u64,
}

impl Load {
    fn new(parameters: &Parameters, others: u64) -> Result<Self, DsaError> {
        let tenants = parameters.get("tenants")? as usize;
        let mut sizes = vec![others; tenants.max(1)];
        sizes[0] = SHORT;
        let time = |name| parameters.get(name).map(|micros| (micros * 1e6) as u64);
        Ok(Self {
            sizes,
            depth: parameters.get("tenant-depth")? as u64,
            warm: time("tenant-warm")?,
            measured: time("tenant-measured")?,
        })
    }
}

/// Counts what ends within the measured time.
struct Meter {
    from: Instant,
    until: Instant,
    done: Vec<Done>,
}

impl Meter {
    fn new(load: &Load, now: Instant) -> Self {
        let from = now.after_picoseconds(load.warm.into());
        let until = from.after_picoseconds(load.measured.into());
        Self { from, until, done: vec![Done::default(); load.sizes.len()] }
    }

    fn ended(&mut self, load: &Load, tenant: usize, (since, now): (Instant, Instant)) {
        if now >= self.from {
            let done = &mut self.done[tenant];
            done.bytes += load.sizes[tenant];
            done.times.push((now.picoseconds() - since.picoseconds()) as u64);
        }
    }
}

/// Tenants that submit to the device themselves.
fn direct(parameters: &Parameters, load: &Load, own_queues: bool, seed: u64) -> Result<Vec<Done>, DsaError> {
    let tenants = load.sizes.len();
    let queues = if own_queues { tenants as u8 } else { 1 };
    let setup = Setup { engines: ENGINES, queues, shared: !own_queues };
    let mut machine = Machine::new(Timing { burst_lines: BURST_LINES, ..timing(parameters)? }, &setup)?;
    let mut drivers = Vec::new();
    for tenant in 0..tenants {
        let queue = if own_queues { tenant as u8 } else { 0 };
        let driver: Queue<ModelPortal, RamWords, SLOTS> = machine.queue(queue, tenant as u64, (0, 0))?;
        drivers.push((driver, VecDeque::<(Ticket, Instant)>::new()));
    }
    let mut now = machine.now();
    let mut meter = Meter::new(load, now);
    let mut rng = Rng::new(seed);
    let mut moves = 0;
    while now < meter.until {
        let first = rng.below(tenants as u64) as usize;
        for step in 0..tenants {
            let tenant = (first + step) % tenants;
            let (driver, flight) = &mut drivers[tenant];
            while let Some(completion) = driver.poll() {
                if !matches!(completion.outcome, Outcome::Done(_)) {
                    return Err(DsaError::Ended(format!("{:?}", completion.outcome)));
                }
                if let Some(at) = flight.iter().position(|(ticket, _)| *ticket == completion.ticket)
                    && let Some((_, since)) = flight.remove(at)
                {
                    meter.ended(load, tenant, (since, now));
                }
            }
            while (flight.len() as u64) < load.depth {
                match driver.submit(&Move::new(nth_move(moves, load.sizes[tenant]))) {
                    Ok(ticket) => flight.push_back((ticket, now)),
                    // There is room again after some event of the device.
                    Err(SubmitError::Busy { .. } | SubmitError::NoEntry { .. }) => break,
                    Err(error) => return Err(error.into()),
                }
                moves += 1;
            }
        }
        now = now.max(machine.next_wake().ok_or(DsaError::Stalled)?);
        machine.advance(now);
    }
    Ok(meter.done)
}

type Engine = DsaEngine<Device, ModelPortal, RamWords, Present>;

/// A tenant of the service.
struct Tenant {
    queue: QueueKey,
    frame: Handle,
    /// When each outstanding request was submitted, by its tag.
    flight: VecDeque<(u64, Instant)>,
    submitted: u64,
}

/// Tenants behind the service.
fn served(
    parameters: &Parameters,
    load: &Load,
    policy: PolicyKind,
    chunk: Option<u64>,
) -> Result<Vec<Done>, DsaError> {
    let setup = Setup { engines: ENGINES, queues: 1, shared: false };
    let mut machine = Machine::new(Timing { burst_lines: BURST_LINES, ..timing(parameters)? }, &setup)?;
    let queue: Queue<ModelPortal, RamWords, DSA_SLOTS> = machine.queue(0, 0, (4, 16))?;
    let control = DsaRegisters::new(machine.device.clone(), 0, TIMEOUT);
    let defaults = DsaOptions::default();
    let options = DsaOptions { chunk_bytes: chunk.unwrap_or(defaults.chunk_bytes), ..defaults };
    let engine: Engine = DsaEngine::new(control, queue, Present, CHANNELS, options);
    let limits = PathLimits { waiting_per_user: load.depth as usize };
    let mut path = Path::new(engine, policy.build(), limits);
    let mut capabilities = Capabilities::new(2 * load.sizes.len());
    let mut tenants = Vec::new();
    for index in 0..load.sizes.len() {
        let session = SessionId(index as u64 + 1);
        let memory = BusMemory::new(BASE as u32, 2 * AREA).ok_or(DsaError::NoQueue)?;
        let frame = capabilities.register(session, memory, Rights::all())?;
        let queue = path.open_queue(session, index as u32);
        tenants.push(Tenant { queue, frame, flight: VecDeque::new(), submitted: 0 });
    }
    let mut now = machine.now();
    let mut meter = Meter::new(load, now);
    while now < meter.until {
        for (tenant, bytes) in tenants.iter_mut().zip(&load.sizes) {
            submit_due(&mut path, &mut capabilities, tenant, (*bytes, load.depth), now);
        }
        loop {
            path.ring_doorbell();
            let more = path.run(now);
            let settled = path.must_settle() && path.settle(now, &mut capabilities);
            if !more && !settled {
                break;
            }
        }
        let ended: Vec<_> = path.take_completions().collect();
        let any = !ended.is_empty();
        for one in ended {
            one.completion.outcome.result.map_err(DsaError::Failed)?;
            let Some(index) = tenants.iter().position(|tenant| tenant.queue == one.queue) else { continue };
            let flight = &mut tenants[index].flight;
            if let Some(at) = flight.iter().position(|(tag, _)| *tag == one.completion.tag)
                && let Some((_, since)) = flight.remove(at)
            {
                meter.ended(load, index, (since, now));
            }
        }
        // What ended is replaced at once.
        if !any {
            now = now.max(path.next_wake().ok_or(DsaError::Stalled)?);
            machine.advance(now);
        }
    }
    Ok(meter.done)
}

/// Keeps a tenant's requests outstanding.
fn submit_due(
    path: &mut Path<Engine>,
    capabilities: &mut Capabilities<BusMemory>,
    tenant: &mut Tenant,
    (bytes, depth): (u64, u64),
    now: Instant,
) {
    while (tenant.flight.len() as u64) < depth {
        let Some(room) = path.reserve(tenant.queue, u32::MAX) else { return };
        let at = tenant.submitted % (AREA / bytes) * bytes;
        let request = Request::copy(Span::new(tenant.frame, at), Span::new(tenant.frame, AREA + at), bytes);
        tenant.flight.push_back((tenant.submitted, now));
        path.submit(now, room, tenant.submitted, &request, capabilities);
        tenant.submitted += 1;
    }
}

fn run(parameters: &Parameters, settings: &Settings, others: u64, seed: u64) -> Result<Vec<Done>, DsaError> {
    let load = Load::new(parameters, others)?;
    match settings.way {
        Between::SharedQueue => direct(parameters, &load, false, seed),
        Between::OwnQueues => direct(parameters, &load, true, seed),
        Between::Service => served(parameters, &load, settings.policy.unwrap_or_default(), settings.chunk),
    }
}

/// The first tenant's part of its fair share, in percent.
fn share(done: &[Done]) -> f64 {
    let all: u64 = done.iter().map(|one| one.bytes).sum();
    let first = done.first().map_or(0, |one| one.bytes);
    100.0 * first as f64 * done.len() as f64 / all.max(1) as f64
}

/// The 99th percentile of the first tenant's times, in microseconds; `None` if none of its requests ended.
fn p99(done: &[Done]) -> Option<f64> {
    let mut times = done.first()?.times.clone();
    times.sort_unstable();
    let at = (times.len() * 99 / 100).min(times.len().checked_sub(1)?);
    times.get(at).map(|picoseconds| *picoseconds as f64 / 1e6)
}

/// A line over the size of the others' requests.
pub(super) fn line(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let settings: Settings = line.settings()?;
    let mut points = Vec::new();
    for x in line.plan.points() {
        let done = run(line.parameters, &settings, x as u64, line.plan.seed);
        let done = done.map_err(|error| line.failed(error))?;
        let y = match settings.of {
            Quantity::Share => Some(share(&done)),
            Quantity::P99 => p99(&done),
        };
        points.extend(y.map(|y| (x, y)));
    }
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

#[cfg(test)]
mod tests;
