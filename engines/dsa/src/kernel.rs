//! What the engine needs of the kernel, so that tests can take its place.
//!
//! ```text
//! attribute, names (sysfs) ─► open /dev/dsa/wqD.Q ─┬► map: the portal, by stores
//!                                                  └► DescriptorFile: by write()
//! ```

use std::io;

use memferry_dsa::{DescriptorFile, Portal};
use memferry_engine::Mapping;
use thiserror::Error;

use crate::name::QueueName;

/// Whether a work queue belongs to one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// One process has it, and counts its entries: MOVDIR64B.
    Dedicated,
    /// The device answers whether it had room: ENQCMD.
    Shared,
}

/// The kernel, with its driver idxd.
pub trait Kernel {
    /// An open work queue. The process's address space is bound to it: only the process that opened it may use it.
    type File: QueueFile + 'static;

    /// Reads a file below `/sys/bus/dsa/devices`, without white space at its ends.
    ///
    /// # Errors
    /// Those of the file system.
    fn attribute(&self, path: &str) -> io::Result<String>;

    /// The entries of a folder there.
    ///
    /// # Errors
    /// Those of the file system.
    fn names(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Opens `/dev/dsa/wqD.Q`.
    ///
    /// # Errors
    /// Those of the call.
    fn open(&self, queue: QueueName) -> io::Result<Self::File>;

    /// Keeps the pages of completion records in memory.
    ///
    /// # Errors
    /// Those of the call; they are present, and may be swapped out later.
    fn keep_present(&self, records: &Mapping) -> io::Result<()>;
}

/// An open work queue. Dropping it takes the device's access away: the kernel first waits for the descriptors that the device has.
pub trait QueueFile: DescriptorFile {
    /// A mapped portal. It does not outlive the process.
    type Portal: Portal + 'static;

    /// Maps the queue's portal.
    ///
    /// # Errors
    /// [`NotMapped`].
    fn map(&self, mode: Mode) -> Result<Self::Portal, NotMapped>;
}

/// Why a portal cannot be used.
#[derive(Debug, Error)]
pub enum NotMapped {
    /// The CPU cannot store a descriptor there.
    #[error("this processor has no {0}; a virtual machine has to be given the host's (QEMU: -cpu host)")]
    Instruction(&'static str),
    /// The kernel refuses the mapping.
    #[error("{0}")]
    Refused(io::Error),
}
