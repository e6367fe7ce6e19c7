//! Chance that depends on its seed alone (xorshift, Marsaglia 2003).
//!
//! ```text
//! seed ──► Chance ── part() ──► a part of one      below(end) ──► a whole number
//! ```
//!
//! Equal seeds give equal numbers on any machine; it is not for secrets.

/// A row of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The row of a seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A part of one, below one.
    pub(crate) fn part(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }

    /// A number below `end`; zero when there is none.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// 53 bits.
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}
