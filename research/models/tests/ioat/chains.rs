//! Chains: the effect of descriptors, completion, suspend and resume.

use super::support::{BASE, Board, COMPLETING, copy, pattern, xor};
use memferry_registers::ioat::descriptor::{Body, Control};
use memferry_registers::ioat::offset::channel as offset;
use memferry_registers::ioat::{Chancmd, General, Intrctrl, Register, TransferState};
use memferry_registers::{NarrowIo, RegisterIo};

#[test]
fn a_chain_runs_up_to_the_count() {
    let mut board = Board::armed();
    board.chain(0, 1000, COMPLETING, copy(3, 0x2001));
    board.chain(0, 50, COMPLETING, Body::Fill { pattern: 0x0807_0605_0403_0201, destination: BASE + 0x3000 });
    board.chain(0, 700, COMPLETING, xor(&[0, 0x100, 0x205, 0x301, 0x404, 0x500, 0x77], 0x4000));
    board.chain(0, 0, COMPLETING, Body::Null);
    assert_eq!(board.state(0), TransferState::Armed);
    board.count(0);
    board.chain(0, 64, COMPLETING, copy(0, 0x5000));
    assert_eq!(board.state(0), TransferState::Active);
    board.run();
    let before = pattern();
    assert_eq!(board.memory(BASE + 0x2001, 1000), &before[3..1003]);
    assert_eq!(board.memory(BASE + 0x3000, 10), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]);
    assert_eq!(board.memory(BASE + 0x3000 + 50, 10), &before[0x3000 + 50..][..10]);
    let sources = [0, 0x100, 0x205, 0x301, 0x404, 0x500, 0x77];
    let expected: Vec<u8> =
        (0..700).map(|at| sources.iter().fold(0, |byte, source| byte ^ before[source + at])).collect();
    assert_eq!(board.memory(BASE + 0x4000, 700), expected);
    assert_eq!(board.memory(BASE + 0x5000, 64), &before[0x5000..0x5040], "beyond the count");
    // Four requests take five descriptors.
    let status = board.status(0);
    assert_eq!((status.state(), status.completed()), (TransferState::Idle, board.slot(0, 4)));
    assert_eq!(board.completion_word(0), status);
    board.count(0);
    board.run();
    assert_eq!(board.memory(BASE + 0x5000, 64), &before[..64]);
    assert_eq!(board.reasons(), []);
}

#[test]
fn an_extended_xor_completes_as_one() {
    let mut board = Board::armed();
    board.chain(0, 64, COMPLETING, xor(&[0, 64, 128, 192, 256, 320], 0x4000));
    board.count(0);
    board.run();
    assert_eq!((board.status(0).completed(), board.written[0]), (board.slot(0, 0), 2));
    assert_eq!(board.state(0), TransferState::Idle);
}

#[test]
fn a_fence_orders_reads_after_writes() {
    let mut board = Board::armed();
    board.chain(1, 4000, COMPLETING.with_fence(true), copy(0, 0x2000));
    board.chain(1, 4000, COMPLETING.with_fence(true), copy(0x2000, 0x4000));
    board.chain(1, 4000, COMPLETING, copy(0x4000, 0x6000));
    board.count(1);
    board.run();
    assert_eq!(board.memory(BASE + 0x6000, 4000), &pattern()[..4000]);
}

#[test]
fn descriptors_overlap_without_a_fence() {
    let [pipelined, fenced] = [false, true].map(|fence| {
        let mut board = Board::armed();
        for index in 0..20 {
            board.chain(0, 512, COMPLETING.with_fence(fence), copy(512 * index, 0x8000 + 512 * index));
        }
        board.count(0);
        board.run().nanoseconds()
    });
    assert!(pipelined * 10 < fenced * 9, "{pipelined} ns with overlap, {fenced} ns with fences");
}

#[test]
fn interrupts_fire_once_until_rearmed() {
    let mut board = Board::armed();
    let interrupting = COMPLETING.with_interrupt(true);
    board.chain(2, 64, interrupting, copy(0, 0x2000));
    board.count(2);
    board.run();
    assert!(!board.ioat.line(0), "the line is not enabled");
    let enabled = Intrctrl::new().with_master_enable(true);
    board.ioat.write8(General::Intrctrl.offset(), enabled.into_bits());
    assert!(board.ioat.line(0) && !board.ioat.line(1));
    let read = Intrctrl::from_bits(board.ioat.read8(General::Intrctrl.offset()));
    assert!(read.master_enable() && read.status() && read.interrupt());
    assert!(!board.ioat.line(0), "reading INTRCTRL disables the line");
    assert_eq!(board.ioat.read(General::Attnstatus.offset()), 1 << 2);
    assert_eq!(board.ioat.read(General::Attnstatus.offset()), 0, "reading ATTNSTATUS clears it");
    board.ioat.write8(General::Intrctrl.offset(), enabled.into_bits());
    for armed in [false, true] {
        if armed {
            board.ioat.write16(offset(2, Register::Chanctrl), 1);
        }
        board.chain(2, 64, interrupting, copy(0, 0x2000));
        board.count(2);
        board.run();
        assert_eq!(board.ioat.line(0), armed);
    }
}

#[test]
fn a_suspend_stops_after_a_descriptor() {
    for nanoseconds in (100..20_000).step_by(487) {
        let mut board = Board::armed();
        for index in 0..10 {
            board.chain(0, 2048, COMPLETING, copy(2048 * index, 0x10000 + 2048 * index));
        }
        board.count(0);
        board.run_until(nanoseconds);
        board.suspend(0);
        board.run();
        assert_eq!(board.state(0), TransferState::Suspended, "at {nanoseconds} ns");
        let before = pattern();
        let completed = board.status(0).completed();
        let done = (0..10).position(|index| board.slot(0, index) == completed).map_or(0, |index| index + 1);
        assert_eq!(board.memory(BASE + 0x10000, 2048 * done), &before[..2048 * done]);
        let rest = 2048 * (10 - done);
        assert_eq!(
            board.memory(BASE + 0x10000 + 2048 * done as u64, rest),
            &before[0x10000 + 2048 * done..][..rest]
        );
        assert_eq!(board.completion_word(0).completed(), completed);
        board.resume(0);
        board.run();
        assert_eq!(board.memory(BASE + 0x10000, 20_480), &before[..20_480]);
        assert_eq!((board.state(0), board.reasons()), (TransferState::Idle, vec![]));
    }
}

#[test]
fn a_suspended_channel_accepts_a_new_chain() {
    let mut board = Board::armed();
    (0..5).for_each(|index| board.chain(0, 4096, COMPLETING, copy(0, 0x10000 + 4096 * index)));
    board.count(0);
    board.run_until(1000);
    board.suspend(0);
    board.run();
    board.arm(0);
    assert_eq!((board.state(0), board.status(0).completed()), (TransferState::Armed, 0));
    board.chain(0, 64, COMPLETING, copy(0, 0x30000));
    board.count(0);
    board.run();
    assert_eq!(board.memory(BASE + 0x30000, 64), &pattern()[..64]);
    assert_eq!((board.state(0), board.reasons()), (TransferState::Idle, vec![]));
}

#[test]
fn a_reset_drops_the_chain_at_once() {
    let mut board = Board::armed();
    board.chain(0, 40_000, COMPLETING, copy(0, 0x10000));
    board.count(0);
    board.run_until(3000);
    board.command(0, Chancmd::new().with_reset(true));
    assert!(Chancmd::from_bits(board.ioat.read8(offset(0, Register::Chancmd))).reset());
    board.run();
    assert!(!Chancmd::from_bits(board.ioat.read8(offset(0, Register::Chancmd))).reset());
    assert_eq!((board.state(0), board.status(0).completed()), (TransferState::Halted, 0));
    assert_ne!(board.memory(BASE + 0x10000, 40_000), &pattern()[..40_000]);
    board.arm(0);
    board.chain(0, 64, Control::new(), copy(0, 0x30000));
    board.count(0);
    board.run();
    assert_eq!(board.memory(BASE + 0x30000, 64), &pattern()[..64]);
    assert_eq!(board.completion_word(0).completed(), 0, "no completion write was requested");
    assert_eq!(board.reasons(), []);
}
