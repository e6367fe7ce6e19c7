//! Whether an honest process gets its transfer: alone from any state left by the others, and against the others.
//!
//! ```text
//! every reachable state ──► only this process runs ──► started? otherwise: stuck
//! states and moves without its successes ──► strongly connected components ──► one with its rejection inside: starved
//! ```
//!
//! A starved process is rejected repeatedly while the others continue: a cycle, not a long wait. Its probability is not
//! computed; on one CPU it needs a switch in every initiation. The kernel's lock is fair here, and the engine and the service
//! continue when they can.

use std::collections::{HashMap, VecDeque};

use super::explore::{Bounds, Edge, reach};
use super::machine::{Meaning, Protocol};
use super::world::{Machine, Move, State};

/// Maximum number of moves until a process that runs alone has its transfer.
const PATIENCE: usize = 96;

/// The findings on the first process, which must be honest.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub states: usize,
    /// The moves to a state from which it does not succeed alone.
    pub stuck: Option<Vec<Move>>,
    /// One cycle of moves with a rejection of the process and without its success.
    pub starved: Option<Vec<Move>>,
}

/// Computes both findings for the first process.
pub fn progress<P: Protocol>(machine: &Machine<'_, P>) -> Progress {
    let mut edges = Edges::default();
    let reached = reach(machine, Bounds::ALL, |_, Edge { from, to, chosen, happening }| {
        let Some(to) = to else { return };
        let own = matches!(chosen, Move::Step { who: 0, .. });
        if !(own && happening.meaning == Some(Meaning::Started)) {
            edges.add(from, to, chosen, own && happening.meaning == Some(Meaning::Rejected));
        }
    });
    let alone = |state: &State<P::Engine>| machine.scene.buffered || succeeds_alone(machine, state.clone());
    let stuck = reached.known.iter().filter(|(state, _)| !alone(state)).map(|(_, number)| *number).min();
    edges.sort_done(reached.known.len());
    Progress {
        states: reached.known.len(),
        stuck: stuck.map(|state| reached.way_to(state)),
        starved: edges.cycle_with_rejection(),
    }
}

/// Whether the first process gets its transfer when no other process starts anything.
fn succeeds_alone<P: Protocol>(machine: &Machine<'_, P>, mut state: State<P::Engine>) -> bool {
    for _ in 0..PATIENCE {
        let moves = machine.moves(&state);
        let ends = |chosen: &&Move| matches!(chosen, Move::Step { who, .. } if *who != 0 && machine.is_masked(&state, *who));
        let idles = |chosen: &&Move| matches!(chosen, Move::Idle(_));
        let own = |chosen: &&Move| matches!(chosen, Move::Switch { to: 0 } | Move::Step { who: 0, .. });
        let next = moves.iter().find(ends).or_else(|| moves.iter().find(idles));
        let Some(chosen) = next.or_else(|| moves.iter().find(own)) else { return false };
        let (after, happening) = machine.apply(&state, *chosen);
        if happening.meaning == Some(Meaning::Started) && matches!(chosen, Move::Step { who: 0, .. }) {
            return true;
        }
        state = after;
    }
    false
}

/// The moves without the process's successes, by their first state.
#[derive(Default)]
struct Edges {
    list: Vec<(u32, u32, Move, bool)>,
    /// Index of each state's first move.
    first: Vec<usize>,
}

impl Edges {
    fn add(&mut self, from: u32, to: u32, chosen: Move, rejects: bool) {
        self.list.push((from, to, chosen, rejects));
    }

    /// Moves are added in the order of their first states, so the list is already sorted.
    fn sort_done(&mut self, states: usize) {
        self.first = vec![self.list.len(); states + 1];
        for (place, (from, ..)) in self.list.iter().enumerate().rev() {
            self.first[*from as usize] = place;
        }
        for state in (0..states).rev() {
            self.first[state] = self.first[state].min(self.first[state + 1]);
        }
    }

    fn from(&self, state: u32) -> &[(u32, u32, Move, bool)] {
        let state = state as usize;
        &self.list[self.first[state]..self.first[state + 1]]
    }

    /// The first rejection from which the process returns to the same state without a success, while the engine and the write
    /// buffers can make their moves.
    fn cycle_with_rejection(&self) -> Option<Vec<Move>> {
        let part = self.components();
        let fair = self.fair_places(&part);
        let inside = |(from, to, ..): &(u32, u32, Move, bool)| part[*from as usize] == part[*to as usize];
        let in_cycle = |edge: &&(u32, u32, Move, bool)| {
            edge.3 && inside(edge) && fair.contains_key(&part[edge.0 as usize])
        };
        let (from, to, chosen, _) = *self.list.iter().find(in_cycle)?;
        let (place, own_accord) = fair.get(&part[from as usize])?;
        let mut cycle = vec![chosen];
        cycle.extend(self.way(to, *place, &part));
        let after = own_accord.map_or(*place, |(after, _)| after);
        cycle.extend(own_accord.map(|(_, chosen)| chosen));
        cycle.extend(self.way(after, from, &part));
        Some(cycle)
    }

    /// For each component in which nothing waits forever: a state where nothing waits, or a move that ends a wait, with the state
    /// after it.
    fn fair_places(&self, part: &[u32]) -> HashMap<u32, (u32, Option<(u32, Move)>)> {
        let mut fair = HashMap::new();
        for state in 0..part.len() as u32 {
            let waiting =
                self.from(state).iter().filter(|edge| matches!(edge.2, Move::Idle(_) | Move::Drain { .. }));
            let inside = |to: u32| part[to as usize] == part[state as usize];
            let ends_wait = waiting.clone().find(|edge| inside(edge.1)).map(|edge| (edge.1, edge.2));
            if ends_wait.is_some() || waiting.count() == 0 {
                fair.entry(part[state as usize]).or_insert((state, ends_wait));
            }
        }
        fair
    }

    /// A shortest sequence of moves between two states of one component.
    fn way(&self, from: u32, to: u32, part: &[u32]) -> Vec<Move> {
        let mut before = HashMap::from([(from, None)]);
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front().filter(|at| *at != to) {
            for (_, next, chosen, _) in self.from(at) {
                if part[*next as usize] == part[to as usize] && !before.contains_key(next) {
                    before.insert(*next, Some((at, *chosen)));
                    queue.push_back(*next);
                }
            }
        }
        let mut moves = Vec::new();
        let mut at = to;
        while let Some(Some((earlier, chosen))) = before.get(&at) {
            moves.push(*chosen);
            at = *earlier;
        }
        moves.reverse();
        moves
    }

    /// The strongly connected component of each state (Tarjan, without recursion).
    fn components(&self) -> Vec<u32> {
        const NEW: u32 = u32::MAX;
        let states = self.first.len() - 1;
        let mut index = vec![NEW; states];
        let mut low = vec![0; states];
        let mut part = vec![NEW; states];
        let mut open = Vec::new();
        let mut path = Vec::new();
        let mut count = 0;
        for root in 0..states as u32 {
            if index[root as usize] != NEW {
                continue;
            }
            path.push((root, 0));
            while let Some((state, taken)) = path.pop() {
                let at = state as usize;
                if taken == 0 {
                    (index[at], low[at]) = (count, count);
                    count += 1;
                    open.push(state);
                }
                if let Some((_, next, ..)) = self.from(state).get(taken) {
                    path.push((state, taken + 1));
                    if index[*next as usize] == NEW {
                        path.push((*next, 0));
                    } else if part[*next as usize] == NEW {
                        low[at] = low[at].min(index[*next as usize]);
                    }
                    continue;
                }
                if low[at] == index[at] {
                    while let Some(member) = open.pop() {
                        part[member as usize] = state;
                        if member == state {
                            break;
                        }
                    }
                }
                if let Some((parent, _)) = path.last() {
                    low[*parent as usize] = low[*parent as usize].min(low[at]);
                }
            }
        }
        part
    }
}
