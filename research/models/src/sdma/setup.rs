//! A block's setup: latched from a channel's registers at the start and checked against the manual's rules.
//!
//! ```text
//! registers ── latch ──► Setup, or nothing when the block must not start
//!                  └───► broken rules
//! ```
//!
//! A running block does not see later register writes. Links, enabled events and the enable bit are not latched: the
//! device reads them when it needs them.

use super::addressing::{Rule, Walk};
use super::complaint::Reason;
use super::register_file::Registers;
use super::timing::{Config, prev_power_of_two};
use alloc::vec::Vec;
use memferry_registers::sdma::{
    AddressingMode, BurstSize, Ccr, Cdp, Cen, Cfn, Color, Csdp, Gcr, Register, TransferMode, WriteMode,
};

/// The operation on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Copy,
    Fill,
    Transparent,
}

/// The amount that one request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Element,
    Frame,
    Packet(u32),
    Block,
}

/// Synchronization of a channel with its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Synchronized {
    pub(super) unit: Unit,
    /// Requests count elements read (true) or written (false).
    pub(super) by_source: bool,
    /// Data may be read ahead of its request.
    pub(super) prefetch: bool,
    /// Data of one request may be written together with the next one's.
    pub(super) buffering: bool,
}

/// Parameters of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) size: u32,
    pub(super) elements: u32,
    pub(super) frames: u32,
    pub(super) source: Walk,
    pub(super) destination: Walk,
    /// Largest access of each side: a power of two, at least `size`.
    pub(super) read_window: u32,
    pub(super) write_window: u32,
    pub(super) fifo: u32,
    pub(super) operation: Operation,
    pub(super) color: u32,
    pub(super) write_mode: WriteMode,
    pub(super) swap_bytes: bool,
    pub(super) sync: Option<Synchronized>,
}

/// Broken rules, each with the register at fault.
pub(super) type Broken = Vec<(Register, Reason)>;

/// Latches the registers. Returns no `Setup` if the block must not start.
pub(super) fn latch(registers: &Registers, gcr: Gcr, config: &Config) -> (Option<Setup>, Broken) {
    let mut broken = Broken::new();
    let ccr = Ccr::from_bits(registers.get(Register::Ccr));
    let csdp = Csdp::from_bits(registers.get(Register::Csdp));
    let starts = check_start(registers, ccr, csdp, &mut broken);
    let sync = synchronized(registers, ccr, &mut broken);
    check_tolerated(ccr, csdp, &mut broken);
    let (true, Ok(sync), Some(size)) = (starts, sync, csdp.data_type().bytes()) else {
        return (None, broken);
    };
    let fifo = u32::from(gcr.max_channel_fifo_depth()).saturating_mul(config.fifo_entry_bytes).max(size);
    let mut window = |packed, burst| window(size, packed, burst, fifo, config, &mut broken);
    let read_window = window(csdp.source_packed(), csdp.source_burst());
    let write_window = window(csdp.destination_packed(), csdp.destination_burst());
    let elements = Cen::from_bits(registers.get(Register::Cen)).elements();
    let frames = u32::from(Cfn::from_bits(registers.get(Register::Cfn)).frames());
    let walk = |mode, element_index, frame_index, start| {
        let element_index = registers.get(element_index) as u16 as i16;
        let rule = Rule { mode, element_index, frame_index: registers.get(frame_index) as i32 };
        Walk::new(rule, size, elements, frames, registers.get(start))
    };
    let setup = Setup {
        size,
        elements,
        frames,
        source: walk(ccr.source_addressing(), Register::Csei, Register::Csfi, Register::Cssa),
        destination: walk(ccr.destination_addressing(), Register::Cdei, Register::Cdfi, Register::Cdsa),
        read_window,
        write_window,
        fifo,
        operation: match (ccr.constant_fill(), ccr.transparent_copy()) {
            (true, _) => Operation::Fill,
            (false, true) => Operation::Transparent,
            (false, false) => Operation::Copy,
        },
        color: Color::from_bits(registers.get(Register::Color)).value(),
        write_mode: csdp.write_mode(),
        swap_bytes: csdp.source_big_endian() != csdp.destination_big_endian(),
        sync,
    };
    (Some(setup), broken)
}

/// Rules that a block must keep to start.
fn check_start(registers: &Registers, ccr: Ccr, csdp: Csdp, broken: &mut Broken) -> bool {
    let constant_source = ccr.source_addressing() == AddressingMode::Constant && !ccr.constant_fill();
    let constant = constant_source || ccr.destination_addressing() == AddressingMode::Constant;
    let mode = Cdp::from_bits(registers.get(Register::Cdp)).transfer_mode();
    let rules = [
        (Register::Cen, Reason::NoElements, Cen::from_bits(registers.get(Register::Cen)).elements() == 0),
        (Register::Cfn, Reason::NoFrames, Cfn::from_bits(registers.get(Register::Cfn)).frames() == 0),
        (Register::Csdp, Reason::ReservedDataType, csdp.data_type().bytes().is_none()),
        (Register::Ccr, Reason::FillAndTransparent, ccr.constant_fill() && ccr.transparent_copy()),
        (Register::Ccr, Reason::ConstantMemory, constant && ccr.request() == 0),
        (
            Register::Cdp,
            Reason::UndefinedTransferMode,
            !matches!(mode, TransferMode::Normal | TransferMode::LinkedList),
        ),
    ];
    let before = broken.len();
    broken.extend(rules.into_iter().filter(|rule| rule.2).map(|(register, reason, _)| (register, reason)));
    broken.len() == before
}

/// Rules whose violation the model tolerates.
fn check_tolerated(ccr: Ccr, csdp: Csdp, broken: &mut Broken) {
    let by_destination = ccr.request() != 0 && !ccr.source_sync();
    let by_source = ccr.request() != 0 && ccr.source_sync();
    let rules = [
        (Register::Csdp, Reason::UndefinedWriteMode, csdp.write_mode() == WriteMode::Undefined),
        (Register::Csdp, Reason::BigEndian, csdp.source_big_endian() || csdp.destination_big_endian()),
        (Register::Ccr, Reason::PrefetchNotDestination, ccr.prefetch() && !by_destination),
        (Register::Ccr, Reason::BufferingNotSource, ccr.buffering_disable() && !by_source),
    ];
    broken.extend(rules.into_iter().filter(|rule| rule.2).map(|(register, reason, _)| (register, reason)));
}

/// How the channel follows requests; an error if its registers are invalid.
fn synchronized(registers: &Registers, ccr: Ccr, broken: &mut Broken) -> Result<Option<Synchronized>, ()> {
    if ccr.request() == 0 {
        return Ok(None);
    }
    let by_source = ccr.source_sync();
    let (register, addressing) = match by_source {
        true => (Register::Csfi, ccr.source_addressing()),
        false => (Register::Cdfi, ccr.destination_addressing()),
    };
    let unit = match (ccr.frame_sync(), ccr.block_sync()) {
        (false, false) => Unit::Element,
        (true, false) => Unit::Frame,
        (false, true) => Unit::Block,
        (true, true) => Unit::Packet(registers.get(register) & 0xFFFF),
    };
    let refused = match unit {
        Unit::Packet(0) => Some(Reason::NoPacket),
        Unit::Packet(_) if addressing == AddressingMode::DoubleIndex => Some(Reason::PacketNeedsFrameIndex),
        _ => None,
    };
    if let Some(reason) = refused {
        broken.push((register, reason));
        return Err(());
    }
    let prefetch = ccr.prefetch() && !by_source;
    let buffering = !(ccr.buffering_disable() && by_source);
    Ok(Some(Synchronized { unit, by_source, prefetch, buffering }))
}

/// The largest access of one side: an element; if packed, the port's width or a burst.
fn window(size: u32, packed: bool, burst: BurstSize, fifo: u32, config: &Config, broken: &mut Broken) -> u32 {
    let wanted = match (packed, burst.bytes()) {
        (true, Some(bytes)) => bytes,
        (true, None) => config.timing.port_width(),
        (false, Some(_)) => {
            broken.push((Register::Csdp, Reason::BurstNotPacked));
            size
        }
        (false, None) => size,
    };
    if wanted > fifo && burst.bytes() == Some(wanted) {
        broken.push((Register::Csdp, Reason::BurstAboveFifo));
    }
    wanted.min(prev_power_of_two(fifo)).max(size)
}
