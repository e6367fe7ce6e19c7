//! Weighted fair sharing: deficit round robin over chunks (Shreedhar and Varghese 1995, with chunks for packets).
//!
//! ```text
//! user's weight = its configured weight × that of its highest class ── divided among its clients by class ──► share of a client
//! turn: credit += share ─► credit > 0: its requests move ─► credit -= bytes moved
//! ```
//!
//! Users share by weight, and the clients of a user divide its share: opening more sessions gains nothing. Credit is in bytes, so
//! long and short requests are charged alike. An idle client gains no credit, but keeps its debt. When it departs, the next client
//! of its user takes the debt over: connecting again gains nothing either. Shares hold among the clients of one worker.
//!
//! Requests done at once spend the same credit, so others that have none wait for clients of these, as for those with running requests.
//! But only the client knows whether it has more of them. If it spends little while the others wait, it is light: it keeps its credit,
//! and nobody waits for it until the next turn. A worker serves its clients one after the other, so several such clients have as many
//! looks before they count as light.

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
/// Maximum looks at a client that spends little before it counts as light.
const MAX_LOOKS: usize = 8;
/// Time between two looks.
const LOOK: Duration = Duration::from_micros(1);
/// Bytes that a client must spend between two looks.
const LOOK_BYTES: u64 = 1 << 10;
/// Users without a client whose debts are kept.
const MAX_DEBTORS: usize = 1024;

/// Weighted fair sharing among users and their clients.
#[derive(Debug)]
pub struct Weighted {
    channels: Shared,
    /// Weights of the classes low, normal and high.
    classes: [u32; 3],
    /// Weights of single users; others have 1.
    users: BTreeMap<u32, u32>,
    /// Clients with work or debts.
    accounts: BTreeMap<SessionId, Account>,
    /// Debts of departed clients that no other client of their user has taken over, bytes below 0.
    debts: BTreeMap<u32, i64>,
    /// Channels of each client that runs requests, or asked for a channel since the last `pace`.
    held: BTreeMap<SessionId, usize>,
    /// Clients with running requests, as of the last `pace`.
    running: BTreeMap<SessionId, Member>,
    /// Clients whose requests are done at once.
    short: BTreeMap<SessionId, Short>,
    /// Turns so far; rotates the requests of a client.
    turn: usize,
    /// The time of the last `pace`.
    now: Instant,
    moved_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    user: u32,
    /// Bytes; below 0 is a debt.
    credit: i64,
}

/// What a client's share depends on.
#[derive(Clone, Copy, Debug)]
struct Member {
    user: u32,
    /// The highest of its requests.
    class: PriorityClass,
}

/// A client whose requests are done at once.
#[derive(Clone, Copy, Debug)]
struct Short {
    member: Member,
    /// Looks at which it had spent little.
    looks: usize,
    /// Bytes spent since the last look, and since the last turn.
    since_look: u64,
    since_turn: u64,
    /// Others do not wait for its credit.
    light: bool,
}

impl Weighted {
    /// Weights of the classes low, normal and high, and of single users (others have 1). Weights of 0 count as 1.
    pub fn new(classes: [u32; 3], users: BTreeMap<u32, u32>) -> Self {
        let classes = classes.map(|weight| weight.max(1));
        let now = Instant::ORIGIN;
        let moved_at = Instant::ORIGIN;
        let accounts = BTreeMap::new();
        let debts = BTreeMap::new();
        let held = BTreeMap::new();
        let running = BTreeMap::new();
        let short = BTreeMap::new();
        let channels = Shared::new();
        Self { channels, classes, users, accounts, debts, held, running, short, turn: 0, now, moved_at }
    }

    fn class_weight(&self, class: PriorityClass) -> u64 {
        let [low, normal, high] = self.classes.map(u64::from);
        match class {
            PriorityClass::Low => low,
            PriorityClass::Normal => normal,
            PriorityClass::High => high,
        }
    }

    /// The active clients: with running requests, or with requests done at once.
    fn active(&self) -> BTreeMap<SessionId, Member> {
        let mut active = self.running.clone();
        for (client, Short { member, .. }) in &self.short {
            let one = active.entry(*client).or_insert(*member);
            one.class = one.class.max(member.class);
        }
        active
    }

    /// The share of each active client, in parts.
    fn shares(&self) -> BTreeMap<SessionId, u64> {
        let active = self.active();
        // For each user: the sum of its clients' weights, and the highest.
        let mut users: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for one in active.values() {
            let weight = self.class_weight(one.class);
            let (sum, highest) = users.entry(one.user).or_default();
            (*sum, *highest) = (*sum + weight, weight.max(*highest));
        }
        let share = |one: &Member| {
            let (sum, highest) = users.get(&one.user).copied().unwrap_or((1, 1));
            let own = u64::from(self.users.get(&one.user).copied().unwrap_or(1).max(1));
            let share = [own, highest, self.class_weight(one.class)].map(u128::from).iter().product::<u128>();
            u64::try_from(u128::from(PARTS) * share / u128::from(sum.max(1))).unwrap_or(u64::MAX).max(1)
        };
        active.iter().map(|(client, one)| (*client, share(one))).collect()
    }

    fn credit_of(&self, client: SessionId) -> i64 {
        self.accounts.get(&client).map_or(0, |account| account.credit)
    }

    /// The credit of a client, which may be new: it then begins with what departed clients of its user owe.
    fn credit(&mut self, client: SessionId, user: u32) -> &mut i64 {
        let debts = &mut self.debts;
        let account = self.accounts.entry(client);
        &mut account.or_insert_with(|| Account { user, credit: debts.remove(&user).unwrap_or(0) }).credit
    }

    /// Keeps the debt of a user's departed client.
    fn keep_debt(&mut self, user: u32, debt: i64) {
        let sum = self.debts.entry(user).or_insert(0);
        *sum = sum.saturating_add(debt);
        if self.debts.len() > MAX_DEBTORS
            && let Some(least) = self.debts.iter().max_by_key(|(_, debt)| **debt).map(|(user, _)| *user)
        {
            self.debts.remove(&least);
        }
    }

    /// Whether requests run, and none of their clients has credit.
    fn all_in_debt(&self) -> bool {
        !self.running.is_empty() && self.running.keys().all(|client| self.credit_of(*client) <= 0)
    }

    /// Whether others wait for a client, because it has credit.
    fn holds_up(&self, client: SessionId) -> bool {
        let is_light = || self.short.get(&client).is_some_and(|one| one.light);
        self.credit_of(client) > 0 && (self.running.contains_key(&client) || !is_light())
    }

    /// While others wait for clients whose requests are done at once: finds those that are light.
    fn look(&mut self) {
        if self.all_in_debt() {
            let most = self.short.len().min(MAX_LOOKS);
            for one in self.short.values_mut() {
                let spent = std::mem::take(&mut one.since_look);
                one.looks = if spent < LOOK_BYTES { one.looks + 1 } else { 0 };
                one.light = one.looks > most;
            }
        }
    }

    /// Adds credit by share until at least one client may move. Clients that have credit but are suspended by another policy delay
    /// the others by [`STANDSTILL`] at most.
    fn add_credit(&mut self, shares: &BTreeMap<SessionId, u64>) {
        if self.any_credit(shares) && self.now < self.moved_at.after(STANDSTILL) {
            return;
        }
        self.add_turns(shares);
    }

    fn any_credit(&self, shares: &BTreeMap<SessionId, u64>) -> bool {
        shares.keys().any(|client| self.holds_up(*client))
    }

    /// Adds as many turns of credit as at least one client needs to move.
    fn add_turns(&mut self, shares: &BTreeMap<SessionId, u64>) {
        let largest = shares.values().copied().max().unwrap_or(1);
        let gain = |share: u64| {
            let gained = i128::from(TURN_BYTES) * i128::from(share) / i128::from(largest);
            i64::try_from(gained).unwrap_or(TURN_BYTES).max(1)
        };
        let needed = shares.iter().map(|(client, share)| {
            let owed = 1 - self.credit_of(*client);
            if owed <= 0 { 1 } else { (owed + gain(*share) - 1) / gain(*share) }
        });
        let turns = needed.min().unwrap_or(1).max(1);
        for (client, share) in shares {
            let Some(Account { credit, .. }) = self.accounts.get_mut(client) else { continue };
            *credit = credit.saturating_add(gain(*share).saturating_mul(turns)).min(MAX_CREDIT);
        }
        // What is light and spent nothing is idle.
        self.short.retain(|_, one| !one.light || one.since_turn > 0);
        for one in self.short.values_mut() {
            *one = Short { looks: 0, since_turn: 0, light: false, ..*one };
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
        if let Some(Account { user, credit }) = self.accounts.remove(&client)
            && credit < 0
        {
            self.keep_debt(user, credit);
        }
        self.held.remove(&client);
        self.short.remove(&client);
    }

    fn acts(&self) -> Acts {
        Acts::ORDERS | Acts::PACES
    }

    fn urgency(&self, ask: &Ask) -> u64 {
        // The client with the most credit goes first.
        let account = self.accounts.get(&ask.client).map(|account| account.credit);
        let credit = account.or_else(|| self.debts.get(&ask.user).copied()).unwrap_or(0);
        u64::try_from(i128::from(i64::MAX) - i128::from(credit)).unwrap_or(u64::MAX)
    }

    fn pace(&mut self, now: Instant, running: &[Outstanding], turns: &mut [u32]) -> Option<Instant> {
        let mut requests: BTreeMap<SessionId, Vec<usize>> = BTreeMap::new();
        self.running.clear();
        for (index, Outstanding { ask, .. }) in running.iter().enumerate() {
            let member = Member { user: ask.user, class: ask.class };
            let one = self.running.entry(ask.client).or_insert(member);
            one.class = one.class.max(ask.class);
            requests.entry(ask.client).or_default().push(index);
            self.credit(ask.client, ask.user);
        }
        self.now = self.now.max(now);
        self.held = requests.iter().map(|(client, own)| (*client, own.len())).collect();
        self.look();
        // Idle clients lose their credit and keep their debt.
        let is_active =
            |client: &SessionId| self.running.contains_key(client) || self.short.contains_key(client);
        self.accounts.retain(|client, account| is_active(client) || account.credit < 0);
        if running.is_empty() {
            return None;
        }
        self.add_credit(&self.shares());
        turns.fill(0);
        self.turn = self.turn.wrapping_add(1);
        for (client, own) in &requests {
            let credit = self.credit_of(*client);
            let chunks = u32::try_from(credit / TURN_BYTES + 1).unwrap_or(MAX_TURNS).min(MAX_TURNS);
            for chunk in 0..if credit > 0 { chunks as usize } else { 0 } {
                turns[own[(self.turn + chunk) % own.len()]] += 1;
            }
        }
        if self.all_in_debt() && !self.short.is_empty() {
            return Some(self.now.after(LOOK));
        }
        // If another policy suspends all clients with credit, those in debt gain some after the standstill.
        let in_debt = self.running.keys().any(|client| self.credit_of(*client) <= 0);
        in_debt.then(|| self.moved_at.max(self.now).after(STANDSTILL))
    }

    fn moved(&mut self, ask: &Ask, bytes: u64) {
        self.moved_at = self.now;
        let credit = self.credit(ask.client, ask.user);
        *credit = credit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    fn lend(&mut self, ask: &Ask, at_most: u64) -> u64 {
        let member = Member { user: ask.user, class: ask.class };
        let new = Short { member, looks: 0, since_look: 0, since_turn: 0, light: false };
        let one = self.short.entry(ask.client).or_insert(new);
        one.member.class = one.member.class.max(ask.class);
        if *self.credit(ask.client, ask.user) <= 0 {
            let shares = self.shares();
            if !self.any_credit(&shares) {
                self.add_turns(&shares);
            }
        }
        let credit = self.credit_of(ask.client);
        let bytes = u64::try_from(credit).unwrap_or(0);
        if bytes == 0 {
            return 0;
        }
        // A request may exceed the credit, as a chunk may.
        let lent = bytes.max(ask.bytes).min(at_most);
        *self.credit(ask.client, ask.user) = credit.saturating_sub_unsigned(lent);
        lent
    }

    fn take_back(&mut self, ask: &Ask, used: u64, unused: u64) {
        if used > 0 {
            self.moved_at = self.now;
            if let Some(one) = self.short.get_mut(&ask.client) {
                one.since_look += used;
                one.since_turn += used;
            }
        }
        let credit = self.credit(ask.client, ask.user);
        *credit = credit.saturating_add_unsigned(unused);
    }
}
