//! Memory a program has already: memfds registered once, and vectors that come back.

use std::os::fd::OwnedFd;

use memferry::{
    CallError, Client, Failure, Pattern, RegistrationError, RegistrationLimits, RegistrationStatistics,
    Registrations, Side, TakeBackError, fill,
};
use rustix::fs::{FallocateFlags, MemfdFlags};

use super::*;

fn memfd(length: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create("test", flags).expect("a memfd");
    rustix::fs::ftruncate(&descriptor, length).expect("its size");
    if length > 0 {
        rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, length).expect("its pages");
    }
    descriptor
}

fn cache(client: &Client, entries: usize, bytes: u64) -> Registrations {
    Registrations::new(client, RegistrationLimits { entries, bytes })
}

#[test]
fn the_same_memfd_gives_the_same_frame_by_whatever_descriptor() {
    let client = client();
    let cache = cache(&client, 10, 1 << 20);
    let one = memfd(4096);
    let other = memfd(8192);
    let again = one.try_clone().expect("a duplicate");
    let first = cache.memfd(&one).expect("taken");
    let second = cache.memfd(&again).expect("known");
    assert_eq!((first.handle(), first.length()), (second.handle(), 4096));
    assert_ne!(cache.memfd(&other).expect("taken").handle(), first.handle());
    let expected = RegistrationStatistics { hits: 1, misses: 2, evictions: 0, entries: 2, bytes: 3 * 4096 };
    assert_eq!(cache.statistics(), expected);
    assert_eq!(client.status().expect("a status").sessions[0].frames, 2);

    second.write(5, b"shared").expect("its own bytes");
    let mut read = [0; 6];
    rustix::io::pread(&one, &mut read, 5).expect("the file");
    assert_eq!(&read, b"shared");
}

#[test]
fn threads_register_a_memfd_once() {
    let client = client();
    let cache = cache(&client, 10, 1 << 20);
    let descriptor = memfd(4096);
    let handles: Vec<_> = std::thread::scope(|scope| {
        let register = || cache.memfd(&descriptor).expect("taken").handle();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(register)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(handles.iter().all(|handle| *handle == handles[0]));
    assert_eq!((cache.statistics().misses, cache.statistics().hits), (1, 3));
}

#[test]
fn the_longest_unused_is_evicted_and_what_is_in_use_never() {
    let client = client();
    let cache = cache(&client, 3, 4 * 4096);
    let files: Vec<_> = (0..5).map(|_| memfd(4096)).collect();
    let held = cache.memfd(&files[0]).expect("taken");
    let second = cache.memfd(&files[1]).expect("taken").handle();
    cache.memfd(&files[2]).expect("taken");
    assert_eq!(cache.memfd(&files[1]).expect("known").handle(), second);
    cache.memfd(&files[3]).expect("taken, the third is gone");
    assert_eq!(cache.memfd(&files[1]).expect("still known").handle(), second);
    assert_eq!(cache.memfd(&files[0]).expect("still known").handle(), held.handle());
    assert_eq!((cache.statistics().evictions, cache.statistics().entries), (1, 3));

    let large = cache.memfd(memfd(3 * 4096)).expect("room for its bytes is made");
    assert_eq!((cache.statistics().evictions, cache.statistics().bytes), (3, 4 * 4096));
    let Err(refused) = cache.memfd(&files[4]) else { panic!("what is in use was evicted") };
    assert!(matches!(refused, RegistrationError::Full { wanted: 4096, memory: None, .. }), "{refused}");
    drop(large);
    cache.memfd(&files[4]).expect("room again");
    assert_eq!(client.status().expect("a status").sessions[0].frames, 2);
}

#[test]
fn an_invalidated_frame_is_of_no_use_and_is_registered_anew() {
    let client = client();
    let cache = cache(&client, 3, 1 << 20);
    let file = memfd(4096);
    let stale = cache.memfd(&file).expect("taken");
    let mut queue = client.queue(4).expect("a queue");
    let running = queue.submit(endless(&stale)).expect("room");
    cache.invalidate(&stale).expect("revoked");
    stale.write(0, &[0]).expect("its own bytes");
    end_of(&mut queue, running).expect_err("its memory was taken away");
    assert_eq!(contents(&stale)[0], 0, "the engine wrote after the revocation");
    assert!(matches!(cache.invalidate(&stale), Err(CallError::Refused(_))));
    let fresh = cache.memfd(&file).expect("taken again");
    assert_ne!(fresh.handle(), stale.handle());
    let late = queue.submit(fill(&stale, Pattern::Byte(1))).expect("room");
    let refused = Failure::StaleHandle { side: Side::Destination, handle: stale.handle() };
    assert_eq!(outcome(end_of(&mut queue, late)), Err(refused));
}

#[test]
fn owned_memory_comes_back_with_what_was_moved_there() {
    let client = client();
    let cache = cache(&client, 3, 1 << 20);
    let mut queue = client.queue(4).expect("a queue");
    let memory = vec![1; 100];
    let address = memory.as_ptr();
    let frame = cache.owned(memory).expect("taken");
    let running = queue.submit(endless(&frame)).expect("room");
    let Err(TakeBackError::Shared(frame)) = cache.take_back(frame) else { panic!("an engine writes there") };
    assert_eq!(cache.statistics().entries, 1);
    queue.cancel(running).expect("outstanding");
    end_of(&mut queue, running).expect_err("cancelled");
    let filled = queue.submit(fill(&frame, Pattern::Byte(7))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, filled)), Ok(100));
    let memory = cache.take_back(frame).expect("nobody else holds it");
    assert_eq!((memory.as_ptr(), memory), (address, vec![7; 100]));
    assert_eq!((cache.statistics().entries, cache.statistics().bytes), (0, 0));
    assert_eq!(client.status().expect("a status").sessions[0].frames, 0);
}

#[test]
fn a_frame_gives_its_vector_back_only_to_its_last_holder() {
    let client = client();
    let frame = client.register_owned(vec![3; 10]).expect("taken");
    let region = frame.slice(..1);
    let Err(TakeBackError::Shared(frame)) = frame.into_owned() else { panic!("a region holds it") };
    drop(region);
    frame.revoke().expect("revoked");
    assert_eq!(frame.into_owned().expect("revoked before, and nobody else's"), [3; 10]);
    let allocated = self::frame(&client);
    assert!(matches!(allocated.into_owned(), Err(TakeBackError::NotOwned(_))));
}

#[test]
fn what_is_no_frame_is_refused_and_owned_memory_comes_back_from_a_full_cache() {
    let client = client();
    let cache = cache(&client, 1, 1 << 20);
    assert!(matches!(cache.memfd(memfd(0)), Err(RegistrationError::Frame(_))));
    let file = std::fs::File::open("/proc/self/exe").expect("this program");
    let refused = cache.memfd(&file);
    assert!(matches!(refused, Err(RegistrationError::Full { .. } | RegistrationError::Frame(_))));
    let _held = cache.owned(vec![1]).expect("taken");
    let Err(RegistrationError::Full { memory, .. }) = cache.owned(vec![2; 5]) else { panic!("it is full") };
    assert_eq!(memory, Some(vec![2; 5]));
    assert!(cache.memfd(memfd(4096)).is_err(), "owned memory is not evicted");
    assert_eq!(cache.statistics().entries, 1);
}
