//! Tests every kernel at every level this CPU has, against a byte-wise oracle, between guard pages.
//!
//! ```text
//! (length, alignments, contents) ─► kernel on memory that ends or begins at a guard page ─► every byte compared
//! ```
//!
//! An access out of range ends the test process. Under Miri there are no guard pages; Miri checks accesses itself.

use std::ptr;

use memferry_conformance::noise;
use proptest::prelude::*;

use super::*;
use crate::level::{Cpu, Level};

/// Memory between two inaccessible pages.
struct Fenced {
    whole: *mut u8,
    bytes: usize,
}

const PAGE: usize = 4096;

impl Fenced {
    #[cfg(not(miri))]
    fn new(pages: usize) -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let bytes = pages * PAGE;
        // SAFETY: a new mapping, whose first and last page become inaccessible.
        unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let start =
                mmap_anonymous(ptr::null_mut(), bytes + 2 * PAGE, protection, MapFlags::PRIVATE).unwrap();
            mprotect(start, PAGE, MprotectFlags::empty()).unwrap();
            mprotect(start.byte_add(PAGE + bytes), PAGE, MprotectFlags::empty()).unwrap();
            Self { whole: start.cast::<u8>().add(PAGE), bytes }
        }
    }

    #[cfg(miri)]
    fn new(pages: usize) -> Self {
        let bytes = pages * PAGE;
        Self { whole: vec![0u8; bytes].leak().as_mut_ptr(), bytes }
    }

    /// `length` bytes, `after` bytes after the first guard page or before the last.
    fn place(&self, (at_end, after): (bool, usize), length: usize) -> *mut u8 {
        assert!(after + length <= self.bytes);
        let offset = if at_end { self.bytes - after - length } else { after };
        // SAFETY: in range, by the check above.
        unsafe { self.whole.add(offset) }
    }

    fn set(&self, seed: u64) -> Vec<u8> {
        let bytes = noise(self.bytes, seed);
        self.put(&bytes);
        bytes
    }

    fn put(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes);
        // SAFETY: exactly `self.bytes` bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.whole, self.bytes) };
    }

    fn get(&self) -> Vec<u8> {
        // SAFETY: memory of this test only, initialised by `set`.
        unsafe { std::slice::from_raw_parts(self.whole, self.bytes) }.to_vec()
    }

    fn offset(&self, place: *const u8) -> usize {
        place.addr() - self.whole.addr()
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: mapped in `new`; no reference remains.
        unsafe {
            rustix::mm::munmap(self.whole.sub(PAGE).cast(), self.bytes + 2 * PAGE).unwrap();
        }
        #[cfg(miri)]
        // SAFETY: leaked from such a vector in `new`.
        drop(unsafe { Vec::from_raw_parts(self.whole, self.bytes, self.bytes) });
    }
}

/// A length, and where source and destination lie: at which end of their memory, and how far from it.
#[derive(Clone, Copy, Debug)]
struct Case {
    length: usize,
    source: (bool, usize),
    destination: (bool, usize),
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let longest = if cfg!(miri) { 1500 } else { 3 * PAGE };
    let side = (any::<bool>(), 0..64usize);
    (prop_oneof![0..300usize, 0..=longest], side.clone(), side, any::<u64>())
        .prop_map(|(length, source, destination, seed)| Case { length, source, destination, seed })
}

fn cpus() -> impl Iterator<Item = Cpu> {
    Level::available().map(Cpu::at)
}

const PAGES: usize = if cfg!(miri) { 1 } else { 4 };

proptest! {
    #[test]
    fn streaming_copies_write_only_their_range(case in cases(), flush: bool) {
        let source = Fenced::new(PAGES);
        let destination = Fenced::new(PAGES);
        let from = source.place(case.source, case.length);
        let to = destination.place(case.destination, case.length);
        for cpu in cpus() {
            let bytes = source.set(case.seed);
            let mut expected = destination.set(case.seed ^ 1);
            // SAFETY: M1 to M4: both ranges lie between the guard pages and apart, and the level is available.
            unsafe {
                match flush {
                    false => copy_streaming(cpu.level, from, to, case.length),
                    true => copy_flushing(cpu, from, to, case.length),
                }
            }
            let at = destination.offset(to);
            let start = source.offset(from);
            expected[at..at + case.length].copy_from_slice(&bytes[start..start + case.length]);
            prop_assert!(destination.get() == expected, "{cpu:?}");
            prop_assert!(source.get() == bytes, "{cpu:?}: the source is unchanged");
        }
    }

    #[test]
    fn fills_write_only_their_range(case in cases(), word: [u8; 4], past: bool) {
        let destination = Fenced::new(PAGES);
        let to = destination.place(case.destination, case.length);
        let at = destination.offset(to);
        for cpu in cpus() {
            let mut expected = destination.set(case.seed);
            // SAFETY: M1 to M4: the range lies between the guard pages, and the level is available.
            unsafe {
                match past {
                    false => fill_words(cpu.level, to, case.length, word),
                    true => fill_words_streaming(cpu.level, to, case.length, word),
                }
            }
            (0..case.length).for_each(|offset| expected[at + offset] = word[offset % 4]);
            prop_assert!(destination.get() == expected, "{cpu:?}");
            if cpu.clzero || cfg!(not(target_arch = "x86_64")) {
                // SAFETY: as above, and the CPU zeroes lines.
                unsafe { zero_lines(to, case.length) };
                expected[at..at + case.length].fill(0);
                prop_assert!(destination.get() == expected, "{cpu:?}: zeros");
            }
        }
    }

    #[test]
    fn xor_combines_every_byte(case in cases(), others in 0..4usize, on: bool) {
        let destination = Fenced::new(PAGES);
        let sources: Vec<_> = (0..=others).map(|_| Fenced::new(PAGES)).collect();
        let block = noise(case.length, !case.seed);
        let mut expected = if on { block.clone() } else { vec![0; case.length] };
        let mut places = Vec::new();
        for (number, source) in (0..).zip(&sources) {
            let bytes = source.set(case.seed ^ number);
            let from = source.place(if places.is_empty() { case.source } else { case.destination }, case.length);
            expected.iter_mut().zip(&bytes[source.offset(from)..]).for_each(|(one, other)| *one ^= other);
            places.push(from.cast_const());
        }
        for cpu in cpus() {
            let mut result = block.clone();
            let block = result.as_mut_ptr();
            let all: Vec<_> = on.then_some(block.cast_const()).into_iter().chain(places.iter().copied()).collect();
            // SAFETY: M1 to M4: the ranges lie between the guard pages, the block is as long, the level is available.
            unsafe { xor_all(cpu.level, block, case.length, &all) };
            prop_assert!(result == expected, "{cpu:?}");
            let to = destination.place(case.destination, case.length);
            let at = destination.offset(to);
            let mut whole = destination.set(case.seed);
            // SAFETY: as above, and the destination lies between guard pages too.
            unsafe { xor_all_streaming(cpu.level, to, case.length, &places) };
            fence();
            if !on {
                whole[at..at + case.length].copy_from_slice(&expected);
                prop_assert!(destination.get() == whole, "{cpu:?}, streaming");
            }
        }
    }

    #[test]
    fn the_first_difference_is_found(case in cases(), places: [prop::sample::Index; 2]) {
        let one = Fenced::new(PAGES);
        let other = Fenced::new(PAGES);
        let bytes = one.set(case.seed);
        let mut rest = other.set(case.seed ^ 1);
        let first = one.place(case.source, case.length);
        let second = other.place(case.destination, case.length);
        let start = one.offset(first);
        let at = other.offset(second);
        rest[at..at + case.length].copy_from_slice(&bytes[start..start + case.length]);
        other.put(&rest);
        let find = |cpu: Cpu| {
            // SAFETY: M1, M2, M4: both ranges lie between the guard pages, and the level is available.
            unsafe { first_difference(cpu.level, first, second, case.length) }
        };
        prop_assert!(cpus().all(|cpu| find(cpu) == case.length), "equal ranges");
        if case.length > 0 {
            let places = places.map(|place| place.index(case.length));
            places.iter().for_each(|place| rest[at + place] = !bytes[start + place]);
            other.put(&rest);
            for cpu in cpus() {
                prop_assert_eq!(find(cpu), places[0].min(places[1]), "{:?}", cpu);
            }
        }
    }
}

#[test]
fn loads_are_timed_where_supported() {
    let bytes = [0u8; 2];
    let ticks = own_load_ticks([&bytes[0], &bytes[1]]);
    assert_eq!(ticks.is_some(), cfg!(all(target_arch = "x86_64", not(miri))));
}

/// Streams to unpopulated huge pages, where available.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no huge pages")]
fn streaming_to_unpopulated_huge_pages() {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    const HUGE: usize = 2 << 20;
    let source = noise(HUGE, 7);
    for cpu in cpus() {
        // SAFETY: a new mapping of twice a huge page, which contains an aligned one; nothing else refers to it, and it is unmapped
        // at the end. M3, M4.
        unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let start = mmap_anonymous(ptr::null_mut(), 2 * HUGE, protection, MapFlags::PRIVATE).unwrap();
            let whole = start.cast::<u8>();
            let to = whole.add(whole.align_offset(HUGE));
            // Fails if the kernel has no huge pages: then the pages are ordinary and unpopulated.
            let _ = madvise(to.cast(), HUGE, Advice::LinuxHugepage);
            copy_streaming(cpu.level, source.as_ptr(), to, HUGE);
            assert_eq!(first_difference(cpu.level, source.as_ptr(), to, HUGE), HUGE, "{cpu:?}");
            munmap(start, 2 * HUGE).unwrap();
        }
    }
}
