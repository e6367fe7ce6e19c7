//! The CUDA driver: `libcuda.so.1`, opened when the program runs. No CUDA toolkit is needed to build.
//!
//! ```text
//! Driver::load ─ dlopen ─ version ─ cuGetProcAddress(name, 12.0) for each function ─► Table
//! a method for each call: operands of Rust types, the result code as an error that names the call and its operands
//! ```
//!
//! A method is unsafe if a wrong operand could make the GPU or the driver write to memory of this process that something else
//! uses: copies, fills, kernels and writes of streams. The others name memory of the device, or pages that stay mapped, and the
//! driver refuses wrong operands. The methods from `memory_info` on need the context of a device current on this thread, which
//! `Device::call` ensures.

#![expect(unsafe_code, reason = "calls of the driver, which access memory later: invariant G")]

mod codes;
mod pinned;
mod table;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

pub use self::codes::{CallError, Code};
pub(crate) use self::pinned::PinnedWords;
pub use self::table::{CUDA_VERSION, LoadError};

use self::codes::check;
use self::table::{
    AccessDescription, AllocationProperties, CopyAttributes, GetProcAddress, Location, Memcpy2d, Plane, Table,
};

/// The name by which the dynamic linker finds the driver.
pub const LIBRARY: &str = "libcuda.so.1";

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED_ALLOCATION: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE_LOCATION: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_DESCRIPTOR: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`; the same bits mean the same for `cuMemHostAlloc`.
const PORTABLE_AND_MAPPED: u32 = 0x03;
/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const REGISTER_READ_ONLY: u32 = 0x08;
/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`.
const HOST_MEMORY: u32 = 1;
const DEVICE_MEMORY: u32 = 2;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`.
const SOURCE_IN_STREAM_ORDER: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`: no order with the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// Longest name of a device.
const NAME_BYTES: usize = 256;

/// An address that the device understands: of VRAM, or of pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceAddress(pub(crate) u64);

impl DeviceAddress {
    pub(crate) fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// A number that names an allocation of VRAM in the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AllocationHandle(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamHandle(usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ContextHandle(usize);

/// A kernel of a loaded module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Function(usize);

/// Attributes of a device, by their numbers in the driver API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum Attribute {
    MaxPitch = 11,
    Multiprocessors = 16,
    CopyEngines = 40,
    RegistersHostMemory = 99,
    VirtualMemory = 102,
    PosixDescriptors = 103,
    RegistersReadOnly = 113,
}

/// An address of one side of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Address {
    /// Host memory that is not pinned.
    Host(usize),
    /// Only the device has an address of it.
    Vram(DeviceAddress),
    /// Pinned host memory, which has both addresses.
    Pinned(usize, DeviceAddress),
}

impl Address {
    pub(crate) fn plus(self, bytes: u64) -> Self {
        let host = |address: usize| address + bytes as usize;
        match self {
            Self::Host(address) => Self::Host(host(address)),
            Self::Vram(address) => Self::Vram(address.plus(bytes)),
            Self::Pinned(address, device) => Self::Pinned(host(address), device.plus(bytes)),
        }
    }

    /// The address for the device, if it can reach the memory by itself.
    pub(crate) fn by_device(self) -> Option<DeviceAddress> {
        match self {
            Self::Host(_) => None,
            Self::Vram(address) | Self::Pinned(_, address) => Some(address),
        }
    }

    fn plane(self, pitch: u64) -> Plane {
        let pitch = pitch as usize;
        match self {
            Self::Host(host) | Self::Pinned(host, _) => {
                Plane { memory_type: HOST_MEMORY, host, pitch, ..Plane::default() }
            }
            Self::Vram(DeviceAddress(device)) => {
                Plane { memory_type: DEVICE_MEMORY, device, pitch, ..Plane::default() }
            }
        }
    }
}

/// One copy of a batch, or one piece of the gather kernel's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceCopy {
    pub(crate) from: DeviceAddress,
    pub(crate) to: DeviceAddress,
    pub(crate) length: u64,
}

/// The element that a fill repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Element {
    One(u8),
    Two(u16),
    Four(u32),
}

impl Element {
    pub(crate) fn width(self) -> u64 {
        match self {
            Self::One(_) => 1,
            Self::Two(_) => 2,
            Self::Four(_) => 4,
        }
    }
}

/// The loaded driver. It stays loaded until the process ends.
#[derive(Clone, Debug)]
pub struct Driver(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    table: Table,
    version: i32,
}

impl Driver {
    /// Loads the driver's library and initializes it.
    ///
    /// # Errors
    /// The library is not there or too old, or the driver does not start, for instance because there is no GPU.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let library = Library::open(path)?;
        // First: older drivers do not have the function that finds the others.
        let version = library.version()?;
        if version < CUDA_VERSION {
            return Err(LoadError::Old { found: version });
        }
        let table = Table::new(library.get_proc_address()?)?;
        // SAFETY: G: no memory is passed.
        let raw = unsafe { (table.init)(0) };
        check("cuInit", raw, || "0".to_owned())?;
        Ok(Self(Arc::new(Loaded { table, version })))
    }

    /// The version of CUDA that the driver supports: 12080 is 12.8.
    pub fn version(&self) -> i32 {
        self.0.version
    }

    /// Whether it takes many copies in one call.
    pub fn has_batches(&self) -> bool {
        self.table().copy_batch.is_some()
    }

    fn table(&self) -> &Table {
        &self.0.table
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<i32, CallError> {
        let mut device = 0;
        // SAFETY: G: the variable lives during the call.
        let raw = unsafe { (self.table().device)(&mut device, ordinal) };
        check("cuDeviceGet", raw, || ordinal.to_string())?;
        Ok(device)
    }

    pub(crate) fn device_name(&self, device: i32) -> Result<String, CallError> {
        let mut name: [c_char; NAME_BYTES] = [0; NAME_BYTES];
        // SAFETY: G: the driver writes at most this length, with a NUL.
        let raw = unsafe { (self.table().device_name)(name.as_mut_ptr(), NAME_BYTES as c_int, device) };
        check("cuDeviceGetName", raw, || device.to_string())?;
        let bytes: Vec<u8> = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn device_uuid(&self, device: i32) -> Result<[u8; 16], CallError> {
        let mut uuid = [0; 16];
        // SAFETY: G: the variable lives during the call.
        let raw = unsafe { (self.table().device_uuid)(&mut uuid, device) };
        check("cuDeviceGetUuid", raw, || device.to_string())?;
        Ok(uuid)
    }

    pub(crate) fn attribute(&self, attribute: Attribute, device: i32) -> Result<i32, CallError> {
        let mut value = 0;
        // SAFETY: G: the variable lives during the call.
        let raw = unsafe { (self.table().attribute)(&mut value, attribute as c_int, device) };
        check("cuDeviceGetAttribute", raw, || format!("{attribute:?}, {device}"))?;
        Ok(value)
    }

    pub(crate) fn retain_context(&self, device: i32) -> Result<ContextHandle, CallError> {
        let mut context = 0;
        // SAFETY: G: the variable lives during the call.
        let raw = unsafe { (self.table().retain_context)(&mut context, device) };
        check("cuDevicePrimaryCtxRetain", raw, || device.to_string())?;
        Ok(ContextHandle(context))
    }

    pub(crate) fn release_context(&self, device: i32) -> Result<(), CallError> {
        // SAFETY: G: no memory is passed.
        let raw = unsafe { (self.table().release_context)(device) };
        check("cuDevicePrimaryCtxRelease", raw, || device.to_string())
    }

    pub(crate) fn set_context(&self, context: ContextHandle) -> Result<(), CallError> {
        // SAFETY: G: the handle is one that the driver gave.
        let raw = unsafe { (self.table().set_context)(context.0) };
        check("cuCtxSetCurrent", raw, || format!("{:#x}", context.0))
    }

    /// Free and all bytes of the current device.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), CallError> {
        let mut free = 0;
        let mut total = 0;
        // SAFETY: G: the variables live during the call.
        let raw = unsafe { (self.table().memory_info)(&mut free, &mut total) };
        check("cuMemGetInfo", raw, String::new)?;
        Ok((free as u64, total as u64))
    }

    /// Pins a range of host memory. It only names pages, which the driver holds until [`unregister`](Self::unregister).
    pub(crate) fn register(
        &self,
        start: *mut u8,
        length: usize,
        is_read_only: bool,
    ) -> Result<DeviceAddress, CallError> {
        let operands = || format!("{start:p}, {length} bytes, read only: {is_read_only}");
        let flags = PORTABLE_AND_MAPPED | if is_read_only { REGISTER_READ_ONLY } else { 0 };
        // SAFETY: G: registering does not write to the memory; a range that is not mapped is refused.
        let raw = unsafe { (self.table().register)(start.cast(), length, flags) };
        check("cuMemHostRegister", raw, operands)?;
        let address = self.device_pointer(start);
        if address.is_err() {
            _ = self.unregister(start);
        }
        address
    }

    pub(crate) fn unregister(&self, start: *mut u8) -> Result<(), CallError> {
        // SAFETY: G: the address is a key; the driver refuses one that is not registered.
        let raw = unsafe { (self.table().unregister)(start.cast()) };
        check("cuMemHostUnregister", raw, || format!("{start:p}"))
    }

    fn device_pointer(&self, start: *mut u8) -> Result<DeviceAddress, CallError> {
        let mut address = 0;
        // SAFETY: G: the variable lives during the call, and the other address is a key.
        let raw = unsafe { (self.table().device_pointer)(&mut address, start.cast(), 0) };
        check("cuMemHostGetDevicePointer", raw, || format!("{start:p}"))?;
        Ok(DeviceAddress(address))
    }

    /// Lengths of allocations are multiples of this.
    pub(crate) fn granularity(&self, device: i32) -> Result<u64, CallError> {
        let mut granularity = 0;
        // SAFETY: G: both variables live during the call.
        let raw = unsafe { (self.table().granularity)(&mut granularity, &exportable(device), 0) };
        check("cuMemGetAllocationGranularity", raw, || device.to_string())?;
        Ok(granularity as u64)
    }

    pub(crate) fn create(&self, length: u64, device: i32) -> Result<AllocationHandle, CallError> {
        let mut handle = 0;
        // SAFETY: G: both variables live during the call.
        let raw = unsafe { (self.table().create)(&mut handle, length as usize, &exportable(device), 0) };
        check("cuMemCreate", raw, || format!("{length} bytes, device {device}"))?;
        Ok(AllocationHandle(handle))
    }

    pub(crate) fn release(&self, allocation: AllocationHandle) -> Result<(), CallError> {
        // SAFETY: G: no memory of this process is concerned.
        let raw = unsafe { (self.table().release)(allocation.0) };
        check("cuMemRelease", raw, || format!("{:#x}", allocation.0))
    }

    pub(crate) fn reserve(&self, length: u64) -> Result<DeviceAddress, CallError> {
        let mut address = 0;
        // SAFETY: G: the variable lives during the call; the driver chooses the range.
        let raw = unsafe { (self.table().reserve)(&mut address, length as usize, 0, 0, 0) };
        check("cuMemAddressReserve", raw, || format!("{length} bytes"))?;
        Ok(DeviceAddress(address))
    }

    pub(crate) fn free_range(&self, start: DeviceAddress, length: u64) -> Result<(), CallError> {
        // SAFETY: G: the range is of device addresses.
        let raw = unsafe { (self.table().free_range)(start.0, length as usize) };
        check("cuMemAddressFree", raw, || format!("{:#x}, {length} bytes", start.0))
    }

    pub(crate) fn map(
        &self,
        start: DeviceAddress,
        length: u64,
        allocation: AllocationHandle,
    ) -> Result<(), CallError> {
        // SAFETY: G: the range is of device addresses.
        let raw = unsafe { (self.table().map)(start.0, length as usize, 0, allocation.0, 0) };
        check("cuMemMap", raw, || format!("{:#x}, {length} bytes, allocation {:#x}", start.0, allocation.0))
    }

    pub(crate) fn unmap(&self, start: DeviceAddress, length: u64) -> Result<(), CallError> {
        // SAFETY: G: the range is of device addresses. A job that still used it would end the context, not touch other memory.
        let raw = unsafe { (self.table().unmap)(start.0, length as usize) };
        check("cuMemUnmap", raw, || format!("{:#x}, {length} bytes", start.0))
    }

    pub(crate) fn set_access(&self, start: DeviceAddress, length: u64, device: i32) -> Result<(), CallError> {
        let location = Location { kind: DEVICE_LOCATION, id: device };
        let description = AccessDescription { location, access: READ_WRITE };
        // SAFETY: G: the structure lives during the call; the range is of device addresses.
        let raw = unsafe { (self.table().set_access)(start.0, length as usize, &description, 1) };
        check("cuMemSetAccess", raw, || format!("{:#x}, {length} bytes, device {device}", start.0))
    }

    pub(crate) fn export(&self, allocation: AllocationHandle) -> Result<OwnedFd, CallError> {
        let mut descriptor: RawFd = -1;
        let place = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: G: for this kind of handle the driver writes an `int`, which lives during the call.
        let raw = unsafe { (self.table().export)(place, allocation.0, POSIX_DESCRIPTOR, 0) };
        check("cuMemExportToShareableHandle", raw, || format!("{:#x}", allocation.0))?;
        // SAFETY: G: the driver opened it for the caller, whose only descriptor of it this is.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: a plain system call. Programs that this process starts must not get the memory; the driver does not promise that.
        // It cannot fail for an open descriptor.
        _ = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(descriptor)
    }

    /// The descriptor stays the caller's.
    pub(crate) fn import(&self, memory: BorrowedFd<'_>) -> Result<AllocationHandle, CallError> {
        let mut handle = 0;
        let descriptor = memory.as_raw_fd();
        // SAFETY: G: the driver takes the number itself in the place of a pointer, and does not follow it.
        let raw = unsafe {
            (self.table().import)(&mut handle, descriptor as usize as *mut c_void, POSIX_DESCRIPTOR)
        };
        check("cuMemImportFromShareableHandle", raw, || format!("descriptor {descriptor}"))?;
        Ok(AllocationHandle(handle))
    }

    /// Loads PTX and finds a kernel in it. The module stays until the context ends.
    pub(crate) fn function(&self, ptx: &CStr, name: &'static CStr) -> Result<Function, CallError> {
        let mut module = 0;
        // SAFETY: G: the text and the variable live during the call.
        let raw = unsafe { (self.table().load_module)(&mut module, ptx.as_ptr()) };
        check("cuModuleLoadData", raw, || format!("{} bytes of PTX", ptx.count_bytes()))?;
        let mut function = 0;
        // SAFETY: G: as above.
        let raw = unsafe { (self.table().function)(&mut function, module, name.as_ptr()) };
        check("cuModuleGetFunction", raw, || name.to_string_lossy().into_owned())?;
        Ok(Function(function))
    }

    /// Smaller numbers of `priority` come first.
    pub(crate) fn create_stream(&self, priority: i32) -> Result<StreamHandle, CallError> {
        let mut stream = 0;
        // SAFETY: G: the variable lives during the call.
        let raw = unsafe { (self.table().create_stream)(&mut stream, NON_BLOCKING, priority) };
        check("cuStreamCreateWithPriority", raw, || priority.to_string())?;
        Ok(StreamHandle(stream))
    }

    /// Commands that it was given still run.
    pub(crate) fn destroy_stream(&self, stream: StreamHandle) -> Result<(), CallError> {
        // SAFETY: G: no memory is passed.
        let raw = unsafe { (self.table().destroy_stream)(stream.0) };
        check("cuStreamDestroy", raw, || stream.operand())
    }

    /// Whether all commands of the stream have ended.
    pub(crate) fn is_idle(&self, stream: StreamHandle) -> Result<bool, CallError> {
        // SAFETY: G: no memory is passed.
        let raw = unsafe { (self.table().query_stream)(stream.0) };
        match check("cuStreamQuery", raw, || stream.operand()) {
            Err(error) if error.code == Code::NotReady => Ok(false),
            other => other.map(|()| true),
        }
    }

    pub(crate) fn synchronize(&self, stream: StreamHandle) -> Result<(), CallError> {
        // SAFETY: G: no memory is passed.
        let raw = unsafe { (self.table().synchronize)(stream.0) };
        check("cuStreamSynchronize", raw, || stream.operand())
    }

    /// # Safety
    /// G: both ranges stay as they are until the stream has done this.
    pub(crate) unsafe fn copy(
        &self,
        stream: StreamHandle,
        to: Address,
        from: Address,
        length: u64,
    ) -> Result<(), CallError> {
        let bytes = length as usize;
        let operands = || format!("{}, to {to:?}, from {from:?}, {length} bytes", stream.operand());
        // SAFETY: G, by the caller.
        let (call, raw) = unsafe {
            match (to, from) {
                (Address::Vram(to), Address::Vram(from)) => {
                    ("cuMemcpyDtoDAsync", (self.table().copy_within_device)(to.0, from.0, bytes, stream.0))
                }
                (Address::Vram(to), Address::Host(from) | Address::Pinned(from, _)) => (
                    "cuMemcpyHtoDAsync",
                    (self.table().copy_to_device)(to.0, from as *const c_void, bytes, stream.0),
                ),
                (Address::Host(to) | Address::Pinned(to, _), Address::Vram(from)) => (
                    "cuMemcpyDtoHAsync",
                    (self.table().copy_to_host)(to as *mut c_void, from.0, bytes, stream.0),
                ),
                (to, from) => {
                    let unified = |address: Address| match address {
                        Address::Host(host) => host as u64,
                        Address::Vram(device) | Address::Pinned(_, device) => device.0,
                    };
                    let to = unified(to);
                    let from = unified(from);
                    ("cuMemcpyAsync", (self.table().copy_unified)(to, from, bytes, stream.0))
                }
            }
        };
        check(call, raw, operands)
    }

    /// # Safety
    /// G, for the rows of both planes.
    pub(crate) unsafe fn copy_2d(
        &self,
        stream: StreamHandle,
        (to, to_pitch): (Address, u64),
        (from, from_pitch): (Address, u64),
        (row_bytes, rows): (u64, u64),
    ) -> Result<(), CallError> {
        let copy = Memcpy2d {
            from: from.plane(from_pitch),
            to: to.plane(to_pitch),
            width_bytes: row_bytes as usize,
            height: rows as usize,
        };
        // SAFETY: G, by the caller; the structure lives during the call.
        let raw = unsafe { (self.table().copy_2d)(&copy, stream.0) };
        check("cuMemcpy2DAsync", raw, || format!("{}, {copy:?}", stream.operand()))
    }

    /// Copies in any order.
    ///
    /// # Safety
    /// G, for all ranges.
    ///
    /// # Errors
    /// Those of the driver, which then may have begun some copies; [`Code::NotSupported`] if it has no batches.
    pub(crate) unsafe fn copy_batch(
        &self,
        stream: StreamHandle,
        copies: &[DeviceCopy],
    ) -> Result<(), CallError> {
        const CALL: &str = "cuMemcpyBatchAsync";
        let operands = |failed: usize| {
            let which = copies.get(failed).map_or_else(String::new, |copy| format!(", failed at {copy:?}"));
            format!("{}, {} copies{which}", stream.operand(), copies.len())
        };
        let Some(call) = self.table().copy_batch else {
            return Err(CallError { call: CALL, operands: operands(usize::MAX), code: Code::NotSupported });
        };
        let no_hint = Location { kind: 0, id: 0 };
        let attributes = CopyAttributes {
            source_order: SOURCE_IN_STREAM_ORDER,
            source_hint: no_hint,
            destination_hint: no_hint,
            flags: 0,
        };
        let to: Vec<u64> = copies.iter().map(|copy| copy.to.0).collect();
        let from: Vec<u64> = copies.iter().map(|copy| copy.from.0).collect();
        let lengths: Vec<usize> = copies.iter().map(|copy| copy.length as usize).collect();
        let first_of_all = 0;
        let mut failed = usize::MAX;
        // SAFETY: G, by the caller. The driver reads the arrays during the call only; their lengths are the count.
        let raw = unsafe {
            call(
                to.as_ptr(),
                from.as_ptr(),
                lengths.as_ptr(),
                copies.len(),
                &attributes,
                &first_of_all,
                1,
                &mut failed,
                stream.0,
            )
        };
        check(CALL, raw, || operands(failed))
    }

    /// Fills `count` elements; the address is a multiple of their width.
    ///
    /// # Safety
    /// G, for the range.
    pub(crate) unsafe fn fill(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        element: Element,
        count: u64,
    ) -> Result<(), CallError> {
        let count = count as usize;
        // SAFETY: G, by the caller.
        let (call, raw) = unsafe {
            match element {
                Element::One(value) => {
                    ("cuMemsetD8Async", (self.table().fill8)(to.0, value, count, stream.0))
                }
                Element::Two(value) => {
                    ("cuMemsetD16Async", (self.table().fill16)(to.0, value, count, stream.0))
                }
                Element::Four(value) => {
                    ("cuMemsetD32Async", (self.table().fill32)(to.0, value, count, stream.0))
                }
            }
        };
        check(call, raw, || format!("{}, {:#x}, {element:?}, {count} times", stream.operand(), to.0))
    }

    /// The same in rows; the pitch is a multiple of the width too.
    ///
    /// # Safety
    /// G, for the rows.
    pub(crate) unsafe fn fill_2d(
        &self,
        stream: StreamHandle,
        (to, pitch): (DeviceAddress, u64),
        element: Element,
        (count, rows): (u64, u64),
    ) -> Result<(), CallError> {
        let pitch = pitch as usize;
        let count = count as usize;
        let rows = rows as usize;
        let table = self.table();
        // SAFETY: G, by the caller.
        let (call, raw) = unsafe {
            match element {
                Element::One(value) => {
                    ("cuMemsetD2D8Async", (table.fill8_2d)(to.0, pitch, value, count, rows, stream.0))
                }
                Element::Two(value) => {
                    ("cuMemsetD2D16Async", (table.fill16_2d)(to.0, pitch, value, count, rows, stream.0))
                }
                Element::Four(value) => {
                    ("cuMemsetD2D32Async", (table.fill32_2d)(to.0, pitch, value, count, rows, stream.0))
                }
            }
        };
        let operands = || {
            format!("{}, {:#x}, pitch {pitch}, {element:?}, {count} in {rows} rows", stream.operand(), to.0)
        };
        check(call, raw, operands)
    }

    /// Writes a word when everything that the stream was given before is done and visible.
    ///
    /// # Safety
    /// G, for the word.
    pub(crate) unsafe fn write_value(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        value: u32,
    ) -> Result<(), CallError> {
        // SAFETY: G, by the caller.
        let raw = unsafe { (self.table().write_value)(stream.0, to.0, value, 0) };
        check("cuStreamWriteValue32", raw, || format!("{}, {:#x}, {value}", stream.operand(), to.0))
    }

    /// Runs the gather kernel over a table of `count` pieces.
    ///
    /// # Safety
    /// G, for the table and for all ranges in it; the function is the gather kernel.
    pub(crate) unsafe fn gather(
        &self,
        stream: StreamHandle,
        function: Function,
        (blocks, threads): (u32, u32),
        (table, count): (DeviceAddress, u32),
    ) -> Result<(), CallError> {
        let mut table = table.0;
        let mut count = count;
        let mut parameters = [(&raw mut table).cast::<c_void>(), (&raw mut count).cast()];
        let none = std::ptr::null_mut();
        // SAFETY: G, by the caller. The driver copies the two parameters during the call.
        let raw = unsafe {
            (self.table().launch)(
                function.0,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.0,
                parameters.as_mut_ptr(),
                none,
            )
        };
        let operands = || format!("{}, {blocks} blocks, table {table:#x}, {count} pieces", stream.operand());
        check("cuLaunchKernel", raw, operands)
    }
}

impl StreamHandle {
    fn operand(self) -> String {
        format!("stream {:#x}", self.0)
    }
}

fn exportable(device: i32) -> AllocationProperties {
    AllocationProperties {
        kind: PINNED_ALLOCATION,
        handle_types: POSIX_DESCRIPTOR,
        location: Location { kind: DEVICE_LOCATION, id: device },
        windows: 0,
        flags: [0; 8],
    }
}

/// The driver's library, which is never closed.
struct Library<'a> {
    path: &'a Path,
    handle: *mut c_void,
}

impl<'a> Library<'a> {
    fn open(path: &'a Path) -> Result<Self, LoadError> {
        let missing = |reason: String| LoadError::Missing { path: path.to_owned(), reason };
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| missing("its name has a NUL".to_owned()))?;
        // SAFETY: G: the administrator named the library, whose initializers run as this program's own code.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the message is this thread's, and valid until its next call of these functions.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(missing(reason.to_string_lossy().into_owned()));
        }
        Ok(Self { path, handle })
    }

    fn symbol(&self, symbol: &'static str) -> Result<*mut c_void, LoadError> {
        let name = CString::new(symbol).expect("names have no NUL");
        // SAFETY: the library is open, and never closed.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        let foreign = || LoadError::Foreign { path: self.path.to_owned(), symbol };
        if address.is_null() { Err(foreign()) } else { Ok(address) }
    }

    /// The version of CUDA that the driver supports.
    fn version(&self) -> Result<i32, LoadError> {
        let symbol = self.symbol("cuDriverGetVersion")?;
        let mut version = 0;
        // SAFETY: G: the function of this name has this signature in all versions, and may be called before the driver is
        // initialized; the variable lives during the call.
        let raw = unsafe {
            let function =
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> u32>(symbol);
            function(&mut version)
        };
        check("cuDriverGetVersion", raw, String::new)?;
        Ok(version)
    }

    /// The function that finds all others.
    fn get_proc_address(&self) -> Result<GetProcAddress, LoadError> {
        let symbol = self.symbol("cuGetProcAddress_v2")?;
        // SAFETY: G: the function of this name has this signature.
        Ok(unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(symbol) })
    }
}
