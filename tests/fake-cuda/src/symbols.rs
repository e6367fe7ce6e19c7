//! `cuGetProcAddress`: which exported function a name means for a program of a version of CUDA.

use std::ffi::{CStr, c_char};

use crate::codes::{Code, INVALID_VALUE, NOT_FOUND, SUCCESS};
use crate::context::{
    cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuCtxSetCurrent, cuDeviceGet, cuDeviceGetAttribute,
    cuDeviceGetCount, cuDeviceGetName, cuDeviceGetUuid_v2, cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxRetain, cuInit, cuMemGetInfo_v2,
};
use crate::copies::{
    cuMemcpy2DAsync_v2, cuMemcpyAsync, cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, cuMemcpyDtoDAsync_v2,
    cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2, cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async,
    cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async,
};
use crate::faults::faults;
use crate::memory::{
    cuMemAddressFree, cuMemAddressReserve, cuMemCreate, cuMemExportToShareableHandle, cuMemFreeHost,
    cuMemGetAllocationGranularity, cuMemHostAlloc, cuMemHostGetDevicePointer_v2, cuMemHostRegister_v2,
    cuMemHostUnregister, cuMemImportFromShareableHandle, cuMemMap, cuMemRelease, cuMemSetAccess, cuMemUnmap,
};
use crate::modules::{cuLaunchKernel, cuModuleGetFunction, cuModuleLoadData};
use crate::streams::{
    cuCtxSynchronize, cuStreamCreateWithPriority, cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize,
    cuStreamWriteValue32_v2,
};

/// A name without its version, the first version of CUDA with this function behind it, and the function.
type Row = (&'static str, i32, *const ());

/// A later row of the same name is a later version. The versions are those that matter here: what CUDA 12.0 has is not told apart.
fn rows() -> [Row; 49] {
    [
        ("cuInit", 2000, cuInit as *const ()),
        ("cuDeviceGet", 2000, cuDeviceGet as *const ()),
        ("cuDeviceGetCount", 2000, cuDeviceGetCount as *const ()),
        ("cuDeviceGetName", 2000, cuDeviceGetName as *const ()),
        ("cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2 as *const ()),
        ("cuDeviceGetAttribute", 2000, cuDeviceGetAttribute as *const ()),
        ("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain as *const ()),
        ("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2 as *const ()),
        ("cuCtxSetCurrent", 4000, cuCtxSetCurrent as *const ()),
        ("cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2 as *const ()),
        ("cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2 as *const ()),
        ("cuCtxSynchronize", 2000, cuCtxSynchronize as *const ()),
        ("cuMemGetInfo", 3020, cuMemGetInfo_v2 as *const ()),
        ("cuMemHostRegister", 6050, cuMemHostRegister_v2 as *const ()),
        ("cuMemHostUnregister", 4000, cuMemHostUnregister as *const ()),
        ("cuMemHostGetDevicePointer", 3020, cuMemHostGetDevicePointer_v2 as *const ()),
        ("cuMemHostAlloc", 2020, cuMemHostAlloc as *const ()),
        ("cuMemFreeHost", 2000, cuMemFreeHost as *const ()),
        ("cuMemCreate", 10020, cuMemCreate as *const ()),
        ("cuMemRelease", 10020, cuMemRelease as *const ()),
        ("cuMemAddressReserve", 10020, cuMemAddressReserve as *const ()),
        ("cuMemAddressFree", 10020, cuMemAddressFree as *const ()),
        ("cuMemMap", 10020, cuMemMap as *const ()),
        ("cuMemUnmap", 10020, cuMemUnmap as *const ()),
        ("cuMemSetAccess", 10020, cuMemSetAccess as *const ()),
        ("cuMemExportToShareableHandle", 10020, cuMemExportToShareableHandle as *const ()),
        ("cuMemImportFromShareableHandle", 10020, cuMemImportFromShareableHandle as *const ()),
        ("cuMemGetAllocationGranularity", 10020, cuMemGetAllocationGranularity as *const ()),
        ("cuMemcpyAsync", 4000, cuMemcpyAsync as *const ()),
        ("cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2 as *const ()),
        ("cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2 as *const ()),
        ("cuMemcpyDtoDAsync", 3020, cuMemcpyDtoDAsync_v2 as *const ()),
        ("cuMemcpy2DAsync", 3020, cuMemcpy2DAsync_v2 as *const ()),
        ("cuMemcpyBatchAsync", 12080, cuMemcpyBatchAsync as *const ()),
        ("cuMemcpyBatchAsync", 13000, cuMemcpyBatchAsync_v2 as *const ()),
        ("cuMemsetD8Async", 3020, cuMemsetD8Async as *const ()),
        ("cuMemsetD16Async", 3020, cuMemsetD16Async as *const ()),
        ("cuMemsetD32Async", 3020, cuMemsetD32Async as *const ()),
        ("cuMemsetD2D8Async", 3020, cuMemsetD2D8Async as *const ()),
        ("cuMemsetD2D16Async", 3020, cuMemsetD2D16Async as *const ()),
        ("cuMemsetD2D32Async", 3020, cuMemsetD2D32Async as *const ()),
        ("cuStreamCreateWithPriority", 5050, cuStreamCreateWithPriority as *const ()),
        ("cuStreamDestroy", 4000, cuStreamDestroy_v2 as *const ()),
        ("cuStreamQuery", 2000, cuStreamQuery as *const ()),
        ("cuStreamSynchronize", 2000, cuStreamSynchronize as *const ()),
        ("cuStreamWriteValue32", 11070, cuStreamWriteValue32_v2 as *const ()),
        ("cuModuleLoadData", 2000, cuModuleLoadData as *const ()),
        ("cuModuleGetFunction", 2000, cuModuleGetFunction as *const ()),
        ("cuLaunchKernel", 4000, cuLaunchKernel as *const ()),
    ]
}

const FOUND: u32 = 0;
const UNKNOWN_NAME: u32 = 1;
const VERSION_TOO_OLD: u32 = 2;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: Option<&mut *const ()>,
    version: i32,
    flags: u64,
    status: Option<&mut u32>,
) -> Code {
    let Some(function) = function else { return INVALID_VALUE };
    if symbol.is_null() || flags > 2 {
        return INVALID_VALUE;
    }
    // SAFETY: the caller passes a C string.
    let symbol = unsafe { CStr::from_ptr(symbol) }.to_str().unwrap_or_default();
    let faults = faults();
    if version > faults.driver_version {
        return INVALID_VALUE;
    }
    let mut versions = rows().into_iter().filter(|row| row.0 == symbol && !faults.lacks(symbol)).peekable();
    let is_known = versions.peek().is_some();
    let usable = versions.rfind(|row| row.1 <= version);
    *function = usable.map_or(std::ptr::null(), |row| row.2);
    let found = match (is_known, usable) {
        (_, Some(_)) => FOUND,
        (true, None) => VERSION_TOO_OLD,
        (false, None) => UNKNOWN_NAME,
    };
    match status {
        Some(status) => *status = found,
        None if found != FOUND => return NOT_FOUND,
        None => {}
    }
    SUCCESS
}
