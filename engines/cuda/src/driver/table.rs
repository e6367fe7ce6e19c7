//! The driver's functions that the engine calls, and its structures.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;

use thiserror::Error;

use super::{CallError, Code};

/// Version of CUDA whose functions are asked for; drivers of this version and later have them.
pub const CUDA_VERSION: i32 = 12000;
/// The first version with batches of copies. Later versions of that call have other operands, so this one is asked for.
const BATCH_VERSION: i32 = 12080;

/// A structure of the driver API for allocating memory: `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationProperties {
    pub(super) kind: u32,
    pub(super) handle_types: u32,
    pub(super) location: Location,
    pub(super) windows: u64,
    pub(super) flags: [u8; 8],
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    pub(super) kind: u32,
    pub(super) id: i32,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessDescription {
    pub(super) location: Location,
    pub(super) access: u32,
}

/// One side of `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plane {
    pub(super) x_bytes: usize,
    pub(super) y: usize,
    pub(super) memory_type: u32,
    pub(super) host: usize,
    pub(super) device: u64,
    pub(super) array: usize,
    pub(super) pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Memcpy2d {
    pub(super) from: Plane,
    pub(super) to: Plane,
    pub(super) width_bytes: usize,
    pub(super) height: usize,
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyAttributes {
    pub(super) source_order: u32,
    pub(super) source_hint: Location,
    pub(super) destination_hint: Location,
    pub(super) flags: u32,
}

const _: () = assert!(
    size_of::<AllocationProperties>() == 32
        && size_of::<AccessDescription>() == 12
        && size_of::<Memcpy2d>() == 128
        && size_of::<CopyAttributes>() == 24
);

/// Why the driver cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    #[error("cannot load {}: {reason}; install the NVIDIA driver, or name its library", path.display())]
    Missing { path: PathBuf, reason: String },
    #[error("{} is not the library of a CUDA driver: it has no {symbol}; name the driver's, usually libcuda.so.1", path.display())]
    Foreign { path: PathBuf, symbol: &'static str },
    #[error("the driver supports CUDA {}.{}, but 12.0 is needed; install a later driver", found / 1000, found % 1000 / 10)]
    Old { found: i32 },
    #[error("the driver has no {symbol}; install another version of it")]
    NoFunction { symbol: &'static str },
    #[error(transparent)]
    Call(#[from] CallError),
}

pub(super) type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> u32;

/// Asks the driver for the address of a function in the form that it has in a version of CUDA.
fn find(ask: GetProcAddress, symbol: &'static str, version: i32) -> Result<*mut c_void, LoadError> {
    let name = CString::new(symbol).expect("names have no NUL");
    let mut address = std::ptr::null_mut();
    let mut status = 0;
    // SAFETY: G: the function has this signature; all pointers are to variables that live during the call.
    let raw = unsafe { ask(name.as_ptr(), &mut address, version, 0, &mut status) };
    if address.is_null() || Code::from_raw(raw).is_some() {
        return Err(LoadError::NoFunction { symbol });
    }
    Ok(address)
}

macro_rules! table {
    ($($field:ident: $symbol:literal ($($operand:ty),*);)*) => {
        /// Functions that every driver has since [`CUDA_VERSION`], and those of later ones if they are there.
        #[derive(Debug)]
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($operand),*) -> u32,)*
            pub(super) copy_batch: Option<CopyBatch>,
        }

        impl Table {
            pub(super) fn new(ask: GetProcAddress) -> Result<Self, LoadError> {
                // SAFETY: G: the driver answers with functions of the signatures that its documentation has for this version.
                Ok(unsafe {
                    Self {
                        $($field: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($operand),*) -> u32,
                        >(find(ask, $symbol, CUDA_VERSION)?),)*
                        copy_batch: find(ask, "cuMemcpyBatchAsync", BATCH_VERSION)
                            .ok()
                            .map(|address| std::mem::transmute::<*mut c_void, CopyBatch>(address)),
                    }
                })
            }
        }
    };
}

pub(super) type CopyBatch = unsafe extern "C" fn(
    *const u64,
    *const u64,
    *const usize,
    usize,
    *const CopyAttributes,
    *const usize,
    usize,
    *mut usize,
    usize,
) -> u32;

table! {
    init: "cuInit" (u32);
    device: "cuDeviceGet" (*mut c_int, c_int);
    device_name: "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_uuid: "cuDeviceGetUuid" (*mut [u8; 16], c_int);
    attribute: "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain_context: "cuDevicePrimaryCtxRetain" (*mut usize, c_int);
    release_context: "cuDevicePrimaryCtxRelease" (c_int);
    set_context: "cuCtxSetCurrent" (usize);
    memory_info: "cuMemGetInfo" (*mut usize, *mut usize);
    register: "cuMemHostRegister" (*mut c_void, usize, u32);
    unregister: "cuMemHostUnregister" (*mut c_void);
    device_pointer: "cuMemHostGetDevicePointer" (*mut u64, *mut c_void, u32);
    allocate_host: "cuMemHostAlloc" (*mut *mut c_void, usize, u32);
    free_host: "cuMemFreeHost" (*mut c_void);
    granularity: "cuMemGetAllocationGranularity" (*mut usize, *const AllocationProperties, u32);
    create: "cuMemCreate" (*mut u64, usize, *const AllocationProperties, u64);
    release: "cuMemRelease" (u64);
    reserve: "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
    free_range: "cuMemAddressFree" (u64, usize);
    map: "cuMemMap" (u64, usize, usize, u64, u64);
    unmap: "cuMemUnmap" (u64, usize);
    set_access: "cuMemSetAccess" (u64, usize, *const AccessDescription, usize);
    export: "cuMemExportToShareableHandle" (*mut c_void, u64, u32, u64);
    import: "cuMemImportFromShareableHandle" (*mut u64, *mut c_void, u32);
    copy_to_device: "cuMemcpyHtoDAsync" (u64, *const c_void, usize, usize);
    copy_to_host: "cuMemcpyDtoHAsync" (*mut c_void, u64, usize, usize);
    copy_within_device: "cuMemcpyDtoDAsync" (u64, u64, usize, usize);
    copy_unified: "cuMemcpyAsync" (u64, u64, usize, usize);
    copy_2d: "cuMemcpy2DAsync" (*const Memcpy2d, usize);
    fill8: "cuMemsetD8Async" (u64, u8, usize, usize);
    fill16: "cuMemsetD16Async" (u64, u16, usize, usize);
    fill32: "cuMemsetD32Async" (u64, u32, usize, usize);
    fill8_2d: "cuMemsetD2D8Async" (u64, usize, u8, usize, usize, usize);
    fill16_2d: "cuMemsetD2D16Async" (u64, usize, u16, usize, usize, usize);
    fill32_2d: "cuMemsetD2D32Async" (u64, usize, u32, usize, usize, usize);
    create_stream: "cuStreamCreateWithPriority" (*mut usize, u32, c_int);
    destroy_stream: "cuStreamDestroy" (usize);
    query_stream: "cuStreamQuery" (usize);
    synchronize: "cuStreamSynchronize" (usize);
    write_value: "cuStreamWriteValue32" (usize, u64, u32, u32);
    load_module: "cuModuleLoadData" (*mut usize, *const c_char);
    function: "cuModuleGetFunction" (*mut usize, usize, *const c_char);
    launch: "cuLaunchKernel" (usize, u32, u32, u32, u32, u32, u32, u32, usize, *mut *mut c_void, *mut *mut c_void);
}
