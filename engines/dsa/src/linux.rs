//! Linux: sysfs and the files of work queues below a root, the portal, and pages.
//!
//! ```text
//! ROOT/sys/bus/dsa/devices/... ─► attribute, names
//! ROOT/dev/dsa/wqD.Q ─► OpenQueue ─┬► Mapped: MOVDIR64B or ENQCMD into the portal's page
//!                                  └► write()
//! ```
//!
//! `store` has the instructions and `portal` the mapping; only these and `pages` have unsafe code.

mod pages;
mod portal;
mod store;

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use memferry_clock::Instant;
use memferry_driven_engines::{DsaControl, NotStopped};
use memferry_dsa::{DescriptorFile, Refused, Stopped};
use memferry_engine::Mapping;
use rustix::io::Errno;
use rustix::time::ClockId;

use crate::kernel::{Kernel, Mode, NotMapped, QueueFile};
use crate::name::QueueName;
use pages::keep_present;
pub(crate) use pages::populate;
pub use portal::Mapped;
pub use store::Instructions;

/// The kernel of this machine.
#[derive(Clone, Debug)]
pub struct Linux {
    root: PathBuf,
    instructions: Instructions,
}

impl Default for Linux {
    fn default() -> Self {
        Self::at("/".into())
    }
}

impl Linux {
    /// With another folder in place of the root, for tests.
    pub fn at(root: PathBuf) -> Self {
        Self { root, instructions: Instructions::of_this_cpu() }
    }
}

impl Kernel for Linux {
    type File = OpenQueue;

    fn attribute(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.root.join("sys/bus/dsa/devices").join(path))?.trim().to_owned())
    }

    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.root.join("sys/bus/dsa/devices").join(folder))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    fn open(&self, queue: QueueName) -> io::Result<OpenQueue> {
        let path = self.root.join("dev/dsa").join(queue.to_string());
        let file = File::options().read(true).write(true).open(path)?;
        Ok(OpenQueue { file, instructions: self.instructions })
    }

    fn keep_present(&self, records: &Mapping) -> io::Result<()> {
        keep_present(records)
    }
}

/// An open file of a work queue.
#[derive(Debug)]
pub struct OpenQueue {
    file: File,
    instructions: Instructions,
}

impl DescriptorFile for OpenQueue {
    fn write(&mut self, bytes: &[u8; 64]) -> Result<usize, Refused> {
        match rustix::io::write(&self.file, bytes) {
            Ok(taken) => Ok(taken),
            // The shared queue is full, or a signal came before the kernel took it.
            Err(Errno::AGAIN | Errno::INTR) => Err(Refused::Busy),
            Err(_) => Err(Refused::Closed),
        }
    }
}

impl QueueFile for OpenQueue {
    type Portal = Mapped;

    fn map(&self, mode: Mode) -> Result<Mapped, NotMapped> {
        match mode {
            Mode::Dedicated if !self.instructions.movdir64b => Err(NotMapped::Instruction("MOVDIR64B")),
            Mode::Shared if !self.instructions.enqcmd => Err(NotMapped::Instruction("ENQCMD")),
            _ => Mapped::new(&self.file, 0, mode).map_err(NotMapped::Refused),
        }
    }
}

/// The time of `CLOCK_MONOTONIC`. A user cannot drain a queue other than by closing it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Monotonic;

impl DsaControl for Monotonic {
    fn now(&self) -> Instant {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
        Instant::from_nanoseconds(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    }

    fn stop(&mut self) -> Result<Stopped, NotStopped> {
        Err(NotStopped)
    }
}
