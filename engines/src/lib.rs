//! Engines: what moves bytes, each behind the contract [`memferry_transfer::Engine`].
//!
//! ```text
//! path ──Descriptor──► cpu      kernels on the calling thread, chunk by chunk
//!      ◄──Finished──── driven   the drivers of the OMAP4 SDMA and of I/OAT, in front of the device or a model of it
//!                 kernel   the Linux module: the DMA engines of the machine, for a process without privileges
//!                 lane     the CPU, and a device such as the module beside it: what a lane of the service has
//! ```
//!
//! Engines know no client, capability or policy: what reaches them was admitted and checked. They start no thread; who
//! calls `poll`, how often and on which core is the service's decision.

pub mod cpu;
pub mod driven;
pub mod kernel;
pub mod lane;

pub use cpu::{CpuEngine, DEFAULT_CHUNK_BYTES};
pub use driven::{IoatEngine, SdmaEngine};
pub use kernel::KernelEngine;
pub use lane::LaneEngine;
