//! Initialization, the device and its primary context, and the checks that every call begins with.

use std::cell::{Cell, RefCell};
use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::codes::{Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_INITIALIZED, SUCCESS};
use crate::faults::faults;
use crate::space::space;

const NAME: &[u8] = b"Memferry Fake GPU\0";
const UUID: [u8; 16] = *b"memferry-fake-00";
/// The context's handle: any value but null.
const CONTEXT: usize = 0xc0de_0001;
/// Largest pitch of a 2-D copy.
pub(crate) const MAX_PITCH: u64 = 0x7fff_ffff;

static INITIALIZED: AtomicBool = AtomicBool::new(false);
static RETAINED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_CURRENT: Cell<bool> = const { Cell::new(false) };
    /// Whether the context was current below each pushed one.
    static PUSHED: RefCell<Vec<bool>> = const { RefCell::new(Vec::new()) };
}

/// A call that needs no context.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let checked = || {
        if !INITIALIZED.load(Ordering::Acquire) {
            return Err(NOT_INITIALIZED);
        }
        let mut faults = faults();
        faults.lost()?;
        faults.take_failure(name)
    };
    checked().and_then(|()| body()).err().unwrap_or(SUCCESS)
}

/// A call on this thread's current context.
pub(crate) fn call_in_context(name: &str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    call(name, || {
        let is_there = IS_CURRENT.get() && RETAINED.load(Ordering::Acquire) > 0;
        if is_there { body() } else { Err(INVALID_CONTEXT) }
    })
}

/// Writes a result where the caller wants it.
pub(crate) fn put<T>(out: Option<&mut T>, value: T) -> Result<(), Code> {
    *out.ok_or(INVALID_VALUE)? = value;
    Ok(())
}

fn check_device(device: i32) -> Result<(), Code> {
    if device == 0 { Ok(()) } else { Err(INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuInit(flags: u32) -> Code {
    if flags != 0 {
        return INVALID_VALUE;
    }
    if let Err(code) = faults().take_failure("cuInit") {
        return code;
    }
    INITIALIZED.store(true, Ordering::Release);
    SUCCESS
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDriverGetVersion(version: Option<&mut i32>) -> Code {
    let known = faults().driver_version;
    put(version, known).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetCount(count: Option<&mut i32>) -> Code {
    call("cuDeviceGetCount", || put(count, 1))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGet(device: Option<&mut i32>, ordinal: i32) -> Code {
    call("cuDeviceGet", || {
        check_device(ordinal)?;
        put(device, ordinal)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetName(name: *mut c_char, length: i32, device: i32) -> Code {
    call("cuDeviceGetName", || {
        check_device(device)?;
        if name.is_null() || length < NAME.len() as i32 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has `length` bytes there, which are enough.
        unsafe { std::ptr::copy_nonoverlapping(NAME.as_ptr(), name.cast(), NAME.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetUuid_v2(uuid: Option<&mut [u8; 16]>, device: i32) -> Code {
    call("cuDeviceGetUuid", || {
        check_device(device)?;
        put(uuid, UUID)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetAttribute(value: Option<&mut i32>, attribute: i32, device: i32) -> Code {
    call("cuDeviceGetAttribute", || {
        check_device(device)?;
        let known = match attribute {
            11 => MAX_PITCH as i32,
            16 => 4,  // MULTIPROCESSOR_COUNT
            40 => 2,  // ASYNC_ENGINE_COUNT
            41 => 1,  // UNIFIED_ADDRESSING
            91 => 0,  // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
            99 => 1,  // HOST_REGISTER_SUPPORTED
            102 => 1, // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            103 => 1, // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            113 => 1, // READ_ONLY_HOST_REGISTER_SUPPORTED
            _ => return Err(INVALID_VALUE),
        };
        put(value, known)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRetain(context: Option<&mut usize>, device: i32) -> Code {
    call("cuDevicePrimaryCtxRetain", || {
        check_device(device)?;
        put(context, CONTEXT)?;
        RETAINED.fetch_add(1, Ordering::AcqRel);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Code {
    call("cuDevicePrimaryCtxRelease", || {
        check_device(device)?;
        let less = |retained: usize| retained.checked_sub(1);
        RETAINED.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map_err(|_| INVALID_CONTEXT)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    call("cuCtxSetCurrent", || {
        if context != 0 && (context != CONTEXT || RETAINED.load(Ordering::Acquire) == 0) {
            return Err(INVALID_CONTEXT);
        }
        IS_CURRENT.set(context != 0);
        Ok(())
    })
}

/// Makes a context current until it is popped. The one below is that of `cuCtxSetCurrent` here, or another pushed one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxPushCurrent_v2(context: usize) -> Code {
    call("cuCtxPushCurrent", || {
        if context != CONTEXT || RETAINED.load(Ordering::Acquire) == 0 {
            return Err(INVALID_CONTEXT);
        }
        PUSHED.with_borrow_mut(|pushed| pushed.push(IS_CURRENT.replace(true)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxPopCurrent_v2(context: Option<&mut usize>) -> Code {
    call("cuCtxPopCurrent", || {
        let below = PUSHED.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        IS_CURRENT.set(below);
        // The caller may not want it.
        if let Some(context) = context {
            *context = CONTEXT;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetInfo_v2(free: Option<&mut usize>, total: Option<&mut usize>) -> Code {
    call_in_context("cuMemGetInfo", || {
        let memory = faults().memory_bytes;
        put(free, memory.saturating_sub(space().read().allocated_bytes()) as usize)?;
        put(total, memory as usize)
    })
}
