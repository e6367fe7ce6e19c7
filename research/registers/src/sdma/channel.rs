//! Values of the registers that every channel has.
//!
//! ```text
//! u32 ── from_bits ──► Ccr, Csdp, Csr, ... ── Display ──► text
//! ```
//!
//! A setter asserts in debug builds that the value fits its field; the `_checked` setters return an error instead.
//! Reserved bits have no setter. Addresses and frame indexes are plain numbers.

#![expect(
    clippy::result_unit_err,
    reason = "the bitfield macro generates the checked setters, which fail for one reason only"
)]

use super::fields::{
    AddressSource, AddressingMode, BurstSize, DataType, DescriptorType, TransferMode, WriteMode,
};
use bitfield_struct::bitfield;
use core::fmt;
use memferry_ioat_registers::flags::write_set;

/// Channel control (CCR; paper, section 2.3.2.2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Ccr {
    /// Lower five bits of the DMA request; see [`Ccr::request`].
    #[bits(5)]
    pub synchro_control: u8,
    /// A request moves a frame, or a packet if `block_sync` is also set.
    pub frame_sync: bool,
    /// High priority on the read port.
    pub read_priority: bool,
    /// The channel runs. The device clears the bit at the end of the transfer and on errors.
    pub enable: bool,
    /// A suspend by the debugger stops the channel.
    pub suspend_sensitive: bool,
    /// The channel is active on the read port; read only.
    pub read_active: bool,
    /// The channel is active on the write port; read only.
    pub write_active: bool,
    #[bits(1)]
    __: u8,
    /// How the source address advances.
    #[bits(2)]
    pub source_addressing: AddressingMode,
    /// How the destination address advances.
    #[bits(2)]
    pub destination_addressing: AddressingMode,
    /// Fills the destination with COLOR; the source is not read.
    pub constant_fill: bool,
    /// Skips elements that equal COLOR.
    pub transparent_copy: bool,
    /// A request moves a block, or a packet if `frame_sync` is also set.
    pub block_sync: bool,
    /// Upper two bits of the DMA request.
    #[bits(2)]
    pub synchro_control_upper: u8,
    #[bits(1)]
    __: u8,
    /// The channel makes supervisor accesses.
    pub supervisor: bool,
    /// The channel reads data before the destination requests it.
    pub prefetch: bool,
    /// The source makes the DMA requests; otherwise the destination does.
    pub source_sync: bool,
    /// Data read for one request is written before the next request is served.
    pub buffering_disable: bool,
    /// High priority on the write port.
    pub write_priority: bool,
    #[bits(5)]
    __: u8,
}

impl Ccr {
    /// Number of the DMA request line plus one, joined from both fields; zero for an unsynchronized channel.
    pub const fn request(self) -> u8 {
        self.synchro_control() | self.synchro_control_upper() << 5
    }

    /// Sets the value that [`Ccr::request`] returns; drops all but the lower seven bits.
    pub const fn with_request(self, request: u8) -> Self {
        self.with_synchro_control(request & 0x1F).with_synchro_control_upper(request >> 5 & 3)
    }

    /// The unit that one request moves in a synchronized channel.
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
        write_set(
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
    /// The channel to enable at the end of the transfer.
    #[bits(5)]
    pub next_channel: u8,
    #[bits(10)]
    __: u16,
    /// Enables the link to `next_channel`.
    pub enable_link: bool,
    #[bits(16)]
    __: u16,
}

impl fmt::Display for ClnkCtrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.enable_link() {
            write!(f, "enables channel {} at the end", self.next_channel())
        } else {
            f.write_str("not linked")
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
            /// A request arrived while another was pending and was dropped.
            pub drop: bool,
            /// The first half of a frame was transferred.
            pub half_frame: bool,
            /// A frame was transferred.
            pub frame: bool,
            /// The transfer of the last frame began.
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
            /// A user access reached a supervisor channel.
            pub supervisor_error: bool,
            /// An address was not a multiple of the element size.
            pub misaligned_error: bool,
            /// The channel was disabled, and all its data has left the device.
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
    /// Enabled events (CICR; paper, section 2.3.2.2; manual, section 16.6). An event that is not enabled does not set its
    /// bit in CSR.
    Cicr,
    #[bits(1)]
    __: bool
}

events! {
    /// Events that happened (CSR; paper, section 2.3.2.2; manual, section 16.6). Writing a one clears that event.
    Csr,
    /// The transfer of a synchronized block is in progress. A state, not an event: CICR has no enable bit for it.
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

/// Element size, bursts, packing, endianness and write mode (CSDP; paper, section 2.3.2.2; manual, sections 16.4.8, 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csdp {
    #[bits(2)]
    pub data_type: DataType,
    #[bits(4)]
    __: u8,
    /// Packs source elements into accesses of the port's width. Bursts require it.
    pub source_packed: bool,
    /// Largest burst on the read port.
    #[bits(2)]
    pub source_burst: BurstSize,
    #[bits(4)]
    __: u8,
    /// Packs destination elements into accesses of the port's width. Bursts require it.
    pub destination_packed: bool,
    /// Largest burst on the write port.
    #[bits(2)]
    pub destination_burst: BurstSize,
    #[bits(2)]
    pub write_mode: WriteMode,
    /// The interconnect must not adapt the destination's byte order.
    pub destination_endian_lock: bool,
    /// The destination is big-endian. Must stay clear: the device is little-endian.
    pub destination_big_endian: bool,
    /// The interconnect must not adapt the source's byte order.
    pub source_endian_lock: bool,
    /// The source is big-endian. Must stay clear: the device is little-endian.
    pub source_big_endian: bool,
    #[bits(10)]
    __: u16,
}

impl fmt::Display for Csdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, source {}, ", self.data_type(), self.write_mode(), self.source_burst())?;
        write!(f, "destination {}", self.destination_burst())?;
        write_set(
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
    /// Number of elements; zero is not allowed.
    #[bits(24)]
    pub elements: u32,
    #[bits(8)]
    __: u8,
}

/// Frames of a block (CFN; paper, section 2.3.2.2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cfn {
    /// Number of frames; zero is not allowed.
    #[bits(16)]
    pub frames: u16,
    #[bits(16)]
    __: u16,
}

/// Colour of a fill or a transparent copy (COLOR; paper, section 2.3.2.2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Color {
    /// The colour, 24 bits. The upper 8 bits of a 32-bit element are zero in a fill and ignored in a transparent copy.
    #[bits(24)]
    pub value: u32,
    #[bits(8)]
    __: u8,
}

/// Linked list parameters (CDP; manual, sections 16.4 and 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cdp {
    /// Origin of the next block's destination address.
    #[bits(2)]
    pub destination_valid: AddressSource,
    /// Origin of the next block's source address.
    #[bits(2)]
    pub source_valid: AddressSource,
    /// Layout of the next descriptor.
    #[bits(3)]
    pub next_descriptor_type: DescriptorType,
    /// The list is paused. Software clears the bit to continue and must not set it.
    pub pause: bool,
    /// Whether the channel follows a list.
    #[bits(2)]
    pub transfer_mode: TransferMode,
    /// The channel starts by loading a descriptor; otherwise its registers describe the first block.
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
        write_set(f, &[(self.pause(), ", paused"), (self.fast_start(), ", starts by loading a descriptor")])
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
    /// End of the list: no descriptor follows.
    pub const END: Self = Self::from_bits(0xFFFF_FFFC);

    /// Byte address of the next descriptor.
    pub const fn address(self) -> u32 {
        self.words() << 2
    }

    /// Sets the byte address; drops its lower two bits.
    pub const fn with_address(self, address: u32) -> Self {
        self.with_words(address >> 2)
    }

    /// Whether no descriptor follows.
    pub const fn is_end(self) -> bool {
        self.words() == Self::END.words()
    }
}
