//! A device shared by the engine, its driver and the driver's clock.
//!
//! ```text
//! engine ─┬─ advance(now) ─► device: processes its events until then       Shared: one device, several holders
//!         └─ driver ─ registers ─► the same device
//!                   └ reads the clock ─► some time passes for the device
//! ```
//!
//! A device model runs in virtual time: it advances on request and while a driver waits.

use std::cell::RefCell;
use std::rc::Rc;

use memferry_clock::{Clock, Instant};
use memferry_ioat_registers::{Device, NarrowIo, RegisterIo};

/// A reference-counted device for engine, driver and clock.
#[derive(Debug)]
pub struct Shared<D>(Rc<RefCell<D>>);

impl<D> Shared<D> {
    pub fn new(device: D) -> Self {
        Self(Rc::new(RefCell::new(device)))
    }

    /// Calls `access` with the device. Calls must not be nested: an inner call panics.
    pub fn with<T>(&self, access: impl FnOnce(&mut D) -> T) -> T {
        access(&mut self.0.borrow_mut())
    }
}

impl<D> Clone for Shared<D> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<D: RegisterIo> RegisterIo for Shared<D> {
    fn read(&mut self, offset: u32) -> u32 {
        self.with(|device| device.read(offset))
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.with(|device| device.write(offset, value));
    }
}

impl<D: NarrowIo> NarrowIo for Shared<D> {
    fn read8(&mut self, offset: u32) -> u8 {
        self.with(|device| device.read8(offset))
    }

    fn write8(&mut self, offset: u32, value: u8) {
        self.with(|device| device.write8(offset, value));
    }

    fn read16(&mut self, offset: u32) -> u16 {
        self.with(|device| device.read16(offset))
    }

    fn write16(&mut self, offset: u32, value: u16) {
        self.with(|device| device.write16(offset, value));
    }

    fn clear_other_errors(&mut self) {
        self.with(|device| device.clear_other_errors());
    }
}

impl<D: memferry_dsa::registers::RegisterIo> memferry_dsa::registers::RegisterIo for Shared<D> {
    fn read32(&mut self, offset: u32) -> u32 {
        self.with(|device| device.read32(offset))
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.with(|device| device.write32(offset, value));
    }
}

/// Virtual time that a clock read by the driver takes, in picoseconds.
const CLOCK_READ: u128 = 50_000;

impl<D: Device> Clock for Shared<D> {
    fn now(&self) -> Instant {
        self.with(|device| {
            let now = device.now().after_picoseconds(CLOCK_READ);
            device.advance(now);
            now
        })
    }
}
