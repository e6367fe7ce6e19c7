//! Checks of the device: the last channel, an interrupt line, the refusal of linked lists, and the reset.
//!
//! The checks poll the interrupt controller and take no interrupt.

use memferry_drivers::sdma::{
    ChannelConfig, ConfigureError, Element, Event, Handled, Line, LinkedList, ListOptions, Operation, Piece,
    Segment, Side, TransferSize,
};
use memferry_registers::RegisterIo;
use memferry_registers::sdma::{Gcr, OcpSysconfig, Register, SysStatus, offset};

use super::{Bench, Failure, compare, fill_buffers};
use crate::hardware::{Buffer, InterruptController};

const LENGTH: u32 = 128;

fn config() -> ChannelConfig {
    let piece = Piece {
        size: TransferSize { element: Element::Bits32, elements: 16, frames: LENGTH / 64 },
        source: Side::memory(Buffer::SOURCE.at(0)),
        destination: Side::memory(Buffer::DESTINATION.at(0)),
    };
    ChannelConfig::new(Operation::Copy, piece)
}

fn ensure(holds: bool, otherwise: &'static str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Other(otherwise)) }
}

pub(super) fn last_channel() -> Result<(), Failure> {
    fill_buffers();
    Bench::new(31)?.transfer(&config())?;
    compare(|offset| (offset < LENGTH).then(|| Buffer::SOURCE.get(offset)))
}

pub(super) fn block_interrupt() -> Result<(), Failure> {
    let mut bench = Bench::new(6)?;
    bench.sdma.set_line(&bench.channel, Line::L0, true);
    ensure(!InterruptController.line_is_high(), "the line is high before the transfer")?;
    bench.sdma.configure(&bench.channel, &config(), None)?;
    bench.sdma.enable(&bench.channel)?;
    while bench.sdma.is_running(&bench.channel) {}
    ensure(InterruptController.line_is_high(), "the line is low after the transfer")?;
    let mut reported: Option<Event> = None;
    let handled = bench.sdma.handle_interrupt(Line::L0, |event| reported = Some(event));
    ensure(handled == Handled { events: 1, spurious: 0 }, "the handler did not report exactly one event")?;
    match reported {
        Some(event) if event.channel == 6 && event.is_end() && event.error().is_none() => {}
        Some(event) => return Err(Failure::Reported(event)),
        None => return Err(Failure::Other("the handler reported no event")),
    }
    ensure(!InterruptController.line_is_high(), "the line is still high after the handler")
}

pub(super) fn no_linked_lists() -> Result<(), Failure> {
    let mut bench = Bench::new(0)?;
    ensure(!bench.sdma.has_linked_lists(), "the device reports linked lists, which the OMAP2420 lacks")?;
    let segment = Segment {
        source: Buffer::SOURCE.at(0),
        destination: Buffer::DESTINATION.at(0),
        length_bytes: LENGTH.into(),
    };
    let mut words = [0; 8];
    let list = (&mut words[..], Buffer::SOURCE.at(0x1_0000));
    let list = LinkedList::build(&config(), &[segment], list, ListOptions::default(), None)
        .map_err(|_| Failure::Other("the list was not built"))?;
    let refused = bench.sdma.configure_list(&bench.channel, &list, None);
    ensure(refused == Err(ConfigureError::NoLinkedLists), "the list was not refused")
}

/// Checks the state after a reset, without the registers that the driver clears itself.
pub(super) fn soft_reset() -> Result<(), Failure> {
    let mut bench = Bench::new(9)?;
    bench.sdma.configure(&bench.channel, &config(), None)?;
    let (mut registers, _) = bench.sdma.into_parts();
    let events = offset::channel(9, Register::Cicr);
    ensure(registers.read(events) != 0, "the configuration has no events")?;
    registers.write(offset::OCP_SYSCONFIG, OcpSysconfig::new().with_soft_reset(true).into_bits());
    ensure(SysStatus::from_bits(registers.read(offset::SYSSTATUS)).reset_done(), "the reset is not over")?;
    ensure(registers.read(events) == 0, "the channel's events survived the reset")?;
    ensure(registers.read(offset::GCR) == Gcr::RESET.into_bits(), "the FIFO depth survived the reset")
}
