//! The PCI numbers of I/OAT engines, by what they can do here.
//!
//! Source: the tables of Linux's driver of the device (`drivers/dma/ioat`), which also say where XOR must not be used.

pub(crate) const INTEL: u16 = 0x8086;

/// What becomes of a device with such a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Generation {
    /// Versions 3.0, and 3.3 in an Atom: all operations.
    Full,
    /// Version 3.2 in a Xeon, up to Skylake and Cascade Lake: Linux uses no XOR there, because of errata, nor does the engine.
    WithoutXor,
    /// Version 3.4, Ice Lake: its descriptors are fetched in another way, which the driver does not know.
    TooNew,
    /// Version 1 or 2, which was never tried.
    TooOld,
}

/// What an Intel device of this number is; `None` if it is no I/OAT engine that Linux's driver knows.
pub fn generation(device: u16) -> Option<Generation> {
    Some(match device {
        // Tylersburg, the chipset of the Xeon 5500.
        0x3429..=0x342C | 0x3430..=0x3433 => Generation::Full,
        // Xeon C5500 and C3500.
        0x3710..=0x3719 => Generation::WithoutXor,
        // Xeon E5 and E7: Sandy Bridge, Ivy Bridge, Haswell, Broadwell.
        0x3C20..=0x3C27 | 0x3C2E..=0x3C2F => Generation::WithoutXor,
        0x0E20..=0x0E27 | 0x0E2E..=0x0E2F => Generation::WithoutXor,
        0x2F20..=0x2F27 | 0x2F2E..=0x2F2F => Generation::WithoutXor,
        0x6F20..=0x6F27 | 0x6F2E..=0x6F2F => Generation::WithoutXor,
        // Skylake and Cascade Lake.
        0x2021 => Generation::WithoutXor,
        // Atom S1200: two functions with RAID, two without.
        0x0C50 | 0x0C51 => Generation::Full,
        0x0C52 | 0x0C53 => Generation::WithoutXor,
        // Xeon D-1500.
        0x6F50..=0x6F53 => Generation::WithoutXor,
        // Ice Lake has one more generation of the engine.
        0x0B00 => Generation::TooNew,
        // Chipsets of 2006 to 2008.
        0x1A38 | 0x360B | 0x65FF | 0x402F => Generation::TooOld,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_devices_are_used_or_refused() {
        for (device, expected) in [
            (0x3430, Some(Generation::Full)),
            (0x3710, Some(Generation::WithoutXor)),
            (0x2021, Some(Generation::WithoutXor)),
            (0x6F2E, Some(Generation::WithoutXor)),
            (0x0C50, Some(Generation::Full)),
            (0x0C53, Some(Generation::WithoutXor)),
            (0x0B00, Some(Generation::TooNew)),
            (0x1A38, Some(Generation::TooOld)),
            (0x0E28, None),
            // DSA, the successor of I/OAT, is another engine.
            (0x0B25, None),
        ] {
            assert_eq!(generation(device), expected, "{device:#x}");
        }
    }
}
