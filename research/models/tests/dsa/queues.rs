//! Work queues: modes, thresholds, priorities, drains and aborts (3.3, 3.12, 3.15, 4.1).

use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::control::{Command, CommandError, QueueSet};
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation, opcode};
use memferry_dsa_registers::offset::{Portal, portal};
use memferry_dsa_registers::table::{QueueState, QueueStatus, word};
use memferry_models::dsa::{Config, Reason};

use super::support::{Board, DEDICATED, SHARED, TABLES, Wq, moved};

const NONE: Flags = Flags::new();

fn long(board: &mut Board) -> Descriptor {
    board.describe(moved(0, 0x4_0000, 0x2_0000), NONE)
}

fn state(board: &mut Board, queue: u32) -> QueueStatus {
    QueueStatus::from_bits(board.dsa.read32(TABLES.queue(queue, word::STATUS)))
}

#[test]
fn a_full_dedicated_queue_drops_and_reports() {
    let mut board = Board::dedicated();
    let all: Vec<Descriptor> = (0..17).map(|_| long(&mut board)).collect();
    all.iter().for_each(|descriptor| board.post(descriptor));
    assert_eq!(state(&mut board, 0).occupancy(), 16);
    board.run();
    assert_eq!(all.iter().filter(|descriptor| board.status(descriptor) == 1).count(), 16);
    let error = board.take_error();
    assert_eq!(
        (error.status.code(), error.status.queue(), error.status.descriptor_valid()),
        (0x53, 0, false)
    );
}

#[test]
fn a_shared_queue_answers_by_its_threshold() {
    let mut board = Board::new(&[SHARED]);
    let nop = Descriptor::new(&Operation::Nop, NONE);
    let fill = |board: &mut Board, kind| {
        core::iter::repeat_with(|| board.dsa.enqueue(portal(0, kind), nop.words))
            .take_while(|taken| *taken)
            .count()
    };
    assert_eq!(fill(&mut board, Portal::Limited), 12);
    assert_eq!(fill(&mut board, Portal::Unlimited), 4);
    assert_eq!(fill(&mut board, Portal::Limited), 0);
    board.run();
    board.dsa.write32(TABLES.queue(0, word::THRESHOLD), 99);
    assert_eq!(fill(&mut board, Portal::Limited), 16, "a threshold beyond the size is the size");
    assert_eq!(board.reasons(), []);
}

#[test]
fn stores_of_the_wrong_kind_are_dropped() {
    let mut board = Board::new(&[DEDICATED, SHARED]);
    let nop = board.describe(Operation::Nop, NONE);
    assert!(!board.dsa.enqueue(portal(0, Portal::Limited), nop.words));
    board.dsa.post(portal(1, Portal::Limited), nop.words);
    board.dsa.post(portal(2, Portal::Limited), nop.words);
    board.dsa.post(portal(8, Portal::Limited), nop.words);
    board.dsa.post(portal(0, Portal::Limited) + 8, nop.words);
    board.dsa.post(portal(0, Portal::LimitedIms), nop.words);
    board.dsa.ignore_portal_write(0);
    assert_eq!(board.dsa.read_portal(0), 0xFF);
    board.run();
    assert_eq!(board.status(&nop), 0);
    let reasons = [
        Reason::DeferrableToDedicated,
        Reason::PostedToShared,
        Reason::QueueNotEnabled,
        Reason::NoPortal,
        Reason::NoPortal,
        Reason::NoPortal,
        Reason::NoPortal,
        Reason::PortalRead,
    ];
    assert_eq!(board.reasons(), reasons);
    board.dsa.post(portal(0, Portal::Unlimited) + 0x7C0, nop.words);
    board.run();
    assert_eq!(board.status(&nop), 1, "any line of the page is the portal");
}

#[test]
fn priorities_share_the_engine() {
    let queue = |priority| Wq { size: 40, mode: DEDICATED.mode.with_priority(priority), ..DEDICATED };
    let mut board = Board::engines(Config::default(), 1, &[queue(6), queue(2)]);
    let mut posted: Vec<(u32, Descriptor)> = Vec::new();
    for _ in 0..40 {
        for index in 0..2 {
            let descriptor = board.describe(moved(0, 0x4_0000, 2048), NONE);
            board.dsa.post(portal(index, Portal::Limited), descriptor.words);
            posted.push((index, descriptor));
        }
    }
    while posted.iter().filter(|(_, descriptor)| board.status(descriptor) == 1).count() < 32 {
        let wake = board.dsa.next_wake().expect("they end");
        board.dsa.step(wake);
    }
    let of_first =
        posted.iter().filter(|(queue, descriptor)| *queue == 0 && board.status(descriptor) == 1).count();
    assert_eq!(of_first, 24, "three to one of 32");
}

#[test]
fn groups_keep_to_their_engines() {
    let mut board = Board::with(Config::default());
    board.group(0, 0b01, 0b0001);
    board.group(1, 0b10, 0b0010);
    board.queue(0, &DEDICATED);
    board.queue(1, &DEDICATED);
    assert_eq!(board.command(Command::EnableDevice), None);
    (0..2).for_each(|queue| assert_eq!(board.command(Command::EnableQueue(queue)), None));
    board.dsa.faults().stick(0);
    let first = long(&mut board);
    let second = long(&mut board);
    board.dsa.post(portal(0, Portal::Limited), first.words);
    board.dsa.post(portal(1, Portal::Limited), second.words);
    board.run();
    assert_eq!((board.status(&first), board.status(&second)), (0, 1));
    board.dsa.faults().release(0);
    let now = board.dsa.now();
    board.dsa.step(now);
    board.run();
    assert_eq!(board.status(&first), 1);
}

#[test]
fn a_drain_descriptor_waits_for_its_queue_and_address_space() {
    let mut board = Board::new(&[SHARED]);
    let of = |board: &mut Board, pasid, operation| {
        let descriptor = board.describe(operation, NONE).with_pasid(pasid, false);
        assert!(board.dsa.enqueue(portal(0, Portal::Limited), descriptor.words));
        descriptor
    };
    let mine = of(&mut board, 1, moved(0, 0x4_0000, 0x1000));
    let other = of(&mut board, 2, moved(0, 0x6_0000, 0x3_0000));
    let drain = of(&mut board, 1, Operation::Drain);
    while board.status(&drain) == 0 {
        let wake = board.dsa.next_wake().expect("it ends");
        board.dsa.step(wake);
    }
    assert_eq!((board.status(&mine), board.status(&other)), (1, 0));
    board.run();
    assert_eq!(board.status(&other), 1);
}

#[test]
fn drain_and_abort_wait_for_what_engines_have() {
    for (command, all) in [
        (Command::DrainQueues(QueueSet::one(0)), true),
        (Command::AbortQueues(QueueSet::one(0)), false),
        (Command::DrainAll, true),
        (Command::AbortAll, false),
    ] {
        let mut board = Board::dedicated();
        let posted: Vec<Descriptor> = (0..16).map(|_| long(&mut board)).collect();
        posted.iter().for_each(|descriptor| board.post(descriptor));
        assert_eq!(board.command(command), None);
        assert_eq!(board.dsa.pending(), 0);
        let done = posted.iter().filter(|descriptor| board.status(descriptor) == 1).count();
        assert_eq!(done == 16, all, "{command:?}: {done} are done");
        board.run();
        assert_eq!(done, posted.iter().filter(|descriptor| board.status(descriptor) == 1).count());
    }
}

#[test]
fn pasids_are_aborted_by_themselves() {
    let mut board = Board::new(&[SHARED]);
    let mut all: Vec<(u32, Descriptor)> = Vec::new();
    for pasid in [1, 2, 1, 2, 1, 2] {
        let descriptor = long(&mut board).with_pasid(pasid, false);
        assert!(board.dsa.enqueue(portal(0, Portal::Limited), descriptor.words));
        all.push((pasid, descriptor));
    }
    assert_eq!(board.command(Command::AbortPasid(1)), None);
    board.run();
    for (pasid, descriptor) in &all {
        assert_eq!(board.status(descriptor), u8::from(*pasid == 2));
    }
    assert_eq!(board.command(Command::DrainPasid(2)), None);
}

#[test]
fn a_disabled_queue_ends_what_it_has_and_takes_no_more() {
    let mut board = Board::dedicated();
    let before = long(&mut board);
    board.post(&before);
    let set = QueueSet::one(0);
    board
        .dsa
        .write32(memferry_dsa_registers::offset::CMD, Command::DisableQueues(set).encode(false).into_bits());
    let after = long(&mut board);
    board.post(&after);
    assert_eq!(state(&mut board, 0).state(), QueueState::Draining);
    assert_eq!(board.ended(), None);
    assert_eq!(state(&mut board, 0).state(), QueueState::Disabled);
    assert_eq!((board.status(&before), board.status(&after)), (1, 0));
    assert_eq!(board.reasons(), [Reason::QueueNotEnabled]);
    assert_eq!(board.command(Command::DrainQueues(set)), Some(CommandError::QueueNotEnabled));
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::SIZE)), 16, "the configuration stays");
    assert_eq!(board.command(Command::ResetQueues(set)), None);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::SIZE)), 16, "the size, too");
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::MODE)), 0);
    assert!(board.dsa.read32(TABLES.queue(0, word::OPERATIONS)) >> opcode::MOVE & 1 == 1);
}
