//! Arenas and memfd frames of a remote service: a service that dies, and a client that forks.

#![expect(unsafe_code, reason = "forks")]

mod harness;

use allocator_api2::vec::Vec as ArenaVec;
use harness::Service;
use memferry::{
    AccessError, ArenaOptions, BufferError, CallError, Color24, CopyError, Count2d, Failure, Fill2d,
    FrameArena, FrameError, PixelSize, Plane, fill_2d,
};
use memferry_shm::frame::{self, Pages};
use rustix::process::Signal;

fn arena(service: &Service) -> (memferry::Client, FrameArena) {
    let client = service.client();
    let arena = client.arena(ArenaOptions { segment_bytes: 64 << 10, ..ArenaOptions::default() }).unwrap();
    (client, arena)
}

fn is_lost(error: &BufferError) -> bool {
    error.to_string().contains("the service was lost")
}

#[test]
fn buffers_of_lost_transfers_are_not_reused() {
    let mut service = Service::start(&[]);
    let (client, arena) = arena(&service);
    let mut queue = client.queue(4).unwrap();
    let kept = arena.buffer(100).unwrap();
    let buffer = arena.buffer(4096).unwrap();
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    let endless = Fill2d { count, destination, color: Color24::new(7).unwrap() };
    let ticket = queue.submit(fill_2d(&buffer, endless)).unwrap();
    service.signal(Signal::KILL);
    service.wait();
    assert_eq!(harness::failure(&mut queue, ticket), Failure::ServiceLost);
    drop(buffer);
    assert_eq!(arena.statistics().abandoned_bytes, 4096);
    // The room that exists can still be used; no more can be added.
    kept.write(0, b"still here").unwrap();
    let errors: Vec<_> =
        (0..100).filter_map(|_| arena.buffer(40 << 10).map(std::mem::forget).err()).collect();
    assert!(errors.len() >= 99 && errors.iter().all(is_lost), "{errors:?}");
    let mut list: ArenaVec<u8, _> = ArenaVec::new_in(arena.allocator());
    assert!(list.try_reserve(1 << 20).is_err());
    drop(kept);
}

#[test]
fn a_slice_copy_fails_with_a_lost_service() {
    let mut service = Service::start(&[]);
    let (client, arena) = arena(&service);
    let mut queue = client.queue(4).unwrap();
    let mut from = ArenaVec::new_in(arena.allocator());
    let mut to = ArenaVec::new_in(arena.allocator());
    from.resize(20_000, 1_u8);
    to.resize(20_000, 2_u8);
    arena.copy(&mut queue, &from, &mut to[..10_000]).expect_err("different lengths");
    assert_eq!(arena.copy(&mut queue, &from, &mut to).unwrap().by_engine, 16_384);
    assert_eq!(from, to);
    // A stopped service can take the request but never serve it.
    service.stop();
    let ended = std::thread::scope(|scope| {
        let copy = scope.spawn(|| arena.copy(&mut queue, &from, &mut to));
        service.signal(Signal::KILL);
        service.wait();
        copy.join().unwrap()
    });
    assert!(
        matches!(ended, Err(CopyError::Failed(Failure::ServiceLost) | CopyError::Submit(_))),
        "{ended:?}"
    );
    to.fill(9);
    assert!(to.iter().all(|byte| *byte == 9) && from.iter().all(|byte| *byte == 1));
    assert!(arena.copy(&mut queue, &from, &mut to).is_err());
}

#[test]
fn a_lost_service_registers_no_memory() {
    let mut service = Service::start(&[]);
    let client = service.client();
    let (memfd, _mapping) = frame::allocate(4096, Pages::Ordinary).unwrap();
    service.signal(Signal::KILL);
    service.wait();
    let refused = client.register_memfd(memfd, 4096);
    assert!(matches!(refused, Err(FrameError::Call(CallError::ServiceLost))));
    assert!(matches!(client.register_owned(vec![1]), Err(FrameError::NotEmbedded(_))));
}

#[test]
fn a_forked_child_gets_errors() {
    let service = Service::start(&[]);
    let (client, arena) = arena(&service);
    let (memfd, _mapping) = frame::allocate(4096, Pages::Ordinary).unwrap();
    let buffer = arena.buffer(5000).unwrap();
    buffer.write(0, b"parent").unwrap();
    let list = ArenaVec::<u8, _>::with_capacity_in(100, arena.allocator());
    let before = arena.statistics();
    // SAFETY: the child only makes calls that fail in a forked child, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        harness::set_alarm();
        let held = [
            matches!(arena.buffer(1), Err(BufferError::Forked(_))),
            matches!(buffer.read(0, &mut [0]), Err(AccessError::Forked(_))),
            matches!(buffer.write(0, &[1]), Err(AccessError::Forked(_))),
            matches!(client.register_memfd(memfd, 4096), Err(FrameError::Call(CallError::Forked(_)))),
        ];
        drop((list, buffer, arena));
        let failed = held.iter().filter(|held| !**held).count();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(failed as i32) };
    }
    let mut status = 0;
    // SAFETY: waits for the child forked above and writes one integer.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
    let mut bytes = [0; 6];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!((&bytes, arena.statistics()), (b"parent", before));
    arena.buffer(100_000).expect("the service still serves this client");
}
