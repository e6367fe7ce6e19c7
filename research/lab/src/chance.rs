//! The lab's one source of random numbers: xorshift (Marsaglia 2003), which depends on its seed alone.
//!
//! ```text
//! seed ──► Chance ── part() ──► a part of one      below(end), word() ──► a whole number
//! ```
//!
//! Equal seeds give equal numbers on any machine; they are not for secrets. The rest of the project takes the crate `fastrand`.
//! The lab keeps this generator because its simulated figures, and `sensitivity.csv` with them, follow from the exact numbers,
//! and a release of a crate may change these.

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The sequence of a seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The sequence of one of several seeds in a row: they begin differently (the finalizer of SplitMix64).
    pub(crate) const fn of_neighbour(seed: u64) -> Self {
        let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// A part of one, below one.
    pub(crate) fn part(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `end`; zero when there is none.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.word() >> 11) % end.max(1)
    }

    /// Any number but zero.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
