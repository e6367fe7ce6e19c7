//! The order of pending copies, held against memory in which each copy is made at its call; and each of its rules broken once.
//!
//! ```text
//! program: copies, csyncs, writes, frees ─┬─► oracle: memcpy at once, bytes that nobody may look at unknown
//!                                         └─► Pending ─► moves, several under way, byte by byte, in any order
//! after each csync: its bytes are the oracle's
//! ```
//!
//! Programs keep the rules that programs have to keep, and use all that these allow: sources are written without a word
//! when what was copied from them was csynced.

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
    /// Announced.
    Write {
        start: usize,
        length: usize,
    },
    /// Not announced, at the first place at or after `start` where it need not be.
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

/// A move under way: bytes done, and all of them where source and destination overlap.
struct Flight {
    begun: Move,
    done: usize,
    kept: Option<Vec<u8>>,
}

struct World {
    pending: Pending,
    most: u64,
    memory: Vec<u8>,
    oracle: Vec<Option<u8>>,
    flights: Vec<Flight>,
    rng: fastrand::Rng,
    /// Which destinations of a byte were not csynced since.
    owed: Vec<BTreeSet<usize>>,
    /// A destination of the byte was given up or overwritten before it was csynced.
    lost: Vec<bool>,
    /// Where the byte was copied from, while it is owed.
    came: Vec<Option<usize>>,
    /// The byte was copied to and not csynced since.
    unsynced: Vec<bool>,
}

type Checked = Result<(), String>;

impl World {
    fn new(seed: u64, most: u64, broken: Option<Rule>) -> Self {
        let memory: Vec<u8> = (0..BYTES).map(|byte| byte as u8).collect();
        Self {
            pending: Pending { broken, ..Pending::new(24) },
            most,
            oracle: memory.iter().copied().map(Some).collect(),
            memory,
            flights: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            owed: vec![BTreeSet::new(); BYTES],
            lost: vec![false; BYTES],
            came: vec![None; BYTES],
            unsynced: vec![false; BYTES],
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.rng.usize(..below)
    }

    fn take_off(&mut self, begun: Move) {
        let range = begun.from as usize..(begun.from + begun.length) as usize;
        let overlaps = meet(&begun.target(), &begun.source());
        let kept = overlaps.then(|| self.memory[range].to_vec());
        self.flights.push(Flight { begun, done: 0, kept });
    }

    /// Something happens elsewhere: a byte or more of some move, or another begins.
    fn work(&mut self) {
        if (self.flights.is_empty() || self.random(4) == 0) && self.flights.len() < 4 {
            if let Some(begun) = self.pending.next(self.most) {
                self.take_off(begun);
            }
            return;
        }
        let index = self.random(self.flights.len());
        let steps = 1 + self.random(6);
        for _ in 0..steps {
            let Flight { begun, done, kept } = &mut self.flights[index];
            let byte = kept.as_ref().map_or(self.memory[begun.from as usize + *done], |kept| kept[*done]);
            self.memory[begun.to as usize + *done] = byte;
            *done += 1;
            if *done as u64 == begun.length {
                let landed = self.flights.swap_remove(index);
                self.pending.settle(landed.begun.number);
                return;
            }
        }
    }

    fn reach(&mut self, goal: &Goal) -> Checked {
        for _ in 0..20_000 {
            match self.pending.step(goal, self.most) {
                Step::Done => return Ok(()),
                Step::Move(begun) => self.take_off(begun),
                Step::Wait if self.flights.is_empty() => return Err(format!("{goal:?} waits for nobody")),
                Step::Wait => self.work(),
            }
            if self.random(2) == 0 && !self.flights.is_empty() {
                self.work();
            }
        }
        Err(format!("{goal:?} is never reached"))
    }

    /// As the queue does it.
    fn amemcpy(&mut self, to: usize, from: usize, length: usize, short: bool) -> Checked {
        let wide_to = to as u64;
        let wide_from = from as u64;
        let wide_length = length as u64;
        let into = wide_to..wide_to + wide_length;
        let out = wide_from..wide_from + wide_length;
        if short && self.pending.at_once(wide_to, wide_from, wide_length) {
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
                    if self.pending.at_once(wide_to, wide_from, wide_length) {
                        let begun = self.pending.begin(wide_to, wide_from, wide_length);
                        let number = begun.number;
                        self.take_off(begun);
                        while self.flights.iter().any(|flight| flight.begun.number == number) {
                            self.work();
                        }
                        return Ok(());
                    }
                }
            }
        }
        Err("a copy is never taken in".to_owned())
    }

    fn copied(&mut self, to: usize, from: usize, length: usize) {
        self.oracle.copy_within(from..from + length, to);
        if to == from {
            return;
        }
        for offset in 0..length {
            self.give_up(to + offset);
            self.came[to + offset] = Some(from + offset);
            self.owed[from + offset].insert(to + offset);
            self.unsynced[to + offset] = true;
        }
    }

    /// The byte is about to hold something else, though perhaps it was not moved yet.
    fn give_up(&mut self, byte: usize) {
        if let Some(source) = self.came[byte].take() {
            self.owed[source].remove(&byte);
            self.lost[source] = true;
        }
    }

    fn csynced(&mut self, bytes: Range<usize>) {
        for byte in bytes {
            if let Some(source) = self.came[byte].take() {
                self.owed[source].remove(&byte);
            }
            self.unsynced[byte] = false;
        }
    }

    /// Nobody reads the bytes any more.
    fn announced(&mut self, bytes: Range<usize>) {
        for byte in bytes {
            for destination in std::mem::take(&mut self.owed[byte]) {
                self.came[destination] = None;
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
                    self.give_up(byte);
                    self.unsynced[byte] = false;
                }
                self.announced(start..start + length);
                // Whoever has the memory next writes at once to half of it.
                (start..start + length).for_each(|byte| self.oracle[byte] = None);
                self.write(start..start + length / 2);
            }
            Action::Work(turns) => (0..turns).for_each(|_| self.work()),
        }
        Ok(())
    }
}

fn run(program: &[Action], seed: u64, most: u64, broken: Option<Rule>) -> Checked {
    let mut world = World::new(seed, most, broken);
    for action in program.iter().chain([&Action::CsyncAll]) {
        world.act(action)?;
    }
    match world.pending.is_empty() {
        true => Ok(()),
        false => Err("something is left".to_owned()),
    }
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    (0..BYTES).prop_flat_map(|start| (Just(start), 0..=(BYTES - start).min(20)))
}

fn copy() -> impl Strategy<Value = Action> {
    // Often between the same three places, which makes chains, circles and copies over one another.
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

fn most() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![3, 8, 64])
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn after_a_csync_bytes_are_as_if_every_copy_had_been_made_at_its_call(
        program in program(), seed in any::<u64>(), most in most(),
    ) {
        run(&program, seed, most, None).map_err(TestCaseError::fail)?;
    }
}

/// Runs programs, the same every time, until one goes wrong.
fn goes_wrong(broken: Rule) -> bool {
    let config = Config { max_shrink_iters: 0, ..cases(4000) };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let found = runner.run(&(program(), any::<u64>(), most()), |(program, seed, most)| {
        // A circle ends in a panic, which is a way of going wrong too.
        let result = std::panic::catch_unwind(|| run(&program, seed, most, Some(broken)));
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
            assert!(goes_wrong($rule), "no program shows that {:?} is broken", $rule);
        }
    )* };
}

broken! {
    broken_overwriting_before_readers_were_moved_gives_wrong_bytes: Rule::ReadersFirst;
    broken_a_destination_in_place_before_what_went_through_it_loses_its_source: Rule::AbsorbedFirst;
    broken_copying_bytes_that_are_to_come_from_where_they_are_not_gives_old_ones: Rule::Absorb;
    broken_absorbing_a_source_that_is_about_to_be_overwritten_waits_in_a_circle: Rule::SourceStays;
    broken_a_later_copy_beside_an_earlier_one_gives_the_earlier_bytes: Rule::LaterWins;
    broken_moves_that_touch_each_others_bytes_give_wrong_ones: Rule::MovesAlone;
    broken_a_piece_that_loses_its_end_gives_wrong_bytes: Rule::BothEnds;
    broken_bytes_under_way_taken_as_in_place_are_read_too_early: Rule::AwaitMoves;
    broken_a_writer_that_does_not_wait_for_readers_changes_what_they_read: Rule::WriteAwaitsReaders;
}

/// Moves all there is, and says where from and to.
fn moves(pending: &mut Pending) -> Vec<(u64, u64, u64)> {
    std::iter::from_fn(|| {
        let begun = pending.next(1 << 20)?;
        pending.settle(begun.number);
        Some((begun.to, begun.from, begun.length))
    })
    .collect()
}

const A: u64 = 1000;
const B: u64 = 2000;
const C: u64 = 3000;
const D: u64 = 4000;

#[test]
fn a_chain_is_moved_from_its_first_source_and_what_lies_between_comes_last() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(C, B + 10, 50).unwrap();
    pending.insert(D, C + 5, 20).unwrap();
    assert_eq!(moves(&mut pending), [(D, A + 15, 20), (C, A + 10, 50), (B, A, 100)]);
}

#[test]
fn what_lies_between_is_never_moved_when_it_is_given_up() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(C, B, 100).unwrap();
    assert_eq!(pending.step(&Goal::Free(B..B + 100), 1000), Step::Done);
    assert_eq!((moves(&mut pending), pending.dropped()), (vec![(C, A, 100)], 100));
}

#[test]
fn giving_bytes_up_first_moves_what_reads_them() {
    let mut pending = Pending::new(16);
    pending.insert(C, B + 40, 100).unwrap();
    let Step::Move(begun) = pending.step(&Goal::Free(B + 48..B + 60), 1000) else { panic!("it is read") };
    assert_eq!((begun.to, begun.from, begun.length), (C + 8, B + 48, 12));
    assert_eq!(pending.step(&Goal::Free(B + 48..B + 60), 1000), Step::Wait);
    pending.settle(begun.number);
    assert_eq!(pending.step(&Goal::Free(B + 48..B + 60), 1000), Step::Done);
    assert_eq!(moves(&mut pending), [(C, B + 40, 8), (C + 20, B + 60, 80)]);
}

#[test]
fn bytes_that_a_later_copy_replaces_never_move() {
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
fn overwriting_a_source_waits_in_the_order_and_not_at_the_call() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    pending.insert(A, C, 100).unwrap();
    // Asked for first, and moved second.
    let Step::Move(first) = pending.step(&Goal::Read(A..A + 100), 1000) else { panic!("it is to come") };
    assert_eq!((first.to, first.from), (B, A));
    assert_eq!(pending.step(&Goal::Read(A..A + 100), 1000), Step::Wait);
    pending.settle(first.number);
    assert_eq!(moves(&mut pending), [(A, C, 100)]);
}

#[test]
fn only_near_overlaps_saved_values_and_a_full_table_are_refused() {
    let mut pending = Pending::new(4);
    assert_eq!(pending.insert(A + GRANULE - 1, A, 100), Err(Obstacle::Overlap));
    // B keeps what A was, and A is to become what C is.
    pending.insert(B, A, 100).unwrap();
    pending.insert(A, C, 100).unwrap();
    assert_eq!(pending.insert(D, B + 10, 20), Err(Obstacle::Unsettled(B + 10..B + 30)));
    pending.insert(D, C, 10).unwrap();
    pending.insert(D + 10, C, 10).unwrap();
    assert_eq!(pending.insert(D + 20, C, 10), Err(Obstacle::Unsettled(B..B + 100)));
}

#[test]
fn a_copy_over_itself_is_moved_from_the_side_that_nobody_reads() {
    for (to, from, ends) in [(A + 40, A, [A + 120, A + 80, A + 40]), (A, A + 40, [A, A + 20, A + 60])] {
        let mut pending = Pending::new(4);
        pending.insert(to, from, 100).unwrap();
        let order: Vec<u64> = moves(&mut pending).into_iter().map(|(to, ..)| to).collect();
        assert_eq!(order, ends);
    }
}

#[test]
fn what_is_asked_for_is_moved_in_granules_and_nothing_else_is() {
    let mut pending = Pending::new(16);
    pending.insert(B, A, 100).unwrap();
    let Step::Move(begun) = pending.step(&Goal::Read(B + 41..B + 42), 1000) else { panic!("it is to come") };
    assert_eq!((begun.to, begun.length), (B + 40, GRANULE));
    pending.settle(begun.number);
    assert_eq!(pending.step(&Goal::Read(B + 41..B + 42), 1000), Step::Done);
    assert_eq!(moves(&mut pending), [(B, A, 40), (B + 44, A + 44, 56)]);
}
