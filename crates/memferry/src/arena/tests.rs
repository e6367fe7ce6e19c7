//! Copies between slices that an engine fails at.

use allocator_api2::vec::Vec as ArenaVec;
use memferry_transfer::EngineKind;

use super::*;
use crate::Client;
use crate::queue::tests::scripted_worker::{FAULTED, ScriptedWorker};

/// Too long to be done on the submitting thread.
const BYTES: usize = 1 << 20;

#[test]
fn late_writes_of_a_failed_engine_are_diverted() {
    let client = Client::embedded().unwrap();
    let arena = client.arena(ArenaOptions::default()).unwrap();
    let list = |value: u8| {
        let mut list = ArenaVec::new_in(arena.allocator());
        list.resize(BYTES, value);
        list
    };
    let from = list(3);
    let mut to = list(1);
    let (mut queue, mut worker) = ScriptedWorker::with_queue(&client, 4);
    let (copied, late) = std::thread::scope(|scope| {
        let late = scope.spawn(|| worker.complete(FAULTED, EngineKind::Module));
        (arena.copy(&mut queue, &from, &mut to), late.join().unwrap())
    });
    assert_eq!(copied, Err(CopyError::Failed(Failure::ChannelFaulted)));
    to.fill(5);
    client.queue(2).unwrap().run(late).unwrap();
    assert!(to.iter().all(|byte| *byte == 5), "the engine wrote to bytes that are referenced");
    let refused = arena.copy(&mut queue, &from, &mut to);
    assert_eq!(refused, Err(CopyError::NotInArena(Side::Destination)), "the memory is out of use");
}

#[test]
fn a_revoked_segment_fails_a_copy() {
    let client = Client::embedded().unwrap();
    let arena = client.arena(ArenaOptions::default()).unwrap();
    let mut queue = client.queue(4).unwrap();
    let mut from = ArenaVec::new_in(arena.allocator());
    from.resize(8192, 3u8);
    let mut to = ArenaVec::new_in(arena.allocator());
    to.resize(8192, 1u8);
    let (segment, _) = arena.arena.locate_slice(&from).unwrap();
    segment.0.revoke().unwrap();
    assert!(matches!(arena.copy(&mut queue, &from, &mut to), Err(CopyError::Failed(_))));
    assert!(to.iter().all(|byte| *byte == 1), "the destination changed");
}
