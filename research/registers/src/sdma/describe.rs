//! Prints a register's value as text.
//!
//! ```text
//! (offset, value) ── locate ──► typed value ──► "CSDP of channel 3: 32-bit elements, posted writes, ..."
//! ```
//!
//! Reserved bits that are set are printed too. The text is for people; nothing parses it.

use super::offset::{Location, Register, locate};
use super::{
    Caps0, Caps2, Caps3, Caps4, Ccr, Cdp, Cen, Cfn, Cicr, ClnkCtrl, Cndp, Color, Csdp, Csr, Gcr,
    OcpSysconfig, SysStatus,
};
use core::fmt;

/// A register's value, printable with `Display`. Made by [`describe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    offset: u32,
    value: u32,
}

/// Describes `value` as the contents of the register at `offset`.
pub const fn describe(offset: u32, value: u32) -> Description {
    Description { offset, value }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset;
        let value = self.value;
        let Some(location) = locate(offset) else {
            return write!(f, "no register at {offset:#05x}: {value:#010x}");
        };
        write!(f, "{location}: ")?;
        match location {
            Location::Revision => write!(f, "revision {value:#010x}"),
            Location::IrqStatus(_) | Location::IrqEnable(_) => channels(f, value),
            Location::SysStatus => write!(f, "{}", SysStatus::from_bits(value)),
            Location::OcpSysconfig => write!(f, "{}", OcpSysconfig::from_bits(value)),
            Location::Caps0 => write!(f, "{}", Caps0::from_bits(value)),
            Location::Caps2 => write!(f, "{}", Caps2::from_bits(value)),
            Location::Caps3 => write!(f, "{}", Caps3::from_bits(value)),
            Location::Caps4 => write!(f, "{}", Caps4::from_bits(value)),
            Location::Gcr => write!(f, "{}", Gcr::from_bits(value)),
            Location::Channel(_, register) => describe_channel(f, register, value),
        }?;
        match value & !location.implemented() {
            0 => Ok(()),
            reserved => write!(f, " (reserved bits {reserved:#x})"),
        }
    }
}

fn describe_channel(f: &mut fmt::Formatter<'_>, register: Register, value: u32) -> fmt::Result {
    match register {
        Register::Ccr => write!(f, "{}", Ccr::from_bits(value)),
        Register::ClnkCtrl => write!(f, "{}", ClnkCtrl::from_bits(value)),
        Register::Cicr => write!(f, "{}", Cicr::from_bits(value)),
        Register::Csr => write!(f, "{}", Csr::from_bits(value)),
        Register::Csdp => write!(f, "{}", Csdp::from_bits(value)),
        Register::Cen | Register::Ccen => write!(f, "{} elements", Cen::from_bits(value).elements()),
        Register::Cfn | Register::Ccfn => write!(f, "{} frames", Cfn::from_bits(value).frames()),
        Register::Csei | Register::Cdei => write!(f, "{} bytes", value as u16 as i16),
        Register::Csfi | Register::Cdfi => write!(f, "{} bytes", value as i32),
        Register::Color => write!(f, "colour {:#08x}", Color::from_bits(value).value()),
        Register::Cdp => write!(f, "{}", Cdp::from_bits(value)),
        Register::Cndp if Cndp::from_bits(value).is_end() => f.write_str("end of the list"),
        Register::Cndp => write!(f, "address {:#010x}", Cndp::from_bits(value).address()),
        Register::Ccdn => write!(f, "descriptor {}", value & 0xFFFF),
        Register::Cssa | Register::Cdsa | Register::Csac | Register::Cdac => {
            write!(f, "address {value:#010x}")
        }
    }
}

fn channels(f: &mut fmt::Formatter<'_>, mask: u32) -> fmt::Result {
    if mask == 0 {
        return f.write_str("no channel");
    }
    f.write_str("channels")?;
    (0..32).filter(|channel| mask >> channel & 1 == 1).try_for_each(|channel| write!(f, " {channel}"))
}
