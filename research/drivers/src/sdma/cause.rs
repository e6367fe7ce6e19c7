//! Causes of interrupts, and the set of causes that a channel reports.
//!
//! ```text
//! Cause ── Interrupts::with ──► Interrupts ── cicr ──► CICR          CSR ── Cause::is_in ──► causes of an event
//! ```

use core::fmt;

use memferry_registers::sdma::{Cicr, Csr};

/// An event that a channel can report (paper, 2.3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A hardware request arrived while another was pending and was dropped.
    Drop,
    /// Half of the current frame is done.
    HalfOfFrame,
    /// A frame is done.
    EndOfFrame,
    /// The last frame has begun.
    StartOfLastFrame,
    /// The transfer is done.
    EndOfBlock,
    /// A packet is done.
    EndOfPacket,
    /// An access failed on the interconnect.
    TransactionError,
    /// Unprivileged access to a supervisor channel.
    SupervisorError,
    /// An element's address is not a multiple of its size.
    MisalignedAddress,
    /// A disabled channel has written all the data that it had read.
    Drained,
    /// The linked list is done.
    EndOfSuperBlock,
}

impl Cause {
    /// Every cause, in order of its bit.
    pub const ALL: [Self; 11] = [
        Self::Drop,
        Self::HalfOfFrame,
        Self::EndOfFrame,
        Self::StartOfLastFrame,
        Self::EndOfBlock,
        Self::EndOfPacket,
        Self::TransactionError,
        Self::SupervisorError,
        Self::MisalignedAddress,
        Self::Drained,
        Self::EndOfSuperBlock,
    ];

    /// Whether the cause means that the transfer failed.
    pub const fn is_error(self) -> bool {
        matches!(self, Self::Drop | Self::TransactionError | Self::SupervisorError | Self::MisalignedAddress)
    }

    /// Whether `status` reports the cause.
    pub(super) const fn is_in(self, status: Csr) -> bool {
        match self {
            Self::Drop => status.drop(),
            Self::HalfOfFrame => status.half_frame(),
            Self::EndOfFrame => status.frame(),
            Self::StartOfLastFrame => status.last_frame(),
            Self::EndOfBlock => status.block(),
            Self::EndOfPacket => status.packet(),
            Self::TransactionError => status.transaction_error(),
            Self::SupervisorError => status.supervisor_error(),
            Self::MisalignedAddress => status.misaligned_error(),
            Self::Drained => status.drain(),
            Self::EndOfSuperBlock => status.super_block(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drop => "a hardware request was dropped",
            Self::HalfOfFrame => "half of the frame is done",
            Self::EndOfFrame => "a frame is done",
            Self::StartOfLastFrame => "the last frame has begun",
            Self::EndOfBlock => "the block is done",
            Self::EndOfPacket => "a packet is done",
            Self::TransactionError => "an access failed on the interconnect",
            Self::SupervisorError => "unprivileged access to a supervisor channel",
            Self::MisalignedAddress => "an element's address is misaligned",
            Self::Drained => "the channel has drained",
            Self::EndOfSuperBlock => "the linked list is done",
        })
    }
}

/// The set of causes for which a channel raises interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Interrupts(u16);

impl Interrupts {
    /// No cause: the channel has to be polled.
    pub const NONE: Self = Self(0);
    /// The end of the block, and every error of transfers without a request line.
    pub const END_AND_ERRORS: Self = Self::NONE.with(Cause::EndOfBlock).with_errors();
    /// The end of a linked list, and every error of transfers without a request line.
    pub const LIST_END_AND_ERRORS: Self = Self::NONE.with(Cause::EndOfSuperBlock).with_errors();

    const fn with_errors(self) -> Self {
        self.with(Cause::TransactionError).with(Cause::SupervisorError).with(Cause::MisalignedAddress)
    }

    /// Adds a cause to the set.
    pub const fn with(self, cause: Cause) -> Self {
        Self(self.0 | 1 << cause as u16)
    }

    /// Removes a cause from the set.
    pub const fn without(self, cause: Cause) -> Self {
        Self(self.0 & !(1 << cause as u16))
    }

    pub const fn contains(self, cause: Cause) -> bool {
        self.0 & 1 << cause as u16 != 0
    }

    pub(super) const fn cicr(self) -> Cicr {
        Cicr::new()
            .with_drop(self.contains(Cause::Drop))
            .with_half_frame(self.contains(Cause::HalfOfFrame))
            .with_frame(self.contains(Cause::EndOfFrame))
            .with_last_frame(self.contains(Cause::StartOfLastFrame))
            .with_block(self.contains(Cause::EndOfBlock))
            .with_packet(self.contains(Cause::EndOfPacket))
            .with_transaction_error(self.contains(Cause::TransactionError))
            .with_supervisor_error(self.contains(Cause::SupervisorError))
            .with_misaligned_error(self.contains(Cause::MisalignedAddress))
            .with_drain(self.contains(Cause::Drained))
            .with_super_block(self.contains(Cause::EndOfSuperBlock))
    }
}
