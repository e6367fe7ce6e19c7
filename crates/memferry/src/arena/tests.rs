//! Slices of an arena whose copy an engine failed at.

use allocator_api2::vec::Vec as ArenaVec;
use memferry_transfer::EngineKind;

use super::*;
use crate::Client;
use crate::queue::played::{FAULTED, PlayedWorker};

/// Longer than what is done on the thread that submits it.
const BYTES: usize = 1 << 20;

#[test]
fn a_failed_engine_writes_beside_its_destination() {
    let client = Client::embedded().unwrap();
    let arena = client.arena(ArenaOptions::default()).unwrap();
    let list = |value: u8| {
        let mut list = ArenaVec::new_in(arena.allocator());
        list.resize(BYTES, value);
        list
    };
    let from = list(3);
    let mut to = list(1);
    let (mut queue, mut worker) = PlayedWorker::beside(&client, 4);
    let (copied, late) = std::thread::scope(|scope| {
        let late = scope.spawn(|| worker.end(FAULTED, EngineKind::Module));
        (arena.copy(&mut queue, &from, &mut to), late.join().unwrap())
    });
    assert_eq!(copied, Err(CopyError::Failed(Failure::ChannelFaulted)));
    to.fill(5);
    client.queue(2).unwrap().run(late).unwrap();
    assert!(to.iter().all(|byte| *byte == 5), "it is written under a reference");
    let refused = arena.copy(&mut queue, &from, &mut to);
    assert_eq!(refused, Err(CopyError::NotInArena(Side::Destination)), "its memory was taken out of use");
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
    assert!(to.iter().all(|byte| *byte == 1), "the memory is as it was");
}
