//! The Linux module (kernel/) from user space: DMA engines of the machine for a process without privileges.
//!
//! ```text
//! engine   memferry_transfer::Engine over the module: descriptors become orders, records become completions
//! device   /dev/memferry: memory registered with it, orders, records
//! ```
//!
//! Unsafe code is in `device` only: the calls of its file, and the memory it shares with the kernel. The module itself checks
//! every order again; nothing here is trusted by it.

pub mod device;
pub mod engine;

pub use engine::ModuleEngine;
