//! Status flags, their enable bits, and the interrupt lines.
//!
//! ```text
//! event ── CICR ──► CSR ── IRQENABLE ──► IRQSTATUS ──► line
//! ```
//!
//! `errors` tests the error flags.

use super::support::{BASE, Board, copy};
use memferry_models::sdma::Reason;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Register};
use memferry_registers::sdma::{Cicr, Csr};

/// Runs until channel 0 shows `flag` and returns the bytes written by then.
fn written_when(frames: u32, flag: impl Fn(Csr) -> bool) -> Option<usize> {
    let mut board = Board::new();
    board.program(0, copy(8, frames));
    board.enable(0);
    while board.step() {
        if flag(board.csr(0)) {
            return Some(board.lengths(true).iter().sum());
        }
    }
    None
}

#[test]
fn half_frame_is_set_at_half_a_frame() {
    assert_eq!(written_when(3, |csr| csr.half_frame()), Some(16));
}

#[test]
fn frame_is_set_at_a_frames_end() {
    assert_eq!(written_when(3, |csr| csr.frame()), Some(32));
}

#[test]
fn last_frame_is_set_at_its_first_element() {
    let written = written_when(3, |csr| csr.last_frame()).expect("the flag is set");
    assert!((56..=64).contains(&written), "{written}");
    assert_eq!(written_when(1, |csr| csr.last_frame()), Some(0), "the only frame is the last one");
}

#[test]
fn block_is_set_at_the_last_element() {
    assert_eq!(written_when(3, |csr| csr.block()), Some(96));
}

#[test]
fn a_plain_copy_sets_no_other_flags() {
    let mut board = Board::new();
    let csr = board.transfer(0, copy(8, 3));
    assert!(!csr.super_block() && !csr.packet() && !csr.drain() && !csr.sync() && !csr.is_error());
}

#[test]
fn a_disabled_event_leaves_no_trace() {
    let mut board = Board::new();
    board.sdma.write(offset::irq_enable(0), 1);
    board.program(0, copy(8, 3));
    board.set(0, Register::Cicr, Cicr::new().with_frame(true).into_bits());
    board.enable(0);
    board.run();
    assert_eq!(board.csr(0), Csr::new().with_frame(true));
    board.set(0, Register::Cicr, Cicr::ALL.into_bits());
    assert_eq!(board.csr(0), Csr::new().with_frame(true), "enabling it later does not set it");
}

#[test]
fn csr_is_set_without_an_enabled_line() {
    let mut board = Board::new();
    let csr = board.transfer(4, copy(8, 1));
    assert!(csr.block());
    for line in 0..4 {
        assert_eq!(board.sdma.read(offset::irq_status(line)), 0);
        assert!(!board.sdma.line(line));
    }
}

#[test]
fn each_line_shows_its_enabled_channels() {
    let mut board = Board::new();
    board.sdma.write(offset::irq_enable(0), 1 << 3);
    board.sdma.write(offset::irq_enable(2), 1 << 3 | 1 << 9);
    board.program(3, copy(4, 1));
    let mut other = copy(4, 1);
    other.destination = BASE + 0x9000;
    board.program(9, other);
    board.enable(3);
    board.enable(9);
    board.run();
    assert_eq!(board.sdma.read(offset::irq_status(0)), 1 << 3);
    assert_eq!(board.sdma.read(offset::irq_status(1)), 0);
    assert_eq!(board.sdma.read(offset::irq_status(2)), 1 << 3 | 1 << 9);
    assert_eq!([0, 1, 2, 3, 4].map(|line| board.sdma.line(line)), [true, false, true, false, false]);
}

#[test]
fn a_line_falls_when_its_bits_are_cleared() {
    let mut board = Board::new();
    board.sdma.write(offset::irq_enable(1), 1);
    board.transfer(0, copy(4, 1));
    board.set(0, Register::Csr, Csr::ALL.into_bits());
    assert!(board.sdma.line(1), "clearing CSR does not clear the line");
    board.sdma.write(offset::irq_status(1), 2);
    assert!(board.sdma.line(1), "another channel's bit does not clear it");
    board.sdma.write(offset::irq_status(1), 1);
    assert!(!board.sdma.line(1));
}

#[test]
fn writing_one_clears_csr_bits() {
    let mut board = Board::new();
    board.transfer(0, copy(4, 1));
    board.set(0, Register::Csr, Csr::new().with_block(true).into_bits());
    let csr = board.csr(0);
    assert!(!csr.block() && csr.frame());
}

#[test]
fn enabling_with_status_set_is_reported() {
    let mut board = Board::new();
    board.transfer(0, copy(4, 1));
    board.enable(0);
    board.run();
    assert_eq!(board.reasons(), [Reason::StatusNotCleared]);
}
