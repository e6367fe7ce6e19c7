//! VFIO of Linux: `/dev/vfio`, and the device's folder of sysfs.
//!
//! ```text
//! /dev/vfio/vfio ─► container ◄─ group ◄─ /dev/vfio/NUMBER
//!       │              └─► device ─► BARs (mapped), configuration space, eventfd of requests to release it
//!       └─► MAP_DMA, UNMAP_DMA
//! ```
//!
//! The steps come in this order; one that comes before what it needs is an error. Dropping the value takes all back.

use std::fs::{self, File};
use std::io;
use std::ops;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use memferry_clock::Instant;
use memferry_shm::mapping::{Access, Mapping};
use rustix::event::EventfdFlags;
use rustix::process::Resource;
use rustix::time::ClockId;
use vfio_bindings::bindings::vfio::{VFIO_PCI_BAR5_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX};

use crate::address::PciAddress;
use crate::bar::MappedBar;
use crate::calls;
use crate::config::Configuration;
use crate::domain::{Bar, Domain, Range, whole_pages};

/// A device that is being opened, or is open.
#[derive(Debug, Default)]
pub struct Linux {
    container: Option<Arc<OwnedFd>>,
    group: Option<OwnedFd>,
    device: Option<File>,
    /// Counts requests of the kernel to release the device.
    requests: Option<OwnedFd>,
}

impl Linux {
    pub fn new() -> Self {
        Self::default()
    }

    fn container(&self) -> io::Result<&Arc<OwnedFd>> {
        self.container.as_ref().ok_or_else(not_open)
    }

    fn group(&self) -> io::Result<&OwnedFd> {
        self.group.as_ref().ok_or_else(not_open)
    }

    fn device(&self) -> io::Result<&File> {
        self.device.as_ref().ok_or_else(not_open)
    }

    /// Configuration space of the open device.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn configuration(&self) -> io::Result<Configuration> {
        let device = self.device()?;
        let region = calls::region(device.as_fd(), VFIO_PCI_CONFIG_REGION_INDEX)?;
        Configuration::new(device, region.offset)
    }

    /// Reads a file in the device's folder of sysfs, without white space at its ends.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn attribute(&self, device: PciAddress, name: &str) -> io::Result<String> {
        Ok(fs::read_to_string(folder(device).join(name))?.trim().to_owned())
    }

    /// The last part of what a link in that folder leads to.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn link(&self, device: PciAddress, name: &str) -> io::Result<String> {
        last_part(folder(device).join(name))
    }

    /// The PCI devices of the device's group, with the driver of each.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn group_members(&self, device: PciAddress) -> io::Result<Vec<(String, Option<String>)>> {
        let entries = fs::read_dir(folder(device).join("iommu_group/devices"))?;
        let names = entries.filter_map(|entry| Some((entry.as_ref().ok()?.path(), entry.ok()?.file_name())));
        Ok(names
            .map(|(path, name)| (name.to_string_lossy().into_owned(), last_part(path.join("driver")).ok()))
            .collect())
    }

    /// Opens `/dev/vfio/vfio`.
    ///
    /// # Errors
    /// Those of the call.
    pub fn open_container(&mut self) -> io::Result<()> {
        self.container = Some(Arc::new(open("/dev/vfio/vfio")?));
        Ok(())
    }

    /// Whether the container knows type 1, version 2.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn has_type1(&mut self) -> io::Result<bool> {
        calls::has_type1(self.container()?.as_fd())
    }

    /// Opens `/dev/vfio/NUMBER`.
    ///
    /// # Errors
    /// Those of the call.
    pub fn open_group(&mut self, number: &str) -> io::Result<()> {
        self.group = Some(open(&format!("/dev/vfio/{number}"))?);
        Ok(())
    }

    /// Whether all devices of the group are bound to VFIO's drivers, or to none.
    ///
    /// # Errors
    /// Those of the call.
    pub fn is_viable(&mut self) -> io::Result<bool> {
        calls::is_viable(self.group()?.as_fd())
    }

    /// Puts the group into the container, and gives that an IOMMU of type 1.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn attach(&mut self) -> io::Result<()> {
        let container = self.container()?;
        calls::set_container(self.group()?.as_fd(), container.as_fd())?;
        calls::set_type1(container.as_fd())
    }

    /// Opens the device.
    ///
    /// # Errors
    /// Those of the call.
    pub fn open_device(&mut self, device: PciAddress) -> io::Result<()> {
        self.device = Some(calls::device(self.group()?.as_fd(), &device.to_string())?.into());
        Ok(())
    }

    /// Resets the device. Returns whether it has a reset of its own; without one it goes on with what another program began.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn reset(&mut self) -> io::Result<bool> {
        calls::reset(self.device()?.as_fd())
    }

    /// The BAR of a number.
    ///
    /// # Errors
    /// Those of the call, and for a number that no BAR has.
    pub fn bar(&self, number: u32) -> io::Result<Bar> {
        let region = self.region(number)?;
        Ok(Bar { bytes: region.bytes, can_be_mapped: region.can_be_mapped })
    }

    fn region(&self, number: u32) -> io::Result<calls::Region> {
        let device = self.device()?;
        // The indices of VFIO's regions are those of the BARs, and go on with others.
        if number > VFIO_PCI_BAR5_REGION_INDEX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no BAR has this number"));
        }
        calls::region(device.as_fd(), number)
    }

    /// The device's file, and where a BAR begins in it, for mappings of parts.
    ///
    /// # Errors
    /// As for [`bar`](Self::bar).
    pub fn place(&self, number: u32) -> io::Result<(&File, u64)> {
        let region = self.region(number)?;
        Ok((self.device()?, region.offset))
    }

    /// Maps a whole BAR.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn map_bar(&self, number: u32) -> io::Result<MappedBar> {
        let region = self.region(number)?;
        MappedBar::map(self.device()?, region.offset, region.bytes)
    }

    /// What the device will reach.
    ///
    /// # Errors
    /// Those of the call, and if the IOMMU's pages are not the processor's.
    pub fn domain(&self) -> io::Result<Type1> {
        let container = Arc::clone(self.container()?);
        let (ranges, page_sizes) = calls::iommu(container.as_fd())?;
        let processor = rustix::param::page_size() as u64;
        let large_enough = page_sizes & !(processor - 1);
        // Of those sizes, mappings are made of the smallest one.
        let page_bytes = large_enough & large_enough.wrapping_neg();
        if page_bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the IOMMU has no page of the processor's size",
            ));
        }
        Ok(Type1 { container, ranges, page_bytes })
    }

    /// Lets the registers be accessed. The device accesses no memory yet.
    ///
    /// # Errors
    /// Those of the accesses to configuration space.
    pub fn enable_registers(&mut self) -> io::Result<()> {
        self.configuration()?.enable_registers()
    }

    /// Lets the device access memory, with its writes in order.
    ///
    /// # Errors
    /// Those of the accesses to configuration space.
    pub fn enable_master(&mut self) -> io::Result<()> {
        self.configuration()?.enable_master()
    }

    /// Has [`is_wanted_back`](Self::is_wanted_back) learn what the kernel wants.
    ///
    /// # Errors
    /// Those of the calls. The kernel then waits for the end of this process, which does not learn of it.
    pub fn watch_requests(&mut self) -> io::Result<()> {
        let requests = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        calls::notify_requests(self.device()?.as_fd(), requests.as_fd())?;
        self.requests = Some(requests);
        Ok(())
    }

    /// Whether the kernel wants the device back: it is being removed, or given to another driver.
    pub fn is_wanted_back(&mut self) -> bool {
        let mut count = [0; 8];
        self.requests.as_ref().is_some_and(|requests| rustix::io::read(requests, &mut count).is_ok())
    }

    /// Bytes that the process may lock, for messages; `None` if there is no limit.
    pub fn lock_limit(&self) -> Option<u64> {
        rustix::process::getrlimit(Resource::Memlock).current
    }
}

/// The time of a device's driver: that of `CLOCK_MONOTONIC`.
pub fn monotonic() -> Instant {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    Instant::from_nanoseconds(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

/// A step came before the one that it needs.
fn not_open() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "it is not open")
}

fn folder(device: PciAddress) -> PathBuf {
    PathBuf::from(format!("/sys/bus/pci/devices/{device}"))
}

/// The last part of what a link leads to.
fn last_part(link: PathBuf) -> io::Result<String> {
    let target = fs::read_link(link)?;
    let name = target.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn open(path: &str) -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open(path)?.into())
}

/// An IOMMU of VFIO's type 1.
#[derive(Debug)]
pub struct Type1 {
    container: Arc<OwnedFd>,
    ranges: Vec<Range>,
    page_bytes: u64,
}

impl Domain for Type1 {
    fn ranges(&self) -> Vec<Range> {
        self.ranges.clone()
    }

    fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    fn map(&self, iova: u64, memory: &Mapping, piece: ops::Range<u64>) -> io::Result<()> {
        // Whole pages become the device's: they must have nothing else in them.
        let has_own_pages =
            memory.has_own_pages() && (memory.page_bytes() as u64).is_multiple_of(self.page_bytes);
        let is_aligned = (memory.pointer().addr() as u64).is_multiple_of(self.page_bytes);
        if !has_own_pages || !is_aligned || memory.is_elsewhere() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory has no pages of its own"));
        }
        let is_writable = memory.access() == Access::ReadWrite;
        let is_inside = piece.start < piece.end
            && piece.end <= whole_pages(memory, self.page_bytes)
            && [piece.start, piece.end].iter().all(|end| end.is_multiple_of(self.page_bytes));
        let last = iova.checked_add(piece.end.saturating_sub(1));
        if !is_inside || last.is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory has no such pages"));
        }
        let start = memory.pointer().wrapping_add(piece.start as usize);
        let bytes = piece.end - piece.start;
        calls::map_dma(self.container.as_fd(), (start, bytes), iova + piece.start, is_writable)
    }

    fn unmap(&self, iova: u64, _: &Mapping, bytes: u64) -> io::Result<()> {
        let unmapped = calls::unmap_dma(self.container.as_fd(), iova, bytes)?;
        if unmapped == bytes {
            return Ok(());
        }
        Err(io::Error::other(format!("{unmapped} of {bytes} bytes were unmapped")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_in_a_wrong_order_are_errors() {
        let mut linux = Linux::new();
        assert_eq!(linux.has_type1().unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(linux.is_viable().unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(linux.bar(0).unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert!(!linux.is_wanted_back());
        assert!(monotonic() > Instant::ORIGIN && monotonic() <= monotonic());
    }

    #[test]
    fn calls_on_other_files_are_refused() {
        let other = || Some(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let mut linux = Linux {
            container: other().map(Arc::new),
            group: other(),
            device: other().map(File::from),
            requests: None,
        };
        let device: PciAddress = "0000:00:04.0".parse().unwrap();
        assert!(linux.has_type1().is_err() && linux.is_viable().is_err() && linux.attach().is_err());
        assert!(linux.open_device(device).is_err() && linux.bar(0).is_err() && linux.reset().is_err());
        assert!(linux.enable_registers().is_err() && linux.enable_master().is_err());
        assert!(linux.watch_requests().is_err());
        assert!(linux.map_bar(0).is_err() && linux.place(2).is_err() && linux.domain().is_err());
        assert_eq!(linux.bar(6).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn memory_without_pages_of_its_own_is_refused() {
        let container = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let domain = Type1 { container, ranges: Vec::new(), page_bytes: 4096 };
        for memory in [Mapping::owned(vec![0; 3 << 12]), Mapping::elsewhere(1 << 30, 4096).unwrap()] {
            assert_eq!(domain.map(4096, &memory, 0..4096).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let (_, memory) = memferry_shm::frame::allocate_half(4096).unwrap();
        assert_eq!(domain.map(4096, &memory, 0..4096).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        for outside in [0..8192, 4096..8192, 0..0, 0..1, 1..4096] {
            assert_eq!(domain.map(4096, &memory, outside).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let error = domain.map(u64::MAX - 4095 + 4095, &memory, 0..4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "it would end behind the last address");
        assert!(domain.unmap(4096, &memory, 4096).is_err());
    }
}
