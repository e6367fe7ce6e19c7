//! A CPU in virtual time: one worker that serves its channels in turns. It models time and moves no bytes.
//!
//! ```text
//! poll(now) ─ last round over? ─► round: `turns` chunks of each channel, one after the other ─► busy until its end
//! perform   ─────────────────────► the next round begins later
//! ```
//!
//! Used to test policies by the progress of each channel. A suspended channel comes to rest at the end of the round in
//! which it last moved, like a real worker's. Chunk size and speed are parameters; no real machine is modelled.

use memferry_clock::Instant;
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Confined, Descriptor, Engine, EngineCapabilities, EngineCompletion, EngineKind, Failure, Operations,
    Outcome, Refused, Ticket,
};

use crate::SimMemory;

#[derive(Debug)]
struct Channel {
    serial: u32,
    turns: u32,
    job: Option<Job>,
    /// End of the channel's part of the last round.
    moving_until: Instant,
}

#[derive(Debug)]
struct Job {
    total: u64,
    done: u64,
    started: bool,
    cancelled: bool,
    /// End of its last chunk.
    ends: Option<Instant>,
}

#[derive(Debug)]
pub struct WorkerModel {
    channels: Vec<Channel>,
    chunk_bytes: u64,
    ps_per_byte: u64,
    now: Instant,
    busy_until: Instant,
    immediate_bytes: u64,
    /// Time of the requests done at once since the last round, picoseconds.
    performed_ps: u128,
}

impl WorkerModel {
    /// A worker with `channels` channels; it moves chunks of `chunk_bytes` bytes at `ps_per_byte` picoseconds per byte.
    pub fn new(channels: u32, chunk_bytes: u64, ps_per_byte: u64) -> Self {
        let channels = (0..channels)
            .map(|_| Channel { serial: 0, turns: 1, job: None, moving_until: Instant::ORIGIN })
            .collect();
        let now = Instant::ORIGIN;
        let busy_until = Instant::ORIGIN;
        let chunk_bytes = chunk_bytes.max(1);
        let immediate_bytes = 0;
        let performed_ps = 0;
        Self { channels, chunk_bytes, ps_per_byte, now, busy_until, immediate_bytes, performed_ps }
    }

    /// Does requests of up to `bytes` at once.
    #[must_use]
    pub fn with_immediate(self, bytes: u64) -> Self {
        Self { immediate_bytes: bytes, ..self }
    }

    /// The end of the present round. A worker takes no requests before.
    pub const fn busy_until(&self) -> Instant {
        self.busy_until
    }

    fn round(&mut self) {
        let mut end = self.now.after_picoseconds(std::mem::take(&mut self.performed_ps));
        for channel in &mut self.channels {
            let Some(job) = channel.job.as_mut().filter(|job| job.started && job.ends.is_none()) else {
                continue;
            };
            for _ in 0..channel.turns {
                let bytes = (job.total - job.done).min(self.chunk_bytes);
                job.done += bytes;
                end = end.after_picoseconds(u128::from(bytes) * u128::from(self.ps_per_byte));
                channel.moving_until = end;
                if job.done == job.total {
                    job.ends = Some(end);
                    break;
                }
            }
        }
        self.busy_until = end;
    }
}

impl Engine for WorkerModel {
    type Memory = SimMemory;

    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            kind: EngineKind::Simulated,
            channels: self.channels.len() as u32,
            longest_bytes: u64::MAX,
            preemption_bytes: Some(self.chunk_bytes),
            overlapping_copy: true,
            aligned_pixels: false,
            operations: Operations::OF_MEMORY,
            immediate_bytes: self.immediate_bytes,
        }
    }

    fn post(&mut self, descriptor: Descriptor<SimMemory>) -> Result<Ticket, Refused<Descriptor<SimMemory>>> {
        let number = descriptor.channel();
        let reason = match self.channels.get_mut(number as usize) {
            None => RefusalReason::NoSuchChannel(number),
            Some(Channel { job: Some(_), .. }) => RefusalReason::Busy(number),
            Some(channel) => {
                channel.serial = channel.serial.wrapping_add(1);
                let total = descriptor.operation().total_bytes();
                let started = false;
                let cancelled = false;
                channel.job = Some(Job { total, done: 0, started, cancelled, ends: None });
                return Ok(Ticket { channel: number, serial: channel.serial });
            }
        };
        Err(Refused { descriptor, reason })
    }

    fn ring_doorbell(&mut self) {
        self.channels
            .iter_mut()
            .filter_map(|channel| channel.job.as_mut())
            .for_each(|job| job.started = true);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        self.now = self.now.max(now);
        let now = self.now;
        for (number, channel) in (0..).zip(&mut self.channels) {
            let ticket = Ticket { channel: number, serial: channel.serial };
            let over = channel.job.take_if(|job| {
                job.ends.is_some_and(|end| end <= now) || (job.cancelled && self.busy_until <= now)
            });
            if let Some(job) = over {
                let outcome = if job.ends.is_some() { Ok(()) } else { Err(Failure::Cancelled) };
                completions.push(EngineCompletion {
                    ticket,
                    outcome: Outcome {
                        result: outcome,
                        bytes_done: job.done,
                        value: 0,
                        engine: EngineKind::Simulated,
                    },
                });
            }
        }
        if self.busy_until <= now {
            self.round();
        }
        false
    }

    fn perform(&mut self, confined: &Confined<'_, &SimMemory>) -> Option<Outcome> {
        let bytes_done = confined.operation().total_bytes();
        if bytes_done > self.immediate_bytes {
            return None;
        }
        self.performed_ps += u128::from(bytes_done) * u128::from(self.ps_per_byte);
        Some(Outcome { result: Ok(()), bytes_done, value: 0, engine: EngineKind::Simulated })
    }

    fn bytes_done(&self, ticket: Ticket) -> u64 {
        let channel = self.channels.get(ticket.channel as usize).filter(|one| one.serial == ticket.serial);
        channel.and_then(|channel| channel.job.as_ref()).map_or(0, |job| job.done)
    }

    fn set_turns(&mut self, channel: u32, turns: u32) {
        if let Some(channel) = self.channels.get_mut(channel as usize) {
            channel.turns = turns;
        }
    }

    fn is_at_rest(&self, channel: u32) -> bool {
        let channel = self.channels.get(channel as usize);
        channel.is_none_or(|one| one.job.is_none() || (one.turns == 0 && one.moving_until <= self.now))
    }

    fn cancel(&mut self, ticket: Ticket) {
        if let Some(channel) = self.channels.get_mut(ticket.channel as usize)
            && channel.serial == ticket.serial
            && let Some(job) = &mut channel.job
        {
            job.cancelled = true;
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let jobs = || self.channels.iter().filter_map(|one| Some((one.turns, one.job.as_ref()?)));
        let ends = jobs().filter_map(|(_, job)| job.ends).min();
        let continues =
            |(turns, job): (u32, &Job)| job.cancelled || (turns > 0 && job.started && job.ends.is_none());
        let round = jobs().any(continues).then_some(self.busy_until.max(self.now));
        // A channel suspended during a round comes to rest at its end.
        let rest = (self.busy_until > self.now).then_some(self.busy_until);
        ends.into_iter().chain(round).chain(rest).min()
    }
}
