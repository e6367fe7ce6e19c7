//! Memory of the program: memfds that become frames, and vectors that are taken back.

use std::os::fd::OwnedFd;

use memferry::{CallError, Failure, FrameError, Pattern, Region, Side, TakeBackError, fill};
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

#[test]
fn a_memfd_and_its_frame_share_bytes() {
    let client = client();
    let file = memfd(4096);
    let frame = client.register_memfd(file.try_clone().expect("a duplicate"), 4096).expect("taken");
    assert_eq!(client.status().expect("a status").sessions[0].frames, 1);
    frame.write(5, b"shared").expect("access to the frame");
    let mut read = [0; 6];
    rustix::io::pread(&file, &mut read, 5).expect("the file");
    assert_eq!(&read, b"shared");
}

#[test]
fn bad_sizes_and_other_files_are_refused() {
    let client = client();
    assert!(matches!(client.register_memfd(memfd(0), 0), Err(FrameError::Call(CallError::Refused(_)))));
    assert!(matches!(client.register_memfd(memfd(4096), 8192), Err(FrameError::Call(CallError::Refused(_)))));
    let program = std::fs::File::open("/proc/self/exe").expect("this program");
    let length = program.metadata().expect("its size").len();
    let refused = client.register_memfd(program.into(), length);
    assert!(matches!(refused, Err(FrameError::Call(CallError::Refused(_)))));
}

#[test]
fn a_revoked_memfd_can_be_registered_again() {
    let client = client();
    let file = memfd(4096);
    let register = || client.register_memfd(file.try_clone().expect("a duplicate"), 4096).expect("taken");
    let stale = register();
    let mut queue = client.queue(4).expect("a queue");
    let running = queue.submit(endless(&stale)).expect("room");
    stale.revoke().expect("revoked");
    stale.write(0, &[0]).expect("access to the frame");
    end_of(&mut queue, running).expect_err("its frame was revoked");
    assert_eq!(contents(&stale)[0], 0, "the engine wrote after the revocation");
    assert!(matches!(stale.revoke(), Err(CallError::Refused(_))));
    assert_ne!(register().handle(), stale.handle());
    let late = queue.submit(fill(&stale, Pattern::Byte(1))).expect("room");
    let refused = Failure::StaleHandle { side: Side::Destination, handle: stale.handle() };
    assert_eq!(outcome(end_of(&mut queue, late)), Err(refused));
}

#[test]
fn into_owned_returns_the_moved_bytes() {
    let client = client();
    let mut queue = client.queue(4).expect("a queue");
    let memory = vec![1; 100];
    let address = memory.as_ptr();
    let frame = client.register_owned(memory).expect("taken");
    let running = queue.submit(endless(&frame)).expect("room");
    let Err(TakeBackError::Shared(frame)) = frame.into_owned() else { panic!("a transfer is running") };
    queue.cancel(running).expect("an outstanding transfer");
    assert_eq!(outcome(end_of(&mut queue, running)), Err(Failure::Cancelled));
    let filled = queue.submit(fill(&frame, Pattern::Byte(7))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, filled)), Ok(100));
    let memory = frame.into_owned().expect("the only holder");
    assert_eq!((memory.as_ptr(), memory), (address, vec![7; 100]));
    assert_eq!(client.status().expect("a status").sessions[0].frames, 0);
}

#[test]
fn only_the_last_holder_gets_the_vector() {
    let client = client();
    let frame = client.register_owned(vec![3; 10]).expect("taken");
    let region = Region::from(&frame);
    let Err(TakeBackError::Shared(frame)) = frame.into_owned() else { panic!("a region holds it") };
    drop(region);
    frame.revoke().expect("revoked");
    assert_eq!(frame.into_owned().expect("the only holder of a revoked frame"), [3; 10]);
    let allocated = self::frame(&client);
    assert!(matches!(allocated.into_owned(), Err(TakeBackError::NotOwned(_))));
}
