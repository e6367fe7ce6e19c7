//! Starting transfers: submissions, batches and round trips, against a system call, the socket and a C twin of the ring.
//!
//! ```text
//! round: submit behind work ─ getpid ─ NOP round trips ─ batches of 32 ─ 64 B moved and read ─ requests over the socket
//!        ─ each design of the C twin
//! ```
//!
//! The service runs in its own process, and both sides are awake. "Moved and touched" means that the client then reads
//! the bytes. Both clients poll. Waking a parked worker is not measured here.

use std::hint::black_box;
use std::time::Instant;

use memferry::{Client, Queue, copy, nop};

use crate::BenchError;
use crate::children::Service;
use crate::pair::{Pair, Reader, ask_over_socket, drain, poll_for};
use crate::placement::{Class, Pinned};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::service::twin::Twin;
use crate::timing::{Work, each_ns, median, since_ns};

const ROUNDS: usize = 41;
const BATCH: usize = 32;
/// Submissions before completions are taken.
const BURST: usize = 256;
/// Bursts measured in each round.
const BURSTS: usize = 8;
/// Computing time between two submissions, ns.
const BETWEEN_NS: f64 = 400.0;

struct Sides {
    pair: Pair,
    /// A queue with room for a burst.
    wide: Queue,
    reader: Reader,
    /// Turns of work that take [`BETWEEN_NS`].
    turns: u64,
}

/// Times of a round, ns.
struct Measured {
    submit: f64,
    /// `getpid` as programs call it, by the C library.
    call: f64,
    /// The same system call without the library.
    bare: f64,
    nop: f64,
    staging: f64,
    batch: f64,
    small: f64,
    socket: f64,
}

impl Sides {
    /// Nanoseconds that a submission adds to a program that computes for 400 ns between two, in registers only. Stores of a
    /// submission overlap with the following code, so timing a submission alone would overstate its cost.
    /// Completions are taken outside the timed part. An idle worker falls asleep meanwhile, so it is woken first.
    fn submit_behind_work(&mut self) -> Result<f64, BenchError> {
        let mut added = Vec::with_capacity(BURSTS);
        for _ in 0..BURSTS {
            let alone = each_ns(BURST, || {
                Work::run(self.turns);
                Ok(())
            })?;
            self.pair.wake()?;
            let with = each_ns(BURST, || {
                let _drained = self.wide.submit(nop())?;
                Work::run(self.turns);
                Ok(())
            })?;
            drain(&mut self.wide)?;
            added.push(with - alone);
        }
        Ok(median(&added))
    }

    /// Nanoseconds per request until a batch is submitted, and until all of it has completed.
    fn batch(&mut self) -> Result<(f64, f64), BenchError> {
        let mut submitting = Vec::new();
        let mut all = Vec::new();
        for _ in 0..50 {
            let started = Instant::now();
            self.pair.queue.submit_batch((0..BATCH).map(|_| nop()))?;
            submitting.push(since_ns(started) / BATCH as f64);
            let mut taken = 0;
            while taken < BATCH {
                if let Some(completion) = self.pair.queue.poll() {
                    completion?;
                    taken += 1;
                }
            }
            all.push(since_ns(started) / BATCH as f64);
        }
        Ok((median(&submitting), median(&all)))
    }

    fn round(&mut self) -> Result<Measured, BenchError> {
        self.pair.wake()?;
        let submit = self.submit_behind_work()?;
        self.pair.wake()?;
        let call = each_ns(2000, || {
            black_box(std::process::id());
            Ok(())
        })?;
        let bare = each_ns(2000, || {
            black_box(rustix::process::getpid());
            Ok(())
        })?;
        self.pair.wake()?;
        let nop = each_ns(1000, || {
            let ticket = self.pair.queue.submit(nop())?;
            poll_for(&mut self.pair.queue, ticket)
        })?;
        let (staging, batch) = self.batch()?;
        let small = each_ns(1000, || {
            let (source, destination) = self.pair.ranges(64);
            let ticket = self.pair.queue.submit(copy(&source, &destination))?;
            poll_for(&mut self.pair.queue, ticket)?;
            self.reader.frame(&self.pair.destination, 64)
        })?;
        let socket = each_ns(50, || ask_over_socket(&self.pair.client))?;
        Ok(Measured { submit, call, bare, nop, staging, batch, small, socket })
    }
}

pub(crate) fn measure(run: &Run, class: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("start", ROUNDS);
    let service = Service::start(run)?;
    let _pinned = Pinned::to(0)?;
    let client = Client::connect(service.socket())?;
    let wide = client.queue(BURST as u32)?;
    let pair = Pair::new(client, 1 << 16)?;
    let turns = Work::calibrated().turns(BETWEEN_NS);
    let mut sides = Sides { pair, wide, reader: Reader::new(), turns };
    // The service's worker sleeps during a round of the twin, and the other way round.
    let mut twin = Twin::start(run, class);
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(sides.round()?);
        twin.round();
        run.round_done();
    }
    let mut rows = rows(class, &measured);
    rows.extend(twin.rows(&measured.iter().map(|round| round.batch).collect::<Vec<_>>()));
    Ok(rows)
}

fn rows(class: Class, measured: &[Measured]) -> Vec<Row> {
    let of = |value: fn(&Measured) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    // Two cache lines go each way: across complexes that alone takes longer than the system call.
    let (nop, small) = match class {
        Class::Same | Class::OneCore | Class::OneCpu => (1.1, Target::AtMost(1.2)),
        Class::Across | Class::Any => (3.5, Target::None),
    };
    let ns = |name: &str, target, value| Row::new(name, "ns", target, &of(value));
    let ratio = |name: &str, target, value| Row::new(name, "ratio", target, &of(value));
    let place = class.name();
    vec![
        ns("getpid", Target::None, |m| m.call),
        ns("its system call, inlined", Target::None, |m| m.bare),
        ns("submit, added to a program that works 400 ns between two", Target::AtMost(10.0), |m| m.submit),
        ns("submit_batch of 32, each, until it returns", Target::None, |m| m.staging),
        ns("NOP in batches of 32, each, end to end", Target::AtMost(25.0), |m| m.batch),
        ns("NOP round trip, both awake", Target::None, |m| m.nop),
        ratio(&format!("NOP round trip, both awake, against getpid, {place}"), Target::AtMost(nop), |m| {
            m.nop / m.call
        }),
        ratio("64 B moved and touched, against getpid", small, |m| m.small / m.call),
        ratio("a request over the socket, against a NOP through the ring", Target::AtLeast(20.0), |m| {
            m.socket / m.nop
        }),
    ]
}
