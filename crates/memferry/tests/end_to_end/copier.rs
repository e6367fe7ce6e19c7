//! Asynchronous copies of owned memory: random programs held against memcpy, buffers that go, threads.

use memferry::{AccessError, AmemcpyError, Copier, CopyBuffer};

use super::*;

const BYTES: usize = 300_000;

/// Numbers without pattern; the seed is printed by who fails.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    /// A range of a buffer: long, short or of all.
    fn range(&mut self) -> (usize, usize) {
        let longest = [BYTES, 100_000, 9_000, 100][self.below(4)];
        let length = self.below(longest + 1);
        (self.below(BYTES - length + 1), length)
    }
}

/// Buffers, and what they hold had every copy been made at its call.
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
        let adopt = |bytes: &Vec<u8>| copier.adopt(bytes.clone()).expect("memory of its own");
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
                // Another in its place; what was copied from the old one is copied all the same.
                let fresh = vec![self.random.below(256) as u8; BYTES];
                self.buffers[one] = self.copier.adopt(fresh.clone()).unwrap();
                self.oracle[one] = fresh;
            }
        }
    }

    fn run(mut self, turns: usize) {
        (0..turns).for_each(|_| self.turn());
        for (buffer, wanted) in self.buffers.into_iter().zip(self.oracle) {
            assert!(buffer.into_vec().expect("the memory again") == wanted);
        }
    }
}

#[test]
fn random_programs_read_what_memcpy_would_have_given_them() {
    let copier = Copier::new(&client()).unwrap();
    for seed in 1..6 {
        println!("seed {seed}");
        Program::new(&copier, seed).run(150);
    }
    let statistics = copier.statistics().unwrap();
    println!("{statistics:?}");
    // How much is dropped is the threads' affair (nothing, where the worker keeps up); each byte is one or the other, but for
    // those that come back to where they are, which these programs do not ask for.
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
fn what_was_copied_from_a_buffer_outlives_it() {
    let copier = Copier::new(&client()).unwrap();
    let to = copier.adopt(vec![0; BYTES]).unwrap();
    let from = copier.adopt(vec![5; BYTES]).unwrap();
    copier.amemcpy(&to.all(), &from.all()).unwrap();
    drop(from);
    drop(copier);
    assert_eq!(to.into_vec().unwrap(), vec![5; BYTES]);
}

#[test]
fn what_leaves_a_buffer_or_is_another_copiers_is_refused() {
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
