//! Values of the registers that the device has once.
//!
//! ```text
//! bits ── from_bits ──► Chancnt, Intrctrl, ... ── fields ──► words
//! ```
//!
//! Reserved bits cannot be set by name. What a register's access does besides is told where its field is.

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

/// Transfer capacity (XFERCAP, read only): the most bytes of one descriptor.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Xfercap {
    /// The number's logarithm of base two; zero stands for 32 GiB.
    #[bits(5)]
    pub log2: u8,
    #[bits(3)]
    __: u8,
}

impl Xfercap {
    /// Bytes of one descriptor at most. The descriptor's size field limits them too.
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
    /// Debug registers are shown; unsure what they are.
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
    /// The line may rise. A read of the register clears it, so that one handler at a time has the interrupt.
    pub master_enable: bool,
    /// A channel waits for attention; read only.
    pub status: bool,
    /// The line is high: status and enable; read only.
    pub interrupt: bool,
    /// Every channel has a message-signalled vector of its own.
    pub msix_vector_control: bool,
    #[bits(4)]
    __: u8,
}

impl fmt::Display for Intrctrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.master_enable() { "interrupts enabled" } else { "interrupts disabled" })?;
        words(
            f,
            &[
                (self.status(), ", a channel waits"),
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

/// What the device can do (DMACAPABILITY, read only). The bits from 13 on are Linux's definitions; the datasheets leave
/// them out.
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
    /// Move and CRC at once.
    pub move_crc: bool,
    pub block_fill: bool,
    /// Interrupt targets of 32 bits.
    pub extended_apic_id: bool,
    pub xor: bool,
    /// XOR and its weighted kin, for RAID 6.
    pub pq: bool,
    #[bits(3)]
    __: u8,
    /// Error status is written into descriptors.
    pub descriptor_write_back: bool,
    #[bits(3)]
    __: u8,
    /// RAID of 16 sources with descriptors of their own.
    pub raid_16: bool,
    #[bits(14)]
    __: u16,
}

impl fmt::Display for DmaCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("can do: copies;")?;
        words(
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

/// Writes the words whose flag is set.
pub(super) fn words(f: &mut fmt::Formatter<'_>, flags: &[(bool, &str)]) -> fmt::Result {
    flags.iter().filter(|(set, _)| *set).try_for_each(|(_, words)| f.write_str(words))
}
