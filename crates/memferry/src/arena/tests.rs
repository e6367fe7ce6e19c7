//! Slices of an arena whose copy an engine failed at.

use allocator_api2::vec::Vec as ArenaVec;
use memferry_transfer::EngineKind;

use super::*;
use crate::queue::played::{FAULTED, PlayedWorker};

/// Longer than what is done on the thread that submits it.
const BYTES: usize = 1 << 20;

#[test]
fn what_a_failed_engine_still_writes_misses_the_slice_that_was_its_destination() {
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
    assert_eq!(client.queue(2).unwrap().perform(late).unwrap().outcome, Ok(()));
    assert!(to.iter().all(|byte| *byte == 5), "it is written under a reference");
    let refused = arena.copy(&mut queue, &from, &mut to);
    assert_eq!(refused, Err(CopyError::NotInArena(Side::Destination)), "its memory was taken out of use");
}
