//! An engine that consists of the I/OAT driver in front of a device or its model.
//!
//! ```text
//! Descriptor over DeviceMemory ─► IoatEngine ─ driver ─► registers of the device or its model,
//!                                                        shared by engine, driver and clock
//! ```
//!
//! Single-threaded, in the device's time: `poll` passes the current time. The engine process for real devices drives it, and so does the
//! laboratory with a model. What does not depend on the device ([`admit`], [`copies`], [`Shared`]) is shared with the laboratory's other engine.

pub mod copies;

mod admission;
mod device;
mod engine;
mod memory;

pub use admission::{admit, completion};
pub use device::Shared;
pub use engine::{Completion, IoatEngine, IoatInitError, IoatOptions};
pub use memory::{DeviceMemory, Unplannable, address};
