//! Weighted fair sharing: deficit round robin over chunks (Shreedhar and Varghese 1995, with chunks for packets).
//!
//! ```text
//! user's weight = its configured weight × that of its highest class ── divided among its clients by class ──► share of a client
//! turn: credit += share ─► credit > 0: its requests move ─► credit -= bytes moved
//! ```
//!
//! Users share by weight, and the clients of a user divide its share: opening more sessions gains nothing. Credit is in bytes, so
//! long and short requests are charged alike. An idle client gains no credit, but keeps its debt until it departs. Shares hold
//! among the clients of one worker.

use std::collections::BTreeMap;
use std::time::Duration;

use memferry_clock::Instant;
use memferry_transfer::{PriorityClass, SessionId};

use super::{Acts, Ask, ChannelState, Choice, Outstanding, Policy, Shared};

/// Bytes of credit that the largest share gains in a turn: less than an engine's chunk, so that clients alternate by chunks.
const TURN_BYTES: i64 = 64 << 10;
/// Fixed-point unit in which shares are computed.
const PARTS: u64 = 1 << 16;
/// Maximum chunks of one client in a turn.
const MAX_TURNS: u32 = 4;
/// How long to wait for clients with credit that do not move, before the others gain credit.
const STANDSTILL: Duration = Duration::from_millis(1);
/// Maximum credit of a client, bytes.
const MAX_CREDIT: i64 = 4 * TURN_BYTES;

/// Weighted fair sharing among users and their clients.
#[derive(Debug)]
pub struct Weighted {
    channels: Shared,
    /// Weights of the classes low, normal and high.
    classes: [u32; 3],
    /// Weights of single users; others have 1.
    users: BTreeMap<u32, u32>,
    /// Credit of clients with work or debts, bytes.
    credit: BTreeMap<SessionId, i64>,
    /// Channels of each client that runs requests, or asked for a channel since the last `pace`.
    held: BTreeMap<SessionId, usize>,
    /// Turns so far; rotates the requests of a client.
    turn: usize,
    /// The time of the last `pace`.
    now: Instant,
    moved_at: Instant,
}

/// A client with running requests, named by index.
struct Active {
    user: u32,
    class: PriorityClass,
    requests: Vec<usize>,
}

impl Weighted {
    /// Weights of the classes low, normal and high, and of single users (others have 1). Weights of 0 count as 1.
    pub fn new(classes: [u32; 3], users: BTreeMap<u32, u32>) -> Self {
        let classes = classes.map(|weight| weight.max(1));
        let now = Instant::ORIGIN;
        let moved_at = Instant::ORIGIN;
        let credit = BTreeMap::new();
        let held = BTreeMap::new();
        Self { channels: Shared::new(), classes, users, credit, held, turn: 0, now, moved_at }
    }

    fn class_weight(&self, class: PriorityClass) -> u64 {
        let [low, normal, high] = self.classes.map(u64::from);
        match class {
            PriorityClass::Low => low,
            PriorityClass::Normal => normal,
            PriorityClass::High => high,
        }
    }

    /// The share of each client, in parts.
    fn shares(&self, active: &BTreeMap<SessionId, Active>) -> BTreeMap<SessionId, u64> {
        // For each user: the sum of its clients' weights, and the highest.
        let mut users: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for one in active.values() {
            let weight = self.class_weight(one.class);
            let (sum, highest) = users.entry(one.user).or_default();
            (*sum, *highest) = (*sum + weight, weight.max(*highest));
        }
        let share = |one: &Active| {
            let (sum, highest) = users.get(&one.user).copied().unwrap_or((1, 1));
            let own = u64::from(self.users.get(&one.user).copied().unwrap_or(1).max(1));
            let share = [own, highest, self.class_weight(one.class)].map(u128::from).iter().product::<u128>();
            u64::try_from(u128::from(PARTS) * share / u128::from(sum.max(1))).unwrap_or(u64::MAX).max(1)
        };
        active.iter().map(|(client, one)| (*client, share(one))).collect()
    }

    /// Adds credit by share until at least one client may move. Clients that have credit but are suspended by another policy delay
    /// the others by [`STANDSTILL`] at most.
    fn add_credit(&mut self, shares: &BTreeMap<SessionId, u64>) {
        let any_credit =
            shares.keys().any(|client| self.credit.get(client).is_some_and(|credit| *credit > 0));
        if any_credit && self.now < self.moved_at.after(STANDSTILL) {
            return;
        }
        let largest = shares.values().copied().max().unwrap_or(1);
        let gain = |share: u64| {
            let gained = i128::from(TURN_BYTES) * i128::from(share) / i128::from(largest);
            i64::try_from(gained).unwrap_or(TURN_BYTES).max(1)
        };
        let needed = shares.iter().map(|(client, share)| {
            let owed = 1 - self.credit.get(client).copied().unwrap_or(0);
            if owed <= 0 { 1 } else { (owed + gain(*share) - 1) / gain(*share) }
        });
        let turns = needed.min().unwrap_or(1).max(1);
        for (client, share) in shares {
            let credit = self.credit.entry(*client).or_insert(0);
            *credit = credit.saturating_add(gain(*share).saturating_mul(turns)).min(MAX_CREDIT);
        }
    }
}

impl Policy for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }

    fn choose(&mut self, ask: &Ask, channels: &[ChannelState]) -> Choice {
        // Limits the channels of each client, because a client without a channel cannot use its share.
        let held = self.held.entry(ask.client).or_insert(0);
        let own = *held;
        let usable = channels.len() - channels.len() / 8;
        let limit = usable.div_ceil(self.held.len()).max(1);
        if own >= limit && self.held.len() > 1 {
            return Choice::Busy { usable: limit as u32 };
        }
        let choice = self.channels.choose(ask, channels);
        if let (Choice::Channel(_), Some(held)) = (choice, self.held.get_mut(&ask.client)) {
            *held += 1;
        }
        choice
    }

    fn departed(&mut self, client: SessionId) {
        self.credit.remove(&client);
        self.held.remove(&client);
    }

    fn acts(&self) -> Acts {
        Acts::ORDERS | Acts::PACES
    }

    fn urgency(&self, ask: &Ask) -> u64 {
        // The client with the most credit goes first.
        let credit = self.credit.get(&ask.client).copied().unwrap_or(0);
        u64::try_from(i128::from(i64::MAX) - i128::from(credit)).unwrap_or(u64::MAX)
    }

    fn pace(&mut self, now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        let mut active: BTreeMap<SessionId, Active> = BTreeMap::new();
        for (index, Outstanding { ask, .. }) in running.iter().enumerate() {
            let new_client = || Active { user: ask.user, class: ask.class, requests: Vec::new() };
            let one = active.entry(ask.client).or_insert_with(new_client);
            one.class = one.class.max(ask.class);
            one.requests.push(index);
        }
        self.now = self.now.max(now);
        self.held = active.iter().map(|(client, one)| (*client, one.requests.len())).collect();
        // Idle clients lose their credit and keep their debt.
        self.credit.retain(|client, credit| active.contains_key(client) || *credit < 0);
        if active.is_empty() {
            return None;
        }
        let shares = self.shares(&active);
        self.add_credit(&shares);
        turns.fill(0);
        self.turn = self.turn.wrapping_add(1);
        for (client, one) in &active {
            let credit = self.credit.get(client).copied().unwrap_or(0);
            let chunks = u32::try_from(credit / TURN_BYTES + 1).unwrap_or(MAX_TURNS).min(MAX_TURNS);
            for chunk in 0..if credit > 0 { chunks as usize } else { 0 } {
                turns[one.requests[(self.turn + chunk) % one.requests.len()]] += 1;
            }
        }
        // If another policy suspends all clients with credit, those in debt gain some after the standstill.
        let in_debt = active.keys().any(|client| self.credit.get(client).is_none_or(|credit| *credit <= 0));
        in_debt.then(|| self.moved_at.max(self.now).after(STANDSTILL))
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        self.moved_at = self.now;
        let credit = self.credit.entry(ask.client).or_insert(0);
        *credit = credit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}
