//! Offset, width, access and implemented bits of each register.
//!
//! ```text
//! Location ── offset() ──► bytes from the base ── locate() ──► the same Location, and the byte within
//!     ├── bytes()        1, 2, 4 or 8; an 8-byte register can also be accessed in two halves
//!     ├── access()       read only, read and write, write one to clear
//!     └── implemented()  bits that are not reserved
//! ```
//!
//! The offsets are those of version 2.0 and later. The bits' meaning is in the sibling modules.

use super::{CHANNELS, Chancmd, Chancnt, Chanctrl, Chanerr, Genctrl, Intrctrl, Xfercap};
use core::fmt;

/// First register of channel 0.
pub const CHANNEL_0: u32 = 0x80;
/// Bytes from one channel's registers to the next channel's.
pub const CHANNEL_STRIDE: u32 = 0x80;
/// Bytes that the registers of all channels span.
pub const SPAN: u32 = CHANNEL_0 + CHANNEL_STRIDE * CHANNELS as u32;

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

/// Declares registers: name, offset, bytes, access, bits that exist.
macro_rules! registers {
    ($(#[$doc:meta])* $kind:ident; $($(#[$about:meta])* $name:ident = $words:literal,
        $offset:literal, $bytes:literal, $access:ident, $implemented:expr;)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind {
            $($(#[$about])* $name,)+
        }

        impl $kind {
            /// Every register, in order of offset.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Offset within its group in bytes.
            pub const fn offset(self) -> u32 {
                match self { $(Self::$name => $offset,)+ }
            }

            /// Width of the register in bytes.
            pub const fn bytes(self) -> u32 {
                match self { $(Self::$name => $bytes,)+ }
            }

            const fn access(self) -> Access {
                match self { $(Self::$name => Access::$access,)+ }
            }

            const fn implemented(self) -> u64 {
                match self { $(Self::$name => $implemented,)+ }
            }

            const fn name(self) -> &'static str {
                match self { $(Self::$name => $words,)+ }
            }
        }
    };
}

registers! {
    /// A register that the device has once.
    General;
    Chancnt = "CHANCNT", 0x00, 1, ReadOnly, Chancnt::new().with_channels(0x1F).into_bits() as u64;
    Xfercap = "XFERCAP", 0x01, 1, ReadOnly, Xfercap::new().with_log2(0x1F).into_bits() as u64;
    Genctrl = "GENCTRL", 0x02, 1, ReadWrite, Genctrl::new().with_debug_enable(true).into_bits() as u64;
    Intrctrl = "INTRCTRL", 0x03, 1, ReadWrite, Intrctrl::from_bits(0x0F).into_bits() as u64;
    /// Channels that need attention, one bit each; a read clears them.
    Attnstatus = "ATTNSTATUS", 0x04, 4, ReadOnly, u32::MAX as u64;
    Cbver = "CBVER", 0x08, 1, ReadOnly, 0xFF;
    Dmacapability = "DMACAPABILITY", 0x10, 4, ReadOnly, 0x0002_23F7;
}

registers! {
    /// A register that every channel has.
    Register;
    Chanctrl = "CHANCTRL", 0x00, 2, ReadWrite, Chanctrl::from_bits(0xF33D).into_bits() as u64;
    DmaComp = "DMA_COMP", 0x02, 2, ReadOnly, 0x7;
    Chancmd = "CHANCMD", 0x04, 1, ReadWrite, Chancmd::from_bits(0x3F).into_bits() as u64;
    /// Number of valid descriptors in the chain.
    Dmacount = "DMACOUNT", 0x06, 2, ReadWrite, 0xFFFF;
    Chansts = "CHANSTS", 0x08, 8, ReadOnly, !0x20;
    /// Address of the chain's first descriptor. In a write by halves, the write of the upper half takes effect (unsure).
    Chainaddr = "CHAINADDR", 0x10, 8, ReadWrite, !0x3F;
    /// Completion address, to which the device writes CHANSTS.
    Chancmp = "CHANCMP", 0x18, 8, ReadWrite, !0x7;
    /// Address of the current descriptor. Only Linux's definitions have this register.
    Cdar = "CDAR", 0x20, 8, ReadOnly, !0x3F;
    Chanerr = "CHANERR", 0x28, 4, WriteOneToClear, Chanerr::from_bits(0x7_FFFF).into_bits() as u64;
    /// Errors that do not stop the channel; unsure whether CHANERR still shows them.
    ChanerrMask = "CHANERR_MASK", 0x2C, 4, ReadWrite, Chanerr::from_bits(0x7_FFFF).into_bits() as u64;
    /// Linux writes ones to all bits to switch it off.
    Dcactrl = "DCACTRL", 0x30, 4, ReadWrite, u32::MAX as u64;
}

/// A register of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    General(General),
    /// Channel number and register.
    Channel(usize, Register),
}

impl Location {
    /// Every register, in order of offset.
    pub fn all() -> impl Iterator<Item = Self> {
        let general = General::ALL.iter().map(|register| Self::General(*register));
        let channels = (0..CHANNELS)
            .flat_map(|channel| Register::ALL.iter().map(move |register| Self::Channel(channel, *register)));
        general.chain(channels)
    }

    /// Offset from the device's base in bytes.
    pub const fn offset(self) -> u32 {
        match self {
            Self::General(register) => register.offset(),
            Self::Channel(index, register) => channel(index, register),
        }
    }

    /// Width of the register in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::General(register) => register.bytes(),
            Self::Channel(_, register) => register.bytes(),
        }
    }

    pub const fn access(self) -> Access {
        match self {
            Self::General(register) => register.access(),
            Self::Channel(_, register) => register.access(),
        }
    }

    /// Mask of the bits that are not reserved.
    pub const fn implemented(self) -> u64 {
        match self {
            Self::General(register) => register.implemented(),
            Self::Channel(_, register) => register.implemented(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::General(register) => f.write_str(register.name()),
            Self::Channel(channel, register) => write!(f, "{} of channel {channel}", register.name()),
        }
    }
}

/// The register that contains the byte at `offset`, and the byte's position within it.
pub fn locate(offset: u32) -> Option<(Location, u32)> {
    let within = |start: u32, bytes: u32, at: u32| (at.wrapping_sub(start) < bytes).then(|| at - start);
    if offset < CHANNEL_0 {
        return General::ALL.iter().find_map(|register| {
            let byte = within(register.offset(), register.bytes(), offset)?;
            Some((Location::General(*register), byte))
        });
    }
    let index = ((offset - CHANNEL_0) / CHANNEL_STRIDE) as usize;
    let at = (offset - CHANNEL_0) % CHANNEL_STRIDE;
    let of_channel = |register: &Register| {
        let byte = within(register.offset(), register.bytes(), at)?;
        Some((Location::Channel(index, *register), byte))
    };
    if index < CHANNELS { Register::ALL.iter().find_map(of_channel) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::collections::BTreeMap;

    #[test]
    fn each_byte_locates_only_its_own_register() {
        let mut bytes = BTreeMap::new();
        for location in Location::all() {
            assert_eq!(location.offset() % location.bytes(), 0, "{location} is aligned");
            for byte in 0..location.bytes() {
                let at = location.offset() + byte;
                assert_eq!(bytes.insert(at, location), None, "{at:#x}");
                assert_eq!(locate(at), Some((location, byte)));
            }
        }
        for at in (0..SPAN + 0x100).filter(|at| !bytes.contains_key(at)) {
            assert_eq!(locate(at), None, "{at:#x}");
        }
        assert_eq!(locate(u32::MAX), None);
    }

    #[test]
    fn implemented_bits_fit_the_width() {
        for location in Location::all().filter(|location| location.bytes() < 8) {
            assert_eq!(location.implemented() >> (8 * location.bytes()), 0, "{location}");
        }
    }

    #[test]
    fn offsets_match_the_datasheets() {
        assert_eq!(channel(0, Register::Chanctrl), 0x80);
        assert_eq!(channel(0, Register::Chancmd), 0x84);
        assert_eq!(channel(0, Register::Dmacount), 0x86);
        assert_eq!(channel(1, Register::Chansts), 0x108);
        assert_eq!(channel(2, Register::Chainaddr), 0x190);
        assert_eq!(channel(3, Register::Chancmp), 0x218);
        assert_eq!(channel(3, Register::ChanerrMask), 0x22C);
        assert_eq!(Location::General(General::Dmacapability).offset(), 0x10);
    }
}
