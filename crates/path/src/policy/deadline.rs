//! Earliest deadline first, with admission control: a deadline that was accepted is one that can be met.
//!
//! ```text
//! accept   for each deadline: bytes due until then + two chunks ≤ what the worker moves until then × 9/10, or refused
//! choose   requests without a deadline leave channels free
//! urgency  the deadline            pace  the earliest alone moves on; of ten chunks one is for those without
//! ```
//!
//! Liu and Layland's rule for one processor, at the grain of the engine's chunks: what is accepted is met as long as the worker
//! moves as much as it is configured to. The tenth that is kept back is for requests without a deadline. The two chunks are
//! what may be on its way when a request with an earlier deadline comes. A real-time policy as Papa 2014 asks for in its
//! future work.

use memferry_clock::Instant;
use memferry_transfer::{Failure, SessionId};

use super::{
    Acts, AllOutstanding, Ask, ChannelState, Choice, Outstanding, Policy, Shared, leaving_an_eighth,
};

/// Of what a worker moves, how much may be promised.
const PROMISED_TENTHS: u128 = 9;
/// A report of more is one of several chunks, bytes.
const MOST_CHUNK: u64 = 4 << 20;
const PICOSECONDS: u128 = 1_000_000_000_000;

/// The earliest deadline goes first.
#[derive(Debug)]
pub struct Deadline {
    channels: Shared,
    bytes_per_second: u64,
    /// The most that was moved at once: a chunk.
    chunk_bytes: u64,
    /// What requests without a deadline may move, in ninths of a byte.
    spare: i128,
}

impl Deadline {
    /// A policy of a worker that moves so many bytes a second.
    pub const fn new(bytes_per_second: u64) -> Self {
        Self { channels: Shared::new(), bytes_per_second, chunk_bytes: 0, spare: 0 }
    }

    /// Whether so many bytes can be promised for `deadline`.
    fn meets(&self, now: Instant, bytes: u64, deadline: Instant) -> bool {
        let left = deadline.picoseconds().saturating_sub(now.picoseconds());
        let needed = u128::from(bytes) * PICOSECONDS * 10;
        needed <= left.saturating_mul(u128::from(self.bytes_per_second)).saturating_mul(PROMISED_TENTHS)
    }
}

impl Policy for Deadline {
    fn name(&self) -> &'static str {
        "deadline"
    }

    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
        match ask.deadline {
            Some(_) => self.channels.choose(ask, channels),
            None => leaving_an_eighth(&mut self.channels, ask, channels),
        }
    }

    fn departed(&mut self, _client: SessionId) {}

    fn acts(&self) -> Acts {
        Acts::ACCEPTS | Acts::ORDERS | Acts::PACES
    }

    fn accept(&mut self, now: Instant, ask: &Ask, outstanding: &AllOutstanding<'_>) -> Result<(), Failure> {
        let Some(deadline) = ask.deadline else { return Ok(()) };
        let promised = outstanding()
            .into_iter()
            .filter_map(|one| Some((one.ask.deadline?, one.ask.bytes.saturating_sub(one.done))));
        let mut due: Vec<(Instant, u64)> = promised.chain([(deadline, ask.bytes)]).collect();
        due.sort_unstable();
        let mut bytes = 2 * self.chunk_bytes;
        for (until, more) in due {
            bytes = bytes.saturating_add(more);
            // Earlier promises are not this request's to break, and were not.
            if until >= deadline && !self.meets(now, bytes, until) {
                return Err(Failure::DeadlineUnreachable);
            }
        }
        Ok(())
    }

    fn urgency(&self, ask: &Ask) -> u64 {
        let nanoseconds = |deadline: Instant| deadline.picoseconds() / 1000;
        ask.deadline.map_or(u64::MAX, |deadline| u64::try_from(nanoseconds(deadline)).unwrap_or(u64::MAX))
    }

    fn pace(&mut self, _now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        let with_deadline = |(index, one): (usize, &Outstanding)| Some((one.ask.deadline?, index));
        let Some((_, first)) = running.iter().enumerate().filter_map(with_deadline).min() else {
            // Nothing is gathered for a time in which nobody has a deadline.
            self.spare = 0;
            return None;
        };
        let others = || running.iter().enumerate().filter(|(_, one)| one.ask.deadline.is_none());
        let least = others().min_by_key(|(_, one)| one.done).filter(|_| self.spare > 0);
        let moving = least.map_or(first, |(index, _)| index);
        turns.iter_mut().enumerate().for_each(|(index, turns)| *turns = u32::from(index == moving));
        None
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        self.chunk_bytes = self.chunk_bytes.max(bytes.min(MOST_CHUNK));
        match ask.deadline {
            Some(_) => self.spare += i128::from(bytes),
            None => self.spare -= 9 * i128::from(bytes),
        }
        // Who came late does not find what was spared for nobody.
        self.spare = self.spare.min(9 * i128::from(self.chunk_bytes));
    }
}
