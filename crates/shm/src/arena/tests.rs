//! The arena against a model, over heap memory so that Miri can check every access.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box as ArenaBox;
use allocator_api2::vec::Vec as ArenaVec;
use proptest::prelude::*;

use super::*;

/// Makes segments of heap memory and counts those not retired.
#[derive(Default)]
struct Heap {
    next: AtomicU64,
    out: Mutex<BTreeMap<u64, usize>>,
}

impl Heap {
    fn out(&self) -> usize {
        self.out.lock().unwrap().len()
    }
}

// SAFETY: A: each segment is a fresh zeroed allocation that only the arena holds, one page longer than requested.
unsafe impl SegmentSource for Heap {
    type Id = u64;
    type Error = Infallible;

    fn segment(&self, min_bytes: u64) -> Result<(Mapping, u64), Infallible> {
        let mapping = Mapping::owned(vec![0; min_bytes as usize + PAGE]);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.out.lock().unwrap().insert(id, mapping.length_bytes());
        Ok((mapping, id))
    }

    fn retire(&self, id: u64) {
        assert!(self.out.lock().unwrap().remove(&id).is_some(), "segment {id} was retired twice");
    }
}

const SEGMENT: u64 = 64 << 10;

fn arena() -> Arena<Heap> {
    Arena::new(Heap::default(), Options { segment_bytes: SEGMENT, ..Options::default() })
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn allocate(arena: &Arena<Heap>, size: usize, align: usize) -> NonNull<u8> {
    arena.allocate(layout(size, align)).unwrap()
}

fn free(arena: &Arena<Heap>, pointer: NonNull<u8>, size: usize, align: usize) -> Result<(), FreeError> {
    // SAFETY: A: these tests do not use a block after they freed it, or the call is refused.
    unsafe { arena.free(pointer, layout(size, align)) }
}

fn fill(pointer: NonNull<u8>, size: usize, value: u8) {
    // SAFETY: A: callers hold a block of `size` bytes there.
    unsafe { pointer.as_ptr().write_bytes(value, size) };
}

fn holds(pointer: NonNull<u8>, size: usize, value: u8) -> bool {
    let mut bytes = vec![!value; size];
    // SAFETY: A: callers hold a block of `size` bytes there, and no other thread writes it.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(pointer.as_ptr(), size) };
    // One comparison of whole vectors, because Miri is slow on a loop over bytes.
    bytes == vec![value; size]
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { size: usize, align: usize },
    Free { which: usize },
    Grow { which: usize, by: usize },
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![4 => 1..300_usize, 2 => 300..5000_usize, 1 => 5000..100_000_usize];
    let allocate = (size, 0..14_u32).prop_map(|(size, shift)| Step::Allocate { size, align: 1 << shift });
    let step = prop_oneof![
        6 => allocate,
        4 => any::<usize>().prop_map(|which| Step::Free { which }),
        1 => (any::<usize>(), 0..9000_usize).prop_map(|(which, by)| Step::Grow { which, by }),
        1 => Just(Step::Trim),
    ];
    proptest::collection::vec(step, 1..if cfg!(miri) { 12 } else { 200 })
}

/// A live block in the model.
#[derive(Clone, Copy)]
struct Live {
    pointer: NonNull<u8>,
    size: usize,
    align: usize,
    value: u8,
}

fn check_new(arena: &Arena<Heap>, live: &[Live], block: Live) {
    let start = block.pointer.addr().get();
    assert!(start.is_multiple_of(block.align));
    for other in live {
        let other_start = other.pointer.addr().get();
        assert!(start + block.size <= other_start || other_start + other.size <= start, "blocks overlap");
    }
    assert!(arena.locate(block.pointer.as_ptr(), block.size).is_some());
}

fn run(steps: &[Step]) {
    let arena = arena();
    let mut live: Vec<Live> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let value = number as u8 | 1;
        match *step {
            Step::Allocate { size, align } => {
                let block = Live { pointer: allocate(&arena, size, align), size, align, value };
                check_new(&arena, &live, block);
                assert!(holds(block.pointer, size, 0), "an old byte is visible");
                fill(block.pointer, size, value);
                live.push(block);
            }
            Step::Free { which } if !live.is_empty() => {
                let block = live.swap_remove(which % live.len());
                assert!(holds(block.pointer, block.size, block.value));
                assert_eq!(free(&arena, block.pointer, block.size, block.align), Ok(()));
            }
            Step::Grow { which, by } if !live.is_empty() => {
                let mut block = live.swap_remove(which % live.len());
                let old = layout(block.size, block.align);
                let new = layout(block.size + by, block.align);
                // SAFETY: A: the block is in use and has the old layout; the new one is not shorter.
                let grown = unsafe { Allocator::grow(&arena, block.pointer, old, new) }.unwrap();
                block.pointer = grown.cast();
                assert!(holds(block.pointer, block.size, block.value), "growing lost bytes");
                block.size += by;
                check_new(&arena, &live, block);
                fill(block.pointer, block.size, block.value);
                live.push(block);
            }
            Step::Trim => arena.trim(),
            Step::Free { .. } | Step::Grow { .. } => {}
        }
        assert_eq!(arena.statistics().live_blocks, live.len() as u64);
        assert_eq!(arena.statistics().segments, arena.source().out() as u64);
    }
    for block in live.drain(..) {
        assert!(holds(block.pointer, block.size, block.value));
        assert_eq!(free(&arena, block.pointer, block.size, block.align), Ok(()));
    }
    assert!(arena.source().out() <= 1, "the arena keeps more than one empty segment");
    arena.trim();
    let empty = Statistics { peak_bytes: arena.statistics().peak_bytes, ..Statistics::default() };
    assert_eq!((arena.source().out(), arena.statistics()), (0, empty));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn blocks_keep_their_bytes_and_never_overlap(steps in steps()) {
        run(&steps);
    }
}

#[test]
fn heap_memory_is_no_place_to_land() {
    let arena = arena();
    let mut bytes = ArenaVec::new_in(arena.clone());
    bytes.resize(3 * PAGE, 0_u8);
    assert!(arena.locate_slice(&bytes).is_some());
    assert_eq!(arena.whole_pages(&bytes), None, "its pages may hold other objects");
    assert!(arena.landing(&mut bytes).is_none());
}

#[test]
fn refuses_impossible_layouts() {
    let arena = arena();
    assert!(matches!(arena.allocate(layout(0, 1)), Err(ArenaError::Empty)));
    assert!(matches!(arena.block(0, 1), Err(ArenaError::Empty)));
    for align in [0, 3, 4 << 20, usize::MAX, 1 << 63] {
        assert!(matches!(arena.block(1, align), Err(ArenaError::Alignment { .. })), "aligned to {align}");
    }
    assert!(matches!(arena.block(1 << 45, 1), Err(ArenaError::Limit { .. })));
    for length in [usize::MAX, isize::MAX as usize + 1, isize::MAX as usize - 5] {
        assert!(matches!(arena.block(length, 64), Err(ArenaError::TooLong { .. })), "{length} bytes");
    }
    assert_eq!((arena.source().out(), arena.statistics()), (0, Statistics::default()));
}

#[test]
fn the_limit_holds_until_blocks_are_freed() {
    let options = Options { segment_bytes: SEGMENT, limit_bytes: 4 * SEGMENT, ..Options::default() };
    let arena = Arena::new(Heap::default(), options);
    let first = arena.block(SEGMENT as usize, 1).unwrap();
    let second = arena.block(SEGMENT as usize * 2, 1).unwrap();
    let Err(refused) = arena.block(SEGMENT as usize, 1) else { panic!("the limit did not hold") };
    let limit = format!("exceed the arena's limit of {} bytes", 4 * SEGMENT);
    assert!(refused.to_string().contains(&limit), "{refused}");
    assert!(arena.statistics().segment_bytes <= 4 * SEGMENT + 2 * PAGE as u64);
    // A block that fits the rest of the limit is served, although the rest is less than a usual segment.
    let small = arena.block(100, 1).unwrap();
    drop((first, second));
    let whole = arena.block(SEGMENT as usize * 3 - 2 * PAGE, 1).unwrap();
    drop((small, whole));
    assert!(matches!(arena.block(isize::MAX as usize / 2, 1), Err(ArenaError::Limit { .. })));
}

#[test]
fn a_bad_free_is_refused_and_changes_nothing() {
    let ours = arena();
    let other = arena();
    for (size, align) in [(24, 8), (5000, 4096), (100_000, 1)] {
        let kept = allocate(&ours, size, align);
        let gone = allocate(&ours, size, align);
        fill(kept, size, 7);
        let address = gone.addr().get();
        assert_eq!(free(&other, gone, size, align), Err(FreeError::Foreign { address }));
        let inside = NonNull::new(gone.as_ptr().wrapping_add(8)).unwrap();
        assert_eq!(free(&ours, inside, size, align), Err(FreeError::NotLive { address: address + 8 }));
        assert!(matches!(free(&ours, gone, size * 2, align), Err(FreeError::Layout { .. })));
        assert_eq!(free(&ours, gone, size, align), Ok(()));
        let again = free(&ours, gone, size, align);
        assert!(matches!(again, Err(FreeError::NotLive { .. } | FreeError::Foreign { .. })), "{again:?}");
        assert!(holds(kept, size, 7));
        assert_eq!(free(&ours, kept, size, align), Ok(()));
    }
    assert_eq!(ours.statistics().live_bytes, 0);
}

#[test]
#[should_panic(expected = "was it freed twice?")]
fn a_double_deallocate_panics() {
    let arena = arena();
    let block = allocate(&arena, 64, 8);
    let _other = allocate(&arena, 64, 8);
    // SAFETY: A: the only holder frees the block; the second call is refused before it touches memory.
    unsafe {
        arena.deallocate(block, layout(64, 8));
        arena.deallocate(block, layout(64, 8));
    }
}

#[test]
fn old_bytes_show_only_without_zero_on_free() {
    for zero_on_free in [true, false] {
        let options = Options { segment_bytes: SEGMENT, zero_on_free, ..Options::default() };
        let arena = Arena::new(Heap::default(), options);
        let _keeps_the_segment = arena.block(16, 1).unwrap();
        let mut seen = false;
        for (size, next) in [(40_000, 1000), (1000, 16), (2048, 30_000), (48, 40_000), (30_000, 30_000)] {
            let block = allocate(&arena, size, 1);
            fill(block, size, 0xaa);
            assert_eq!(free(&arena, block, size, 1), Ok(()));
            let block = allocate(&arena, next, 1);
            seen |= !holds(block, next, 0);
            assert_eq!(free(&arena, block, next, 1), Ok(()));
        }
        assert_eq!(seen, !zero_on_free);
    }
}

#[test]
fn one_empty_segment_is_kept() {
    let arena = arena();
    let blocks: Vec<_> = (0..4).map(|_| arena.block(40_000, 1).unwrap()).collect();
    let large = arena.block(200_000, 4096).unwrap();
    assert_eq!((arena.source().out(), arena.statistics().segments), (5, 5));
    drop(large);
    assert_eq!(arena.source().out(), 4, "a segment larger than usual is not kept");
    drop(blocks);
    assert_eq!(arena.source().out(), 1);
    let again = arena.block(40_000, 1).unwrap();
    assert_eq!(arena.source().out(), 1);
    arena.trim();
    assert_eq!(arena.source().out(), 1, "a segment in use is not trimmed");
    drop(again);
    arena.trim();
    assert_eq!(arena.source().out(), 0);
    let peak = arena.statistics().peak_bytes;
    assert!((4 * 40_000 + 200_000..500_000).contains(&peak), "{peak}");
}

#[test]
fn locate_needs_all_bytes_in_one_segment() {
    let other = arena();
    let arena = arena();
    let block = allocate(&arena, 5000, 1);
    let foreign = allocate(&other, 100, 1);
    let (id, offset) = arena.locate(block.as_ptr(), 5000).unwrap();
    let inner = arena.locate(block.as_ptr().wrapping_add(100), 10).unwrap();
    assert_eq!((id, inner), (0, (0, offset + 100)));
    let left = SEGMENT as usize + PAGE - offset as usize;
    assert!(arena.locate(block.as_ptr(), left).is_some());
    assert_eq!(arena.locate(block.as_ptr(), left + 1), None);
    assert_eq!(arena.locate(block.as_ptr(), usize::MAX), None);
    assert_eq!(arena.locate(foreign.as_ptr(), 1), None);
    assert_eq!(arena.locate(std::ptr::null(), 0), None);
    assert_eq!(arena.locate(std::ptr::without_provenance(usize::MAX), 1), None);
    assert_eq!(free(&arena, block, 5000, 1), Ok(()));
    arena.trim();
    assert_eq!(arena.locate(block.as_ptr(), 5000), None, "the segment was retired");
}

#[test]
fn collections_outlive_the_arena_handle() {
    let arena = arena();
    let mut bytes = ArenaVec::new_in(arena.clone());
    let boxed = ArenaBox::new_in([3_u64; 100], arena.clone());
    for number in 0..3000_u32 {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    let mut short = bytes.clone();
    short.truncate(10);
    short.shrink_to_fit();
    let empty: ArenaVec<u8, _> = ArenaVec::new_in(arena.clone());
    let no_bytes = ArenaBox::new_in((), arena.clone());
    let statistics = arena.statistics();
    drop(arena);
    assert_eq!(short.as_slice(), &bytes[..10]);
    assert!(bytes.chunks(4).enumerate().all(|(n, chunk)| chunk == (n as u32).to_le_bytes()));
    assert_eq!((boxed.iter().sum::<u64>(), statistics.live_blocks), (300, 3));
    drop((empty, no_bytes, boxed));
    assert_eq!(bytes.allocator().statistics().live_blocks, 2);
}

#[test]
fn an_abandoned_block_is_not_reused() {
    let arena = arena();
    let abandoned = arena.block(40_000, 1).unwrap();
    let kept = arena.block(100, 1).unwrap();
    let offset = abandoned.offset();
    abandoned.abandon();
    drop(abandoned);
    let statistics = arena.statistics();
    assert_eq!((statistics.live_blocks, statistics.abandoned_bytes), (1, 40_960));
    let fresh = arena.block(40_000, 1).unwrap();
    assert_ne!((*fresh.segment(), fresh.offset()), (0, offset));
    drop(kept);
    let statistics = arena.statistics();
    assert_eq!((statistics.segments, statistics.abandoned_bytes), (1, 0), "the abandoned segment was kept");
    drop(fresh);
}

#[test]
fn block_copies_stay_inside_the_block() {
    let arena = arena();
    let block = arena.block(100, 64).unwrap();
    block.write(90, &[5; 10]).unwrap();
    let mut bytes = [1; 20];
    block.read(80, &mut bytes).unwrap();
    assert_eq!(bytes, [[0; 10], [5; 10]].concat()[..]);
    for (offset, length) in [(91, 10), (100, 1), (u64::MAX, 2), (0, 101)] {
        let error = crate::mapping::AccessError::OutOfRange { offset, length, available: 100 };
        assert_eq!(block.read(offset, &mut vec![0; length as usize]), Err(error));
        assert_eq!(block.write(offset, &vec![0; length as usize]), Err(error));
    }
    block.read(100, &mut []).unwrap();
}

#[test]
fn threads_share_an_arena() {
    let arena = arena();
    let rounds = if cfg!(miri) { 8 } else { 4000 };
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let arena = &arena;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..rounds {
                    let length = [24, 700, 5000, 30_000][(round + usize::from(thread)) % 4];
                    let block = arena.block(length, 8).unwrap();
                    let mut bytes = vec![0xff; length];
                    block.read(0, &mut bytes).unwrap();
                    assert!(bytes == vec![0; length]);
                    bytes.fill(thread);
                    block.write(0, &bytes).unwrap();
                    held.push(block);
                    if held.len() > 5 {
                        let block = held.swap_remove(round % 5);
                        let mut bytes = vec![0; block.length_bytes() as usize];
                        block.read(0, &mut bytes).unwrap();
                        assert!(bytes == vec![thread; bytes.len()]);
                    }
                }
            });
        }
    });
    let statistics = arena.statistics();
    assert_eq!((statistics.live_blocks, statistics.live_bytes), (0, 0));
    assert!(arena.source().out() <= 1);
}
