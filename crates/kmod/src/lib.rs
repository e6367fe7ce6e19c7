//! User-space side of the Linux module (kernel/), which gives unprivileged processes the machine's DMA engines.
//!
//! ```text
//! engine   memferry_transfer::Engine over the module: descriptors become orders, records become completions
//! device   /dev/memferry: registered memory, orders, records
//! ```
//!
//! Unsafe code is in `device` only: ioctls on the device, and the addresses they pass. The module does not trust this crate
//! and checks every order itself.

pub mod device;
pub mod engine;

pub use engine::ModuleEngine;
