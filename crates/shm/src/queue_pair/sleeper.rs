//! A handle to sleep on a queue pair from a thread other than the one that uses it.

use super::{CLIENT_PARKED, WAKE_WORD};
use crate::parking::Fences;
use crate::storage::RingStorage;
use crate::sync::AtomicU64;

/// The client's parked flag and wake word, for a thread other than the one that uses the queue.
#[derive(Clone, Debug)]
pub struct Sleeper<S> {
    own: S,
    peer: S,
    fences: Fences,
}

impl<S: RingStorage> Sleeper<S> {
    pub(super) const fn new(own: S, peer: S, fences: Fences) -> Self {
        Self { own, peer, fences }
    }

    #[inline]
    pub fn parked(&self) -> &AtomicU64 {
        self.own.word(CLIENT_PARKED)
    }

    #[inline]
    pub fn wake_word(&self) -> &AtomicU64 {
        self.peer.word(WAKE_WORD)
    }

    #[inline]
    pub fn fences(&self) -> Fences {
        self.fences
    }
}
