//! Engines: what moves bytes, each behind the contract [`memferry_transfer::Engine`].
//!
//! ```text
//! path ──Descriptor──► cpu      kernels on the calling thread, chunk by chunk
//!      ◄──Finished──── driven   the drivers of the OMAP4 SDMA and of I/OAT, in front of the device or a model of it
//! ```
//!
//! Engines know no client, capability or policy: what reaches them was admitted and checked. They start no thread; who
//! calls `poll`, how often and on which core is the service's decision.

pub mod cpu;
pub mod driven;

pub use cpu::{CpuEngine, DEFAULT_CHUNK_BYTES};
pub use driven::{IoatEngine, SdmaEngine};
