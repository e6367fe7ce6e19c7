//! Initialization and configuration with scripted registers, which record writes.

extern crate std;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use memferry_clock::{Clock, Instant};
use memferry_registers::sdma::offset::{Access, Location, locate};
use memferry_registers::sdma::{BurstSize, WriteMode};

use super::super::{Element, Piece, Synchronization, TransferSize};
use super::*;

/// A register file with scripted reads and a log of writes. Writing a one clears a bit in the same registers as on the
/// device.
#[derive(Default)]
pub(in crate::sdma) struct Scripted {
    pub(in crate::sdma) values: BTreeMap<u32, u32>,
    /// Offset and value of each write.
    pub(in crate::sdma) writes: Vec<(u32, u32)>,
    /// For each offset, the results of the next reads; later reads return the register's value.
    pub(in crate::sdma) script: BTreeMap<u32, VecDeque<u32>>,
}

impl RegisterIo for Scripted {
    fn read(&mut self, offset: u32) -> u32 {
        let scripted = self.script.get_mut(&offset).and_then(VecDeque::pop_front);
        scripted.unwrap_or_else(|| self.values.get(&offset).copied().unwrap_or(0))
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.writes.push((offset, value));
        let register = self.values.entry(offset).or_insert(0);
        match locate(offset).expect("the driver must write only existing registers").access() {
            Access::WriteOneToClear => *register &= !value,
            Access::ReadWrite => *register = value,
            Access::ReadOnly => panic!("write to a read-only register at {offset:#x}"),
        }
    }
}

/// A clock that advances by a microsecond on each read.
#[derive(Default)]
pub(in crate::sdma) struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> Instant {
        self.0.set(self.0.get() + 1);
        Instant::from_nanoseconds(1000 * self.0.get())
    }
}

pub(in crate::sdma) type Tested = Sdma<Scripted, Ticking>;

/// A driver of an initialized device with linked lists, with an empty log.
pub(in crate::sdma) fn ready() -> (Tested, Trusted) {
    let mut io = Scripted::default();
    io.values.insert(offset::SYSSTATUS, SysStatus::new().with_reset_done(true).into_bits());
    io.values.insert(offset::CAPS_0, Caps0::new().with_linked_list_types_123(true).into_bits());
    let (mut sdma, trusted) = Sdma::new(io, Ticking::default());
    sdma.initialize(&Settings::default()).expect("the scripted device must initialize");
    sdma.io.writes.clear();
    (sdma, trusted)
}

pub(in crate::sdma) fn copy() -> ChannelConfig {
    let size = TransferSize { element: Element::Bits32, elements: 16, frames: 4 };
    let piece = Piece { size, source: Side::memory(0x8000_0000), destination: Side::memory(0x8100_0000) };
    ChannelConfig::new(Operation::Copy, piece)
}

pub(in crate::sdma) fn at(channel: u8, register: Register) -> u32 {
    offset::channel(usize::from(channel), register)
}

/// Number of writes that enable a channel.
fn count_enables(writes: &[(u32, u32)]) -> usize {
    let is_enable = |(at, value): &&(u32, u32)| {
        matches!(locate(*at), Some(Location::Channel(_, Register::Ccr))) && Ccr::from_bits(*value).enable()
    };
    writes.iter().filter(is_enable).count()
}

#[test]
fn initializes_after_the_reset_has_ended() {
    let mut io = Scripted::default();
    io.values.insert(offset::SYSSTATUS, 1);
    io.script.insert(offset::SYSSTATUS, VecDeque::from([0, 0, 0]));
    let (mut sdma, _trusted) = Sdma::new(io, Ticking::default());
    sdma.initialize(&Settings::default()).unwrap();
    assert_eq!(sdma.io.writes[0], (offset::OCP_SYSCONFIG, 2));
    assert!(sdma.io.script[&offset::SYSSTATUS].is_empty(), "the driver must wait for the end of the reset");
    let global = Gcr::from_bits(sdma.io.values[&offset::GCR]);
    assert_eq!((global.max_channel_fifo_depth(), global.arbitration_rate()), (128, 1));
    assert_eq!(*sdma.io.writes.last().unwrap(), (offset::GCR, global.into_bits()));
    assert_eq!(count_enables(&sdma.io.writes), 0);
}

#[test]
fn reports_a_reset_that_does_not_end() {
    let (mut sdma, _trusted) = Sdma::new(Scripted::default(), Ticking::default());
    let waited = Duration::from_millis(10);
    assert_eq!(sdma.initialize(&Settings::default()), Err(InitError::ResetTimedOut { waited }));
    let channel = sdma.allocate().unwrap();
    assert_eq!(sdma.configure(&channel, &copy(), None), Err(ConfigureError::NotInitialized));
}

#[test]
fn refuses_settings_of_zero() {
    let (mut sdma, _trusted) = ready();
    let settings = Settings { fifo_depth: 0, ..Settings::default() };
    assert_eq!(sdma.initialize(&settings), Err(InitError::FifoDepthZero));
    let settings = Settings { arbitration_rate: 0, ..Settings::default() };
    assert_eq!(sdma.initialize(&settings), Err(InitError::ArbitrationRateZero));
    assert_eq!(sdma.io.writes, []);
}

#[test]
fn reports_a_channel_that_stays_active() {
    let (mut sdma, _trusted) = ready();
    let active = Ccr::new().with_write_active(true).into_bits();
    sdma.io.script.insert(at(7, Register::Ccr), std::iter::repeat_n(active, 20_000).collect());
    let waited = Duration::from_millis(10);
    let error = InitError::ChannelStillActive { channel: 7, waited };
    assert_eq!(sdma.initialize(&Settings::default()), Err(error));
}

#[test]
fn configuring_writes_each_register_once() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.take(5).unwrap();
    sdma.configure(&channel, &copy(), None).unwrap();
    let mut written: Vec<u32> = sdma.io.writes.iter().map(|(at, _)| *at).collect();
    written.sort_unstable();
    let mut expected: Vec<u32> = [
        Register::Ccr,
        Register::ClnkCtrl,
        Register::Cicr,
        Register::Csr,
        Register::Csdp,
        Register::Cen,
        Register::Cfn,
        Register::Cssa,
        Register::Cdsa,
        Register::Csei,
        Register::Csfi,
        Register::Cdei,
        Register::Cdfi,
        Register::Color,
        Register::Cdp,
    ]
    .map(|register| at(5, register))
    .to_vec();
    expected.sort_unstable();
    assert_eq!(written, expected);
    assert_eq!(count_enables(&sdma.io.writes), 0);
    let value = |register| sdma.io.values[&at(5, register)];
    assert_eq!((value(Register::Cen), value(Register::Cfn)), (16, 4));
    assert_eq!((value(Register::Cssa), value(Register::Cdsa)), (0x8000_0000, 0x8100_0000));
    // 32-bit elements, both sides packed with bursts of 64 bytes, last write non-posted.
    assert_eq!(value(Register::Csdp), 2 | 1 << 6 | 3 << 7 | 1 << 13 | 3 << 14 | 2 << 16);
    assert_eq!(value(Register::Ccr), 1 << 12 | 1 << 14);
    assert_eq!(value(Register::Cicr), 1 << 5 | 1 << 8 | 1 << 10 | 1 << 11);
}

#[test]
fn enabling_is_one_write() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.take(31).unwrap();
    sdma.configure(&channel, &copy(), None).unwrap();
    sdma.io.writes.clear();
    let control = sdma.io.values[&at(31, Register::Ccr)];
    sdma.enable(&channel).unwrap();
    assert_eq!(sdma.io.writes, [(at(31, Register::Ccr), control | 1 << 7)]);
    assert_eq!(sdma.enable(&channel), Err(EnableError::Running { channel: 31 }));
    assert_eq!(sdma.configure(&channel, &copy(), None), Err(ConfigureError::Running { channel: 31 }));
    assert!(sdma.release(channel).is_err(), "a running channel must not be released");
}

#[test]
fn refuses_a_channel_active_on_a_port() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.allocate().unwrap();
    sdma.configure(&channel, &copy(), None).unwrap();
    for control in [Ccr::new().with_read_active(true), Ccr::new().with_write_active(true)] {
        sdma.io.values.insert(at(0, Register::Ccr), control.into_bits());
        assert_eq!(sdma.enable(&channel), Err(EnableError::Running { channel: 0 }));
        assert_eq!(sdma.configure(&channel, &copy(), None), Err(ConfigureError::Running { channel: 0 }));
    }
}

#[test]
fn refuses_to_enable_unconfigured_channels() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.allocate().unwrap();
    assert_eq!(sdma.enable(&channel), Err(EnableError::NotConfigured { channel: 0 }));
    sdma.configure(&channel, &copy(), None).unwrap();
    sdma.release(channel).unwrap();
    let again = sdma.allocate().unwrap();
    assert_eq!(sdma.enable(&again), Err(EnableError::NotConfigured { channel: 0 }));
}

#[test]
fn a_broken_rule_writes_no_register() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.allocate().unwrap();
    let mut config = copy();
    config.size.elements = 0;
    let error = ConfigureError::Config(ConfigError::NoElements);
    assert_eq!(sdma.configure(&channel, &config, None), Err(error));
    assert_eq!(sdma.io.writes, []);
}

#[test]
fn writes_no_list_registers_without_lists() {
    let (mut sdma, _trusted) = ready();
    sdma.io.values.insert(offset::CAPS_0, 0);
    sdma.initialize(&Settings::default()).unwrap();
    sdma.io.writes.clear();
    let channel = sdma.allocate().unwrap();
    sdma.configure(&channel, &copy(), None).unwrap();
    assert!(sdma.io.writes.iter().all(|(offset, _)| *offset < at(0, Register::Cdp)));
}

#[test]
fn writes_priorities_operation_and_write_mode() {
    let (mut sdma, trusted) = ready();
    let channel = sdma.allocate().unwrap();
    let config = ChannelConfig {
        read_priority: Priority::High,
        write_priority: Priority::High,
        operation: Operation::TransparentCopy { color: 0x00ab_cdef },
        write_mode: WriteMode::Posted,
        link: Some(9),
        supervisor: true,
        suspend_sensitive: true,
        ..copy()
    };
    sdma.configure(&channel, &config, Some(&trusted)).unwrap();
    let control = Ccr::from_bits(sdma.io.values[&at(0, Register::Ccr)]);
    assert!(control.read_priority() && control.write_priority() && control.supervisor());
    assert!(control.transparent_copy() && !control.constant_fill() && control.suspend_sensitive());
    assert_eq!(sdma.io.values[&at(0, Register::Color)], 0x00ab_cdef);
    assert_eq!(sdma.io.values[&at(0, Register::ClnkCtrl)], 1 << 15 | 9);
    assert_eq!(Csdp::from_bits(sdma.io.values[&at(0, Register::Csdp)]).write_mode(), WriteMode::Posted);
}

#[test]
fn writes_address_zero_as_the_source_of_a_fill() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.allocate().unwrap();
    let source = Side { burst: BurstSize::Bytes16, ..Side::device(u64::MAX) };
    let config = ChannelConfig { operation: Operation::Fill { color: 7 }, source, ..copy() };
    sdma.configure(&channel, &config, None).unwrap();
    assert_eq!(sdma.io.values[&at(0, Register::Cssa)], 0);
    assert_eq!(sdma.io.values[&at(0, Register::Ccr)], 1 << 12 | 1 << 14 | 1 << 16);
}

#[test]
fn writes_request_line_unit_and_side() {
    use super::super::Addressing;
    let (mut sdma, _trusted) = ready();
    let channel = sdma.allocate().unwrap();
    let sync = Synchronization {
        request: 70,
        unit: SyncUnit::Packet { elements: 12 },
        by: Port::Source,
        prefetch: false,
        buffering: false,
    };
    let source = Side::device(0x4806_a000);
    let config = ChannelConfig { synchronization: Some(sync), source, ..copy() };
    sdma.configure(&channel, &config, None).unwrap();
    let control = Ccr::from_bits(sdma.io.values[&at(0, Register::Ccr)]);
    assert_eq!(control.request(), 71, "the register counts lines from one");
    assert!(control.frame_sync() && control.block_sync() && control.source_sync());
    assert!(control.buffering_disable() && !control.prefetch());
    assert_eq!(
        sdma.io.values[&at(0, Register::Csfi)],
        12,
        "the packet's size is in the source's frame index"
    );
    let units =
        [(SyncUnit::Element, false, false), (SyncUnit::Frame, true, false), (SyncUnit::Block, false, true)];
    for (unit, frame, block) in units {
        let sync = Synchronization { unit, by: Port::Destination, prefetch: true, buffering: true, ..sync };
        let destination = Side { addressing: Addressing::Constant, ..Side::device(0x4806_a000) };
        let config = ChannelConfig { synchronization: Some(sync), destination, ..copy() };
        sdma.configure(&channel, &config, None).unwrap();
        let control = Ccr::from_bits(sdma.io.values[&at(0, Register::Ccr)]);
        assert_eq!((control.frame_sync(), control.block_sync()), (frame, block), "{unit:?}");
        assert!(!control.source_sync() && control.prefetch());
    }
}

#[test]
fn refuses_a_request_line_in_use() {
    let (mut sdma, _trusted) = ready();
    let first = sdma.allocate().unwrap();
    let second = sdma.allocate().unwrap();
    let sync = Synchronization {
        request: 9,
        unit: SyncUnit::Frame,
        by: Port::Source,
        prefetch: false,
        buffering: true,
    };
    let config = ChannelConfig { synchronization: Some(sync), ..copy() };
    sdma.configure(&first, &config, None).unwrap();
    sdma.configure(&second, &config, None).unwrap();
    sdma.enable(&first).unwrap();
    let error = EnableError::RequestTaken { channel: 1, other: 0, request: 9 };
    assert_eq!(sdma.enable(&second), Err(error));
    sdma.io.values.insert(at(0, Register::Ccr), 0);
    assert_eq!(sdma.enable(&second), Ok(()));
}

#[test]
fn configuring_clears_earlier_interrupts() {
    use super::super::Line;
    let (mut sdma, _trusted) = ready();
    let channel = sdma.take(3).unwrap();
    sdma.set_line(&channel, Line::L2, true);
    sdma.io.values.insert(offset::irq_status(2), 1 << 3 | 1);
    sdma.io.values.insert(at(3, Register::Csr), Csr::new().with_block(true).into_bits());
    sdma.configure(&channel, &copy(), None).unwrap();
    assert_eq!(sdma.io.values[&offset::irq_status(2)], 1, "another channel's interrupt must stay pending");
    assert_eq!(sdma.io.values[&at(3, Register::Csr)], 0);
}
