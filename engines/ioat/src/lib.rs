//! A user-level driver of Intel's I/OAT DMA engine: an engine process that reaches the device through VFIO.
//!
//! ```text
//! Engine::next ─► Server ─► IoatEngine (driver) ─► registers: BAR 0, mapped
//!    frames ─► Frames ─► Domain: the IOMMU  ◄──── the device's reads and writes, by IOVA
//! ```
//!
//! The device reaches what is mapped in its IOMMU and nothing else: the rings of its channels, and frames of clients, each from when the
//! service shows it until it is released. A descriptor that strays is stopped by the IOMMU, and halts its channel.
//!
//! [`Vfio`] has the system calls. The program uses [`Linux`]; tests put a model of the device behind it.

mod device;
mod engine;
mod frames;
mod ids;
mod linux;
mod memory;
mod open;
mod server;
mod space;
mod vfio;

pub use device::{Abilities, Opened};
pub use engine::{Options, RunError, run, run_on};
pub use ids::{Generation, generation};
pub use memferry_vfio::{BadAddress, Bar, Domain, Linux, PciAddress, Range};
pub use open::OpenError;
pub use server::ServeError;
pub use vfio::Vfio;
