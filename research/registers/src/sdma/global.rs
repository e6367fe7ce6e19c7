//! Values of the registers that the device has once.
//!
//! ```text
//! u32 ── from_bits ──► Gcr, OcpSysconfig, ... ── Display ──► text
//! ```
//!
//! A setter asserts in debug builds that the value fits its field; the `_checked` setters return an error instead.
//! Reserved bits have no setter.

use super::fields::{FifoBudget, MidleMode, SidleMode, ThreadReservation};
use bitfield_struct::bitfield;
use core::fmt;
use memferry_ioat_registers::flags::write_set;

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
        f.write_str(if self.reset_done() { "reset done" } else { "reset in progress" })
    }
}

/// System configuration (OCP_SYSCONFIG; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct OcpSysconfig {
    /// Gates the interface clock when it is not needed.
    pub auto_idle: bool,
    /// Starts a reset; reads as zero. Older OMAPs and QEMU's model have the bit; the OMAP4 manual omits it.
    pub soft_reset: bool,
    #[bits(1)]
    __: u8,
    /// Idle of the configuration port.
    #[bits(2)]
    pub sidle_mode: SidleMode,
    /// Ignores a suspend by the debugger.
    pub emu_free: bool,
    #[bits(2)]
    __: u8,
    /// Clocks that stay on in idle; read only.
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
        write_set(
            f,
            &[
                (self.auto_idle(), ", clock gated when idle"),
                (self.soft_reset(), ", reset requested"),
                (self.emu_free(), ", debugger's suspend ignored"),
            ],
        )
    }
}

/// Global configuration (GCR; paper, section 2.3.2.1; manual, sections 16.4.10 and 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Gcr {
    /// FIFO entries that one channel may use; zero is not allowed. The reset value 16 is too small for 64-byte bursts.
    #[bits(8)]
    pub max_channel_fifo_depth: u8,
    #[bits(4)]
    __: u8,
    /// Threads reserved for high priority channels.
    #[bits(2)]
    pub thread_reservation: ThreadReservation,
    /// Division of the FIFO pool.
    #[bits(2)]
    pub fifo_budget: FifoBudget,
    /// Grants to high priority channels between two grants to low priority channels.
    #[bits(8)]
    pub arbitration_rate: u8,
    /// Shows the channel number on the ports.
    pub channel_id_gate: bool,
    #[bits(7)]
    __: u8,
}

impl Gcr {
    /// Value after reset: FIFO depth 16, arbitration rate 1, no thread reserved.
    pub const RESET: Self = Self::from_bits(0x0001_0010);
}

impl fmt::Display for Gcr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.max_channel_fifo_depth();
        let rate = self.arbitration_rate();
        write!(f, "FIFO depth {depth} a channel, arbitration rate {rate}, ")?;
        write!(f, "{}, {}", self.thread_reservation(), self.fifo_budget())?;
        write_set(f, &[(self.channel_id_gate(), ", channel numbers shown")])
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
        f.write_str("supports:")?;
        write_set(
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
    pub source_constant: bool,
    pub source_post_increment: bool,
    pub source_single_index: bool,
    pub source_double_index: bool,
    pub destination_constant: bool,
    pub destination_post_increment: bool,
    pub destination_single_index: bool,
    pub destination_double_index: bool,
    /// Source and destination have separate indexes.
    pub separate_indexes: bool,
    #[bits(23)]
    __: u32,
}

impl fmt::Display for Caps2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("supports:")?;
        write_set(
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
        f.write_str("supports:")?;
        write_set(
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

/// Capabilities 4 (CAPS_4; manual, section 16.6).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Caps4 {
    /// Events that the device can report, with the bit numbers of CSR.
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
