//! What a model's reads and writes reach.
//!
//! ```text
//! model ── serve(arrival, access) ──► when it has been served
//!       ── read(address, bytes) / write(address, bytes) ──► Bus ──► memory or a peripheral
//! ```
//!
//! A bus moves bytes at once, and says apart from that how long an access takes behind the interconnect; by itself, no
//! time. The way there and back is the device's timing.

use alloc::vec::Vec;
use core::fmt;

use memferry_clock::Instant;

/// The interconnect answered with an error: nothing is there, or it may not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusError;

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the interconnect answered with an error")
    }
}

impl core::error::Error for BusError {}

/// What an access does, as far as its time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Data is waited for.
    Read,
    /// The end is waited for.
    Write,
    /// Only being accepted is waited for.
    PostedWrite,
}

/// An access on its way to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub address: u32,
    /// How many bytes it carries.
    pub bytes: u32,
    pub kind: AccessKind,
}

/// Memory and peripherals as the device addresses them.
pub trait Bus {
    /// Fills `bytes` from `address`. A peripheral may change by being read.
    fn read(&mut self, address: u32, bytes: &mut [u8]) -> Result<(), BusError>;

    /// Writes `bytes` to `address`. On an error nothing was written.
    fn write(&mut self, address: u32, bytes: &[u8]) -> Result<(), BusError>;

    /// When an access that arrives at `arrival` has been served: a read's first data leaves, a write is done, a posted
    /// one accepted. Asked once for each access, in the order they leave the device; no bytes are moved by it.
    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        let _ = access;
        arrival
    }
}

impl<B: Bus + ?Sized> Bus for &mut B {
    fn read(&mut self, address: u32, bytes: &mut [u8]) -> Result<(), BusError> {
        (**self).read(address, bytes)
    }

    fn write(&mut self, address: u32, bytes: &[u8]) -> Result<(), BusError> {
        (**self).write(address, bytes)
    }

    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        (**self).serve(arrival, access)
    }
}

/// Plain memory at one place; every other address is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ram {
    base: u32,
    bytes: Vec<u8>,
}

impl Ram {
    /// Memory that holds `bytes` from address `base`.
    pub const fn new(base: u32, bytes: Vec<u8>) -> Self {
        Self { base, bytes }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it holds, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn place(&mut self, address: u32, length: usize) -> Result<&mut [u8], BusError> {
        let begin = address.checked_sub(self.base).ok_or(BusError)? as usize;
        let end = begin.checked_add(length).ok_or(BusError)?;
        self.bytes.get_mut(begin..end).ok_or(BusError)
    }
}

impl Bus for Ram {
    fn read(&mut self, address: u32, bytes: &mut [u8]) -> Result<(), BusError> {
        bytes.copy_from_slice(self.place(address, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, address: u32, bytes: &[u8]) -> Result<(), BusError> {
        self.place(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}
