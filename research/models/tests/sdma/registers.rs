//! Register access: reset values, reserved bits, forbidden writes.
//!
//! ```text
//! write ──► value read back, and the complaint
//! ```
//!
//! The other modules test the effects of the registers.

use super::support::{Board, copy};
use memferry_models::sdma::Reason;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Location, Register};
use memferry_registers::sdma::{Caps0, Ccr, Cdp, DataType, Gcr, OcpSysconfig};

#[test]
fn reset_values_match_the_manual() {
    let mut board = Board::new();
    assert!(board.reset_done());
    assert_eq!(board.sdma.read(offset::GCR), Gcr::RESET.into_bits());
    assert_eq!(board.get(31, Register::Ccr), 0);
    let caps = Caps0::from_bits(board.sdma.read(offset::CAPS_0));
    assert!(caps.transparent_copy() && caps.constant_fill() && caps.linked_list_types_123());
    assert_eq!(board.sdma.read(offset::CAPS_4), 0x5DFE);
    assert_eq!(board.reasons(), []);
}

#[test]
fn a_soft_reset_takes_time_and_stops_all() {
    let mut board = Board::new();
    board.sdma.write(offset::irq_enable(0), u32::MAX);
    board.program(0, copy(64, 1));
    board.enable(0);
    (0..6).for_each(|_| assert!(board.step()));
    board.sdma.write(offset::OCP_SYSCONFIG, OcpSysconfig::new().with_soft_reset(true).into_bits());
    assert!(!board.reset_done());
    board.set(0, Register::Cen, 5);
    assert_eq!(board.reasons(), [Reason::DuringReset]);
    let writes = board.lengths(true).len();
    board.run();
    assert!(board.reset_done() && !board.sdma.is_busy());
    assert_eq!(board.lengths(true).len(), writes, "accesses in flight are dropped");
    assert_eq!(board.sdma.read(offset::irq_enable(0)), 0);
    assert_eq!(board.sdma.read(offset::OCP_SYSCONFIG), 0, "SOFTRESET reads as zero");
}

#[test]
fn reserved_bits_read_as_zero() {
    for location in Location::all().filter(|location| location.access() == offset::Access::ReadWrite) {
        let reset = matches!(location, Location::OcpSysconfig);
        let reserved = !location.implemented();
        if reset || reserved == 0 {
            continue;
        }
        let mut board = Board::new();
        board.sdma.write(location.offset(), reserved);
        assert_eq!(board.sdma.read(location.offset()) & reserved, 0, "{location}");
        assert!(board.reasons().contains(&Reason::ReservedBits), "{location}");
    }
}

#[test]
fn writes_without_effect_are_reported() {
    let mut board = Board::new();
    let before = board.sdma.read(offset::CAPS_2);
    board.sdma.write(offset::CAPS_2, 0);
    assert_eq!(board.sdma.read(offset::CAPS_2), before);
    board.sdma.write(0x30, 1);
    assert_eq!(board.sdma.read(offset::SPAN), 0);
    assert_eq!(board.reasons(), [Reason::ReadOnly, Reason::NoSuchRegister, Reason::NoSuchRegister]);
}

#[test]
fn activity_bits_cannot_be_written() {
    let mut board = Board::new();
    board.set(0, Register::Ccr, Ccr::new().with_read_active(true).with_write_active(true).into_bits());
    assert_eq!(board.get(0, Register::Ccr), 0);
}

#[test]
fn a_fifo_depth_of_zero_is_ignored() {
    let mut board = Board::new();
    board.sdma.write(offset::GCR, 0);
    assert_eq!(Gcr::from_bits(board.sdma.read(offset::GCR)).max_channel_fifo_depth(), 16);
    assert_eq!(board.reasons(), [Reason::FifoDepthZero]);
}

#[test]
fn refuses_empty_blocks() {
    let mut without_size = copy(4, 1);
    without_size.csdp.set_data_type(DataType::Reserved);
    for (block, reason) in [
        (copy(0, 1), Reason::NoElements),
        (copy(1, 0), Reason::NoFrames),
        (without_size, Reason::ReservedDataType),
    ] {
        let mut board = Board::new();
        board.transfer(0, block);
        assert_eq!(board.reasons(), [reason]);
        assert!(!board.ccr(0).enable());
    }
}

#[test]
fn a_running_channel_ignores_writes() {
    let mut board = Board::new();
    board.program(0, copy(64, 1));
    board.enable(0);
    board.set(0, Register::Cen, 1);
    board.run();
    assert_eq!(board.lengths(true).iter().sum::<usize>(), 256);
    assert_eq!(board.reasons(), [Reason::WhileEnabled]);
}

#[test]
fn software_cannot_pause_a_list() {
    let mut board = Board::new();
    board.set(0, Register::Cdp, Cdp::new().with_pause(true).into_bits());
    assert_eq!(board.get(0, Register::Cdp), 0);
    assert_eq!(board.reasons(), [Reason::PauseSet]);
}

#[test]
fn a_complaint_shows_register_and_reason() {
    let mut board = Board::new();
    board.sdma.write(offset::GCR, 0);
    let text = board.sdma.complaints()[0].to_string();
    assert!(text.starts_with("GCR: FIFO depth 0 a channel") && text.ends_with("must not be zero"), "{text}");
    assert_eq!(board.sdma.take_complaints().len(), 1);
    assert!(board.sdma.complaints().is_empty());
}

#[test]
fn complaints_beyond_the_limit_are_counted() {
    let mut board = Board::new();
    (0..2000).for_each(|_| board.sdma.write(0x30, 1));
    assert_eq!(board.sdma.complaints().len() as u64 + board.sdma.complaints_left_out(), 2000);
    assert!(board.sdma.complaints_left_out() > 0);
}
