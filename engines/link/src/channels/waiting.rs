//! Who waits for a channel: clients here that listen, and users of peers that asked, by the user and name that both mean.
//!
//! One that comes is compared with those that wait at its own place only.

use std::collections::{BTreeMap, BTreeSet};

/// The user here, and the name under which that user listens.
pub(super) type Place = (u32, String);

struct At<G, K> {
    /// In the order in which they came.
    guests: Vec<G>,
    asked: BTreeSet<K>,
}

pub(super) struct Waiting<G, K>(BTreeMap<Place, At<G, K>>);

impl<G, K> Default for Waiting<G, K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<G, K: Ord + Copy> Waiting<G, K> {
    fn at(&mut self, place: Place) -> &mut At<G, K> {
        self.0.entry(place).or_insert_with(|| At { guests: Vec::new(), asked: BTreeSet::new() })
    }

    pub(super) fn listen(&mut self, place: Place, guest: G) {
        self.at(place).guests.push(guest);
    }

    pub(super) fn ask(&mut self, place: Place, key: K) {
        self.at(place).asked.insert(key);
    }

    /// Removes a user of a peer that asked.
    pub(super) fn forget(&mut self, place: &Place, key: K) {
        if let Some(at) = self.0.get_mut(place) {
            at.asked.remove(&key);
            self.tidy(place);
        }
    }

    /// The users of peers that wait at a place.
    pub(super) fn asked(&self, place: &Place) -> Vec<K> {
        self.0.get(place).map_or(Vec::new(), |at| at.asked.iter().copied().collect())
    }

    /// Takes the first client at a place that lets the other one in.
    pub(super) fn take(&mut self, place: &Place, lets_in: impl FnMut(&G) -> bool) -> Option<G> {
        let at = self.0.get_mut(place)?;
        let index = at.guests.iter().position(lets_in)?;
        let guest = at.guests.remove(index);
        self.tidy(place);
        Some(guest)
    }

    pub(super) fn guests(&self) -> impl Iterator<Item = &G> {
        self.0.values().flat_map(|at| &at.guests)
    }

    /// Keeps the clients that still wait.
    pub(super) fn retain(&mut self, mut waits: impl FnMut(&G) -> bool) {
        self.0.retain(|_, at| {
            at.guests.retain(&mut waits);
            !at.guests.is_empty() || !at.asked.is_empty()
        });
    }

    fn tidy(&mut self, place: &Place) {
        if self.0.get(place).is_some_and(|at| at.guests.is_empty() && at.asked.is_empty()) {
            self.0.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_at_one_place_are_compared() {
        let mut waiting = Waiting::default();
        let place = |number: u32| (number % 2, format!("name{number}"));
        for number in 0..500 {
            waiting.listen(place(number), number);
            waiting.ask(place(number), number);
        }
        waiting.listen(place(7), 1007);
        let mut compared = 0;
        let taken = waiting.take(&place(7), |guest| {
            compared += 1;
            *guest > 500
        });
        assert_eq!((taken, compared), (Some(1007), 2));
        assert_eq!(waiting.asked(&place(7)), [7]);
        assert_eq!(waiting.take(&(7, "name7".to_owned()), |_| true), None, "another user's name");
        assert_eq!(waiting.guests().count(), 500);
    }

    #[test]
    fn nothing_is_kept_of_those_that_are_gone() {
        let mut waiting = Waiting::default();
        let place = (1, "name".to_owned());
        waiting.listen(place.clone(), 5);
        waiting.ask(place.clone(), 6);
        waiting.retain(|_| false);
        assert_eq!(waiting.asked(&place), [6]);
        waiting.forget(&place, 6);
        assert!(waiting.0.is_empty());
        waiting.listen(place.clone(), 5);
        assert_eq!(waiting.take(&place, |_| true), Some(5));
        assert!(waiting.0.is_empty());
    }
}
