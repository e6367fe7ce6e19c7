//! Work that several threads share, told of by one word: who does which piece, and when nobody does any more.
//!
//! ```text
//! owner:   claim ─ describe the work ─ open ─ take_front, take_front, ... ─ close: waits for the helpers ─ free again
//! helpers:                                 join ─ read what is described ─ take_back, ... ─ leave
//!
//! word:    open:1 │ claimed:1 │ helpers:14 │ │ end of the pieces left:16 │ their front:16            0: free
//! ```
//!
//! A helper is counted before it reads a description, and only while the word is open; the owner changes the description, or
//! returns, when nobody is counted. Who takes a piece does so alone. What the work is, and threads, are the caller's.

use crate::sync::{AtomicU64, Ordering};

/// The front of the pieces that are left: the owner takes there.
const FRONT: u64 = 1;
/// Their end: helpers take there.
const END: u64 = 1 << 16;
/// A helper at work.
const HELPER: u64 = 1 << 48;
/// Somebody prepares it, or shares it.
const CLAIMED: u64 = 1 << 62;
/// Helpers are let in.
const OPEN: u64 = 1 << 63;

/// The most pieces there can be.
pub const MOST_PIECES: u64 = END - 1;

/// The pieces of a word that nobody has begun.
fn left(word: u64) -> std::ops::Range<u64> {
    word & MOST_PIECES..(word / END) & MOST_PIECES
}

fn has_pieces(word: u64) -> bool {
    word & OPEN != 0 && !left(word).is_empty()
}

/// Whether there is something for a helper, as far as can be seen.
#[inline]
pub fn has_work(word: &AtomicU64) -> bool {
    has_pieces(word.load(Ordering::Relaxed))
}

/// Makes the calling thread the owner, unless there is one.
pub fn claim(word: &AtomicU64) -> bool {
    word.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// The owner lets helpers in to so many pieces, at most [`MOST_PIECES`]; the work was described before.
pub fn open(word: &AtomicU64, pieces: u64) {
    word.store(OPEN | CLAIMED | (pieces.min(MOST_PIECES) * END), Ordering::Release);
}

/// The owner takes the piece at the front.
pub fn take_front(word: &AtomicU64) -> Option<u64> {
    let take = |word: u64| (!left(word).is_empty()).then_some(word.wrapping_add(FRONT));
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|word| left(word).start)
}

/// A thread becomes a helper and takes the piece at the end; it may read what is described until it [leaves](leave).
pub fn join(word: &AtomicU64) -> Option<u64> {
    let take = |word: u64| has_pieces(word).then_some(word.wrapping_add(HELPER).wrapping_sub(END));
    word.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok().map(|word| left(word).end - 1)
}

/// A helper takes the next piece at the end.
pub fn take_back(word: &AtomicU64) -> Option<u64> {
    let take = |word: u64| has_pieces(word).then_some(word.wrapping_sub(END));
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|word| left(word).end - 1)
}

/// A helper is done with its pieces, and with the description.
pub fn leave(word: &AtomicU64) {
    word.fetch_sub(HELPER, Ordering::Release);
}

/// The owner lets no helper in any more, and waits for those within, calling `wait` between looks; what they did can be seen.
pub fn close(word: &AtomicU64, mut wait: impl FnMut()) {
    let mut value = word.fetch_and(!OPEN, Ordering::Acquire) & !OPEN;
    while value >= CLAIMED + HELPER {
        wait();
        value = word.load(Ordering::Acquire);
    }
}

/// The owner gives it back after [`close`].
pub fn free(word: &AtomicU64) {
    word.store(0, Ordering::Release);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_from_both_ends_until_they_meet() {
        let word = AtomicU64::new(0);
        assert!(claim(&word) && !claim(&word) && !has_work(&word));
        open(&word, 4);
        assert!(has_work(&word));
        assert_eq!(
            (take_front(&word), join(&word), take_back(&word), take_front(&word)),
            (Some(0), Some(3), Some(2), Some(1))
        );
        assert_eq!((take_front(&word), take_back(&word), join(&word)), (None, None, None));
        leave(&word);
        close(&word, || panic!("nobody is within"));
        free(&word);
        assert!(claim(&word));
    }

    #[test]
    fn a_closed_word_lets_nobody_in_and_the_owner_waits_for_who_is() {
        let word = AtomicU64::new(0);
        claim(&word);
        open(&word, MOST_PIECES + 9);
        assert_eq!(join(&word), Some(MOST_PIECES - 1), "no more than there can be");
        let mut waits = 0;
        close(&word, || {
            waits += 1;
            assert_eq!((join(&word), take_back(&word)), (None, None));
            if waits == 3 {
                leave(&word);
            }
        });
        assert_eq!(waits, 3);
    }
}
