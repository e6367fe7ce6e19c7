//! Parts `frames` and `depth`: many frames of a client, and frames derived many times.
//!
//! ```text
//! round, for each number of frames: 64 B between random ones of ten ─ of the many: round trip, in batches of 32, embedded,
//!                                    and plain copies between as many buffers of this program, in the order of the embedded ones
//! then every frame is given back by itself, and those of two more owners
//! round, for each depth: 64 B from a frame derived once ─ from one derived often; then the root is revoked
//! ```
//!
//! Among many buffers a plain copy is slower, too, because they do not fit the near caches. So the time that 10,000 frames add is
//! judged against the time that as many buffers add.
//!
//! The services are embedded, so that registering a million frames takes seconds. Round trips and batches go through the ring to the
//! worker all the same, because staged requests do.

use std::hint::black_box;
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
/// Numbers of frames, the target of their copies against those of [`FEW`], and that of the time that they add against the time that
/// as many buffers add. A frame has four cache lines where a buffer has one: two in the client, the entry of the table, and the
/// bytes. 1,000 frames fit the near caches; 100,000 fit none.
const MANY: [(usize, Target, Target); 4] = [
    (1000, Target::AtMost(2.0), Target::None),
    (10_000, Target::None, Target::AtMost(4.0)),
    (100_000, Target::None, Target::None),
    (1_000_000, Target::None, Target::None),
];
const QUICK_MOST: usize = 10_000;
const DEPTHS: [usize; 4] = [10, 100, 1000, 10_000];
const BYTES: usize = 64;
/// Embedded copies of a round, and plain ones.
const HERE: usize = 2000;
/// Most that giving one frame back may take, us.
const GIVE_BACK_US: f64 = 2.0;
/// Owners that give all their frames back.
const OWNERS: usize = 3;
const WAYS: [&str; 3] = ["round trip", "in batches of 32", "embedded"];

/// An embedded client with frames of 64 bytes, and as many buffers.
struct Owner {
    probe: Probe,
    frames: Vec<Frame>,
    buffers: Vec<Vec<u8>>,
    /// Microseconds in which each frame was registered.
    registered: f64,
    random: Rng,
}

/// Nanoseconds of a copy between two random frames in each of the [`WAYS`], and of one between buffers.
struct Times {
    frames: [f64; 3],
    buffers: f64,
}

/// Values of the rounds.
#[derive(Default)]
struct Measured {
    times: [Vec<f64>; WAYS.len()],
    ratios: [Vec<f64>; WAYS.len()],
    buffers: Vec<f64>,
    buffer_ratios: Vec<f64>,
    /// What many frames add to an embedded copy, against what many buffers add to a plain one.
    added: Vec<f64>,
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
        let buffers = (0..count).map(|_| bytes.clone()).collect();
        Ok(Self { probe: Probe::new(client)?, frames, buffers, registered, random: Rng::with_seed(29) })
    }

    fn times(&mut self) -> Result<Times, BenchError> {
        let Self { probe, frames, buffers, random, .. } = self;
        let pair = |random: &mut Rng| (random.usize(..frames.len()), random.usize(..frames.len()));
        probe.wake()?;
        let mut staged = |queue: &mut Queue, count: usize| -> Result<(), BenchError> {
            for _ in 0..count {
                let (from, to) = pair(random);
                let _taken = queue.stage(copy(&frames[from], &frames[to]))?;
            }
            queue.publish();
            take(queue, count)
        };
        let alone = each_ns(500, || staged(&mut probe.queue, 1))?;
        let batch = each_ns(30, || staged(&mut probe.queue, BATCH))? / BATCH as f64;
        let mut order = random.clone();
        let here = each_ns(HERE, || {
            let (from, to) = pair(random);
            probe.queue.run(copy(&frames[from], &frames[to]))?;
            Ok(())
        })?;
        let mut bytes = [0; BYTES];
        let plain = each_ns(HERE, || {
            let (from, to) = pair(&mut order);
            bytes.copy_from_slice(&buffers[from]);
            buffers[to].copy_from_slice(black_box(&bytes));
            Ok(())
        })?;
        Ok(Times { frames: [alone, batch, here], buffers: plain })
    }

    /// Gives all frames back one by one. Returns the microseconds of each.
    fn give_back(self) -> Result<f64, BenchError> {
        let count = self.frames.len();
        let _pinned = Pinned::to(0)?;
        let started = Instant::now();
        for frame in self.frames {
            drop(frame);
        }
        Ok(since_ns(started) / 1000.0 / count as f64)
    }
}

impl Measured {
    fn add(&mut self, little: &Times, much: &Times) {
        for way in 0..WAYS.len() {
            self.times[way].push(much.frames[way]);
            self.ratios[way].push(much.frames[way] / little.frames[way]);
        }
        self.buffers.push(much.buffers);
        self.buffer_ratios.push(much.buffers / little.buffers);
        let [.., little_here] = little.frames;
        let [.., much_here] = much.frames;
        self.added.push((much_here - little_here) / (much.buffers - little.buffers));
    }

    fn rows(&self, count: usize, against_few: Target, against_buffers: Target) -> Vec<Row> {
        let mut rows = Vec::new();
        for ((way, times), ratios) in WAYS.into_iter().zip(&self.times).zip(&self.ratios) {
            let name = format!("64 B between random ones of {} frames, {way}", grouped(count));
            rows.push(Row::new(name.as_str(), "ns", Target::None, times));
            rows.push(Row::new(format!("{name}, against 10 frames"), "ratio", against_few, ratios));
        }
        let name = format!("64 B between random ones of {} buffers, plain", grouped(count));
        rows.push(Row::new(name.as_str(), "ns", Target::None, &self.buffers));
        rows.push(Row::new(format!("{name}, against 10"), "ratio", Target::None, &self.buffer_ratios));
        let name = format!("time that {} frames add, embedded, against as many buffers", grouped(count));
        rows.push(Row::new(name, "ratio", against_buffers, &self.added));
        rows
    }
}

/// Copies between random frames of many, against those of ten.
pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let mut few = Owner::new(FEW)?;
    let mut rows = Vec::new();
    for (count, against_few, against_buffers) in MANY {
        if run.quick() && count > QUICK_MOST {
            continue;
        }
        let mut many = Owner::new(count)?;
        let rounds = run.part("frames", ROUNDS);
        let mut measured = Measured::default();
        {
            let _pinned = Pinned::to(0)?;
            for _ in 0..rounds {
                measured.add(&few.times()?, &many.times()?);
                run.round_done();
            }
        }
        rows.extend(measured.rows(count, against_few, against_buffers));
        rows.extend(give_back(many)?);
    }
    Ok(rows)
}

/// Registering and giving back: this owner's frames, then those of others with as many.
fn give_back(owner: Owner) -> Result<[Row; 2], BenchError> {
    let count = owner.frames.len();
    let mut registered = vec![owner.registered];
    let mut given_back = vec![owner.give_back()?];
    while given_back.len() < OWNERS {
        let owner = Owner::new(count)?;
        registered.push(owner.registered);
        given_back.push(owner.give_back()?);
    }
    let name = |what| format!("{what} of {} frames, one by one, each", grouped(count));
    Ok([
        Row::new(name("registering"), "us", Target::None, &registered),
        Row::new(name("giving back"), "us", Target::AtMost(GIVE_BACK_US), &given_back),
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
        each_ns(HERE, || {
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
