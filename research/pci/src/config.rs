//! Configuration space: 4 KiB of registers with masks.
//!
//! ```text
//! 0x00 header   0x50 MSI   0x60 PCI Express, version 2   0xA0 MSI-X   0x100 no extended capability   registers of the device
//! ```
//!
//! Reads return bytes, writes change the bits that exist. The only effects that reach further are the reset of the function and the
//! command register's bits, which the shell asks for. Sources: the PCI and PCI Express base specifications, as Linux's `pci_regs.h`
//! names them.

use crate::function::{Description, Signalling};

/// Bytes of configuration space.
pub(crate) const BYTES: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const INTERRUPT_LINE: usize = 0x3C;
const MSI: usize = 0x50;
const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const MSI_X: usize = 0xA0;

/// Memory decoding, bus mastering, parity, SERR#, INTx disabled: the bits of the command register that exist.
const COMMAND_BITS: u16 = 0x0546;
const BUS_MASTER: u16 = 1 << 2;
const INTX_DISABLED: u16 = 1 << 10;
/// Bit of the status register that announces the list of capabilities.
const STATUS_BITS: u16 = 1 << 4;
const INTERRUPT_STATUS: u8 = 1 << 3;
/// Bit 7 of the upper byte of device control.
const START_RESET: u8 = 1 << 7;

/// The effects of a write that reach beyond configuration space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// A function-level reset, which the device control register starts.
    pub(crate) reset: bool,
}

/// Configuration space of one function.
pub(crate) struct ConfigSpace {
    bytes: Box<[u8]>,
    initial: Box<[u8]>,
    writable: Box<[u8]>,
    clears: Box<[u8]>,
}

impl std::fmt::Debug for ConfigSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConfigSpace({:02x?}, ...)", &self.bytes[..64])
    }
}

fn zeroed() -> Box<[u8]> {
    vec![0; BYTES].into_boxed_slice()
}

impl ConfigSpace {
    pub(crate) fn new(description: &Description) -> Self {
        let mut space = Self { bytes: zeroed(), initial: zeroed(), writable: zeroed(), clears: zeroed() };
        space.header(description);
        let last = match description.signalling {
            Signalling::Intx => EXPRESS,
            Signalling::Msi => space.message(EXPRESS),
            Signalling::MsiX { vectors, bar, table, pending } => {
                space.set(MSI_X, &[0x11, 0]);
                space.set(MSI_X + 2, &(vectors.saturating_sub(1) & 0x7FF).to_le_bytes());
                space.set(MSI_X + 4, &(table & !7 | bar as u32 & 7).to_le_bytes());
                space.set(MSI_X + 8, &(pending & !7 | bar as u32 & 7).to_le_bytes());
                space.allow(MSI_X + 3, &[0xC0]);
                space.message(EXPRESS)
            }
        };
        space.set(0x34, &[last as u8]);
        space.express(match description.signalling {
            Signalling::MsiX { .. } => MSI_X as u8,
            _ => 0,
        });
        for register in &description.registers {
            let at = usize::from(register.offset);
            space.set(at, &register.value.to_le_bytes());
            if let Some(clears) = space.clears.get_mut(at..at + 4) {
                clears.copy_from_slice(&register.clears.to_le_bytes());
            }
        }
        space.initial = space.bytes.clone();
        space
    }

    fn header(&mut self, description: &Description) {
        let [class, subclass, interface] = description.class;
        self.set(0x00, &description.vendor.to_le_bytes());
        self.set(0x02, &description.device.to_le_bytes());
        self.set(STATUS, &STATUS_BITS.to_le_bytes());
        self.set(0x08, &[description.revision, interface, subclass, class]);
        self.set(0x2C, &description.vendor.to_le_bytes());
        self.set(0x2E, &description.device.to_le_bytes());
        // The first of PCI's four pins, INTA.
        self.set(INTERRUPT_LINE + 1, &[1]);
        self.allow(COMMAND, &COMMAND_BITS.to_le_bytes());
        self.allow(0x0C, &[0xFF]);
        self.allow(INTERRUPT_LINE, &[0xFF]);
        let mut free = 0;
        for bar in &description.bars {
            let fits =
                free <= bar.index && bar.index <= 4 && bar.bytes.is_power_of_two() && bar.bytes >= 4096;
            debug_assert!(fits, "{bar:?} of {}", description.name);
            free = bar.index + 2;
            let at = 0x10 + 4 * bar.index;
            // Memory of 64 bits, not prefetchable.
            self.set(at, &[4]);
            self.allow(at, &bar.bytes.wrapping_neg().to_le_bytes());
        }
    }

    /// One message of 64 address bits, without masks. Returns its place.
    fn message(&mut self, next: usize) -> usize {
        self.set(MSI, &[0x05, next as u8, 0x80, 0]);
        // Enable and the number of messages; address, upper address, data.
        self.allow(MSI + 2, &[0x71]);
        self.allow(MSI + 4, &[0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        MSI
    }

    fn express(&mut self, next: u8) {
        // An endpoint, version 2 of the capability.
        self.set(EXPRESS, &[0x10, next, 0x02, 0x00]);
        // Function-level reset; role-based error reporting; payloads of 128 bytes.
        self.set(EXPRESS + 4, &0x1000_8000_u32.to_le_bytes());
        // The bit that starts a reset reads as zero.
        self.allow(DEVICE_CONTROL, &[0xFF, 0x7F]);
        // One lane at 2.5 GT/s, as capability and as status.
        self.set(EXPRESS + 0x0C, &0x11_u32.to_le_bytes());
        self.set(EXPRESS + 0x12, &0x11_u16.to_le_bytes());
        self.allow(EXPRESS + 0x10, &[0xC3, 0x0F]);
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(offset..offset + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn allow(&mut self, offset: usize, mask: &[u8]) {
        if let Some(place) = self.writable.get_mut(offset..offset + mask.len()) {
            place.copy_from_slice(mask);
        }
    }

    /// Reads bytes; those beyond the end are zeros.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = offset.checked_add(at).and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes bytes where bits exist.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Written {
        let mut written = Written::default();
        for (at, byte) in bytes.iter().enumerate() {
            let Some(at) = offset.checked_add(at).filter(|at| *at < BYTES) else { break };
            let mask = self.writable[at];
            self.bytes[at] = (self.bytes[at] & !mask | byte & mask) & !(byte & self.clears[at]);
            written.reset |= at == DEVICE_CONTROL + 1 && byte & START_RESET != 0;
        }
        written
    }

    /// Returns to the state after power-up.
    pub(crate) fn reset(&mut self) {
        self.bytes.copy_from_slice(&self.initial);
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]])
    }

    /// Whether the device may access memory and send messages.
    pub(crate) fn is_bus_master(&self) -> bool {
        self.command() & BUS_MASTER != 0
    }

    pub(crate) fn is_intx_disabled(&self) -> bool {
        self.command() & INTX_DISABLED != 0
    }

    /// Shows the level of the interrupt line.
    pub(crate) fn set_interrupt_status(&mut self, high: bool) {
        let status = self.bytes[STATUS] & !INTERRUPT_STATUS;
        self.bytes[STATUS] = if high { status | INTERRUPT_STATUS } else { status };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::{Bar, ConfigRegister};

    #[test]
    fn a_devices_registers_are_cleared_by_ones() {
        let mut space = ConfigSpace::new(&Description {
            name: "a device",
            vendor: 1,
            device: 2,
            revision: 3,
            class: [4, 5, 6],
            bars: vec![Bar { index: 2, bytes: 1 << 20 }, Bar { index: 4, bytes: 1 << 33 }],
            signalling: Signalling::Intx,
            registers: vec![
                ConfigRegister { offset: 0x180, value: 0xF0F0, clears: 0xFFF0 },
                ConfigRegister { offset: 0xFFE, value: 1, clears: 1 },
            ],
        });
        let word = |space: &ConfigSpace, at| {
            let mut bytes = [0; 4];
            space.read(at, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        space.write(0x180, &0x1030_u32.to_le_bytes());
        assert_eq!(word(&space, 0x180), 0xE0C0);
        assert_eq!(word(&space, 0xFFE), 0, "a register beyond the end is none");
        space.write(0x18, &[0xFF; 16]);
        assert_eq!(
            [0x18, 0x1C, 0x20, 0x24].map(|at| word(&space, at)),
            [0xFFF0_0004, u32::MAX, 4, 0xFFFF_FFFE]
        );
        assert_eq!(word(&space, 0x08), 0x0405_0603);
        space.reset();
        assert_eq!((word(&space, 0x180), word(&space, 0x18)), (0xF0F0, 4));
    }
}
