//! Register values and descriptors of the I/OAT engine: field positions, printing, and round trips of random values.
//!
//! ```text
//! bits ──► typed value ──► fields ──► the same bits          descriptor ──► 64 bytes ──► the same descriptor
//! ```
//!
//! The unit tests of `ioat::offset` cover the offsets.

use memferry_ioat_registers::descriptor::{Body, Control, Descriptor, Sources, Undecodable, WORDS, opcode};
use memferry_ioat_registers::{
    Cbver, Chancmd, Chancnt, Chanctrl, Chanerr, Chansts, DmaCapability, DmaComp, Genctrl, General, Intrctrl,
    Location, Register, TransferState, Xfercap, describe,
};
use proptest::prelude::*;

/// Asserts that the listed fields cover exactly the implemented bits of the register.
macro_rules! fields_cover {
    ($name:ident, $location:expr, $($with:ident($full:expr)),+) => {{
        let mut covered = 0u64;
        $(
            let field = u64::from($name::new().$with($full).into_bits());
            assert_eq!(covered & field, 0, "two fields of {} share bits", stringify!($name));
            covered |= field;
        )+
        assert_eq!(covered, $location.implemented(), "fields of {}", stringify!($name));
    }};
}

const fn of_channel(register: Register) -> Location {
    Location::Channel(1, register)
}

#[test]
fn general_register_fields_cover_their_bits() {
    fields_cover!(Chancnt, Location::General(General::Chancnt), with_channels(31));
    fields_cover!(Xfercap, Location::General(General::Xfercap), with_log2(31));
    fields_cover!(Genctrl, Location::General(General::Genctrl), with_debug_enable(true));
    fields_cover!(
        Intrctrl,
        Location::General(General::Intrctrl),
        with_master_enable(true),
        with_status(true),
        with_interrupt(true),
        with_msix_vector_control(true)
    );
    fields_cover!(Cbver, Location::General(General::Cbver), with_major(15), with_minor(15));
    fields_cover!(
        DmaCapability,
        Location::General(General::Dmacapability),
        with_page_break(true),
        with_crc(true),
        with_marker_skipping(true),
        with_direct_cache_access(true),
        with_move_crc(true),
        with_block_fill(true),
        with_extended_apic_id(true),
        with_xor(true),
        with_pq(true),
        with_descriptor_write_back(true),
        with_raid_16(true)
    );
}

#[test]
fn channel_register_fields_cover_their_bits() {
    fields_cover!(
        Chanctrl,
        of_channel(Register::Chanctrl),
        with_interrupt_disable(true),
        with_error_completion_enable(true),
        with_any_error_abort_enable(true),
        with_error_interrupt_enable(true),
        with_descriptor_no_snoop(true),
        with_in_use(true),
        with_completion_dca_enable(true),
        with_priority(15)
    );
    fields_cover!(
        DmaComp,
        of_channel(Register::DmaComp),
        with_version_1(true),
        with_version_2(true),
        with_version_3(true)
    );
    fields_cover!(
        Chancmd,
        of_channel(Register::Chancmd),
        with_start(true),
        with_append(true),
        with_suspend(true),
        with_abort(true),
        with_resume(true),
        with_reset(true)
    );
    fields_cover!(
        Chansts,
        of_channel(Register::Chansts),
        with_state(TransferState::Undefined7),
        with_unaffiliated_error(true),
        with_soft_error(true),
        with_completed_upper(u64::MAX >> 6)
    );
    for register in [Register::Chanerr, Register::ChanerrMask] {
        let all = (0..19).map(|bit| 1 << bit).sum::<u64>();
        assert_eq!(of_channel(register).implemented(), all);
    }
}

#[test]
fn bits_match_the_datasheets() {
    assert_eq!(Chancmd::new().with_suspend(true).into_bits(), 0x04);
    assert_eq!(Chancmd::new().with_resume(true).into_bits(), 0x10);
    assert_eq!(Chancmd::new().with_reset(true).into_bits(), 0x20);
    assert_eq!(Chanctrl::new().with_in_use(true).into_bits(), 0x100);
    assert_eq!(Chanctrl::new().with_error_interrupt_enable(true).into_bits(), 0x10);
    assert_eq!(Intrctrl::new().with_interrupt(true).into_bits(), 4);
    assert_eq!(DmaCapability::new().with_block_fill(true).into_bits(), 0x40);
    assert_eq!(DmaCapability::new().with_xor(true).into_bits(), 0x100);
    assert_eq!(Chanerr::new().with_length(true).into_bits(), 0x800);
    assert_eq!(Chanerr::new().with_descriptor_count(true).into_bits(), 0x4_0000);
    assert_eq!(Chansts::from_bits(0x8043).state(), TransferState::Halted);
    assert_eq!(Chansts::from_bits(0x8043).completed(), 0x8040);
    assert_eq!((Xfercap::from_bits(20).bytes(), Xfercap::from_bits(0).bytes()), (1 << 20, 1 << 35));
    let control = Control::new().with_interrupt(true).with_completion_write(true).with_fence(true);
    assert_eq!(control.into_bits(), 0x19);
    assert_eq!(Control::new().with_opcode(opcode::XOR).with_variant(6).into_bits(), 0x8700_00C0);
}

#[test]
fn prints_set_fields_and_reserved_bits() {
    let status = Chansts::new().with_state(TransferState::Halted).with_completed(0x8040);
    let text = |location, value| describe(location, value).to_string();
    assert_eq!(
        text(of_channel(Register::Chansts), status.into_bits() | 0x20),
        "CHANSTS of channel 1: halted, descriptor 0x8040 completed (reserved bits 0x20)"
    );
    assert_eq!(
        text(of_channel(Register::Chanerr), 0x901),
        "CHANERR of channel 1: bad source address, source could not be read, bad length"
    );
    assert_eq!(text(of_channel(Register::Dmacount), 7), "DMACOUNT of channel 1: 7 descriptors");
    assert_eq!(text(Location::General(General::Attnstatus), 5), "ATTNSTATUS: channels 0 2");
    assert_eq!(text(Location::General(General::Cbver), 0x32), "CBVER: version 3.2");
    assert_eq!(
        text(Location::General(General::Intrctrl), 7),
        "INTRCTRL: interrupts enabled, a channel needs attention, the line is high"
    );
}

#[test]
fn encodes_descriptors_in_the_device_layout() {
    let sources = [0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000, 0x7000].map(|address: u64| address);
    let descriptor = Descriptor {
        size: 0x1234,
        control: Control::new().with_completion_write(true),
        next: 0x8040,
        body: Body::Xor { sources: Sources::new(&sources).unwrap(), destination: 0x9000 },
    };
    assert_eq!(descriptor.slots(), 2);
    let words = descriptor.encode();
    assert_eq!(words, [0x8700_00A8_0000_1234, 0x1000, 0x9000, 0x8040, 0x2000, 0x3000, 0x4000, 0x5000]);
    assert_eq!(descriptor.encode_extension(0x8080), Some([0x6000, 0x7000, 0, 0x8080, 0, 0, 0, 0]));
    let check = Body::XorCheck { sources: Sources::new(&sources).unwrap(), expected: 0x9000 };
    let check = Descriptor { body: check, ..descriptor };
    assert_eq!(check.encode()[..4], [0x8800_00A8_0000_1234, 0x1000, 0x9000, 0x8040]);
    assert_eq!((check.slots(), check.encode_extension(0x8080)), (2, descriptor.encode_extension(0x8080)));
    let fill = Descriptor { body: Body::Fill { pattern: 7, destination: 9 }, ..descriptor };
    assert_eq!(fill.encode(), [0x0100_0008_0000_1234, 7, 9, 0x8040, 0, 0, 0, 0]);
    assert_eq!((fill.slots(), fill.encode_extension(0)), (1, None));
    let null = Descriptor { body: Body::Null, ..descriptor };
    assert_eq!(null.encode()[0], 0x0000_0028_0000_1234);
    assert_eq!(
        fill.to_string(),
        "fill 4660 bytes at 0x9 with 0x0000000000000007, writes its completion, next 0x8040"
    );
}

#[test]
fn names_the_reason_of_a_decoding_failure() {
    let word = |control: Control| [u64::from(control.into_bits()) << 32, 0, 0, 0, 0, 0, 0, 0];
    let decoded = |control| Descriptor::decode(&word(control));
    assert_eq!(decoded(Control::new().with_opcode(0x89)), Err(Undecodable::Opcode(0x89)));
    assert_eq!(decoded(Control::new().with_variant(2)), Err(Undecodable::PageBreak));
    assert_eq!(
        decoded(Control::new().with_opcode(opcode::FILL).with_variant(4)),
        Err(Undecodable::PageBreak)
    );
    let nine = Control::new().with_opcode(opcode::XOR).with_variant(7);
    assert_eq!(decoded(nine), Err(Undecodable::TooManySources));
    for count in [0, 1, 9] {
        assert_eq!(Sources::new(&vec![0; count]), None);
    }
}

proptest! {
    #[test]
    fn prints_any_value_of_any_register(value: u64, at in 0usize..51) {
        if let Some(location) = Location::all().nth(at) {
            prop_assert!(!describe(location, value).to_string().is_empty());
        }
    }

    #[test]
    fn decodes_what_it_encodes(
        size: u32, flags in 0u32..0x2000, next: u64, destination: u64, kind in 0..5,
        sources in prop::collection::vec(any::<u64>(), 2..=8),
    ) {
        let body = match kind {
            0 => Body::Null,
            1 => Body::Copy { source: sources[0], destination },
            2 => Body::Fill { pattern: sources[0], destination },
            3 => Body::Xor { sources: Sources::new(&sources).unwrap(), destination },
            _ => Body::XorCheck { sources: Sources::new(&sources).unwrap(), expected: destination },
        };
        let control = Control::from_bits(flags & 0x71F);
        let descriptor = Descriptor { size, control, next, body };
        let mut found = Descriptor::decode(&descriptor.encode()).unwrap();
        prop_assert_eq!(found.slots(), descriptor.slots());
        if let Some(words) = descriptor.encode_extension(next) {
            found.extend(&words);
        }
        prop_assert_eq!(found.body, descriptor.body);
        prop_assert_eq!((found.size, found.next), (size, next));
        prop_assert_eq!(found.control.with_opcode(0).with_variant(0), control);
        prop_assert_eq!(Descriptor { control: found.control, ..descriptor }.encode(), descriptor.encode());
    }

    #[test]
    fn decodes_any_words_without_panic(words: [u64; WORDS], extension: [u64; WORDS]) {
        if let Ok(mut descriptor) = Descriptor::decode(&words) {
            descriptor.extend(&extension);
            prop_assert!(!descriptor.to_string().is_empty());
        }
    }
}
