//! Compares the explored ring with the shipped one, step by step: equal words, equal answers.
//!
//! ```text
//! random steps (write, publish, take) ──┬─► memferry-shm's Producer and Consumer over words on the heap
//!                                       └─► the model's Slots, sequences modulo LAPS
//! after every step: each slot's sequence and body, whether an element is visible, what was taken
//! ```

use memferry_lab::markatos::protocols::ring::{CAPACITY, LAPS, Slots};
use memferry_shm::ring::{Consumer, Producer};
use memferry_shm::storage::{HeapWords, RingStorage};
use proptest::prelude::*;
use std::sync::atomic::Ordering;

/// Words of a shipped slot here: header and body, as in the model.
const WORDS: usize = 2;

/// One step of either side.
#[derive(Clone, Copy, Debug)]
enum Step {
    Stage(u16),
    Publish,
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![(1u16..100).prop_map(Step::Stage), Just(Step::Publish), Just(Step::Take)];
    prop::collection::vec(step, 0..200)
}

struct Both {
    words: HeapWords,
    producer: Producer<WORDS, WORDS>,
    consumer: Consumer<WORDS, WORDS>,
    model: Slots,
    /// Elements written but not published by the model's producer; positions are not wrapped.
    staged: Vec<u16>,
    published: u32,
    consumed: u32,
}

impl Both {
    fn new() -> Self {
        let slots = memferry_shm::ring::Slots { first_word: 0, capacity: CAPACITY.into() };
        Self {
            words: HeapWords::zeroed(usize::from(CAPACITY) * WORDS),
            producer: Producer::new(slots),
            consumer: Consumer::new(slots),
            model: Slots::default(),
            staged: Vec::new(),
            published: 0,
            consumed: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Stage(body) => {
                let room = self.published - self.consumed + (self.staged.len() as u32) < CAPACITY.into();
                let taken = self.producer.stage(&self.words, &[0, body.into()]);
                assert_eq!(taken.is_ok(), room, "room for another");
                if room {
                    self.staged.push(body);
                }
            }
            Step::Publish => {
                assert_eq!(self.producer.publish(&self.words), self.staged.len() as u32);
                for body in std::mem::take(&mut self.staged) {
                    let position = (self.published % u32::from(LAPS)) as u8;
                    self.model.write_body(position, body);
                    self.model.write_header(position);
                    self.published += 1;
                }
            }
            Step::Take => {
                let position = (self.consumed % u32::from(LAPS)) as u8;
                let waits = self.model.ready(position) && self.published > self.consumed;
                assert_eq!(self.consumer.ready(&self.words), waits);
                let taken = self.consumer.pop(&self.words).map(|slot| slot[1]);
                assert_eq!(taken, waits.then(|| self.model.body(position).into()));
                self.consumed += u32::from(waits);
                self.producer.consumed(self.consumer.count()).expect("a valid count");
            }
        }
        self.compare();
    }

    /// Checks that every written slot has the same sequence, modulo the laps, and the same body.
    fn compare(&self) {
        for slot in 0..CAPACITY {
            let word = |place: usize| self.words.word(place).load(Ordering::Relaxed);
            let header = word(Slots::at(slot));
            let body = word(Slots::at(slot) + 1);
            if header == 0 {
                continue;
            }
            let position = ((header as u32).wrapping_sub(1) % u32::from(LAPS)) as u8;
            assert_eq!(
                self.model.words[Slots::at(slot)],
                Slots::sequence(position),
                "sequence of slot {slot}"
            );
            assert_eq!(Slots::at(position), Slots::at(slot), "a position's slot");
            assert_eq!(u64::from(self.model.words[Slots::at(slot) + 1]), body, "body of slot {slot}");
        }
    }
}

proptest! {
    #[test]
    fn explored_and_shipped_rings_agree(steps in steps()) {
        let mut both = Both::new();
        for step in steps {
            both.step(step);
        }
    }
}

/// The model's few sequences distinguish successive laps, as the shipped 32 bits do.
#[test]
fn sequences_of_successive_laps_differ() {
    for position in 0..LAPS {
        let other_lap = (position + CAPACITY) % LAPS;
        assert_eq!(Slots::at(position), Slots::at(other_lap));
        assert_ne!(Slots::sequence(position), Slots::sequence(other_lap));
    }
}
