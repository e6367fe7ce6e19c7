//! More requests than engine channels: their frames, and the counts of their outcomes.

/// How the requests ended, counted.
pub(super) struct Crowd {
    pub(super) refused: u32,
    pub(super) waited: u32,
    /// Requests refused for another reason, or whose bytes were not moved exactly once.
    pub(super) wrong: u32,
}

/// The contents of a request's frame before it ran and after exactly one run. It shifts each byte by one, so a lost or repeated run
/// shows.
pub(super) fn shift(tag: u64, length: usize) -> [Vec<u8>; 2] {
    let before: Vec<u8> = (0..length).map(|at| (at as u64 * 7 + tag) as u8).collect();
    let after = [&before[..1], &before[..length - 1]].concat();
    [before, after]
}
