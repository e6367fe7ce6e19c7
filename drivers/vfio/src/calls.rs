//! The ioctls of VFIO that drivers need. Layouts and constants are the kernel's, from `vfio-bindings`.
//!
//! A call that gives the device access to memory is not unsafe here: the kernel pins the pages, so they stay what they are until they are
//! unmapped for the device, whatever becomes of this process's mapping of them (invariant V).

#![expect(unsafe_code, reason = "ioctls: invariant V")]

use std::ffi::{CString, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_BASE, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE,
    VFIO_GROUP_FLAGS_VIABLE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_REQ_IRQ_INDEX,
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_TYPE, VFIO_TYPE1v2_IOMMU, vfio_device_info, vfio_group_status,
    vfio_iommu_type1_dma_map, vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info, vfio_region_info,
};

use crate::domain::Range;

/// The number of a call, made as the kernel's `_IO` makes it.
const fn call(number: u32) -> c_ulong {
    (VFIO_TYPE as c_ulong) << 8 | (VFIO_BASE + number) as c_ulong
}

const GET_API_VERSION: c_ulong = call(0);
const CHECK_EXTENSION: c_ulong = call(1);
const SET_IOMMU: c_ulong = call(2);
const GROUP_GET_STATUS: c_ulong = call(3);
const GROUP_SET_CONTAINER: c_ulong = call(4);
const GROUP_GET_DEVICE: c_ulong = call(6);
const DEVICE_GET_INFO: c_ulong = call(7);
const DEVICE_GET_REGION_INFO: c_ulong = call(8);
const DEVICE_SET_IRQS: c_ulong = call(10);
const DEVICE_RESET: c_ulong = call(11);
const IOMMU_GET_INFO: c_ulong = call(12);
const IOMMU_MAP_DMA: c_ulong = call(13);
const IOMMU_UNMAP_DMA: c_ulong = call(14);

/// Longest list of ranges that is asked for: far above what a kernel gives.
const MOST_INFO_BYTES: u32 = 1 << 16;

/// A region of the device in its file.
pub(crate) struct Region {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) can_be_mapped: bool,
}

fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// A call whose argument is a number.
fn with_number(file: BorrowedFd<'_>, request: c_ulong, number: c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: none of the calls that this file makes so takes a pointer.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request as _, number) })
}

/// A call whose argument is a structure that begins with its own size, which the kernel reads and may write.
///
/// # Safety
/// `S` is the structure of `request` and valid for any bytes. `argument.argsz` is at most its size.
unsafe fn with_structure<S>(
    file: BorrowedFd<'_>,
    request: c_ulong,
    argument: &mut S,
) -> io::Result<libc::c_int> {
    // SAFETY: the caller's promise: the kernel accesses no more than `argsz` bytes of it.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(argument)) })
}

pub(crate) fn has_type1(container: BorrowedFd<'_>) -> io::Result<bool> {
    let version = with_number(container, GET_API_VERSION, 0)?;
    let has = with_number(container, CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU.into())?;
    Ok(version == VFIO_API_VERSION as libc::c_int && has > 0)
}

pub(crate) fn set_type1(container: BorrowedFd<'_>) -> io::Result<()> {
    with_number(container, SET_IOMMU, VFIO_TYPE1v2_IOMMU.into()).map(drop)
}

pub(crate) fn is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = vfio_group_status { argsz: size_of::<vfio_group_status>() as u32, flags: 0 };
    // SAFETY: the call's structure, with its size.
    unsafe { with_structure(group, GROUP_GET_STATUS, &mut status) }?;
    Ok(status.flags & VFIO_GROUP_FLAGS_VIABLE != 0)
}

pub(crate) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let number = container.as_raw_fd();
    // SAFETY: the call reads one descriptor's number.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER as _, &raw const number) }).map(drop)
}

pub(crate) fn device(group: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: the call reads the name up to its end.
    let number = check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE as _, name.as_ptr()) })?;
    // SAFETY: the call has made a descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Resets the device. Returns whether it has a reset of its own.
pub(crate) fn reset(device: BorrowedFd<'_>) -> io::Result<bool> {
    let argsz = size_of::<vfio_device_info>() as u32;
    let mut info = vfio_device_info { argsz, ..vfio_device_info::default() };
    // SAFETY: the call's structure, with its size.
    unsafe { with_structure(device, DEVICE_GET_INFO, &mut info) }?;
    if info.flags & VFIO_DEVICE_FLAGS_RESET == 0 {
        return Ok(false);
    }
    with_number(device, DEVICE_RESET, 0).map(|_| true)
}

/// Ends the process at once, which takes all memory from its device; without an image of its memory, in which that of others may be.
pub fn end_process() -> ! {
    // SAFETY: the call takes no pointer. Nothing of this process is run any more.
    unsafe { libc::_exit(1) }
}

pub(crate) fn region(device: BorrowedFd<'_>, index: u32) -> io::Result<Region> {
    let argsz = size_of::<vfio_region_info>() as u32;
    let mut info = vfio_region_info { argsz, index, ..vfio_region_info::default() };
    // SAFETY: the call's structure, with its size.
    unsafe { with_structure(device, DEVICE_GET_REGION_INFO, &mut info) }?;
    let can_be_mapped = info.flags & VFIO_REGION_INFO_FLAG_MMAP != 0;
    Ok(Region { offset: info.offset, bytes: info.size, can_be_mapped })
}

/// Has the kernel's requests to release the device counted by an eventfd.
pub(crate) fn notify_requests(device: BorrowedFd<'_>, eventfd: BorrowedFd<'_>) -> io::Result<()> {
    // Size, flags, index, first, count, then the eventfd's number.
    let mut set = [
        24,
        VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
        VFIO_PCI_REQ_IRQ_INDEX,
        0,
        1,
        eventfd.as_raw_fd().cast_unsigned(),
    ];
    // SAFETY: `vfio_irq_set` with one descriptor as its data, 24 bytes.
    unsafe { with_structure(device, DEVICE_SET_IRQS, &mut set) }.map(drop)
}

/// The addresses that the IOMMU maps, and its page sizes as bits.
pub(crate) fn iommu(container: BorrowedFd<'_>) -> io::Result<(Vec<Range>, u64)> {
    let least = size_of::<vfio_iommu_type1_info>() as u32;
    let mut wanted = least;
    loop {
        let mut buffer = vec![0_u64; wanted.div_ceil(8) as usize];
        // Little-endian as all machines with this device: the size comes first.
        buffer[0] = u64::from(wanted);
        // SAFETY: the buffer has `argsz` bytes and is aligned for the structure at its start.
        check(unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_GET_INFO as _, buffer.as_mut_ptr()) })?;
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let needed = word(&bytes, 0).unwrap_or(least);
        match larger(needed, wanted)? {
            Some(needed) => wanted = needed,
            None => return Ok((ranges(&bytes), long(&bytes, 8).unwrap_or(0))),
        }
    }
}

/// The bytes to ask with next if the kernel needs more than were `wanted`.
fn larger(needed: u32, wanted: u32) -> io::Result<Option<u32>> {
    if needed > MOST_INFO_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((needed > wanted).then_some(needed))
}

/// The ranges in what `IOMMU_GET_INFO` wrote; of a kernel that says none, those that every IOMMU of such machines has.
fn ranges(info: &[u8]) -> Vec<Range> {
    let default = || {
        // From 3.8 to 4 GiB interrupts are written to.
        vec![Range { first: 0, last: 0xEFFF_FFFF }, Range { first: 1 << 32, last: (1 << 39) - 1 }]
    };
    if word(info, 4).unwrap_or(0) & VFIO_IOMMU_INFO_CAPS == 0 {
        return default();
    }
    // A chain: id (16 bits) and version, offset of the next one, contents. It is no longer than the buffer.
    let mut at = word(info, 16).unwrap_or(0) as usize;
    for _ in 0..info.len() / 8 {
        let (Some(head), Some(next)) = (word(info, at), word(info, at.saturating_add(4))) else { break };
        if at == 0 {
            break;
        }
        if head & 0xFFFF == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
            let count = word(info, at + 8).unwrap_or(0) as usize;
            let found = (0..count).map_while(|index| {
                let first = long(info, at + 16 + 16 * index)?;
                let last = long(info, at + 24 + 16 * index)?;
                Some(Range { first, last })
            });
            return found.collect();
        }
        at = next as usize;
    }
    default()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

pub(crate) fn map_dma(
    container: BorrowedFd<'_>,
    (start, size): (*mut u8, u64),
    iova: u64,
    is_writable: bool,
) -> io::Result<()> {
    let write = if is_writable { VFIO_DMA_MAP_FLAG_WRITE } else { 0 };
    let mut map = vfio_iommu_type1_dma_map {
        argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
        flags: VFIO_DMA_MAP_FLAG_READ | write,
        vaddr: start.expose_provenance() as u64,
        iova,
        size,
    };
    // SAFETY: the call's structure, with its size. The caller gives whole pages of shared memory (V), which the call pins.
    unsafe { with_structure(container, IOMMU_MAP_DMA, &mut map) }.map(drop)
}

/// Returns how many bytes were unmapped.
pub(crate) fn unmap_dma(container: BorrowedFd<'_>, iova: u64, size: u64) -> io::Result<u64> {
    let argsz = size_of::<vfio_iommu_type1_dma_unmap>() as u32;
    let mut unmap = vfio_iommu_type1_dma_unmap { argsz, flags: 0, iova, size, ..Default::default() };
    // SAFETY: the call's structure, with its size.
    unsafe { with_structure(container, IOMMU_UNMAP_DMA, &mut unmap) }?;
    Ok(unmap.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel writes: the fixed part with flags and the first capability's offset, then capabilities as words.
    fn info(flags: u32, first: u32, rest: &[u32]) -> Vec<u8> {
        let fixed = [24 + 4 * rest.len() as u32, flags, 0x1000, 0, first, 0];
        fixed.iter().chain(rest).flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn calls_have_the_kernels_numbers() {
        assert_eq!((DEVICE_GET_INFO, DEVICE_RESET), (0x3B6B, 0x3B6F));
        assert_eq!((GET_API_VERSION, DEVICE_SET_IRQS, IOMMU_UNMAP_DMA), (0x3B64, 0x3B6E, 0x3B72));
    }

    #[test]
    fn ranges_are_found_in_the_chain() {
        let chain =
            [0x1_0002, 32, 1 << 16 | 1, 0, 2, 0, 0, 0, 0xFEDF_FFFF, 0, 0xFEF0_0000, 0, u32::MAX, 0x7F];
        let found = ranges(&info(VFIO_IOMMU_INFO_CAPS, 24, &chain));
        let range = |first, last| Range { first, last };
        assert_eq!(found, [range(0, 0xFEDF_FFFF), range(0xFEF0_0000, (1 << 39) - 1)]);
    }

    #[test]
    fn a_kernel_that_needs_more_is_asked_again() {
        assert_eq!((larger(0, 24).unwrap(), larger(24, 24).unwrap()), (None, None));
        assert_eq!(larger(25, 24).unwrap(), Some(25));
        assert_eq!(larger(MOST_INFO_BYTES, 24).unwrap(), Some(MOST_INFO_BYTES));
        assert_eq!(larger(MOST_INFO_BYTES + 1, 24).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn broken_chains_end() {
        let default = ranges(&info(0, 24, &[]));
        assert_eq!(default.len(), 2);
        let loops = [0x1_0002, 24];
        assert_eq!(ranges(&info(VFIO_IOMMU_INFO_CAPS, 24, &loops)), default);
        for first in [0, 20, 4000, u32::MAX, u32::MAX - 4] {
            assert_eq!(ranges(&info(VFIO_IOMMU_INFO_CAPS, first, &[2])), default);
        }
        let cut = [1 << 16 | 1, 0, u32::MAX, 0, 1, 0, 2];
        assert_eq!(ranges(&info(VFIO_IOMMU_INFO_CAPS, 24, &cut)), []);
        assert_eq!(ranges(&[]), default);
    }
}
