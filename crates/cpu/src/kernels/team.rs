//! Shares one copy among several threads: its owner publishes it, and idle threads take pieces.
//!
//! ```text
//! owner:  CopyTeam::copy ─ open a slot ─ pieces from the front ─┐ until they meet ─ close ─ wait for members to finish
//! member: CopyTeam::help ─────────────── pieces from the back ───┘
//! ```
//!
//! The owner never waits for a piece that no member has started: without members it copies all. Members take from the back, so
//! that repeated copies of the same buffers find each part in the same core's caches. This module starts no thread and puts
//! none to sleep: members publish their activity, and `wake` wakes one.
//!
//! M5: a slot's description of a copy is valid while its word is open or has members; the owner returns only after both ended.

use std::borrow::Borrow;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use memferry_shm::bus_error::{MemoryFault, guarded};
use memferry_shm::mapping::Mapping;
use memferry_shm::team_word::{self, MAX_PIECES};
use memferry_transfer::Region;

use super::super::manner::Manner;
use super::{OutsideRegion, contiguous, move_bytes, writable};

/// Copies that can be shared at the same time.
const TEAM_SLOTS: usize = 4;

/// Activity of a team member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    Busy,
    /// Idle and spinning: it calls [`CopyTeam::help`] continuously.
    Looking,
    /// Idle and asleep until woken.
    Asleep,
}

/// Activity of a member, in its own cache line.
#[repr(align(128))]
struct Member(AtomicU8);

/// The threads of a service that copy together.
pub struct CopyTeam {
    slots: [TeamSlot; TEAM_SLOTS],
    members: Box<[Member]>,
    wake: Box<dyn Fn(usize) + Send + Sync>,
}

/// A shared copy. What members read first shares a line with the word they poll.
#[repr(align(128))]
#[derive(Default)]
struct TeamSlot {
    word: AtomicU64,
    from: AtomicPtr<u8>,
    to: AtomicPtr<u8>,
    length: AtomicUsize,
    piece: AtomicUsize,
    source: AtomicPtr<Mapping>,
    destination: AtomicPtr<Mapping>,
    manner: AtomicU8,
    failed: AtomicBool,
}

/// The copy that a slot describes.
#[derive(Clone, Copy)]
struct Shared {
    from: *mut u8,
    to: *mut u8,
    length: usize,
    piece: usize,
    mappings: [*const Mapping; 2],
    manner: Manner,
}

impl Shared {
    fn pieces(&self) -> u64 {
        self.length.div_ceil(self.piece) as u64
    }

    /// Copies piece `number`, counted from the front.
    ///
    /// # Safety
    /// M1 to M4 for the whole copy, whose ranges are apart, and `number` is below [`Shared::pieces`].
    unsafe fn copy(&self, number: u64) -> Result<(), MemoryFault> {
        let at = number as usize * self.piece;
        let length = self.piece.min(self.length - at);
        // SAFETY: M1: mappings live as long as the copy. The piece lies in the range by `number`.
        unsafe {
            let [source, destination] = self.mappings;
            guarded([&*source, &*destination], || {
                move_bytes(self.manner, self.from.add(at), self.to.add(at), length);
            })
        }
    }
}

impl TeamSlot {
    /// Publishes a copy to members; `None` if another copy occupies the slot.
    fn open(&self, shared: &Shared) -> Option<&Self> {
        if !team_word::claim(&self.word) {
            return None;
        }
        // Not read yet: the word is not open.
        self.from.store(shared.from, Ordering::Relaxed);
        self.to.store(shared.to, Ordering::Relaxed);
        self.length.store(shared.length, Ordering::Relaxed);
        self.piece.store(shared.piece, Ordering::Relaxed);
        self.source.store(shared.mappings[0].cast_mut(), Ordering::Relaxed);
        self.destination.store(shared.mappings[1].cast_mut(), Ordering::Relaxed);
        self.manner.store(shared.manner as u8, Ordering::Relaxed);
        self.failed.store(false, Ordering::Relaxed);
        team_word::open(&self.word, shared.pieces());
        Some(self)
    }

    /// Admits no more members, waits for the present ones, and reports whether memory failed under one.
    fn close(&self) -> Result<(), MemoryFault> {
        let mut polls = 0u32;
        team_word::close(&self.word, || {
            polls += 1;
            // A member that was preempted needs this CPU more than the loop does.
            if polls.is_multiple_of(1 << 12) { std::thread::yield_now() } else { std::hint::spin_loop() }
        });
        let failed = self.failed.load(Ordering::Relaxed);
        team_word::free(&self.word);
        if failed { Err(MemoryFault) } else { Ok(()) }
    }

    /// Copies pieces from the end until none is left or `enough` returns true. Returns whether any was copied.
    fn help(&self, enough: &mut dyn FnMut() -> bool) -> bool {
        if !team_word::has_work(&self.word) {
            return false;
        }
        let Some(mut number) = team_word::join(&self.word) else { return false };
        // SAFETY: M5: this member is counted, and the word was open when it was.
        let shared = unsafe { self.read() };
        loop {
            // SAFETY: M1 to M4 by M5; `number` was among the pieces left.
            if unsafe { shared.copy(number) }.is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            match if enough() { None } else { team_word::take_back(&self.word) } {
                Some(next) => number = next,
                None => break,
            }
        }
        team_word::leave(&self.word);
        true
    }

    /// # Safety
    /// The caller is counted among the members of an open word (M5).
    unsafe fn read(&self) -> Shared {
        const MANNERS: [Manner; 3] = [Manner::Cached, Manner::Streaming, Manner::Flushing];
        Shared {
            from: self.from.load(Ordering::Relaxed),
            to: self.to.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            piece: self.piece.load(Ordering::Relaxed),
            mappings: [&self.source, &self.destination]
                .map(|place| place.load(Ordering::Relaxed).cast_const()),
            manner: MANNERS[usize::from(self.manner.load(Ordering::Relaxed)) % MANNERS.len()],
        }
    }
}

impl CopyTeam {
    /// A team of `members` threads, all busy at first; `wake` wakes the sleeping member of the given number.
    pub fn new(members: usize, wake: impl Fn(usize) + Send + Sync + 'static) -> Self {
        let members = (0..members).map(|_| Member(AtomicU8::new(Activity::Busy as u8))).collect();
        Self { slots: Default::default(), members, wake: Box::new(wake) }
    }

    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Sets the activity of member `number`; unknown numbers are ignored.
    #[inline]
    pub fn set_activity(&self, number: usize, activity: Activity) {
        if let Some(member) = self.members.get(number) {
            member.0.store(activity as u8, Ordering::Relaxed);
        }
    }

    /// Counts members with this activity.
    pub(crate) fn doing(&self, activity: Activity) -> usize {
        let does = |member: &&Member| member.0.load(Ordering::Relaxed) == activity as u8;
        self.members.iter().filter(does).count()
    }

    /// Wakes a sleeping member, if any. It may arrive too late to find work.
    pub(crate) fn wake_one(&self) {
        let asleep = |member: &Member| member.0.load(Ordering::Relaxed) == Activity::Asleep as u8;
        if let Some(number) = self.members.iter().position(asleep) {
            (self.wake)(number);
        }
    }

    /// Whether a shared copy has pieces left.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.slots.iter().any(|slot| team_word::has_work(&slot.word))
    }

    /// Copies pieces of shared copies until none is left or `enough` returns true. Returns whether any was copied.
    pub fn help(&self, mut enough: impl FnMut() -> bool) -> bool {
        self.slots.iter().any(|slot| slot.help(&mut enough))
    }

    /// Copies `length` bytes between disjoint ranges, in pieces of `piece` bytes (at least one), together with
    /// members.
    pub(crate) fn copy<M: Borrow<Mapping>>(
        &self,
        manner: Manner,
        (source, from): (&Region<M>, u64),
        (destination, to): (&Region<M>, u64),
        length: u64,
        piece: u64,
    ) -> Result<Result<(), OutsideRegion>, MemoryFault> {
        let ends = contiguous(source, from, length)
            .and_then(|from| Ok((from, contiguous(writable(destination)?, to, length)?)));
        let (from, to) = match ends {
            Ok((from, to)) if from.addr().abs_diff(to.addr()) as u64 >= length => (from, to),
            _ => return Ok(Err(OutsideRegion)),
        };
        let mappings = [source, destination].map(|region| ptr::from_ref(region.memory().borrow()));
        let length = length as usize;
        let piece = (piece as usize).max(length.div_ceil(MAX_PIECES as usize)).max(1);
        let shared = Shared { from, to, length, piece, mappings, manner };
        let slot = self.slots.iter().find_map(|slot| slot.open(&shared));
        let mut alone = 0..shared.pieces();
        let mut outcome = Ok(());
        while let Some(number) = slot.map_or_else(|| alone.next(), |slot| team_word::take_front(&slot.word)) {
            // SAFETY: M1 to M4: the ranges were just checked, and are apart; `number` is below the pieces.
            outcome = outcome.and(unsafe { shared.copy(number) });
        }
        // M5: nothing returns before this.
        let others = slot.map_or(Ok(()), TeamSlot::close);
        outcome.and(others).map(Ok)
    }
}

impl std::fmt::Debug for CopyTeam {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let spinning = self.doing(Activity::Looking);
        let asleep = self.doing(Activity::Asleep);
        write!(formatter, "CopyTeam of {}: {spinning} spinning, {asleep} asleep", self.members.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        (0..length as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
    }

    fn contents(mapping: &Mapping) -> Vec<u8> {
        let mut bytes = vec![0; mapping.length_bytes()];
        mapping.read(0, &mut bytes).unwrap();
        bytes
    }

    fn region(mapping: &Mapping) -> Region<&Mapping> {
        Region::new(mapping, 0, mapping.length_bytes() as u64).unwrap()
    }

    /// Stops the members, also on panic.
    struct Ending<'a>(&'a AtomicBool);

    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Runs `work` while `members` threads help.
    fn with_helpers(team: &CopyTeam, members: usize, work: impl FnOnce()) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ending = Ending(&over);
            for _ in 0..members {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        if !team.help(|| false) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            work();
        });
    }

    #[test]
    fn shared_copies_are_complete() {
        let team = CopyTeam::new(0, |_| {});
        let (rounds, longest) = if cfg!(miri) { (3, 300) } else { (400, 40_000) };
        with_helpers(&team, 2, || {
            std::thread::scope(|scope| {
                for owner in 0..3u64 {
                    let team = &team;
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let length = (noise(8, owner * 1000 + round)[0] as usize * 157) % longest;
                            let source = Mapping::owned(noise(length, round));
                            let destination = Mapping::owned(vec![0; length]);
                            let from = region(&source);
                            let to = region(&destination);
                            let piece = 1 + round * 37 % 5000;
                            let done =
                                team.copy(Manner::Streaming, (&from, 0), (&to, 0), length as u64, piece);
                            assert_eq!(done, Ok(Ok(())));
                            assert!(contents(&destination) == contents(&source), "{length} by {piece}");
                        }
                    });
                }
            });
        });
    }

    #[test]
    fn an_owner_alone_copies_exactly_its_range() {
        let team = CopyTeam::new(1, |_| {});
        let source = Mapping::owned(noise(1000, 1));
        let destination = Mapping::owned(vec![0; 1000]);
        let from = region(&source);
        let to = region(&destination);
        for (at, length) in [(1, 1000), (1001, 0), (u64::MAX, 2)] {
            assert_eq!(team.copy(Manner::Cached, (&from, at), (&to, 0), length, 10), Ok(Err(OutsideRegion)));
            assert_eq!(team.copy(Manner::Cached, (&from, 0), (&to, at), length, 10), Ok(Err(OutsideRegion)));
        }
        assert_eq!(
            team.copy(Manner::Cached, (&from, 0), (&from, 10), 500, 10),
            Ok(Err(OutsideRegion)),
            "overlap"
        );
        assert!(contents(&destination) == [0; 1000]);
        assert_eq!(team.copy(Manner::Cached, (&from, 0), (&to, 0), 1000, 0), Ok(Ok(())), "pieces of a byte");
        assert!(contents(&destination) == contents(&source) && !team.has_work());
    }

    #[test]
    fn a_helper_stops_after_its_piece() {
        let team = CopyTeam::new(0, |_| {});
        let source = Mapping::owned(noise(100, 1));
        let destination = Mapping::owned(vec![0; 100]);
        let mappings = [&source, &destination].map(ptr::from_ref);
        let from = source.pointer();
        let to = destination.pointer();
        let shared = Shared { from, to, length: 100, piece: 10, mappings, manner: Manner::Cached };
        let slot = team.slots[0].open(&shared).unwrap();
        assert!(team.has_work() && slot.open(&shared).is_none());
        assert!(team.help(|| true));
        assert!(
            contents(&destination)[..90] == [0; 90]
                && contents(&destination)[90..] == contents(&source)[90..]
        );
        assert!(team.help(|| false), "the rest");
        assert!(!team.help(|| false) && team_word::take_front(&slot.word).is_none());
        assert_eq!(slot.close(), Ok(()));
        assert!(contents(&destination) == contents(&source));
    }

    #[test]
    fn only_a_sleeping_member_is_woken() {
        let woken = Arc::new(AtomicUsize::new(usize::MAX));
        let for_team = Arc::clone(&woken);
        let team = CopyTeam::new(3, move |number| for_team.store(number, Ordering::Relaxed));
        team.wake_one();
        assert_eq!(woken.load(Ordering::Relaxed), usize::MAX, "all are busy");
        team.set_activity(0, Activity::Looking);
        team.set_activity(2, Activity::Asleep);
        team.set_activity(3, Activity::Asleep);
        team.wake_one();
        assert_eq!((woken.load(Ordering::Relaxed), team.doing(Activity::Asleep)), (2, 1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memfd")]
    fn failing_memory_fails_the_shared_copy() {
        use memferry_shm::{bus_error, frame};
        bus_error::install().unwrap();
        let (descriptor, mapping) = frame::allocate(1 << 16, frame::Pages::Ordinary).unwrap();
        std::fs::File::from(descriptor).set_len(1 << 15).unwrap();
        let sound = Mapping::owned(vec![1; 1 << 16]);
        let team = CopyTeam::new(0, |_| {});
        with_helpers(&team, 1, || {
            for _ in 0..20 {
                let from = region(&mapping);
                let to = region(&sound);
                let done = team.copy(Manner::Cached, (&from, 0), (&to, 0), 1 << 16, 1 << 12);
                assert_eq!(done, Err(MemoryFault));
            }
        });
    }
}
