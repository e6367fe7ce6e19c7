//! Errors: halted channels, what they say, and that the others go on; injected faults.

use super::support::{BASE, Board, TOLD, copy, pattern};
use memferry_registers::RegisterIo;
use memferry_registers::ioat::descriptor::{Body, Control, opcode};
use memferry_registers::ioat::offset::channel as offset;
use memferry_registers::ioat::{Chancmd, Chanerr, Register, TransferState};

/// A good descriptor, a bad one, another good one; what CHANERR says.
fn broken(spoil: impl FnOnce(&mut Board)) -> (Board, Chanerr) {
    let mut board = Board::armed();
    board.chain(0, 512, TOLD, copy(0, 0x2000));
    board.chain(0, 512, TOLD, copy(0x400, 0x3000));
    board.chain(0, 512, TOLD, copy(0x800, 0x4000));
    board.chain(1, 512, TOLD, copy(0, 0x6000));
    spoil(&mut board);
    (0..2).for_each(|channel| board.count(channel));
    board.run();
    assert_eq!(board.memory(BASE + 0x6000, 512), &pattern()[..512], "the other channel goes on");
    assert_eq!(board.memory(BASE + 0x2000, 512), &pattern()[..512]);
    assert_eq!(board.memory(BASE + 0x4000, 512), &pattern()[0x4000..0x4200], "nothing after the error");
    assert_eq!(board.state(0), TransferState::Halted);
    assert_eq!(board.status(0).completed(), board.slot(0, 0));
    assert_eq!((board.told(0).state(), board.told(0).completed()), (TransferState::Halted, board.slot(0, 0)));
    let errors = board.errors(0);
    (board, errors)
}

#[test]
fn each_error_halts_at_its_descriptor_and_has_its_bit() {
    let respoil = |words: [u64; 4]| {
        move |board: &mut Board| {
            let at = board.slot(0, 1);
            board.put(at, &words);
        }
    };
    let next = Board::new().slot(0, 2);
    let control = |code| u64::from(TOLD.with_opcode(code).into_bits()) << 32;
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
fn a_chain_that_leads_nowhere_halts_after_what_was_good() {
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
        // An XOR of six sources, and the count ends with its first descriptor.
        let at = board.slot(0, 1);
        let control = TOLD.with_opcode(opcode::XOR).with_variant(4);
        board.put(at, &[512 | u64::from(control.into_bits()) << 32]);
        board.written[0] = 2;
    });
    assert!(errors.descriptor_count());
}

#[test]
fn injected_bus_errors_and_bad_descriptors_are_errors_of_the_channel() {
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
    board.chain(0, 512, TOLD, copy(0, 0x2000));
    board.count(0);
    board.run();
    assert!(board.errors(0).control() && board.state(0) == TransferState::Halted);
}

#[test]
fn a_masked_error_is_passed_over() {
    let mut board = Board::armed();
    board.ioat.write(offset(0, Register::ChanerrMask), Chanerr::new().with_read_data(true).into_bits());
    board.chain(0, 512, TOLD, copy(0, 0x2000));
    board.chain(0, 512, TOLD, Body::Copy { source: 0x10, destination: BASE + 0x3000 });
    board.chain(0, 512, TOLD, copy(0, 0x4000));
    board.count(0);
    board.run();
    assert_eq!(board.memory(BASE + 0x4000, 512), &pattern()[..512]);
    assert!(board.state(0) == TransferState::Idle && board.status(0).soft_error());
    assert!(board.errors(0).read_data());
}

#[test]
fn a_completion_word_that_cannot_be_written_halts() {
    let mut board = Board::armed();
    board.set64(0, Register::Chancmp, 0x1000);
    board.chain(0, 512, TOLD, copy(0, 0x2000));
    board.count(0);
    board.run();
    assert!(board.errors(0).completion_address() && board.state(0) == TransferState::Halted);
}

#[test]
fn lost_completions_and_interrupts_leave_the_status_as_it_is() {
    let mut board = Board::armed();
    board.ioat.faults().lose_completions(1);
    board.ioat.faults().lose_interrupts(1);
    board.ioat.write(3, 0);
    for told in [false, true] {
        board.chain(0, 64, TOLD.with_interrupt(true), copy(0, 0x2000));
        board.count(0);
        board.run();
        assert_eq!(board.told(0).completed() != 0, told);
    }
    assert_eq!(board.status(0).completed(), board.slot(0, 1));
    assert_eq!(board.ioat.read(4), 0, "a channel whose interrupt got lost raises no other");
}

#[test]
fn a_stuck_channel_hears_only_a_reset_and_a_wedged_one_not_even_that() {
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
