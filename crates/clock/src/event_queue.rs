//! The event queue of virtual time: events leave in order of instant, then of insertion.
//!
//! The queue does not run events: the caller pops one, advances its clock to the event's instant, and handles it.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::Instant;

/// Events of type `T`, each due at an instant.
#[derive(Debug)]
pub struct EventQueue<T> {
    /// Instant, number of the insertion and place in `events`, the earliest first.
    due: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    /// The events stay in their places, since models have large ones and move them often otherwise.
    events: Vec<Option<T>>,
    free: Vec<usize>,
    inserted: u64,
}

impl<T> EventQueue<T> {
    pub const fn new() -> Self {
        Self { due: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), inserted: 0 }
    }

    /// Adds `event`, due at `instant`. Equal instants keep the order of insertion.
    pub fn push(&mut self, instant: Instant, event: T) {
        let place = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(place) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.due.push(Reverse((instant, self.inserted, place)));
        self.inserted += 1;
    }

    /// Takes the earliest event.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        let Reverse((instant, _, place)) = self.due.pop()?;
        let event = self.events.get_mut(place)?.take()?;
        self.free.push(place);
        Some((instant, event))
    }

    /// Takes the earliest event if it is due at `now` or before.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, T)> {
        self.next_due().filter(|due| *due <= now).and_then(|_| self.pop())
    }

    /// The instant of the earliest event.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((instant, ..))| *instant)
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

    #[test]
    fn pops_by_instant_then_by_insertion() {
        let mut queue = EventQueue::new();
        queue.push(Instant::from_nanoseconds(2), "late");
        queue.push(Instant::from_nanoseconds(1), "first");
        queue.push(Instant::from_nanoseconds(1), "second");
        assert_eq!(queue.next_due(), Some(Instant::from_nanoseconds(1)));
        let order: Vec<_> = core::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, ["first", "second", "late"]);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn only_what_is_due_is_popped() {
        let mut queue = EventQueue::new();
        let due = Instant::from_nanoseconds(2);
        queue.push(due, "event");
        assert_eq!(queue.pop_due(Instant::from_nanoseconds(1)), None);
        assert_eq!(queue.pop_due(due), Some((due, "event")));
        assert_eq!(queue.pop_due(Instant::from_nanoseconds(9)), None);
    }

    #[test]
    fn places_are_used_again_in_any_order() {
        let mut queue = EventQueue::new();
        let mut popped = Vec::new();
        // Each event adds two until there are 50; their instants jump about and often meet.
        queue.push(Instant::ORIGIN, 0u64);
        let mut added = 1;
        while let Some((instant, event)) = queue.pop() {
            popped.push((instant, event));
            for _ in 0..2 {
                if added < 50 {
                    queue.push(instant.after_picoseconds(u128::from(added * 7 % 5)), added);
                    added += 1;
                }
            }
        }
        assert_eq!(popped.len(), 50);
        assert!(popped.is_sorted(), "numbers rise with the insertions: {popped:?}");
        assert!(queue.events.len() < 50, "{} places", queue.events.len());
    }
}
