//! Batches: lists, counts, fences, faults on lists (3.8, 3.9, 8.3.2).

use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation};
use memferry_dsa_registers::record::{Record, Status};

use super::support::{BASE, Board, LIST, moved, pattern};

const NONE: Flags = Flags::new();

/// Lists descriptors and submits them; the batch descriptor.
fn list(board: &mut Board, children: &[Descriptor]) -> Descriptor {
    for (index, child) in children.iter().enumerate() {
        board.put(LIST + 64 * index as u64, &child.words);
    }
    board.describe(Operation::Batch { list: LIST, count: children.len() as u32 }, NONE)
}

fn fill(board: &mut Board, value: u64, to: u64, bytes: u32, fence: bool) -> Descriptor {
    let pattern = value * 0x0101_0101_0101_0101;
    board.describe(Operation::Fill { pattern, destination: BASE + to, bytes }, NONE.with_fence(fence))
}

#[test]
fn a_batch_completes_after_its_descriptors() {
    let mut board = Board::dedicated();
    let children: Vec<Descriptor> = (0..40)
        .map(|index| board.describe(moved(0x100 * index, 0x8000 + 0x100 * index, 0x100), NONE))
        .collect();
    let batch = list(&mut board, &children);
    board.post(&batch);
    while board.status(&batch) == 0 {
        let wake = board.dsa.next_wake().expect("it ends");
        board.dsa.step(wake);
    }
    assert!(children.iter().all(|child| board.status(child) == 1));
    assert_eq!((board.record(&batch).head.status(), board.record(&batch).head.completed()), (1, 40));
    assert!(board.memory(BASE + 0x8000, 0x2800) == &pattern()[..0x2800]);
}

#[test]
fn counts_and_places_of_lists_are_checked() {
    for (count, offset, status) in [
        (0, 0, Status::InvalidCount),
        (1, 0, Status::InvalidCount),
        (65, 0, Status::InvalidCount),
        (u32::MAX, 0, Status::InvalidCount),
        (2, 32, Status::ListMisaligned),
    ] {
        let mut board = Board::dedicated();
        let batch = board.describe(Operation::Batch { list: LIST + offset, count }, NONE);
        assert_eq!(board.execute(&batch).head.status(), status.code(), "{count} at +{offset}");
        assert_eq!(board.dsa.pending(), 0);
    }
    let mut board = Board::dedicated();
    let foreign = board.describe(Operation::Batch { list: 0x40, count: 2 }, NONE);
    assert_eq!(board.execute(&foreign).head.status(), Status::ReadError.code());
}

#[test]
fn no_batch_or_drain_in_a_batch() {
    let mut board = Board::dedicated();
    let inner = board.describe(Operation::Batch { list: LIST, count: 2 }, NONE);
    let drain = board.describe(Operation::Drain, NONE);
    let batch = list(&mut board, &[inner, drain]);
    let record = board.execute(&batch);
    assert_eq!((record.head.status(), record.head.completed()), (5, 2));
    let unsupported = Status::UnsupportedOperation.code();
    assert_eq!((board.status(&inner), board.status(&drain)), (unsupported, unsupported));
}

#[test]
fn fences_order_and_failures_stop_at_them() {
    let mut board = Board::dedicated();
    let children: Vec<Descriptor> =
        (1..=8).map(|value| fill(&mut board, value, 0x4000, 6000 - 700 * value as u32, true)).collect();
    let batch = list(&mut board, &children);
    assert_eq!(board.execute(&batch).head.status(), 1);
    let bytes = board.memory(BASE + 0x4000, 6000);
    assert_eq!((bytes[0], bytes[399], bytes[400], bytes[5299]), (8, 8, 7, 1));
    let first = fill(&mut board, 1, 0x6000, 100, false);
    let bad = board.describe(moved(0, 0x7000, 0), NONE);
    let beside = fill(&mut board, 2, 0x8000, 100, false);
    let fenced = fill(&mut board, 3, 0x9000, 100, true);
    let last = fill(&mut board, 4, 0xA000, 100, false);
    let batch = list(&mut board, &[first, bad, beside, fenced, last]);
    let record = board.execute(&batch);
    assert_eq!((record.head.status(), record.head.completed()), (5, 3));
    let statuses = [first, bad, beside, fenced, last].map(|child| board.status(&child));
    assert_eq!(statuses, [1, Status::InvalidSize.code(), 1, 0, 0], "what is behind the fence is abandoned");
}

#[test]
fn an_unexpected_result_counts_as_failure() {
    let mut board = Board::dedicated();
    let compare = Operation::Compare { first: BASE, second: BASE + 0x4000, bytes: 64 };
    let checked = board.describe(compare, NONE.with_check_result(true));
    let fenced = fill(&mut board, 3, 0x9000, 100, true);
    let batch = list(&mut board, &[checked, fenced]);
    let record = board.execute(&batch);
    assert_eq!((record.head.status(), record.head.completed(), board.status(&fenced)), (5, 1, 0));
}

#[test]
fn a_fault_on_the_list_executes_what_was_read() {
    let mut board = Board::dedicated();
    let start = LIST + 0x1000 - 128;
    let children: Vec<Descriptor> = (0..6)
        .map(|index| board.describe(moved(0x100 * index, 0x8000 + 0x100 * index, 0x100), NONE))
        .collect();
    for (index, child) in children.iter().enumerate() {
        board.put(start + 64 * index as u64, &child.words);
    }
    board.dsa.faults().absent(LIST + 0x1000);
    let batch = board.describe(Operation::Batch { list: start, count: 6 }, NONE);
    let record: Record = board.execute(&batch);
    assert_eq!((record.head.status(), record.head.completed()), (Status::BatchPageFault.code(), 2));
    assert_eq!((record.fault_address, record.head.write()), (LIST + 0x1000, false));
    assert_eq!(children.iter().map(|child| board.status(child)).collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0]);
}

#[test]
fn descriptors_overtake_each_other_without_fences() {
    let mut board = Board::dedicated();
    let long = fill(&mut board, 1, 0x1_0000, 0x2_0000, false);
    let short = fill(&mut board, 2, 0x4000, 8, false);
    let batch = list(&mut board, &[long, short]);
    board.post(&batch);
    // A further engine takes nothing of this batch; the short one waits for the engine's bursts only.
    while board.status(&short) == 0 {
        assert_eq!(board.status(&long) & 0x3E, 0);
        let wake = board.dsa.next_wake().expect("it ends");
        board.dsa.step(wake);
    }
    board.run();
    assert_eq!(board.status(&batch), 1);
}

#[test]
fn children_have_the_address_space_of_their_batch() {
    let mut board = Board::dedicated();
    let child = board.describe(Operation::Nop, NONE).with_pasid(77, true);
    let batch = list(&mut board, &[child, child]);
    assert_eq!(board.execute(&batch).head.status(), 1);
    let lost = board.describe(moved(0, 0x4000, 0), NONE);
    let silent = Descriptor::new(&moved(0, 0x4000, 0), NONE);
    let batch = list(&mut board, &[lost, silent]);
    assert_eq!(board.execute(&batch).head.status(), 5);
    let error = board.take_error();
    assert_eq!((error.status.batch(), error.batch_index), (true, 1));
}
