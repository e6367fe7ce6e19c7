//! Tests of the flat table: what it answers, that it keeps memory for readers, and that nothing is written after `retire`.

use super::*;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const BOTH: Rights = Rights::READ.union(Rights::WRITE);

fn view() -> Arc<View> {
    Arc::new(View::new(4, Fences::register()))
}

fn copied(
    reader: &mut Reader,
    session: SessionId,
    from: Span,
    to: Span,
    length: u64,
) -> Option<Result<(), MemoryFault>> {
    let guard = reader.enter();
    Some(copy(guard.source(session, &from, length)?, guard.destination(session, &to, length)?))
}

#[test]
fn places_cover_all_indices() {
    let last = (SEGMENTS * SEGMENT - 1) as u32;
    assert_eq!((place(0), place(1023), place(1024)), ((0, 0), (0, 1023), (1, 0)));
    assert_eq!(place(last), (SEGMENTS - 1, SEGMENT - 1));
    let view = view();
    let mut reader = view.reader().unwrap();
    let memory = Mapping::owned(vec![0; 10]);
    for (index, is_known) in [(last, true), (last + 1, false), (u32::MAX, false)] {
        let handle = Handle::new(index, 1);
        view.publish(handle, A, &memory, (0, 10), BOTH);
        assert_eq!(reader.enter().source(A, &Span::new(handle, 0), 10).is_some(), is_known, "{index}");
        view.kill(index);
    }
    assert_eq!(view.retire().len(), 1);
    assert!(memory.into_owned().is_ok(), "the view keeps memory of no entry that it has not");
}

#[test]
fn copies_what_rights_and_bounds_allow() {
    let view = view();
    let mut reader = view.reader().unwrap();
    let from = Mapping::owned((0..100).collect());
    let to = Mapping::owned(vec![0; 100]);
    let [one, other, fixed] =
        [(3, 1), (5000, 7), (1, 1)].map(|(index, generation)| Handle::new(index, generation));
    view.publish(one, A, &from, (10, 80), BOTH);
    view.publish(other, A, &to, (0, 50), BOTH);
    view.publish(fixed, A, &to, (0, 100), Rights::READ);
    assert_eq!(copied(&mut reader, A, Span::new(one, 5), Span::new(other, 2), 8), Some(Ok(())));
    let mut bytes = [0; 12];
    to.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 15, 16, 17, 18, 19, 20, 21, 22, 0, 0]);
    let mut refused =
        |session, from, to, length| assert_eq!(copied(&mut reader, session, from, to, length), None);
    refused(B, Span::new(one, 0), Span::new(other, 0), 1);
    refused(A, Span::new(one, 73), Span::new(other, 0), 8);
    refused(A, Span::new(one, u64::MAX), Span::new(other, 0), 8);
    refused(A, Span::new(one, 0), Span::new(fixed, 0), 8);
    refused(A, Span::new(Handle::new(3, 2), 0), Span::new(other, 0), 8);
    refused(A, Span::new(Handle::new(u32::MAX, 1), 0), Span::new(other, 0), 8);
    refused(A, Span::new(Handle::new(0, 0), 0), Span::new(other, 0), 8);
}

#[test]
fn ranges_outside_their_memory_are_ignored() {
    let view = view();
    let memory = Mapping::owned(vec![0; 10]);
    for range in [(0, 11), (10, 1), (u64::MAX, 2)] {
        view.publish(Handle::new(0, 1), A, &memory, range, BOTH);
    }
    assert!(view.reader().unwrap().enter().source(A, &Span::new(Handle::new(0, 1), 0), 0).is_none());
    assert!(memory.into_owned().is_ok(), "the view keeps memory of no entry");
}

#[test]
fn killed_memory_is_kept_until_it_retires() {
    let view = view();
    let memory = Mapping::owned(vec![0; 10]);
    let handle = Handle::new(7, 1);
    view.publish(handle, A, &memory, (0, 10), BOTH);
    view.kill(handle.index());
    let memory = memory.into_owned().unwrap_err();
    assert_eq!(view.retire().len(), 1);
    assert!(view.retire().is_empty());
    // An entry that takes the place of a living one kills it, and the table's end releases the rest.
    view.publish(Handle::new(7, 2), A, &memory, (0, 10), BOTH);
    view.publish(Handle::new(7, 3), A, &memory, (0, 5), BOTH);
    assert_eq!(view.retire().len(), 1);
    drop(view);
    assert!(memory.into_owned().is_ok());
}

/// Two threads copy into memory that is revoked again and again, each into its own part. After each `retire` its bytes stay as they
/// are; Miri also reports a write that nothing orders before it.
#[test]
fn nothing_is_written_after_retire() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    const REVOCATIONS: u32 = if cfg!(miri) { 5 } else { 700 };
    // Each of them lets Miri run another thread, and a copy is slow there.
    const SPINS: u32 = if cfg!(miri) { 20 } else { 2000 };
    let view = view();
    let source = Mapping::owned(vec![7; 64]);
    let from = Handle::new(0, 1);
    view.publish(from, A, &source, (0, 64), BOTH);
    let generation = AtomicU64::new(0);
    let copies = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for part in [0, 64] {
            let mut reader = view.reader().unwrap();
            let generation = &generation;
            let copies = &copies;
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let to = Handle::new(1, generation.load(Ordering::Relaxed) as u32);
                    let done = copied(&mut reader, A, Span::new(from, 0), Span::new(to, part), 64);
                    copies.fetch_add(u64::from(done.is_some()), Ordering::Relaxed);
                }
            });
        }
        for round in 1..=REVOCATIONS {
            let memory = Mapping::owned(vec![0; 128]);
            let before = copies.load(Ordering::Relaxed);
            view.publish(Handle::new(1, round), A, &memory, (0, 128), BOTH);
            generation.store(u64::from(round), Ordering::Relaxed);
            // Usually the copying threads find it by themselves, but some rounds make sure.
            while round % 64 == 1 && copies.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            view.kill(1);
            assert_eq!(view.retire().len(), 1);
            memory.write(0, &[1; 128]).unwrap();
            // Time for the copying threads to do what they must not do.
            (0..SPINS).for_each(|_| std::hint::spin_loop());
            let mut bytes = [0; 128];
            memory.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [1; 128], "revocation {round}: bytes were written after it");
        }
        stop.store(true, Ordering::Relaxed);
    });
}
