//! PCI devices at user level, through VFIO of Linux.
//!
//! ```text
//! sysfs, /dev/vfio ─► Linux: container, group, device ─┬► MappedBar: registers, by loads and stores of their width
//!                                                      ├► Configuration: the command register, capabilities
//!                                                      └► Type1, a Domain: what the device reaches, by IOVA
//! ```
//!
//! Drivers of single devices are in the crates that use this one. A device reaches what is mapped in its IOMMU and nothing else.
//!
//! Invariant V: only whole pages of shared mappings become a device's, pinned by the kernel until they are unmapped for it. Registers are
//! accessed inside the mapped BAR, by volatile loads and stores of aligned integers.

mod address;
mod bar;
mod calls;
mod config;
mod domain;
mod linux;

pub use address::{BadAddress, PciAddress};
pub use bar::{MappedBar, Width};
pub use calls::end_process;
pub use config::Configuration;
pub use domain::{Bar, Domain, Range, whole_pages};
pub use linux::{Linux, Type1, monotonic};
