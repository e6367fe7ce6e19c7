//! Counts and sequences of a ring: the formulas of `smt/count.smt2` against the shipped ring; and all its positions modulo 2^32.

use memferry_proof::{Formulas, Value};
use memferry_shm::ring::{Consumer, Producer, Slots};
use memferry_shm::storage::{HeapWords, RingStorage};
use memferry_transfer::wire::HEADER_SEQUENCE;

/// A ring of slots with a first part of one word and no second part, and with a tag.
type Writer = Producer<1, 1>;
type Reader = Consumer<1, 1>;

struct Formula(Formulas);

impl Formula {
    fn value(&self, name: &str, operands: &[u32]) -> u128 {
        let operands: Vec<Value> = operands.iter().map(|one| Value::of32(*one)).collect();
        match self.0.value(name, &operands) {
            Value::Bits(value, _) => value,
            Value::Bool(value) => u128::from(value),
            Value::Int(_) => panic!("{name} is an integer"),
        }
    }
}

#[test]
fn formulas_are_those_of_the_shipped_ring() {
    let formula = Formula(Formulas::of(include_str!("../smt/count.smt2")));
    let mut random = fastrand::Rng::with_seed(33);
    for power in [0, 1, 4, 15] {
        let capacity = 1 << power;
        let storage = HeapWords::zeroed(capacity as usize);
        let slots = Slots { first_word: 0, capacity };
        let mut producer = Writer::new(slots);
        // Enough for the sequences to start again from 0.
        for _ in 0..200_000 {
            let [staged, published, consumed] =
                [producer.staged(), producer.published(), producer.known_consumed()];
            assert_eq!(u128::from(producer.free()), formula.value("free", &[capacity, staged, consumed]));
            let claimed = match random.u32(..4) {
                0 => consumed.wrapping_add(random.u32(..=capacity + 1)),
                1 => published.wrapping_sub(random.u32(..3)),
                2 => published.wrapping_add(random.u32(..3)),
                _ => random.u32(..),
            };
            let operands = [claimed, published, consumed];
            assert_eq!(u128::from(producer.is_news(claimed)), formula.value("is-news", &operands));
            let is_possible = formula.value("is-possible", &operands) == 1;
            assert_eq!(producer.consumed(claimed).is_ok(), is_possible);
            assert_eq!(producer.known_consumed(), if is_possible { claimed } else { consumed });
            for _ in 0..random.u32(..3) {
                let is_full =
                    formula.value("free", &[capacity, producer.staged(), producer.known_consumed()]) == 0;
                assert_eq!(producer.stage_short(&storage, [0]).is_err(), is_full);
            }
            if random.bool() {
                producer.publish(&storage);
            }
            let last = producer.published().wrapping_sub(1);
            if producer.published() != 0 {
                let slot = formula.value("slot", &[capacity, last]) as usize;
                let header = storage.word(slot).load(std::sync::atomic::Ordering::Relaxed);
                assert_eq!(u128::from(header & HEADER_SEQUENCE), formula.value("sequence", &[last]));
            }
        }
    }
}

/// Passes elements through a ring one by one: before an element the ring is empty, and the consumer gets what was put.
fn pass(capacity: u32, elements: u64) {
    let storage = HeapWords::zeroed(capacity as usize);
    let slots = Slots { first_word: 0, capacity };
    let mut producer = Writer::new(slots);
    let mut consumer = Reader::new(slots);
    for element in 0..elements {
        let slot = element << 32;
        assert!(!consumer.ready(&storage), "an element before the {element}th");
        producer.put_short(&storage, [slot]).expect("a free slot");
        assert_eq!(consumer.pop_first(&storage), Some([slot]), "the {element}th element");
        producer.consumed(consumer.count()).expect("an honest count");
    }
    assert_eq!(producer.free(), capacity);
}

#[test]
fn every_capacity_survives_three_rounds_of_sequences() {
    for power in 0..16 {
        pass(1 << power, 3 << 16);
    }
}

#[test]
#[ignore = "takes minutes without optimization; ./x test --full proof runs it"]
fn counts_start_again_from_zero() {
    pass(1 << 15, (1 << 32) + (1 << 17));
}
