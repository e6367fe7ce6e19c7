//! Reproducible random numbers from a seed. None of them is secret.

use std::time::Duration;

/// The random numbers of one process.
#[derive(Clone, Debug)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number of `0..end`; 0 if the range is empty.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end.max(1))
    }

    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0.u64(least..=most)
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// An element of a list that is not empty.
    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.0.usize(..list.len())]
    }

    /// A time between half and one and a half of `time`.
    pub(crate) fn about(&mut self, time: Duration) -> Duration {
        time.mul_f64(0.5 + self.below(1001) as f64 / 1000.0)
    }

    /// A seed for another generator.
    pub(crate) fn seed(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.0.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers() {
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
