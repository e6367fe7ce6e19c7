//! Part `wake`: the first request of a queue after a pause.
//!
//! ```text
//! worker awake:  one queue's round trips for 1 ms or 1 s ─ submit on another queue ─ poll ─► microseconds
//! worker asleep: nothing for as long ─ submit ─ poll
//! a traced client does the same ─► system calls of the submission (scale/syscalls.rs)
//! ```

use std::time::{Duration, Instant};

use memferry::Queue;

use super::syscalls::{self, Uncounted};
use super::{Probe, ROUNDS, grouped, round_trip};
use crate::BenchError;
use crate::children::Service;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::since_ns;

/// A pause: its name, its length, and samples of a round.
struct Pause {
    name: &'static str,
    length: Duration,
    samples: usize,
}

const PAUSES: [Pause; 2] = [
    Pause { name: "1 ms", length: Duration::from_millis(1), samples: 40 },
    Pause { name: "1 s", length: Duration::from_secs(1), samples: 1 },
];
/// Idle queues beside the one that is measured.
const IDLE: [usize; 2] = [0, 2047];
/// Most round trips that the first request may take: a tenth of what waking a thread costs.
const LIMIT: f64 = 15.0;

/// Measures times, then system calls.
pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let empty = Service::start_roomy(run, "empty")?;
    let service = Service::start_roomy(run, "wake")?;
    // The traced client inherits the CPU, too.
    let _pinned = Pinned::to(0)?;
    let mut rows = Vec::new();
    let busy = Probe::of(&service)?;
    let queue = busy.client.queue(16)?;
    let mut sides = Sides { usual: Probe::of(&empty)?, busy, queue };
    let mut idle: Vec<Queue> = Vec::new();
    for count in IDLE {
        while idle.len() < count {
            idle.push(sides.busy.client.queue(16)?);
        }
        for pause in &PAUSES {
            rows.extend(sides.measure(run, pause, count)?);
        }
    }
    drop(idle);
    for (pause, count) in PAUSES.iter().zip(if run.quick() { [5, 2] } else { [101, 5] }) {
        // Asleep, the doorbell. Without any the worker would not have slept.
        for (is_busy, state, calls) in [(true, "awake", 0.0), (false, "asleep", 1.0)] {
            let name = format!("system calls of a submission after {}, worker {state}", pause.name);
            let counted = syscalls::count(service.socket(), pause.length, is_busy, count);
            rows.push(match counted {
                Ok(counts) => Row::new(name, "calls", Target::Always(calls), &counts),
                Err(Uncounted::Untraceable(reason)) => Row::not_measured(&name, reason),
                Err(Uncounted::Failed(error)) => Row::broken(&name, &error.to_string()),
            });
        }
    }
    Ok(rows)
}

struct Sides {
    /// A client of a service without idle queues.
    usual: Probe,
    /// Keeps the worker awake.
    busy: Probe,
    /// The queue that pauses.
    queue: Queue,
}

impl Sides {
    /// First requests after a pause, while the worker is kept awake and while it sleeps.
    fn measure(&mut self, run: &Run, pause: &Pause, idle: usize) -> Result<Vec<Row>, BenchError> {
        let rounds = run.part("wake", ROUNDS);
        let mut awake = Vec::new();
        let mut asleep = Vec::new();
        let mut ratios = Vec::new();
        for _ in 0..rounds {
            let [usual, _] = self.usual.times()?;
            self.busy.wake()?;
            for _ in 0..pause.samples {
                round_trip(&mut self.queue)?;
                let until = Instant::now() + pause.length;
                while Instant::now() < until {
                    round_trip(&mut self.busy.queue)?;
                }
                let first = first_ns(&mut self.queue)?;
                awake.push(first / 1000.0);
                ratios.push(first / usual);
                std::thread::sleep(pause.length);
                asleep.push(first_ns(&mut self.queue)? / 1000.0);
            }
            run.round_done();
        }
        let name = format!("first NOP of a queue after {}, {} idle queues", pause.name, grouped(idle));
        Ok(vec![
            Row::new(format!("{name}, worker awake"), "us", Target::None, &awake),
            Row::new(
                format!("{name}, worker awake, against a round trip in use, no idle queues"),
                "ratio",
                Target::AtMost(LIMIT),
                &ratios,
            ),
            Row::new(format!("{name}, worker asleep"), "us", Target::None, &asleep),
        ])
    }
}

fn first_ns(queue: &mut Queue) -> Result<f64, BenchError> {
    let started = Instant::now();
    round_trip(queue)?;
    Ok(since_ns(started))
}
