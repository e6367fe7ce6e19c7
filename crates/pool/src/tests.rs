//! The pool against a model of the buffers held, its limit and its waiting, and the three file interfaces on real files.

use std::fs::File;
use std::io::Write;
use std::sync::mpsc;

use proptest::prelude::*;

use super::*;
use memferry_shm::mapping::{Access, Mapping};

fn small(limit_segments: u64) -> Pool {
    let options = Options {
        buffer_bytes: 512 << 10,
        segment_bytes: 2 << 20,
        limit_bytes: limit_segments * (2 << 20),
        ..Options::default()
    };
    Pool::new(options).unwrap()
}

#[test]
fn maps_at_the_first_take_and_unmaps_at_trim() {
    let pool = small(4);
    assert_eq!(pool.statistics().segment_bytes, 0);
    let buffers: Vec<Buffer> = (0..5).map(|_| pool.take().unwrap()).collect();
    assert_eq!((pool.statistics().segments, pool.statistics().in_use), (2, 5));
    assert_eq!(pool.trim(), 0, "trim released a segment in use");
    drop(buffers);
    assert_eq!(pool.trim(), 4 << 20);
    let after = pool.statistics();
    assert_eq!(
        (after.segments, after.buffers, after.in_use, after.peak_in_use, after.taken),
        (0, 0, 0, 5, 5)
    );
}

#[test]
fn at_the_limit_take_refuses_or_waits() {
    let pool = small(1);
    let mut buffers: Vec<Buffer> = (0..4).map(|_| pool.take().unwrap()).collect();
    assert!(
        matches!(pool.take(), Err(PoolError::Exhausted { in_use: 4, zeroing: 0, limit }) if limit == 2 << 20)
    );
    assert!(pool.take_waiting(Some(Duration::from_millis(1))).is_err());
    let waiting = mpsc::channel();
    let waiter = pool.clone();
    let thread = std::thread::spawn(move || waiting.0.send(waiter.take_waiting(None).map(drop)).unwrap());
    while pool.statistics().waited < 2 {
        std::thread::yield_now();
    }
    assert!(waiting.1.try_recv().is_err());
    drop(buffers.pop());
    waiting.1.recv().unwrap().unwrap();
    thread.join().unwrap();
    pool.set_limit(4 << 20);
    let _more: Vec<Buffer> = (0..5).map(|_| pool.take().unwrap()).collect();
    assert_eq!(pool.statistics().refused, 2);
}

#[test]
fn take_waits_for_a_segment_being_mapped() {
    let pool = small(1);
    let bytes = pool.options().segment_bytes as u64;
    // Acts as a thread that maps the last segment and fails: the bytes are pending first, then released.
    pool.state().pending_bytes = bytes;
    let taker = pool.clone();
    let thread = std::thread::spawn(move || taker.take().map(drop));
    while pool.statistics().waited == 0 && !thread.is_finished() {
        std::thread::yield_now();
    }
    pool.state().pending_bytes = 0;
    pool.0.returned.notify_all();
    thread.join().unwrap().unwrap();
    assert_eq!(pool.statistics().refused, 0);
}

#[test]
fn a_raised_limit_wakes_waiters() {
    let pool = small(0);
    let waiter = pool.clone();
    let thread = std::thread::spawn(move || waiter.take_waiting(None).map(drop));
    while pool.statistics().waited == 0 {
        std::thread::yield_now();
    }
    pool.set_limit(2 << 20);
    thread.join().unwrap().unwrap();
}

#[test]
fn buffers_are_aligned_and_bad_options_refused() {
    for align in [1, 4096, 64 << 10, 2 << 20] {
        let constraints = Constraints { align, ..Constraints::default() };
        let pool = Pool::new(Options { buffer_bytes: 10_000, constraints, ..Options::default() }).unwrap();
        let buffers: Vec<Buffer> = (0..3).map(|_| pool.take().unwrap()).collect();
        for buffer in &buffers {
            assert!(buffer.pointer().addr().is_multiple_of(align) && buffer.length() >= 10_000);
        }
    }
    for (buffer_bytes, align) in [(0, 4096), (4096, 3), (4096, 4 << 20), (2 << 30, 4096)] {
        let constraints = Constraints { align, ..Constraints::default() };
        let refused = Pool::new(Options { buffer_bytes, constraints, ..Options::default() });
        assert!(matches!(refused, Err(PoolError::Options { .. })));
    }
}

#[test]
fn alignment_slack_counts_against_the_limit() {
    // Alignment, limit, number of segments (each with its slack) under the limit, and number of buffers in them.
    for (align, limit_bytes, segments, buffers) in
        [(2 << 20, 9 << 20, 2, 2), (64 << 10, (2 << 20) + (64 << 10), 1, 32)]
    {
        let constraints = Constraints { align, contiguity: Contiguity::Any, ..Constraints::default() };
        let options = Options { buffer_bytes: align, segment_bytes: 2 << 20, limit_bytes, constraints };
        let pool = Pool::new(options).unwrap();
        let taken: Vec<Buffer> = std::iter::from_fn(|| pool.take().ok()).collect();
        assert!(taken.len() == buffers && taken.len() as u64 <= pool.options().buffers_within(limit_bytes));
        let mapped = segments * ((2 << 20) + align as u64);
        assert_eq!((pool.statistics().segments, pool.statistics().segment_bytes), (segments, mapped));
        assert_eq!(pool.segments().iter().map(|segment| segment.bytes as u64).sum::<u64>(), mapped);
        drop(taken);
        assert_eq!((pool.trim(), pool.statistics().segment_bytes), (mapped, 0));
    }
}

#[test]
fn physical_constraints_hold_or_fail() {
    let constraints = Constraints { address_limit: Some(u64::MAX), ..Constraints::default() };
    match Pool::new(Options { constraints, ..Options::default() }).unwrap().take() {
        Ok(_) | Err(PoolError::AddressesHidden { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let constraints = Constraints { address_limit: Some(4096), ..Constraints::default() };
    let pool = Pool::new(Options { constraints, ..Options::default() }).unwrap();
    let refused = pool.take().unwrap_err();
    assert!(matches!(refused, PoolError::OutOfReach { .. } | PoolError::AddressesHidden { .. }), "{refused}");
    assert_eq!(pool.statistics().segment_bytes, 0, "a segment without usable buffers was kept");
}

#[test]
fn a_buffer_being_zeroed_is_not_in_use() {
    let pool = small(1);
    let held = pool.take().unwrap();
    drop((pool.take().unwrap(), pool.take().unwrap()));
    let zeroing = pool.take_used(Duration::ZERO).unwrap();
    let _others: Vec<Buffer> = (0..2).map(|_| pool.take().unwrap()).collect();
    let refused = pool.take().unwrap_err();
    assert!(matches!(refused, PoolError::Exhausted { in_use: 3, zeroing: 1, .. }), "{refused}");
    drop((held, zeroing));
}

#[test]
fn a_dropped_holder_returns_its_buffers_zeroed() {
    let pool = small(1);
    let mut holder = pool.holder();
    let place = holder.take().unwrap();
    holder.buffer(place).unwrap().write(0, b"secret").unwrap();
    let (descriptor, offset) = holder.descriptor(place).unwrap();
    let theirs = Mapping::shared(descriptor, 2 << 20, Access::ReadWrite, 4096).unwrap();
    let mut seen = [0; 6];
    theirs.read(offset as u64, &mut seen).unwrap();
    assert_eq!(&seen, b"secret");
    assert!(rustix::fs::ftruncate(descriptor, 0).is_err(), "the holder could remove the segment's pages");
    let places: Vec<Place> = (0..3).map(|_| holder.take().unwrap()).collect();
    assert!(pool.take().is_err());
    holder.give_back(places[0]).unwrap();
    assert_eq!(holder.give_back(places[0]), Err(NotHeld(places[0])));
    assert_eq!((holder.held(), pool.statistics().in_use), (3, 3));
    drop(holder);
    assert_eq!(pool.statistics().in_use, 0);
    let mut next = pool.holder();
    for _ in 0..4 {
        let place = next.take().unwrap();
        next.buffer(place).unwrap().read(0, &mut seen).unwrap();
        assert_eq!(seen, [0; 6]);
    }
}

#[test]
fn a_killed_process_loses_no_buffers() {
    let pool = small(1);
    let mut holder = pool.holder();
    let places: Vec<Place> = (0..2).map(|_| holder.take().unwrap()).collect();
    let (descriptor, offset) = holder.descriptor(places[1]).unwrap();
    // SAFETY: the child maps a descriptor, copies bytes and kills itself. It takes no lock that a thread of the parent holds.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the alarm ends a child that hangs.
        unsafe { libc::alarm(20) };
        let theirs = Mapping::shared(descriptor, 2 << 20, Access::ReadWrite, 4096);
        let _ = theirs.map(|theirs| theirs.write(offset as u64, b"from the child"));
        // SAFETY: the signal ends the child at once.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: the call waits for the child made above and writes one number.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    let mut seen = [0; 14];
    holder.buffer(places[1]).unwrap().read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"from the child");
    drop(holder);
    assert_eq!(pool.statistics().in_use, 0);
}

#[test]
fn the_service_admits_a_segment_as_a_frame() {
    let pool = small(1);
    let buffer = pool.take().unwrap();
    let own = rustix::process::geteuid().as_raw();
    let length = buffer.segment().mapping().length_bytes() as u64;
    let frame = memferry_shm::frame::admit(buffer.segment().descriptor(), length, own).unwrap();
    frame.write(buffer.segment().offset_of(buffer.index()) as u64, b"by the engine").unwrap();
    let mut seen = [0; 13];
    buffer.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"by the engine");
}

/// An unlinked file of `bytes` in the build directory: unlike a temporary folder, that is usually on a disk.
fn file(bytes: &[u8]) -> File {
    let name = format!("memferry-pool-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::current_exe().unwrap().with_file_name(name);
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn alignments_name_the_first_unmet_requirement() {
    let required = Alignments { memory: 64, offset: 512 };
    assert_eq!(required.check(128, 1024, 512), Ok(()));
    let address = Err(WhyCopied::Address { address: 96, align: 64 });
    assert_eq!(required.check(96, 1023, 1), address);
    for (length, offset) in [(1023, 512), (1024, 64)] {
        assert_eq!(required.check(128, length, offset), Err(WhyCopied::Place { offset, length, align: 512 }));
    }
}

#[test]
fn the_three_interfaces_read_equal_bytes() {
    let bytes: Vec<u8> = (0..40_000_u32).map(|index| (index * 7 % 251) as u8).collect();
    let file = Direct::new(file(&bytes));
    let pool = Pool::new(Options::default()).unwrap();
    let mut buffer = pool.take().unwrap();
    let offered = file.alignments().is_some();
    // Zero-knowledge: memory that is not aligned works by copying.
    let mut memory = vec![0; 3 * 4096];
    let odd = usize::from(memory.as_ptr().addr().is_multiple_of(2));
    let moved = file.read(&mut memory[odd..odd + 8192], 4096).unwrap();
    assert!(moved.bytes == 8192 && matches!(moved.way, Way::Copied(_)), "{moved:?}");
    assert_eq!(memory[odd..odd + 8192], bytes[4096..12288]);
    // Zero-knowledge: aligned memory is read directly.
    let aligned = memory.as_ptr().align_offset(4096);
    let moved = file.read(&mut memory[aligned..aligned + 4096], 8192).unwrap();
    assert_eq!((moved.bytes, moved.way == Way::Direct), (4096, offered), "{moved:?}");
    assert_eq!(memory[aligned..aligned + 4096], bytes[8192..12288]);
    // Complete-knowledge: memory that is not aligned is refused with the reason.
    let refused = file.read_aligned(&mut memory[odd..odd + 4096], 0);
    assert!(matches!(refused, Err(DirectError::Unsuitable(_))), "{refused:?}");
    assert_eq!(file.read_aligned(&mut memory[aligned..aligned + 4096], 0).is_ok(), offered);
    // Compatible pool: read directly, but copied at an odd offset in the file.
    for (offset, expect) in [(0, offered), (100, false)] {
        let moved = file.read_buffer(&mut buffer, 4096, 8192, offset).unwrap();
        assert_eq!((moved.bytes, moved.way == Way::Direct), (8192, expect), "{moved:?}");
        let mut read = vec![0; 8192];
        buffer.read(4096, &mut read).unwrap();
        assert_eq!(read, bytes[offset as usize..][..8192]);
    }
    let end = file.read_buffer(&mut buffer, 0, 8192, 36_864).unwrap();
    assert_eq!(end.bytes, 40_000 - 36_864, "a read at the end returns the rest of the file");
    assert!(file.read_buffer(&mut buffer, 65_536, 65_536, 0).is_err());
}

#[test]
fn a_read_returns_the_writes_of_each_interface() {
    let file = Direct::new(file(&[0; 16_384]));
    let pool = Pool::new(Options::default()).unwrap();
    let mut buffer = pool.take().unwrap();
    buffer.write(0, &[1; 4096]).unwrap();
    file.write_buffer(&buffer, 0, 4096, 4096).unwrap();
    file.write(&[2; 100], 10).unwrap();
    assert!(matches!(file.write_aligned(&[3; 100], 10), Err(DirectError::Unsuitable(_))));
    let mut read = vec![0; 16_384];
    assert_eq!(file.read(&mut read, 0).unwrap().bytes, 16_384);
    let mut expected = vec![0; 16_384];
    expected[4096..8192].fill(1);
    expected[10..110].fill(2);
    assert_eq!(read, expected);
}

proptest! {
    #[test]
    fn buffers_are_disjoint_and_counts_exact(
        steps in prop::collection::vec((any::<bool>(), 0..20_usize), 1..200),
    ) {
        let pool = small(3);
        let mut held: Vec<(Buffer, u8)> = Vec::new();
        for (step, (take, which)) in steps.into_iter().enumerate() {
            if take {
                match pool.take() {
                    Ok(mut buffer) => {
                        let mark = step as u8;
                        buffer.write(0, &[mark; 64]).unwrap();
                        buffer.write(buffer.length() - 64, &[mark; 64]).unwrap();
                        held.push((buffer, mark));
                    }
                    Err(error) => prop_assert!(held.len() == 12, "{error}"),
                }
            } else if !held.is_empty() {
                held.swap_remove(which % held.len());
            }
            prop_assert_eq!(pool.statistics().in_use, held.len() as u64);
            let free: usize = pool.segments().iter().map(|segment| segment.free).sum();
            prop_assert_eq!(free as u64 + pool.statistics().in_use, pool.statistics().buffers);
        }
        for (buffer, mark) in &held {
            let mut ends = [0; 64];
            for at in [0, buffer.length() - 64] {
                buffer.read(at, &mut ends).unwrap();
                prop_assert_eq!(ends, [*mark; 64]);
            }
        }
    }
}
