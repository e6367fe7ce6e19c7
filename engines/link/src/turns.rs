//! Whose request is next: peers take turns, however many slots a turn of the link's thread finds free.
//!
//! ```text
//! note(peer, what its first request is) ─► run ─► grants to take up, one of each peer
//!                                             └─► accesses, from behind the peer that was served last, while there are slots
//! ```
//!
//! A peer that waits is found without a look at those that do not.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use memferry::NodeName;

/// What the first request of a peer needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    /// An answer of the service, which the link's thread waits for.
    Answer,
    /// One of the places for accesses, which few at a time have.
    Slot,
}

/// What became of a peer's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Its first request was begun or refused. Its next one needs this, if it has one.
    Begun(Option<Needs>),
    /// There is no slot.
    Full,
}

/// Peers with requests that wait.
#[derive(Default)]
pub(crate) struct Turns {
    attaching: BTreeSet<NodeName>,
    accessing: BTreeSet<NodeName>,
    /// The peer whose access was begun last.
    last: Option<NodeName>,
}

impl Turns {
    /// Notes what the first request of a peer needs, if it has one.
    pub(crate) fn note(&mut self, node: NodeName, first: Option<Needs>) {
        self.attaching.remove(&node);
        self.accessing.remove(&node);
        match first {
            Some(Needs::Answer) => drop(self.attaching.insert(node)),
            Some(Needs::Slot) => drop(self.accessing.insert(node)),
            None => {}
        }
    }

    /// Begins what can be begun, by `begin`. Returns whether that was anything.
    ///
    /// # Errors
    /// Those of `begin`.
    pub(crate) fn run<E>(&mut self, mut begin: impl FnMut(NodeName) -> Result<Turn, E>) -> Result<bool, E> {
        let mut any = false;
        // Each waits for the service, so one of each peer, before the others get their turn.
        for node in std::mem::take(&mut self.attaching) {
            let Turn::Begun(next) = begin(node)? else { continue };
            any = true;
            self.note(node, next);
        }
        while let Some(node) = self.next() {
            let Turn::Begun(next) = begin(node)? else { break };
            any = true;
            self.last = Some(node);
            self.note(node, next);
        }
        Ok(any)
    }

    /// The peer behind the one that was served last, in the order of names. From the first one on in each turn, the last ones would wait for
    /// ever if the others ask for more than there are slots.
    fn next(&self) -> Option<NodeName> {
        let behind = |last| self.accessing.range((Excluded(last), Unbounded)).next().copied();
        self.last.and_then(behind).or_else(|| self.accessing.first().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use super::*;

    fn names(count: usize) -> Vec<NodeName> {
        (0..count).map(|number| format!("n{number:03}").parse().unwrap()).collect()
    }

    /// Runs turns with so many free slots each, in which each peer always has an access; how often each was served.
    fn served(peers: usize, slots: usize, turns: usize) -> Vec<usize> {
        let mut all = Turns::default();
        let mut counts: BTreeMap<_, _> = names(peers).into_iter().map(|node| (node, 0)).collect();
        counts.keys().for_each(|node| all.note(*node, Some(Needs::Slot)));
        for _ in 0..turns {
            let mut free = slots;
            let begun = all.run(|node| {
                if free == 0 {
                    return Ok::<_, Infallible>(Turn::Full);
                }
                free -= 1;
                *counts.get_mut(&node).unwrap() += 1;
                Ok(Turn::Begun(Some(Needs::Slot)))
            });
            assert_eq!(begun, Ok(true));
        }
        counts.into_values().collect()
    }

    #[test]
    fn peers_that_ask_for_more_than_there_is_get_equal_parts() {
        // From the first peer on in each turn, all but the first ones would get nothing.
        for (peers, slots) in [(500, 32), (3, 1), (7, 5), (1, 4)] {
            let counts = served(peers, slots, 10 * peers);
            let ends = [counts.iter().min().unwrap(), counts.iter().max().unwrap()];
            assert_eq!(ends.map(|count| *count), [10 * slots; 2], "{peers} peers, {slots} slots");
        }
    }

    #[test]
    fn a_turn_takes_up_one_grant_of_each_peer_without_a_slot() {
        let mut turns = Turns::default();
        let peers = names(3);
        turns.note(peers[0], Some(Needs::Answer));
        turns.note(peers[1], Some(Needs::Slot));
        turns.note(peers[2], Some(Needs::Answer));
        let mut begun = Vec::new();
        let run = |turns: &mut Turns, begun: &mut Vec<NodeName>| {
            turns.run(|node| {
                if node == peers[1] {
                    return Ok::<_, Infallible>(Turn::Full);
                }
                begun.push(node);
                Ok(Turn::Begun(Some(Needs::Answer)))
            })
        };
        assert_eq!(run(&mut turns, &mut begun), Ok(true));
        assert_eq!(begun, [peers[0], peers[2]]);
        turns.note(peers[0], None);
        turns.note(peers[2], None);
        assert_eq!(run(&mut turns, &mut begun), Ok(false), "one waits for a slot, the others have gone");
        assert_eq!(begun.len(), 2);
    }

    #[test]
    fn errors_end_a_turn() {
        let mut turns = Turns::default();
        turns.note(names(1)[0], Some(Needs::Slot));
        assert_eq!(turns.run(|_| Err("lost")), Err("lost"));
    }
}
