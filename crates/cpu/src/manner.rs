//! The ways a copy or fill can use the caches, and the kinds of work they suit.
//!
//! [`choice`](super::choice) chooses one, `kernels` implements them.

/// How a copy or fill uses the caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// Through the caches, as the C library does.
    Cached,
    Streaming,
    /// Past the caches, and evicts the source's lines.
    Flushing,
}

/// The kind of operation, as far as the choice depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Copy,
    Zero,
    /// Writes a non-zero pattern: takes as long either way.
    Fill,
}
