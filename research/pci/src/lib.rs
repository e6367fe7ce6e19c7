//! Models of DMA engines as PCI devices that a virtual machine can use, over the vfio-user protocol; and one as a character device.
//!
//! ```text
//! QEMU ── socket ──► connection ──► message ──► device ─┬─ config      configuration space
//!                                                       ├─ interrupts  INTx, MSI, MSI-X: eventfds of the client
//!                                                       ├─ memory      the guest's memory, in windows of the client's files
//!                                                       └─ Function    the device itself: ioat, dsa
//! serve: one thread; waits for the socket and for the model's next event (pace)
//! character: the same for a file below /dev that takes descriptors, over CUSE
//! ```
//!
//! [`Device`] is the shell of any PCI device: it knows no engine. A device behind it implements [`Function`]: [`ioat`] and [`dsa`]. The
//! shell has no sockets and no clock, so tests and the fuzzer drive it by bytes. [`serve`] adds both.
//!
//! # Why not the crate `vfio_user`
//!
//! Version 0.1.7 numbers the flags of an unmap one bit too low, so a QEMU that unmaps everything is misread; most failed commands are
//! answered without an errno; it maps each window by itself, and a guest with an IOMMU has a window for each page; it reads blocking, so
//! a client that sends half a message stops the device; and nothing keeps SIGBUS from a file that its owner truncates. The protocol's
//! ten messages need less code than the ways around all this. All code here is safe: guest memory is mapped and accessed by
//! `memferry-shm`.

pub mod character;
mod config;
mod connection;
mod device;
pub mod dsa;
mod function;
mod interrupts;
pub mod ioat;
mod memory;
pub mod message;
mod pace;
pub mod schedule;
mod serve;

pub use connection::{Connection, ConnectionError, Message, Received};
pub use device::{Device, Fatal};
pub use function::{Bar, ConfigRegister, Description, Function, Signalling, pieces};
pub use memferry_models::ioat::Planned;
pub use memory::{Memory, Traffic, WindowError};
pub use serve::{ServeError, ServeOptions, Served, serve};
