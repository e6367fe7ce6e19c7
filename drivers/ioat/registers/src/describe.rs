//! Prints a register's value as text.
//!
//! ```text
//! (location, value) ──► typed value ──► "CHANSTS of channel 1: halted, descriptor 0x8040 completed"
//! ```
//!
//! Reserved bits that are set are printed too. The text is for people; nothing parses it.

use super::offset::{General, Location, Register};
use super::{
    Cbver, Chancmd, Chancnt, Chanctrl, Chanerr, Chansts, Dcactrl, DmaCapability, DmaComp, Genctrl, Intrctrl,
    Xfercap,
};
use core::fmt;

/// A register's value, printable with `Display`. Made by [`describe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    location: Location,
    value: u64,
}

/// Describes `value` as the contents of the register at `location`.
pub const fn describe(location: Location, value: u64) -> Description {
    Description { location, value }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = self.location;
        let value = self.value;
        write!(f, "{location}: ")?;
        match location {
            Location::General(register) => describe_general(f, register, value),
            Location::Channel(_, register) => describe_channel(f, register, value),
        }?;
        match value & !location.implemented() {
            0 => Ok(()),
            reserved => write!(f, " (reserved bits {reserved:#x})"),
        }
    }
}

fn describe_general(f: &mut fmt::Formatter<'_>, register: General, value: u64) -> fmt::Result {
    match register {
        General::Chancnt => write!(f, "{}", Chancnt::from_bits(value as u8)),
        General::Xfercap => write!(f, "{}", Xfercap::from_bits(value as u8)),
        General::Genctrl => write!(f, "{}", Genctrl::from_bits(value as u8)),
        General::Intrctrl => write!(f, "{}", Intrctrl::from_bits(value as u8)),
        General::Cbver => write!(f, "{}", Cbver::from_bits(value as u8)),
        General::Dmacapability => write!(f, "{}", DmaCapability::from_bits(value as u32)),
        General::Attnstatus if value == 0 => f.write_str("no channel"),
        General::Attnstatus => {
            f.write_str("channels")?;
            (0..32)
                .filter(|channel| value >> channel & 1 == 1)
                .try_for_each(|channel| write!(f, " {channel}"))
        }
    }
}

fn describe_channel(f: &mut fmt::Formatter<'_>, register: Register, value: u64) -> fmt::Result {
    match register {
        Register::Chanctrl => write!(f, "{}", Chanctrl::from_bits(value as u16)),
        Register::DmaComp => write!(f, "{}", DmaComp::from_bits(value as u16)),
        Register::Chancmd => write!(f, "{}", Chancmd::from_bits(value as u8)),
        Register::Dmacount => write!(f, "{value} descriptors"),
        Register::Chansts => write!(f, "{}", Chansts::from_bits(value)),
        Register::Chanerr | Register::ChanerrMask => write!(f, "{}", Chanerr::from_bits(value as u32)),
        Register::Dcactrl => write!(f, "{}", Dcactrl::from_bits(value as u32)),
        Register::Chainaddr | Register::Chancmp | Register::Cdar => write!(f, "address {value:#x}"),
    }
}
