//! The product's DSA engine where the device's registers can be reached, as on a model.
//!
//! ```text
//! DsaEngine ─ DsaRegisters ─┬► now, advance ─► the device's time
//!                           └► stop ─────────► DRAIN_WQ, polled until it ends
//! ```

use core::time::Duration;

use memferry_clock::Instant;
use memferry_driven_engines::{DsaControl, NotStopped, Shared};
use memferry_dsa::registers::RegisterIo;
use memferry_dsa::{CommandFailure, Dsa, Stopped};
use memferry_registers::Device;

use crate::BusMemory;

/// The product's DSA engine over [`BusMemory`].
pub type DsaEngine<D, P, M, G> = memferry_driven_engines::DsaEngine<DsaRegisters<D>, P, M, G, BusMemory>;

/// Stops a work queue by the registers of its device.
#[derive(Debug)]
pub struct DsaRegisters<D: Device + RegisterIo> {
    device: Shared<D>,
    control: Dsa<Shared<D>, Shared<D>>,
    queue: u8,
    drain: Duration,
}

impl<D: Device + RegisterIo> DsaRegisters<D> {
    /// For a work queue by its number. `drain` is the maximum time of a drain.
    pub fn new(device: Shared<D>, queue: u8, drain: Duration) -> Self {
        Self { control: Dsa::new(device.clone(), device.clone()), device, queue, drain }
    }
}

impl<D: Device + RegisterIo> DsaControl for DsaRegisters<D> {
    fn now(&self) -> Instant {
        self.device.with(|device| device.now())
    }

    fn advance(&mut self, now: Instant) {
        self.device.with(|device| device.advance(now));
    }

    fn stop(&mut self) -> Result<Stopped, NotStopped> {
        match self.control.drain_queue(self.queue, self.drain) {
            Ok(stopped) => Ok(stopped),
            // A disabled work queue has nothing.
            Err(CommandFailure::Refused { .. }) => Ok(Stopped::known_to_caller()),
            Err(_) => Err(NotStopped),
        }
    }
}
