//! Slots as a hostile peer may write them, through both decoders.
//!
//! ```text
//! 16 words ──► decode_request ──► encode_request ──► decode_request    equal, same tag, no sequence
//!  4 words ──► decode_completion ──► encode_completion ──► decode_completion
//! ```
//!
//! Every word that the operation uses must come back as it was, so a decoder that narrows or drops a value is found; words
//! it does not use may hold anything.

use memferry_transfer::wire::{
    COMPLETION_WORDS, SUBMISSION_WORDS, decode_completion, decode_request, encode_completion, encode_request,
    tag_of,
};
use memferry_transfer::{Operation, Span};

use crate::input::Input;

/// Sequence of the ring, which no codec may read or write.
const SEQUENCE: u64 = 0xffff_ffff;
/// Bit of a completion's header that names the operand.
const SIDE: u64 = 1 << 56;
/// Statuses whose detail is one 64-bit value: a handle, a limit, a length or a number of channels.
const STATUSES_WITH_DETAIL: std::ops::RangeInclusive<u64> = 2..=10;

/// Input: a submission slot of 16 words, then completion slots of 4 words to the end.
pub fn request_slot(data: &[u8]) {
    let mut input = Input::new(data);
    submission(input.words());
    while !input.is_empty() {
        completion(input.words());
    }
}

fn submission(slot: [u64; SUBMISSION_WORDS]) {
    let decoded = decode_request(&slot);
    let mut elsewhere = slot;
    elsewhere[0] ^= SEQUENCE;
    assert_eq!(decode_request(&elsewhere), decoded, "the sequence is the ring's");
    if let Ok(request) = decoded {
        let again = encode_request(tag_of(&slot), &request).expect("what came out of a slot fits one");
        let mut expected = slot;
        expected[0] &= !SEQUENCE;
        for index in used_words(&request.operation) {
            assert_eq!(again[index], expected[index], "word {index} of {request:?}");
        }
        assert_eq!(decode_request(&again), decoded);
        let _ = (request.operation.total_bytes(), request.operation.name());
    }
}

/// The words of a slot that mean something for `operation`.
fn used_words(operation: &Operation<Span>) -> Vec<usize> {
    match operation {
        Operation::Nop => (0..3).collect(),
        Operation::Copy { .. } => (0..8).collect(),
        Operation::Fill { .. } => vec![0, 1, 2, 3, 5, 6, 7],
        Operation::Copy2d { .. } => (0..13).collect(),
        Operation::Fill2d { .. } => vec![0, 1, 2, 5, 6, 7, 10, 11, 12],
    }
}

fn completion(slot: [u64; COMPLETION_WORDS]) {
    let decoded = decode_completion(&slot);
    let mut elsewhere = slot;
    elsewhere[0] ^= SEQUENCE;
    assert_eq!(decode_completion(&elsewhere), decoded, "the sequence is the ring's");
    if let Ok(completion) = decoded {
        let again = encode_completion(&completion);
        // The side means nothing where a status names none, and it is not kept there.
        assert_eq!(again[0] & !SIDE, slot[0] & !SEQUENCE & !SIDE, "{completion:?}");
        assert_eq!((again[1], again[2]), (slot[1], slot[2]));
        if STATUSES_WITH_DETAIL.contains(&(slot[0] >> 32 & 0xffff)) {
            assert_eq!(again[3], slot[3], "{completion:?}");
        }
        assert_eq!(decode_completion(&again), decoded);
        let _ = completion.outcome.map_err(|failure| failure.to_string());
    }
}
