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
        let parked = HeapWords::zeroed(ParkedWord::<HeapWords>::BYTES / 8);
        let before = [vec![0; own.words()], vec![0; other.words()], vec![0; 512]];
        Self {
            client: ClientEnd::new(layout, own.clone(), other.clone(), parked.clone(), Fences::Full).unwrap(),
            service: ServiceEnd::new(layout, own.clone(), other.clone(), Fences::Full).unwrap(),
            worker: ParkedWord::new(parked.clone(), 3).unwrap(),
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
    (2, 8288, 78, 64, 96, 76),
    (8, 8384, 120, 64, 192, 112),
    (16, 16704, 176, 64, 320, 160),
    (64, 33904, 512, 112, 1136, 448),
    (4096, 102448, 28736, 4144, 69680, 24640),
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
        assert_eq!(
            (slots, lists, client),
            (first, first + 16 * count, first + 16 * count + 1024 * count.clamp(8, 32))
        );
        assert_eq!((progress, service), (64 + 6 * count, 64 + 7 * count));
    }
    assert_eq!(MAXIMUM_CAPACITY, 4096);
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
    // The second part of slot 0, behind all first parts. Nobody reads it before its header is published.
    let second: Vec<_> = (4..16).map(|word| (CLIENT, 64 + 16 * 4 + word - 4, 100 + word as u64)).collect();
    assert_eq!(pair.changes(), second);
    pair.client.publish();
    // The first part: words 0 to 3 at 64. The header carries sequence 1.
    let header = (CLIENT, 64, LONG | 5 << 32 | 1);
    assert_eq!(pair.changes(), [header, (CLIENT, 65, 101), (CLIENT, 66, 102), (CLIENT, 67, 103)]);
    assert_eq!(pair.service.pop(), Some(slot));
    pair.client.stage_short([5 << 32, 9, 0, 0]).unwrap();
    assert_eq!(pair.changes(), [], "visible before it is published");
    pair.client.publish();
    assert_eq!(pair.changes(), [(CLIENT, 68, 5 << 32 | 2), (CLIENT, 69, 9)]);
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
fn sequences_have_16_bits() {
    let mut pair = Watched::new(2);
    for _ in 0..0xffff {
        pair.client.stage_short([0; 4]).unwrap();
        pair.client.publish();
        pair.service.pop().unwrap();
        pair.client.presume_consumed(0);
    }
    pair.changes();
    for header in [0, 1] {
        pair.client.stage_short([7 << 32; 4]).unwrap();
        pair.client.publish();
        assert_eq!(pair.changes()[0].2, 7 << 32 | header);
        assert_eq!(pair.service.pop_first(), Some([7 << 32; 4]));
        pair.client.presume_consumed(0);
    }
}

#[test]
fn completion_slots() {
    let mut pair = Watched::new(4);
    for tag in 0..4 {
        pair.client.stage_short([tag << 32, 0, 0, 0]).unwrap();
    }
    pair.client.publish();
    while pair.service.pop().is_some() {}
    pair.changes();
    pair.service.stage(&[LONG | 1 << 48, 22, 23]).unwrap();
    pair.service.stage(&[2 << 48, 32, 33]).unwrap();
    pair.service.stage_short(3 << 48).unwrap();
    pair.service.publish();
    // Second parts are behind the eight first parts.
    let first = [LONG | 1 << 48 | 1, 2 << 48 | 2, 3 << 48 | 3];
    let first = (64..).zip(first).map(|(word, header)| (SERVICE, word, header));
    let second = [(SERVICE, 72, 22), (SERVICE, 73, 23)];
    assert_eq!(pair.changes(), first.chain(second).collect::<Vec<_>>());
    while pair.client.pop().is_some() {}
    pair.service.completion_room().unwrap();
    for _ in 0..4 {
        pair.service.stage_short(1 << 48).unwrap();
    }
    pair.service.publish();
    pair.changes();
    pair.service.stage(&[LONG | 7 << 48, 1, 2]).unwrap();
    assert_eq!(
        pair.changes(),
        [(SERVICE, 71, LONG | 7 << 48 | 8), (SERVICE, 86, 1), (SERVICE, 87, 2)],
        "the last of a line is published at once"
    );
    while pair.client.pop().is_some() {}
    pair.service.completion_room().unwrap();
    pair.service.stage_short(1 << 48).unwrap();
    pair.service.publish();
    // There are eight slots; the ninth completion is in the first one again.
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
    pair.client.cancel(u32::MAX);
    assert_eq!(pair.changes(), [(CLIENT, 32, 2), (CLIENT, 51, 1 << 32)]);
    pair.client.stop(5);
    assert_eq!(pair.changes(), [(CLIENT, 32, 3), (CLIENT, 49, 1 << 63 | 6)]);
    assert_eq!(pair.client.stage_list(&[11, 12]), Ok(0));
    assert_eq!(pair.changes(), [(CLIENT, 128, 11), (CLIENT, 129, 12)]);
    for _ in 0..3 {
        pair.service.stage(&[0; COMPLETION_WORDS]).unwrap();
    }
    pair.service.publish();
    pair.changes();
    while pair.client.pop().is_some() {}
    assert_eq!(pair.changes(), [(CLIENT, 16, 2)], "the third may still be read when the count is stored");
    assert_eq!(pair.client.signal_wanted(), 4 | 3 << 32);
}

#[test]
fn words_of_the_service() {
    let mut pair = Watched::new(4);
    pair.worker.set(1);
    assert_eq!(pair.changes(), [(WORKER, 24, 1)]);
    assert!(!pair.client.cancel(0), "another worker is parked");
    pair.changes();
    pair.service.set_worker(3);
    assert_eq!(pair.changes(), [(SERVICE, 33, 3)]);
    pair.service.change_wake_word();
    assert_eq!(pair.changes(), [(SERVICE, 1, 1)]);
    pair.client.stage(&[0; SUBMISSION_WORDS]).unwrap();
    assert!(pair.client.publish(), "a parked worker has to be woken");
    pair.changes();
    pair.service.pop().unwrap();
    pair.service.publish_all_consumed();
    assert_eq!(pair.changes(), [(SERVICE, 16, 1)]);
    pair.service.publish_progress(6, 0x1000, false);
    assert_eq!(pair.changes(), [(SERVICE, 90, 7 << 40 | 0x1000)]);
    pair.service.publish_progress(6, 0x2000, true);
    assert_eq!(pair.changes(), [(SERVICE, 90, 1 << 63 | 7 << 40 | 0x2000)]);
    pair.service.clear_progress(6);
    assert_eq!(pair.changes(), [(SERVICE, 90, 0)]);
    pair.service.close();
    assert_eq!(pair.changes(), [(SERVICE, 1, 2), (SERVICE, 32, 1)]);
}
