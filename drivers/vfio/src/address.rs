//! Where a PCI device is: domain, bus, device, function.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The address of a PCI device, as in `0000:00:04.0`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is no address of a PCI device.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is no address of a PCI device, as 0000:00:04.0 is; `lspci -D` shows those of this machine")]
pub struct BadAddress(String);

impl FromStr for PciAddress {
    type Err = BadAddress;

    /// Takes the form of `lspci -D`, also without the domain.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        parse(text).ok_or_else(|| BadAddress(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    let number = |digits: &str, from: usize, to: usize| {
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let fits = (from..=to).contains(&digits.len());
        (is_plain && fits).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    };
    Some(PciAddress {
        domain: number(domain, 4, 8)?,
        bus: u8::try_from(number(bus, 2, 2)?).ok()?,
        device: u8::try_from(number(device, 2, 2)?).ok().filter(|device| *device < 32)?,
        function: u8::try_from(number(function, 1, 1)?).ok().filter(|function| *function < 8)?,
    })
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_lspci() {
        for (text, shown) in [
            ("0000:00:04.0", "0000:00:04.0"),
            ("00:04.7", "0000:00:04.7"),
            ("10000:AF:1f.0", "10000:af:1f.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().map(|address| address.to_string()), Ok(shown.to_owned()));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let texts = ["", "4", "00:04", "0000:00:20.0", "0000:00:04.8", "0:00:04.0", "+000:00:04.0"];
        for text in texts.into_iter().chain(["0000:00:04.0/../x", "../0000:00:04.0", "0000:00:4.0", "::."]) {
            assert_eq!(text.parse::<PciAddress>(), Err(BadAddress(text.to_owned())));
        }
    }
}
