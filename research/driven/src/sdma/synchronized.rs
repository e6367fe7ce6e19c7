//! Configures a synchronized transfer, which a device's request line drives.
//!
//! ```text
//! register, memory, shape ── one side is a device's, the other plain? ──► ChannelConfig with Synchronization
//! ```
//!
//! Wicki 2014, 2.3.2.2. Reads from a device are not buffered across requests, so that the data is in memory once its
//! request is served; writes to a device do not prefetch.

use memferry_drivers::sdma::{
    self, Cause, ChannelConfig, Piece, Port, Side, SyncUnit, Synchronization, TransferSize,
};
use memferry_transfer::{Region, Side as Operand, Synchronized};

use super::super::memory::BusMemory;
use super::step::element;
use memferry_driven_engines::{DeviceMemory, Unplannable, address};

/// The driver's configuration; `None` if there is nothing to move.
pub(super) fn config(
    source: &Region<BusMemory>,
    destination: &Region<BusMemory>,
    shape: &Synchronized,
) -> Result<Option<ChannelConfig>, Unplannable> {
    let (register, memory) = match shape.device {
        Operand::Source => (source, destination),
        Operand::Destination => (destination, source),
    };
    let line = register.memory().line(shape.device).ok_or(Unplannable)?;
    if memory.memory().is_device() {
        return Err(Unplannable);
    }
    if shape.total_bytes() == 0 {
        return Ok(None);
    }
    let register = Side::device(address(register));
    let memory = Side::memory(address(memory));
    let (by, source, destination) = match shape.device {
        Operand::Source => (Port::Source, register, memory),
        Operand::Destination => (Port::Destination, memory, register),
    };
    let unit = match shape.unit {
        memferry_transfer::SyncUnit::Element => SyncUnit::Element,
        memferry_transfer::SyncUnit::Frame => SyncUnit::Frame,
        memferry_transfer::SyncUnit::Packet { elements } => SyncUnit::Packet { elements: elements.into() },
        memferry_transfer::SyncUnit::Block => SyncUnit::Block,
    };
    let buffering = by == Port::Destination;
    let synchronization = Synchronization { request: line.into(), unit, by, prefetch: false, buffering };
    let size =
        TransferSize { element: element(shape.element), elements: shape.elements, frames: shape.frames };
    let config = ChannelConfig::new(sdma::Operation::Copy, Piece { size, source, destination });
    let interrupts = config.interrupts.with(Cause::Drop);
    let config = ChannelConfig { synchronization: Some(synchronization), interrupts, ..config };
    config.validate(None).map_err(|_| Unplannable)?;
    Ok(Some(config))
}
