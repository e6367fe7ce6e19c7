//! Every status flag, what enables it, and the interrupt lines.
//!
//! ```text
//! event ── CICR ──► CSR ── IRQENABLE ──► IRQSTATUS ──► line
//! ```
//!
//! Errors have their own module; here they only pass through.

use super::support::{BASE, Board, copy};
use memferry_models::sdma::Reason;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Register};
use memferry_registers::sdma::{Cicr, Csr};

/// Runs until channel 0 shows `flag`, and says how many bytes were written by then.
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
fn half_frame_comes_with_the_half_of_the_first_frame() {
    assert_eq!(written_when(3, |csr| csr.half_frame()), Some(16));
}

#[test]
fn end_of_frame_comes_with_the_last_element_of_a_frame() {
    assert_eq!(written_when(3, |csr| csr.frame()), Some(32));
}

#[test]
fn start_of_last_frame_comes_when_its_first_element_is_on_its_way() {
    let written = written_when(3, |csr| csr.last_frame()).expect("the flag comes");
    assert!((56..=64).contains(&written), "{written}");
    assert_eq!(written_when(1, |csr| csr.last_frame()), Some(0), "the only frame is the last one");
}

#[test]
fn end_of_block_comes_with_the_last_element() {
    assert_eq!(written_when(3, |csr| csr.block()), Some(96));
}

#[test]
fn flags_that_only_other_transfers_have_do_not_come() {
    let mut board = Board::new();
    let csr = board.transfer(0, copy(8, 3));
    assert!(!csr.super_block() && !csr.packet() && !csr.drain() && !csr.sync() && !csr.is_error());
}

#[test]
fn an_event_that_is_not_enabled_leaves_no_trace() {
    let mut board = Board::new();
    board.sdma.write(offset::irq_enable(0), 1);
    board.program(0, copy(8, 3));
    board.set(0, Register::Cicr, Cicr::new().with_frame(true).into_bits());
    board.enable(0);
    board.run();
    assert_eq!(board.csr(0), Csr::new().with_frame(true));
    board.set(0, Register::Cicr, Cicr::ALL.into_bits());
    assert_eq!(board.csr(0), Csr::new().with_frame(true), "enabling later does not bring it back");
}

#[test]
fn status_is_set_without_a_line_but_the_line_is_not() {
    let mut board = Board::new();
    let csr = board.transfer(4, copy(8, 1));
    assert!(csr.block());
    for line in 0..4 {
        assert_eq!(board.sdma.read(offset::irq_status(line)), 0);
        assert!(!board.sdma.line(line));
    }
}

#[test]
fn each_line_shows_the_channels_that_are_enabled_on_it() {
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
fn a_line_falls_when_every_bit_of_it_is_cleared_whatever_csr_says() {
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
fn csr_bits_are_cleared_by_writing_one() {
    let mut board = Board::new();
    board.transfer(0, copy(4, 1));
    board.set(0, Register::Csr, Csr::new().with_block(true).into_bits());
    let csr = board.csr(0);
    assert!(!csr.block() && csr.frame());
}

#[test]
fn reports_a_channel_that_is_enabled_with_its_status_set() {
    let mut board = Board::new();
    board.transfer(0, copy(4, 1));
    board.enable(0);
    board.run();
    assert_eq!(board.reasons(), [Reason::StatusNotCleared]);
}
