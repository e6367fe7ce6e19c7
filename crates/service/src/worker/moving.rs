//! Queues that move between workers: measures what each queue costs, reports it, and hands queues over.
//!
//! ```text
//! some turns, timed ─► time of each queue ─ every interval ─► `Balancing` ─► Give ─► the worker that has the queue
//! Give ─► takes no more requests of it ─ all that were taken have ended ─► its client's word for the worker ─► Open ─► new worker
//!                                      └ too late: it stays
//! ```
//!
//! Requests that were taken end at the old worker. So at no time have two workers a queue, a new worker finds no request that an
//! earlier one could hold back, and neither claims, nor descriptors in engines, nor orders move. A queue whose requests take
//! long, such as a loop without end, stays.
//!
//! The last check for commands and the hand-over happen under [`Shared::no_moves`](crate::shared::Shared::no_moves). So a command
//! about the queue is either done before, or it goes to the new worker, behind the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant as Stopwatch};

use memferry_path::QueueKey;
use memferry_transfer::SessionId;

use super::Worker;
use super::queues::Leaving;
use crate::balance::{IDLE_MOVES, INTERVAL, MAX_GUESTS, Move, QueueLoad, WHOLE, WorkerLoad};
use crate::ring_pool::QueueId;
use crate::shared::{NewQueue, SignalTarget, WorkerCommand};

/// One turn in so many is timed, on average.
const TURNS_PER_TIMED: u32 = 16;
/// One short idle time in so many is measured.
const IDLES_PER_TIMED: u32 = 16;
/// How long requests may take to end before a queue that should leave stays.
const PATIENCE: Duration = Duration::from_millis(10);
/// For how many turns at least.
const PATIENT_TURNS: u32 = 256;

/// Measures how busy a worker is.
pub(super) struct Meter {
    /// The start of the interval.
    since: Stopwatch,
    idle: Duration,
    /// Turns until the next timed one.
    turns: u32,
    idles: u32,
    /// Random, so that timed turns do not always meet the same user.
    random: u32,
}

impl Meter {
    pub(super) fn new() -> Self {
        let since = Stopwatch::now();
        Self { since, idle: Duration::ZERO, turns: TURNS_PER_TIMED, idles: 0, random: 1 }
    }

    /// Whether this turn is timed.
    #[inline]
    pub(super) fn times_turn(&mut self) -> bool {
        self.turns -= 1;
        self.turns == 0 && {
            self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            self.turns = 1 + (self.random >> 16) % (2 * TURNS_PER_TIMED - 1);
            true
        }
    }

    /// The worker was idle since then, by spinning only.
    #[inline]
    pub(super) fn idled_shortly(&mut self, since: Stopwatch) {
        self.idles = self.idles.wrapping_add(1);
        if self.idles.is_multiple_of(IDLES_PER_TIMED) {
            self.idle += IDLES_PER_TIMED * since.elapsed();
        }
    }

    /// The start of a glance, if this one is measured. The others do not read the clock.
    pub(super) fn samples_glance(&mut self) -> Option<Stopwatch> {
        self.idles = self.idles.wrapping_add(1);
        self.idles.is_multiple_of(IDLES_PER_TIMED).then(Stopwatch::now)
    }

    /// The worker was idle during a glance that began then.
    pub(super) fn glanced(&mut self, since: Stopwatch) {
        self.idle += IDLES_PER_TIMED * since.elapsed();
    }

    /// The worker was idle since then.
    pub(super) fn idled(&mut self, since: Stopwatch) {
        self.idle += since.elapsed();
    }

    /// If the interval is over: the part of it in which the worker was busy. Another one begins.
    fn end_interval(&mut self, now: Stopwatch) -> Option<u32> {
        let length = now.saturating_duration_since(self.since);
        if length < INTERVAL {
            return None;
        }
        let idle = std::mem::take(&mut self.idle).min(length);
        self.since = now;
        Some(((length - idle).as_nanos() * u128::from(WHOLE) / length.as_nanos()) as u32)
    }
}

/// A queue's part of a time.
fn part(busy: u32, used: u64, all: u64) -> u32 {
    (u128::from(busy) * u128::from(used) / u128::from(all.max(1))) as u32
}

impl Worker {
    /// Takes a batch of requests from one queue, and charges it if the turn is timed.
    #[inline]
    pub(super) fn take_requests_timed(&mut self, index: usize, timed: bool) -> bool {
        if !timed {
            return self.take_requests(index);
        }
        let started = Stopwatch::now();
        let worked = self.take_requests(index);
        if worked {
            self.charge(index, started.elapsed());
        }
        worked
    }

    fn charge(&mut self, index: usize, time: Duration) {
        if let Some(queue) = self.queues.get_mut(index) {
            queue.used += time.as_nanos() as u64;
        }
    }

    /// The queues of running requests of `user`, or of all, and the time now, if the turn is timed. For
    /// [`charge_running`](Self::charge_running).
    #[inline]
    pub(super) fn time_running(&self, user: Option<u32>, timed: bool) -> Option<(Stopwatch, Vec<QueueKey>)> {
        (timed && self.path.progresses())
            .then(|| (Stopwatch::now(), self.path.running_queues(user).collect()))
    }

    /// Charges the queues of requests that ran equally: the worker moves them by turns.
    #[inline]
    pub(super) fn charge_running(&mut self, timed: Option<(Stopwatch, Vec<QueueKey>)>) {
        let Some((started, queues)) = timed else { return };
        let each = started.elapsed() / queues.len().max(1) as u32;
        queues.iter().for_each(|key| self.charge(key.0 as usize, each));
    }

    /// Reports the load of this worker if an interval is over, and has queues moved.
    pub(super) fn balance(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        let now = Stopwatch::now();
        // A worker that does not come to report now does with its next timed turn.
        let shared = Arc::clone(&self.shared);
        let Ok(mut balancing) = shared.balancing.try_lock() else { return };
        let Some(busy) = self.meter.as_mut().and_then(|meter| meter.end_interval(now)) else { return };
        let load = self.load(busy, balancing.complex_of(self.number));
        let sleeps = |worker: usize| shared.workers[worker].parked.is_set();
        let moves = balancing.report(self.number, now, load, sleeps);
        drop(balancing);
        for Move { queue: (session, number), from, to } in moves {
            shared.workers[from].send(WorkerCommand::Give { session, number, to });
        }
    }

    fn load(&mut self, busy: u32, complex: usize) -> WorkerLoad<QueueId> {
        let idle = self.queues.some_dormant(IDLE_MOVES);
        let indices: Vec<_> = self.queues.awake().iter().copied().chain(idle).collect();
        let used = |index: &usize| self.queues.get(*index).map_or(0, |queue| queue.used);
        let all: u64 = indices.iter().map(used).sum();
        // These policies divide the time of one worker among its own clients.
        let paces = self.path.paces();
        let queues = indices.iter().filter_map(|index| {
            let queue = self.queues.get_mut(*index)?;
            let used = std::mem::take(&mut queue.used);
            Some(QueueLoad {
                queue: (queue.session, queue.number),
                used: part(busy, used, all),
                may_move: !paces && queue.bells.can_move() && !self.shares.rests(queue.user),
            })
        });
        let queues = queues.collect();
        let room = MAX_GUESTS.saturating_sub(self.queues.guests());
        WorkerLoad { complex, room, queues }
    }

    /// Takes no more requests of a queue until it has left.
    pub(super) fn give(&mut self, session: SessionId, number: u32, to: usize) {
        let Some((index, false)) = self.queues.find(session, number) else { return };
        let signals_rings = self.shared.workers.get(to).is_some_and(|worker| worker.signals_rings());
        let Some(queue) = self.queues.get_mut(index) else { return };
        let needs_ring = matches!(queue.target, Some(SignalTarget::Ring(..)));
        if to == self.number || !queue.bells.can_move() || needs_ring && !signals_rings {
            return;
        }
        queue.leaving = Some(Leaving { to, until: Stopwatch::now() + PATIENCE, since: self.turns });
        self.leaving.push(index);
    }

    /// Hands over the leaving queues that have nothing outstanding, and keeps those whose requests take too long.
    pub(super) fn hand_over_quiet(&mut self) {
        for index in std::mem::take(&mut self.leaving) {
            let Some(Leaving { to, until, since }) = self.queues.get(index).and_then(|queue| queue.leaving)
            else {
                continue;
            };
            if self.path.is_quiet(QueueKey(index as u32)) && self.hand_over(index, to) {
                continue;
            }
            if self.turns.wrapping_sub(since) < PATIENT_TURNS || Stopwatch::now() < until {
                self.leaving.push(index);
            } else if let Some(queue) = self.queues.get_mut(index) {
                queue.leaving = None;
            }
        }
    }

    /// Keeps the leaving queues.
    pub(super) fn keep_leaving(&mut self) {
        for index in std::mem::take(&mut self.leaving) {
            if let Some(queue) = self.queues.get_mut(index) {
                queue.leaving = None;
            }
        }
    }

    /// Hands over a queue that has nothing outstanding. Returns false if a command has to be handled first.
    fn hand_over(&mut self, index: usize, to: usize) -> bool {
        let shared = Arc::clone(&self.shared);
        let _no_other_moves = shared.no_moves();
        if self.stopping.is_some() || self.handle.pending.load(Ordering::Acquire) {
            return false;
        }
        let Some((queue, awake)) = self.queues.close(index) else { return true };
        if awake {
            self.shares.forget(queue.user, index);
        }
        let Some(mut queue) = self.queues.take(index) else { return true };
        self.shares.close(queue.user);
        self.path.close_queue(QueueKey(index as u32), &mut Self::capabilities(&shared));
        self.handle.counters.queues.set(self.queues.count() as u64);
        queue.end.publish_all_consumed();
        queue.end.set_worker(to);
        queue.counters.move_to(to);
        shared.workers[to].send(WorkerCommand::Open(NewQueue {
            session: queue.session,
            number: queue.number,
            user: queue.user,
            class: queue.class,
            end: queue.end,
            bells: queue.bells,
            target: queue.target,
            counters: queue.counters,
        }));
        true
    }
}

#[cfg(test)]
mod tests;
