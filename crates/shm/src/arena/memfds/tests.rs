//! The arena over memfds: alignment, forked children, and landings that the service may still write.

use std::alloc::Layout;
use std::os::fd::AsFd;
use std::sync::Arc;

use allocator_api2::vec::Vec as ArenaVec;

use super::*;
use crate::arena::{Arena, ArenaError, Options};
use crate::mapping::{Access, AccessError};

/// Stands for a service: maps each registered memfd a second time.
struct Second;

impl Registrar for Second {
    type Id = Arc<Mapping>;
    type Error = std::io::Error;

    fn register(&self, descriptor: OwnedFd, length: u64) -> Result<Self::Id, Self::Error> {
        Mapping::shared(descriptor.as_fd(), length as usize, Access::ReadWrite, 4096).map(Arc::new)
    }

    fn retire(&self, _id: Self::Id) {}
}

fn arena() -> Arena<Memfds<Second>> {
    let source = Memfds::new(Second, Placement::default()).unwrap();
    Arena::new(source, Options::default())
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn alignment_is_honoured_up_to_a_large_page() {
    let arena = arena();
    let blocks: Vec<_> = (0..22).map(|shift| arena.allocate(layout(3000, 1 << shift)).unwrap()).collect();
    for (shift, block) in blocks.iter().enumerate() {
        assert!(block.addr().get().is_multiple_of(1 << shift));
    }
}

#[test]
fn locate_names_where_the_bytes_are() {
    let arena = arena();
    let mut bytes = ArenaVec::new_in(arena.clone());
    bytes.extend_from_slice(b"here");
    let (segment, offset) = arena.locate_slice(&bytes).unwrap();
    let mut there = [0; 4];
    segment.read(offset, &mut there).unwrap();
    assert_eq!(&there, b"here");
}

#[test]
fn whole_pages_lie_inside_the_slice() {
    let arena = arena();
    let mut bytes = ArenaVec::with_capacity_in(20_000, arena.clone());
    bytes.resize(20_000, 0_u8);
    for (slice, whole) in
        [(0..20_000, 0..16_384), (1..20_000, 4095..16_383), (1..8191, 0..0), (1..8192, 4095..8191)]
    {
        assert_eq!(arena.whole_pages(&bytes[slice.clone()]), Some(whole), "{slice:?}");
    }
    assert_eq!(arena.whole_pages(&[0; 10_000]), None);
    assert!(arena.landing(&mut bytes[1..4097]).is_none());
    assert!(arena.landing(&mut bytes[..0]).is_none());
}

#[test]
fn writes_after_a_dropped_landing_are_lost() {
    let arena = arena();
    let mut bytes = ArenaVec::with_capacity_in(16_384, arena.clone());
    bytes.resize(16_384, 1_u8);
    let landing = arena.landing(&mut bytes[4096..12_288]).unwrap();
    let segment = Arc::clone(landing.segment());
    let offset = landing.offset();
    segment.write(offset, &[2; 8192]).unwrap();
    landing.settled();
    assert_eq!((bytes[4095], bytes[4096], bytes[12_287], bytes[12_288]), (1, 2, 2, 1));

    drop(arena.landing(&mut bytes[4096..12_288]).unwrap());
    segment.write(offset, &[3; 8192]).unwrap();
    assert!(bytes[4096..12_288].iter().all(|byte| *byte == 0), "a late write is visible");
    assert!(bytes[..4096].iter().chain(&bytes[12_288..]).all(|byte| *byte == 1));
    assert!(arena.locate(bytes.as_ptr(), 1).is_none(), "the id still names a detached segment");
    // A detached segment serves no further block and is retired with its last one.
    let other = arena.block(100, 1).unwrap();
    assert!(!Arc::ptr_eq(other.segment(), &segment));
    assert_eq!(arena.statistics().segments, 2);
    drop(bytes);
    assert_eq!(arena.statistics().segments, 1);
}

#[test]
fn a_forked_child_gets_errors() {
    let _alone = crate::FORKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let arena = arena();
    let block = arena.block(5000, 1).unwrap();
    let bytes = ArenaVec::<u8, _>::with_capacity_in(100, arena.clone());
    block.write(0, b"parent").unwrap();
    let before = arena.statistics();
    // SAFETY: the child uses only this arena, which takes no lock in a child, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the alarm ends a child that hangs, with a status other than 0.
        unsafe { libc::alarm(20) };
        let refused = matches!(arena.allocate(layout(8, 8)), Err(ArenaError::Forked(Forked)));
        let unread = block.read(0, &mut [0; 6]) == Err(AccessError::Forked(Forked));
        let unknown = arena.locate(bytes.as_ptr(), 1).is_none();
        drop((block, bytes));
        arena.trim();
        drop(arena);
        // SAFETY: _exit ends the child without running the parent's destructors.
        unsafe { libc::_exit(if refused && unread && unknown { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the call waits for the child made above and writes one number.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    let mut read = [0; 6];
    block.read(0, &mut read).unwrap();
    assert_eq!((&read, arena.statistics()), (b"parent", before));
}
