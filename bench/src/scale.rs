//! Group `scale`: what much of something costs, against little of it in the same run.
//!
//! ```text
//! two services, or two clients of one: little ─ much ─ little ─ much ...   one thread on CPU 0, the workers on CPU 1
//!   idle         a client's empty requests beside 0 to 2,047 queues that nobody uses, and after these were closed
//!   wake         the first request of a queue after a pause: its time, and the system calls of its submission
//!   clients      1 to 512 clients with one request outstanding each
//!   frames       64 bytes between random frames of 10 to 1,000,000, and giving frames back one by one
//!   depth        a frame that was derived 1 to 10,000 times
//!   outstanding  another queue's empty requests beside 1 to 30 copies of 1 MiB; 8 to 4,096 copies of one queue
//!   policies     empty requests under each policy
//!   waits        tickets awaited from the first to the last and the other way round
//!   ending       what others wait while a session with up to 1,000,000 capabilities ends
//! ```
//!
//! A worker that has nothing to do sleeps, so two services on one CPU do not disturb each other. The services run with the
//! largest quotas. A target for a ratio applies to the much and the little of the same round. Parts that take long are not repeated
//! if the CPUs change places meanwhile: a round is short.

mod ending;
mod frames;
mod outstanding;
mod policies;
mod queues;
mod syscalls;
mod waits;
mod wake;

use std::path::Path;
use std::time::Instant;

use memferry::{Client, Queue, nop};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::BenchError;
use crate::children::Service;
use crate::pair::poll_for;
use crate::placement::steady;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{each_ns, median, since_ns};

const ROUNDS: usize = 9;
const BATCH: usize = 32;

/// A part: its name, its function, and whether it is repeated if the CPUs change places.
type Part = (&'static str, fn(&Run) -> Result<Vec<Row>, BenchError>, bool);

const PARTS: [Part; 9] = [
    ("idle", queues::idle, false),
    ("wake", wake::measure, false),
    ("clients", queues::clients, true),
    ("frames", frames::measure, false),
    ("depth", frames::depth, true),
    ("outstanding", outstanding::measure, true),
    ("policies", policies::measure, true),
    ("waits", waits::measure, true),
    ("ending", ending::measure, false),
];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, ..)| *name))?;
    // A queue takes descriptors on both sides; the service raises its own limit.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    let mut rows = Vec::new();
    for (name, part, placed) in PARTS.iter().filter(|(name, ..)| run.wants(name)) {
        rows.extend(if *placed { steady(run, name, |_| part(run))? } else { part(run)? });
    }
    Ok(rows)
}

/// Runs as another process of a measurement.
pub(crate) fn role(words: &[String]) -> Result<(), BenchError> {
    crate::children::end_with_parent()?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["submits", socket, pause_ms, busy, count] => {
            syscalls::submits(Path::new(socket), pause_ms.parse()?, busy == "busy", count.parse()?)
        }
        ["owns", socket, count] => ending::owns(Path::new(socket), count.parse()?),
        _ => Err("unknown role of group scale".into()),
    }
}

/// Times of a [`Probe`] in a round, ns: there and back, and in batches.
type Times = [f64; 2];

/// A client with a queue, whose empty requests are timed.
struct Probe {
    client: Client,
    queue: Queue,
}

impl Probe {
    fn new(client: Client) -> Result<Self, BenchError> {
        let queue = client.queue(64)?;
        Ok(Self { client, queue })
    }

    fn of(service: &Service) -> Result<Self, BenchError> {
        Self::new(Client::connect(service.socket())?)
    }

    /// Makes sure that the worker is awake.
    fn wake(&mut self) -> Result<(), BenchError> {
        (0..200).try_for_each(|_| round_trip(&mut self.queue))
    }

    /// Nanoseconds of an empty request there and back, and of each in batches; the worker is woken before.
    fn times(&mut self) -> Result<Times, BenchError> {
        self.wake()?;
        let alone = each_ns(500, || round_trip(&mut self.queue))?;
        let batches = (0..30).map(|_| batch_ns(&mut self.queue)).collect::<Result<Vec<_>, _>>()?;
        Ok([alone, median(&batches)])
    }
}

/// Submits an empty request and polls until it is done.
fn round_trip(queue: &mut Queue) -> Result<(), BenchError> {
    let ticket = queue.submit(nop())?;
    poll_for(queue, ticket)
}

/// Nanoseconds of each empty request in a batch.
fn batch_ns(queue: &mut Queue) -> Result<f64, BenchError> {
    let started = Instant::now();
    queue.submit_batch((0..BATCH).map(|_| nop()))?;
    take(queue, BATCH)?;
    Ok(since_ns(started) / BATCH as f64)
}

/// Polls until this many completions were taken.
fn take(queue: &mut Queue, count: usize) -> Result<(), BenchError> {
    let mut taken = 0;
    while taken < count {
        if let Some(completion) = queue.poll() {
            completion?;
            taken += 1;
        }
    }
    Ok(())
}

/// Rows of [`Probe::times`] of much against little, by round: a ratio of round trips and one of batches.
fn beside(what: &str, limit: f64, rounds: &[(Times, Times)]) -> [Row; 2] {
    [("round trip", 0), ("in batches of 32", 1)].map(|(how, index)| {
        let ratios: Vec<f64> = rounds.iter().map(|(little, much)| much[index] / little[index]).collect();
        Row::new(format!("NOP, {how}, {what}"), "ratio", Target::AtMost(limit), &ratios)
    })
}

/// A count with commas, for names of rows.
fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!([1, 999, 1000, 1_000_000].map(grouped), ["1", "999", "1,000", "1,000,000"]);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let rows = beside("x", 1.5, &[([1.0, 10.0], [2.0, 10.0]), ([2.0, 10.0], [2.0, 20.0])]);
        let rows = serde_json::to_value(rows).unwrap();
        assert_eq!((&rows[0]["min"], &rows[0]["max"]), (&1.0.into(), &2.0.into()));
        assert_eq!((&rows[1]["min"], &rows[1]["max"]), (&1.0.into(), &2.0.into()));
    }
}
