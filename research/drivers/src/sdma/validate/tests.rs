//! For each rule, a configuration that breaks only this rule.

extern crate std;

use proptest::prelude::*;

use super::super::cause::Interrupts;
use super::super::device::tests::{copy, ready};
use super::super::{Element, Piece};
use super::*;

/// The error of a plain copy after a change.
fn broken(change: impl FnOnce(&mut ChannelConfig)) -> Option<ConfigError> {
    let mut config = copy();
    change(&mut config);
    config.validate(None).err()
}

fn synchronized(by: Port, unit: SyncUnit) -> ChannelConfig {
    let sync = Synchronization { request: 0, unit, by, prefetch: false, buffering: true };
    let mut config = ChannelConfig { synchronization: Some(sync), ..copy() };
    let side = if by == Port::Source { &mut config.source } else { &mut config.destination };
    *side = Side::device(0x4806_a000);
    config
}

#[test]
fn accepts_a_plain_copy() {
    assert_eq!(broken(|_| {}), None);
}

#[test]
fn refuses_empty_sizes() {
    assert_eq!(broken(|config| config.size.elements = 0), Some(ConfigError::NoElements));
    assert_eq!(broken(|config| config.size.frames = 0), Some(ConfigError::NoFrames));
}

#[test]
fn refuses_sizes_beyond_the_registers() {
    let error = ConfigError::TooManyElements { elements: 1 << 24, limit: (1 << 24) - 1 };
    assert_eq!(broken(|config| config.size.elements = 1 << 24), Some(error));
    let error = ConfigError::TooManyFrames { frames: 1 << 16, limit: (1 << 16) - 1 };
    assert_eq!(broken(|config| config.size.frames = 1 << 16), Some(error));
    for (elements, frames) in [((1 << 24) - 1, 1), (1, (1 << 16) - 1)] {
        let element = copy().size.element;
        assert_eq!(broken(|config| config.size = TransferSize { element, elements, frames }), None);
    }
}

#[test]
fn refuses_the_undefined_write_mode() {
    let error = Some(ConfigError::UndefinedWriteMode);
    assert_eq!(broken(|config| config.write_mode = WriteMode::Undefined), error);
}

#[test]
fn refuses_colours_of_more_than_24_bits() {
    let color = 0x0100_0000;
    for operation in [Operation::Fill { color }, Operation::TransparentCopy { color }] {
        assert_eq!(broken(|config| config.operation = operation), Some(ConfigError::ColorTooWide { color }));
    }
    assert_eq!(broken(|config| config.operation = Operation::Fill { color: color - 1 }), None);
}

#[test]
fn refuses_addresses_beyond_32_bits() {
    let error = ConfigError::AddressTooLarge { port: Port::Source, address: 1 << 32 };
    assert_eq!(broken(|config| config.source.address = 1 << 32), Some(error));
    let error = ConfigError::AddressTooLarge { port: Port::Destination, address: 1 << 32 };
    assert_eq!(broken(|config| config.destination.address = 1 << 32), Some(error));
}

#[test]
fn refuses_misaligned_addresses() {
    let error = ConfigError::AddressMisaligned { port: Port::Source, address: 0x8000_0002, bytes: 4 };
    assert_eq!(broken(|config| config.source.address += 2), Some(error));
    let halves = |config: &mut ChannelConfig| {
        config.source.address += 2;
        config.size.element = Element::Bits16;
    };
    assert_eq!(broken(halves), None);
}

#[test]
fn refuses_element_indexes_beyond_16_bits() {
    for index in [32_769, -32_771] {
        let side = Side::indexed(0x8000_0000, Addressing::SingleIndex { element_index: index });
        let error = ConfigError::ElementIndexOutOfRange { port: Port::Source, index };
        assert_eq!(broken(|config| config.source = side), Some(error));
    }
    for element_index in [32_765, -32_767] {
        let side = Side::indexed(0x8000_0000, Addressing::SingleIndex { element_index });
        assert_eq!(broken(|config| config.source = side), None, "{element_index}");
    }
}

#[test]
fn refuses_frame_indexes_beyond_32_bits() {
    for index in [0x8000_0001, -0x8000_0003] {
        let addressing = Addressing::DoubleIndex { element_index: 1, frame_index: index };
        let error = ConfigError::FrameIndexOutOfRange { port: Port::Destination, index };
        assert_eq!(broken(|config| config.destination = Side::indexed(0, addressing)), Some(error));
    }
}

#[test]
fn refuses_misaligned_indexes() {
    let port = Port::Source;
    let side = |addressing| Side::indexed(0x8000_0000, addressing);
    for index in [0, 2, 3, -1] {
        let error = ConfigError::ElementIndexMisaligned { port, index, bytes: 4 };
        let addressing = Addressing::SingleIndex { element_index: index };
        assert_eq!(broken(|config| config.source = side(addressing)), Some(error));
        let error = ConfigError::FrameIndexMisaligned { port, index, bytes: 4 };
        let addressing = Addressing::DoubleIndex { element_index: 1, frame_index: index };
        assert_eq!(broken(|config| config.source = side(addressing)), Some(error));
    }
    let addressing = Addressing::DoubleIndex { element_index: 5, frame_index: -3 };
    assert_eq!(broken(|config| config.source = side(addressing)), None);
}

#[test]
fn refuses_walks_beyond_32_bits() {
    let port = Port::Source;
    let end = (1 << 32) + 4;
    let error = ConfigError::WalkLeavesAddressSpace { port, first: 0xffff_ff04, end };
    assert_eq!(broken(|config| config.source.address = 0xffff_ff04), Some(error));
    assert_eq!(broken(|config| config.source.address = 0xffff_ff00), None);
    let down = Side::indexed(0xf8, Addressing::SingleIndex { element_index: -7 });
    let error = ConfigError::WalkLeavesAddressSpace { port: Port::Destination, first: -4, end: 0xfc };
    assert_eq!(broken(|config| config.destination = down), Some(error));
}

#[test]
fn refuses_constant_addresses_between_memories() {
    for port in [Port::Source, Port::Destination] {
        let constant = |config: &mut ChannelConfig| {
            let side = if port == Port::Source { &mut config.source } else { &mut config.destination };
            *side = Side::indexed(0x8000_0000, Addressing::Constant);
        };
        assert_eq!(broken(constant), Some(ConfigError::ConstantBetweenMemories { port }));
    }
    let fill = |config: &mut ChannelConfig| {
        config.operation = Operation::Fill { color: 0 };
        config.source.is_device = true;
        config.destination = Side::indexed(0x8000_0000, Addressing::Constant);
    };
    let error = ConfigError::ConstantBetweenMemories { port: Port::Destination };
    assert_eq!(broken(fill), Some(error), "the source of a fill does not count as a device");
}

#[test]
fn refuses_constant_addresses_without_request() {
    let error = ConfigError::ConstantWithoutRequest { port: Port::Source };
    assert_eq!(broken(|config| config.source = Side::device(0x4806_a000)), Some(error));
}

#[test]
fn refuses_packed_access_with_gaps() {
    let port = Port::Source;
    let strided = [
        Addressing::SingleIndex { element_index: 5 },
        Addressing::DoubleIndex { element_index: -7, frame_index: 1 },
    ];
    for addressing in strided {
        let packed = |config: &mut ChannelConfig| config.source.addressing = addressing;
        assert_eq!(broken(packed), Some(ConfigError::PackedNotContiguous { port }));
    }
    let constant = |config: &mut ChannelConfig, _: &mut Synchronization| config.source.packed = true;
    let error = Some(ConfigError::PackedNotContiguous { port });
    assert_eq!(broken_sync(Port::Source, SyncUnit::Frame, constant), error);
    let rows = Addressing::DoubleIndex { element_index: 1, frame_index: 0x101 };
    assert_eq!(broken(|config| config.source.addressing = rows), None);
    let columns = |config: &mut ChannelConfig| {
        config.source.addressing = rows;
        config.size.elements = 1;
    };
    assert_eq!(broken(columns), Some(ConfigError::PackedNotContiguous { port }));
}

#[test]
fn refuses_unpacked_bursts_at_moving_addresses() {
    let error = ConfigError::BurstNotPacked { port: Port::Destination };
    assert_eq!(broken(|config| config.destination.packed = false), Some(error));
    let burst = |config: &mut ChannelConfig, _: &mut Synchronization| {
        config.destination.burst = BurstSize::Bytes16;
    };
    assert_eq!(broken_sync(Port::Destination, SyncUnit::Frame, burst), None);
}

#[test]
fn refuses_links_to_missing_channels() {
    let error = ConfigError::LinkOutOfRange { next: 32 };
    assert_eq!(broken(|config| config.link = Some(32)), Some(error));
    assert_eq!(broken(|config| config.link = Some(31)), None);
}

/// The error of a synchronized transfer after a change.
fn broken_sync(
    by: Port,
    unit: SyncUnit,
    change: impl FnOnce(&mut ChannelConfig, &mut Synchronization),
) -> Option<ConfigError> {
    let mut config = synchronized(by, unit);
    let mut sync = config.synchronization.take().unwrap();
    change(&mut config, &mut sync);
    ChannelConfig { synchronization: Some(sync), ..config }.validate(None).err()
}

#[test]
fn accepts_synchronized_transfers_of_every_unit() {
    for by in [Port::Source, Port::Destination] {
        for unit in [SyncUnit::Element, SyncUnit::Frame, SyncUnit::Block, SyncUnit::Packet { elements: 9 }] {
            assert_eq!(broken_sync(by, unit, |_, _| {}), None);
        }
    }
}

#[test]
fn refuses_missing_request_lines() {
    let error = Some(ConfigError::RequestOutOfRange { request: 127 });
    assert_eq!(broken_sync(Port::Source, SyncUnit::Frame, |_, sync| sync.request = 127), error);
    assert_eq!(broken_sync(Port::Source, SyncUnit::Frame, |_, sync| sync.request = 126), None);
}

#[test]
fn refuses_empty_and_oversized_packets() {
    for elements in [0, 1 << 16] {
        let error = Some(ConfigError::PacketSizeOutOfRange { elements });
        assert_eq!(broken_sync(Port::Source, SyncUnit::Packet { elements }, |_, _| {}), error);
    }
}

#[test]
fn refuses_packets_at_moving_addresses() {
    let error = Some(ConfigError::PacketNeedsConstantAddress { port: Port::Source });
    let memory = |config: &mut ChannelConfig, _: &mut Synchronization| config.source = Side::memory(0);
    assert_eq!(broken_sync(Port::Source, SyncUnit::Packet { elements: 4 }, memory), error);
}

#[test]
fn refuses_prefetch_with_source_requests() {
    let error = Some(ConfigError::PrefetchBySource);
    assert_eq!(broken_sync(Port::Source, SyncUnit::Frame, |_, sync| sync.prefetch = true), error);
    assert_eq!(broken_sync(Port::Destination, SyncUnit::Frame, |_, sync| sync.prefetch = true), None);
}

#[test]
fn refuses_unbuffered_destination_requests() {
    let error = Some(ConfigError::UnbufferedByDestination);
    assert_eq!(broken_sync(Port::Destination, SyncUnit::Frame, |_, sync| sync.buffering = false), error);
    assert_eq!(broken_sync(Port::Source, SyncUnit::Frame, |_, sync| sync.buffering = false), None);
}

#[test]
fn refuses_fills_with_source_requests() {
    let fill = |config: &mut ChannelConfig, _: &mut Synchronization| {
        config.operation = Operation::Fill { color: 0 };
    };
    let error = Some(ConfigError::FillAskedForBySource);
    assert_eq!(broken_sync(Port::Source, SyncUnit::Frame, fill), error);
    assert_eq!(broken_sync(Port::Destination, SyncUnit::Frame, fill), None);
}

#[test]
fn refuses_interrupts_that_never_occur() {
    let packet = Interrupts::END_AND_ERRORS.with(Cause::EndOfPacket);
    let error = Some(ConfigError::PacketInterruptNeverComes);
    assert_eq!(broken(|config| config.interrupts = packet), error);
    let unit = SyncUnit::Packet { elements: 4 };
    assert_eq!(broken_sync(Port::Source, unit, |config, _| config.interrupts = packet), error);
    assert_eq!(broken_sync(Port::Destination, unit, |config, _| config.interrupts = packet), None);
    let drop = Interrupts::END_AND_ERRORS.with(Cause::Drop);
    let error = Some(ConfigError::DropInterruptNeverComes);
    assert_eq!(broken(|config| config.interrupts = drop), error);
    assert_eq!(broken_sync(Port::Source, SyncUnit::Block, |config, _| config.interrupts = drop), None);
}

#[test]
fn refuses_privileges_without_the_token() {
    let (_sdma, trusted) = ready();
    type Change = fn(&mut ChannelConfig);
    let changes: [(Change, ConfigError); 3] = [
        (
            |config| config.read_priority = Priority::High,
            ConfigError::HighPriorityNotTrusted { port: Port::Source },
        ),
        (
            |config| config.write_priority = Priority::High,
            ConfigError::HighPriorityNotTrusted { port: Port::Destination },
        ),
        (|config| config.supervisor = true, ConfigError::SupervisorNotTrusted),
    ];
    for (change, error) in changes {
        assert_eq!(broken(change), Some(error));
        let mut config = copy();
        change(&mut config);
        assert_eq!(config.validate(Some(&trusted)), Ok(()));
    }
}

#[test]
fn ignores_the_source_of_a_fill() {
    let piece = Piece { size: copy().size, source: Side::device(u64::MAX), destination: Side::memory(0) };
    let fill = ChannelConfig::new(Operation::fill_byte(0x5a), piece);
    assert_eq!(fill.validate(None), Ok(()));
}

fn any_side() -> impl Strategy<Value = Side> {
    let addressing = prop_oneof![
        Just(Addressing::Constant),
        Just(Addressing::PostIncrement),
        any::<i64>().prop_map(|element_index| Addressing::SingleIndex { element_index }),
        (any::<i64>(), any::<i64>())
            .prop_map(|(element_index, frame_index)| Addressing::DoubleIndex { element_index, frame_index }),
        (-99..99i64, -99..99i64)
            .prop_map(|(element_index, frame_index)| Addressing::DoubleIndex { element_index, frame_index }),
    ];
    let address = prop_oneof![any::<u64>(), any::<u32>().prop_map(u64::from)];
    (address, addressing, any::<bool>(), prop::sample::select(BurstSize::ALL), any::<bool>()).prop_map(
        |(address, addressing, packed, burst, is_device)| Side {
            address,
            addressing,
            packed,
            burst,
            is_device,
        },
    )
}

proptest! {
    #[test]
    fn accepted_configurations_stay_in_32_bits(
        element in prop::sample::select(&Element::ALL),
        elements in prop_oneof![any::<u32>(), 1..9u32],
        frames in prop_oneof![any::<u32>(), 1..9u32],
        source in any_side(),
        destination in any_side(),
    ) {
        let size = TransferSize { element, elements, frames };
        let config = ChannelConfig::new(Operation::Copy, Piece { size, source, destination });
        let ranges = [Port::Source, Port::Destination].map(|port| config.range(port));
        if config.validate(None).is_ok() {
            for (address, length) in ranges.map(|range| range.expect("a valid walk must have a range")) {
                prop_assert!(address + length <= 1 << 32);
                prop_assert!(length >= u64::from(element.bytes()));
            }
        }
    }
}
