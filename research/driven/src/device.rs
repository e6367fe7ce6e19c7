//! A device that works by itself, held by the engine, its driver and the driver's clock.
//!
//! ```text
//! engine ─┬─ advance(now) ─► device: what is due until then happens        Shared: one device, two who hold it
//!         └─ driver ─ registers ─► the same device
//!                   └ looks at the clock ─► a little time passes for the device
//! ```
//!
//! For a device model time is virtual: it passes when it is told to, and while a driver waits.

use std::cell::RefCell;
use std::rc::Rc;

use memferry_clock::{Clock, Instant};
use memferry_registers::{Device, NarrowIo, RegisterIo};

/// A device that the engine, its driver and the driver's clock hold.
#[derive(Debug)]
pub struct Shared<D>(Rc<RefCell<D>>);

impl<D> Shared<D> {
    pub fn new(device: D) -> Self {
        Self(Rc::new(RefCell::new(device)))
    }

    /// Looks at the device, or changes it. Nobody else holds it meanwhile: calls are not nested.
    pub fn with<T>(&self, look: impl FnOnce(&mut D) -> T) -> T {
        look(&mut self.0.borrow_mut())
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
}

/// What a driver's look at the clock takes, picoseconds.
const LOOK: u128 = 50_000;

impl<D: Device> Clock for Shared<D> {
    fn now(&self) -> Instant {
        self.with(|device| {
            let now = device.now().after_picoseconds(LOOK);
            device.advance(now);
            now
        })
    }
}
