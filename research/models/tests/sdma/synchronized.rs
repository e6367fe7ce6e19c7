//! Channels synchronized with a peripheral's requests.
//!
//! ```text
//! request ──► an element, a frame, a packet or a block ──► served; too early ──► drop error
//! ```
//!
//! The peripheral is plain memory here; how it uses the data is not tested.

use super::support::{BASE, Block, Board, copy};
use memferry_models::sdma::Reason;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Register};
use memferry_registers::sdma::{AddressingMode, BurstSize, MidleMode, OcpSysconfig};

const LINE: usize = 64;

/// Copy from memory to a peripheral at a constant address; the destination makes the requests.
fn to_peripheral(elements: u32, frames: u32) -> Block {
    let mut block = copy(elements, frames);
    block.ccr = block.ccr.with_request(LINE as u8 + 1).with_destination_addressing(AddressingMode::Constant);
    block
}

/// Copy from a peripheral at a constant address to memory; the source makes the requests.
fn from_peripheral(elements: u32, frames: u32) -> Block {
    let mut block = copy(elements, frames);
    block.ccr = block
        .ccr
        .with_request(LINE as u8 + 1)
        .with_source_sync(true)
        .with_source_addressing(AddressingMode::Constant);
    block
}

fn sync(mut block: Block, frame: bool, whole: bool) -> Block {
    block.ccr = block.ccr.with_frame_sync(frame).with_block_sync(whole);
    block
}

/// Elements moved by each request until the block ends.
fn served(block: Block, writes: bool) -> Vec<usize> {
    let mut board = Board::new();
    board.program(0, block);
    board.enable(0);
    board.run();
    let mut moved = Vec::new();
    let mut before = 0;
    while board.ccr(0).enable() {
        assert!(board.sdma.request(LINE));
        board.run();
        let now: usize = board.lengths(writes).iter().sum::<usize>() / 4;
        moved.push(now - before);
        before = now;
        assert!(moved.len() < 100, "the block ends");
    }
    assert!(board.csr(0).block());
    moved
}

#[test]
fn a_request_moves_one_unit() {
    for by_source in [false, true] {
        let block = if by_source { from_peripheral(6, 2) } else { to_peripheral(6, 2) };
        let writes = !by_source;
        assert_eq!(served(sync(block, false, false), writes), [1; 12]);
        assert_eq!(served(sync(block, true, false), writes), [6, 6]);
        assert_eq!(served(sync(block, false, true), writes), [12]);
        let mut packets = sync(block, true, true);
        (packets.source_index.1, packets.destination_index.1) = (5, 5);
        assert_eq!(served(packets, writes), [5, 5, 2], "the last packet is the rest");
    }
}

#[test]
fn nothing_moves_before_a_request() {
    let mut board = Board::new();
    board.program(0, to_peripheral(16, 1));
    board.enable(0);
    board.run();
    assert!(board.sdma.bus().log.is_empty());
    assert!(!board.sdma.request(LINE - 1), "no channel uses that line");
    assert!(!board.sdma.request(127) && !board.sdma.request(usize::MAX));
}

#[test]
fn prefetch_fills_the_fifo_before_the_request() {
    let mut block = to_peripheral(16, 1);
    block.ccr.set_prefetch(true);
    let mut board = Board::new();
    board.program(0, block);
    board.enable(0);
    board.run();
    assert_eq!(board.lengths(false).iter().sum::<usize>(), 16, "the FIFO's depth after reset");
    assert!(board.lengths(true).is_empty());
    for _ in 0..16 {
        assert!(board.sdma.request(LINE));
        board.run();
    }
    assert!(board.csr(0).block());
}

#[test]
fn an_early_second_request_is_dropped() {
    let mut board = Board::new();
    board.program(0, sync(to_peripheral(8, 2), true, false));
    board.enable(0);
    assert!(board.sdma.request(LINE));
    assert!(board.csr(0).sync());
    assert!(!board.sdma.request(LINE));
    assert!(board.csr(0).drop());
    board.run();
    assert_eq!(board.lengths(true).len(), 8, "only one frame was moved");
    assert!(board.csr(0).sync(), "the block has not ended");
    assert!(board.sdma.request(LINE));
    board.run();
    assert!(board.csr(0).block() && !board.csr(0).sync());
}

#[test]
fn end_of_packet_is_reported() {
    let mut block = sync(to_peripheral(8, 1), true, true);
    block.destination_index.1 = 4;
    let mut board = Board::new();
    board.program(0, block);
    board.enable(0);
    board.sdma.request(LINE);
    board.run();
    let csr = board.csr(0);
    assert!(csr.packet() && !csr.block(), "{csr}");
}

#[test]
fn buffering_keeps_partial_bursts() {
    let run = |disable| {
        let mut block = from_peripheral(8, 1);
        block.ccr.set_buffering_disable(disable);
        block.csdp.set_destination_packed(true);
        block.csdp.set_destination_burst(BurstSize::Bytes16);
        let mut board = Board::new();
        board.program(0, block);
        board.enable(0);
        let mut written = Vec::new();
        for _ in 0..8 {
            assert!(board.sdma.request(LINE));
            board.run();
            written.push(board.lengths(true).iter().sum::<usize>());
        }
        assert!(board.csr(0).block());
        written
    };
    assert_eq!(run(false), [0, 0, 0, 16, 16, 16, 16, 32]);
    assert_eq!(run(true), [4, 8, 12, 16, 20, 24, 28, 32]);
}

#[test]
fn disabling_drains_source_data() {
    let mut block = from_peripheral(8, 1);
    block.csdp.set_destination_packed(true);
    block.csdp.set_destination_burst(BurstSize::Bytes16);
    let mut board = Board::new();
    board.program(0, block);
    board.enable(0);
    for _ in 0..3 {
        assert!(board.sdma.request(LINE));
        board.run();
    }
    assert!(board.lengths(true).is_empty());
    assert!(board.ccr(0).write_active(), "data waits to be written");
    board.disable(0);
    board.run();
    let csr = board.csr(0);
    assert!(csr.drain() && !csr.block(), "{csr}");
    assert_eq!(board.lengths(true).iter().sum::<usize>(), 12);
    assert_eq!(board.get(0, Register::Ccen), 3);
    assert!(!board.ccr(0).write_active());
}

#[test]
fn reports_settings_of_the_wrong_side() {
    let mut by_source = from_peripheral(4, 1);
    by_source.ccr.set_prefetch(true);
    let mut by_destination = to_peripheral(4, 1);
    by_destination.ccr.set_buffering_disable(true);
    let mut no_packet = sync(to_peripheral(4, 1), true, true);
    no_packet.destination_index.1 = 0;
    let mut index = sync(to_peripheral(4, 1), true, true);
    index.ccr.set_destination_addressing(AddressingMode::DoubleIndex);
    for (block, reason) in [
        (by_source, Reason::PrefetchNotDestination),
        (by_destination, Reason::BufferingNotSource),
        (no_packet, Reason::NoPacket),
        (index, Reason::PacketNeedsFrameIndex),
    ] {
        let mut board = Board::new();
        board.transfer(0, block);
        assert_eq!(board.reasons(), [reason]);
    }
}

#[test]
fn a_shared_request_serves_the_lower_channel() {
    let mut board = Board::new();
    for channel in [4, 2] {
        board.program(channel, sync(to_peripheral(4, 1), false, true));
        board.enable(channel);
    }
    assert_eq!(board.reasons(), [Reason::RequestShared]);
    assert!(board.sdma.request(LINE));
    board.run();
    assert!(board.csr(2).block() && !board.csr(4).block());
}

#[test]
fn requests_can_drive_a_fill() {
    let mut block = sync(to_peripheral(4, 2), true, false);
    block.ccr.set_constant_fill(true);
    block.color = 7;
    assert_eq!(served(block, true), [4, 4]);
    let mut board = Board::new();
    board.program(0, block);
    board.enable(0);
    board.sdma.request(LINE);
    board.run();
    assert_eq!(board.memory(BASE + 0x8000, 4), 7_u32.to_le_bytes());
}

#[test]
fn disabling_completes_the_sources_request() {
    let mut board = Board::new();
    board.program(0, sync(from_peripheral(16, 2), true, false));
    board.enable(0);
    assert!(board.sdma.request(LINE));
    board.step();
    board.disable(0);
    assert!(board.ccr(0).read_active());
    board.run();
    let csr = board.csr(0);
    assert!(csr.drain() && csr.frame() && !csr.block(), "{csr}");
    assert_eq!(board.lengths(true).len(), 16, "the requested frame");
}

#[test]
fn only_buffered_plain_copies_drain() {
    let mut unbuffered = sync(from_peripheral(16, 2), true, false);
    unbuffered.ccr.set_buffering_disable(true);
    let mut transparent = sync(from_peripheral(16, 2), true, false);
    transparent.ccr.set_transparent_copy(true);
    for block in [unbuffered, transparent, sync(to_peripheral(16, 2), true, false)] {
        let mut board = Board::new();
        board.program(0, block);
        board.enable(0);
        assert!(board.sdma.request(LINE));
        board.step();
        board.disable(0);
        board.run();
        assert!(!board.csr(0).drain());
        assert!(board.lengths(true).len() < 16);
        assert!(!board.sdma.is_busy());
    }
}

#[test]
fn a_failing_read_drains_earlier_data() {
    let mut block = sync(from_peripheral(16, 1), true, false);
    block.ccr.set_source_addressing(AddressingMode::PostIncrement);
    let mut board = Board::new();
    board.sdma.faults().bus_error_at(block.source + 20..=block.source + 20);
    board.program(0, block);
    board.enable(0);
    assert!(board.sdma.request(LINE));
    board.run();
    let csr = board.csr(0);
    assert!(csr.transaction_error() && csr.drain() && !csr.block(), "{csr}");
    assert!(board.lengths(true).len() >= 5);
    assert!(!board.sdma.is_busy() && !board.ccr(0).enable());
}

#[test]
fn nothing_is_buffered_across_frames() {
    let mut block = sync(from_peripheral(6, 2), true, false);
    block.csdp.set_destination_packed(true);
    block.csdp.set_destination_burst(BurstSize::Bytes16);
    let mut board = Board::new();
    board.program(0, block);
    board.enable(0);
    assert!(board.sdma.request(LINE));
    board.run();
    assert_eq!(board.lengths(true), [16, 8]);
    assert!(board.csr(0).frame());
}

#[test]
fn source_packets_are_not_reported() {
    let mut block = sync(from_peripheral(8, 1), true, true);
    block.source_index.1 = 4;
    let mut board = Board::new();
    board.program(0, block);
    board.enable(0);
    for _ in 0..2 {
        assert!(board.sdma.request(LINE));
        board.run();
    }
    assert!(board.csr(0).block() && !board.csr(0).packet());
}

#[test]
fn cdac_shows_whether_a_request_arrived() {
    let mut board = Board::new();
    board.program(0, to_peripheral(8, 1));
    board.set(0, Register::Cdac, 0);
    board.enable(0);
    board.run();
    assert_eq!(board.get(0, Register::Cdac), 0, "enabled, but not started");
    assert!(board.sdma.request(LINE));
    board.run();
    assert_eq!(board.get(0, Register::Cdac), BASE + 0x8000);
}

#[test]
fn draining_in_smart_standby_is_reported() {
    for (mode, reasons) in
        [(MidleMode::SmartStandby, vec![Reason::DrainInSmartStandby]), (MidleMode::NoStandby, vec![])]
    {
        let mut board = Board::new();
        board.sdma.write(offset::OCP_SYSCONFIG, OcpSysconfig::new().with_midle_mode(mode).into_bits());
        board.program(0, from_peripheral(8, 1));
        board.enable(0);
        assert!(board.sdma.request(LINE));
        board.disable(0);
        board.run();
        assert!(board.csr(0).drain());
        assert_eq!(board.reasons(), reasons);
    }
}
