//! Small host memory of the driver's own that the device reads and writes: completion words and tables.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::codes::check;
use super::{CallError, DeviceAddress, Driver, PORTABLE_AND_MAPPED};

/// Words of 32 bits. The memory is the device's until [`free`](Self::free); forgetting the value leaves it there for good.
#[derive(Debug)]
pub(crate) struct PinnedWords {
    start: usize,
    count: usize,
    device: DeviceAddress,
}

impl PinnedWords {
    /// Allocates words, which are 0.
    pub(crate) fn new(driver: &Driver, count: usize) -> Result<Self, CallError> {
        let bytes = count * size_of::<u32>();
        let mut start = std::ptr::null_mut();
        // SAFETY: G: the variable lives during the call.
        let raw = unsafe { (driver.table().allocate_host)(&mut start, bytes, PORTABLE_AND_MAPPED) };
        check("cuMemHostAlloc", raw, || format!("{bytes} bytes"))?;
        // SAFETY: the driver allocated as many bytes, for this value only.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        let words = Self { start: start as usize, count, device: DeviceAddress(0) };
        match driver.device_pointer(start.cast()) {
            Ok(device) => Ok(Self { device, ..words }),
            Err(error) => {
                _ = words.free(driver);
                Err(error)
            }
        }
    }

    /// Frees the memory; the device must not use it any more.
    pub(crate) fn free(self, driver: &Driver) -> Result<(), CallError> {
        // SAFETY: G: the driver allocated it, and this value, which ends here, was the only way to it.
        let raw = unsafe { (driver.table().free_host)(self.start as *mut c_void) };
        check("cuMemFreeHost", raw, || format!("{:#x}", self.start))
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: the word lies in the allocation, which is aligned and lives as long as this value. Both sides access it as one.
        unsafe { AtomicU32::from_ptr((self.start as *mut u32).add(index)) }
    }

    /// Reads a word. What the device wrote before it wrote this value is visible afterwards.
    pub(crate) fn load(&self, index: usize) -> u32 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Writes two words, the lower half first.
    pub(crate) fn store64(&self, index: usize, value: u64) {
        self.word(index).store(value as u32, Ordering::Relaxed);
        self.word(index + 1).store((value >> 32) as u32, Ordering::Relaxed);
    }

    pub(crate) fn store(&self, index: usize, value: u32) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Where the device finds a word.
    pub(crate) fn address(&self, index: usize) -> DeviceAddress {
        self.device.plus((index * size_of::<u32>()) as u64)
    }
}
