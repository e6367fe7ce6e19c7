//! The places of all words of a queue pair, as numbers: a client in another language relies on them.
//!
//! ```text
//! an end acts ─► words that changed in the memories = the words below
//! ```
//!
//! A test that fails here means that the protocol changed. Then it needs a new version, and `docs/protocol.md` a change.

use super::super::*;
use crate::ring::LONG;
use crate::storage::HeapWords;

/// Both ends of a queue pair, and the words as they were at the last look.
struct Watched {
    client: ClientEnd<HeapWords>,
    service: ServiceEnd<HeapWords>,
    worker: ParkedWord<HeapWords>,
    memories: [HeapWords; 3],
    before: [Vec<u64>; 3],
}

const CLIENT: usize = 0;
const SERVICE: usize = 1;
const WORKER: usize = 2;

impl Watched {
    fn new(capacity: u32) -> Self {
        let layout = Layout::new(capacity).unwrap();
        let own = HeapWords::zeroed(layout.client_words());
        let other = HeapWords::zeroed(layout.service_words());
        let parked = HeapWords::zeroed(1);
        let before = [vec![0; own.words()], vec![0; other.words()], vec![0]];
        Self {
            client: ClientEnd::new(layout, own.clone(), other.clone(), parked.clone(), Fences::Full).unwrap(),
            service: ServiceEnd::new(layout, own.clone(), other.clone(), Fences::Full).unwrap(),
            worker: ParkedWord::new(parked.clone()).unwrap(),
            memories: [own, other, parked],
            before,
        }
    }

    /// The words that changed since the last call: memory, index, new value.
    fn changes(&mut self) -> Vec<(usize, usize, u64)> {
        let mut changes = Vec::new();
        for (memory, (words, before)) in self.memories.iter().zip(&mut self.before).enumerate() {
            for (index, old) in before.iter_mut().enumerate() {
                let new = words.word(index).load(Ordering::Relaxed);
                if new != *old {
                    changes.push((memory, index, new));
                    *old = new;
                }
            }
        }
        changes
    }
}

/// Capacity, words of the client's and of the service's memory, first submission slot, list area, progress words.
const SIZES: [(u32, usize, usize, usize, usize, usize); 5] = [
    (2, 8288, 82, 64, 96, 80),
    (8, 8384, 136, 64, 192, 128),
    (16, 8512, 208, 64, 320, 192),
    (64, 9328, 640, 112, 1136, 576),
    (4096, 77872, 36928, 4144, 69680, 32832),
];

#[test]
fn sizes_for_each_capacity() {
    for (capacity, client, service, slots, lists, progress) in SIZES {
        let layout = Layout::new(capacity).unwrap();
        assert_eq!((layout.client_words(), layout.service_words()), (client, service), "{capacity}");
        let found = (layout.submission_slots().first_word, layout.list_area(), layout.progress_words());
        assert_eq!(found, (slots, lists, progress), "{capacity}");
        // The rule that `docs/protocol.md` states.
        let count = capacity as usize;
        let first = 64.max(48 + count);
        assert_eq!((slots, lists, client), (first, first + 16 * count, first + 16 * count + 8192));
        assert_eq!((progress, service), (64 + 8 * count, 64 + 9 * count));
    }
    assert_eq!((MAXIMUM_CAPACITY, LIST_WORDS), (4096, 8192));
}

#[test]
fn submission_slots() {
    let mut pair = Watched::new(16);
    let mut slot = [0; SUBMISSION_WORDS];
    for (word, value) in (0..).zip(&mut slot) {
        *value = 100 + word;
    }
    slot[0] = LONG | 5 << 32;
    pair.client.stage(&slot).unwrap();
    assert_eq!(pair.changes(), [], "visible before it is published");
    pair.client.publish();
    // Slot 0: words 0 to 7 at 64, words 8 to 15 behind all first halves. The header carries sequence 1.
    let halves = (1..8).map(|word| (CLIENT, 64 + word, 100 + word as u64));
    let second = (8..16).map(|word| (CLIENT, 64 + 16 * 8 + word - 8, 100 + word as u64));
    let header = (CLIENT, 64, LONG | 5 << 32 | 1);
    assert_eq!(pair.changes(), std::iter::once(header).chain(halves).chain(second).collect::<Vec<_>>());
    slot[0] = 5 << 32;
    slot[1..].fill(0);
    slot[1] = 9;
    pair.client.stage(&slot).unwrap();
    pair.client.publish();
    assert_eq!(pair.changes(), [(CLIENT, 72, 5 << 32 | 2), (CLIENT, 73, 9)]);
    // The next lap continues the sequence.
    for _ in 2..16 {
        pair.client.stage(&[0; SUBMISSION_WORDS]).unwrap();
    }
    pair.client.publish();
    while pair.service.pop().is_some() {}
    pair.service.publish_all_consumed();
    pair.changes();
    pair.client.stage(&[0; SUBMISSION_WORDS]).unwrap();
    pair.client.publish();
    assert_eq!(pair.changes()[0], (CLIENT, 64, 17));
}

#[test]
fn completion_slots() {
    let mut pair = Watched::new(4);
    for tag in 0..4 {
        pair.client.stage(&[0, tag, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    }
    pair.client.publish();
    while pair.service.pop().is_some() {}
    pair.changes();
    pair.service.stage(&[1 << 48, 21, 22, 23]).unwrap();
    pair.service.stage(&[2 << 48, 31, 32, 33]).unwrap();
    pair.service.publish();
    let first = [(SERVICE, 64, 1 << 48 | 1), (SERVICE, 65, 21), (SERVICE, 66, 22), (SERVICE, 67, 23)];
    let second = [(SERVICE, 68, 2 << 48 | 2), (SERVICE, 69, 31), (SERVICE, 70, 32), (SERVICE, 71, 33)];
    assert_eq!(pair.changes(), [first, second].concat());
    // There are eight slots; the ninth completion is in the first one again.
    for _ in 0..2 {
        while pair.client.pop().is_some() {}
        pair.service.completion_room().unwrap();
        for _ in 0..3 {
            pair.service.stage(&[1 << 48, 0, 0, 0]).unwrap();
        }
        pair.service.publish();
    }
    assert_eq!(pair.memories[SERVICE].word(92).load(Ordering::Relaxed), 1 << 48 | 8);
    while pair.client.pop().is_some() {}
    pair.service.completion_room().unwrap();
    pair.changes();
    pair.service.stage(&[1 << 48, 7, 0, 0]).unwrap();
    pair.service.publish();
    assert!(pair.changes().contains(&(SERVICE, 64, 1 << 48 | 9)));
}

#[test]
fn words_of_the_client() {
    let mut pair = Watched::new(4);
    pair.client.parked().store(1, Ordering::Relaxed);
    assert_eq!(pair.changes(), [(CLIENT, 0, 1)]);
    let parked = ClientEnd::<HeapWords>::parked_for_completions();
    assert_eq!((parked, ClientEnd::<HeapWords>::parked_for_progress()), (1, 2));
    assert_eq!(pair.client.signal_wanted(), 4);
    pair.client.cancel(6);
    assert_eq!(pair.changes(), [(CLIENT, 32, 1), (CLIENT, 50, 7)]);
    pair.client.stop(5);
    assert_eq!(pair.changes(), [(CLIENT, 32, 2), (CLIENT, 49, 1 << 63 | 6)]);
    assert_eq!(pair.client.stage_list(&[11, 12]), Ok(0));
    assert_eq!(pair.changes(), [(CLIENT, 128, 11), (CLIENT, 129, 12)]);
    for _ in 0..3 {
        pair.service.stage(&[0; COMPLETION_WORDS]).unwrap();
    }
    pair.service.publish();
    pair.changes();
    while pair.client.pop().is_some() {}
    assert_eq!(pair.changes(), [(CLIENT, 16, 3)]);
    assert_eq!(pair.client.signal_wanted(), 4 | 3 << 32);
}

#[test]
fn words_of_the_service() {
    let mut pair = Watched::new(4);
    pair.worker.set(1);
    assert_eq!(pair.changes(), [(WORKER, 0, 1)]);
    pair.service.change_wake_word();
    assert_eq!(pair.changes(), [(SERVICE, 1, 1)]);
    pair.client.stage(&[0; SUBMISSION_WORDS]).unwrap();
    assert!(pair.client.publish(), "a parked worker has to be woken");
    pair.changes();
    pair.service.pop().unwrap();
    pair.service.publish_all_consumed();
    assert_eq!(pair.changes(), [(SERVICE, 16, 1)]);
    pair.service.publish_progress(6, 0x1000, false);
    assert_eq!(pair.changes(), [(SERVICE, 98, 7 << 40 | 0x1000)]);
    pair.service.publish_progress(6, 0x2000, true);
    assert_eq!(pair.changes(), [(SERVICE, 98, 1 << 63 | 7 << 40 | 0x2000)]);
    pair.service.clear_progress(6);
    assert_eq!(pair.changes(), [(SERVICE, 98, 0)]);
    pair.service.close();
    assert_eq!(pair.changes(), [(SERVICE, 1, 2), (SERVICE, 32, 1)]);
}
