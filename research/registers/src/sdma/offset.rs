//! Offset, access and implemented bits of each register.
//!
//! ```text
//! Location ── offset() ──► bytes from the base ── locate() ──► the same Location
//!     ├── access()       read only, read and write, or write one to clear
//!     └── implemented()  bits that are not reserved
//! ```
//!
//! Source: the tables of the manual's section 16.6. Reserved bits read as zero and ignore writes. The bits' meaning is in
//! the sibling modules.

use super::{CHANNELS, LINES};
use core::fmt;

/// Revision of the device.
pub const REVISION: u32 = 0x00;
/// Interrupt status of line 0; see [`irq_status`] for the others.
pub const IRQSTATUS_L0: u32 = 0x08;
/// Interrupt enable of line 0; see [`irq_enable`] for the others.
pub const IRQENABLE_L0: u32 = 0x18;
pub const SYSSTATUS: u32 = 0x28;
pub const OCP_SYSCONFIG: u32 = 0x2C;
/// Capabilities: fill, transparent copy, linked lists.
pub const CAPS_0: u32 = 0x64;
pub const CAPS_2: u32 = 0x6C;
/// Capabilities: synchronization and chaining.
pub const CAPS_3: u32 = 0x70;
/// Capabilities: events that can be reported.
pub const CAPS_4: u32 = 0x74;
pub const GCR: u32 = 0x78;
/// First register of channel 0.
pub const CHANNEL_0: u32 = 0x80;
/// Bytes from one channel's registers to the next channel's.
pub const CHANNEL_STRIDE: u32 = 0x60;
/// Bytes from the first register to the end of the last channel.
pub const SPAN: u32 = CHANNEL_0 + CHANNEL_STRIDE * CHANNELS as u32;

/// Offset of the interrupt status of line `line`.
///
/// # Panics
///
/// When `line` is not below [`LINES`].
pub const fn irq_status(line: usize) -> u32 {
    assert!(line < LINES);
    IRQSTATUS_L0 + 4 * line as u32
}

/// Offset of the interrupt enable of line `line`.
///
/// # Panics
///
/// When `line` is not below [`LINES`].
pub const fn irq_enable(line: usize) -> u32 {
    assert!(line < LINES);
    IRQENABLE_L0 + 4 * line as u32
}

/// Offset of register `register` of channel `channel`.
///
/// # Panics
///
/// When `channel` is not below [`CHANNELS`].
pub const fn channel(channel: usize, register: Register) -> u32 {
    assert!(channel < CHANNELS);
    CHANNEL_0 + CHANNEL_STRIDE * channel as u32 + register.offset()
}

/// How a register may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    ReadOnly,
    /// Software and the device may both change the value.
    ReadWrite,
    /// Writing a one clears that bit.
    WriteOneToClear,
}

/// Declares the registers that every channel has.
macro_rules! channel_registers {
    ($($(#[$doc:meta])* $variant:ident = $offset:literal, $name:literal, $access:ident, $bits:literal;)+) => {
        /// A register that every channel has (manual, section 16.6).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Register {
            $($(#[$doc])* $variant,)+
        }

        impl Register {
            /// Every register of a channel, in order of offset.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Offset from the channel's first register in bytes.
            pub const fn offset(self) -> u32 {
                match self {
                    $(Self::$variant => $offset,)+
                }
            }

            /// The manual's name, without the prefix `DMA4_` and the channel.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            pub const fn access(self) -> Access {
                match self {
                    $(Self::$variant => Access::$access,)+
                }
            }

            /// Mask of the bits that are not reserved.
            pub const fn implemented(self) -> u32 {
                match self {
                    $(Self::$variant => $bits,)+
                }
            }
        }
    };
}

channel_registers! {
    Ccr = 0x00, "CCR", ReadWrite, 0x07DF_F7FF;
    ClnkCtrl = 0x04, "CLNK_CTRL", ReadWrite, 0x0000_801F;
    /// Events to report in CSR.
    Cicr = 0x08, "CICR", ReadWrite, 0x0000_5DBE;
    Csr = 0x0C, "CSR", WriteOneToClear, 0x0000_5DFE;
    /// Element size, bursts, packing, endianness and write mode.
    Csdp = 0x10, "CSDP", ReadWrite, 0x003F_E1C3;
    /// Elements of a frame.
    Cen = 0x14, "CEN", ReadWrite, 0x00FF_FFFF;
    /// Frames of a block.
    Cfn = 0x18, "CFN", ReadWrite, 0x0000_FFFF;
    Cssa = 0x1C, "CSSA", ReadWrite, 0xFFFF_FFFF;
    Cdsa = 0x20, "CDSA", ReadWrite, 0xFFFF_FFFF;
    /// Source element index, signed.
    Csei = 0x24, "CSEI", ReadWrite, 0x0000_FFFF;
    /// Source frame index, signed; in packet transfers the elements of a packet.
    Csfi = 0x28, "CSFI", ReadWrite, 0xFFFF_FFFF;
    /// Destination element index, signed.
    Cdei = 0x2C, "CDEI", ReadWrite, 0x0000_FFFF;
    /// Destination frame index, signed; in packet transfers the elements of a packet.
    Cdfi = 0x30, "CDFI", ReadWrite, 0xFFFF_FFFF;
    /// Address of the current source element.
    Csac = 0x34, "CSAC", ReadOnly, 0xFFFF_FFFF;
    /// Address of the current destination element.
    Cdac = 0x38, "CDAC", ReadWrite, 0xFFFF_FFFF;
    /// Elements transferred of the current frame.
    Ccen = 0x3C, "CCEN", ReadWrite, 0x00FF_FFFF;
    /// Number of frames transferred.
    Ccfn = 0x40, "CCFN", ReadWrite, 0x0000_FFFF;
    /// Colour of a fill, or the colour that a transparent copy skips.
    Color = 0x44, "COLOR", ReadWrite, 0x00FF_FFFF;
    Cdp = 0x50, "CDP", ReadWrite, 0x0000_07FF;
    /// Address of the next descriptor.
    Cndp = 0x54, "CNDP", ReadWrite, 0xFFFF_FFFC;
    /// Number of the current descriptor.
    Ccdn = 0x58, "CCDN", ReadWrite, 0x0000_FFFF;
}

/// A register of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    Revision,
    /// Interrupt status of a line: bit `i` is channel `i`.
    IrqStatus(usize),
    /// Interrupt enable of a line: bit `i` is channel `i`.
    IrqEnable(usize),
    SysStatus,
    OcpSysconfig,
    /// Capabilities: fill, transparent copy, linked lists.
    Caps0,
    Caps2,
    /// Capabilities: synchronization and chaining.
    Caps3,
    Caps4,
    Gcr,
    /// Channel number and register.
    Channel(usize, Register),
}

impl Location {
    /// Offset from the device's base in bytes.
    ///
    /// # Panics
    ///
    /// When the line is not below [`LINES`] or the channel is not below [`CHANNELS`].
    pub const fn offset(self) -> u32 {
        match self {
            Self::Revision => REVISION,
            Self::IrqStatus(line) => irq_status(line),
            Self::IrqEnable(line) => irq_enable(line),
            Self::SysStatus => SYSSTATUS,
            Self::OcpSysconfig => OCP_SYSCONFIG,
            Self::Caps0 => CAPS_0,
            Self::Caps2 => CAPS_2,
            Self::Caps3 => CAPS_3,
            Self::Caps4 => CAPS_4,
            Self::Gcr => GCR,
            Self::Channel(index, register) => channel(index, register),
        }
    }

    pub const fn access(self) -> Access {
        match self {
            Self::IrqStatus(_) => Access::WriteOneToClear,
            Self::IrqEnable(_) | Self::OcpSysconfig | Self::Gcr => Access::ReadWrite,
            Self::Channel(_, register) => register.access(),
            _ => Access::ReadOnly,
        }
    }

    /// Mask of the bits that are not reserved.
    pub const fn implemented(self) -> u32 {
        match self {
            Self::Revision | Self::IrqStatus(_) | Self::IrqEnable(_) => 0xFFFF_FFFF,
            Self::SysStatus => 0x0000_0001,
            Self::OcpSysconfig => 0x0000_333B,
            Self::Caps0 => 0x003C_0000,
            Self::Caps2 => 0x0000_01FF,
            Self::Caps3 => 0x0000_00F3,
            Self::Caps4 => 0x0000_5DFE,
            Self::Gcr => 0x01FF_F0FF,
            Self::Channel(_, register) => register.implemented(),
        }
    }

    /// Every register of the device, in order of offset.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SPAN).step_by(4).filter_map(locate)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Revision => f.write_str("REVISION"),
            Self::IrqStatus(line) => write!(f, "IRQSTATUS_L{line}"),
            Self::IrqEnable(line) => write!(f, "IRQENABLE_L{line}"),
            Self::SysStatus => f.write_str("SYSSTATUS"),
            Self::OcpSysconfig => f.write_str("OCP_SYSCONFIG"),
            Self::Caps0 => f.write_str("CAPS_0"),
            Self::Caps2 => f.write_str("CAPS_2"),
            Self::Caps3 => f.write_str("CAPS_3"),
            Self::Caps4 => f.write_str("CAPS_4"),
            Self::Gcr => f.write_str("GCR"),
            Self::Channel(index, register) => write!(f, "{} of channel {index}", register.name()),
        }
    }
}

/// The register at `offset`; `None` when no register begins there.
pub const fn locate(offset: u32) -> Option<Location> {
    match offset {
        _ if !offset.is_multiple_of(4) => None,
        REVISION => Some(Location::Revision),
        IRQSTATUS_L0..IRQENABLE_L0 => Some(Location::IrqStatus(((offset - IRQSTATUS_L0) / 4) as usize)),
        IRQENABLE_L0..SYSSTATUS => Some(Location::IrqEnable(((offset - IRQENABLE_L0) / 4) as usize)),
        SYSSTATUS => Some(Location::SysStatus),
        OCP_SYSCONFIG => Some(Location::OcpSysconfig),
        CAPS_0 => Some(Location::Caps0),
        CAPS_2 => Some(Location::Caps2),
        CAPS_3 => Some(Location::Caps3),
        CAPS_4 => Some(Location::Caps4),
        GCR => Some(Location::Gcr),
        CHANNEL_0..SPAN => locate_in_channel(offset - CHANNEL_0),
        _ => None,
    }
}

const fn locate_in_channel(offset: u32) -> Option<Location> {
    let index = (offset / CHANNEL_STRIDE) as usize;
    let mut candidate = 0;
    while candidate < Register::ALL.len() {
        if Register::ALL[candidate].offset() == offset % CHANNEL_STRIDE {
            return Some(Location::Channel(index, Register::ALL[candidate]));
        }
        candidate += 1;
    }
    None
}

const _: () = {
    assert!(SPAN == 0xC80);
    assert!(IRQENABLE_L0 == IRQSTATUS_L0 + 4 * LINES as u32);
    assert!(SYSSTATUS == IRQENABLE_L0 + 4 * LINES as u32);
    assert!(channel(1, Register::Ccr) == 0xE0);
    assert!(channel(CHANNELS - 1, Register::Ccdn) < SPAN);
    let mut index = 1;
    while index < Register::ALL.len() {
        assert!(Register::ALL[index].offset() >= Register::ALL[index - 1].offset() + 4);
        assert!(Register::ALL[index].offset() + 4 <= CHANNEL_STRIDE);
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_registers_overlap() {
        let mut end = 0;
        for location in Location::all() {
            assert!(location.offset() >= end, "{location} begins before the previous register ends");
            end = location.offset() + 4;
        }
        assert!(end <= SPAN);
    }

    #[test]
    fn locates_registers_only_at_their_offsets() {
        assert_eq!(Location::all().count(), 16 + CHANNELS * Register::ALL.len());
        for location in Location::all() {
            assert_eq!(locate(location.offset()), Some(location));
            for byte in 1..4 {
                assert_eq!(locate(location.offset() + byte), None);
            }
        }
        assert_eq!(locate(SPAN), None);
        assert_eq!(locate(u32::MAX), None);
    }

    #[test]
    fn offsets_match_the_manual() {
        assert_eq!(irq_status(3), 0x14);
        assert_eq!(irq_enable(3), 0x24);
        assert_eq!(channel(0, Register::Csdp), 0x90);
        assert_eq!(channel(5, Register::Cdac), 0x80 + 5 * 0x60 + 0x38);
        assert_eq!(channel(31, Register::Ccdn), 0xC78);
    }

    #[test]
    fn read_only_registers_match_the_manual() {
        let read_only = Location::all().filter(|location| location.access() == Access::ReadOnly).count();
        assert_eq!(read_only, 6 + CHANNELS, "revision, status, four capabilities and each channel's CSAC");
    }
}
