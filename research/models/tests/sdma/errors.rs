//! Errors that the device reports, and injected faults.
//!
//! ```text
//! misaligned address, bus error, user access to a supervisor channel ──► CSR, and the channel stops
//! ```
//!
//! `synchronized` tests dropped requests.

use super::support::{BASE, Board, SIZE, copy};
use memferry_clock::Instant;
use memferry_models::sdma::{Config, Reason};
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Register};
use memferry_registers::sdma::{AddressingMode, Csr, WriteMode};

#[test]
fn a_misaligned_address_stops_the_channel() {
    for (source, destination) in [(2, 0), (0, 1)] {
        let mut block = copy(8, 1);
        block.source += source;
        block.destination += destination;
        let mut board = Board::new();
        let csr = board.transfer(0, block);
        assert!(csr.misaligned_error() && !csr.block());
        assert!(!board.ccr(0).enable());
        assert!(board.lengths(true).is_empty());
    }
}

#[test]
fn a_misaligning_index_stops_the_channel() {
    let mut block = copy(8, 1);
    block.ccr.set_source_addressing(AddressingMode::SingleIndex);
    block.source_index = (3, 0);
    let mut board = Board::new();
    assert!(board.transfer(0, block).misaligned_error());
    assert_eq!(board.lengths(false).len(), 1, "the first element is aligned");
}

#[test]
fn a_bus_error_stops_the_channel() {
    for address in [BASE + 0x1010, BASE + 0x8010] {
        let mut board = Board::new();
        board.sdma.faults().bus_error_at(address..=address);
        let csr = board.transfer(0, copy(16, 2));
        assert!(csr.transaction_error() && !csr.block(), "{csr}");
        assert!(!board.ccr(0).enable());
        assert!(!board.sdma.is_busy());
        board.sdma.faults().clear();
        assert!(board.transfer(0, copy(16, 2)).block(), "the channel can be used again");
    }
}

#[test]
fn unmapped_addresses_are_transaction_errors() {
    for (source, destination) in [(0x1000, BASE), (BASE, BASE + SIZE as u32 - 8), (u32::MAX - 3, BASE)] {
        let mut block = copy(8, 1);
        (block.source, block.destination) = (source, destination);
        assert!(Board::new().transfer(0, block).transaction_error());
    }
}

#[test]
fn only_non_posted_writes_report_errors() {
    let run = |write_mode, faulty: u32| {
        let mut board = Board::with(Config { posted_errors: false, ..Config::default() });
        board.sdma.faults().bus_error_at(faulty..=faulty);
        let mut block = copy(8, 1);
        block.csdp.set_write_mode(write_mode);
        board.transfer(0, block)
    };
    let first = BASE + 0x8000;
    let last = BASE + 0x801C;
    assert!(run(WriteMode::Posted, first).block());
    assert!(run(WriteMode::LastNonPosted, first).block());
    assert!(run(WriteMode::LastNonPosted, last).transaction_error());
    assert!(run(WriteMode::NonPosted, first).transaction_error());
}

#[test]
fn users_cannot_access_supervisor_channels() {
    let mut board = Board::new();
    let mut block = copy(8, 1);
    block.ccr.set_supervisor(true);
    board.program(0, block);
    let cen = offset::channel(0, Register::Cen);
    assert_eq!(board.sdma.unprivileged().read(cen), 0);
    board.sdma.unprivileged().write(cen, 99);
    assert_eq!(board.get(0, Register::Cen), 8);
    assert!(board.csr(0).supervisor_error());
    assert_eq!(board.reasons(), [Reason::NotPrivileged; 2]);
}

#[test]
fn users_cannot_set_the_supervisor_bit() {
    let mut board = Board::new();
    board.program(0, copy(8, 1));
    let mut ccr = board.ccr(0);
    ccr.set_supervisor(true);
    board.sdma.unprivileged().write(offset::channel(0, Register::Ccr), ccr.into_bits());
    assert!(!board.ccr(0).supervisor());
    assert!(board.csr(0).supervisor_error());
}

#[test]
fn a_lost_interrupt_leaves_the_line_low() {
    let mut board = Board::new();
    board.sdma.write(offset::irq_enable(0), 1);
    board.sdma.faults().lose_interrupts(1);
    assert!(board.transfer(0, copy(4, 1)).block());
    assert_eq!(board.sdma.read(offset::irq_status(0)), 1);
    assert!(!board.sdma.line(0));

    board.set(0, Register::Csr, Csr::ALL.into_bits());
    board.sdma.write(offset::irq_status(0), 1);
    board.transfer(0, copy(4, 1));
    assert!(board.sdma.line(0), "only one was lost");
}

#[test]
fn a_stuck_channel_waits_for_its_release() {
    let mut board = Board::new();
    board.sdma.faults().stick(0);
    board.program(0, copy(4, 1));
    board.program(1, copy(4, 1));
    board.enable(0);
    board.enable(1);
    board.run();
    assert!(!board.csr(0).block() && board.csr(1).block());
    assert!(board.ccr(0).enable());
    board.disable(0);
    assert!(!board.sdma.is_busy());

    board.enable(0);
    board.run();
    board.sdma.faults().release(0);
    board.sdma.step(Instant::ORIGIN);
    board.run();
    assert!(board.csr(0).block());
}
