//! A device that works by itself: its registers, its present, its interrupt lines.
//!
//! ```text
//! engine ─┬─ advance(now) ─► device: what is due until then happens        Shared: one device, two who hold it
//!         └─ driver ─ registers ─► the same device
//!                   └ looks at the clock ─► a little time passes for the device
//! ```
//!
//! For a device model time is virtual: it passes when it is told to, and while a driver waits. A real device would let
//! `advance` do nothing.

use std::cell::RefCell;
use std::rc::Rc;

use memferry_clock::{Clock, Instant};
use memferry_drivers::sdma::Line;
use memferry_registers::RegisterIo;

/// A device behind registers.
pub trait Device: RegisterIo {
    /// Lets everything happen that is due until `now`.
    fn advance(&mut self, now: Instant);

    /// Its present: the latest instant it was advanced to.
    fn now(&self) -> Instant;

    /// When the next thing happens by itself.
    fn next_wake(&self) -> Option<Instant>;

    /// Whether an interrupt line is high.
    fn is_high(&self, line: Line) -> bool;
}

/// A device that the engine, its driver and the driver's clock hold.
#[derive(Debug)]
pub struct Shared<D>(Rc<RefCell<D>>);

impl<D> Shared<D> {
    /// Shares a device.
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
