//! Distributes the pieces of one job among threads through one atomic word.
//!
//! ```text
//! owner:    claim ─ write description ─ open ─ take_front, take_front, ... ─ close: waits for the members ─ free
//! members:                                   join ─ read description ─ take_back, ... ─ leave
//!
//! word:     open:1 │ claimed:1 │ members:14 │ unused:16 │ end of remaining pieces:16 │ front:16            0: free
//! ```
//!
//! A member is counted before it reads the description, and only while the word is open. The owner changes the description,
//! or returns, only when no member is counted. Each piece is taken by exactly one thread. The caller provides the job, its
//! description and the threads.

use crate::sync::{AtomicU64, Ordering};

/// Unit of the front of the remaining pieces, where the owner takes.
const FRONT: u64 = 1;
/// Unit of the end of the remaining pieces, where members take.
const END: u64 = 1 << 16;
/// Unit of the count of members.
const MEMBER: u64 = 1 << 48;
/// Set from [`claim`] to [`free`].
const CLAIMED: u64 = 1 << 62;
/// Set while members may join.
const OPEN: u64 = 1 << 63;

/// Limit on the pieces of one job.
pub const MAX_PIECES: u64 = END - 1;

/// The pieces that no thread has taken.
fn left(word: u64) -> std::ops::Range<u64> {
    word & MAX_PIECES..(word / END) & MAX_PIECES
}

fn has_pieces(word: u64) -> bool {
    word & OPEN != 0 && !left(word).is_empty()
}

/// Whether a member could join now. This is a hint: the answer may be outdated at once.
#[inline]
pub fn has_work(word: &AtomicU64) -> bool {
    has_pieces(word.load(Ordering::Relaxed))
}

/// Makes the calling thread the owner, unless there is one.
pub fn claim(word: &AtomicU64) -> bool {
    word.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// The owner lets members join, with `pieces` pieces to take, at most [`MAX_PIECES`]. The description is complete.
pub fn open(word: &AtomicU64, pieces: u64) {
    word.store(OPEN | CLAIMED | (pieces.min(MAX_PIECES) * END), Ordering::Release);
}

/// The owner takes the piece at the front.
pub fn take_front(word: &AtomicU64) -> Option<u64> {
    let take = |word: u64| (!left(word).is_empty()).then_some(word.wrapping_add(FRONT));
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|word| left(word).start)
}

/// A thread becomes a member and takes the piece at the end. It may read the description until it [leaves](leave).
pub fn join(word: &AtomicU64) -> Option<u64> {
    let take = |word: u64| has_pieces(word).then_some(word.wrapping_add(MEMBER).wrapping_sub(END));
    word.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).ok().map(|word| left(word).end - 1)
}

/// A member takes the next piece at the end.
pub fn take_back(word: &AtomicU64) -> Option<u64> {
    let take = |word: u64| has_pieces(word).then_some(word.wrapping_sub(END));
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|word| left(word).end - 1)
}

/// A member has finished its pieces and reads the description no more.
pub fn leave(word: &AtomicU64) {
    word.fetch_sub(MEMBER, Ordering::Release);
}

/// The owner stops further members from joining and waits until all have left, calling `wait` between checks. It then sees
/// the members' stores.
pub fn close(word: &AtomicU64, mut wait: impl FnMut()) {
    let mut value = word.fetch_and(!OPEN, Ordering::Acquire) & !OPEN;
    while value >= CLAIMED + MEMBER {
        wait();
        value = word.load(Ordering::Acquire);
    }
}

/// The owner ends its claim after [`close`].
pub fn free(word: &AtomicU64) {
    word.store(0, Ordering::Release);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_from_both_ends() {
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
        close(&word, || panic!("no member is left"));
        free(&word);
        assert!(claim(&word));
    }

    #[test]
    fn close_refuses_and_awaits_helpers() {
        let word = AtomicU64::new(0);
        claim(&word);
        open(&word, MAX_PIECES + 9);
        assert_eq!(join(&word), Some(MAX_PIECES - 1), "open exceeds MAX_PIECES");
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
