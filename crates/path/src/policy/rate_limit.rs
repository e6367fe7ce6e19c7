//! Rate limit: a token bucket of bytes for each user.
//!
//! ```text
//! time ── bytes a second ──► bucket (at most the burst) ── bytes moved ──► empty: suspended until it refills
//! ```
//!
//! A chunk moves whenever the bucket is not empty, so the bucket may fall below zero by a chunk of each of the user's requests.
//! That debt is paid before the next chunk: on one worker, a user moves at most rate × time + burst + one chunk of each of its
//! requests. Short requests done at once pay from the same bucket in advance, so they add nothing to that. The bucket fills when long
//! requests move: once it is empty, a short one goes through a channel, which fills it. Buckets belong to users, not clients, so more sessions gain nothing, except that each worker has its own buckets.

use std::collections::BTreeMap;

use memferry_clock::Instant;
use memferry_transfer::SessionId;

use super::{Acts, Ask, ChannelState, Choice, Outstanding, Policy, Shared};

const PICOSECONDS: i128 = 1_000_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// What the user may move, in bytes × 10¹².
    tokens: i128,
    /// When `tokens` was last filled up.
    at: Instant,
}

/// Limits the bytes per second of each user.
#[derive(Debug)]
pub struct RateLimit {
    channels: Shared,
    bytes_per_second: u64,
    burst_bytes: u64,
    buckets: BTreeMap<u32, Bucket>,
    now: Instant,
}

impl RateLimit {
    /// Limits each user to `bytes_per_second` (raised to 1 if 0), and to `burst_bytes` at once after a pause.
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
        // Debts stay, or a client could clear its own by reconnecting. Full buckets go: new users start with one.
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

    fn lend(&mut self, ask: &Ask, at_most: u64) -> u64 {
        let bucket = self.bucket(ask.user);
        let bytes = (bucket.tokens / PICOSECONDS).clamp(0, i128::from(at_most));
        if bytes < i128::from(ask.bytes) {
            return 0;
        }
        bucket.tokens -= bytes * PICOSECONDS;
        bytes as u64
    }

    fn take_back(&mut self, ask: &Ask, _used: u64, unused: u64) {
        let full = self.full();
        let bucket = self.bucket(ask.user);
        bucket.tokens = (bucket.tokens + i128::from(unused) * PICOSECONDS).min(full);
    }
}
