//! Quasi-random points: Halton's sequence with scrambled digits.
//!
//! ```text
//! point n, dimension d: the digits of n in the d-th prime, each replaced by a fixed permutation, mirrored at the point ──► 0..1
//! ```
//!
//! The first points of a plain sequence lie on lines in higher dimensions; permutations of the digits, here drawn by a fixed seed
//! for each prime, avoid that (Braaten and Weller 1979). Equal counts of dimensions give equal points on any machine.

use crate::rng::Rng;

/// The sequence for a number of dimensions.
#[derive(Clone, Debug)]
pub(crate) struct Halton {
    /// For each dimension, the permutation of the digits of its prime; zero stays zero.
    digits: Vec<Vec<u64>>,
    next: u64,
}

impl Halton {
    pub(crate) fn new(dimensions: usize) -> Self {
        Self { digits: primes().take(dimensions).map(permutation).collect(), next: 1 }
    }

    pub(crate) fn dimensions(&self) -> usize {
        self.digits.len()
    }

    /// The next point; each coordinate is in 0..1.
    pub(crate) fn next_point(&mut self) -> Vec<f64> {
        let number = self.next;
        self.next += 1;
        self.digits.iter().map(|digits| mirrored(number, digits)).collect()
    }
}

fn mirrored(mut number: u64, digits: &[u64]) -> f64 {
    let base = digits.len() as u64;
    let mut weight = 1.0 / base as f64;
    let mut value = 0.0;
    while number > 0 {
        let digit = digits.get((number % base) as usize).copied().unwrap_or_default();
        value += digit as f64 * weight;
        weight /= base as f64;
        number /= base;
    }
    value
}

fn permutation(base: u64) -> Vec<u64> {
    let mut rng = Rng::of_neighbour(base);
    let mut digits: Vec<u64> = (0..base).collect();
    for place in (2..digits.len()).rev() {
        let other = 1 + rng.below(place as u64) as usize;
        digits.swap(place, other);
    }
    digits
}

fn primes() -> impl Iterator<Item = u64> {
    (2u64..).filter(|number| {
        (2..*number).take_while(|part| part * part <= *number).all(|part| !number.is_multiple_of(part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_fill_every_dimension_evenly() {
        let mut halton = Halton::new(40);
        let points: Vec<Vec<f64>> = (0..64).map(|_| halton.next_point()).collect();
        for dimension in 0..40 {
            let column: Vec<f64> = points.iter().map(|point| point[dimension]).collect();
            assert!(column.iter().all(|part| (0.0..1.0).contains(part)));
            let mean = column.iter().sum::<f64>() / 64.0;
            assert!((mean - 0.5).abs() < 0.12, "dimension {dimension}: {mean}");
        }
        let again = Halton::new(40).next_point();
        assert_eq!(again, points[0]);
    }

    #[test]
    fn neighbouring_dimensions_are_not_alike() {
        let mut halton = Halton::new(40);
        let points: Vec<Vec<f64>> = (0..64).map(|_| halton.next_point()).collect();
        for one in 0..39 {
            let product = |point: &Vec<f64>| (point[one] - 0.5) * (point[one + 1] - 0.5);
            let together = points.iter().map(product).sum::<f64>() / 64.0 * 12.0;
            assert!(together.abs() < 0.5, "dimensions {one} and the next: {together}");
        }
    }

    #[test]
    fn permutations_keep_every_digit() {
        for base in primes().take(40) {
            let mut digits = permutation(base);
            assert_eq!(digits[0], 0);
            digits.sort_unstable();
            assert_eq!(digits, (0..base).collect::<Vec<_>>());
        }
        assert_eq!(primes().take(6).collect::<Vec<_>>(), [2, 3, 5, 7, 11, 13]);
    }
}
