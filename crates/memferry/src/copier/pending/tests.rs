//! Random programs of pending copies, compared with memory in which each copy is made at its call. Each rule is broken once.
//!
//! ```text
//! program: copies, csyncs, writes, frees ─┬─► oracle: memcpy at once; bytes that a program must not read are unknown
//!                                         └─► Pending ─► moves, several in progress, byte by byte, in any order
//! after each csync: its bytes equal the oracle's
//! ```
//!
//! Programs follow the rules for programs and use all freedom that these give: they write sources without an announcement
//! when the copies from them were csynced.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::*;

const BYTES: usize = 64;

#[derive(Clone, Debug)]
enum Action {
    Copy {
        to: usize,
        from: usize,
        length: usize,
        short: bool,
    },
    Csync {
        start: usize,
        length: usize,
    },
    CsyncAll,
    /// A write announced by a csync to write.
    Write {
        start: usize,
        length: usize,
    },
    /// An unannounced write, at the first bytes from `start` on where none is needed.
    WriteQuietly {
        start: usize,
        length: usize,
    },
    Free {
        start: usize,
        length: usize,
    },
    Work(u8),
}

/// A move in progress: the bytes done, and a copy of the source if it overlaps the destination.
struct ActiveMove {
    chunk: Move,
    done: usize,
    kept: Option<Vec<u8>>,
}

struct World {
    pending: Pending,
    limit: u64,
    memory: Vec<u8>,
    oracle: Vec<Option<u8>>,
    active_moves: Vec<ActiveMove>,
    rng: fastrand::Rng,
    /// The destinations copied from a byte that were not csynced since.
    owed: Vec<BTreeSet<usize>>,
    /// Whether a destination of the byte was discarded or overwritten before it was csynced.
    lost: Vec<bool>,
    /// The source of a byte while it is in `owed`.
    origin: Vec<Option<usize>>,
    /// Whether the byte was copied to and not csynced since.
    unsynced: Vec<bool>,
}

type Checked = Result<(), String>;

impl World {
    fn new(seed: u64, limit: u64, broken: Option<Rule>) -> Self {
        let memory: Vec<u8> = (0..BYTES).map(|byte| byte as u8).collect();
        Self {
            pending: Pending { broken, ..Pending::new(24) },
            limit,
            oracle: memory.iter().copied().map(Some).collect(),
            memory,
            active_moves: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            owed: vec![BTreeSet::new(); BYTES],
            lost: vec![false; BYTES],
            origin: vec![None; BYTES],
            unsynced: vec![false; BYTES],
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.rng.usize(..below)
    }

    fn start(&mut self, chunk: Move) {
        let range = chunk.from as usize..(chunk.from + chunk.length) as usize;
        let overlaps = overlap(&chunk.target(), &chunk.source());
        let kept = overlaps.then(|| self.memory[range].to_vec());
        self.active_moves.push(ActiveMove { chunk, done: 0, kept });
    }

    /// Acts as another thread: starts a move, or moves one or more bytes of one.
    fn work(&mut self) {
        if (self.active_moves.is_empty() || self.random(4) == 0) && self.active_moves.len() < 4 {
            if let Some(chunk) = self.pending.next(self.limit) {
                self.start(chunk);
            }
            return;
        }
        let index = self.random(self.active_moves.len());
        let steps = 1 + self.random(6);
        for _ in 0..steps {
            let ActiveMove { chunk, done, kept } = &mut self.active_moves[index];
            let byte = kept.as_ref().map_or(self.memory[chunk.from as usize + *done], |kept| kept[*done]);
            self.memory[chunk.to as usize + *done] = byte;
            *done += 1;
            if *done as u64 == chunk.length {
                let finished = self.active_moves.swap_remove(index);
                self.pending.settle(finished.chunk.number);
                return;
            }
        }
    }

    fn reach(&mut self, goal: &Goal) -> Checked {
        for _ in 0..20_000 {
            match self.pending.step(goal, self.limit) {
                Step::Done => return Ok(()),
                Step::Move(chunk) => self.start(chunk),
                Step::Wait if self.active_moves.is_empty() => {
                    return Err(format!("{goal:?} waits without a move"));
                }
                Step::Wait => self.work(),
            }
            if self.random(2) == 0 && !self.active_moves.is_empty() {
                self.work();
            }
        }
        Err(format!("{goal:?} is never reached"))
    }

    /// Does what `CopyQueue::amemcpy` does.
    fn amemcpy(&mut self, to: usize, from: usize, length: usize, short: bool) -> Checked {
        let wide_to = to as u64;
        let wide_from = from as u64;
        let wide_length = length as u64;
        let into = wide_to..wide_to + wide_length;
        let out = wide_from..wide_from + wide_length;
        if short && self.pending.admit_immediate(wide_to, wide_from, wide_length) {
            self.memory.copy_within(from..from + length, to);
            return Ok(());
        }
        for _ in 0..1000 {
            match self.pending.insert(wide_to, wide_from, wide_length) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Unsettled(bytes)) => self.reach(&Goal::Read(bytes))?,
                Err(Obstacle::Overlap) => {
                    self.reach(&Goal::Write(into.clone()))?;
                    self.reach(&Goal::Read(out.clone()))?;
                    if self.pending.admit_immediate(wide_to, wide_from, wide_length) {
                        let chunk = self.pending.begin(wide_to, wide_from, wide_length);
                        let number = chunk.number;
                        self.start(chunk);
                        while self.active_moves.iter().any(|active| active.chunk.number == number) {
                            self.work();
                        }
                        return Ok(());
                    }
                }
            }
        }
        Err("a copy is never inserted".to_owned())
    }

    fn copied(&mut self, to: usize, from: usize, length: usize) {
        self.oracle.copy_within(from..from + length, to);
        if to == from {
            return;
        }
        for offset in 0..length {
            self.discard(to + offset);
            self.origin[to + offset] = Some(from + offset);
            self.owed[from + offset].insert(to + offset);
            self.unsynced[to + offset] = true;
        }
    }

    /// Records that a byte gets other contents, possibly before it was moved.
    fn discard(&mut self, byte: usize) {
        if let Some(source) = self.origin[byte].take() {
            self.owed[source].remove(&byte);
            self.lost[source] = true;
        }
    }

    fn csynced(&mut self, bytes: Range<usize>) {
        for byte in bytes {
            if let Some(source) = self.origin[byte].take() {
                self.owed[source].remove(&byte);
            }
            self.unsynced[byte] = false;
        }
    }

    /// Records that no copy reads the bytes any more.
    fn announced(&mut self, bytes: Range<usize>) {
        for byte in bytes {
            for destination in std::mem::take(&mut self.owed[byte]) {
                self.origin[destination] = None;
            }
            self.lost[byte] = false;
        }
    }

    fn write(&mut self, bytes: Range<usize>) {
        for byte in bytes {
            let value = self.random(256) as u8;
            self.memory[byte] = value;
            self.oracle[byte] = Some(value);
        }
    }

    fn compare(&self, bytes: Range<usize>, after: &Action) -> Checked {
        for byte in bytes {
            if self.oracle[byte].is_some_and(|wanted| wanted != self.memory[byte]) {
                let wanted = self.oracle[byte];
                let found = self.memory[byte];
                return Err(format!("after {after:?} byte {byte} is {found}, not {wanted:?}"));
            }
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Checked {
        let wide = |start: usize, length: usize| start as u64..(start + length) as u64;
        match *action {
            Action::Copy { to, from, length, short } => {
                self.amemcpy(to, from, length, short)?;
                self.copied(to, from, length);
            }
            Action::Csync { start, length } => {
                self.reach(&Goal::Read(wide(start, length)))?;
                self.csynced(start..start + length);
                self.compare(start..start + length, action)?;
            }
            Action::CsyncAll => {
                self.reach(&Goal::All)?;
                self.csynced(0..BYTES);
                self.compare(0..BYTES, action)?;
            }
            Action::Write { start, length } => {
                self.reach(&Goal::Write(wide(start, length)))?;
                self.csynced(start..start + length);
                self.announced(start..start + length);
                self.compare(start..start + length, action)?;
                self.write(start..start + length);
            }
            Action::WriteQuietly { start, length } => {
                let free =
                    |byte: &usize| self.owed[*byte].is_empty() && !self.lost[*byte] && !self.unsynced[*byte];
                let found: Vec<usize> = (start..BYTES).filter(free).take(length).collect();
                found.into_iter().for_each(|byte| self.write(byte..byte + 1));
            }
            Action::Free { start, length } => {
                self.reach(&Goal::Free(wide(start, length)))?;
                for byte in start..start + length {
                    self.discard(byte);
                    self.unsynced[byte] = false;
                }
                self.announced(start..start + length);
                // The next owner of the memory writes to half of it at once.
                (start..start + length).for_each(|byte| self.oracle[byte] = None);
                self.write(start..start + length / 2);
            }
            Action::Work(turns) => (0..turns).for_each(|_| self.work()),
        }
        Ok(())
    }
}

fn run(program: &[Action], seed: u64, limit: u64, broken: Option<Rule>) -> Checked {
    let mut world = World::new(seed, limit, broken);
    for action in program.iter().chain([&Action::CsyncAll]) {
        world.act(action)?;
    }
    match world.pending.is_empty() {
        true => Ok(()),
        false => Err("pieces are left at the end".to_owned()),
    }
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    (0..BYTES).prop_flat_map(|start| (Just(start), 0..=(BYTES - start).min(20)))
}

fn copy() -> impl Strategy<Value = Action> {
    // Often between the same four places, which makes chains, circles and overwritten copies.
    let places = prop_oneof![3 => prop::sample::select(vec![0, 16, 32, 48]), 1 => 0..BYTES];
    (places.clone(), places, 0..=16_usize, any::<bool>()).prop_map(|(to, from, length, short)| {
        let length = length.min(BYTES - to).min(BYTES - from);
        Action::Copy { to, from, length, short: short && length < 4 }
    })
}

fn program() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        8 => copy(),
        3 => range().prop_map(|(start, length)| Action::Csync { start, length }),
        1 => Just(Action::CsyncAll),
        1 => range().prop_map(|(start, length)| Action::Write { start, length }),
        3 => range().prop_map(|(start, length)| Action::WriteQuietly { start, length }),
        1 => range().prop_map(|(start, length)| Action::Free { start, length }),
        3 => (0..12_u8).prop_map(Action::Work),
    ];
    prop::collection::vec(action, 1..60)
}

fn cases(count: u32) -> Config {
    Config { cases: count, failure_persistence: None, max_shrink_iters: 4000, ..Config::default() }
}

fn limits() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![3, 8, 64])
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn csynced_bytes_equal_those_of_memcpy(
        program in program(), seed in any::<u64>(), limit in limits(),
    ) {
        run(&program, seed, limit, None).map_err(TestCaseError::fail)?;
    }
}

/// Runs a fixed sequence of programs until one detects the broken rule.
fn is_detected(broken: Rule) -> bool {
    let config = Config { max_shrink_iters: 0, ..cases(4000) };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let found = runner.run(&(program(), any::<u64>(), limits()), |(program, seed, limit)| {
        // A circle of waiting pieces panics, which counts as detection.
        let result = std::panic::catch_unwind(|| run(&program, seed, limit, Some(broken)));
        result.unwrap_or(Err("a panic".to_owned())).map_err(TestCaseError::fail)
    });
    let Err(TestError::Fail(why, _)) = found else { return false };
    println!("{broken:?} is broken: {why}");
    true
}

macro_rules! broken {
    ($($name:ident: $rule:expr;)*) => { $(
        #[test]
        fn $name() {
            assert!(is_detected($rule), "no program detects that {:?} is broken", $rule);
        }
    )* };
}

broken! {
    broken_overwrites_before_readers: Rule::ReadersFirst;
    broken_order_of_absorbed_pieces: Rule::AbsorbedFirst;
    broken_absorption_copies_old_bytes: Rule::Absorb;
    broken_absorption_of_overwritten_sources: Rule::SourceStays;
    broken_replacement_by_later_copies: Rule::LaterWins;
    broken_exclusion_of_concurrent_moves: Rule::MovesAlone;
    broken_cut_loses_the_end: Rule::BothEnds;
    broken_wait_for_moves_in_progress: Rule::AwaitMoves;
    broken_wait_for_readers: Rule::WriteAwaitsReaders;
}

/// Moves all pieces. Returns destination, source and length of each move.
fn moves(pending: &mut Pending) -> Vec<(u64, u64, u64)> {
    std::iter::from_fn(|| {
        let chunk = pending.next(1 << 20)?;
        pending.settle(chunk.number);
        Some((chunk.to, chunk.from, chunk.length))
    })
    .collect()
}

const A: u64 = 1000;
const B: u64 = 2000;
const C: u64 = 3000;
const D: u64 = 4000;

#[test]
fn a_chain_reads_its_first_source() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(C, B + 10, 50).unwrap();
    pending.insert(D, C + 5, 20).unwrap();
    assert_eq!(moves(&mut pending), [(D, A + 15, 20), (C, A + 10, 50), (B, A, 100)]);
}

#[test]
fn a_freed_intermediate_copy_never_moves() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(C, B, 100).unwrap();
    assert_eq!(pending.step(&Goal::Free(B..B + 100), 1000), Step::Done);
    assert_eq!((moves(&mut pending), pending.dropped()), (vec![(C, A, 100)], 100));
}

#[test]
fn freeing_bytes_moves_their_readers_first() {
    let mut pending = Pending::new(16);
    pending.insert(C, B + 40, 100).unwrap();
    let Step::Move(chunk) = pending.step(&Goal::Free(B + 48..B + 60), 1000) else {
        panic!("the bytes have a reader")
    };
    assert_eq!((chunk.to, chunk.from, chunk.length), (C + 8, B + 48, 12));
    assert_eq!(pending.step(&Goal::Free(B + 48..B + 60), 1000), Step::Wait);
    pending.settle(chunk.number);
    assert_eq!(pending.step(&Goal::Free(B + 48..B + 60), 1000), Step::Done);
    assert_eq!(moves(&mut pending), [(C, B + 40, 8), (C + 20, B + 60, 80)]);
}

#[test]
fn replaced_bytes_never_move() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(B + 20, C, 50).unwrap();
    assert_eq!(moves(&mut pending), [(B, A, 20), (B + 70, A + 70, 30), (B + 20, C, 50)]);
    assert_eq!(pending.dropped(), 50);
}

#[test]
fn copying_back_moves_nothing() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(A, B, 100).unwrap();
    pending.insert(C, C, 100).unwrap();
    pending.insert(C, A, 0).unwrap();
    assert_eq!(moves(&mut pending), [(B, A, 100)]);
}

#[test]
fn overwriting_a_source_does_not_block_the_call() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(A, C, 100).unwrap();
    // Requested first, but moved second.
    let Step::Move(first) = pending.step(&Goal::Read(A..A + 100), 1000) else {
        panic!("the bytes are pending")
    };
    assert_eq!((first.to, first.from), (B, A));
    assert_eq!(pending.step(&Goal::Read(A..A + 100), 1000), Step::Wait);
    pending.settle(first.number);
    assert_eq!(moves(&mut pending), [(A, C, 100)]);
}

#[test]
fn insert_reports_each_obstacle() {
    let mut pending = Pending::new(4);
    assert_eq!(pending.insert(A + GRANULE - 1, A, 100), Err(Obstacle::Overlap));
    // B saves the contents of A, and C is copied to A.
    pending.insert(B, A, 100).unwrap();
    pending.insert(A, C, 100).unwrap();
    assert_eq!(pending.insert(D, B + 10, 20), Err(Obstacle::Unsettled(B + 10..B + 30)));
    pending.insert(D, C, 10).unwrap();
    pending.insert(D + 10, C, 10).unwrap();
    assert_eq!(pending.insert(D + 20, C, 10), Err(Obstacle::Unsettled(B..B + 100)));
}

#[test]
fn a_self_overlapping_copy_moves_like_memmove() {
    for (to, from, expected) in [(A + 40, A, [A + 120, A + 80, A + 40]), (A, A + 40, [A, A + 20, A + 60])] {
        let mut pending = Pending::new(4);
        pending.insert(to, from, 100).unwrap();
        let order: Vec<u64> = moves(&mut pending).into_iter().map(|(to, ..)| to).collect();
        assert_eq!(order, expected);
    }
}

#[test]
fn only_requested_granules_are_moved() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    let Step::Move(chunk) = pending.step(&Goal::Read(B + 41..B + 42), 1000) else {
        panic!("the bytes are pending")
    };
    assert_eq!((chunk.to, chunk.length), (B + 40, GRANULE));
    pending.settle(chunk.number);
    assert_eq!(pending.step(&Goal::Read(B + 41..B + 42), 1000), Step::Done);
    assert_eq!(moves(&mut pending), [(B, A, 40), (B + 44, A + 44, 56)]);
}
