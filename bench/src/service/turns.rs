//! Eight frames in turn: one and eight copies outstanding, beside the CPU's own copies of one buffer and of eight.
//!
//! ```text
//! round: the CPU copies one buffer repeatedly ─ eight in turn ─ the service eight in turn, one outstanding ─ eight
//! ```
//!
//! The eight frames of each side exceed the caches, so each copy reads from and writes to memory; one buffer
//! of a copy's length fits the second-level cache (Wicki 2014, 4.3.2).

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use memferry::{Client, Frame, Queue, Ticket, copy};

use crate::BenchError;
use crate::children::Service;
use crate::pair::Pair;
use crate::placement::{Class, Pinned};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{Aligned, since_ns};

const ROUNDS: usize = 5;
const FRAMES: usize = 8;
const FRAME_BYTES: usize = 24 << 20;
/// Bytes of each single copy.
const PAYLOAD: usize = 256 << 10;
/// Copies per round and way.
const COPIES: usize = 512;

/// Frames of the service, and pairs of source and destination in this process.
struct Sides {
    pairs: Vec<Pair>,
    own: Vec<[Aligned; 2]>,
}

/// Rates of a round, MB/s.
struct Measured {
    cpu_one: f64,
    cpu_eight: f64,
    outstanding_one: f64,
    outstanding_eight: f64,
}

/// Frame and offset of a copy: cycles through all frames, then through their bytes.
fn place(copy: usize) -> (usize, usize) {
    (copy % FRAMES, copy / FRAMES * PAYLOAD % (FRAME_BYTES - PAYLOAD))
}

fn rate(started: Instant) -> f64 {
    (COPIES * PAYLOAD) as f64 * 1e3 / since_ns(started)
}

impl Sides {
    fn by_cpu(&mut self, place: impl Fn(usize) -> (usize, usize)) -> f64 {
        let started = Instant::now();
        for number in 0..COPIES {
            let (frame, at) = place(number);
            let [source, destination] = &mut self.own[frame];
            destination.bytes_mut()[at..at + PAYLOAD].copy_from_slice(&source.bytes()[at..at + PAYLOAD]);
            black_box(destination);
        }
        rate(started)
    }

    fn offloaded(&mut self, outstanding: usize) -> Result<f64, BenchError> {
        let started = Instant::now();
        let mut submitted = VecDeque::with_capacity(outstanding);
        for number in 0..COPIES {
            if submitted.len() == outstanding {
                self.take_oldest(&mut submitted)?;
            }
            let (frame, at) = place(number);
            let range = |frame: &Frame| frame.slice(at as u64..at as u64 + PAYLOAD as u64);
            let Pair { source, destination, .. } = &self.pairs[frame];
            let transfer = copy(range(source), range(destination));
            submitted.push_back(self.queue().submit(transfer)?);
        }
        while !submitted.is_empty() {
            self.take_oldest(&mut submitted)?;
        }
        Ok(rate(started))
    }

    /// The queue of all copies.
    fn queue(&mut self) -> &mut Queue {
        &mut self.pairs[0].queue
    }

    fn take_oldest(&mut self, submitted: &mut VecDeque<Ticket>) -> Result<(), BenchError> {
        let ticket = submitted.pop_front().ok_or("nothing is outstanding")?;
        self.queue().wait(ticket)?;
        Ok(())
    }

    fn round(&mut self) -> Result<Measured, BenchError> {
        let cpu_one = self.by_cpu(|_| (0, 0));
        let cpu_eight = self.by_cpu(place);
        self.pairs[0].wake()?;
        let outstanding_one = self.offloaded(1)?;
        self.pairs[0].wake()?;
        let outstanding_eight = self.offloaded(FRAMES)?;
        Ok(Measured { cpu_one, cpu_eight, outstanding_one, outstanding_eight })
    }
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("turns", ROUNDS);
    let service = Service::start(run)?;
    let _pinned = Pinned::to(0)?;
    let client = Client::connect(service.socket())?;
    let pairs =
        (0..FRAMES).map(|_| Pair::new(client.clone(), FRAME_BYTES as u64)).collect::<Result<_, _>>()?;
    let own = |index: usize| [2, 3].map(|seed| Aligned::random(FRAME_BYTES, 2 * index as u64 + seed));
    let mut sides = Sides { pairs, own: (0..FRAMES).map(own).collect() };
    // The first round populates pages.
    sides.round()?;
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(sides.round()?);
        run.round_done();
    }
    let of = |value: fn(&Measured) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    let rate = |name: &str, value| Row::new(name, "MB/s", Target::None, &of(value));
    let ratio = |name: &str, value| Row::new(name, "ratio", Target::AtLeast(1.0), &of(value));
    Ok(vec![
        rate("256 KiB by the CPU, one buffer again and again", |m| m.cpu_one),
        rate("256 KiB by the CPU, eight buffers by turns", |m| m.cpu_eight),
        rate("256 KiB by the service, eight frames by turns, one outstanding", |m| m.outstanding_one),
        rate("256 KiB by the service, eight frames by turns, eight outstanding", |m| m.outstanding_eight),
        ratio("by the CPU, one buffer against eight", |m| m.cpu_one / m.cpu_eight),
        ratio("by the service, eight outstanding against one", |m| m.outstanding_eight / m.outstanding_one),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cycle_through_the_frames() {
        let places: Vec<_> = (0..COPIES).map(place).collect();
        assert_eq!(places[..3], [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(places[FRAMES], (0, PAYLOAD));
        assert!(places.iter().all(|(frame, at)| *frame < FRAMES && at + PAYLOAD <= FRAME_BYTES));
    }
}
