//! Values of the registers that every channel has.
//!
//! ```text
//! u32 ── from_bits ──► Ccr, Csdp, Csr, ... ── fields ──► words
//! ```
//!
//! Setting a field to a value that does not fit is a mistake of the caller (a debug assertion); the `_checked` setters
//! refuse it instead. Reserved bits cannot be set by name. Addresses and frame indexes fill their registers and have
//! no type here.

#![expect(
    clippy::result_unit_err,
    reason = "the checked setters are the bitfield macro's: a value fits or does not"
)]

use super::fields::{
    AddressSource, AddressingMode, BurstSize, DataType, DescriptorType, TransferMode, WriteMode,
};
use super::global::words;
use bitfield_struct::bitfield;
use core::fmt;

/// Channel control (CCR; paper, section 2.3.2.2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Ccr {
    /// Lower bits of the DMA request; see [`Ccr::request`].
    #[bits(5)]
    pub synchro_control: u8,
    /// A request moves a frame, or a packet when `block_sync` is set too.
    pub frame_sync: bool,
    /// High priority on the read port.
    pub read_priority: bool,
    /// The channel runs. The device clears it at the end and on errors.
    pub enable: bool,
    /// The debugger's suspend stops the channel.
    pub suspend_sensitive: bool,
    /// The channel is on the read port; read only.
    pub read_active: bool,
    /// The channel is on the write port; read only.
    pub write_active: bool,
    #[bits(1)]
    __: u8,
    /// How the source's address moves.
    #[bits(2)]
    pub source_addressing: AddressingMode,
    /// How the destination's address moves.
    #[bits(2)]
    pub destination_addressing: AddressingMode,
    /// The destination is filled with the colour; the source is not read.
    pub constant_fill: bool,
    /// Elements of the colour are not written.
    pub transparent_copy: bool,
    /// A request moves a block, or a packet when `frame_sync` is set too.
    pub block_sync: bool,
    /// Upper bits of the DMA request.
    #[bits(2)]
    pub synchro_control_upper: u8,
    #[bits(1)]
    __: u8,
    /// Accesses are made as the supervisor.
    pub supervisor: bool,
    /// Data is read before the destination's request.
    pub prefetch: bool,
    /// The source makes the requests, not the destination.
    pub source_sync: bool,
    /// Data read for one request is written before the next one.
    pub buffering_disable: bool,
    /// High priority on the write port.
    pub write_priority: bool,
    #[bits(5)]
    __: u8,
}

impl Ccr {
    /// The DMA request line plus one, as both fields hold it; zero when the channel is not synchronized.
    pub const fn request(self) -> u8 {
        self.synchro_control() | self.synchro_control_upper() << 5
    }

    /// With the request that [`Ccr::request`] gives; bits above the seventh are dropped.
    pub const fn with_request(self, request: u8) -> Self {
        self.with_synchro_control(request & 0x1F).with_synchro_control_upper(request >> 5 & 3)
    }

    /// What one request moves, in a synchronized channel.
    const fn sync_words(self) -> &'static str {
        match (self.frame_sync(), self.block_sync()) {
            (false, false) => "an element",
            (true, false) => "a frame",
            (false, true) => "a block",
            (true, true) => "a packet",
        }
    }
}

impl fmt::Display for Ccr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.enable() { "enabled" } else { "disabled" })?;
        write!(f, ", source {}, ", self.source_addressing())?;
        write!(f, "destination {}", self.destination_addressing())?;
        if self.request() != 0 {
            let side = if self.source_sync() { "source" } else { "destination" };
            write!(f, ", {} for each request {} of the {side}", self.sync_words(), self.request())?;
        }
        words(
            f,
            &[
                (self.constant_fill(), ", constant fill"),
                (self.transparent_copy(), ", transparent copy"),
                (self.read_priority(), ", high read priority"),
                (self.write_priority(), ", high write priority"),
                (self.prefetch(), ", prefetch"),
                (self.buffering_disable(), ", no buffering"),
                (self.supervisor(), ", supervisor"),
                (self.suspend_sensitive(), ", stops on suspend"),
                (self.read_active(), ", on the read port"),
                (self.write_active(), ", on the write port"),
            ],
        )
    }
}

/// Channel linking (CLNK_CTRL; paper, section 2.3.2.2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ClnkCtrl {
    /// The channel that is enabled next.
    #[bits(5)]
    pub next_channel: u8,
    #[bits(10)]
    __: u16,
    /// The link is followed.
    pub enable_link: bool,
    #[bits(16)]
    __: u16,
}

impl fmt::Display for ClnkCtrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.enable_link() {
            true => write!(f, "enables channel {} at the end", self.next_channel()),
            false => f.write_str("not linked"),
        }
    }
}

/// Declares CICR and CSR, which have the same events at the same bits.
macro_rules! events {
    ($(#[$doc:meta])* $name:ident, $($sync:tt)+) => {
        $(#[$doc])*
        #[bitfield(u32)]
        #[derive(PartialEq, Eq)]
        pub struct $name {
            #[bits(1)]
            __: u8,
            /// A request came before the pending one was served.
            pub drop: bool,
            /// The first half of the frame was transferred.
            pub half_frame: bool,
            /// A frame was transferred.
            pub frame: bool,
            /// The last frame has begun.
            pub last_frame: bool,
            /// The block was transferred.
            pub block: bool,
            $($sync)+,
            /// A packet was transferred.
            pub packet: bool,
            /// The interconnect reported an error.
            pub transaction_error: bool,
            #[bits(1)]
            __: u8,
            /// An access of the user to a channel of the supervisor.
            pub supervisor_error: bool,
            /// An address was not a multiple of the element's size.
            pub misaligned_error: bool,
            /// The channel was disabled and its data has left the device.
            pub drain: bool,
            #[bits(1)]
            __: u8,
            /// The linked list was transferred.
            pub super_block: bool,
            #[bits(17)]
            __: u32,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                events(f, self.into_bits())
            }
        }
    };
}

events! {
    /// Which events are reported (CICR; paper, section 2.3.2.2; manual, section 16.6). An event that is not enabled here
    /// does not reach CSR either.
    Cicr,
    #[bits(1)]
    __: bool
}

events! {
    /// Events that happened (CSR; paper, section 2.3.2.2; manual, section 16.6). A one that is written clears its event.
    Csr,
    /// A synchronized block has begun to move and has not ended (not an event: it has no enable bit).
    pub sync: bool
}

impl Cicr {
    /// Every event that can be enabled.
    pub const ALL: Self = Self::from_bits(0x5DBE);
}

impl Csr {
    /// Every event that can be cleared.
    pub const ALL: Self = Self::from_bits(0x5DFE);

    /// Whether an error is among the events.
    pub const fn is_error(self) -> bool {
        self.transaction_error() || self.supervisor_error() || self.misaligned_error() || self.drop()
    }
}

const EVENT_WORDS: [(u32, &str); 12] = [
    (1, "request dropped"),
    (2, "half of the frame"),
    (3, "end of frame"),
    (4, "start of the last frame"),
    (5, "end of block"),
    (6, "synchronized"),
    (7, "end of packet"),
    (8, "transaction error"),
    (10, "supervisor error"),
    (11, "misaligned address"),
    (12, "drained"),
    (14, "end of super block"),
];

fn events(f: &mut fmt::Formatter<'_>, bits: u32) -> fmt::Result {
    let mut separator = "";
    for (_, words) in EVENT_WORDS.iter().filter(|(bit, _)| bits >> bit & 1 == 1) {
        write!(f, "{separator}{words}")?;
        separator = ", ";
    }
    if separator.is_empty() { f.write_str("none") } else { Ok(()) }
}

/// Element size, bursts, packing, endianness, write mode (CSDP; paper, section 2.3.2.2; manual, sections 16.4.8, 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csdp {
    /// Size of an element.
    #[bits(2)]
    pub data_type: DataType,
    #[bits(4)]
    __: u8,
    /// Elements of the source are packed into the port's width; bursts need it.
    pub source_packed: bool,
    /// Largest burst on the read port.
    #[bits(2)]
    pub source_burst: BurstSize,
    #[bits(4)]
    __: u8,
    /// Elements for the destination are packed into the port's width; bursts need it.
    pub destination_packed: bool,
    /// Largest burst on the write port.
    #[bits(2)]
    pub destination_burst: BurstSize,
    /// Whether writes are waited for.
    #[bits(2)]
    pub write_mode: WriteMode,
    /// The interconnect may not adapt the destination's byte order.
    pub destination_endian_lock: bool,
    /// The destination is big-endian; the device is little-endian and must not be told so.
    pub destination_big_endian: bool,
    /// The interconnect may not adapt the source's byte order.
    pub source_endian_lock: bool,
    /// The source is big-endian; the device is little-endian and must not be told so.
    pub source_big_endian: bool,
    #[bits(10)]
    __: u16,
}

impl fmt::Display for Csdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, source {}, ", self.data_type(), self.write_mode(), self.source_burst())?;
        write!(f, "destination {}", self.destination_burst())?;
        words(
            f,
            &[
                (self.source_packed(), ", source packed"),
                (self.destination_packed(), ", destination packed"),
                (self.source_big_endian(), ", source big-endian"),
                (self.source_endian_lock(), ", source byte order locked"),
                (self.destination_big_endian(), ", destination big-endian"),
                (self.destination_endian_lock(), ", destination byte order locked"),
            ],
        )
    }
}

/// Elements of a frame (CEN; paper, section 2.3.2.2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cen {
    /// The number; zero is not allowed.
    #[bits(24)]
    pub elements: u32,
    #[bits(8)]
    __: u8,
}

/// Frames of a block (CFN; paper, section 2.3.2.2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cfn {
    /// The number; zero is not allowed.
    #[bits(16)]
    pub frames: u16,
    #[bits(16)]
    __: u16,
}

/// Colour (COLOR; paper, section 2.3.2.2; manual, section 16.6): 24 bits, for 32-bit elements too.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Color {
    /// The colour. The upper 8 bits of a 32-bit element are zero in a fill and ignored in a transparent copy.
    #[bits(24)]
    pub value: u32,
    #[bits(8)]
    __: u8,
}

/// Linked list parameters (CDP; manual, sections 16.4 and 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cdp {
    /// Where the next block's destination address comes from.
    #[bits(2)]
    pub destination_valid: AddressSource,
    /// Where the next block's source address comes from.
    #[bits(2)]
    pub source_valid: AddressSource,
    /// Layout of the next descriptor.
    #[bits(3)]
    pub next_descriptor_type: DescriptorType,
    /// The list stands still; software clears it to go on, and must not set it.
    pub pause: bool,
    /// Whether the channel follows a list.
    #[bits(2)]
    pub transfer_mode: TransferMode,
    /// The channel loads a descriptor first; without it, the registers describe the first block.
    pub fast_start: bool,
    #[bits(21)]
    __: u32,
}

impl fmt::Display for Cdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.transfer_mode())?;
        if self.transfer_mode() == TransferMode::LinkedList {
            write!(f, ", next {}, ", self.next_descriptor_type())?;
            write!(f, "source {}, ", self.source_valid())?;
            write!(f, "destination {}", self.destination_valid())?;
        }
        words(f, &[(self.pause(), ", paused"), (self.fast_start(), ", starts by loading a descriptor")])
    }
}

/// Address of the next descriptor (CNDP; manual, sections 16.4 and 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cndp {
    #[bits(2)]
    __: u8,
    /// The address in words of four bytes; see [`Cndp::address`].
    #[bits(30)]
    pub words: u32,
}

impl Cndp {
    /// What ends a list: no descriptor follows.
    pub const END: Self = Self::from_bits(0xFFFF_FFFC);

    /// The address in bytes.
    pub const fn address(self) -> u32 {
        self.words() << 2
    }

    /// With the address in bytes; its lower two bits are dropped.
    pub const fn with_address(self, address: u32) -> Self {
        self.with_words(address >> 2)
    }

    /// Whether no descriptor follows.
    pub const fn is_end(self) -> bool {
        self.words() == Self::END.words()
    }
}
