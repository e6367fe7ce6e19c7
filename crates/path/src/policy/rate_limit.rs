//! Rate limit: a token bucket for each user, of bytes.
//!
//! ```text
//! time ── bytes a second ──► bucket (at most the burst) ── bytes moved ──► empty: suspended until there is something in it
//! ```
//!
//! A chunk is moved as soon as the bucket is not empty, so it may fall below zero by a chunk of each of the user's requests, which is
//! paid before the next: over time no user moves more than rate × time + burst + that on a worker. Users count, not clients: opening
//! more sessions gives nothing beyond the workers they are spread over, each of which has its own buckets.

use std::collections::BTreeMap;

use memferry_clock::Instant;
use memferry_transfer::SessionId;

use super::{Acts, Ask, ChannelState, Choice, Outstanding, Policy, Shared};

const PICOSECONDS: i128 = 1_000_000_000_000;

/// What a user may move now, in bytes × picoseconds, and when that was counted.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: i128,
    at: Instant,
}

/// Nobody moves more than so much a second.
#[derive(Debug)]
pub struct RateLimit {
    channels: Shared,
    bytes_per_second: u64,
    burst_bytes: u64,
    buckets: BTreeMap<u32, Bucket>,
    now: Instant,
}

impl RateLimit {
    /// At most `bytes_per_second` (at least 1) for each user, and `burst_bytes` at once after a rest.
    pub fn new(bytes_per_second: u64, burst_bytes: u64) -> Self {
        let channels = Shared::new();
        let buckets = BTreeMap::new();
        Self {
            channels,
            bytes_per_second: bytes_per_second.max(1),
            burst_bytes,
            buckets,
            now: Instant::ORIGIN,
        }
    }

    fn full(&self) -> i128 {
        i128::from(self.burst_bytes.max(1)) * PICOSECONDS
    }

    /// The user's bucket, filled up to now.
    fn bucket(&mut self, user: u32) -> &mut Bucket {
        let now = self.now;
        let full = self.full();
        let rate = i128::from(self.bytes_per_second);
        let bucket = self.buckets.entry(user).or_insert(Bucket { tokens: full, at: now });
        let passed = now.picoseconds().saturating_sub(bucket.at.picoseconds());
        let filled = rate.saturating_mul(i128::try_from(passed).unwrap_or(i128::MAX));
        bucket.tokens = bucket.tokens.saturating_add(filled).min(full);
        bucket.at = now;
        bucket
    }
}

impl Policy for RateLimit {
    fn name(&self) -> &'static str {
        "rate-limit"
    }

    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
        self.channels.choose(ask, channels)
    }

    fn departed(&mut self, _client: SessionId) {
        // Debts stay, or a client could shed its own by coming again; a full bucket is what one who comes finds anyway.
        let now = self.now;
        let full = self.full();
        let rate = i128::from(self.bytes_per_second);
        self.buckets.retain(|_, bucket| {
            let passed = now.picoseconds().saturating_sub(bucket.at.picoseconds());
            let filled = rate.saturating_mul(i128::try_from(passed).unwrap_or(i128::MAX));
            bucket.tokens.saturating_add(filled) < full
        });
    }

    fn acts(&self) -> Acts {
        Acts::PACES
    }

    fn pace(&mut self, now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        self.now = self.now.max(now);
        let rate = i128::from(self.bytes_per_second);
        let mut wake = None;
        for (one, turns) in running.iter().zip(turns) {
            let tokens = self.bucket(one.ask.user).tokens;
            if tokens <= 0 {
                *turns = 0;
                let wait = u128::try_from(-tokens / rate).unwrap_or(0) + 1;
                let filled = self.now.after_picoseconds(wait);
                wake = Some(wake.map_or(filled, |wake: Instant| wake.min(filled)));
            }
        }
        wake
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        let cost = i128::from(bytes) * PICOSECONDS;
        let bucket = self.bucket(ask.user);
        bucket.tokens = bucket.tokens.saturating_sub(cost);
    }
}
