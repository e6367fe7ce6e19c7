//! Group `policy`: how policies divide a service among clients that always have requests outstanding.
//!
//! ```text
//! round ─ for each policy: Client::set_policy ─ warm up ─ clients submit and poll for an interval ─► bytes, latencies
//! ```
//!
//! All clients are sessions of this process and thread, on CPU 0; the service's only worker runs on CPU 1. A client
//! waits only for its turn. Latencies run from submission until the completion is seen, and policies are
//! compared within a round. Slices are 9 of every 12 ms: a wake-up costs some 35 us here.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memferry::{
    Client, Done, Failure, Frame, PolicyKind, PolicySettings, PriorityClass, Queue, TicketId, TransferError,
    copy,
};

use crate::BenchError;
use crate::children::Service;
use crate::placement::{Pinned, steady};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::random_bytes;

const ROUNDS: usize = 7;
/// Each client cycles through its frames: more than the worker's second-level cache.
const FRAME_BYTES: u64 = 16 << 20;
const WARM_UP: Duration = Duration::from_millis(20);
const INTERVAL: Duration = Duration::from_millis(400);
/// Bytes per second per user under the rate limit.
const RATE: u64 = 500_000_000;
/// Deadline of requests under the deadline policy.
const DEADLINE: Duration = Duration::from_millis(10);

/// The requests of a client.
#[derive(Clone, Copy)]
struct Load {
    class: PriorityClass,
    depth: usize,
    bytes: u64,
    deadline: bool,
}

const LOW: Load = Load { class: PriorityClass::Low, depth: 4, bytes: 1 << 20, deadline: false };
const NORMAL: Load = Load { class: PriorityClass::Normal, ..LOW };
const HIGH: Load = Load { class: PriorityClass::High, ..LOW };
const HASTY: Load = Load { class: PriorityClass::High, depth: 1, bytes: 64 << 10, deadline: false };

struct Member {
    queue: Queue,
    source: Frame,
    destination: Frame,
    next: u64,
    sent: BTreeMap<TicketId, Instant>,
}

/// A client's results in an interval.
#[derive(Default)]
struct Totals {
    bytes: u64,
    latencies: Vec<f64>,
    refused: usize,
    late: usize,
}

impl Totals {
    fn percentile(&mut self, percent: usize) -> f64 {
        self.latencies.sort_by(f64::total_cmp);
        let index = self.latencies.len() * percent / 100;
        self.latencies.get(index.min(self.latencies.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }
}

impl Member {
    fn new(service: &Service) -> Result<(Client, Self), BenchError> {
        let client = Client::connect(service.socket())?;
        let source = client.frame(FRAME_BYTES).alloc()?;
        let destination = client.frame(FRAME_BYTES).alloc()?;
        source.write(0, &random_bytes(FRAME_BYTES as usize, 17))?;
        destination.write(0, &random_bytes(FRAME_BYTES as usize, 19))?;
        let queue = client.queue(64)?;
        Ok((client, Self { queue, source, destination, next: 0, sent: BTreeMap::new() }))
    }

    /// Counts a completion; failures other than missed deadlines are errors.
    fn take(
        &mut self,
        completion: Result<Done<u64>, TransferError>,
        totals: &mut Totals,
    ) -> Result<(), BenchError> {
        let (id, bytes) = match &completion {
            Ok(done) => (done.id, done.bytes_done),
            Err(error) => (error.id, error.bytes_done),
        };
        let sent = self.sent.remove(&id).ok_or("received a completion without a request")?;
        totals.bytes += bytes;
        match completion {
            Ok(_) => totals.latencies.push(sent.elapsed().as_secs_f64() * 1e6),
            Err(TransferError { failure: Failure::DeadlineUnreachable, .. }) => totals.refused += 1,
            Err(TransferError { failure: Failure::DeadlineExceeded, .. }) => totals.late += 1,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Takes completions and submits as many new requests.
    fn turn(&mut self, load: &Load, totals: &mut Totals) -> Result<(), BenchError> {
        while let Some(completion) = self.queue.poll() {
            self.take(completion, totals)?;
        }
        while self.sent.len() < load.depth {
            self.next = (self.next + load.bytes) % (FRAME_BYTES - load.bytes);
            let at = self.next & !63;
            let copy =
                copy(self.source.slice(at..at + load.bytes), self.destination.slice(at..at + load.bytes));
            let mut copy = copy.with_class(load.class);
            if load.deadline {
                copy = copy.within(DEADLINE);
            }
            let ticket = self.queue.submit(copy)?;
            self.sent.insert(ticket.id(), Instant::now());
        }
        Ok(())
    }

    /// Takes completions until nothing is outstanding.
    fn drain(&mut self) -> Result<(), BenchError> {
        let mut totals = Totals::default();
        while !self.sent.is_empty() {
            let completion = self.queue.wait_any().transpose().ok_or("a transfer was lost")?;
            self.take(completion, &mut totals)?;
        }
        Ok(())
    }
}

/// A service with its clients.
struct Bench {
    admin: Client,
    members: Vec<Member>,
    _clients: Vec<Client>,
    _service: Service,
}

impl Bench {
    fn new(run: &Run, members: usize) -> Result<Self, BenchError> {
        let service = Service::start(run)?;
        let admin = Client::connect(service.socket())?;
        let made = (0..members).map(|_| Member::new(&service)).collect::<Result<Vec<_>, _>>()?;
        let (clients, members) = made.into_iter().unzip();
        Ok(Self { admin, members, _clients: clients, _service: service })
    }

    /// Results of the clients with these loads under a policy.
    fn measure_interval(
        &mut self,
        settings: PolicySettings,
        loads: &[Load],
    ) -> Result<Vec<Totals>, BenchError> {
        self.admin.set_policy(settings)?;
        let mut totals = Vec::new();
        for duration in [WARM_UP, INTERVAL] {
            let started = Instant::now();
            totals = loads.iter().map(|_| Totals::default()).collect();
            while started.elapsed() < duration {
                for ((member, load), totals) in self.members.iter_mut().zip(loads).zip(&mut totals) {
                    member.turn(load, totals)?;
                }
            }
        }
        self.members.iter_mut().try_for_each(Member::drain)?;
        Ok(totals)
    }
}

/// Jain's fairness index: 1 if all are equal.
fn jain(totals: &[Totals]) -> f64 {
    let bytes: Vec<f64> = totals.iter().map(|totals| totals.bytes as f64).collect();
    let (sum, squares): (f64, f64) =
        bytes.iter().fold((0.0, 0.0), |(sum, squares), bytes| (sum + bytes, squares + bytes * bytes));
    sum * sum / (bytes.len() as f64 * squares)
}

/// Worst deviation of a share from its weight, in per cent of the share.
fn worst_deviation(totals: &[Totals], weights: &[u32]) -> f64 {
    let total: f64 = totals.iter().map(|totals| totals.bytes as f64).sum();
    let weight = f64::from(weights.iter().sum::<u32>());
    let each = totals.iter().zip(weights).map(|(totals, own)| {
        let share = totals.bytes as f64 / total;
        100.0 * (share / (f64::from(*own) / weight) - 1.0).abs()
    });
    each.fold(0.0, f64::max)
}

/// Figures of all rounds, by name, in the order of their first value.
#[derive(Default)]
struct Figures(Vec<(&'static str, &'static str, Target, Vec<f64>)>);

impl Figures {
    fn add(&mut self, name: &'static str, unit: &'static str, target: Target, value: f64) {
        match self.0.iter_mut().find(|figure| figure.0 == name) {
            Some(figure) => figure.3.push(value),
            None => self.0.push((name, unit, target, vec![value])),
        }
    }

    fn rows(self) -> Vec<Row> {
        self.0.into_iter().map(|(name, unit, target, values)| Row::new(name, unit, target, &values)).collect()
    }
}

/// A part: its name and one round of it.
type Part = (&'static str, fn(&mut Bench, &mut Figures) -> Result<(), BenchError>);

const PARTS: [Part; 3] = [("latencies", latencies), ("shares", shares), ("limits", limits)];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.map(|(name, _)| name))?;
    steady(run, "policy", |_| measure_parts(run))
}

fn measure_parts(run: &Run) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("policy", ROUNDS);
    let mut bench = Bench::new(run, 5)?;
    let _pinned = Pinned::to(0)?;
    let mut figures = Figures::default();
    for _ in 0..rounds {
        for (_, part) in PARTS.iter().filter(|(name, _)| run.wants(name)) {
            part(&mut bench, &mut figures)?;
        }
        run.round_done();
    }
    if run.wants("latencies") {
        let status = bench.admin.status()?;
        figures.add("priority: slices that began", "", Target::AtLeast(1.0), status.slices as f64);
        let name = "priority: bytes of suspended requests that moved in a slice";
        figures.add(name, "bytes", Target::AtMost(0.0), status.strayed_bytes as f64);
    }
    Ok(figures.rows())
}

/// A high-class client with short requests, beside three that saturate the worker with long ones.
fn latencies(bench: &mut Bench, figures: &mut Figures) -> Result<(), BenchError> {
    let loads = [HASTY, LOW, LOW, LOW];
    let shared = &mut bench.measure_interval(PolicySettings::of(PolicyKind::Shared), &loads)?;
    let priority = &mut bench.measure_interval(PolicySettings::of(PolicyKind::Priority), &loads)?;
    let moved = |totals: &[Totals]| totals[1..].iter().map(|totals| totals.bytes as f64).sum::<f64>();
    let low = moved(priority) / moved(shared);
    let old = &mut shared[0];
    let new = &mut priority[0];
    let name = "high class, 64 KiB beside 12 of 1 MiB: p99 shared / p99 priority";
    figures.add(name, "x", Target::AtLeast(5.0), old.percentile(99) / new.percentile(99));
    let name = "the same, p50 shared / p50 priority";
    figures.add(name, "x", Target::None, old.percentile(50) / new.percentile(50));
    figures.add("p99 under shared", "us", Target::None, old.percentile(99));
    figures.add("p99 under priority", "us", Target::None, new.percentile(99));
    let name = "bytes of the low class, priority / shared (a slice is 3/4 of a period)";
    figures.add(name, "x", Target::None, low);
    Ok(())
}

/// Clients that all saturate the worker.
fn shares(bench: &mut Bench, figures: &mut Figures) -> Result<(), BenchError> {
    let equal = bench.measure_interval(PolicySettings::of(PolicyKind::Shared), &[NORMAL; 5])?;
    figures.add("five equal clients under shared: Jain's index", "", Target::None, jain(&equal));
    let equal = bench.measure_interval(PolicySettings::of(PolicyKind::Weighted), &[NORMAL; 5])?;
    figures.add("five equal clients under weighted: Jain's index", "", Target::AtLeast(0.99), jain(&equal));
    let settings = PolicySettings::of(PolicyKind::Weighted);
    let weights = settings.class_weights;
    let weighed = bench.measure_interval(settings, &[LOW, NORMAL, HIGH])?;
    let name = "weights 1, 2, 4: the share that is furthest off";
    figures.add(name, "%", Target::AtMost(2.0), worst_deviation(&weighed, &weights));
    Ok(())
}

/// A rate-limited user, and deadlines.
fn limits(bench: &mut Bench, figures: &mut Figures) -> Result<(), BenchError> {
    let limited = PolicySettings {
        rate_bytes_per_second: RATE,
        burst_bytes: 1 << 20,
        ..PolicySettings::of(PolicyKind::RateLimit)
    };
    let totals = bench.measure_interval(limited, &[NORMAL; 3])?;
    let moved = totals.iter().map(|totals| totals.bytes as f64).sum::<f64>();
    let allowed = RATE as f64 * INTERVAL.as_secs_f64();
    figures.add("rate limit: moved / allowed", "x", Target::AtMost(1.05), moved / allowed);
    let dated = Load { deadline: true, depth: 16, ..NORMAL };
    let totals = bench.measure_interval(PolicySettings::of(PolicyKind::Deadline), &[dated, dated, NORMAL])?;
    let late: usize = totals.iter().map(|totals| totals.late).sum();
    let kept: usize = totals[..2].iter().map(|totals| totals.latencies.len()).sum();
    let refused: usize = totals[..2].iter().map(|totals| totals.refused).sum();
    let missed = 100.0 * late as f64 / (late + kept).max(1) as f64;
    let name = "deadline: promised 10 ms and missed, of those accepted";
    figures.add(name, "%", Target::AtMost(0.0), missed);
    let name = "deadline: refused, of all asked";
    figures.add(name, "%", Target::None, 100.0 * refused as f64 / (refused + late + kept).max(1) as f64);
    Ok(())
}
