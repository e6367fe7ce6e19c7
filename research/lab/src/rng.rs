//! The lab's random numbers: xorshift (Marsaglia 2003), which depends only on its seed.
//!
//! ```text
//! seed ──► Rng ── part() ──► a fraction in 0..1      below(end), word() ──► an integer
//! ```
//!
//! Equal seeds give equal numbers on any machine; do not use it for secrets. The product uses the crate `fastrand`. The lab has
//! its own generator because its simulated figures and `bands.csv` depend on the exact numbers, which a release of a crate
//! may change.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The sequence for a seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The sequence for one of several consecutive seeds, mixed so that they start differently (the finalizer of SplitMix64).
    pub(crate) const fn of_neighbour(seed: u64) -> Self {
        let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// A fraction in 0..1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `end`; zero if `end` is zero.
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
