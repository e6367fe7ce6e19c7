//! Scatter and gather with linked lists of descriptors.
//!
//! ```text
//! descriptors in memory ──► channel ──► blocks one after the other ──► end of super block
//! ```
//!
//! `memferry-registers` tests the descriptors' layout.

use super::support::{BASE, Board, copy, pattern};
use memferry_models::sdma::Reason;
use memferry_registers::sdma::descriptor::{Body, Descriptor, Header, MAX_BYTES, Next, Shape, Whole};
use memferry_registers::sdma::offset::Register;
use memferry_registers::sdma::{
    AddressSource, Cdp, Cfn, Cicr, ClnkCtrl, Cndp, Color, Csr, DescriptorType, TransferMode,
};
use proptest::prelude::*;

const LIST: u32 = BASE + 0xF000;

/// A type 2b descriptor of `elements` contiguous elements to `destination`; the next one is of type 2b too.
fn gather(next: Next, destination: u32, elements: u32) -> Descriptor {
    Descriptor {
        next,
        header: Header::new()
            .with_elements(elements)
            .with_next_type(DescriptorType::Type2)
            .with_next_source(AddressSource::Continue)
            .with_next_destination(AddressSource::Reload),
        source: None,
        destination: Some(destination),
        body: Body::Type2(Shape {
            cicr: Cicr::ALL,
            cfn: Cfn::new().with_frames(1),
            source_element_index: 1,
            destination_element_index: 1,
            source_frame_index: 1,
            destination_frame_index: 1,
        }),
    }
}

fn put(board: &mut Board, address: u32, descriptor: &Descriptor) {
    let mut bytes = [0; MAX_BYTES];
    let length = descriptor.encode(&mut bytes).expect("a descriptor that can be written");
    let begin = (address - BASE) as usize;
    board.sdma.bus_mut().ram.bytes_mut()[begin..begin + length].copy_from_slice(&bytes[..length]);
}

/// Points channel 0 at the list, whose first descriptor is of type 2 with a destination.
fn follow(board: &mut Board, fast: bool, source: AddressSource) {
    let cdp = Cdp::new()
        .with_transfer_mode(TransferMode::LinkedList)
        .with_next_descriptor_type(DescriptorType::Type2)
        .with_source_valid(source)
        .with_destination_valid(AddressSource::Reload)
        .with_fast_start(fast);
    board.set(0, Register::Cdp, cdp.into_bits());
    board.set(0, Register::Cndp, Cndp::new().with_address(LIST).into_bits());
    board.set(0, Register::Ccdn, 0);
}

fn source(offset: usize, length: usize) -> Vec<u8> {
    pattern()[0x1000 + offset..0x1000 + offset + length].to_vec()
}

#[test]
fn a_list_scatters_a_source() {
    for fast in [false, true] {
        let mut board = Board::new();
        board.program(0, copy(2, 1));
        follow(&mut board, fast, AddressSource::Continue);
        put(&mut board, LIST, &gather(Next::new().with_address(LIST + 0x40), BASE + 0x9000, 3));
        put(&mut board, LIST + 0x40, &gather(Next::END, BASE + 0xA000, 4));
        board.enable(0);
        let mut blocks = 0;
        let mut early = false;
        while board.step() {
            let csr = board.csr(0);
            blocks += u32::from(csr.block());
            early |= csr.super_block() && board.ccr(0).enable();
            board.set(0, Register::Csr, Csr::new().with_block(true).into_bits());
        }
        assert!(board.csr(0).super_block() && !early);
        assert_eq!(blocks, if fast { 2 } else { 3 });
        assert_eq!(board.get(0, Register::Ccdn), 2);
        let first = if fast { 0 } else { 8 };
        if !fast {
            assert_eq!(board.memory(BASE + 0x8000, 8), source(0, 8));
        }
        assert_eq!(board.memory(BASE + 0x9000, 12), source(first, 12));
        assert_eq!(board.memory(BASE + 0xA000, 16), source(first + 12, 16));
        assert_eq!(board.reasons(), []);
    }
}

#[test]
fn a_reused_address_repeats_the_last_source() {
    let mut board = Board::new();
    board.program(0, copy(2, 1));
    follow(&mut board, false, AddressSource::Reuse);
    put(&mut board, LIST, &gather(Next::END, BASE + 0x9000, 3));
    board.enable(0);
    board.run();
    assert_eq!(board.memory(BASE + 0x9000, 12), source(0, 12));
}

#[test]
fn type_1_loads_all_and_type_3_only_addresses() {
    let mut board = Board::new();
    let block = copy(2, 1);
    board.program(0, block);
    follow(&mut board, true, AddressSource::Continue);
    let cdp = Cdp::from_bits(board.get(0, Register::Cdp)).with_next_descriptor_type(DescriptorType::Type1);
    board.set(0, Register::Cdp, cdp.into_bits());
    let second = gather(Next::new().with_address(LIST + 0x40), BASE + 0x9000, 3);
    let Body::Type2(shape) = second.body else { unreachable!("gather makes type 2") };
    let whole = Whole {
        color: Color::new().with_value(0x55),
        csdp: block.csdp,
        clnk_ctrl: ClnkCtrl::new(),
        ccr: block.ccr.with_constant_fill(true),
    };
    let header = second.header.with_next_type(DescriptorType::Type3);
    let first = Descriptor { source: Some(0), body: Body::Type1(shape, whole), header, ..second };
    put(&mut board, LIST, &first);
    let third = Descriptor {
        next: Next::END,
        header: header.with_elements(1).with_block_interrupt(false),
        destination: Some(BASE + 0xA000),
        body: Body::Type3,
        ..second
    };
    put(&mut board, LIST + 0x40, &third);
    board.enable(0);
    board.run();
    assert_eq!(board.memory(BASE + 0x9000, 12), [0x55, 0, 0, 0, 0x55, 0, 0, 0, 0x55, 0, 0, 0]);
    assert_eq!(board.memory(BASE + 0xA000, 4), [0x55, 0, 0, 0]);
    assert_eq!(board.memory(BASE + 0xA004, 4), pattern()[0xA004..0xA008].to_vec());
    assert!(!Cicr::from_bits(board.get(0, Register::Cicr)).block(), "type 3 carries CICR's block bit");
    assert_eq!(board.reasons(), []);
}

#[test]
fn a_pause_holds_the_list_until_cleared() {
    let mut board = Board::new();
    board.program(0, copy(2, 1));
    follow(&mut board, true, AddressSource::Continue);
    put(&mut board, LIST, &gather(Next::END.with_pause(true), BASE + 0x9000, 3));
    board.enable(0);
    board.run();
    let cdp = Cdp::from_bits(board.get(0, Register::Cdp));
    assert!(cdp.pause() && board.ccr(0).enable());
    assert!(board.lengths(true).is_empty());
    board.set(0, Register::Cdp, cdp.with_pause(false).into_bits());
    board.run();
    assert!(board.csr(0).super_block());
    assert_eq!(board.memory(BASE + 0x9000, 12), source(0, 12));
    assert_eq!(board.reasons(), []);
}

#[test]
fn a_paused_list_can_be_disabled() {
    let mut board = Board::new();
    board.program(0, copy(2, 1));
    follow(&mut board, true, AddressSource::Continue);
    put(&mut board, LIST, &gather(Next::END.with_pause(true), BASE + 0x9000, 3));
    board.enable(0);
    board.run();
    board.disable(0);
    assert!(!board.sdma.is_busy());
}

#[test]
fn an_unreadable_descriptor_is_an_error() {
    let mut board = Board::new();
    board.program(0, copy(2, 1));
    follow(&mut board, true, AddressSource::Continue);
    board.set(0, Register::Cndp, 0x1000);
    board.enable(0);
    board.run();
    assert!(board.csr(0).transaction_error());
    assert!(!board.ccr(0).enable());
}

#[test]
fn reports_an_undefined_descriptor_form() {
    let mut board = Board::new();
    board.program(0, copy(2, 1));
    follow(&mut board, true, AddressSource::Undefined);
    board.enable(0);
    board.run();
    assert_eq!(board.reasons(), [Reason::BadDescriptor]);
    assert!(!board.ccr(0).enable());
}

#[test]
fn a_list_continues_after_a_link() {
    let mut board = Board::new();
    board.program(0, copy(2, 1));
    follow(&mut board, false, AddressSource::Continue);
    put(&mut board, LIST, &gather(Next::END, BASE + 0x9000, 3));
    board.set(0, Register::ClnkCtrl, ClnkCtrl::new().with_enable_link(true).with_next_channel(1).into_bits());
    let mut other = copy(1, 1);
    other.destination = BASE + 0xB000;
    board.program(1, other);
    board.set(1, Register::ClnkCtrl, ClnkCtrl::new().with_enable_link(true).with_next_channel(0).into_bits());
    board.enable(0);
    while !board.csr(1).block() {
        assert!(board.step());
        assert!(!board.csr(0).super_block());
    }
    board.set(0, Register::ClnkCtrl, 0);
    board.run();
    assert!(board.csr(0).super_block());
    assert_eq!(board.memory(BASE + 0x9000, 12), source(8, 12));
}

#[test]
fn an_early_request_serves_the_next_block() {
    let mut board = Board::new();
    let mut block = copy(2, 1);
    block.ccr = block.ccr.with_request(9).with_block_sync(true);
    board.program(0, block);
    follow(&mut board, true, AddressSource::Continue);
    put(&mut board, LIST, &gather(Next::END, BASE + 0x9000, 3));
    board.enable(0);
    assert!(board.sdma.request(8));
    board.run();
    assert!(board.csr(0).super_block() && !board.csr(0).drop());
    assert_eq!(board.memory(BASE + 0x9000, 12), source(0, 12));
}

#[test]
fn reports_a_link_to_a_fast_start_channel() {
    let mut board = Board::new();
    board.program(0, copy(2, 1));
    follow(&mut board, true, AddressSource::Continue);
    put(&mut board, LIST, &gather(Next::END, BASE + 0x9000, 3));
    board.program(1, copy(1, 1));
    board.set(1, Register::ClnkCtrl, ClnkCtrl::new().with_enable_link(true).into_bits());
    board.enable(1);
    board.run();
    assert_eq!(board.reasons(), [Reason::LinkToFastStart]);
    assert!(board.csr(0).super_block());
}

/// One block of a random list: elements, frames, whether its descriptor is type 3, source mode, source address.
type Piece = (u32, u16, bool, AddressSource, u32);

fn piece() -> impl Strategy<Value = Piece> {
    let source = (0u8..3).prop_map(AddressSource::from_bits);
    (1u32..12, 1u16..4, any::<bool>(), source, (0u32..0x400).prop_map(|at| BASE + 0x2000 + 4 * at))
}

/// The descriptor type and source mode that announce `piece`.
fn announce(piece: Option<&Piece>) -> (DescriptorType, AddressSource) {
    match piece {
        Some((_, _, true, source, _)) => (DescriptorType::Type3, *source),
        Some((_, _, false, source, _)) => (DescriptorType::Type2, *source),
        None => (DescriptorType::Undefined0, AddressSource::Continue),
    }
}

proptest! {
    #[test]
    fn random_lists_equal_the_expectation(
        pieces in prop::collection::vec(piece(), 1..7),
        fast: bool,
    ) {
        let mut board = Board::new();
        board.program(0, copy(2, 1));
        follow(&mut board, fast, AddressSource::Continue);
        let (kind, from) = announce(pieces.first());
        let cdp = Cdp::from_bits(board.get(0, Register::Cdp));
        board.set(0, Register::Cdp, cdp.with_next_descriptor_type(kind).with_source_valid(from).into_bits());
        let mut expected = pattern();
        let mut start = 0x1000;
        let mut end = 0x1000;
        let mut frames = 1;
        if !fast {
            expected.copy_within(0x1000..0x1008, 0x8000);
            end = 0x1008;
        }
        for (at, (elements, more_frames, third, from, address)) in pieces.iter().enumerate() {
            let place = LIST + 0x40 * at as u32;
            let destination = 0x9000 + 0x100 * at;
            let next = if at + 1 < pieces.len() { Next::new().with_address(place + 0x40) } else { Next::END };
            let mut descriptor = gather(next, BASE + destination as u32, *elements);
            let (kind, next_from) = announce(pieces.get(at + 1));
            descriptor.header = descriptor.header.with_next_type(kind).with_next_source(next_from);
            descriptor.source = (*from == AddressSource::Reload).then_some(*address);
            match &mut descriptor.body {
                body if *third => *body = Body::Type3,
                Body::Type2(shape) => {
                    frames = usize::from(*more_frames);
                    shape.cfn.set_frames(*more_frames);
                }
                _ => {}
            }
            put(&mut board, place, &descriptor);
            start = match from {
                AddressSource::Reload => (address - BASE) as usize,
                AddressSource::Continue => end,
                _ => start,
            };
            end = start + 4 * *elements as usize * frames;
            expected.copy_within(start..end, destination);
        }
        board.enable(0);
        board.run();
        let csr = board.csr(0);
        prop_assert!(csr.super_block() && !csr.is_error(), "{csr}");
        prop_assert_eq!(board.get(0, Register::Ccdn) as usize, pieces.len());
        prop_assert!(board.memory(BASE + 0x8000, 0x1800) == &expected[0x8000..0x9800]);
        prop_assert_eq!(board.reasons(), []);
    }
}
