//! A BAR of the device, mapped: register accesses as loads and stores of their width.

#![expect(unsafe_code, reason = "mapped registers of a device: invariant V")]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};

mod sealed {
    pub trait Sealed {}
}

/// The width of a register: an integer, for which any bits are a value.
pub trait Width: sealed::Sealed + Copy {
    /// What a register that is not there has, as a device that is gone: all bits.
    const MISSING: Self;
}

macro_rules! widths {
    ($($integer:ty),*) => {
        $(impl sealed::Sealed for $integer {}
        impl Width for $integer {
            const MISSING: Self = <$integer>::MAX;
        })*
    };
}

widths!(u8, u16, u32, u64);

/// A BAR. Dropping it ends the mapping.
#[derive(Debug)]
pub struct MappedBar {
    base: NonNull<u8>,
    bytes: usize,
}

impl MappedBar {
    /// Maps the bytes from `offset` on of the device's file.
    ///
    /// # Errors
    /// Those of the call.
    pub fn map(device: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address that Linux chooses overlaps no other.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, device, offset)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, bytes })
    }

    /// The register of type `T` at `offset`; `None` outside the BAR and for one that is not aligned.
    fn at<T>(&self, offset: u32) -> Option<NonNull<T>> {
        let offset = offset as usize;
        let is_inside = offset.checked_add(size_of::<T>())? <= self.bytes;
        let is_aligned = offset.is_multiple_of(align_of::<T>());
        // SAFETY: within the mapping.
        (is_inside && is_aligned).then(|| unsafe { self.base.add(offset) }.cast())
    }

    /// Reads the register at `offset`; all ones if there is none.
    pub fn load<T: Width>(&self, offset: u32) -> T {
        // SAFETY: `at` gives an aligned place in the mapping, which lives as long as `self`. Any bits are a value of a `Width`. The
        // device may change them at any time, so no reference is made.
        self.at::<T>(offset).map_or(T::MISSING, |place| unsafe { place.read_volatile() })
    }

    /// Writes the register at `offset`, if there is one.
    pub fn store<T: Width>(&self, offset: u32, value: T) {
        if let Some(place) = self.at::<T>(offset) {
            // Descriptors that were written before are in memory when the device learns of them.
            fence(Ordering::SeqCst);
            // SAFETY: as in `load`.
            unsafe { place.write_volatile(value) };
        }
    }
}

impl Drop for MappedBar {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; nothing points into it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar() -> MappedBar {
        let file: File =
            rustix::fs::memfd_create("registers", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(8192).unwrap();
        MappedBar::map(&file, 0, 4096).unwrap()
    }

    #[test]
    fn accesses_have_their_width() {
        let bar = bar();
        bar.store(8, 0x4433_2211_u32);
        bar.store(9, 0xAA_u8);
        bar.store(10, 0xBBCC_u16);
        let [byte, other] = [bar.load::<u8>(8), bar.load(9)];
        assert_eq!((bar.load::<u32>(8), byte, other, bar.load::<u16>(8)), (0xBBCC_AA11, 0x11, 0xAA, 0xAA11));
        assert_eq!(bar.load::<u64>(8), 0xBBCC_AA11, "no neighbour was touched");
    }

    #[test]
    fn nothing_is_outside_the_bar() {
        let bar = bar();
        for offset in [4095, 4094, 4093, 4096, u32::MAX, 2, 1] {
            bar.store(offset, 0_u32);
            assert_eq!(bar.load::<u32>(offset), u32::MAX, "{offset}");
        }
        assert_eq!((bar.load::<u16>(4095), bar.load::<u16>(7)), (u16::MAX, u16::MAX));
        assert_eq!((bar.load::<u8>(4095), bar.load::<u8>(4096)), (0, u8::MAX));
        assert_eq!((bar.load::<u64>(4092), bar.load::<u64>(4)), (u64::MAX, u64::MAX));
        bar.store(4096, 0_u16);
        bar.store(u32::MAX, 0_u8);
    }
}
