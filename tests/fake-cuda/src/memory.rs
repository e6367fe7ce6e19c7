//! Memory: physical VRAM and address ranges for it, and host memory that is registered or allocated.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::codes::{
    ALREADY_REGISTERED, Code, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_PERMITTED, NOT_REGISTERED,
    OPERATING_SYSTEM, OUT_OF_MEMORY,
};
use crate::context::{call_in_context, put};
use crate::faults::{before_registering, faults};
use crate::space::{Allocation, MappedVram, PINNED, Registered, VRAM, space};

/// Of physical allocations and of their addresses, as on today's GPUs.
const GRANULARITY: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// What fresh VRAM contains: something, because the driver promises nothing.
const GARBAGE: u8 = 0xa5;

const PINNED_TYPE: u32 = 1;
const DEVICE_LOCATION: u32 = 1;
const POSIX_DESCRIPTOR: u32 = 1;
const READ_WRITE: u32 = 3;
/// Flags of `cuMemHostRegister`: portable, device map, read only.
const REGISTER_FLAGS: u32 = 0x01 | 0x02 | REGISTER_READ_ONLY;
const REGISTER_READ_ONLY: u32 = 0x08;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProperties {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
    windows: u64,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescription {
    location_kind: u32,
    location: i32,
    access: u32,
}

const _: () = assert!(size_of::<AllocationProperties>() == 32 && size_of::<AccessDescription>() == 12);

impl AllocationProperties {
    fn check(&self) -> Result<(), Code> {
        let is_known = self.kind == PINNED_TYPE
            && self.location_kind == DEVICE_LOCATION
            && self.handle_types <= POSIX_DESCRIPTOR
            && self.windows == 0
            && self.flags == [0; 8];
        match () {
            () if !is_known => Err(INVALID_VALUE),
            () if self.location != 0 => Err(INVALID_DEVICE),
            () => Ok(()),
        }
    }
}

fn is_whole(length: u64) -> bool {
    length != 0 && length.is_multiple_of(GRANULARITY)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAllocationGranularity(
    granularity: Option<&mut usize>,
    properties: Option<&AllocationProperties>,
    option: u32,
) -> Code {
    call_in_context("cuMemGetAllocationGranularity", || {
        properties.ok_or(INVALID_VALUE)?.check()?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        put(granularity, GRANULARITY as usize)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemCreate(
    handle: Option<&mut u64>,
    length: usize,
    properties: Option<&AllocationProperties>,
    flags: u64,
) -> Code {
    call_in_context("cuMemCreate", || {
        let properties = properties.ok_or(INVALID_VALUE)?;
        properties.check()?;
        let length = length as u64;
        if flags != 0 || !is_whole(length) {
            return Err(INVALID_VALUE);
        }
        let limit = faults().memory_bytes;
        let mut space = space().write();
        if space.allocated_bytes().saturating_add(length) > limit {
            return Err(OUT_OF_MEMORY);
        }
        let memory = fresh_memory(length).ok_or(OUT_OF_MEMORY)?;
        let is_exportable = properties.handle_types == POSIX_DESCRIPTOR;
        let allocation = Arc::new(Allocation { memory, length, is_exportable, is_imported: false });
        space.last_handle += 1;
        let number = space.last_handle;
        space.allocations.insert(number, allocation);
        put(handle, number)
    })
}

fn fresh_memory(length: u64) -> Option<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is nobody else's.
    let memory = unsafe {
        let descriptor = libc::memfd_create(c"vram".as_ptr(), libc::MFD_CLOEXEC);
        (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor))?
    };
    let file = std::fs::File::from(memory);
    file.set_len(length).ok()?;
    let garbage = vec![GARBAGE; GRANULARITY as usize];
    for offset in (0..length).step_by(GRANULARITY as usize) {
        std::os::unix::fs::FileExt::write_all_at(&file, &garbage, offset).ok()?;
    }
    Some(file.into())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemRelease(handle: u64) -> Code {
    call_in_context("cuMemRelease", || {
        space().write().allocations.remove(&handle).map(|_| ()).ok_or(INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemExportToShareableHandle(
    shared: Option<&mut RawFd>,
    handle: u64,
    kind: u32,
    flags: u64,
) -> Code {
    call_in_context("cuMemExportToShareableHandle", || {
        let space = space().read();
        let allocation = space.allocations.get(&handle).ok_or(INVALID_VALUE)?;
        if kind != POSIX_DESCRIPTOR || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if !allocation.is_exportable {
            return Err(NOT_PERMITTED);
        }
        // SAFETY: a plain system call. The copy is inherited by programs that this process starts: CUDA does not promise otherwise.
        let copy = unsafe { libc::dup(allocation.memory.as_raw_fd()) };
        if copy < 0 {
            return Err(OPERATING_SYSTEM);
        }
        put(shared, copy)
    })
}

/// The descriptor is the caller's and stays open. As in CUDA it is passed in the place of a pointer.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemImportFromShareableHandle(
    handle: Option<&mut u64>,
    shared: usize,
    kind: u32,
) -> Code {
    call_in_context("cuMemImportFromShareableHandle", || {
        let descriptor = RawFd::try_from(shared).map_err(|_| INVALID_VALUE)?;
        // SAFETY: a plain system call, which refuses a number that is not open.
        if kind != POSIX_DESCRIPTOR || unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: it is open, and its owner is in this call.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let memory = borrowed.try_clone_to_owned().map_err(|_| OPERATING_SYSTEM)?;
        let file = std::fs::File::from(memory);
        let length = file.metadata().map_err(|_| INVALID_VALUE)?.len();
        if !is_whole(length) {
            return Err(INVALID_HANDLE);
        }
        let allocation =
            Arc::new(Allocation { memory: file.into(), length, is_exportable: true, is_imported: true });
        let mut space = space().write();
        space.last_handle += 1;
        let number = space.last_handle;
        space.allocations.insert(number, allocation);
        put(handle, number)
    })
}

/// Replaces pages of a reserved range.
fn map(address: u64, length: u64, memory: Option<&OwnedFd>) -> Result<(), Code> {
    let pointer = (address & !VRAM) as *mut c_void;
    let (protection, flags, descriptor) = match memory {
        Some(memory) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, memory.as_raw_fd()),
        None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
    };
    // SAFETY: the range is one that this library reserved; the lock on the table keeps streams from it.
    let mapped =
        unsafe { libc::mmap(pointer, length as usize, protection, flags | libc::MAP_FIXED, descriptor, 0) };
    if mapped == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAddressReserve(
    address: Option<&mut u64>,
    length: usize,
    alignment: usize,
    hint: u64,
    flags: u64,
) -> Code {
    call_in_context("cuMemAddressReserve", || {
        let length = length as u64;
        let is_aligned = alignment as u64 <= GRANULARITY && (alignment == 0 || alignment.is_power_of_two());
        if !is_whole(length) || !is_aligned || hint != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let wide = length.checked_add(GRANULARITY).ok_or(OUT_OF_MEMORY)? as usize;
        // SAFETY: new pages that nothing else uses. Those around the aligned part stay reserved: there are enough.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), wide, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let reserved = (base as u64).next_multiple_of(GRANULARITY) | VRAM;
        space().write().reserved.insert(reserved, length);
        put(address, reserved)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAddressFree(address: u64, length: usize) -> Code {
    call_in_context("cuMemAddressFree", || {
        let mut space = space().write();
        let end = address.saturating_add(length as u64);
        let is_used = space.mapped.range(address..end).next().is_some();
        if space.reserved.get(&address) != Some(&(length as u64)) || is_used {
            return Err(INVALID_VALUE);
        }
        space.reserved.remove(&address);
        // SAFETY: the range was reserved by this library, and nothing is mapped there any more.
        unsafe { libc::munmap((address & !VRAM) as *mut c_void, length) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemMap(
    address: u64,
    length: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Code {
    call_in_context("cuMemMap", || {
        let length = length as u64;
        let mut space = space().write();
        let allocation = Arc::clone(space.allocations.get(&handle).ok_or(INVALID_VALUE)?);
        let end = address.checked_add(length).ok_or(INVALID_VALUE)?;
        let is_reserved = space.reserved.range(..=address).next_back();
        let is_reserved = is_reserved.is_some_and(|(start, reserved)| end <= start + reserved);
        let is_used = space
            .mapped
            .range(..end)
            .next_back()
            .is_some_and(|(start, mapped)| start + mapped.allocation.length > address);
        // CUDA maps whole allocations only.
        if flags != 0 || offset != 0 || length != allocation.length || !is_reserved || is_used {
            return Err(INVALID_VALUE);
        }
        if !address.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        space.mapped.insert(address, MappedVram { allocation, has_access: false });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemSetAccess(
    address: u64,
    length: usize,
    descriptions: Option<&AccessDescription>,
    count: usize,
) -> Code {
    call_in_context("cuMemSetAccess", || {
        let description = descriptions.ok_or(INVALID_VALUE)?;
        let is_known = description.location_kind == DEVICE_LOCATION && description.location == 0;
        if count != 1 || !is_known || description.access != READ_WRITE {
            return Err(INVALID_VALUE);
        }
        let mut space = space().write();
        let mapped = space.mapped.get_mut(&address).ok_or(INVALID_VALUE)?;
        if mapped.allocation.length != length as u64 {
            return Err(INVALID_VALUE);
        }
        map(address, length as u64, Some(&mapped.allocation.memory))?;
        mapped.has_access = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemUnmap(address: u64, length: usize) -> Code {
    call_in_context("cuMemUnmap", || {
        let mut space = space().write();
        if space.mapped.get(&address).is_none_or(|mapped| mapped.allocation.length != length as u64) {
            return Err(INVALID_VALUE);
        }
        space.mapped.remove(&address);
        map(address, length as u64, None)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostRegister_v2(address: u64, length: usize, flags: u32) -> Code {
    call_in_context("cuMemHostRegister", || {
        before_registering();
        let length = length as u64;
        if address == 0 || length == 0 || flags & !REGISTER_FLAGS != 0 || address & (VRAM | PINNED) != 0 {
            return Err(INVALID_VALUE);
        }
        let last = address.checked_add(length - 1).ok_or(INVALID_VALUE)?;
        let start = address & !(PAGE - 1);
        let end = last & !(PAGE - 1);
        let area = host_area(start, end + PAGE).ok_or(INVALID_VALUE)?;
        let is_read_only = flags & REGISTER_READ_ONLY != 0;
        if !area.is_writable && !is_read_only {
            return Err(INVALID_VALUE);
        }
        if area.is_shared_memfd && faults().refuses_memfds {
            return Err(NOT_PERMITTED);
        }
        let mut space = space().write();
        let before = space.registered.range(..=last).next_back();
        if before.is_some_and(|(start, known)| start + known.length > address) {
            return Err(ALREADY_REGISTERED);
        }
        space.registered.insert(address, Registered { length, is_read_only, is_allocated: false });
        Ok(())
    })
}

/// What the kernel knows about a mapped host range.
struct HostArea {
    is_writable: bool,
    is_shared_memfd: bool,
}

/// `None`: some page of it is not mapped.
fn host_area(start: u64, end: u64) -> Option<HostArea> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut area = HostArea { is_writable: true, is_shared_memfd: false };
    let mut covered = start;
    for line in maps.lines() {
        let (first, rest) = line.split_once('-')?;
        let (last, rest) = rest.split_once(' ')?;
        let first = u64::from_str_radix(first, 16).ok()?;
        let last = u64::from_str_radix(last, 16).ok()?;
        if last <= covered {
            continue;
        }
        if first > covered || !rest.starts_with('r') {
            return None;
        }
        area.is_writable &= rest.as_bytes().get(1) == Some(&b'w');
        area.is_shared_memfd |= rest.as_bytes().get(3) == Some(&b's') && rest.contains("/memfd:");
        covered = last;
        if covered >= end {
            return Some(area);
        }
    }
    None
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostUnregister(address: u64) -> Code {
    call_in_context("cuMemHostUnregister", || {
        let mut space = space().write();
        if space.registered.get(&address).is_none_or(|known| known.is_allocated) {
            return Err(NOT_REGISTERED);
        }
        space.registered.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostGetDevicePointer_v2(
    device: Option<&mut u64>,
    address: u64,
    flags: u32,
) -> Code {
    call_in_context("cuMemHostGetDevicePointer", || {
        let space = space().read();
        let known = space.registered.range(..=address).next_back();
        let is_known = known.is_some_and(|(start, known)| address < start + known.length);
        if flags != 0 || !is_known {
            return Err(INVALID_VALUE);
        }
        put(device, address | PINNED)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostAlloc(address: Option<&mut u64>, length: usize, flags: u32) -> Code {
    call_in_context("cuMemHostAlloc", || {
        if length == 0 || flags & !0x07 != 0 {
            return Err(INVALID_VALUE);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new pages that nothing else uses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let known = Registered { length: length as u64, is_read_only: false, is_allocated: true };
        space().write().registered.insert(base as u64, known);
        put(address, base as u64)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFreeHost(address: u64) -> Code {
    call_in_context("cuMemFreeHost", || {
        let mut space = space().write();
        if space.registered.get(&address).is_none_or(|known| !known.is_allocated) {
            return Err(INVALID_VALUE);
        }
        let known = space.registered.remove(&address).ok_or(INVALID_VALUE)?;
        // SAFETY: the pages of `cuMemHostAlloc`; streams find them no more.
        unsafe { libc::munmap(address as *mut c_void, known.length as usize) };
        Ok(())
    })
}
