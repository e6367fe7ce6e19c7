//! Queues that move between the workers of a large server, in virtual time.
//!
//! ```text
//! clients ── a batch when the last has ended ──► ready queues of a worker ── served by turns ──► ended
//! every interval: time used by each queue ──► the service's `Balancer` ──► moves
//! ```
//!
//! The decisions are those of the service: the same code. The workers, their queues and times are a model, and all figures here are
//! simulated. No paper claims anything of this, so it has no verdict: `memferry-lab workers` prints the table.

use std::collections::VecDeque;
use std::fmt;

use memferry_clock::{EventQueue, Instant};
use memferry_service::balance::{self, Balancer, QueueLoad, WHOLE, WorkerLoad};

use crate::parameters::{Parameters, ParametersError};
use crate::rng::Rng;
use crate::workers::spread;

/// The seed of all runs: which queues are busy.
const SEED: u64 = 64;
/// Virtual time of a run.
const RUN_MS: u64 = 2000;
/// The second half is measured, when the moves of a constant load should have ended.
const MEASURED_MS: u64 = 1000;
/// Virtual time between changes of a changing load.
const PHASE_MS: u64 = 500;
/// More queues of others than a worker can get here.
const ROOM: usize = 64;

/// Which queues are busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// One of each worker.
    Even,
    /// Chosen by the seed.
    Random,
    /// Those of one complex's workers.
    OneComplex,
    /// Chosen by the seed, and others after each phase.
    Changing,
}

impl Load {
    const ALL: [Self; 4] = [Self::Even, Self::Random, Self::OneComplex, Self::Changing];

    const fn name(self) -> &'static str {
        match self {
            Self::Even => "one busy queue for each worker",
            Self::Random => "busy queues at random",
            Self::OneComplex => "busy queues in one complex",
            Self::Changing => "at random, others every 0.5 s",
        }
    }
}

/// The server that is simulated; times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Server {
    workers: usize,
    complexes: usize,
    queues: usize,
    busy: usize,
    batch: u64,
    think: u64,
    away_batch: u64,
    handover: u64,
}

impl Server {
    fn read(parameters: &Parameters) -> Result<Self, ParametersError> {
        let count = |name| parameters.get(name).map(|value| value as usize);
        let time = |name| parameters.get(name).map(|micros| (micros * 1e3) as u64);
        let batch = time("batch")?;
        Ok(Self {
            workers: count("workers")?,
            complexes: count("complexes")?,
            queues: count("queues")?,
            busy: count("busy")?,
            batch,
            think: time("think")?,
            away_batch: (batch as f64 * parameters.get("away")?) as u64,
            handover: time("handover")?,
        })
    }

    const fn complex_of(&self, worker: usize) -> usize {
        worker * self.complexes / self.workers
    }

    /// The queues that are busy in a phase of a load. A queue's first worker is its number modulo the workers.
    fn busy_queues(&self, load: Load, phase: u64) -> Vec<bool> {
        let mut busy = vec![false; self.queues];
        let mut rng = Rng::of_neighbour(SEED + if load == Load::Changing { phase } else { 0 });
        for index in 0..self.busy {
            let queue = match load {
                Load::Even => index,
                Load::OneComplex => {
                    let of_complex = self.workers / self.complexes;
                    index % of_complex + index / of_complex * self.workers
                }
                Load::Random | Load::Changing => loop {
                    let queue = rng.below(self.queues as u64) as usize;
                    if !busy[queue] {
                        break queue;
                    }
                },
            };
            // Of a load that does not fit, the rest is left out.
            if let Some(queue) = busy.get_mut(queue) {
                *queue = true;
            }
        }
        busy
    }
}

/// What the second half of a run showed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    pub load: Load,
    pub moving: bool,
    /// Batches that ended, in workers that do nothing else.
    pub throughput: f64,
    /// Workers that were busy for less than half of the time.
    pub idle: usize,
    /// The time of the busiest worker to the mean.
    pub imbalance: f64,
    /// The busy queue with the fewest batches, in parts of a worker. 0 where the busy queues change.
    pub slowest: f64,
    /// Moves in the whole run, those of them that stayed in a complex, and those in the measured half.
    pub moves: usize,
    pub near: usize,
    pub late: usize,
}

enum Event {
    /// A queue has a batch for its worker.
    Ready(usize),
    /// A worker has ended the batch of a queue, which took so long.
    Ended(usize, usize, u64),
    /// An interval has ended.
    Plan,
    /// Other queues are busy from now on.
    Phase(u64),
}

struct Run {
    server: Server,
    load: Load,
    busy: Vec<bool>,
    /// The worker of each queue.
    at: Vec<usize>,
    ready: Vec<VecDeque<usize>>,
    serving: Vec<bool>,
    events: EventQueue<Event>,
    now: u64,
    /// Time used by each queue in this interval.
    used: Vec<u64>,
    /// Batches of each queue and time of each worker, in the measured half.
    batches: Vec<u64>,
    times: Vec<u64>,
    /// Each move: whether it stayed in a complex, and whether it was in the measured half.
    moves: Vec<(bool, bool)>,
}

impl Run {
    fn new(server: Server, load: Load) -> Self {
        let busy = server.busy_queues(load, 0);
        let mut events = EventQueue::new();
        for queue in 0..server.queues {
            // They begin at different times, or they would all come at once for ever.
            let begins = queue as u64 * server.think / server.queues as u64;
            events.push(Instant::from_nanoseconds(begins), Event::Ready(queue));
        }
        Self {
            server,
            load,
            busy,
            at: (0..server.queues).map(|queue| queue % server.workers).collect(),
            ready: vec![VecDeque::new(); server.workers],
            serving: vec![false; server.workers],
            events,
            now: 0,
            used: vec![0; server.queues],
            batches: vec![0; server.queues],
            times: vec![0; server.workers],
            moves: Vec::new(),
        }
    }

    fn is_measured(&self) -> bool {
        self.now >= (RUN_MS - MEASURED_MS) * 1_000_000
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.events.push(Instant::from_nanoseconds(self.now + delay), event);
    }

    /// Serves the next ready queue of a worker, if it serves none.
    fn serve(&mut self, worker: usize) {
        if self.serving[worker] {
            return;
        }
        let Some(queue) = self.ready[worker].pop_front() else { return };
        self.serving[worker] = true;
        let home = self.server.complex_of(queue % self.server.workers);
        let is_away = self.server.complex_of(worker) != home;
        let time = if is_away { self.server.away_batch } else { self.server.batch };
        self.after(time, Event::Ended(worker, queue, time));
    }

    fn ended(&mut self, worker: usize, queue: usize, time: u64) {
        self.serving[worker] = false;
        self.used[queue] += time;
        if self.is_measured() {
            self.batches[queue] += 1;
            self.times[worker] += time;
        }
        let handover = if self.at[queue] == worker { 0 } else { self.server.handover };
        let think = if self.busy[queue] { 0 } else { self.server.think };
        self.after(handover.max(think), Event::Ready(queue));
        self.serve(worker);
    }

    /// Moves queues as the service does. A batch that waits for its worker is served there first.
    fn plan(&mut self, balancer: &mut Balancer<usize>) {
        let interval = balance::INTERVAL.as_nanos() as u64;
        let loads: Vec<_> = (0..self.server.workers)
            .map(|worker| WorkerLoad {
                complex: self.server.complex_of(worker),
                room: ROOM,
                queues: (0..self.server.queues)
                    .filter(|queue| self.at[*queue] == worker)
                    .map(|queue| QueueLoad {
                        queue,
                        used: (self.used[queue] * u64::from(WHOLE) / interval) as u32,
                        may_move: true,
                    })
                    .collect(),
            })
            .collect();
        for step in balancer.plan(&loads) {
            self.at[step.queue] = step.to;
            let is_near = self.server.complex_of(step.from) == self.server.complex_of(step.to);
            self.moves.push((is_near, self.is_measured()));
        }
        self.used.fill(0);
    }

    fn run(mut self, moving: bool) -> Measured {
        let mut balancer = Balancer::default();
        let interval = balance::INTERVAL.as_nanos() as u64;
        if moving {
            self.after(interval, Event::Plan);
        }
        if self.load == Load::Changing {
            self.after(PHASE_MS * 1_000_000, Event::Phase(1));
        }
        while let Some((now, event)) = self.events.pop() {
            self.now = now.nanoseconds();
            if self.now >= RUN_MS * 1_000_000 {
                break;
            }
            match event {
                Event::Ready(queue) => {
                    let worker = self.at[queue];
                    self.ready[worker].push_back(queue);
                    self.serve(worker);
                }
                Event::Ended(worker, queue, time) => self.ended(worker, queue, time),
                Event::Plan => {
                    self.plan(&mut balancer);
                    self.after(interval, Event::Plan);
                }
                Event::Phase(phase) => {
                    self.busy = self.server.busy_queues(self.load, phase);
                    self.after(PHASE_MS * 1_000_000, Event::Phase(phase + 1));
                }
            }
        }
        self.measured(moving)
    }

    fn measured(&self, moving: bool) -> Measured {
        let whole = (MEASURED_MS * 1_000_000) as f64;
        let of_worker = |batches: u64| (batches * self.server.batch) as f64 / whole;
        let busiest = self.times.iter().max().copied().unwrap_or(0) as f64;
        let mean = self.times.iter().sum::<u64>() as f64 / self.server.workers as f64;
        let busy = self.batches.iter().zip(&self.busy).filter(|(_, busy)| **busy);
        let slowest = busy.map(|(batches, _)| *batches).min().filter(|_| self.load != Load::Changing);
        Measured {
            load: self.load,
            moving,
            throughput: of_worker(self.batches.iter().sum()),
            idle: self.times.iter().filter(|time| (**time as f64) < whole / 2.0).count(),
            imbalance: busiest / mean,
            slowest: slowest.map_or(0.0, of_worker),
            moves: self.moves.len(),
            near: self.moves.iter().filter(|(is_near, _)| *is_near).count(),
            late: self.moves.iter().filter(|(_, is_late)| *is_late).count(),
        }
    }
}

/// The runs of all loads, each without and with moving.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    workers: usize,
    complexes: usize,
    queues: usize,
    pub rows: Vec<Measured>,
}

/// Runs all loads on the server of `parameters/balancing.toml`.
///
/// # Errors
/// A parameter is missing.
pub fn simulate() -> Result<Table, ParametersError> {
    let parameters = Parameters::parse(include_str!("../parameters/balancing.toml"))?;
    let server = Server::read(&parameters)?;
    let jobs: Vec<_> = Load::ALL.iter().flat_map(|load| [(*load, false), (*load, true)]).collect();
    let rows = spread(&jobs, |(load, moving)| Run::new(server, *load).run(*moving));
    let Server { workers, complexes, queues, .. } = server;
    Ok(Table { workers, complexes, queues, rows })
}

impl fmt::Display for Table {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, complexes, queues, rows } = self;
        writeln!(to, "simulated: {workers} workers in {complexes} core complexes, {queues} queues\n")?;
        writeln!(
            to,
            "| load | moving | throughput, workers | idle workers | busiest to mean | slowest busy queue | moves | in a complex | late |"
        )?;
        writeln!(to, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
        for row in rows {
            let moving = if row.moving { "on" } else { "off" };
            let slowest = if row.slowest > 0.0 { format!("{:.2}", row.slowest) } else { "-".to_owned() };
            writeln!(
                to,
                "| {} | {moving} | {:.1} | {} | {:.2} | {slowest} | {} | {} | {} |",
                row.load.name(),
                row.throughput,
                row.idle,
                row.imbalance,
                row.moves,
                row.near,
                row.late
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_uses_idle_workers_and_then_ends() {
        let table = simulate().unwrap();
        let of =
            |load, moving| *table.rows.iter().find(|row| (row.load, row.moving) == (load, moving)).unwrap();
        let even = of(Load::Even, true);
        assert_eq!(even.moves, 0, "nothing to gain");
        for load in [Load::Random, Load::OneComplex] {
            let still = of(load, false);
            let moving = of(load, true);
            assert!(moving.throughput > 1.25 * still.throughput, "{still:?} {moving:?}");
            assert!(moving.slowest > 2.0 * still.slowest && moving.idle < still.idle, "{still:?} {moving:?}");
            assert_eq!(moving.late, 0, "{moving:?}");
        }
        let changing = of(Load::Changing, true);
        assert!(changing.throughput > 1.15 * of(Load::Changing, false).throughput, "{changing:?}");
        let parameters = Parameters::parse(include_str!("../parameters/balancing.toml")).unwrap();
        let again = Run::new(Server::read(&parameters).unwrap(), Load::Random).run(true);
        assert_eq!(again, of(Load::Random, true), "equal runs are equal");
    }
}
