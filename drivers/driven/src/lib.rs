//! Engines that consist of a driver in front of a device or its model: I/OAT and DSA.
//!
//! ```text
//! Descriptor over DeviceMemory ─┬► IoatEngine ─ driver ─► registers of the device or its model,
//!                               │                         shared by engine, driver and clock
//!                               └► DsaEngine ── driver ─► a work queue's portal, and DsaControl: time, and stopping the queue
//! ```
//!
//! Single-threaded, in the device's time: `poll` passes the current time. The engine processes for real devices drive them, and so does the
//! laboratory with models. What does not depend on the device ([`admit`], [`copies`], [`Shared`], [`DeviceWords`]) is shared with the laboratory's other engine.

pub mod copies;

mod admission;
mod device;
mod dsa;
mod ioat;
mod memory;
mod words;

pub use admission::{admit, completion};
pub use device::Shared;
pub use dsa::{DSA_SLOTS, DsaControl, DsaEngine, DsaOptions, NotStopped, Pages, Present};
pub use ioat::{Completion, IoatEngine, IoatInitError, IoatOptions};
pub use memory::{DeviceMemory, Unplannable, address};
pub use words::DeviceWords;
