//! Decides which queues move from one worker to another. Pure: no clock, no threads, equal inputs give equal moves.
//!
//! ```text
//! time that each queue used in the last interval ─► smoothed ─► demand ─► pressure of each worker ─► moves
//! ```
//!
//! The pressure of a worker is the sum of the demands of its queues. A queue on a worker that has time left demands what it used. On
//! a saturated worker it may want more than it got: it demands what it used when it last had room, or else a whole worker. A
//! move is worth it if the larger pressure of the two workers falls by a good part of what moves. So every move lowers a maximum,
//! and a balanced service has none. Between core complexes a move has to gain more, because the queue leaves its caches behind.
//!
//! Demands are guesses and loads vary, so a queue that moved rests, longer each time, and its two workers move no busy queue until
//! their figures are new. A move on a wrong guess is undone only if that, too, gains enough. Queues without use may move from a
//! saturated worker at any time: they wake up where there is room.
//!
//! The lab runs this code for 64 workers in virtual time; the service runs it in `balancing`.

use std::collections::BTreeMap;
use std::time::Duration;

/// The time between plans.
pub const INTERVAL: Duration = Duration::from_millis(10);
/// All of a worker's time in an interval. Times are in parts of it.
pub const WHOLE: u32 = 1000;
/// A worker that is busy for so much has no time left.
const SATURATED: u32 = 900;
/// The smallest gain for which a queue moves.
const MIN_GAIN: u32 = 15;
/// A move must gain at least this part of what moves.
const GAIN_PART: u32 = 4;
/// How much more a move to another core complex must gain.
const AWAY: u32 = 250;
/// Intervals after a move in which the figures of its two workers say little.
const SETTLE: u64 = 3;
/// Intervals for which a queue stays after its first move, and after many.
const REST: u64 = 16;
const MAX_REST: u64 = 1024;
/// Intervals for which a demand stays known.
const KNOWN: u64 = 1024;
/// Intervals for which a worker must be saturated before queues leave it.
const PERSISTENT: u32 = 2;
/// Smoothed figures are kept in this part of their unit.
const FINE: u32 = 16;
/// Busy queues that leave a worker at a time.
const BUSY_MOVES: usize = 8;
/// Queues without use that leave a worker at a time.
pub const IDLE_MOVES: usize = 4;
/// How many queues of others a worker should have at most: each costs it a descriptor when it sleeps.
pub const MAX_GUESTS: usize = 64;
/// Queues without use come to a worker only while it has more room than this, so that busy ones find room.
const IDLE_ROOM: usize = 32;

/// A worker in the last interval.
#[derive(Clone, Debug)]
pub struct WorkerLoad<Q> {
    /// The workers of a core complex have equal numbers.
    pub complex: usize,
    /// How many more queues of other workers it can take.
    pub room: usize,
    pub queues: Vec<QueueLoad<Q>>,
}

/// A queue in the last interval.
#[derive(Clone, Copy, Debug)]
pub struct QueueLoad<Q> {
    pub queue: Q,
    /// The part of its worker's time that it used.
    pub used: u32,
    pub may_move: bool,
}

/// A queue that should move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move<Q> {
    pub queue: Q,
    pub from: usize,
    pub to: usize,
}

/// What is remembered of a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// The interval of its last report.
    seen: u64,
    /// Smoothed, in parts of [`FINE`]. `None` before the first interval.
    smoothed: Option<u32>,
    /// What it used when its worker last had time left, and when that was.
    known: Option<(u32, u64)>,
    rests_until: u64,
    rest: u64,
}

impl Past {
    /// The smoothed part of its worker's time that it used.
    fn used(&self) -> u32 {
        self.smoothed.unwrap_or(0).div_ceil(FINE)
    }
}

/// What is remembered of a worker.
#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    /// The interval in which its figures are new again.
    settled: u64,
    /// For how many intervals it has been saturated.
    saturated: u32,
}

/// A worker in the present plan.
struct Planned<Q> {
    complex: usize,
    room: usize,
    is_saturated: bool,
    is_settled: bool,
    pressure: u32,
    /// The queues that may leave it, with their demands.
    movable: Vec<(u32, Q)>,
    idle: Vec<Q>,
}

/// Plans moves, interval by interval.
#[derive(Clone, Debug)]
pub struct Balancer<Q> {
    interval: u64,
    pasts: BTreeMap<Q, Past>,
    conditions: Vec<Condition>,
}

impl<Q> Default for Balancer<Q> {
    fn default() -> Self {
        Self { interval: 0, pasts: BTreeMap::new(), conditions: Vec::new() }
    }
}

impl<Q: Copy + Ord> Balancer<Q> {
    /// The moves after one more interval. Call it once for each, with all workers in the same order.
    pub fn plan(&mut self, workers: &[WorkerLoad<Q>]) -> Vec<Move<Q>> {
        self.interval += 1;
        self.conditions.resize(workers.len(), Condition::default());
        let mut planned: Vec<_> =
            workers.iter().enumerate().map(|(index, worker)| self.look_at(index, worker)).collect();
        let now = self.interval;
        self.pasts.retain(|_, past| past.seen == now || past.rests_until + past.rest > now);
        let mut order: Vec<usize> = (0..planned.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(planned[*index].pressure));
        let mut moves = Vec::new();
        for from in order {
            if !planned[from].is_saturated {
                continue;
            }
            for _ in 0..BUSY_MOVES {
                let Some(best) = best_move(&planned, from) else { break };
                self.carry_out(&mut planned, best);
                moves.push(Move { queue: best.queue, from, to: best.to });
            }
            self.move_idle(&mut planned, from, &mut moves);
        }
        moves
    }

    /// Smooths the figures of a worker, and estimates the demands of its queues.
    fn look_at(&mut self, index: usize, worker: &WorkerLoad<Q>) -> Planned<Q> {
        let now = self.interval;
        for load in &worker.queues {
            let past = self.pasts.entry(load.queue).or_default();
            past.seen = now;
            let latest = load.used.min(WHOLE) * FINE;
            past.smoothed = Some(past.smoothed.map_or(latest, |smoothed| (smoothed + latest) / 2));
        }
        let pasts = &mut self.pasts;
        let used = |queue: &Q| pasts.get(queue).map_or(0, Past::used);
        let total: u32 = worker.queues.iter().map(|load| used(&load.queue)).sum();
        let latest: u32 = worker.queues.iter().map(|load| load.used).sum();
        let users = worker.queues.iter().filter(|load| used(&load.queue) > 0).count() as u32;
        let is_saturated = total >= SATURATED;
        let has_time_left = !is_saturated && latest < SATURATED;
        let condition = &mut self.conditions[index];
        condition.saturated = if is_saturated { condition.saturated.saturating_add(1) } else { 0 };
        let mut planned = Planned {
            complex: worker.complex,
            room: worker.room,
            is_saturated: condition.saturated >= PERSISTENT,
            is_settled: condition.settled <= now,
            pressure: 0,
            movable: Vec::new(),
            idle: Vec::new(),
        };
        for load in &worker.queues {
            let Some(past) = pasts.get_mut(&load.queue) else { continue };
            let used = past.used();
            if has_time_left {
                past.known = Some((used, now));
            }
            let has_fair_part = used > 0 && 2 * used * users >= total;
            let demand = match past.known {
                Some((known, at)) if at + KNOWN > now => known.max(used),
                _ if is_saturated && has_fair_part => WHOLE,
                _ => used,
            };
            planned.pressure += demand;
            let may_move = load.may_move && past.rests_until <= now;
            if may_move && demand >= MIN_GAIN {
                planned.movable.push((demand, load.queue));
            } else if may_move && used == 0 {
                planned.idle.push(load.queue);
            }
        }
        planned
    }

    fn carry_out(&mut self, planned: &mut [Planned<Q>], best: Best<Q>) {
        let Best { queue, demand, from, to, .. } = best;
        planned[from].movable.retain(|(_, other)| *other != queue);
        planned[from].pressure -= demand;
        planned[to].pressure += demand;
        planned[to].room -= 1;
        for worker in [from, to] {
            self.conditions[worker].settled = self.interval + SETTLE;
        }
        self.rest(queue);
    }

    fn rest(&mut self, queue: Q) {
        let past = self.pasts.entry(queue).or_default();
        past.rest = (2 * past.rest).clamp(REST, MAX_REST);
        past.rests_until = self.interval + past.rest;
    }

    /// Moves queues without use to the least pressed worker.
    fn move_idle(&mut self, planned: &mut [Planned<Q>], from: usize, moves: &mut Vec<Move<Q>>) {
        let complex = planned[from].complex;
        let others = planned.iter().enumerate().filter(|(index, worker)| {
            *index != from && worker.room > IDLE_ROOM && worker.pressure < SATURATED / 2
        });
        let Some(to) = others
            .min_by_key(|(_, worker)| worker.pressure + if worker.complex == complex { 0 } else { AWAY })
            .map(|(index, _)| index)
        else {
            return;
        };
        let count = IDLE_MOVES.min(planned[to].room - IDLE_ROOM).min(planned[from].idle.len());
        for queue in planned[from].idle.drain(..count) {
            self.rest(queue);
            moves.push(Move { queue, from, to });
        }
        planned[to].room -= count;
    }
}

/// A move that would gain something.
#[derive(Clone, Copy)]
struct Best<Q> {
    queue: Q,
    demand: u32,
    from: usize,
    to: usize,
    gain: u32,
}

/// The move from a worker that gains most, if any gains enough. Of equal ones, that within the core complex.
fn best_move<Q: Copy>(planned: &[Planned<Q>], from: usize) -> Option<Best<Q>> {
    let source = &planned[from];
    if !source.is_settled {
        return None;
    }
    let others = || {
        let all = planned.iter().enumerate();
        all.filter(|(index, other)| *index != from && other.is_settled && other.room > 0)
    };
    let near = others().filter(|(_, other)| other.complex == source.complex);
    let far = others().filter(|(_, other)| other.complex != source.complex);
    // The gain only depends on the pressure of the other worker, so the least pressed one in each group is the best.
    let near = near.min_by_key(|(_, other)| other.pressure).map(|(to, _)| (to, 0));
    let far = far.min_by_key(|(_, other)| other.pressure).map(|(to, _)| (to, AWAY));
    let mut best: Option<Best<Q>> = None;
    for (to, cost) in near.into_iter().chain(far) {
        for (demand, queue) in source.movable.iter().copied() {
            let larger = (source.pressure - demand).max(planned[to].pressure + demand);
            let gain = source.pressure.saturating_sub(larger).saturating_sub(cost);
            if gain >= MIN_GAIN.max(demand / GAIN_PART) && best.is_none_or(|best| gain > best.gain) {
                best = Some(Best { queue, demand, from, to, gain });
            }
        }
    }
    best
}

#[cfg(test)]
mod tests;
