//! The rules for configurations, each with its own error.
//!
//! ```text
//! ChannelConfig ──► size ──► operation ──► each accessed side ──► synchronization ──► interrupts ──► trust ──► Ok
//! ```
//!
//! The device accepts any register values; these rules exclude invalid combinations (paper, section 3.2). Validation
//! reports the first broken rule. It does not check the client's rights to the memory.

use memferry_registers::sdma::{BurstSize, CHANNELS, REQUESTS, WriteMode};
use thiserror::Error;

use super::cause::Cause;
use super::config::{
    Addressing, ChannelConfig, Operation, Port, Priority, Side, SyncUnit, Synchronization, TransferSize,
    Trusted,
};

/// A rule that a configuration breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    #[error("a frame has no elements: give it at least one")]
    NoElements,
    /// The number of elements exceeds the register's 24 bits.
    #[error("a frame of {elements} elements exceeds the limit of {limit}: split the transfer into frames")]
    TooManyElements {
        elements: u32,
        /// Maximum number of elements in a frame.
        limit: u32,
    },
    #[error("the transfer has no frames: give it at least one")]
    NoFrames,
    /// The number of frames exceeds the register's 16 bits.
    #[error("{frames} frames exceed the limit of {limit}: split the transfer into several")]
    TooManyFrames {
        frames: u32,
        /// Maximum number of frames in a block.
        limit: u32,
    },
    /// The manual leaves the write mode undefined.
    #[error("the write mode is undefined: choose posted, non-posted or last write non-posted")]
    UndefinedWriteMode,
    #[error("colour {color:#x} exceeds 24 bits, all that the device compares and fills: use a smaller value")]
    ColorTooWide { color: u32 },
    #[error("{port} address {address:#x} exceeds 32 bits: use memory that the device can access")]
    AddressTooLarge { port: Port, address: u64 },
    /// The address of the first element is not a multiple of the element size.
    #[error(
        "{port} address {address:#x} is not a multiple of the element size of {bytes} bytes: use smaller elements"
    )]
    AddressMisaligned {
        port: Port,
        address: u64,
        /// Element size in bytes.
        bytes: u32,
    },
    #[error("{port} element index {index} does not fit a signed 16-bit field: plan the walk row by row")]
    ElementIndexOutOfRange { port: Port, index: i64 },
    #[error("{port} frame index {index} does not fit a signed 32-bit field: make each row a transfer")]
    FrameIndexOutOfRange { port: Port, index: i64 },
    /// The address of the second element would not be a multiple of the element size.
    #[error("{port} element index {index} misaligns elements of {bytes} bytes: use step - {bytes} + 1")]
    ElementIndexMisaligned {
        port: Port,
        index: i64,
        /// Element size in bytes.
        bytes: u32,
    },
    /// The address of the second frame would not be a multiple of the element size.
    #[error("{port} frame index {index} misaligns elements of {bytes} bytes: use step - {bytes} + 1")]
    FrameIndexMisaligned {
        port: Port,
        index: i64,
        /// Element size in bytes.
        bytes: u32,
    },
    /// The walk leaves the 32-bit address space.
    #[error("the {port} walk covers {first:#x} to {end:#x}, outside 32 bits: make it shorter")]
    WalkLeavesAddressSpace {
        port: Port,
        /// The lowest accessed address, which may be negative.
        first: i128,
        /// The end of the highest element.
        end: i128,
    },
    /// The address is constant, and no side is a device.
    #[error("constant {port} address between memories is not supported: use an index, or mark the device")]
    ConstantBetweenMemories { port: Port },
    /// The address is constant, and no request line paces the transfer.
    #[error("constant {port} address without a request line: set the request line of the device")]
    ConstantWithoutRequest { port: Port },
    /// Packed access to elements that are not contiguous.
    #[error(
        "packed {port} access needs contiguous elements: use post-increment or element index 1, or disable packing"
    )]
    PackedNotContiguous { port: Port },
    #[error("{port} bursts need packed access or a constant address: enable packing, or disable bursts")]
    BurstNotPacked { port: Port },
    #[error("cannot link to channel {next}: the device has channels 0 to {last}", last = CHANNELS - 1)]
    LinkOutOfRange { next: u8 },
    #[error("request line {request} does not exist: the device has lines 0 to {last}", last = REQUESTS - 1)]
    RequestOutOfRange { request: u32 },
    /// The packet is empty, or its size exceeds the register's 16 bits.
    #[error("a packet cannot have {elements} elements: use 1 to 65535, or synchronize frames or the block")]
    PacketSizeOutOfRange { elements: u32 },
    /// The address of the side that requests packets is not constant.
    #[error(
        "packets need a constant address on the {port}, which requests them: use frames, or a constant address"
    )]
    PacketNeedsConstantAddress {
        /// The side that makes the requests.
        port: Port,
    },
    #[error("prefetch is undefined when the source makes the requests: disable it")]
    PrefetchBySource,
    #[error("buffering is mandatory when the destination makes the requests: enable it")]
    UnbufferedByDestination,
    #[error("a fill has no source that could make requests: let the destination make them")]
    FillAskedForBySource,
    #[error("the packet interrupt occurs only for packets that the destination requests: omit it")]
    PacketInterruptNeverComes,
    /// A drop interrupt in a transfer without requests.
    #[error("the drop interrupt occurs only with a request line: omit it, or synchronize the transfer")]
    DropInterruptNeverComes,
    /// High priority without the [`Trusted`] token.
    #[error(
        "high priority on the {port} port is for trusted clients: pass the token, or use normal priority"
    )]
    HighPriorityNotTrusted { port: Port },
    /// A supervisor channel without the [`Trusted`] token.
    #[error("a supervisor channel is for trusted clients: pass the token, or use an ordinary channel")]
    SupervisorNotTrusted,
}

impl ChannelConfig {
    /// Checks every rule. The token permits high priority and supervisor channels.
    ///
    /// # Errors
    /// The first broken rule.
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
        check_trust(self, trusted)
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
    let is_misaligned = |index: i64| (i128::from(index) + i128::from(bytes) - 1) % i128::from(bytes) != 0;
    if side.addressing.mode().is_indexed() {
        let index = side.addressing.element_index();
        if i16::try_from(index).is_err() {
            return Err(ConfigError::ElementIndexOutOfRange { port, index });
        }
        if is_misaligned(index) {
            return Err(ConfigError::ElementIndexMisaligned { port, index, bytes });
        }
    }
    if let Addressing::DoubleIndex { frame_index: index, .. } = side.addressing {
        if i32::try_from(index).is_err() {
            return Err(ConfigError::FrameIndexOutOfRange { port, index });
        }
        if is_misaligned(index) {
            return Err(ConfigError::FrameIndexMisaligned { port, index, bytes });
        }
    }
    Ok(())
}

/// Packed access needs contiguous elements (manual, 16.4.4). Bursts need packed access, except with a constant address
/// (16.4.5).
fn check_access(side: &Side, size: &TransferSize, port: Port) -> Result<(), ConfigError> {
    let is_contiguous = match side.addressing {
        Addressing::Constant => false,
        Addressing::PostIncrement => true,
        Addressing::SingleIndex { element_index } => element_index == 1,
        Addressing::DoubleIndex { element_index, .. } => element_index == 1 && size.elements > 1,
    };
    if side.packed && !is_contiguous {
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

/// Refuses interrupts that the device never raises (manual, 16.4.13 for packets that the source requests).
fn check_interrupts(config: &ChannelConfig) -> Result<(), ConfigError> {
    let destination_requests_packets = matches!(
        config.synchronization,
        Some(Synchronization { unit: SyncUnit::Packet { .. }, by: Port::Destination, .. })
    );
    if config.interrupts.contains(Cause::EndOfPacket) && !destination_requests_packets {
        return Err(ConfigError::PacketInterruptNeverComes);
    }
    if config.interrupts.contains(Cause::Drop) && config.synchronization.is_none() {
        return Err(ConfigError::DropInterruptNeverComes);
    }
    Ok(())
}

fn check_trust(config: &ChannelConfig, trusted: Option<&Trusted>) -> Result<(), ConfigError> {
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
