//! BAR 0 of the device, mapped: register accesses as loads and stores of their width.

#![expect(unsafe_code, reason = "mapped registers of a device: invariant V")]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use memferry_clock::Instant;
use memferry_ioat_registers::{Cbver, Device, General, NarrowIo, RegisterIo};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::time::ClockId;

use super::config::Configuration;

/// From this version on, configuration space has no errors of channels.
const ERRORS_IN_REGISTERS_ONLY: (u8, u8) = (3, 3);

/// The registers of a real device. Their time is that of `CLOCK_MONOTONIC`, and they do not interrupt.
#[derive(Debug)]
pub struct BarRegisters {
    base: NonNull<u8>,
    bytes: usize,
    configuration: Configuration,
}

impl BarRegisters {
    /// Maps the bytes from `offset` on of the device's file.
    pub(super) fn map(
        device: &File,
        offset: u64,
        bytes: u64,
        configuration: Configuration,
    ) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that Linux chooses overlaps no other.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, device, offset)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, bytes, configuration })
    }

    /// The register of type `T` at `offset`; `None` outside the BAR and for one that is not aligned.
    fn at<T>(&self, offset: u32) -> Option<NonNull<T>> {
        let offset = offset as usize;
        let is_inside = offset.checked_add(size_of::<T>())? <= self.bytes;
        let is_aligned = offset.is_multiple_of(align_of::<T>());
        // SAFETY: within the mapping.
        (is_inside && is_aligned).then(|| unsafe { self.base.add(offset) }.cast())
    }

    /// A register that is not there has all bits set, as a device that is gone.
    fn load<T: Copy>(&self, offset: u32, missing: T) -> T {
        // SAFETY: `at` gives an aligned place in the mapping, which lives as long as `self`. Any bits are a value of the integers that
        // this file uses. The device may change them at any time, so no reference is made.
        self.at::<T>(offset).map_or(missing, |place| unsafe { place.read_volatile() })
    }

    fn store<T: Copy>(&self, offset: u32, value: T) {
        if let Some(place) = self.at::<T>(offset) {
            // Descriptors that were written before are in memory when the device learns of them.
            fence(Ordering::SeqCst);
            // SAFETY: as in `load`.
            unsafe { place.write_volatile(value) };
        }
    }
}

impl Drop for BarRegisters {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; nothing points into it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl RegisterIo for BarRegisters {
    fn read(&mut self, offset: u32) -> u32 {
        self.load(offset, u32::MAX)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.store(offset, value);
    }
}

impl NarrowIo for BarRegisters {
    fn read8(&mut self, offset: u32) -> u8 {
        self.load(offset, u8::MAX)
    }

    fn write8(&mut self, offset: u32, value: u8) {
        self.store(offset, value);
    }

    fn read16(&mut self, offset: u32) -> u16 {
        self.load(offset, u16::MAX)
    }

    fn write16(&mut self, offset: u32, value: u16) {
        self.store(offset, value);
    }

    /// Those that Linux's driver clears. If VFIO does not let them be written, a channel may stay halted; its next request fails then.
    fn clear_other_errors(&mut self) {
        let version = Cbver::from_bits(self.read8(General::Cbver.offset()));
        if (version.major(), version.minor()) < ERRORS_IN_REGISTERS_ONLY {
            let _best_effort = self.configuration.clear_errors();
        }
    }
}

impl Device for BarRegisters {
    fn advance(&mut self, _: Instant) {}

    fn now(&self) -> Instant {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
        Instant::from_nanoseconds(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn is_high(&self, _: usize) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> BarRegisters {
        let file: File =
            rustix::fs::memfd_create("registers", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(8192).unwrap();
        let configuration = Configuration::new(&file, 4096).unwrap();
        BarRegisters::map(&file, 0, 4096, configuration).unwrap()
    }

    #[test]
    fn errors_in_configuration_space_are_cleared_before_version_3_3() {
        let file = |version| {
            let mut registers = registers();
            registers.write8(8, version);
            registers.configuration.write_device(0x3430);
            registers.clear_other_errors();
            registers.configuration.uncorrectable()
        };
        assert_eq!([0x30, 0x32, 0x33].map(file), [0x10, 0x10, 0]);
    }

    #[test]
    fn accesses_have_their_width() {
        let mut registers = registers();
        registers.write(8, 0x4433_2211);
        registers.write8(9, 0xAA);
        registers.write16(10, 0xBBCC);
        assert_eq!((registers.read(8), registers.read8(8), registers.read16(8)), (0xBBCC_AA11, 0x11, 0xAA11));
        assert_eq!(registers.read(12), 0, "no neighbour was touched");
    }

    #[test]
    fn nothing_is_outside_the_bar() {
        let mut registers = registers();
        for offset in [4095, 4094, 4093, 4096, u32::MAX, 2, 1] {
            registers.write(offset, 0);
            assert_eq!(registers.read(offset), u32::MAX, "{offset}");
        }
        assert_eq!((registers.read16(4095), registers.read16(7)), (u16::MAX, u16::MAX));
        assert_eq!((registers.read8(4095), registers.read8(4096)), (0, u8::MAX));
        registers.write16(4096, 0);
        registers.write8(u32::MAX, 0);
    }

    #[test]
    fn time_goes_on() {
        let registers = registers();
        assert!(registers.now() > Instant::ORIGIN && registers.now() <= registers.now());
    }
}
