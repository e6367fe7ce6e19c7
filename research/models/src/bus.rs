//! The memory and peripherals that a model reads and writes.
//!
//! ```text
//! model ── serve(arrival, access) ──► time at which the access is served
//!       ── read(address, bytes) / write(address, bytes) ──► Bus ──► memory or a peripheral
//! ```
//!
//! A bus moves bytes at once. It reports separately how long an access takes behind the interconnect (by default: no
//! time). The latency between device and memory belongs to the device's timing.

use alloc::vec::Vec;
use core::fmt;

use memferry_clock::Instant;

/// The interconnect answered with an error: the address is unmapped or protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusError;

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bus error: no memory or peripheral accepts an access to this address")
    }
}

impl core::error::Error for BusError {}

/// Kind of an access, as far as timing depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// The device waits for the data.
    Read,
    /// The device waits until the write is done.
    Write,
    /// The device waits only until the write is accepted.
    PostedWrite,
}

/// An access as it arrives at memory, for its timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub address: u64,
    pub bytes: u32,
    pub kind: AccessKind,
}

/// Memory and peripherals as the device addresses them. A device of 32 address bits uses the lower half.
pub trait Bus {
    /// Fills `bytes` from `address`. Reading a peripheral may change its state.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError>;

    /// Writes `bytes` to `address`. On an error nothing was written.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError>;

    /// Time at which an access that arrives at `arrival` is served: a read's first data leaves, a write is done, a posted
    /// write is accepted. Called once for each access, in the order in which they leave the device. Moves no bytes.
    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        let _ = access;
        arrival
    }

    /// Chooses the address space (PASID) of the accesses that follow, for devices that serve several processes. By default there is one space.
    fn enter_space(&mut self, space: u32) {
        let _ = space;
    }

    /// Whether the page of `address` is present, as the translation of a device that shares a process's addresses says. By default all are; an
    /// access may fail all the same.
    fn translates(&mut self, address: u64, write: bool) -> bool {
        let _ = (address, write);
        true
    }

    /// Asks software to make the page of `address` present; whether it is now.
    fn request_page(&mut self, address: u64, write: bool) -> bool {
        self.translates(address, write)
    }
}

impl<B: Bus + ?Sized> Bus for &mut B {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        (**self).read(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        (**self).write(address, bytes)
    }

    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        (**self).serve(arrival, access)
    }

    fn enter_space(&mut self, space: u32) {
        (**self).enter_space(space);
    }

    fn translates(&mut self, address: u64, write: bool) -> bool {
        (**self).translates(address, write)
    }

    fn request_page(&mut self, address: u64, write: bool) -> bool {
        (**self).request_page(address, write)
    }
}

/// Plain memory at one address range; every other address is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ram {
    base: u64,
    bytes: Vec<u8>,
}

impl Ram {
    /// Memory that holds `bytes` from address `base`.
    pub const fn new(base: u64, bytes: Vec<u8>) -> Self {
        Self { base, bytes }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn slice(&mut self, address: u64, length: usize) -> Result<&mut [u8], BusError> {
        let begin = usize::try_from(address.checked_sub(self.base).ok_or(BusError)?).map_err(|_| BusError)?;
        let end = begin.checked_add(length).ok_or(BusError)?;
        self.bytes.get_mut(begin..end).ok_or(BusError)
    }
}

impl Bus for Ram {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        bytes.copy_from_slice(self.slice(address, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        self.slice(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}
