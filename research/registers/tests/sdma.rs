//! Register values and descriptors of the SDMA: field positions, printing, and round trips of random values.
//!
//! ```text
//! bits ──► typed value ──► fields ──► typed value ──► the same bits
//! ```
//!
//! The unit tests of `sdma::offset` cover the offsets.

use memferry_registers::sdma::descriptor::{Body, Descriptor, Form, Header, MAX_BYTES, Next, Shape, Whole};
use memferry_registers::sdma::offset::{self, Location, Register};
use memferry_registers::sdma::{
    AddressSource, AddressingMode, BurstSize, Caps0, Ccr, Cdp, Cen, Cfn, Cicr, ClnkCtrl, Cndp, Color, Csdp,
    Csr, DataType, DescriptorType, FifoBudget, Gcr, MidleMode, OcpSysconfig, SidleMode, SysStatus,
    ThreadReservation, TransferMode, WriteMode, describe,
};
use proptest::prelude::*;

/// Asserts that the listed fields cover exactly the bits of `mask`.
macro_rules! fields_cover {
    ($name:ident, $mask:expr, $($with:ident($full:expr)),+) => {{
        let mut covered = 0u32;
        $(
            let field = $name::new().$with($full).into_bits();
            assert_eq!(covered & field, 0, "two fields of {} share bits", stringify!($name));
            covered |= field;
        )+
        assert_eq!(covered, $mask, "fields of {}", stringify!($name));
    }};
}

#[test]
fn ccr_fields_cover_their_bits() {
    fields_cover!(
        Ccr,
        Register::Ccr.implemented(),
        with_synchro_control(0x1F),
        with_frame_sync(true),
        with_read_priority(true),
        with_enable(true),
        with_suspend_sensitive(true),
        with_read_active(true),
        with_write_active(true),
        with_source_addressing(AddressingMode::DoubleIndex),
        with_destination_addressing(AddressingMode::DoubleIndex),
        with_constant_fill(true),
        with_transparent_copy(true),
        with_block_sync(true),
        with_synchro_control_upper(3),
        with_supervisor(true),
        with_prefetch(true),
        with_source_sync(true),
        with_buffering_disable(true),
        with_write_priority(true)
    );
}

#[test]
fn csdp_fields_cover_their_bits() {
    fields_cover!(
        Csdp,
        Register::Csdp.implemented(),
        with_data_type(DataType::Reserved),
        with_source_packed(true),
        with_source_burst(BurstSize::Bytes64),
        with_destination_packed(true),
        with_destination_burst(BurstSize::Bytes64),
        with_write_mode(WriteMode::Undefined),
        with_destination_endian_lock(true),
        with_destination_big_endian(true),
        with_source_endian_lock(true),
        with_source_big_endian(true)
    );
}

#[test]
fn other_channel_fields_cover_their_bits() {
    fields_cover!(
        Cdp,
        Register::Cdp.implemented(),
        with_destination_valid(AddressSource::Undefined),
        with_source_valid(AddressSource::Undefined),
        with_next_descriptor_type(DescriptorType::Undefined7),
        with_pause(true),
        with_transfer_mode(TransferMode::Undefined3),
        with_fast_start(true)
    );
    fields_cover!(ClnkCtrl, Register::ClnkCtrl.implemented(), with_next_channel(31), with_enable_link(true));
    fields_cover!(Cen, Register::Cen.implemented(), with_elements(0xFF_FFFF));
    fields_cover!(Cfn, Register::Cfn.implemented(), with_frames(0xFFFF));
    fields_cover!(Color, Register::Color.implemented(), with_value(0xFF_FFFF));
    fields_cover!(Cndp, Register::Cndp.implemented(), with_words(0x3FFF_FFFF));
    assert_eq!(Csr::ALL.into_bits(), Register::Csr.implemented());
    assert_eq!(Cicr::ALL.into_bits(), Register::Cicr.implemented());
}

#[test]
fn global_register_fields_cover_their_bits() {
    fields_cover!(
        Gcr,
        Location::Gcr.implemented(),
        with_max_channel_fifo_depth(0xFF),
        with_thread_reservation(ThreadReservation::Three),
        with_fifo_budget(FifoBudget::Low50),
        with_arbitration_rate(0xFF),
        with_channel_id_gate(true)
    );
    fields_cover!(
        OcpSysconfig,
        Location::OcpSysconfig.implemented(),
        with_auto_idle(true),
        with_soft_reset(true),
        with_sidle_mode(SidleMode::Reserved),
        with_emu_free(true),
        with_clock_activity(3),
        with_midle_mode(MidleMode::Reserved)
    );
    fields_cover!(SysStatus, Location::SysStatus.implemented(), with_reset_done(true));
    fields_cover!(
        Caps0,
        Location::Caps0.implemented(),
        with_transparent_copy(true),
        with_constant_fill(true),
        with_linked_list_types_123(true),
        with_linked_list_type_4(true)
    );
}

#[test]
fn fields_match_the_manual() {
    assert_eq!(Ccr::new().with_enable(true).into_bits(), 1 << 7);
    assert_eq!(Ccr::new().with_source_addressing(AddressingMode::PostIncrement).into_bits(), 1 << 12);
    assert_eq!(Ccr::new().with_destination_addressing(AddressingMode::DoubleIndex).into_bits(), 3 << 14);
    assert_eq!(Ccr::new().with_source_sync(true).into_bits(), 1 << 24);
    assert_eq!(Ccr::new().with_write_priority(true).into_bits(), 1 << 26);
    assert_eq!(Ccr::new().with_request(0x7F).into_bits(), 0x0018_001F);
    assert_eq!(Csr::new().with_drop(true).into_bits(), 1 << 1);
    assert_eq!(Csr::new().with_sync(true).into_bits(), 1 << 6);
    assert_eq!(Csr::new().with_drain(true).into_bits(), 1 << 12);
    assert_eq!(Cicr::new().with_super_block(true).into_bits(), 1 << 14);
    assert_eq!(Csdp::new().with_data_type(DataType::Bits32).into_bits(), 2);
    assert_eq!(Csdp::new().with_source_burst(BurstSize::Bytes64).into_bits(), 3 << 7);
    assert_eq!(Csdp::new().with_write_mode(WriteMode::LastNonPosted).into_bits(), 2 << 16);
    assert_eq!(Csdp::new().with_source_big_endian(true).into_bits(), 1 << 21);
    assert_eq!(Gcr::RESET.max_channel_fifo_depth(), 16);
    assert_eq!(Cdp::new().with_transfer_mode(TransferMode::LinkedList).into_bits(), 1 << 8);
    assert_eq!(Cndp::new().with_address(0x8000_0013).into_bits(), 0x8000_0010);
}

#[test]
fn prints_set_fields_and_reserved_bits() {
    let ccr = Ccr::new()
        .with_enable(true)
        .with_source_addressing(AddressingMode::PostIncrement)
        .with_destination_addressing(AddressingMode::DoubleIndex)
        .with_request(66)
        .with_frame_sync(true);
    let text = describe(offset::channel(3, Register::Ccr), ccr.into_bits() | 1 << 31).to_string();
    assert_eq!(
        text,
        "CCR of channel 3: enabled, source post-increment, destination double index, a frame for each request 66 \
         of the destination (reserved bits 0x80000000)"
    );
    assert_eq!(describe(offset::irq_status(2), 0x8000_0001).to_string(), "IRQSTATUS_L2: channels 0 31");
    assert_eq!(
        describe(offset::channel(0, Register::Csr), 0x120).to_string(),
        "CSR of channel 0: end of block, transaction error"
    );
    assert_eq!(
        describe(offset::channel(9, Register::Csei), 0xFFFF).to_string(),
        "CSEI of channel 9: -1 bytes"
    );
    assert_eq!(
        describe(offset::GCR, Gcr::RESET.into_bits()).to_string(),
        "GCR: FIFO depth 16 a channel, arbitration rate 1, no thread reserved for high priority, FIFO pool shared"
    );
    assert_eq!(describe(0x30, 7).to_string(), "no register at 0x030: 0x00000007");
}

#[test]
fn encodes_descriptors_in_the_device_layout() {
    let descriptor = Descriptor {
        next: Next::new().with_address(0x8000_1000).with_pause(true),
        header: Header::new()
            .with_elements(0x123456)
            .with_next_source(AddressSource::Reload)
            .with_next_destination(AddressSource::Reuse)
            .with_next_type(DescriptorType::Type2),
        source: None,
        destination: Some(0x9000_0000),
        body: Body::Type2(Shape {
            cicr: Cicr::new().with_block(true),
            cfn: Cfn::new().with_frames(7),
            source_element_index: -2,
            destination_element_index: 3,
            source_frame_index: -4,
            destination_frame_index: 5,
        }),
    };
    let mut bytes = [0xAA; MAX_BYTES];
    assert_eq!(descriptor.encode(&mut bytes), Some(28));
    let words: Vec<u32> =
        bytes[..28].chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
    assert_eq!(words, [0x8000_1001, 0x4912_3456, 0x9000_0000, 0x0020_0007, 0xFFFE_0003, 5, 0xFFFF_FFFC]);
    assert!(bytes[28..].iter().all(|byte| *byte == 0xAA), "bytes past the descriptor must not change");
}

#[test]
fn refuses_undefined_descriptor_forms() {
    let list = Cdp::new().with_transfer_mode(TransferMode::LinkedList);
    for kind in [DescriptorType::Undefined0, DescriptorType::Undefined4, DescriptorType::Undefined7] {
        let cdp = list.with_next_descriptor_type(kind).with_source_valid(AddressSource::Reload);
        assert_eq!(Form::announced(cdp), None);
    }
    let second = list.with_next_descriptor_type(DescriptorType::Type2);
    assert_eq!(Form::announced(second), None, "type 2 without an address");
    let undefined = second.with_source_valid(AddressSource::Undefined);
    assert_eq!(Form::announced(undefined.with_destination_valid(AddressSource::Reload)), None);
    let both = second.with_source_valid(AddressSource::Reload).with_destination_valid(AddressSource::Reload);
    assert_eq!(Form::announced(both).map(Form::words), Some(8));
    let third = both.with_next_descriptor_type(DescriptorType::Type3).with_source_valid(AddressSource::Reuse);
    assert_eq!(Form::announced(third).map(Form::words), Some(3));
}

#[test]
fn refuses_type_1_without_address_or_room() {
    let whole = Whole { color: Color::new(), csdp: Csdp::new(), clnk_ctrl: ClnkCtrl::new(), ccr: Ccr::new() };
    let descriptor = Descriptor {
        next: Next::END,
        header: Header::new(),
        source: Some(0),
        destination: None,
        body: Body::Type1(shape([0; 6]), whole),
    };
    assert_eq!(descriptor.encode(&mut [0; MAX_BYTES]), None);
    let complete = Descriptor { destination: Some(0), ..descriptor };
    assert_eq!(complete.encode(&mut [0; MAX_BYTES - 1]), None);
    assert_eq!(complete.encode(&mut [0; MAX_BYTES]), Some(MAX_BYTES));
    assert!(complete.next.pointer().is_end());
}

fn shape(words: [u32; 6]) -> Shape {
    Shape {
        cicr: Cicr::from_bits(words[0] & 0xFFFF),
        cfn: Cfn::from_bits(words[1] & 0xFFFF),
        source_element_index: words[2] as i16,
        destination_element_index: words[3] as i16,
        source_frame_index: words[4] as i32,
        destination_frame_index: words[5] as i32,
    }
}

proptest! {
    #[test]
    fn setting_every_field_rebuilds_the_value(bits: u32) {
        let ccr = Ccr::from_bits(bits & Register::Ccr.implemented());
        let again = Ccr::new()
            .with_request(ccr.request())
            .with_frame_sync(ccr.frame_sync())
            .with_read_priority(ccr.read_priority())
            .with_enable(ccr.enable())
            .with_suspend_sensitive(ccr.suspend_sensitive())
            .with_read_active(ccr.read_active())
            .with_write_active(ccr.write_active())
            .with_source_addressing(ccr.source_addressing())
            .with_destination_addressing(ccr.destination_addressing())
            .with_constant_fill(ccr.constant_fill())
            .with_transparent_copy(ccr.transparent_copy())
            .with_block_sync(ccr.block_sync())
            .with_supervisor(ccr.supervisor())
            .with_prefetch(ccr.prefetch())
            .with_source_sync(ccr.source_sync())
            .with_buffering_disable(ccr.buffering_disable())
            .with_write_priority(ccr.write_priority());
        prop_assert_eq!(ccr, again);

        let csdp = Csdp::from_bits(bits & Register::Csdp.implemented());
        let again = Csdp::new()
            .with_data_type(csdp.data_type())
            .with_source_packed(csdp.source_packed())
            .with_source_burst(csdp.source_burst())
            .with_destination_packed(csdp.destination_packed())
            .with_destination_burst(csdp.destination_burst())
            .with_write_mode(csdp.write_mode())
            .with_destination_endian_lock(csdp.destination_endian_lock())
            .with_destination_big_endian(csdp.destination_big_endian())
            .with_source_endian_lock(csdp.source_endian_lock())
            .with_source_big_endian(csdp.source_big_endian());
        prop_assert_eq!(csdp, again);

        let cdp = Cdp::from_bits(bits & Register::Cdp.implemented());
        let again = Cdp::new()
            .with_destination_valid(cdp.destination_valid())
            .with_source_valid(cdp.source_valid())
            .with_next_descriptor_type(cdp.next_descriptor_type())
            .with_pause(cdp.pause())
            .with_transfer_mode(cdp.transfer_mode())
            .with_fast_start(cdp.fast_start());
        prop_assert_eq!(cdp, again);
    }

    #[test]
    fn prints_any_value_of_any_register(value: u32, offset in 0u32..0x1000) {
        prop_assert!(!describe(offset, value).to_string().is_empty());
    }

    #[test]
    fn decodes_what_it_encodes(
        next: u32, header: u32, source: Option<u32>, destination: Option<u32>, words: [u32; 6], kind in 1..=3,
    ) {
        let whole = Whole {
            color: Color::from_bits(words[0]),
            csdp: Csdp::from_bits(words[1]),
            clnk_ctrl: ClnkCtrl::from_bits(words[2]),
            ccr: Ccr::from_bits(words[3]),
        };
        let body = match kind {
            1 => Body::Type1(shape(words), whole),
            2 => Body::Type2(shape(words)),
            _ => Body::Type3,
        };
        let next = Next::from_bits(next);
        let header = Header::from_bits(header);
        let descriptor = Descriptor { next, header, source, destination, body };
        let mut bytes = [0; MAX_BYTES];
        match descriptor.encode(&mut bytes) {
            Some(length) => {
                let form = descriptor.form();
                prop_assert_eq!(length, form.bytes());
                prop_assert_eq!(Descriptor::decode(form, &bytes[..length]), Some(descriptor));
                prop_assert_eq!(Descriptor::decode(form, &bytes[..length - 1]), None);
            }
            None => prop_assert!(kind == 1 && (source.is_none() || destination.is_none())),
        }
    }
}
