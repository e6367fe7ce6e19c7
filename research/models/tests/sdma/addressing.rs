//! Addressing modes, fill, transparent copy and byte order.
//!
//! ```text
//! a block of a few elements ──► the expected bytes at the destination
//! ```
//!
//! `properties` compares random blocks with an oracle.

use super::support::{BASE, Board, copy, pattern};
use memferry_models::sdma::Reason;
use memferry_registers::sdma::{AddressingMode, DataType};

fn expected(address: u32, length: usize) -> Vec<u8> {
    let begin = (address - BASE) as usize;
    pattern()[begin..begin + length].to_vec()
}

#[test]
fn post_increment_copies_a_block() {
    let mut board = Board::new();
    let csr = board.transfer(0, copy(10, 3));
    assert!(csr.block() && !csr.is_error());
    assert_eq!(board.memory(BASE + 0x8000, 120), expected(BASE + 0x1000, 120));
    assert_eq!(
        board.memory(BASE + 0x8078, 4),
        expected(BASE + 0x8078, 4),
        "bytes after the block are untouched"
    );
    assert_eq!(board.reasons(), []);
}

#[test]
fn double_index_rotates_an_image() {
    let width = 4;
    let height = 3;
    let mut block = copy(width, height);
    block.csdp.set_data_type(DataType::Bits8);
    block.ccr.set_destination_addressing(AddressingMode::DoubleIndex);
    block.destination = BASE + 0x8000 + height - 1;
    let step = height as i32;
    let rows = width as i32;
    block.destination_index = (step as i16, -(rows - 1) * step - 1);
    let mut board = Board::new();
    assert!(board.transfer(7, block).block());
    let source = expected(BASE + 0x1000, 12);
    for row in 0..height as usize {
        for column in 0..width as usize {
            let rotated = column * height as usize + (height as usize - 1 - row);
            assert_eq!(board.memory(BASE + 0x8000, 12)[rotated], source[row * width as usize + column]);
        }
    }
}

#[test]
fn a_negative_single_index_reverses_elements() {
    let mut block = copy(4, 1);
    block.ccr.set_source_addressing(AddressingMode::SingleIndex);
    block.source = BASE + 0x100C;
    block.source_index = (-7, 0);
    let mut board = Board::new();
    assert!(board.transfer(0, block).block());
    let reversed: Vec<u8> = expected(BASE + 0x1000, 16).chunks(4).rev().flatten().copied().collect();
    assert_eq!(board.memory(BASE + 0x8000, 16), reversed);
}

#[test]
fn refuses_constant_addressing_in_memory() {
    for source in [true, false] {
        let mut block = copy(4, 1);
        match source {
            true => block.ccr.set_source_addressing(AddressingMode::Constant),
            false => block.ccr.set_destination_addressing(AddressingMode::Constant),
        }
        let mut board = Board::new();
        let csr = board.transfer(0, block);
        assert_eq!(csr.into_bits(), 0);
        assert!(!board.ccr(0).enable());
        assert_eq!(board.reasons(), [Reason::ConstantMemory]);
        assert!(board.sdma.bus().log.is_empty());
    }
}

#[test]
fn fill_writes_the_color_and_reads_nothing() {
    for (data_type, bytes) in [
        (DataType::Bits8, [0x33, 0x33, 0x33, 0x33]),
        (DataType::Bits16, [0x33, 0x22, 0x33, 0x22]),
        (DataType::Bits32, [0x33, 0x22, 0x11, 0x00]),
    ] {
        let mut block = copy(8, 2);
        block.csdp.set_data_type(data_type);
        block.ccr.set_constant_fill(true);
        block.ccr.set_source_addressing(AddressingMode::Constant);
        // The register's upper eight bits are none of the colour's; the model only complains of them.
        block.color = 0x9A11_2233;
        let mut board = Board::new();
        assert!(board.transfer(3, block).block());
        assert_eq!(board.memory(BASE + 0x8000, 4), bytes, "{data_type}");
        assert!(board.lengths(false).is_empty());
        assert_eq!(board.reasons(), [Reason::ReservedBits]);
    }
}

#[test]
fn transparent_copy_skips_the_color() {
    let mut board = Board::new();
    let pixels = [0xFF11_2233_u32, 0x0011_2233, 0x0011_2234, 0xAA11_2233, 1];
    for (index, pixel) in pixels.iter().enumerate() {
        let at = 0x1000 + 4 * index;
        board.sdma.bus_mut().ram.bytes_mut()[at..at + 4].copy_from_slice(&pixel.to_le_bytes());
    }
    let mut block = copy(5, 1);
    block.ccr.set_transparent_copy(true);
    block.color = 0x9A11_2233;
    assert!(board.transfer(0, block).block());
    let before = expected(BASE + 0x8000, 20);
    assert_eq!(board.memory(BASE + 0x8000, 8), &before[..8]);
    assert_eq!(board.memory(BASE + 0x8008, 4), 0x0011_2234_u32.to_le_bytes());
    assert_eq!(board.memory(BASE + 0x800C, 4), &before[12..16]);
    assert_eq!(board.memory(BASE + 0x8010, 4), 1_u32.to_le_bytes());
}

#[test]
fn refuses_fill_and_transparent_copy_at_once() {
    let mut block = copy(4, 1);
    block.ccr.set_constant_fill(true);
    block.ccr.set_transparent_copy(true);
    let mut board = Board::new();
    board.transfer(0, block);
    assert_eq!(board.reasons(), [Reason::FillAndTransparent]);
}

#[test]
fn differing_byte_orders_are_swapped() {
    let mut block = copy(2, 1);
    block.csdp.set_destination_big_endian(true);
    let mut board = Board::new();
    assert!(board.transfer(0, block).block());
    let swapped: Vec<u8> =
        expected(BASE + 0x1000, 8).chunks(4).flat_map(|word| word.iter().rev()).copied().collect();
    assert_eq!(board.memory(BASE + 0x8000, 8), swapped);
    assert_eq!(board.reasons(), [Reason::BigEndian]);

    block.csdp.set_source_big_endian(true);
    let mut board = Board::new();
    board.transfer(0, block);
    assert_eq!(board.memory(BASE + 0x8000, 8), expected(BASE + 0x1000, 8));
}

#[test]
fn progress_registers_follow_the_block() {
    let mut board = Board::new();
    board.program(0, copy(4, 2));
    board.enable(0);
    let mut seen = Vec::new();
    while board.step() {
        use memferry_registers::sdma::Register;
        seen.push((board.get(0, Register::Ccfn), board.get(0, Register::Ccen)));
    }
    seen.dedup();
    assert!(seen.is_sorted(), "{seen:?}");
    assert!(seen.contains(&(0, 3)) && seen.contains(&(1, 1)));
    assert_eq!(seen.last(), Some(&(2, 0)));
}
