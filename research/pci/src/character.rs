//! A model of a DSA as a character device that takes descriptors by `write()`, as `/dev/dsa/wqD.Q` of Linux's idxd does, through CUSE.
//!
//! ```text
//! a process: open, write ── kernel: cuse ── /dev/cuse ── serve ──► message ──► device: one work queue, files, submission
//!            its memory ◄── process_vm_readv, process_vm_writev ── space ◄── model ──┘
//! ```
//!
//! [`CharacterDevice`] knows no file descriptors and no clock: tests drive it by messages. [`serve`] adds both. CUSE has no `mmap`, so there is no portal.

mod device;
mod message;
mod serve;
mod space;

pub use device::{CharacterDevice, CharacterOptions, MakeError};
pub use message::{INIT, Malformed, OPEN, RELEASE, WRITE};
pub use serve::{CharacterError, serve};
pub use space::{Process, Spaces};
