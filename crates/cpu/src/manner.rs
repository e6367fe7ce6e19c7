//! The ways a copy or fill can use the caches.
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
