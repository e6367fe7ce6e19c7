//! What a device address or a host address is: VRAM, registered host memory, or memory that the driver does not know.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::codes::{Code, INVALID_VALUE};

/// Marks addresses of VRAM. The CPU address without it is the fake's own; with it, a CPU that goes there faults.
pub(crate) const VRAM: u64 = 1 << 48;
/// Marks device addresses of registered host memory, which differ from the host's so that a mix-up shows.
pub(crate) const PINNED: u64 = 1 << 49;
/// User addresses of the CPU are below.
const CPU_LIMIT: u64 = 1 << 47;

/// Physical VRAM. It lives as long as a handle or a mapping of it.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) memory: OwnedFd,
    pub(crate) length: u64,
    pub(crate) is_exportable: bool,
    /// Imported memory is the exporter's: it does not count here.
    pub(crate) is_imported: bool,
}

#[derive(Debug)]
pub(crate) struct MappedVram {
    pub(crate) allocation: Arc<Allocation>,
    pub(crate) has_access: bool,
}

#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) length: u64,
    pub(crate) is_read_only: bool,
    /// Memory of `cuMemHostAlloc`, which is not unregistered but freed.
    pub(crate) is_allocated: bool,
}

#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) allocations: BTreeMap<u64, Arc<Allocation>>,
    pub(crate) last_handle: u64,
    /// Reserved ranges: first device address, length.
    pub(crate) reserved: BTreeMap<u64, u64>,
    pub(crate) mapped: BTreeMap<u64, MappedVram>,
    pub(crate) registered: BTreeMap<u64, Registered>,
}

/// Guards of the one address space.
#[derive(Clone, Copy)]
pub(crate) struct Lock(&'static RwLock<Space>);

static SPACE: RwLock<Space> = RwLock::new(Space {
    allocations: BTreeMap::new(),
    last_handle: 0,
    reserved: BTreeMap::new(),
    mapped: BTreeMap::new(),
    registered: BTreeMap::new(),
});

pub(crate) fn space() -> Lock {
    Lock(&SPACE)
}

impl Lock {
    /// While this guard lives, what it finds stays mapped and registered.
    pub(crate) fn read(self) -> RwLockReadGuard<'static, Space> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(self) -> RwLockWriteGuard<'static, Space> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Vram,
    Pinned,
    Pageable,
}

/// A range that an operation may touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) pointer: *mut u8,
    pub(crate) kind: Kind,
    /// Whether the address was a device address.
    pub(crate) by_device: bool,
}

impl Space {
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let mut seen: Vec<&Arc<Allocation>> = self.allocations.values().collect();
        seen.extend(self.mapped.values().map(|mapped| &mapped.allocation));
        seen.sort_by_key(|allocation| Arc::as_ptr(allocation));
        seen.dedup_by_key(|allocation| Arc::as_ptr(allocation));
        seen.iter().filter(|allocation| !allocation.is_imported).map(|allocation| allocation.length).sum()
    }

    /// Finds a whole range, for reading or for writing.
    pub(crate) fn find(&self, address: u64, length: u64, writes: bool) -> Result<Found, Code> {
        let end = address.checked_add(length).ok_or(INVALID_VALUE)?;
        if address & VRAM != 0 {
            return self.find_vram(address, end);
        }
        let by_device = address & PINNED != 0;
        let host = address & !PINNED;
        if host == 0 || host + length > CPU_LIMIT {
            return Err(INVALID_VALUE);
        }
        let pointer = host as *mut u8;
        match self.registered.range(..=host).next_back() {
            Some((start, known)) if host < start + known.length => {
                if host + length > start + known.length || (writes && known.is_read_only) {
                    return Err(INVALID_VALUE);
                }
                Ok(Found { pointer, kind: Kind::Pinned, by_device })
            }
            _ if by_device => Err(INVALID_VALUE),
            _ => Ok(Found { pointer, kind: Kind::Pageable, by_device }),
        }
    }

    /// The same for an address that the device itself uses.
    pub(crate) fn find_by_device(&self, address: u64, length: u64, writes: bool) -> Result<Found, Code> {
        let found = self.find(address, length, writes)?;
        if found.by_device { Ok(found) } else { Err(INVALID_VALUE) }
    }

    fn find_vram(&self, address: u64, end: u64) -> Result<Found, Code> {
        let mut covered = address;
        while covered < end.max(address + 1) {
            let (start, mapped) = self.mapped.range(..=covered).next_back().ok_or(INVALID_VALUE)?;
            let limit = start + mapped.allocation.length;
            if covered >= limit || !mapped.has_access {
                return Err(INVALID_VALUE);
            }
            covered = limit;
        }
        Ok(Found { pointer: (address & !VRAM) as *mut u8, kind: Kind::Vram, by_device: true })
    }
}
