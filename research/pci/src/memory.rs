//! The guest's memory: windows of files that the client passed.
//!
//! ```text
//! DMA_MAP: descriptor, offset, address, size ──► Window ──► Mapping of the whole file (one for each file, shared by its windows)
//! device ── Bus: address, bytes ──► parts, one for each window it crosses ──► guarded copies
//! ```
//!
//! A file is mapped once and as a whole: behind an IOMMU each page of a guest is a window, and Linux limits the mappings of a process to
//! 65530. Whether an access is permitted is decided by windows alone. An access that leaves them, or while the device may not be
//! bus master, is an error and moves nothing; one that crosses from window to window is cut at their borders.
//!
//! The file is another process's: it may write the bytes at any time, and it may truncate the file. The copies are `memferry-shm`'s, raw
//! and guarded against SIGBUS. After a fault the file counts as damaged: accesses to its windows fail until it is mapped again.
//!
//! Only files in memory are mapped: memfds and files of tmpfs and hugetlbfs. A page of any other may come from a file system that a
//! client runs, and a load from it would then stop the device's only thread for as long as the client likes. Mappings and their bytes
//! have limits of their own, because a client can have a mapping made for each window.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use memferry_models::{Bus, BusError};
use memferry_shm::bus_error::guarded;
use memferry_shm::mapping::{Access, Mapping};
use rustix::fs::{FileType, FsWord, OFlags};
use rustix::io::Errno;
use thiserror::Error;

use crate::message::DmaMap;

/// The type of hugetlbfs, of `linux/magic.h`.
const HUGETLBFS: FsWord = 0x9584_58f6;

/// Windows at the same time: vfio-user's default.
pub(crate) const MAXIMUM_WINDOWS: usize = 65_535;

/// Mappings at the same time. A file has one, or several when it was mapped again after damage or with other rights. Each may fall into
/// a few parts where pages failed, and Linux allows a process 65530 by default.
const MAXIMUM_MAPPINGS: usize = 1024;
/// Bytes of all mappings: more than a machine has, and an eighth of a process's addresses.
const MAXIMUM_BYTES: u64 = 1 << 44;

/// Why a window was not made or removed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum WindowError {
    #[error(
        "{size:#x} bytes at {address:#x} are no range of addresses; a window has at least one byte and ends below 2^64"
    )]
    NoRange { address: u64, size: u64 },
    #[error(
        "a window at {address:#x} of {size:#x} bytes overlaps the one at {existing:#x}; unmap that one first"
    )]
    Overlap { address: u64, size: u64, existing: u64 },
    #[error("{MAXIMUM_WINDOWS} windows are mapped; unmap some first")]
    TooMany,
    #[error("{MAXIMUM_MAPPINGS} files are mapped; unmap all windows of some first")]
    TooManyFiles,
    #[error(
        "a file of {length:#x} bytes beside {mapped:#x} that are mapped; {MAXIMUM_BYTES:#x} is the limit, so unmap some first"
    )]
    TooManyBytes { length: u64, mapped: u64 },
    #[error(
        "the descriptor is no memfd and no file of tmpfs or hugetlbfs; back the guest's memory with memory-backend-memfd, share=on"
    )]
    NoFile,
    #[error(
        "bytes {offset:#x} to {end:#x} are beyond the file's {length:#x} bytes; truncate the file after unmapping it"
    )]
    BeyondFile { offset: u64, end: u64, length: u64 },
    #[error("the descriptor does not permit this access; open the file for reading and writing")]
    NotPermitted,
    #[error(
        "the window at {existing:#x} is only partly in the {size:#x} bytes at {address:#x}; unmap whole windows"
    )]
    Parts { existing: u64, address: u64, size: u64 },
    #[error("{step} of the guest's memory: {source}")]
    System { step: &'static str, source: Errno },
}

impl WindowError {
    /// The number for the reply.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Overlap { .. } => Errno::EXIST,
            Self::TooMany | Self::TooManyFiles | Self::TooManyBytes { .. } => Errno::NOSPC,
            Self::NotPermitted => Errno::ACCESS,
            Self::System { source, .. } => *source,
            Self::NoRange { .. } | Self::NoFile | Self::BeyondFile { .. } | Self::Parts { .. } => {
                Errno::INVAL
            }
        }
    }
}

/// A device's accesses to memory so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Accesses that were refused.
    pub refused: u64,
    /// Windows that are mapped at present.
    pub windows: usize,
}

#[derive(Debug)]
struct Window {
    /// The last byte's address: a window may end at the last address there is.
    last: u64,
    /// Offset in the file.
    offset: u64,
    mapping: Mapping,
    file: FileId,
    read: bool,
    write: bool,
}

/// Identifies an open file: device and inode.
type FileId = (u64, u64);

#[derive(Debug, Default)]
struct Windows {
    /// By first address. They do not overlap.
    windows: BTreeMap<u64, Window>,
    /// The newest mapping of each file.
    files: BTreeMap<FileId, Mapping>,
    /// The windows of each mapping, by its key. There is none without windows.
    uses: BTreeMap<usize, usize>,
    /// Bytes of all mappings.
    mapped: u64,
    is_bus_master: bool,
    traffic: Traffic,
}

/// The guest's memory as a device sees it. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Memory(Rc<RefCell<Windows>>);

impl Memory {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the device may access memory; whether it might before.
    pub fn set_bus_master(&self, may: bool) -> bool {
        std::mem::replace(&mut self.0.borrow_mut().is_bus_master, may)
    }

    pub fn traffic(&self) -> Traffic {
        let windows = self.0.borrow();
        Traffic { windows: windows.windows.len(), ..windows.traffic }
    }

    /// Maps a window of a file.
    ///
    /// # Errors
    /// [`WindowError`]; nothing is mapped then.
    pub fn map(&self, descriptor: &OwnedFd, request: &DmaMap) -> Result<(), WindowError> {
        let DmaMap { read, write, offset, address, size } = *request;
        let last = last_address(address, size)?;
        let mut windows = self.0.borrow_mut();
        if let Some(existing) = windows.overlapping(address, last) {
            return Err(WindowError::Overlap { address, size, existing });
        }
        if windows.windows.len() >= MAXIMUM_WINDOWS {
            return Err(WindowError::TooMany);
        }
        let (file, mapping) = windows.file(descriptor, request)?;
        *windows.uses.entry(mapping.key()).or_default() += 1;
        windows.windows.insert(address, Window { last, offset, mapping, file, read, write });
        Ok(())
    }

    /// Removes the windows that lie in the range, and returns their bytes.
    ///
    /// # Errors
    /// [`WindowError::Parts`] when the range cuts a window; nothing is removed then.
    pub fn unmap(&self, address: u64, size: u64) -> Result<u64, WindowError> {
        let last = last_address(address, size)?;
        let mut windows = self.0.borrow_mut();
        let cut = |existing| Err(WindowError::Parts { existing, address, size });
        if let Some((existing, window)) = windows.windows.range(..address).next_back()
            && window.last >= address
        {
            return cut(*existing);
        }
        let inside: Vec<(u64, u64)> =
            windows.windows.range(address..=last).map(|(first, window)| (*first, window.last)).collect();
        if let Some((existing, _)) = inside.iter().find(|(_, end)| *end > last) {
            return cut(*existing);
        }
        inside.iter().for_each(|(first, _)| windows.remove(*first));
        Ok(total(inside.into_iter()))
    }

    /// Removes all windows, lets go of the files behind them, and returns the windows' bytes.
    pub fn clear(&self) -> u64 {
        let mut windows = self.0.borrow_mut();
        let bytes = total(windows.windows.iter().map(|(first, window)| (*first, window.last)));
        windows.windows.clear();
        windows.files.clear();
        windows.uses.clear();
        windows.mapped = 0;
        bytes
    }
}

fn last_address(address: u64, size: u64) -> Result<u64, WindowError> {
    let last = size.checked_sub(1).and_then(|length| address.checked_add(length));
    last.ok_or(WindowError::NoRange { address, size })
}

/// Bytes of windows, from their first and last addresses.
fn total(windows: impl Iterator<Item = (u64, u64)>) -> u64 {
    windows.fold(0, |bytes: u64, (first, last)| bytes.saturating_add(last - first).saturating_add(1))
}

/// The size of the pages that fail as one, for a file of tmpfs or hugetlbfs. A tmpfs may name any size as its blocks'.
fn page_bytes(descriptor: &OwnedFd) -> Result<usize, Errno> {
    let system = rustix::fs::fstatfs(descriptor)?;
    let page = rustix::param::page_size();
    match usize::try_from(system.f_bsize) {
        Ok(huge) if system.f_type == HUGETLBFS && huge.is_power_of_two() => Ok(huge.max(page)),
        _ => Ok(page),
    }
}

impl Windows {
    fn overlapping(&self, first: u64, last: u64) -> Option<u64> {
        let (begin, window) = self.windows.range(..=last).next_back()?;
        (window.last >= first).then_some(*begin)
    }

    /// The mapping of a file, of at least `offset + size` bytes.
    fn file(&mut self, descriptor: &OwnedFd, request: &DmaMap) -> Result<(FileId, Mapping), WindowError> {
        let failed = |step| move |source| WindowError::System { step, source };
        // Files in memory have seals, others do not. This asks Linux alone: fstat and fstatfs of another file may wait for the process
        // that is its file system.
        rustix::fs::fcntl_get_seals(descriptor).map_err(|_| WindowError::NoFile)?;
        let stat = rustix::fs::fstat(descriptor).map_err(failed("fstat"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(WindowError::NoFile);
        }
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        let offset = request.offset;
        let end = offset.saturating_add(request.size);
        if end > length {
            return Err(WindowError::BeyondFile { offset, end, length });
        }
        let mode = rustix::fs::fcntl_getfl(descriptor).map_err(failed("fcntl"))? & OFlags::RWMODE;
        let access = match mode {
            OFlags::RDWR => Access::ReadWrite,
            OFlags::RDONLY if !request.write => Access::ReadOnly,
            _ => return Err(WindowError::NotPermitted),
        };
        let id = (stat.st_dev, stat.st_ino);
        if let Some(known) = self.files.get(&id) {
            let suits = known.access() == access || access == Access::ReadOnly;
            if suits && !known.damaged() && known.length_bytes() as u64 >= end {
                return Ok((id, known.clone()));
            }
        }
        if self.uses.len() >= MAXIMUM_MAPPINGS {
            return Err(WindowError::TooManyFiles);
        }
        if self.mapped.saturating_add(length) > MAXIMUM_BYTES {
            return Err(WindowError::TooManyBytes { length, mapped: self.mapped });
        }
        let page = page_bytes(descriptor).map_err(failed("fstatfs"))?;
        let mapped = usize::try_from(length)
            .map_err(|_| WindowError::System { step: "mmap", source: Errno::NOMEM })?;
        let mapping = Mapping::shared(descriptor.as_fd(), mapped, access, page).map_err(|error| {
            let source = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
            WindowError::System { step: "mmap", source }
        })?;
        self.mapped += length;
        self.files.insert(id, mapping.clone());
        Ok((id, mapping))
    }

    fn remove(&mut self, first: u64) {
        let Some(Window { mapping, file, .. }) = self.windows.remove(&first) else { return };
        let key = mapping.key();
        let Some(uses) = self.uses.get_mut(&key) else { return };
        *uses -= 1;
        if *uses > 0 {
            return;
        }
        self.uses.remove(&key);
        self.mapped = self.mapped.saturating_sub(mapping.length_bytes() as u64);
        if self.files.get(&file).is_some_and(|newest| newest.key() == key) {
            self.files.remove(&file);
        }
    }

    /// The part of an access that lies in one window: the window, the offset in its mapping, and the length.
    fn part(&self, address: u64, length: usize, write: bool) -> Option<(&Window, u64, usize)> {
        let (first, window) = self.windows.range(..=address).next_back()?;
        let permitted = if write { window.write } else { window.read };
        if !permitted || address > window.last {
            return None;
        }
        let here = (window.last - address).saturating_add(1).min(length as u64);
        Some((window, window.offset + (address - first), here as usize))
    }

    /// Calls `copy` for each part of an access, in order, if all of it lies in windows.
    fn each(
        &mut self,
        address: u64,
        length: usize,
        write: bool,
        mut copy: impl FnMut(&Mapping, u64, std::ops::Range<usize>) -> bool,
    ) -> Result<(), BusError> {
        let moved = self.is_bus_master
            && length > 0
            && self.covers(address, length, write)
            && self.copy_parts(address, length, write, &mut copy);
        if moved {
            let bytes = length as u64;
            match write {
                true => self.traffic.bytes_written = self.traffic.bytes_written.wrapping_add(bytes),
                false => self.traffic.bytes_read = self.traffic.bytes_read.wrapping_add(bytes),
            }
            return Ok(());
        }
        self.traffic.refused += 1;
        Err(BusError)
    }

    fn covers(&self, address: u64, length: usize, write: bool) -> bool {
        let mut done = 0;
        while done < length {
            let Some(at) = address.checked_add(done as u64) else { return false };
            match self.part(at, length - done, write) {
                Some((window, ..)) if window.mapping.damaged() => return false,
                Some((_, _, here)) => done += here,
                None => return false,
            }
        }
        true
    }

    fn copy_parts(
        &self,
        address: u64,
        length: usize,
        write: bool,
        copy: &mut impl FnMut(&Mapping, u64, std::ops::Range<usize>) -> bool,
    ) -> bool {
        let mut done = 0;
        while done < length {
            let part = self.part(address.wrapping_add(done as u64), length - done, write);
            let Some((window, offset, here)) = part else { return false };
            if !copy(&window.mapping, offset, done..done + here) {
                return false;
            }
            done += here;
        }
        true
    }
}

impl Bus for Memory {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        let length = bytes.len();
        self.0.borrow_mut().each(address, length, false, |mapping, offset, place| {
            guarded([mapping], || mapping.read(offset, &mut bytes[place])).is_ok_and(|copied| copied.is_ok())
        })
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        // A completion comes after the data it stands for.
        fence(Ordering::Release);
        self.0.borrow_mut().each(address, bytes.len(), true, |mapping, offset, place| {
            guarded([mapping], || mapping.write(offset, &bytes[place])).is_ok_and(|copied| copied.is_ok())
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn only_huge_pages_are_larger_than_the_systems() {
        let made = |flags| rustix::fs::memfd_create("page", MemfdFlags::CLOEXEC | flags);
        assert_eq!(page_bytes(&made(MemfdFlags::empty()).unwrap()), Ok(rustix::param::page_size()));
        // A kernel without huge pages makes none.
        if let Ok(huge) = made(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            assert_eq!(page_bytes(&huge), Ok(2 << 20));
        }
    }
}
