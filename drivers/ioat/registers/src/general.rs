//! Values of the registers that the device has once.
//!
//! ```text
//! bits ── from_bits ──► Chancnt, Intrctrl, ... ── Display ──► text
//! ```
//!
//! Reserved bits have no setter. Side effects of an access are documented at the field they concern.

use crate::flags::write_set;
use bitfield_struct::bitfield;
use core::fmt;

/// Number of channels (CHANCNT, read only).
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Chancnt {
    #[bits(5)]
    pub channels: u8,
    #[bits(3)]
    __: u8,
}

impl fmt::Display for Chancnt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} channels", self.channels())
    }
}

/// Transfer capacity (XFERCAP, read only): the maximum size of one descriptor's transfer.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Xfercap {
    /// Base-two logarithm of the size in bytes; zero stands for 32 GiB.
    #[bits(5)]
    pub log2: u8,
    #[bits(3)]
    __: u8,
}

impl Xfercap {
    /// Maximum size of one descriptor's transfer in bytes. The descriptor's 32-bit size field limits it further.
    pub const fn bytes(self) -> u64 {
        match self.log2() {
            0 => 1 << 35,
            log2 => 1 << log2,
        }
    }
}

impl fmt::Display for Xfercap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {} bytes for one descriptor", self.bytes())
    }
}

#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Genctrl {
    /// Exposes debug registers; unsure which.
    pub debug_enable: bool,
    #[bits(7)]
    __: u8,
}

impl fmt::Display for Genctrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.debug_enable() { "debug registers shown" } else { "no debug registers" })
    }
}

#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Intrctrl {
    /// Allows the interrupt line to rise. A read of the register clears the bit, so that one handler takes the interrupt.
    pub master_enable: bool,
    /// A channel needs attention; read only.
    pub status: bool,
    /// The line is high: `status` and `master_enable` are both set; read only.
    pub interrupt: bool,
    /// Each channel has its own message-signalled vector.
    pub msix_vector_control: bool,
    #[bits(4)]
    __: u8,
}

impl fmt::Display for Intrctrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.master_enable() { "interrupts enabled" } else { "interrupts disabled" })?;
        write_set(
            f,
            &[
                (self.status(), ", a channel needs attention"),
                (self.interrupt(), ", the line is high"),
                (self.msix_vector_control(), ", a vector for each channel"),
            ],
        )
    }
}

/// Version (CBVER, read only): 0x20 is 2.0, 0x32 is 3.2.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Cbver {
    #[bits(4)]
    pub minor: u8,
    #[bits(4)]
    pub major: u8,
}

impl fmt::Display for Cbver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}.{}", self.major(), self.minor())
    }
}

/// Capabilities of the device (DMACAPABILITY, read only). Bits 13 and up come from Linux's definitions; the datasheets
/// omit them.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DmaCapability {
    /// Transfers may cross physical pages.
    pub page_break: bool,
    pub crc: bool,
    pub marker_skipping: bool,
    #[bits(1)]
    __: u8,
    pub direct_cache_access: bool,
    /// Copy and CRC in one descriptor.
    pub move_crc: bool,
    pub block_fill: bool,
    /// Interrupt targets of 32 bits.
    pub extended_apic_id: bool,
    pub xor: bool,
    /// P and Q parity of RAID 6.
    pub pq: bool,
    #[bits(3)]
    __: u8,
    /// Error status is written into descriptors.
    pub descriptor_write_back: bool,
    #[bits(3)]
    __: u8,
    /// RAID operations of 16 sources, with their own descriptor format.
    pub raid_16: bool,
    #[bits(14)]
    __: u16,
}

impl fmt::Display for DmaCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("supports: copies;")?;
        write_set(
            f,
            &[
                (self.block_fill(), " fills;"),
                (self.xor(), " xor;"),
                (self.pq(), " P+Q;"),
                (self.crc(), " CRC;"),
                (self.move_crc(), " move with CRC;"),
                (self.marker_skipping(), " marker skipping;"),
                (self.page_break(), " crossing of pages;"),
                (self.direct_cache_access(), " direct cache access;"),
                (self.extended_apic_id(), " 32-bit interrupt targets;"),
                (self.descriptor_write_back(), " error status in descriptors;"),
                (self.raid_16(), " RAID of 16 sources;"),
            ],
        )
    }
}
