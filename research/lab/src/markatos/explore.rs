//! Explores every interleaving breadth first, with a shortest sequence of moves to each breach.
//!
//! ```text
//! reset ──► frontier ──moves, apply──► new states ──► ... ──► no new states: complete
//!               └── a breach ──► the moves that lead to it
//! ```
//!
//! States are stored and compared whole, so "complete" means that every reachable state was visited, up to the depth if one is
//! given. The order is fixed: equal machines give equal counts and equal counterexamples.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasherDefault, Hasher};

use super::machine::{Meaning, Protocol, Transfer};
use super::world::{Breach, Happening, Machine, Move, State};

/// Limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of moves from the initial state; `None` for no limit.
    pub depth: Option<u32>,
    /// Maximum number of states; above it the exploration stops as incomplete.
    pub states: usize,
    /// Whether to go no deeper than the first breach.
    pub first_breach: bool,
}

impl Bounds {
    /// No depth limit, and more states than any scene has.
    pub const ALL: Self = Self { depth: None, states: 20_000_000, first_breach: false };
    /// Up to the depth of the first breach.
    pub const FIRST_BREACH: Self = Self { first_breach: true, ..Self::ALL };
}

#[derive(Clone, Debug, Default)]
pub struct Exploration {
    /// Number of distinct states.
    pub states: usize,
    pub moves: usize,
    /// Largest number of moves from the initial state.
    pub depth: u32,
    /// Whether every reachable state was visited.
    pub complete: bool,
    /// The breaches, each with a shortest sequence of moves.
    pub breaches: BTreeMap<Breach, Vec<Move>>,
    /// The transfers that started.
    pub transfers: BTreeSet<Transfer>,
    /// The honest processes that saw their transfer start.
    pub succeeded: BTreeSet<u8>,
}

impl Exploration {
    /// Whether all states were visited without a breach.
    pub fn is_safe(&self) -> bool {
        self.complete && self.breaches.is_empty()
    }

    /// Of the breaches accepted by `looked_for`, the one with the fewest moves.
    pub fn shortest(&self, looked_for: impl Fn(&Breach) -> bool) -> Option<(Breach, &[Move])> {
        let found = self.breaches.iter().filter(|(breach, _)| looked_for(breach));
        found.map(|(breach, moves)| (*breach, moves.as_slice())).min_by_key(|(_, moves)| moves.len())
    }
}

/// A hash that is fast on the few bytes of a state. States are compared, so collisions cost only time.
#[derive(Default)]
pub struct StateHasher(u64);

impl StateHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for StateHasher {
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// States with their numbers.
pub type Known<E> = HashMap<State<E>, u32, BuildHasherDefault<StateHasher>>;

/// The reached states, and how each was reached.
pub struct Reached<E> {
    /// The states with their numbers, by increasing distance from the initial state, which has number 0.
    pub known: Known<E>,
    /// For each state, the first predecessor and the move from it. The initial state has none.
    ways: Vec<Option<(u32, Move)>>,
    depth: u32,
    complete: bool,
}

/// A move between two states; without a target state after a breach.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    pub from: u32,
    pub to: Option<u32>,
    pub chosen: Move,
    pub happening: Happening,
}

impl<E> Reached<E> {
    /// The moves from the initial state to a state.
    pub fn way_to(&self, state: u32) -> Vec<Move> {
        let mut moves = Vec::new();
        let mut at = state;
        while let Some(Some((before, chosen))) = self.ways.get(at as usize) {
            moves.push(*chosen);
            at = *before;
        }
        moves.reverse();
        moves
    }
}

/// Visits every state within the bounds and calls `on_edge` for every move between them.
pub fn reach<P: Protocol>(
    machine: &Machine<'_, P>,
    bounds: Bounds,
    mut on_edge: impl FnMut(&Reached<P::Engine>, Edge),
) -> Reached<P::Engine> {
    let reset = machine.reset();
    let known = Known::from_iter([(reset.clone(), 0)]);
    let mut reached = Reached { known, ways: vec![None], depth: 0, complete: true };
    let mut frontier = vec![(0, reset)];
    let mut broken = false;
    while !frontier.is_empty() {
        let far = bounds.depth.is_some_and(|depth| reached.depth >= depth);
        if far || reached.known.len() > bounds.states || bounds.first_breach && broken {
            reached.complete = false;
            break;
        }
        let mut next = Vec::new();
        for (from, state) in &frontier {
            for chosen in machine.moves(state) {
                let (after, happening) = machine.apply(state, chosen);
                broken |= happening.breach.is_some();
                let new = reached.ways.len() as u32;
                // States after a breach say nothing more about the protocol.
                let to = happening.breach.is_none().then(|| match reached.known.entry(after) {
                    Entry::Occupied(place) => *place.get(),
                    Entry::Vacant(place) => {
                        next.push((new, place.key().clone()));
                        *place.insert(new)
                    }
                });
                if to == Some(new) {
                    reached.ways.push(Some((*from, chosen)));
                }
                on_edge(&reached, Edge { from: *from, to, chosen, happening });
            }
        }
        reached.depth += u32::from(!next.is_empty());
        frontier = next;
    }
    reached
}

/// Visits every state within the bounds and collects the findings.
pub fn explore<P: Protocol>(machine: &Machine<'_, P>, bounds: Bounds) -> Exploration {
    let mut found = Exploration::default();
    let reached = reach(machine, bounds, |reached, Edge { from, chosen, happening, .. }| {
        found.moves += 1;
        found.transfers.extend(happening.starts);
        if let (Some(Meaning::Started), Move::Step { who, .. }) = (happening.meaning, chosen) {
            found.succeeded.insert(who);
        }
        if let Some(breach) = happening.breach {
            let led = || reached.way_to(from).into_iter().chain([chosen]).collect();
            found.breaches.entry(breach).or_insert_with(led);
        }
    });
    (found.states, found.depth, found.complete) = (reached.known.len(), reached.depth, reached.complete);
    found
}
