//! Values of the registers that the device has once.
//!
//! ```text
//! u32 ── from_bits ──► Gcr, OcpSysconfig, ... ── fields ──► words
//! ```
//!
//! Setting a field to a value that does not fit is a mistake of the caller (a debug assertion); the `_checked` setters
//! refuse it instead. Reserved bits cannot be set by name.

use super::fields::{FifoBudget, MidleMode, SidleMode, ThreadReservation};
use bitfield_struct::bitfield;
use core::fmt;

/// System status (SYSSTATUS; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct SysStatus {
    /// The reset is over.
    pub reset_done: bool,
    #[bits(31)]
    __: u32,
}

impl fmt::Display for SysStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.reset_done() { "reset done" } else { "reset going on" })
    }
}

/// System configuration (OCP_SYSCONFIG; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct OcpSysconfig {
    /// The interface clock is gated when it is not needed.
    pub auto_idle: bool,
    /// Begins a reset; reads as zero. The older OMAPs have it and QEMU does; OMAP4's table leaves the bit out.
    pub soft_reset: bool,
    #[bits(1)]
    __: u8,
    /// Idle of the configuration port.
    #[bits(2)]
    pub sidle_mode: SidleMode,
    /// Ignores the debugger's suspend.
    pub emu_free: bool,
    #[bits(2)]
    __: u8,
    /// Which clocks stay on in idle; read only.
    #[bits(2)]
    pub clock_activity: u8,
    #[bits(2)]
    __: u8,
    /// Standby of the read and write ports.
    #[bits(2)]
    pub midle_mode: MidleMode,
    #[bits(18)]
    __: u32,
}

impl fmt::Display for OcpSysconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.midle_mode(), self.sidle_mode())?;
        words(
            f,
            &[
                (self.auto_idle(), ", clock gated when idle"),
                (self.soft_reset(), ", reset asked for"),
                (self.emu_free(), ", debugger's suspend ignored"),
            ],
        )
    }
}

/// Global configuration (GCR; paper, section 2.3.2.1; manual, sections 16.4.10 and 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Gcr {
    /// FIFO entries that one channel may take; zero is not allowed. The reset value 16 is too small for 64-byte bursts.
    #[bits(8)]
    pub max_channel_fifo_depth: u8,
    #[bits(4)]
    __: u8,
    /// Threads kept for high priority channels.
    #[bits(2)]
    pub thread_reservation: ThreadReservation,
    /// How the FIFO pool is divided.
    #[bits(2)]
    pub fifo_budget: FifoBudget,
    /// Grants to high priority channels before one to a low priority channel.
    #[bits(8)]
    pub arbitration_rate: u8,
    /// The channel's number is shown on the ports.
    pub channel_id_gate: bool,
    #[bits(7)]
    __: u8,
}

impl Gcr {
    /// Value after reset: depth 16, arbitration rate 1, nothing reserved.
    pub const RESET: Self = Self::from_bits(0x0001_0010);
}

impl fmt::Display for Gcr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.max_channel_fifo_depth();
        let rate = self.arbitration_rate();
        write!(f, "FIFO depth {depth} a channel, arbitration rate {rate}, ")?;
        write!(f, "{}, {}", self.thread_reservation(), self.fifo_budget())?;
        words(f, &[(self.channel_id_gate(), ", channel numbers shown")])
    }
}

/// Capabilities 0 (CAPS_0; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Caps0 {
    #[bits(18)]
    __: u32,
    pub transparent_copy: bool,
    pub constant_fill: bool,
    /// Linked lists of descriptor types 1, 2 and 3.
    pub linked_list_types_123: bool,
    /// Linked lists of descriptor type 4.
    pub linked_list_type_4: bool,
    #[bits(10)]
    __: u32,
}

impl fmt::Display for Caps0 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("can do:")?;
        words(
            f,
            &[
                (self.transparent_copy(), " transparent copy;"),
                (self.constant_fill(), " constant fill;"),
                (self.linked_list_types_123(), " linked lists of types 1 to 3;"),
                (self.linked_list_type_4(), " linked lists of type 4;"),
            ],
        )
    }
}

/// Capabilities 2 (CAPS_2; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Caps2 {
    /// Constant addresses of the source.
    pub source_constant: bool,
    /// Post-increment of the source.
    pub source_post_increment: bool,
    /// Single index of the source.
    pub source_single_index: bool,
    /// Double index of the source.
    pub source_double_index: bool,
    /// Constant addresses of the destination.
    pub destination_constant: bool,
    /// Post-increment of the destination.
    pub destination_post_increment: bool,
    /// Single index of the destination.
    pub destination_single_index: bool,
    /// Double index of the destination.
    pub destination_double_index: bool,
    /// Indexes of source and destination are separate.
    pub separate_indexes: bool,
    #[bits(23)]
    __: u32,
}

impl fmt::Display for Caps2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("can do:")?;
        words(
            f,
            &[
                (self.source_constant(), " constant source;"),
                (self.source_post_increment(), " post-increment source;"),
                (self.source_single_index(), " single index source;"),
                (self.source_double_index(), " double index source;"),
                (self.destination_constant(), " constant destination;"),
                (self.destination_post_increment(), " post-increment destination;"),
                (self.destination_single_index(), " single index destination;"),
                (self.destination_double_index(), " double index destination;"),
                (self.separate_indexes(), " separate indexes;"),
            ],
        )
    }
}

/// Capabilities 3 (CAPS_3; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Caps3 {
    /// A request moves an element.
    pub element_synchronization: bool,
    /// A request moves a frame.
    pub frame_synchronization: bool,
    #[bits(2)]
    __: u8,
    /// Channels take turns on the ports.
    pub interleaving: bool,
    /// Channels can be linked.
    pub chaining: bool,
    /// A request moves a packet.
    pub packet_synchronization: bool,
    /// A request moves a block.
    pub block_synchronization: bool,
    #[bits(24)]
    __: u32,
}

impl fmt::Display for Caps3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("can do:")?;
        words(
            f,
            &[
                (self.element_synchronization(), " an element for a request;"),
                (self.frame_synchronization(), " a frame for a request;"),
                (self.packet_synchronization(), " a packet for a request;"),
                (self.block_synchronization(), " a block for a request;"),
                (self.interleaving(), " interleaved channels;"),
                (self.chaining(), " linked channels;"),
            ],
        )
    }
}

/// Capabilities 4 (CAPS_4; manual, section 16.6): the events that can be reported, at the bits they have in CSR.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Caps4 {
    /// The events, as CSR has them.
    #[bits(15)]
    pub events: u16,
    #[bits(17)]
    __: u32,
}

impl fmt::Display for Caps4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "can report: {}", super::Csr::from_bits(u32::from(self.events())))
    }
}

/// Writes the words whose flag is set.
pub(super) fn words(f: &mut fmt::Formatter<'_>, flags: &[(bool, &str)]) -> fmt::Result {
    flags.iter().filter(|(set, _)| *set).try_for_each(|(_, words)| f.write_str(words))
}
