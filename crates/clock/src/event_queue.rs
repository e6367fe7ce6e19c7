//! The event queue of virtual time: events leave in order of instant, then of insertion.
//!
//! The queue does not run events: the caller pops one, advances its clock to the event's instant, and handles it.

use alloc::collections::BTreeMap;

use crate::Instant;

/// Events of type `T`, each due at an instant.
#[derive(Debug)]
pub struct EventQueue<T> {
    due: BTreeMap<(Instant, u64), T>,
    inserted: u64,
}

impl<T> EventQueue<T> {
    pub const fn new() -> Self {
        Self { due: BTreeMap::new(), inserted: 0 }
    }

    /// Adds `event`, due at `instant`. Equal instants keep the order of insertion.
    pub fn push(&mut self, instant: Instant, event: T) {
        self.due.insert((instant, self.inserted), event);
        self.inserted += 1;
    }

    /// Takes the earliest event.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        self.due.pop_first().map(|((instant, _), event)| (instant, event))
    }

    /// The instant of the earliest event.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.keys().next().map(|(instant, _)| *instant)
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn pops_by_instant_then_by_insertion() {
        let mut queue = EventQueue::new();
        queue.push(Instant::from_nanoseconds(2), "late");
        queue.push(Instant::from_nanoseconds(1), "first");
        queue.push(Instant::from_nanoseconds(1), "second");
        assert_eq!(queue.next_due(), Some(Instant::from_nanoseconds(1)));
        let order: Vec<_> = core::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, ["first", "second", "late"]);
    }
}
