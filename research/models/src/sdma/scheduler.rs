//! Scheduler: assigns the threads of the read port and the write port to channels.
//!
//! ```text
//! 32 channels ── ready? ──► high priority ──┐ arbitration rate   ┌─► 4 read threads ──► read port
//!                     └───► low priority ───┴────────────────────┴─► 2 write threads ─► write port
//! ```
//!
//! A turn is one transaction and holds one thread until the transaction ends. A channel queues again as soon as its
//! transaction is sent, so that it can hold several threads; how many, does not depend on the other channels. Within a
//! priority the channel that has waited longest goes first. High priority goes first, but after GCR's arbitration rate of consecutive high turns a waiting
//! low-priority channel is served. Threads can be reserved for high priority.

use super::Sdma;
use crate::Bus;
use memferry_clock::Instant;
use memferry_registers::sdma::{FifoBudget, ThreadReservation};

/// Read threads of the device (paper, section 2.3.1).
pub const READ_THREADS: usize = 4;

/// Write threads of the device (paper, section 2.3.1).
pub const WRITE_THREADS: usize = 2;

/// Minimum share of a priority in the FIFO pool: an access of any size fits.
const SMALLEST_BUDGET: u32 = 64;

/// A port of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Reads from sources, and descriptors.
    Read,
    Write,
}

/// The running channels, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Running(u32);

impl Running {
    pub(super) const fn insert(&mut self, channel: usize) {
        self.0 |= 1 << channel;
    }

    pub(super) const fn remove(&mut self, channel: usize) {
        self.0 &= !(1 << channel);
    }

    /// The channels in ascending order.
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let channel = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (channel < u32::BITS).then_some(channel as usize)
        })
    }
}

/// State of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Threads {
    /// The channel on each thread.
    pub(super) channels: [Option<u8>; READ_THREADS],
    /// Time at which the port can carry the next transaction.
    pub(super) free_at: Instant,
    /// High-priority turns since the last low-priority one.
    high_turns: u32,
    count: usize,
}

impl Threads {
    pub(super) const fn new(count: usize) -> Self {
        Self { channels: [None; READ_THREADS], free_at: Instant::ORIGIN, high_turns: 0, count }
    }

    /// Ends the turn on `thread`.
    pub(super) fn release(&mut self, thread: usize) {
        if let Some(thread) = self.channels.get_mut(thread) {
            *thread = None;
        }
    }

    /// The channel on each thread that the port has.
    pub(super) fn carried(&self) -> impl Iterator<Item = Option<usize>> {
        self.channels[..self.count].iter().map(|thread| thread.map(usize::from))
    }
}

impl<B: Bus> Sdma<B> {
    /// The channel on each thread of `port`.
    pub fn threads(&self, port: Port) -> impl Iterator<Item = Option<usize>> {
        self.ports[port as usize].carried()
    }

    /// Assigns free threads to channels that can use them.
    pub(super) fn schedule(&mut self) {
        if self.reset_until.is_some() {
            return;
        }
        // The writes first, since they free FIFO room.
        for port in [Port::Write, Port::Read] {
            for thread in 0..self.ports[port as usize].count {
                let high_only = thread < self.reserved_threads(port);
                // A turn that ends at once with an error leaves the thread free for the next channel.
                while self.ports[port as usize].channels[thread].is_none() {
                    let Some(channel) = self.choose(port, high_only) else {
                        break;
                    };
                    self.take_turn(port, thread, channel);
                }
                let idle = self.ports[port as usize].channels[thread].is_none();
                if idle && !high_only {
                    break;
                }
            }
        }
    }

    /// Number of threads of `port`, from the first, reserved for high-priority channels.
    const fn reserved_threads(&self, port: Port) -> usize {
        match (self.gcr.thread_reservation(), port) {
            (ThreadReservation::None, _) => 0,
            (_, Port::Write) | (ThreadReservation::One, Port::Read) => 1,
            (ThreadReservation::Two, Port::Read) => 2,
            (ThreadReservation::Three, Port::Read) => 3,
        }
    }

    /// The channel with the next turn on `port`.
    fn choose(&self, port: Port, high_only: bool) -> Option<usize> {
        let turn = |channel: usize| self.channels[channel].last_turn[port as usize];
        // Of each priority, the channel that has waited longest; of equal ones, the first.
        let mut next: [Option<usize>; 2] = [None; 2];
        for channel in self.running.iter() {
            let is_high = self.is_high(channel, port);
            let first = &mut next[usize::from(is_high)];
            let waited = first.is_none_or(|first| turn(channel) < turn(first));
            if waited && (is_high || !high_only) && self.is_ready(channel, port) {
                *first = Some(channel);
            }
        }
        let [low, high] = next;
        let rate = u32::from(self.gcr.arbitration_rate()).max(1);
        match high {
            Some(high) if high_only || self.ports[port as usize].high_turns < rate => Some(high),
            _ => low.or(high),
        }
    }

    fn take_turn(&mut self, port: Port, thread: usize, channel: usize) {
        let high = self.is_high(channel, port);
        let threads = &mut self.ports[port as usize];
        threads.channels[thread] = Some(channel as u8);
        threads.high_turns = if high { threads.high_turns.saturating_add(1) } else { 0 };
        self.turns += 1;
        self.channels[channel].last_turn[port as usize] = self.turns;
        match port {
            Port::Read => self.read_turn(channel, thread),
            Port::Write => self.write_turn(channel, thread),
        }
    }

    pub(super) fn is_high(&self, channel: usize, port: Port) -> bool {
        let ccr = self.channels[channel].registers.ccr();
        match port {
            Port::Read => ccr.read_priority(),
            Port::Write => ccr.write_priority(),
        }
    }

    fn is_ready(&self, channel: usize, port: Port) -> bool {
        let Some(run) = self.channels[channel].run.as_ref() else {
            return false;
        };
        match port {
            Port::Read => run.reads < self.config.timing.channel_reads.max(1) && self.can_read(channel),
            Port::Write => {
                let room = run.writes < self.config.timing.channel_writes.max(1);
                room && !run.awaits_answer && self.can_write(channel)
            }
        }
    }

    /// Bytes of the FIFO pool that `channel` may still reserve.
    pub(super) fn pool_room(&self, channel: usize) -> u32 {
        let high = self.is_high(channel, Port::Read);
        let pool = self.config.fifo_pool_bytes;
        let low = match self.gcr.fifo_budget() {
            FifoBudget::Shared => None,
            FifoBudget::Low75 => Some(pool / 4 * 3),
            FifoBudget::Low25 => Some(pool / 4),
            FifoBudget::Low50 => Some(pool / 2),
        };
        let budget = match (low, high) {
            (None, _) => pool,
            (Some(low), false) => low,
            (Some(low), true) => pool - low,
        };
        let used: u32 = self
            .running
            .iter()
            .filter(|other| low.is_none() || self.is_high(*other, Port::Read) == high)
            .filter_map(|other| self.channels[other].block())
            .map(|block| block.fifo.used())
            .sum();
        budget.max(SMALLEST_BUDGET).saturating_sub(used)
    }
}
