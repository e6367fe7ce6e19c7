//! The rules that a configuration keeps, each with its own error.
//!
//! ```text
//! ChannelConfig ──► size ──► operation ──► each side accessed ──► synchronization ──► interrupts ──► rights ──► Ok
//! ```
//!
//! Registers can be written with anything; what a combination of them must not be is known here (paper, section 3.2).
//! The first broken rule is reported. Whether the caller may touch the memory at all is not looked at.

use memferry_registers::sdma::{BurstSize, CHANNELS, REQUESTS, WriteMode};
use thiserror::Error;

use super::config::{
    Addressing, ChannelConfig, Operation, Port, Priority, Side, SyncUnit, Synchronization, TransferSize,
    Trusted,
};
use super::cause::Cause;

/// A rule that a configuration breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A frame has no element.
    #[error("a frame has no elements: give it at least one")]
    NoElements,
    /// More elements than the register's 24 bits.
    #[error(
        "{elements} elements in a frame, the device has room for {limit}: split the transfer into frames"
    )]
    TooManyElements {
        elements: u32,
        /// Most elements of a frame.
        limit: u32,
    },
    /// There is no frame.
    #[error("the transfer has no frames: give it at least one")]
    NoFrames,
    /// More frames than the register's 16 bits.
    #[error("{frames} frames, the device has room for {limit}: split the transfer into several")]
    TooManyFrames {
        frames: u32,
        /// Most frames of a block.
        limit: u32,
    },
    /// A write mode that the manual leaves undefined.
    #[error("the write mode is the undefined one: choose posted, non-posted or last write non-posted")]
    UndefinedWriteMode,
    /// A colour of more than 24 bits.
    #[error("colour {color:#x} needs more than 24 bits: the device compares and fills no more")]
    ColorTooWide { color: u32 },
    /// An address beyond 32 bits.
    #[error("{port} address {address:#x} is beyond 32 bits: use memory that the device reaches")]
    AddressTooLarge { port: Port, address: u64 },
    /// The first element does not lie on a multiple of its size.
    #[error(
        "{port} address {address:#x} is no multiple of the element's {bytes} bytes: use smaller elements"
    )]
    AddressMisaligned {
        port: Port,
        address: u64,
        /// Bytes of an element.
        bytes: u32,
    },
    /// The element index does not fit 16 bits.
    #[error("{port} element index {index} does not fit 16 bits with a sign: plan the walk row by row")]
    ElementIndexOutOfRange { port: Port, index: i64 },
    /// The frame index does not fit 32 bits.
    #[error("{port} frame index {index} does not fit 32 bits with a sign: make each row a transfer")]
    FrameIndexOutOfRange { port: Port, index: i64 },
    /// The second element would not lie on a multiple of its size.
    #[error("{port} element index {index} leads off multiples of {bytes} bytes: index = step - {bytes} + 1")]
    ElementIndexMisaligned {
        port: Port,
        index: i64,
        /// Bytes of an element.
        bytes: u32,
    },
    /// The second frame would not begin on a multiple of the element's size.
    #[error("{port} frame index {index} leads off multiples of {bytes} bytes: index = step - {bytes} + 1")]
    FrameIndexMisaligned {
        port: Port,
        index: i64,
        /// Bytes of an element.
        bytes: u32,
    },
    /// The walk leaves the 32-bit address space.
    #[error("the {port} walk goes from {first:#x} up to {end:#x}, outside 32 bits: make it shorter")]
    WalkLeavesAddressSpace {
        port: Port,
        /// The lowest address accessed, which may be negative.
        first: i128,
        /// The address after the highest.
        end: i128,
    },
    /// A constant address where no device takes part.
    #[error(
        "constant {port} address from memory to memory is not supported: use an index, or mark the device"
    )]
    ConstantBetweenMemories { port: Port },
    /// A constant address in a transfer that no request line paces.
    #[error(
        "constant {port} address without a request line: name the line that says when the device is ready"
    )]
    ConstantWithoutRequest { port: Port },
    /// Packed access to elements that are not neighbours.
    #[error(
        "packed {port} access needs neighbouring elements: use post-increment or element index 1, or unpack"
    )]
    PackedNotContiguous { port: Port },
    /// Bursts without packed access.
    #[error("{port} bursts need packed access unless the address is constant: set packed, or no bursts")]
    BurstNotPacked { port: Port },
    /// The next channel does not exist.
    #[error("channel {next} cannot be next: the device has channels 0 to {last}", last = CHANNELS - 1)]
    LinkOutOfRange { next: u8 },
    /// The request line does not exist.
    #[error("request line {request} does not exist: the device has lines 0 to {last}", last = REQUESTS - 1)]
    RequestOutOfRange { request: u32 },
    /// A packet of no elements, or of more than the register's 16 bits.
    #[error("a packet of {elements} elements: it has 1 to 65535, use frames or the block for more")]
    PacketSizeOutOfRange { elements: u32 },
    /// Packets on a side whose address moves.
    #[error(
        "packets need a constant address on the {port}, which asks for them: use frames, or a constant address"
    )]
    PacketNeedsConstantAddress {
        /// The side that asks.
        port: Port,
    },
    /// Prefetch for a source that asks.
    #[error("prefetch is undefined when the source asks for each part: leave it off")]
    PrefetchBySource,
    /// Buffering disabled for a destination that asks.
    #[error("buffering cannot be disabled when the destination asks for each part: leave it on")]
    UnbufferedByDestination,
    /// A fill that waits for its source.
    #[error("a fill has no source that could ask for it: let the destination ask")]
    FillAskedForBySource,
    /// An interrupt at the end of packets that never comes.
    #[error("the packet interrupt comes only for packets that the destination asks for: leave it out")]
    PacketInterruptNeverComes,
    /// A drop interrupt without requests that could be dropped.
    #[error("the drop interrupt comes only with a request line: leave it out, or synchronize the transfer")]
    DropInterruptNeverComes,
    /// High priority for somebody without the token.
    #[error(
        "high priority on the {port} port is for trusted clients: present the token, or use normal priority"
    )]
    HighPriorityNotTrusted { port: Port },
    /// A supervisor channel for somebody without the token.
    #[error("a supervisor channel is for trusted clients: present the token, or leave it an ordinary one")]
    SupervisorNotTrusted,
}

impl ChannelConfig {
    /// Checks every rule; the token says that the caller may have high priority and supervisor channels.
    ///
    /// # Errors
    /// The first rule broken. Nothing was written.
    pub fn validate(&self, trusted: Option<&Trusted>) -> Result<(), ConfigError> {
        check_size(&self.size)?;
        check_operation(self)?;
        if self.operation.reads() {
            check_side(self, Port::Source)?;
        }
        check_side(self, Port::Destination)?;
        if let Some(next) = self.link.filter(|next| usize::from(*next) >= CHANNELS) {
            return Err(ConfigError::LinkOutOfRange { next });
        }
        if let Some(synchronization) = &self.synchronization {
            check_synchronization(self, synchronization)?;
        }
        check_interrupts(self)?;
        check_rights(self, trusted)
    }
}

fn check_size(size: &TransferSize) -> Result<(), ConfigError> {
    let TransferSize { elements, frames, .. } = *size;
    match (elements, frames) {
        (0, _) => Err(ConfigError::NoElements),
        (_, 0) => Err(ConfigError::NoFrames),
        _ if elements > TransferSize::ELEMENTS_LIMIT => {
            Err(ConfigError::TooManyElements { elements, limit: TransferSize::ELEMENTS_LIMIT })
        }
        _ if frames > TransferSize::FRAMES_LIMIT => {
            Err(ConfigError::TooManyFrames { frames, limit: TransferSize::FRAMES_LIMIT })
        }
        _ => Ok(()),
    }
}

fn check_operation(config: &ChannelConfig) -> Result<(), ConfigError> {
    if config.write_mode == WriteMode::Undefined {
        return Err(ConfigError::UndefinedWriteMode);
    }
    match config.operation {
        Operation::TransparentCopy { color } | Operation::Fill { color } if color >> 24 != 0 => {
            Err(ConfigError::ColorTooWide { color })
        }
        _ => Ok(()),
    }
}

fn check_side(config: &ChannelConfig, port: Port) -> Result<(), ConfigError> {
    let side = config.side(port);
    let size = &config.size;
    let bytes = size.element.bytes();
    if side.address > u64::from(u32::MAX) {
        return Err(ConfigError::AddressTooLarge { port, address: side.address });
    }
    if !side.address.is_multiple_of(u64::from(bytes)) {
        return Err(ConfigError::AddressMisaligned { port, address: side.address, bytes });
    }
    check_indexes(side, size, port)?;
    let (first, end) = side.extent(size);
    if first < 0 || end > 1 << 32 {
        return Err(ConfigError::WalkLeavesAddressSpace { port, first, end });
    }
    let other_is_device = match port {
        Port::Source => config.destination.is_device,
        Port::Destination => config.operation.reads() && config.source.is_device,
    };
    if side.addressing == Addressing::Constant && !side.is_device && !other_is_device {
        return Err(ConfigError::ConstantBetweenMemories { port });
    }
    if side.addressing == Addressing::Constant && config.synchronization.is_none() {
        return Err(ConfigError::ConstantWithoutRequest { port });
    }
    check_access(side, size, port)
}

fn check_indexes(side: &Side, size: &TransferSize, port: Port) -> Result<(), ConfigError> {
    let bytes = size.element.bytes();
    let leads_off = |index: i64| (i128::from(index) + i128::from(bytes) - 1) % i128::from(bytes) != 0;
    if side.addressing.mode().is_indexed() {
        let index = side.addressing.element_index();
        if i16::try_from(index).is_err() {
            return Err(ConfigError::ElementIndexOutOfRange { port, index });
        }
        if leads_off(index) {
            return Err(ConfigError::ElementIndexMisaligned { port, index, bytes });
        }
    }
    if let Addressing::DoubleIndex { frame_index: index, .. } = side.addressing {
        if i32::try_from(index).is_err() {
            return Err(ConfigError::FrameIndexOutOfRange { port, index });
        }
        if leads_off(index) {
            return Err(ConfigError::FrameIndexMisaligned { port, index, bytes });
        }
    }
    Ok(())
}

/// Packed access needs neighbours (manual, 16.4.4); bursts need packed access, except with a constant address (16.4.5).
fn check_access(side: &Side, size: &TransferSize, port: Port) -> Result<(), ConfigError> {
    let neighbours = match side.addressing {
        Addressing::Constant => false,
        Addressing::PostIncrement => true,
        Addressing::SingleIndex { element_index } => element_index == 1,
        Addressing::DoubleIndex { element_index, .. } => element_index == 1 && size.elements > 1,
    };
    if side.packed && !neighbours {
        return Err(ConfigError::PackedNotContiguous { port });
    }
    if side.burst != BurstSize::Single && !side.packed && side.addressing != Addressing::Constant {
        return Err(ConfigError::BurstNotPacked { port });
    }
    Ok(())
}

fn check_synchronization(config: &ChannelConfig, sync: &Synchronization) -> Result<(), ConfigError> {
    if sync.request >= REQUESTS as u32 {
        return Err(ConfigError::RequestOutOfRange { request: sync.request });
    }
    if sync.by == Port::Source && !config.operation.reads() {
        return Err(ConfigError::FillAskedForBySource);
    }
    if let SyncUnit::Packet { elements } = sync.unit {
        if elements == 0 || elements > 0xffff {
            return Err(ConfigError::PacketSizeOutOfRange { elements });
        }
        if config.side(sync.by).addressing != Addressing::Constant {
            return Err(ConfigError::PacketNeedsConstantAddress { port: sync.by });
        }
    }
    match sync.by {
        Port::Source if sync.prefetch => Err(ConfigError::PrefetchBySource),
        Port::Destination if !sync.buffering => Err(ConfigError::UnbufferedByDestination),
        _ => Ok(()),
    }
}

/// Refuses to wait for what the device does not report (manual, 16.4.13 for packets that the source asks for).
fn check_interrupts(config: &ChannelConfig) -> Result<(), ConfigError> {
    let packets_asked_for_by_destination = matches!(
        config.synchronization,
        Some(Synchronization { unit: SyncUnit::Packet { .. }, by: Port::Destination, .. })
    );
    if config.interrupts.contains(Cause::EndOfPacket) && !packets_asked_for_by_destination {
        return Err(ConfigError::PacketInterruptNeverComes);
    }
    if config.interrupts.contains(Cause::Drop) && config.synchronization.is_none() {
        return Err(ConfigError::DropInterruptNeverComes);
    }
    Ok(())
}

fn check_rights(config: &ChannelConfig, trusted: Option<&Trusted>) -> Result<(), ConfigError> {
    if trusted.is_some() {
        return Ok(());
    }
    let priorities = [(Port::Source, config.read_priority), (Port::Destination, config.write_priority)];
    if let Some((port, _)) = priorities.into_iter().find(|(_, priority)| *priority == Priority::High) {
        return Err(ConfigError::HighPriorityNotTrusted { port });
    }
    if config.supervisor {
        return Err(ConfigError::SupervisorNotTrusted);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
