//! Decodes slots from a hostile peer with both decoders.
//!
//! ```text
//! 16 words ──► decode_request ──► encode_request, encode_long ──► decode_request    equal, same tag, no sequence
//!  4 words ──► decode_plain                                                          the same, or nothing
//!  3 words ──► decode_completion ──► encode_completion ──► decode_completion
//! ```
//!
//! Every word that the operation uses must survive the round trip, which finds a decoder that narrows or drops a value.
//! Unused words may hold anything.

use memferry_transfer::wire::{
    COMPLETION_WORDS, LONG, SUBMISSION_WORDS, decode_completion, decode_plain, decode_request,
    encode_completion, encode_long, encode_request, encode_short, place_list, tag_of,
};
use memferry_transfer::{Operation, Request};

use crate::input::Input;

/// The slot's sequence number, which the ring owns and no codec may read or write.
const SEQUENCE: u64 = 0xffff;
/// Bit of a completion's header that names the operand.
const SIDE: u64 = 1 << 28;
/// Bytes of the request that a completion is for.
const WHOLE: u64 = 77;
/// Statuses whose detail is one 64-bit value: a handle, a limit, a length, a number of channels or of an operand.
const STATUSES_WITH_DETAIL: [u64; 10] = [2, 3, 4, 5, 6, 7, 8, 9, 10, 25];

/// Input: a submission slot of 16 words, then completion slots of 3 words to the end.
pub fn request_slot(data: &[u8]) {
    let mut input = Input::new(data);
    submission(input.words());
    while !input.is_empty() {
        completion(input.words());
    }
}

fn submission(slot: [u64; SUBMISSION_WORDS]) {
    // The list area is as hostile as the slot: it repeats the slot's words.
    let fetch = |first: u64, words: usize| {
        let end = first.checked_add(words as u64).filter(|end| *end <= LIST_WORDS)?;
        Some((first..end).map(|word| slot[word as usize % SUBMISSION_WORDS]).collect())
    };
    let decoded = decode_request(&slot, fetch);
    let mut elsewhere = slot;
    elsewhere[0] ^= SEQUENCE;
    assert_eq!(decode_request(&elsewhere, fetch), decoded, "the sequence must not matter");
    let [first, second, third, fourth, ..] = slot;
    if let Some(plain) = decode_plain(&[first, second, third, fourth]) {
        assert_eq!(Ok(Request::new(plain.operation())), decoded);
    }
    if let Ok(request) = &decoded {
        let tag = tag_of(slot[0]);
        for encode in [encode_request, encode_long] {
            let mut list = Vec::new();
            let mut again = encode(tag, request, &mut list).expect("a decoded request fits a slot");
            if !list.is_empty() {
                place_list(&mut again, slot[3]);
                assert_eq!(fetch(slot[3], list.len()), Some(list.clone()));
            }
            // Words can be compared if the form is the same.
            if (again[0] ^ slot[0]) & LONG == 0 {
                let mut expected = slot;
                expected[0] &= !SEQUENCE;
                for index in used_words(slot[0] & LONG != 0, request) {
                    assert_eq!(again[index], expected[index], "word {index} of {request:?}");
                }
            }
            assert_eq!(decode_request(&again, |_, _| Some(list)), decoded);
        }
        assert!(slot[0] & LONG != 0 || encode_short(tag, request).is_some(), "a short slot stays short");
        let _ = request.operation().map(|operation| (operation.total_bytes(), operation.name()));
    }
}

/// Words of a small queue's list area.
const LIST_WORDS: u64 = 1 << 13;

/// Indexes of the slot's words that the request uses wholly.
fn used_words(long: bool, request: &Request) -> Vec<usize> {
    let Some(operation) = request.operation() else { return vec![0, 1, 2, 3] };
    if !long {
        return match operation {
            Operation::Nop => vec![0],
            Operation::Crc { .. } => vec![0, 1, 2],
            _ => (0..4).collect(),
        };
    }
    match operation {
        Operation::ScatterGather { lists } => {
            // The position of an empty list is ignored.
            let empty = lists.source.is_empty() && lists.destination.is_empty();
            if empty { vec![0, 1, 2, 4] } else { (0..5).collect() }
        }
        Operation::Xor { .. } | Operation::Compare { .. } => (0..8).collect(),
        Operation::Crc { .. } => vec![0, 1, 2, 3, 4, 5, 7],
        Operation::CopyCrc { .. } | Operation::Synchronized { .. } => (0..9).collect(),
        Operation::DualCopy { .. } => (0..10).collect(),
        Operation::Nop => (0..3).collect(),
        Operation::Copy { .. } => (0..8).collect(),
        Operation::Fill { .. } => vec![0, 1, 2, 3, 5, 6, 7],
        Operation::Copy2d { .. } => (0..13).collect(),
        Operation::Fill2d { .. } => vec![0, 1, 2, 5, 6, 7, 10, 11, 12],
    }
}

fn completion(slot: [u64; COMPLETION_WORDS]) {
    let decoded = decode_completion(&slot, WHOLE);
    let mut elsewhere = slot;
    elsewhere[0] ^= SEQUENCE;
    assert_eq!(decode_completion(&elsewhere, WHOLE), decoded, "the sequence must not matter");
    if let Ok(completion) = decoded {
        let again = encode_completion(&completion);
        // The side bit is not preserved for statuses without a side, and this encoder makes long slots.
        assert_eq!(again[0] & !SIDE, (slot[0] | LONG) & !SEQUENCE & !SIDE, "{completion:?}");
        let bytes_done = if slot[0] & LONG == 0 { WHOLE } else { slot[1] };
        assert_eq!(again[1], bytes_done);
        if slot[0] & LONG != 0 && STATUSES_WITH_DETAIL.contains(&(slot[0] >> 16 & 0xff)) {
            assert_eq!(again[2], slot[2], "{completion:?}");
        }
        assert_eq!(decode_completion(&again, WHOLE), decoded);
        let _ = completion.outcome.result.map_err(|failure| failure.to_string());
    }
}
