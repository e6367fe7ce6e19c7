//! Register access: widths, reserved bits, and forbidden uses.

use super::support::{BASE, Board, COMPLETING, copy};
use memferry_models::ioat::Reason;
use memferry_registers::ioat::offset::channel as offset;
use memferry_registers::ioat::{CHANNELS, Chancmd, Chanctrl, General, Register, TransferState};
use memferry_registers::{NarrowIo, RegisterIo};

#[test]
fn identity_registers_read_at_any_width() {
    let mut board = Board::new();
    assert_eq!(board.ioat.read8(General::Chancnt.offset()), CHANNELS as u8);
    assert_eq!(board.ioat.read8(General::Xfercap.offset()), 20);
    assert_eq!(board.ioat.read8(General::Cbver.offset()), 0x32);
    assert_eq!(board.ioat.read(General::Dmacapability.offset()), 0x140);
    assert_eq!(board.ioat.read(0), 0x0000_1404, "four registers in one word");
    assert_eq!(board.ioat.read16(offset(2, Register::DmaComp)), 6);
    assert_eq!(board.reasons(), []);
}

#[test]
fn forbidden_accesses_have_no_effect() {
    let mut board = Board::new();
    board.ioat.write(0x84, 0x0001_0000);
    board.ioat.write8(offset(0, Register::Chanerr), 1);
    board.ioat.write16(offset(0, Register::Chansts), 1);
    assert_eq!(board.reasons(), [Reason::WrongWidth; 3]);
    board.ioat.write8(0, 9);
    board.ioat.write(offset(0, Register::Cdar), 64);
    assert_eq!(board.reasons(), [Reason::ReadOnly; 2]);
    board.ioat.read(0x70);
    board.ioat.write(0x1000, 1);
    board.ioat.read(u32::MAX);
    assert_eq!(board.reasons(), [Reason::NoSuchRegister; 3]);
    board.ioat.write8(2, 0xFE);
    board.ioat.write(offset(0, Register::Chancmp), 0x14);
    assert_eq!(board.reasons(), [Reason::ReservedBits; 2]);
    assert_eq!(board.ioat.read(offset(0, Register::Chancmp)), 0x10);
    board.ioat.write16(offset(0, Register::Dmacount), 3);
    assert_eq!((board.reasons(), board.state(0)), (vec![Reason::NoChain], TransferState::Halted));
}

#[test]
fn forbidden_commands_are_reported() {
    let mut board = Board::armed();
    let command = Chancmd::new();
    board.command(0, command.with_start(true));
    board.command(0, command.with_append(true));
    assert_eq!(board.reasons(), [Reason::OldCommand; 2]);
    board.resume(0);
    assert_eq!(board.reasons(), [Reason::NothingToResume]);
    board.command(0, command.with_reset(true).with_suspend(true));
    assert_eq!(board.reasons(), [Reason::SeveralCommands]);
    assert!(board.errors(0).command() && board.state(0) == TransferState::Halted);
    board.suspend(0);
    assert_eq!(board.reasons(), [Reason::NothingToSuspend]);
    board.command(1, command.with_abort(true));
    assert_eq!((board.state(1), board.reasons()), (TransferState::Halted, vec![]));
    board.command(2, command.with_reset(true));
    board.ioat.write16(offset(2, Register::Chanctrl), 1);
    assert_eq!(board.reasons(), [Reason::DuringReset]);
}

#[test]
fn an_active_channel_keeps_addresses_and_count() {
    let mut board = Board::armed();
    board.chain(0, 4096, COMPLETING, copy(0, 0x2000));
    board.chain(0, 4096, COMPLETING, copy(0, 0x3000));
    board.count(0);
    board.run_until(500);
    board.set64(0, Register::Chainaddr, BASE);
    board.set64(0, Register::Chancmp, BASE);
    assert_eq!(board.reasons(), [Reason::WhileActive; 4]);
    board.ioat.write16(offset(0, Register::Dmacount), 1);
    assert_eq!(board.reasons(), [Reason::CountWentBack]);
    board.run();
    assert_eq!(board.status(0).completed(), board.slot(0, 1));
}

#[test]
fn a_missing_completion_address_is_reported() {
    let mut board = Board::new();
    let at = board.slot(0, 0);
    board.set64(0, Register::Chainaddr, at);
    board.chain(0, 64, COMPLETING, copy(0, 0x2000));
    board.count(0);
    board.run();
    assert_eq!((board.reasons(), board.state(0)), (vec![Reason::NoCompletionAddress], TransferState::Idle));
    let complaint = {
        board.ioat.write8(2, 0xFE);
        board.ioat.take_complaints()[0].to_string()
    };
    assert_eq!(
        complaint,
        "GENCTRL: no debug registers (reserved bits 0xfe): reserved bits must be written as zero"
    );
}

#[test]
fn the_first_read_of_chanctrl_owns_the_channel() {
    let mut board = Board::new();
    let mut in_use = || Chanctrl::from_bits(board.ioat.read16(offset(3, Register::Chanctrl))).in_use();
    assert_eq!([in_use(), in_use()], [false, true]);
    board.command(3, Chancmd::new().with_reset(true));
    board.run();
    let control = Chanctrl::from_bits(board.ioat.read16(offset(3, Register::Chanctrl)));
    assert!(control.in_use(), "a reset does not change ownership");
    board.ioat.write16(offset(3, Register::Chanctrl), 0);
    assert!(!Chanctrl::from_bits(board.ioat.read16(offset(3, Register::Chanctrl))).in_use());
}

#[test]
fn reading_the_low_half_latches_the_high_half() {
    let mut board = Board::armed();
    board.chain(0, 64, COMPLETING, copy(0, 0x2000));
    board.count(0);
    let low = board.ioat.read(offset(0, Register::Chansts));
    board.run();
    let high = board.ioat.read(offset(0, Register::Chansts) + 4);
    assert_eq!((low, high), (0, 0));
    assert_eq!(board.status(0).completed(), board.slot(0, 0));
}
