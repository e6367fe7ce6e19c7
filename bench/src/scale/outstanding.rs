//! Part `outstanding`: long copies of one client beside the empty requests of another queue, and many copies of one queue.
//!
//! ```text
//! round, for each number of copies: one copy ─ so many; finished copies are submitted again
//!     meanwhile: NOP, a pause of random length, NOP ...; of another client, then of another queue of the same client
//! round, for each number: so many copies of 8 KiB are submitted at once, then all are taken
//! ```

use std::time::{Duration, Instant};

use fastrand::Rng;
use memferry::{Client, Frame, Queue, copy, nop};

use super::{Probe, ROUNDS, grouped, take};
use crate::BenchError;
use crate::children::Service;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{median, random_bytes, since_ns};

const COPIES: [usize; 5] = [1, 4, 8, 16, 30];
const COPY_BYTES: u64 = 1 << 20;
/// The copies cycle through frames that exceed the caches.
const FRAME_BYTES: u64 = 64 << 20;
/// Empty requests of a round.
const SAMPLES: usize = 150;
/// Longest pause between two of them, us: they meet the worker at any phase of its turn.
const PAUSE_US: u64 = 200;
/// Most that a NOP may take at the median beside any number of copies, us.
const BESIDE_US: f64 = 30.0;
/// Least of the rate of one copy at a time that several reach together.
const RATE: f64 = 0.9;
const AT_ONCE: [usize; 5] = [8, 32, 256, 1024, 4096];
const SHORT_BYTES: u64 = 8 << 10;

/// Copies that are submitted again when they are done, one for each queue.
struct Load {
    queues: Vec<Queue>,
    source: Frame,
    destination: Frame,
    next: u64,
    moved: u64,
}

impl Load {
    fn new(client: &Client) -> Result<Self, BenchError> {
        let source = client.frame(FRAME_BYTES).alloc()?;
        let destination = client.frame(FRAME_BYTES).alloc()?;
        for (frame, seed) in [(&source, 41), (&destination, 43)] {
            for at in (0..FRAME_BYTES).step_by(COPY_BYTES as usize) {
                frame.write(at, &random_bytes(COPY_BYTES as usize, seed + at))?;
            }
        }
        Ok(Self { queues: Vec::new(), source, destination, next: 0, moved: 0 })
    }

    fn submit(&mut self, index: usize) -> Result<(), BenchError> {
        let at = self.next % FRAME_BYTES;
        self.next += COPY_BYTES;
        let place = at..at + COPY_BYTES;
        let transfer = copy(self.source.slice(place.clone()), self.destination.slice(place));
        let _polled = self.queues[index].submit(transfer)?;
        Ok(())
    }

    /// Submits what is done again.
    fn turn(&mut self, copies: usize) -> Result<(), BenchError> {
        for index in 0..copies {
            if let Some(completion) = self.queues[index].poll() {
                self.moved += completion?.bytes_done;
                self.submit(index)?;
            }
        }
        Ok(())
    }

    /// Microseconds of the samples of a round, and the rate meanwhile in GB/s.
    fn round(&mut self, copies: usize, queue: &mut Queue) -> Result<(Vec<f64>, f64), BenchError> {
        (0..copies).try_for_each(|index| self.submit(index))?;
        let mut random = Rng::with_seed(47);
        let mut samples = Vec::with_capacity(SAMPLES);
        self.moved = 0;
        let began = Instant::now();
        for _ in 0..SAMPLES {
            let until = Instant::now() + Duration::from_micros(random.u64(..PAUSE_US));
            while Instant::now() < until {
                self.turn(copies)?;
            }
            let started = Instant::now();
            let _polled = queue.submit(nop())?;
            loop {
                if let Some(completion) = queue.poll() {
                    completion?;
                    break;
                }
                self.turn(copies)?;
            }
            samples.push(since_ns(started) / 1000.0);
        }
        let rate = self.moved as f64 / since_ns(began);
        for queue in &mut self.queues {
            take(queue, queue.outstanding())?;
        }
        Ok((samples, rate))
    }
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let service = Service::start_roomy(run, "outstanding")?;
    let _pinned = Pinned::to(0)?;
    let mut rows = beside(run, &service)?;
    rows.extend(at_once(run, &service)?);
    Ok(rows)
}

/// Empty requests beside long copies.
fn beside(run: &Run, service: &Service) -> Result<Vec<Row>, BenchError> {
    let owner = Client::connect(service.socket())?;
    let mut load = Load::new(&owner)?;
    let mut queues =
        [("another client's", Probe::of(service)?), ("the same client's other", Probe::new(owner.clone())?)];
    let mut rows = Vec::new();
    for copies in COPIES {
        while load.queues.len() < copies {
            load.queues.push(owner.queue(16)?);
        }
        for (whose, probe) in &mut queues {
            let rounds = run.part("outstanding", ROUNDS);
            let mut medians = Vec::new();
            let mut worst = Vec::new();
            let mut ratios = Vec::new();
            for _ in 0..rounds {
                probe.wake()?;
                let (_, single) = load.round(1, &mut probe.queue)?;
                probe.wake()?;
                let (samples, rate) = load.round(copies, &mut probe.queue)?;
                medians.push(median(&samples));
                worst.push(samples.iter().copied().fold(0.0, f64::max));
                ratios.push(rate / single);
                run.round_done();
            }
            let name = format!("{whose} queue beside {copies} outstanding copies of 1 MiB: NOP");
            rows.push(Row::new(format!("{name} p50"), "us", Target::AtMost(BESIDE_US), &medians));
            rows.push(Row::new(format!("{name}, longest of a round"), "us", Target::None, &worst));
            // One copy against one copy: the noise of the other rows.
            let target = if copies == 1 { Target::None } else { Target::AtLeast(RATE) };
            let name = format!("rate of {copies} outstanding copies beside {whose} queue, against one");
            rows.push(Row::new(name, "ratio", target, &ratios));
        }
    }
    Ok(rows)
}

/// Many copies of one queue.
fn at_once(run: &Run, service: &Service) -> Result<Vec<Row>, BenchError> {
    let mut probe = Probe::of(service)?;
    let mut queue = probe.client.queue(4096)?;
    let source = probe.client.frame(SHORT_BYTES).alloc()?;
    let destination = probe.client.frame(SHORT_BYTES).alloc()?;
    source.write(0, &random_bytes(SHORT_BYTES as usize, 53))?;
    let mut each = |count: usize| -> Result<f64, BenchError> {
        probe.wake()?;
        let started = Instant::now();
        for _ in 0..count {
            let _taken = queue.stage(copy(&source, &destination))?;
        }
        queue.publish();
        take(&mut queue, count)?;
        Ok(since_ns(started) / count as f64)
    };
    let mut rows = Vec::new();
    for count in AT_ONCE {
        let rounds = run.part("outstanding", ROUNDS);
        let mut ratios = Vec::new();
        let mut times = Vec::new();
        for _ in 0..rounds {
            let alone = (0..31).map(|_| each(1)).collect::<Result<Vec<_>, _>>()?;
            let time = each(count)?;
            ratios.push(time / median(&alone));
            times.push(time);
            run.round_done();
        }
        let name = format!("{} outstanding copies of 8 KiB of one queue, each", grouped(count));
        rows.push(Row::new(name.as_str(), "ns", Target::None, &times));
        rows.push(Row::new(format!("{name}, against one"), "ratio", Target::AtMost(1.0), &ratios));
    }
    Ok(rows)
}
