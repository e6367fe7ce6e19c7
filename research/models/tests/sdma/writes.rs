//! Bus accesses: single, packed, in bursts; posted or non-posted.
//!
//! ```text
//! CSDP ──► lengths of the accesses, and their duration
//! ```
//!
//! `addressing` tests their content.

use super::support::{BASE, Board, copy};
use memferry_clock::Instant;
use memferry_models::sdma::{Config, Reason};
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset;
use memferry_registers::sdma::{BurstSize, DataType, Gcr, WriteMode};

fn deep() -> Board {
    let mut board = Board::new();
    board.sdma.write(offset::GCR, Gcr::RESET.with_max_channel_fifo_depth(128).into_bits());
    board
}

#[test]
fn unpacked_accesses_carry_one_element() {
    let mut block = copy(16, 1);
    block.csdp.set_data_type(DataType::Bits8);
    let mut board = deep();
    board.transfer(0, block);
    assert_eq!(board.lengths(false), [1; 16]);
    assert_eq!(board.lengths(true), [1; 16]);
}

#[test]
fn packed_accesses_fill_the_port_width() {
    let mut block = copy(16, 1);
    block.csdp.set_data_type(DataType::Bits8);
    block.csdp.set_source_packed(true);
    block.csdp.set_destination_packed(true);
    let mut board = deep();
    board.transfer(0, block);
    assert_eq!(board.lengths(false), [8; 2]);
    assert_eq!(board.lengths(true), [8; 2]);
}

#[test]
fn bursts_need_packed_accesses() {
    let mut block = copy(16, 1);
    block.csdp.set_source_burst(BurstSize::Bytes64);
    let mut board = deep();
    board.transfer(0, block);
    assert_eq!(board.lengths(false), [4; 16]);
    assert_eq!(board.reasons(), [Reason::BurstNotPacked]);
}

#[test]
fn bursts_are_aligned_and_end_at_gaps() {
    let mut block = copy(20, 2);
    block.source += 8;
    block.csdp.set_source_packed(true);
    block.csdp.set_source_burst(BurstSize::Bytes32);
    let mut board = deep();
    assert!(board.transfer(0, block).block());
    assert_eq!(board.lengths(false), [24, 32, 24, 8, 32, 32, 8]);
    assert!(
        board
            .sdma
            .bus()
            .log
            .iter()
            .all(|access| access.2 || access.0 / 32 == (access.0 + access.1 as u32 - 1) / 32)
    );
}

#[test]
fn non_posted_writes_take_longer() {
    let end = |write_mode| {
        let mut block = copy(256, 1);
        block.csdp.set_write_mode(write_mode);
        let mut board = deep();
        board.program(0, block);
        board.enable(0);
        board.run()
    };
    assert!(end(WriteMode::Posted) < end(WriteMode::LastNonPosted));
    assert!(end(WriteMode::LastNonPosted) < end(WriteMode::NonPosted));
}

#[test]
fn a_last_non_posted_write_is_acknowledged() {
    let end = |latency| {
        let mut config = Config::default();
        config.timing.write_latency = latency;
        let mut block = copy(4, 1);
        block.csdp.set_write_mode(WriteMode::LastNonPosted);
        let mut board = Board::with(config);
        board.program(0, block);
        board.enable(0);
        board.run().picoseconds()
    };
    assert_eq!(end(5_050_000) - end(50_000), 5_000_000);
}

#[test]
fn nothing_happens_before_it_is_due() {
    let mut board = Board::new();
    board.program(0, copy(4, 1));
    board.enable(0);
    let first = board.sdma.next_wake().expect("a read is in flight");
    assert!(first > Instant::ORIGIN);
    board.sdma.step(Instant::from_picoseconds(first.picoseconds() - 1));
    assert!(board.sdma.bus().log.is_empty());
    board.sdma.step(first);
    assert_eq!(board.sdma.bus().log.len(), 1);
    assert_eq!(board.sdma.bus().log[0].0, BASE + 0x1000);
}
