//! The memory of the processes that have the device open, by their own addresses: it stands for shared virtual memory (SVM).
//!
//! ```text
//! PASID ─► Process ─┬─ /proc/PID/pagemap: is the page present? is there still this address space?
//!                   └─ process_vm_readv, process_vm_writev: the bytes, with the process's own rights on its pages
//! ```
//!
//! An absent page is a page fault of the device. Differences from an IOMMU: a page that is present but may not be written, or is to be copied at a write,
//! counts as present; the kernel then copies it, or refuses the write. What the kernel writes for a process that ends at this moment may come after its end is
//! visible to others, but not after the device's file is released, since one thread does both.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;

use memferry_models::{Bus, BusError};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// Bytes of a completion record, whose first word the device writes last.
const RECORD: usize = 32;

/// An address space, as it was when the process opened the device.
#[derive(Debug)]
pub struct Process {
    id: i32,
    /// Bound to the address space, not to the process: it ends with that, and the number of a process may be used again.
    pages: File,
}

impl Process {
    /// The address space of a thread's process.
    ///
    /// # Errors
    /// If the thread is gone, or this process may not look into it.
    pub fn of(thread: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let id = group.and_then(|group| group.trim().parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { id, pages: File::open(format!("/proc/{id}/pagemap"))? })
    }

    /// Whether a thread belongs to the process, and that still has the address space. (A process that shares the memory of another one is taken for a
    /// stranger.)
    pub(crate) fn is_of(&self, thread: u32) -> bool {
        let is_first = u32::try_from(self.id) == Ok(thread);
        let is_own = is_first || Path::new(&format!("/proc/{}/task/{thread}", self.id)).exists();
        is_own && self.entry(0).is_some()
    }

    /// The kernel's word about the page of an address; `None` if the address space is gone, or does not reach so far.
    fn entry(&self, address: u64) -> Option<u64> {
        let mut entry = [0; 8];
        let place = address / rustix::param::page_size() as u64 * 8;
        let read = self.pages.read_at(&mut entry, place).ok()?;
        (read == entry.len()).then(|| u64::from_ne_bytes(entry))
    }

    /// Whether the page of an address is in memory and mapped.
    fn has_page(&self, address: u64) -> bool {
        self.entry(address).is_some_and(|entry| entry >> 63 == 1)
    }

    fn remote(address: u64, length: usize) -> Option<RemoteIoVec> {
        let base = usize::try_from(address).ok()?;
        base.checked_add(length)?;
        Some(RemoteIoVec { base, len: length })
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        let length = bytes.len();
        let remote = Self::remote(address, length)?;
        let read = process_vm_readv(Pid::from_raw(self.id), &mut [IoSliceMut::new(bytes)], &[remote]).ok()?;
        (read == length).then_some(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Option<()> {
        let remote = Self::remote(address, bytes.len())?;
        let written = process_vm_writev(Pid::from_raw(self.id), &[IoSlice::new(bytes)], &[remote]).ok()?;
        (written == bytes.len()).then_some(())
    }
}

/// The address spaces of a device, by their numbers (PASIDs).
#[derive(Debug, Default)]
pub struct Spaces {
    processes: BTreeMap<u32, Process>,
    current: u32,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

impl Spaces {
    pub(crate) fn insert(&mut self, space: u32, process: Process) {
        self.processes.insert(space, process);
    }

    pub(crate) fn remove(&mut self, space: u32) {
        self.processes.remove(&space);
    }

    pub(crate) fn get(&self, space: u32) -> Option<&Process> {
        self.processes.get(&space)
    }

    /// The process of the accesses, if it has the pages of a range.
    fn present(&self, address: u64, length: usize) -> Option<&Process> {
        let process = self.processes.get(&self.current)?;
        let last = address.checked_add(length.checked_sub(1)? as u64)?;
        (process.has_page(address) && process.has_page(last)).then_some(process)
    }
}

impl Bus for Spaces {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        let process = self.present(address, bytes.len()).ok_or(BusError)?;
        process.read(address, bytes).ok_or(BusError)?;
        self.bytes_read += bytes.len() as u64;
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        let process = self.present(address, bytes.len()).ok_or(BusError)?;
        match bytes.split_at_checked(8).filter(|_| bytes.len() == RECORD) {
            Some((status, rest)) => {
                process.write(address + 8, rest).and_then(|()| process.write(address, status))
            }
            None => process.write(address, bytes),
        }
        .ok_or(BusError)?;
        self.bytes_written += bytes.len() as u64;
        Ok(())
    }

    fn enter_space(&mut self, space: u32) {
        self.current = space;
    }

    fn translates(&mut self, address: u64, _write: bool) -> bool {
        self.processes.get(&self.current).is_some_and(|process| process.has_page(address))
    }

    fn request_page(&mut self, address: u64, write: bool) -> bool {
        // The kernel makes it present for this access.
        let mut byte = [0];
        let is_there = self.processes.get(&self.current).and_then(|process| process.read(address, &mut byte));
        is_there.is_some() && self.translates(address, write)
    }
}
