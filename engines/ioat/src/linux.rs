//! The device through VFIO of Linux: its registers, and what its driver needs of configuration space.
//!
//! ```text
//! memferry_vfio::Linux ─┬► BarRegisters: BAR 0, mapped; time of the machine
//!                       └► configuration space, 0x148 and 0x180: errors, which Linux's driver clears as well
//! ```

use std::io;

use memferry_clock::Instant;
use memferry_ioat_registers::{Cbver, Device, General, NarrowIo, RegisterIo};
use memferry_vfio::{Bar, Configuration, Linux, MappedBar, PciAddress, Type1, monotonic};

use crate::vfio::Vfio;

/// The BAR of the registers.
const REGISTERS: u32 = 0;
/// From this version on, configuration space has no errors of channels.
const ERRORS_IN_REGISTERS_ONLY: (u8, u8) = (3, 3);
/// Where configuration space has the number of the device.
const DEVICE: u64 = 2;
/// The device's own, behind all capabilities: bits are cleared by writing ones.
const UNCORRECTABLE_ERRORS: u64 = 0x148;
const PARITY_OF_CONFIGURATION: u32 = 1 << 4;
const CHANNEL_ERRORS: u64 = 0x180;
/// The function in which Linux's driver clears the first of them.
const TYLERSBURG: u16 = 0x3430;

/// Clears the errors there which may keep channels halted after their reset. In version 3.3 there are none.
fn clear_errors(configuration: &Configuration) -> io::Result<()> {
    let errors: [u8; 4] = configuration.read(CHANNEL_ERRORS)?;
    configuration.write(CHANNEL_ERRORS, &errors)?;
    if configuration.read16(DEVICE)? == TYLERSBURG {
        configuration.write(UNCORRECTABLE_ERRORS, &PARITY_OF_CONFIGURATION.to_le_bytes())?;
    }
    Ok(())
}

/// The registers of a real device. Their time is that of `CLOCK_MONOTONIC`, and they do not interrupt.
#[derive(Debug)]
pub struct BarRegisters {
    bar: MappedBar,
    configuration: Configuration,
}

impl RegisterIo for BarRegisters {
    fn read(&mut self, offset: u32) -> u32 {
        self.bar.load(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.bar.store(offset, value);
    }
}

impl NarrowIo for BarRegisters {
    fn read8(&mut self, offset: u32) -> u8 {
        self.bar.load(offset)
    }

    fn write8(&mut self, offset: u32, value: u8) {
        self.bar.store(offset, value);
    }

    fn read16(&mut self, offset: u32) -> u16 {
        self.bar.load(offset)
    }

    fn write16(&mut self, offset: u32, value: u16) {
        self.bar.store(offset, value);
    }

    /// Those that Linux's driver clears. If VFIO does not let them be written, a channel may stay halted; its next request fails then.
    fn clear_other_errors(&mut self) {
        let version = Cbver::from_bits(self.read8(General::Cbver.offset()));
        if (version.major(), version.minor()) < ERRORS_IN_REGISTERS_ONLY {
            let _best_effort = clear_errors(&self.configuration);
        }
    }
}

impl Device for BarRegisters {
    fn advance(&mut self, _: Instant) {}

    fn now(&self) -> Instant {
        monotonic()
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn is_high(&self, _: usize) -> bool {
        false
    }
}

impl Vfio for Linux {
    type Registers = BarRegisters;
    type Domain = Type1;

    fn attribute(&self, device: PciAddress, name: &str) -> io::Result<String> {
        self.attribute(device, name)
    }

    fn link(&self, device: PciAddress, name: &str) -> io::Result<String> {
        self.link(device, name)
    }

    fn group_members(&self, device: PciAddress) -> io::Result<Vec<(String, Option<String>)>> {
        self.group_members(device)
    }

    fn open_container(&mut self) -> io::Result<()> {
        self.open_container()
    }

    fn has_type1(&mut self) -> io::Result<bool> {
        self.has_type1()
    }

    fn open_group(&mut self, number: &str) -> io::Result<()> {
        self.open_group(number)
    }

    fn is_viable(&mut self) -> io::Result<bool> {
        self.is_viable()
    }

    fn attach(&mut self) -> io::Result<()> {
        self.attach()
    }

    fn open_device(&mut self, device: PciAddress) -> io::Result<()> {
        self.open_device(device)
    }

    fn reset(&mut self) -> io::Result<bool> {
        self.reset()
    }

    fn bar(&mut self) -> io::Result<Bar> {
        Linux::bar(self, REGISTERS)
    }

    fn enable_registers(&mut self) -> io::Result<()> {
        self.enable_registers()
    }

    fn take_parts(&mut self) -> io::Result<(BarRegisters, Type1)> {
        let registers = BarRegisters { bar: self.map_bar(REGISTERS)?, configuration: self.configuration()? };
        Ok((registers, self.domain()?))
    }

    fn enable_master(&mut self) -> io::Result<()> {
        self.enable_master()
    }

    fn watch_requests(&mut self) -> io::Result<()> {
        self.watch_requests()
    }

    fn is_wanted_back(&mut self) -> bool {
        self.is_wanted_back()
    }

    fn lock_limit(&self) -> Option<u64> {
        self.lock_limit()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// Registers and configuration space of a function, one behind the other in a file.
    fn registers(function: u16) -> BarRegisters {
        let file: File =
            rustix::fs::memfd_create("registers", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(8192).unwrap();
        let configuration = Configuration::new(&file, 4096).unwrap();
        configuration.write(DEVICE, &function.to_le_bytes()).unwrap();
        BarRegisters { bar: MappedBar::map(&file, 0, 4096).unwrap(), configuration }
    }

    #[test]
    fn errors_are_cleared_by_what_was_read() {
        let tylersburg = registers(TYLERSBURG).configuration;
        tylersburg.write(CHANNEL_ERRORS, &[1, 2, 3, 4]).unwrap();
        clear_errors(&tylersburg).unwrap();
        assert_eq!(tylersburg.read(CHANNEL_ERRORS).unwrap(), [1, 2, 3, 4]);
        assert_eq!(tylersburg.read(UNCORRECTABLE_ERRORS).unwrap(), [0x10, 0, 0, 0]);
        let other = registers(0x3C20).configuration;
        clear_errors(&other).unwrap();
        assert_eq!(other.read(UNCORRECTABLE_ERRORS).unwrap(), [0; 4]);
        let short = Configuration::new(&File::open("/dev/null").unwrap(), 0).unwrap();
        assert!(clear_errors(&short).is_err());
    }

    #[test]
    fn errors_in_configuration_space_are_cleared_before_version_3_3() {
        let errors = |version| {
            let mut registers = registers(TYLERSBURG);
            registers.write8(8, version);
            registers.clear_other_errors();
            u32::from_le_bytes(registers.configuration.read(UNCORRECTABLE_ERRORS).unwrap())
        };
        assert_eq!([0x30, 0x32, 0x33].map(errors), [0x10, 0x10, 0]);
    }

    #[test]
    fn registers_have_their_width() {
        let mut registers = registers(0);
        registers.write(8, 0x4433_2211);
        registers.write8(9, 0xAA);
        registers.write16(10, 0xBBCC);
        assert_eq!((registers.read(8), registers.read8(8), registers.read16(8)), (0xBBCC_AA11, 0x11, 0xAA11));
        assert_eq!(registers.read(4096), u32::MAX);
    }
}
