//! A safe interface to the Linux module's device, `/dev/memferry`.
//!
//! ```text
//! ModuleDevice::open ─ register(Mapping) ─► ModuleMemory: pinned; the last clone unregisters
//!                    ─ submit(Order) ─► tag; the module checks it ─► take_records: tag, status, bytes
//! ```
//!
//! Structures have the layouts of `kernel/include/uapi/memferry.h`. The module checks every order and accesses registered
//! memory only, so it refuses a wrong order and no memory is harmed. Its writes to a mapping are like those of another
//! process (M2). The module chooses the engine; `engine` implements the Engine contract.

#![expect(unsafe_code, reason = "ioctls of the device, and the addresses they pass: invariants M1, M2")]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_transfer::Memory;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Opcode, Setter, Updater, opcode};
use thiserror::Error;

use memferry_shm::mapping::{Access, Mapping};

/// Usual path of the module's device.
pub const PATH: &str = "/dev/memferry";

/// The interface version that this crate supports.
pub const VERSION: u32 = 2;

/// Limit on the segments of one list.
pub const MAX_SEGMENTS: usize = 2048;

const GROUP: u8 = 0xb7;
const QUERY: Opcode = opcode::read::<Query>(GROUP, 0);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 1);
const UNREGISTER: Opcode = opcode::none(GROUP, 2);
const SUBMIT: Opcode = opcode::read_write::<Submit>(GROUP, 3);
const CANCEL: Opcode = opcode::write::<u64>(GROUP, 4);
/// The ioctls used after a device was opened, for a seccomp filter.
pub const CALLS: [Opcode; 4] = [REGISTER, UNREGISTER, SUBMIT, CANCEL];

const READ: u32 = 1;
const WRITE: u32 = 2;
const CPU_ONLY: u32 = 1;

const RECORD_BYTES: usize = 40;
/// Maximum number of records per read.
const RECORDS: usize = 32;
/// Time limit of each transfer: the module's maximum, because callers enforce their own deadlines.
const PATIENCE_MS: u32 = 60_000;

/// The module's channels and settings.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Query {
    version: u32,
    /// Number of DMA engine channels; if 0, a CPU moves all transfers in the kernel.
    pub channels: u32,
    /// Channels among them that are out of use because their engine could not be stopped.
    pub faulted_channels: u32,
    abilities: u32,
    alignment: u32,
    policy: u32,
    /// A CPU moves transfers shorter than this many bytes.
    pub threshold: u64,
}

#[derive(Debug, Error)]
pub enum OpenError {
    #[error("{} is not there; load the module (kernel/README.md), or name its device", path.display())]
    Missing { path: PathBuf },
    #[error(
        "this process may not open {}; add its user to the device's group (udev rule in kernel/README.md)",
        path.display()
    )]
    Denied { path: PathBuf },
    #[error("{} is not the device of the memferry module; name the module's device", path.display())]
    Foreign { path: PathBuf },
    #[error(
        "the module behind {} has interface version {found}, but this program needs {VERSION}; load the module of this program's release",
        path.display()
    )]
    Version { path: PathBuf, found: u32 },
    #[error("cannot open {}: {source}", path.display())]
    System { path: PathBuf, source: io::Error },
}

#[repr(C)]
struct Register {
    address: u64,
    length: u64,
    rights: u32,
    flags: u32,
    region: u32,
    runs: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Place {
    region: u32,
    reserved: u32,
    offset: u64,
}

#[repr(C)]
struct SegmentRecord {
    source: Place,
    destination: Place,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct TransferRequest {
    tag: u64,
    operation: u32,
    flags: u32,
    source: Place,
    destination: Place,
    length: u64,
    patience_ms: u32,
    pattern: u32,
    pattern_bytes: u32,
    rows: u32,
    source_pitch: u64,
    destination_pitch: u64,
    segments: u64,
    segment_count: u32,
    reserved: u32,
}

#[repr(C)]
struct Submit {
    transfers: u64,
    count: u32,
    accepted: u32,
}

const _: () = assert!(
    size_of::<Query>() == 32
        && size_of::<Register>() == 32
        && size_of::<SegmentRecord>() == 40
        && size_of::<TransferRequest>() == 104
        && size_of::<Submit>() == 16
);

/// A position in registered memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub memory: &'a ModuleMemory,
    pub offset: u64,
}

impl At<'_> {
    fn place(&self) -> Place {
        Place { region: self.memory.0.region, reserved: 0, offset: self.offset }
    }
}

/// A copy between two contiguous ranges.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub source: At<'a>,
    pub destination: At<'a>,
    /// Number of bytes to copy.
    pub length: u64,
}

/// A transfer request to the module.
#[derive(Clone, Debug)]
pub enum Order<'a> {
    /// One piece. If source and destination overlap in one memory, it is a memmove.
    Copy(Piece<'a>),
    /// Fills `length` bytes with the lowest `pattern_bytes` (1, 2 or 4) bytes of `pattern`, little-endian.
    Fill {
        destination: At<'a>,
        /// A multiple of `pattern_bytes`.
        length: u64,
        pattern: u32,
        pattern_bytes: u32,
    },
    /// At most [`MAX_SEGMENTS`] pieces. Pieces that touch each other require `in_order`.
    List {
        pieces: Vec<Piece<'a>>,
        /// Copies the pieces one after the other, on a CPU.
        in_order: bool,
    },
}

/// The completion of an order. The module no longer accesses its memory, unless the status is ENOTRECOVERABLE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The tag that [`ModuleDevice::submit`] returned.
    pub tag: u64,
    /// 0 or a negative error number.
    pub status: i32,
    /// Bytes done, in the order of the transfer.
    pub bytes_done: u64,
    /// Bytes that a DMA engine moved; a CPU moved the others.
    pub bytes_by_dma: u64,
}

/// The opened device. Only the process that opened it can use it.
#[derive(Debug)]
pub struct ModuleDevice {
    file: OwnedFd,
    /// Tag of the next order. Tags are not reused, so a late record belongs to one order only.
    next_tag: AtomicU64,
}

impl ModuleDevice {
    /// Opens the device at `path`, usually [`PATH`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let owned = || path.to_owned();
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            // NODEV and NXIO: a device node made by hand while the module is not loaded.
            Errno::NOENT | Errno::NODEV | Errno::NXIO => OpenError::Missing { path: owned() },
            Errno::ACCESS | Errno::PERM => OpenError::Denied { path: owned() },
            Errno::ISDIR | Errno::NOTDIR => OpenError::Foreign { path: owned() },
            error => OpenError::System { path: owned(), source: error.into() },
        })?;
        let device = Self { file, next_tag: AtomicU64::new(1) };
        match device.query() {
            Ok(Query { version: VERSION, .. }) => Ok(device),
            Ok(Query { version: found, .. }) => Err(OpenError::Version { path: owned(), found }),
            Err(_) => Err(OpenError::Foreign { path: owned() }),
        }
    }

    /// Reads the module's channels and settings.
    ///
    /// # Errors
    /// Those of the ioctl: `PermissionDenied` in a forked child.
    pub fn query(&self) -> io::Result<Query> {
        // SAFETY: M2: the module defines the opcode for this layout, and writes the query only. All its bit patterns are valid.
        Ok(unsafe { rustix::ioctl::ioctl(&self.file, Getter::<QUERY, Query>::new())? })
    }

    /// Pins `mapping` for transfers that read it, and write it unless it is read-only. It counts against RLIMIT_MEMLOCK.
    ///
    /// # Errors
    /// `OutOfMemory` over that limit; `InvalidInput` for an empty mapping.
    pub fn register(self: &Arc<Self>, mapping: Mapping) -> io::Result<ModuleMemory> {
        let writable = if mapping.access() == Access::ReadWrite { WRITE } else { 0 };
        let mut request = Register {
            address: mapping.pointer().addr() as u64,
            length: mapping.length_bytes() as u64,
            rights: READ | writable,
            flags: 0,
            region: 0,
            runs: 0,
        };
        // SAFETY: M1: the module defines the opcode for this layout. It pins the pages of `mapping`, which stays mapped while it
        // is registered, and writes the request only.
        unsafe { rustix::ioctl::ioctl(&self.file, Updater::<REGISTER, _>::new(&mut request))? };
        let registered = Registered { device: Arc::clone(self), mapping, region: request.region };
        Ok(ModuleMemory(Arc::new(registered)))
    }

    /// Submits an order and returns its tag. A [`Record`] with that tag follows.
    ///
    /// # Errors
    /// `WouldBlock` when too many orders wait for their records to be taken; others mean that the order is invalid. No record
    /// follows an error.
    pub fn submit(&self, order: &Order<'_>) -> io::Result<u64> {
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        let mut request = TransferRequest { tag, patience_ms: PATIENCE_MS, ..TransferRequest::default() };
        let segments = encode(&mut request, order);
        if let Some(segments) = &segments {
            request.segments = segments.as_ptr().addr() as u64;
            request.segment_count = segments.len() as u32;
        }
        let mut batch = Submit { transfers: (&raw const request).addr() as u64, count: 1, accepted: 0 };
        // SAFETY: M2: the module defines the opcode for this layout. It reads the request and the segments, which live until
        // the call returns, and accesses registered memory only.
        unsafe { rustix::ioctl::ioctl(&self.file, Updater::<SUBMIT, _>::new(&mut batch))? };
        Ok(tag)
    }

    /// Requests that the order with `tag` end early. Its record follows in any case.
    ///
    /// # Errors
    /// Those of the ioctl: `PermissionDenied` in a forked child.
    pub fn cancel(&self, tag: u64) -> io::Result<()> {
        // SAFETY: M2: the module defines the opcode for this layout, and reads the tag only.
        unsafe { rustix::ioctl::ioctl(&self.file, Setter::<CANCEL, u64>::new(tag))? };
        Ok(())
    }

    /// Waits until a record can be taken.
    ///
    /// # Errors
    /// Those of `poll`.
    pub fn wait(&self) -> io::Result<()> {
        Ok(rustix::event::poll(&mut [PollFd::new(&self.file, PollFlags::IN)], None).map(drop)?)
    }

    /// Appends all available records to `records`, without waiting.
    ///
    /// # Errors
    /// Those of `read`: `PermissionDenied` in a forked child. Records that were not read stay available.
    pub fn take_records(&self, records: &mut Vec<Record>) -> io::Result<()> {
        let mut bytes = [0; RECORD_BYTES * RECORDS];
        loop {
            let length = match rustix::io::read(&self.file, &mut bytes) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            records.extend(bytes[..length].chunks_exact(RECORD_BYTES).map(decode));
            if length < bytes.len() {
                return Ok(());
            }
        }
    }
}

impl AsFd for ModuleDevice {
    /// The descriptor is readable while a record can be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Fills in the request. Returns the segments of a list.
fn encode(request: &mut TransferRequest, order: &Order<'_>) -> Option<Vec<SegmentRecord>> {
    match order {
        Order::Copy(piece) => {
            request.source = piece.source.place();
            request.destination = piece.destination.place();
            request.length = piece.length;
            None
        }
        Order::Fill { destination, length, pattern, pattern_bytes } => {
            request.operation = 1;
            request.destination = destination.place();
            request.length = *length;
            request.pattern = *pattern;
            request.pattern_bytes = *pattern_bytes;
            None
        }
        Order::List { pieces, in_order } => {
            request.operation = 2;
            request.flags = if *in_order { CPU_ONLY } else { 0 };
            let segment = |piece: &Piece<'_>| SegmentRecord {
                source: piece.source.place(),
                destination: piece.destination.place(),
                length: piece.length,
            };
            Some(pieces.iter().map(segment).collect())
        }
    }
}

fn decode(bytes: &[u8]) -> Record {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let mut status = [0; 4];
    status.copy_from_slice(&bytes[8..12]);
    Record { tag: word(0), status: i32::from_ne_bytes(status), bytes_done: word(16), bytes_by_dma: word(24) }
}

/// A mapping that is registered with the module. Clones share it. Dropping the last one waits for running transfers and
/// unregisters it.
#[derive(Clone)]
pub struct ModuleMemory(Arc<Registered>);

struct Registered {
    device: Arc<ModuleDevice>,
    mapping: Mapping,
    region: u32,
}

impl ModuleMemory {
    pub fn mapping(&self) -> &Mapping {
        &self.0.mapping
    }

    /// Identifies the registration: clones have the same number, and no other living registration has it.
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether both are clones of one registration.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether it was registered through `device`.
    pub fn is_of(&self, device: &Arc<ModuleDevice>) -> bool {
        Arc::ptr_eq(&self.0.device, device)
    }
}

impl Memory for ModuleMemory {
    fn length(&self) -> u64 {
        self.0.mapping.length()
    }
}

impl fmt::Debug for ModuleMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleMemory({}, {:?})", self.0.region, self.0.mapping)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: M2: the argument of the opcode is the handle itself, not a pointer. The module refuses a forked child.
        let unregister = unsafe { IntegerSetter::<UNREGISTER>::new_usize(self.region as usize) };
        // SAFETY: as above.
        let _ = unsafe { rustix::ioctl::ioctl(&self.device.file, unregister) };
    }
}

// Miri cannot open devices.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn opcodes_match_the_header() {
        assert_eq!((QUERY, REGISTER, UNREGISTER), (0x8020_b700, 0xc020_b701, 0xb702));
        assert_eq!((SUBMIT, CANCEL), (0xc010_b703, 0x4008_b704));
    }

    #[test]
    fn decode_uses_the_layout_of_the_header() {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = 7;
        bytes[8..12].copy_from_slice(&(-125_i32).to_ne_bytes());
        bytes[16..24].copy_from_slice(&9_u64.to_ne_bytes());
        bytes[24..32].copy_from_slice(&5_u64.to_ne_bytes());
        assert_eq!(decode(&bytes), Record { tag: 7, status: -125, bytes_done: 9, bytes_by_dma: 5 });
    }

    #[test]
    fn open_refuses_other_files() {
        let open = |path: &str| ModuleDevice::open(Path::new(path)).unwrap_err();
        let missing = open("/nonexistent/memferry");
        assert!(matches!(missing, OpenError::Missing { .. }), "{missing}");
        assert!(missing.to_string().contains("/nonexistent/memferry is not there; load the module"));
        for foreign in ["/dev/null", "/", "/dev/null/memferry"] {
            let error = open(foreign);
            assert!(matches!(error, OpenError::Foreign { .. }), "{foreign}: {error}");
        }
    }

    #[test]
    fn the_version_matches_the_header() {
        let header = include_str!("../../../kernel/include/uapi/memferry.h");
        assert!(header.contains(&format!("#define MEMFERRY_VERSION\t{VERSION}\n")));
    }
}
