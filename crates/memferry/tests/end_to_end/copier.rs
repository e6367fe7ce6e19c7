//! Asynchronous copies of owned memory: random programs compared with memcpy, dropped buffers, threads.

use memferry::{AccessError, AmemcpyError, Copier, CopyBuffer};

use super::*;

const BYTES: usize = 300_000;

/// A source of random numbers. Tests print the seed.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    /// A random range of a buffer: offset and length.
    fn range(&mut self) -> (usize, usize) {
        let longest = [BYTES, 100_000, 9_000, 100][self.below(4)];
        let length = self.below(longest + 1);
        (self.below(BYTES - length + 1), length)
    }
}

/// Buffers, and the bytes that they hold if each copy is made at its call.
struct Program<'a> {
    copier: &'a Copier,
    buffers: Vec<CopyBuffer>,
    oracle: Vec<Vec<u8>>,
    random: Random,
}

impl<'a> Program<'a> {
    fn new(copier: &'a Copier, seed: u64) -> Self {
        let mut random = Random(fastrand::Rng::with_seed(seed));
        let oracle: Vec<Vec<u8>> =
            (0..4).map(|_| (0..BYTES).map(|_| random.below(256) as u8).collect()).collect();
        let adopt = |bytes: &Vec<u8>| copier.adopt(bytes.clone()).expect("a buffer");
        Self { copier, buffers: oracle.iter().map(adopt).collect(), oracle, random }
    }

    fn turn(&mut self) {
        let one = self.random.below(4);
        let other = self.random.below(4);
        let (start, length) = self.random.range();
        match self.random.below(10) {
            0..5 => {
                let from = self.random.below(BYTES - length + 1);
                let to = self.buffers[one].range(start as u64, length as u64);
                self.copier.amemcpy(&to, &self.buffers[other].range(from as u64, length as u64)).unwrap();
                let bytes = self.oracle[other][from..from + length].to_vec();
                self.oracle[one][start..start + length].copy_from_slice(&bytes);
            }
            5..7 => {
                let mut bytes = vec![0; length];
                self.buffers[one].read(start as u64, &mut bytes).unwrap();
                assert!(bytes == self.oracle[one][start..start + length], "{length} bytes at {start}");
            }
            7..9 => {
                let length = length.min(1000);
                let bytes: Vec<u8> = (0..length).map(|_| self.random.below(256) as u8).collect();
                if self.random.below(2) == 0 {
                    self.buffers[one].forget(start as u64, length as u64).unwrap();
                }
                self.buffers[one].write(start as u64, &bytes).unwrap();
                self.oracle[one][start..start + length].copy_from_slice(&bytes);
            }
            _ => {
                // Drops a buffer. Copies from it are still done.
                let fresh = vec![self.random.below(256) as u8; BYTES];
                self.buffers[one] = self.copier.adopt(fresh.clone()).unwrap();
                self.oracle[one] = fresh;
            }
        }
    }

    fn run(mut self, turns: usize) {
        (0..turns).for_each(|_| self.turn());
        for (buffer, wanted) in self.buffers.into_iter().zip(self.oracle) {
            assert!(buffer.into_vec().expect("the vector") == wanted);
        }
    }
}

#[test]
fn random_programs_match_memcpy() {
    let copier = Copier::new(&client()).unwrap();
    for seed in 1..6 {
        println!("seed {seed}");
        Program::new(&copier, seed).run(150);
    }
    let statistics = copier.statistics().unwrap();
    println!("{statistics:?}");
    // The timing of the threads decides which bytes are dropped. Each byte is either moved or dropped, except in copies back to
    // the same place, which these programs do not make.
    assert_eq!(statistics.moved + statistics.dropped, statistics.asked);
    assert!(statistics.by_engine > 0);
}

#[test]
fn threads_share_a_copier() {
    let copier = Copier::new(&client()).unwrap();
    std::thread::scope(|scope| {
        for seed in [11, 12, 13] {
            let copier = &copier;
            scope.spawn(move || {
                println!("seed {seed}");
                Program::new(copier, seed).run(80);
            });
        }
        scope.spawn(|| (0..50).for_each(|_| copier.csync_all().unwrap()));
    });
}

#[test]
fn a_copy_outlives_its_source_buffer() {
    let copier = Copier::new(&client()).unwrap();
    let to = copier.adopt(vec![0; BYTES]).unwrap();
    let from = copier.adopt(vec![5; BYTES]).unwrap();
    copier.amemcpy(&to.all(), &from.all()).unwrap();
    drop(from);
    drop(copier);
    assert_eq!(to.into_vec().unwrap(), vec![5; BYTES]);
}

#[test]
fn bad_ranges_and_foreign_buffers_are_refused() {
    let client = client();
    let copier = Copier::new(&client).unwrap();
    let other = Copier::new(&client).unwrap();
    let to = copier.adopt(vec![1; 100]).unwrap();
    let from = other.adopt(vec![2; 100]).unwrap();
    assert_eq!(copier.amemcpy(&to.all(), &from.all()), Err(AmemcpyError::ForeignBuffer));
    let lengths = AmemcpyError::Lengths { from: 9, to: 10 };
    assert_eq!(copier.amemcpy(&to.range(0, 10), &to.range(50, 9)), Err(lengths));
    for (offset, length) in [(100, 1), (0, 101), (u64::MAX, 1), (1, u64::MAX)] {
        let error = AccessError::OutOfRange { offset, length, available: 100 };
        let refused = Err(AmemcpyError::Access(error));
        assert_eq!(copier.amemcpy(&to.range(offset, length), &to.range(0, length)), refused);
        assert_eq!(to.csync(offset, length), Err(error));
    }
    assert!(to.read(99, &mut [0; 2]).is_err() && to.write(100, &[1]).is_err());
    copier.amemcpy(&to.range(100, 0), &to.range(0, 0)).unwrap();
    assert_eq!(to.into_vec().unwrap(), vec![1; 100]);
}
