//! Engines that consist of a driver in front of a device or its model.
//!
//! ```text
//! Descriptor of bus addresses ─► sdma        OMAP4 SDMA (Wicki 2014, 3.4)   ─┬─► registers of the device or its model,
//!                             ─► I/OAT, DSA  the product's engines           ─┘   shared by engine, driver and clock
//! ```
//!
//! Single-threaded, in the device's time: `poll` passes the current time.

mod dsa;
mod memory;
mod sdma;

pub use dsa::{DsaEngine, DsaRegisters};
pub use memferry_driven_engines::{
    Completion, DSA_SLOTS, DsaOptions, IoatInitError, IoatOptions, Pages, Present, Shared,
};
pub use memory::{BusMemory, ListMemory, RequestLines};
pub use sdma::{SdmaEngine, SdmaOptions};

/// The product's I/OAT engine over [`BusMemory`].
pub type IoatEngine<D, M> = memferry_driven_engines::IoatEngine<D, M, BusMemory>;
