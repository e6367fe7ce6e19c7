//! Errors: halted channels and their status, unaffected other channels, and injected faults.

use super::support::{BASE, Board, COMPLETING, copy, pattern};
use memferry_registers::RegisterIo;
use memferry_registers::ioat::descriptor::{Body, Control, opcode};
use memferry_registers::ioat::offset::channel as offset;
use memferry_registers::ioat::{Chancmd, Chanerr, Register, TransferState};

/// Runs good, spoiled, good descriptors on channel 0 and a good one on channel 1. Returns channel 0's CHANERR.
fn broken(spoil: impl FnOnce(&mut Board)) -> (Board, Chanerr) {
    let mut board = Board::armed();
    board.chain(0, 512, COMPLETING, copy(0, 0x2000));
    board.chain(0, 512, COMPLETING, copy(0x400, 0x3000));
    board.chain(0, 512, COMPLETING, copy(0x800, 0x4000));
    board.chain(1, 512, COMPLETING, copy(0, 0x6000));
    spoil(&mut board);
    (0..2).for_each(|channel| board.count(channel));
    board.run();
    assert_eq!(board.memory(BASE + 0x6000, 512), &pattern()[..512], "the other channel continues");
    assert_eq!(board.memory(BASE + 0x2000, 512), &pattern()[..512]);
    assert_eq!(board.memory(BASE + 0x4000, 512), &pattern()[0x4000..0x4200], "nothing after the error");
    assert_eq!(board.state(0), TransferState::Halted);
    assert_eq!(board.status(0).completed(), board.slot(0, 0));
    assert_eq!(
        (board.completion_word(0).state(), board.completion_word(0).completed()),
        (TransferState::Halted, board.slot(0, 0))
    );
    let errors = board.errors(0);
    (board, errors)
}

#[test]
fn each_error_halts_and_sets_its_bit() {
    let respoil = |words: [u64; 4]| {
        move |board: &mut Board| {
            let at = board.slot(0, 1);
            board.put(at, &words);
        }
    };
    let next = Board::new().slot(0, 2);
    let control = |code| u64::from(COMPLETING.with_opcode(code).into_bits()) << 32;
    let none = Chanerr::new();
    let cases: [([u64; 4], Chanerr); 6] = [
        ([512 | control(0x99), BASE, BASE + 0x3000, next], none.with_control(true)),
        ([512 | control(opcode::COPY) | 2 << 37, BASE, BASE, next], none.with_control(true)),
        ([control(opcode::COPY), BASE, BASE + 0x3000, next], none.with_length(true)),
        ([0x10_0001 | control(opcode::FILL), 0, BASE + 0x3000, next], none.with_length(true)),
        ([512 | control(opcode::COPY), 0x10, BASE + 0x3000, next], none.with_read_data(true)),
        ([512 | control(opcode::COPY), BASE, 0x1_0000_0000, next], none.with_write_data(true)),
    ];
    for (words, expected) in cases {
        assert_eq!(broken(respoil(words)).1, expected, "{words:x?}");
    }
}

#[test]
fn a_bad_next_address_halts_the_chain() {
    for (next, expected) in [
        (0x20_u64, Chanerr::new().with_descriptor(true)),
        (0x40, Chanerr::new().with_next_address(true)),
        (0x1_0000_0000, Chanerr::new().with_next_address(true)),
    ] {
        let (_, errors) = broken(|board| {
            let at = board.slot(0, 0) + 24;
            board.put(at, &[next]);
        });
        assert_eq!(errors, expected, "next descriptor at {next:#x}");
    }
    let (_, errors) = broken(|board| {
        // A count of two ends within an XOR of six sources, which takes two descriptors.
        let at = board.slot(0, 1);
        let control = COMPLETING.with_opcode(opcode::XOR).with_variant(4);
        board.put(at, &[512 | u64::from(control.into_bits()) << 32]);
        board.written[0] = 2;
    });
    assert!(errors.descriptor_count());
}

#[test]
fn injected_faults_halt_the_channel() {
    let (mut board, errors) = broken(|board| board.ioat.faults().bus_error_at(BASE + 0x31FF..=BASE + 0x31FF));
    assert!(errors.write_data());
    let again = errors.into_bits();
    board.set64(0, Register::Chainaddr, BASE);
    assert_eq!(board.reasons().len(), 2, "errors must be cleared before a chain is given");
    board.ioat.write(offset(0, Register::Chanerr), again);
    assert_eq!(board.errors(0), Chanerr::new());
    board.arm(0);
    assert_eq!(board.state(0), TransferState::Armed);

    let mut board = Board::armed();
    board.ioat.faults().spoil_descriptors(1);
    board.chain(0, 512, COMPLETING, copy(0, 0x2000));
    board.count(0);
    board.run();
    assert!(board.errors(0).control() && board.state(0) == TransferState::Halted);
}

#[test]
fn a_masked_error_does_not_halt() {
    let mut board = Board::armed();
    board.ioat.write(offset(0, Register::ChanerrMask), Chanerr::new().with_read_data(true).into_bits());
    board.chain(0, 512, COMPLETING, copy(0, 0x2000));
    board.chain(0, 512, COMPLETING, Body::Copy { source: 0x10, destination: BASE + 0x3000 });
    board.chain(0, 512, COMPLETING, copy(0, 0x4000));
    board.count(0);
    board.run();
    assert_eq!(board.memory(BASE + 0x4000, 512), &pattern()[..512]);
    assert!(board.state(0) == TransferState::Idle && board.status(0).soft_error());
    assert!(board.errors(0).read_data());
}

#[test]
fn a_failed_completion_write_halts() {
    let mut board = Board::armed();
    board.set64(0, Register::Chancmp, 0x1000);
    board.chain(0, 512, COMPLETING, copy(0, 0x2000));
    board.count(0);
    board.run();
    assert!(board.errors(0).completion_address() && board.state(0) == TransferState::Halted);
}

#[test]
fn lost_completions_do_not_change_chansts() {
    let mut board = Board::armed();
    board.ioat.faults().lose_completions(1);
    board.ioat.faults().lose_interrupts(1);
    board.ioat.write(3, 0);
    for completes in [false, true] {
        board.chain(0, 64, COMPLETING.with_interrupt(true), copy(0, 0x2000));
        board.count(0);
        board.run();
        assert_eq!(board.completion_word(0).completed() != 0, completes);
    }
    assert_eq!(board.status(0).completed(), board.slot(0, 1));
    assert_eq!(board.ioat.read(4), 0, "after a lost interrupt the channel must be armed again");
}

#[test]
fn stuck_and_wedged_channels_need_a_release() {
    let mut board = Board::armed();
    board.ioat.faults().stick(0);
    board.chain(0, 512, Control::new(), copy(0, 0x2000));
    board.count(0);
    board.suspend(0);
    board.run();
    assert_eq!(board.state(0), TransferState::Active);
    board.command(0, Chancmd::new().with_reset(true));
    board.run();
    assert_eq!(board.state(0), TransferState::Halted);
    board.ioat.faults().wedge(0);
    board.command(0, Chancmd::new().with_reset(true));
    board.run();
    let resets = |board: &mut Board| board.ioat.read(offset(0, Register::Chancmd)) & 0x20 != 0;
    assert!(resets(&mut board));
    board.ioat.faults().release(0);
    board.command(0, Chancmd::new().with_reset(true));
    board.run();
    assert!(!resets(&mut board));
}
