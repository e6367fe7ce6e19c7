//! Numbers that a seed tells, so that what was drawn can be drawn again. Nothing here is secret.

use std::time::Duration;

/// A sequence of numbers (SplitMix64, Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of `0..end`; 0 when that is empty.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// One of both and what lies between.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of a list that is not empty.
    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// Half to one and a half of a time.
    pub(crate) fn about(&mut self, time: Duration) -> Duration {
        time.mul_f64(0.5 + self.below(1001) as f64 / 1000.0)
    }

    /// Bytes for a generator of another kind.
    pub(crate) fn seed(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_tell_equal_numbers_within_their_bounds() {
        let mut one = Random::new(7);
        let mut other = Random::new(7);
        for end in 1..200 {
            let number = one.between(3, 3 + end);
            assert_eq!(number, other.between(3, 3 + end));
            assert!((3..=3 + end).contains(&number));
        }
        assert_ne!(one.next(), Random::new(8).next());
    }
}
