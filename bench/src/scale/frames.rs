//! Parts `frames` and `depth`: many frames of a client, and frames derived many times.
//!
//! ```text
//! round, for each number of frames: 64 B between random ones of ten ─ of the many: round trip, in batches of 32, embedded
//! round, for each depth: 64 B from a frame derived once ─ from one derived often
//! then every frame is given back by itself; the root of the derived ones is revoked
//! ```
//!
//! The services are embedded, so that registering a million frames takes seconds. Round trips and batches go through the ring to the
//! worker all the same, because staged requests do.

use std::time::Instant;

use fastrand::Rng;
use memferry::{Client, Frame, Queue, Rights, copy};

use super::{BATCH, Probe, ROUNDS, grouped, take};
use crate::BenchError;
use crate::children::{WORKER, roomy};
use crate::placement::{Pinned, pin_threads};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{each_ns, random_bytes, since_ns};

const FEW: usize = 10;
/// Numbers of frames. Beyond 10,000 the bytes themselves lie in no cache, so there is no target.
const MANY: [(usize, Target); 4] = [
    (1000, Target::AtMost(2.0)),
    (10_000, Target::AtMost(2.0)),
    (100_000, Target::None),
    (1_000_000, Target::None),
];
const QUICK_MOST: usize = 10_000;
const DEPTHS: [usize; 4] = [10, 100, 1000, 10_000];
const BYTES: usize = 64;
/// Most that giving one frame back may take, us.
const GIVE_BACK_US: f64 = 2.0;
const WAYS: [&str; 3] = ["round trip", "in batches of 32", "embedded"];

/// An embedded client with frames of 64 bytes.
struct Owner {
    probe: Probe,
    frames: Vec<Frame>,
    /// Microseconds in which each was registered.
    registered: f64,
    random: Rng,
}

/// A service of its own in this process, its worker on CPU 1.
fn embedded() -> Result<Client, BenchError> {
    let client = Client::embedded_with(roomy())?;
    pin_threads(std::process::id(), WORKER, 1)?;
    Ok(client)
}

impl Owner {
    fn new(count: usize) -> Result<Self, BenchError> {
        let client = embedded()?;
        let bytes = random_bytes(BYTES, 23);
        let started = Instant::now();
        let frames =
            (0..count).map(|_| client.register_owned(bytes.clone())).collect::<Result<Vec<_>, _>>()?;
        let registered = since_ns(started) / 1000.0 / count as f64;
        Ok(Self { probe: Probe::new(client)?, frames, registered, random: Rng::with_seed(29) })
    }

    /// Nanoseconds of a copy between two random frames in each of the [`WAYS`].
    fn times(&mut self) -> Result<[f64; 3], BenchError> {
        let Self { probe, frames, random, .. } = self;
        let mut pair = || (random.usize(..frames.len()), random.usize(..frames.len()));
        probe.wake()?;
        let mut staged = |queue: &mut Queue, count: usize| -> Result<(), BenchError> {
            for _ in 0..count {
                let (from, to) = pair();
                let _taken = queue.stage(copy(&frames[from], &frames[to]))?;
            }
            queue.publish();
            take(queue, count)
        };
        let alone = each_ns(500, || staged(&mut probe.queue, 1))?;
        let batch = each_ns(30, || staged(&mut probe.queue, BATCH))? / BATCH as f64;
        let here = each_ns(2000, || {
            let (from, to) = pair();
            probe.queue.run(copy(&frames[from], &frames[to]))?;
            Ok(())
        })?;
        Ok([alone, batch, here])
    }
}

/// Copies between random frames of many, against those of ten.
pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let mut few = Owner::new(FEW)?;
    let mut rows = Vec::new();
    for (count, target) in MANY.into_iter().filter(|(count, _)| !run.quick() || *count <= QUICK_MOST) {
        let mut many = Owner::new(count)?;
        let rounds = run.part("frames", ROUNDS);
        let mut ratios = [const { Vec::new() }; WAYS.len()];
        let mut times = [const { Vec::new() }; WAYS.len()];
        {
            let _pinned = Pinned::to(0)?;
            for _ in 0..rounds {
                let little = few.times()?;
                let much = many.times()?;
                for way in 0..WAYS.len() {
                    ratios[way].push(much[way] / little[way]);
                    times[way].push(much[way]);
                }
                run.round_done();
            }
        }
        for ((way, ratios), times) in WAYS.into_iter().zip(&ratios).zip(&times) {
            let name = format!("64 B between random ones of {} frames, {way}", grouped(count));
            rows.push(Row::new(name.as_str(), "ns", Target::None, times));
            rows.push(Row::new(format!("{name}, against 10 frames"), "ratio", target, ratios));
        }
        rows.extend(give_back(many)?);
    }
    Ok(rows)
}

/// Gives all frames back one by one.
fn give_back(owner: Owner) -> Result<[Row; 2], BenchError> {
    let Owner { frames, probe, registered, .. } = owner;
    let count = frames.len();
    let _pinned = Pinned::to(0)?;
    let started = Instant::now();
    for frame in frames {
        drop(frame);
    }
    let each = since_ns(started) / 1000.0 / count as f64;
    drop(probe);
    let name = |what| format!("{what} of {} frames, one by one, each", grouped(count));
    Ok([
        Row::new(name("registering"), "us", Target::None, &[registered]),
        Row::new(name("giving back"), "us", Target::AtMost(GIVE_BACK_US), &[each]),
    ])
}

/// A chain of derived frames, each the only child of the one before.
struct Chain {
    probe: Probe,
    root: Frame,
    last: Frame,
    /// Microseconds in which each was derived.
    derived: f64,
    destination: Frame,
}

impl Chain {
    fn new(depth: usize) -> Result<Self, BenchError> {
        let client = embedded()?;
        let root = client.register_owned(random_bytes(4096, 31))?;
        let destination = client.register_owned(random_bytes(4096, 37))?;
        let started = Instant::now();
        let mut last = root.clone();
        for _ in 0..depth {
            last = client.derive(&last, Rights::READ)?;
        }
        let derived = since_ns(started) / 1000.0 / depth as f64;
        Ok(Self { probe: Probe::new(client)?, root, last, derived, destination })
    }

    fn copy_ns(&mut self) -> Result<f64, BenchError> {
        let source = self.last.slice(..BYTES as u64);
        let destination = self.destination.slice(..BYTES as u64);
        each_ns(2000, || {
            self.probe.queue.run(copy(&source, &destination))?;
            Ok(())
        })
    }
}

/// Copies from frames that were derived often, against one that was derived once.
pub(super) fn depth(run: &Run) -> Result<Vec<Row>, BenchError> {
    let mut shallow = Chain::new(1)?;
    let mut rows = Vec::new();
    for depth in DEPTHS {
        let mut deep = Chain::new(depth)?;
        let _pinned = Pinned::to(0)?;
        let rounds = run.part("depth", ROUNDS);
        let mut ratios = Vec::new();
        for _ in 0..rounds {
            let little = shallow.copy_ns()?;
            ratios.push(deep.copy_ns()? / little);
            run.round_done();
        }
        let started = Instant::now();
        deep.root.revoke()?;
        let revoked = since_ns(started) / 1000.0 / depth as f64;
        let name = format!("frame derived {} times", grouped(depth));
        rows.push(Row::new(
            format!("{name}, 64 B embedded, against one derived once"),
            "ratio",
            Target::AtMost(1.5),
            &ratios,
        ));
        rows.push(Row::new(format!("{name}: deriving, each"), "us", Target::None, &[deep.derived]));
        rows.push(Row::new(format!("{name}: revoking the root, for each"), "us", Target::None, &[revoked]));
    }
    Ok(rows)
}
