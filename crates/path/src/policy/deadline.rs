//! Earliest deadline first, with admission control: accepts a request only if its deadline can be met.
//!
//! ```text
//! accept   for each deadline: bytes due until then + two chunks ≤ 9/10 of what the worker moves until then, or refused
//!          the same for the bytes of the request's user and its part of these 9/10
//! choose   requests without a deadline leave channels free
//! urgency  the deadline
//! pace     only the earliest deadline moves; one chunk of ten goes to requests without a deadline
//! ```
//!
//! Liu and Layland's rule for one processor, at the grain of the engine's chunks: accepted deadlines are met if the worker moves
//! as much as it is configured to. The remaining tenth is for requests without a deadline. The two chunks may be on their way
//! when a request with an earlier deadline arrives, or one of them and the short requests of the batch under way. Papa 2014 names
//! real-time policies as future work.
//!
//! Users that asked within the last second, or have accepted requests, get equal parts. A single user gets everything that is
//! due within a second, and of what is due later as much as leaves a part to one more user: a user that comes later is not refused
//! for longer than that. Accepted deadlines stay accepted, so several users that come one after the other can have less than their parts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use memferry_clock::Instant;
use memferry_transfer::{Failure, SessionId};

use super::{
    Acts, AllOutstanding, Ask, ChannelState, Choice, Outstanding, Policy, Shared, leaving_an_eighth,
};

/// Share of a worker's capacity that accepted deadlines may use.
const PROMISED_TENTHS: u128 = 9;
/// Largest chunk in bytes. A report of more bytes covers several chunks.
const MAX_CHUNK: u64 = 4 << 20;
const PICOSECONDS: u128 = 1_000_000_000_000;
/// A user counts for so long after it asked. What is due later than that leaves a part to one more user.
const LATELY: Duration = Duration::from_secs(1);

/// Earliest deadline first, with admission control.
#[derive(Debug)]
pub struct Deadline {
    channels: Shared,
    bytes_per_second: u64,
    /// The largest chunk reported so far.
    chunk_bytes: u64,
    /// Credit of requests without a deadline, in ninths of a byte.
    spare: i128,
    /// A request with a deadline may be outstanding.
    promised: bool,
    /// When users last asked for a deadline, if that was lately.
    asked: BTreeMap<u32, Instant>,
}

impl Deadline {
    /// A policy for a worker that moves `bytes_per_second`.
    pub const fn new(bytes_per_second: u64) -> Self {
        Self {
            channels: Shared::new(),
            bytes_per_second,
            chunk_bytes: 0,
            spare: 0,
            promised: false,
            asked: BTreeMap::new(),
        }
    }

    /// Keeps at most one chunk: credit from a time without requests that have none must not delay deadlines later.
    fn limit_spare(&mut self) {
        self.spare = self.spare.min(9 * i128::from(self.chunk_bytes));
    }

    /// Whether `bytes` are within one of so many `parts` of what can be promised for a time of `left` picoseconds.
    fn can_promise(&self, bytes: u64, left: u128, parts: u128) -> bool {
        let needed = u128::from(bytes) * PICOSECONDS * 10;
        needed.saturating_mul(parts)
            <= left.saturating_mul(u128::from(self.bytes_per_second)).saturating_mul(PROMISED_TENTHS)
    }

    /// Whether one of so many `users` can be promised `bytes` in total.
    fn is_fair(&self, bytes: u64, left: u128, users: u128) -> bool {
        let soon = left.min(LATELY.as_nanos() * 1000);
        self.can_promise(bytes, soon, users) || self.can_promise(bytes, left, users + 1)
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
        self.asked.retain(|_, asked| now < asked.after(LATELY));
        self.asked.insert(ask.user, now);
        let promised = outstanding().into_iter().filter_map(|one| {
            Some((one.ask.deadline?, one.ask.user, one.ask.bytes.saturating_sub(one.done)))
        });
        let mut due: Vec<(Instant, u32, u64)> = promised.chain([(deadline, ask.user, ask.bytes)]).collect();
        due.sort_unstable();
        let users: BTreeSet<u32> =
            due.iter().map(|(_, user, _)| *user).chain(self.asked.keys().copied()).collect();
        let slack = 2 * self.chunk_bytes;
        let mut all = slack;
        let mut own = slack;
        for (until, user, bytes) in due {
            all = all.saturating_add(bytes);
            own = own.saturating_add(if user == ask.user { bytes } else { 0 });
            let left = until.picoseconds().saturating_sub(now.picoseconds());
            // This request does not delay earlier deadlines, which were checked when they were accepted.
            if until >= deadline
                && !(self.can_promise(all, left, 1) && self.is_fair(own, left, users.len() as u128))
            {
                return Err(Failure::DeadlineUnreachable);
            }
        }
        self.promised = true;
        Ok(())
    }

    fn urgency(&self, ask: &Ask) -> u64 {
        let nanoseconds = |deadline: Instant| deadline.picoseconds() / 1000;
        ask.deadline.map_or(u64::MAX, |deadline| u64::try_from(nanoseconds(deadline)).unwrap_or(u64::MAX))
    }

    fn pace(&mut self, _now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        let with_deadline = |(index, one): (usize, &Outstanding)| Some((one.ask.deadline?, index));
        let Some((_, first)) = running.iter().enumerate().filter_map(with_deadline).min() else {
            // Without deadlines, no credit is needed.
            self.spare = 0;
            self.promised = false;
            return None;
        };
        self.promised = true;
        let others = || running.iter().enumerate().filter(|(_, one)| one.ask.deadline.is_none());
        let furthest_behind = others().min_by_key(|(_, one)| one.done).filter(|_| self.spare > 0);
        let moving = furthest_behind.map_or(first, |(index, _)| index);
        turns.iter_mut().enumerate().for_each(|(index, turns)| *turns = u32::from(index == moving));
        None
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        self.chunk_bytes = self.chunk_bytes.max(bytes.min(MAX_CHUNK));
        match ask.deadline {
            Some(_) => self.spare += i128::from(bytes),
            None => self.spare -= 9 * i128::from(bytes),
        }
        self.limit_spare();
    }

    fn lend(&mut self, ask: &Ask, at_most: u64) -> u64 {
        if !self.promised {
            return at_most;
        }
        let bytes = (self.spare / 9).clamp(0, i128::from(at_most));
        if bytes < i128::from(ask.bytes) {
            return 0;
        }
        self.spare -= 9 * bytes;
        bytes as u64
    }

    fn take_back(&mut self, _ask: &Ask, _used: u64, unused: u64) {
        if self.promised {
            self.spare += 9 * i128::from(unused);
            self.limit_spare();
        }
    }
}
