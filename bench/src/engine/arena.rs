//! Memory for measuring: large, random, on the requested kind of pages; and uncached places in it.
//!
//! ```text
//! Arena: mmap, madvise ─► random bytes            Slots: 0, 1, 2, ... ─ shuffled ─► one place after the other, cyclically
//! ```
//!
//! Some machines do not write all-zero lines, so bytes are random. A place is reused only after all others:
//! by then the caches hold other data. This module times nothing.

use fastrand::Rng;
use memmap2::{Advice, MmapMut};

use crate::BenchError;

/// Huge page size of the supported machines.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;
const LINE: usize = 64;
/// Maximum number of places; a run does not use more.
const MAX_SLOTS: usize = 1 << 18;
/// Room behind the last place, for misaligned pieces.
const SLACK: usize = PAGE;

/// Page size of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// 2 MiB, where the system provides them.
    Huge,
    Ordinary,
}

impl Pages {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Huge => "huge pages",
            Self::Ordinary => "4 KiB pages",
        }
    }
}

/// Random bytes of this process.
pub(crate) struct Arena {
    mapping: MmapMut,
    start: usize,
    length: usize,
}

impl Arena {
    /// `length` random bytes, aligned to huge pages.
    ///
    /// # Errors
    /// If the system refuses the memory or the pages.
    pub(crate) fn new(length: usize, pages: Pages, seed: u64) -> Result<Self, BenchError> {
        let mut mapping = MmapMut::map_anon(length + HUGE)?;
        mapping.advise(match pages {
            Pages::Huge => Advice::HugePage,
            Pages::Ordinary => Advice::NoHugePage,
        })?;
        let start = mapping.as_ptr().align_offset(HUGE);
        Rng::with_seed(seed).fill(&mut mapping[start..start + length]);
        Ok(Self { mapping, start, length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.mapping[self.start..self.start + self.length]
    }

    /// The bytes, writable; same length.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.mapping[self.start..self.start + self.length]
    }
}

/// A source and a destination of the same length.
pub(crate) struct Field {
    source: Arena,
    destination: Arena,
}

impl Field {
    /// Two arenas with room for places in `length` bytes.
    ///
    /// # Errors
    /// As [`Arena::new`].
    pub(crate) fn new(length: usize, pages: Pages) -> Result<Self, BenchError> {
        Ok(Self {
            source: Arena::new(length + SLACK, pages, 0x9e37_79b9)?,
            destination: Arena::new(length + SLACK, pages, 0x7f4a_7c15)?,
        })
    }

    /// Bytes available to places.
    pub(crate) fn length(&self) -> usize {
        self.source.length - SLACK
    }

    /// The whole destination and the whole source.
    pub(crate) fn both(&mut self) -> (&mut [u8], &[u8]) {
        (self.destination.bytes_mut(), self.source.bytes())
    }
}

/// Bytes of this process's memory on huge pages.
pub(crate) fn on_huge_pages() -> Result<usize, BenchError> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib: Option<usize> = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    Ok(kib.ok_or("the kernel does not report huge pages (AnonHugePages in smaps_rollup)")? << 10)
}

/// Places for pieces of one size, in random order, each used once per cycle.
pub(crate) struct Slots {
    order: Vec<u32>,
    next: usize,
    stride: usize,
    piece: usize,
}

impl Slots {
    /// Places for pieces of `piece` bytes in `length` bytes.
    pub(crate) fn new(length: usize, piece: usize, rng: &mut Rng) -> Self {
        let stride = piece.next_multiple_of(PAGE);
        let count = (length / stride).clamp(1, MAX_SLOTS);
        let mut order: Vec<_> = (0..count as u32).collect();
        rng.shuffle(&mut order);
        Self { order, next: 0, stride, piece }
    }

    /// The next place. Small pieces begin at varying lines of their page: always the first line would share a few sets of
    /// the caches.
    pub(crate) fn next(&mut self) -> usize {
        let slot = self.order[self.next] as usize;
        let lines = (self.stride - self.piece) / LINE;
        let line = (self.next.wrapping_mul(2_654_435_761) >> 8) % (lines + 1);
        self.next = (self.next + 1) % self.order.len();
        slot * self.stride + line * LINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_used_once_per_cycle() {
        for (length, piece) in
            [(1 << 20, 4096), (1 << 20, 64), (1 << 20, 5000), (1 << 20, 1 << 20), (4096, 100)]
        {
            let mut slots = Slots::new(length, piece, &mut Rng::with_seed(3));
            let count = slots.order.len();
            assert_eq!(count, length / piece.next_multiple_of(PAGE));
            let stride = slots.stride;
            let mut pages: Vec<_> =
                (0..count).map(|_| slots.next()).inspect(|at| assert!(at + piece <= length)).collect();
            pages.iter_mut().for_each(|at| *at /= stride);
            pages.sort_unstable();
            assert_eq!(pages, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn places_are_shuffled_by_the_seed() {
        let places = |seed| {
            let mut slots = Slots::new(1 << 22, 4096, &mut Rng::with_seed(seed));
            (0..64).map(|_| slots.next()).collect::<Vec<_>>()
        };
        assert_eq!(places(5), places(5));
        assert_ne!(places(5), places(7));
        assert!(!places(5).is_sorted());
    }

    #[test]
    fn an_arena_is_aligned_and_has_no_zero_line() {
        for pages in [Pages::Huge, Pages::Ordinary] {
            let arena = Arena::new(10_000, pages, 1).unwrap();
            assert_eq!((arena.bytes().as_ptr() as usize % HUGE, arena.bytes().len()), (0, 10_000));
            assert!(arena.bytes().chunks_exact(64).all(|line| line.iter().any(|byte| *byte != 0)));
        }
    }
}
