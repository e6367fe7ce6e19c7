//! Records one call: measures its distance and time, lets the C library do it, counts it.
//!
//! ```text
//! no recording ──────────────► C library
//! else: far? (from 8 KiB) ─► clock (from 4 KiB) ─► C library ─► clock ─► kind of call ─► counted
//! ```
//!
//! The distance is measured by reading a few bytes of each side, outside the timed part. Shorter calls are counted but not
//! timed, since reading the clock takes about as long as they do.

use std::ffi::{c_int, c_void};
use std::ptr;

use memferry_cpu::slices;
use memferry_cpu::tuning::MIN_BYTES;
use memferry_recording::{Alignment, Distance, Kind, Operation, size_class, ticks};

use crate::{caller, real, state};

/// Minimum bytes of a timed call.
const TIMED_FROM: usize = 4 << 10;

/// # Safety
/// As `memcpy(3)`.
pub(crate) unsafe extern "C" fn memcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    let call = Call { operation: Operation::Memcpy, to, from, bytes, caller };
    // SAFETY: the caller's promise.
    unsafe { call.record(|| real::memcpy(to, from, bytes)) }
}

/// # Safety
/// As `memmove(3)`.
pub(crate) unsafe extern "C" fn memmove(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    let call = Call { operation: Operation::Memmove, to, from, bytes, caller };
    // SAFETY: the caller's promise.
    unsafe { call.record(|| real::memmove(to, from, bytes)) }
}

/// # Safety
/// As `mempcpy(3)`.
pub(crate) unsafe extern "C" fn mempcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    let call = Call { operation: Operation::Mempcpy, to, from, bytes, caller };
    // SAFETY: the caller's promise.
    unsafe { call.record(|| real::memcpy(to, from, bytes)) };
    to.wrapping_byte_add(bytes)
}

/// # Safety
/// As `memset(3)`.
pub(crate) unsafe extern "C" fn memset(
    to: *mut c_void,
    byte: c_int,
    bytes: usize,
    caller: usize,
) -> *mut c_void {
    let operation = if byte as u8 == 0 { Operation::Zero } else { Operation::Memset };
    let call = Call { operation, to, from: to, bytes, caller };
    // SAFETY: the caller's promise.
    unsafe { call.record(|| real::memset(to, byte, bytes)) }
}

/// # Safety
/// As `memcpy(3)`.
pub(crate) unsafe extern "C" fn memcpy_checked(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    room: usize,
    caller: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { memcpy(to, from, bytes, caller) }
}

/// # Safety
/// As `memmove(3)`.
pub(crate) unsafe extern "C" fn memmove_checked(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    room: usize,
    caller: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { memmove(to, from, bytes, caller) }
}

/// # Safety
/// As `mempcpy(3)`.
pub(crate) unsafe extern "C" fn mempcpy_checked(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    room: usize,
    caller: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { mempcpy(to, from, bytes, caller) }
}

/// # Safety
/// As `memset(3)`.
pub(crate) unsafe extern "C" fn memset_checked(
    to: *mut c_void,
    byte: c_int,
    bytes: usize,
    room: usize,
    caller: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { memset(to, byte, bytes, caller) }
}

/// A call; for `memset`, source and destination are the same.
struct Call {
    operation: Operation,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    caller: usize,
}

impl Call {
    /// # Safety
    /// `bytes` bytes of both ranges must be readable.
    #[inline]
    unsafe fn record(&self, run: impl FnOnce() -> *mut c_void) -> *mut c_void {
        let Some(recorder) = state::recorder() else { return run() };
        let is_timed = self.bytes >= TIMED_FROM && state::clock_works();
        let distance = if is_timed && self.bytes >= MIN_BYTES as usize {
            // SAFETY: the caller's promise.
            unsafe { self.distance() }
        } else {
            Distance::Unknown
        };
        let started = if is_timed { ticks() } else { None };
        let result = run();
        let spent = started.and_then(|started| Some(ticks()?.saturating_sub(started))).unwrap_or(0);
        let kind = Kind {
            operation: self.operation,
            size_class: size_class(self.bytes as u64),
            alignment: Alignment::of(self.to.addr(), self.from.addr()),
            distance,
            caller: caller::locate(recorder, self.caller),
        };
        recorder.count(kind, self.bytes as u64, spent);
        result
    }

    /// # Safety
    /// As `record`.
    unsafe fn distance(&self) -> Distance {
        if !state::can_measure_distance() {
            return Distance::Unknown;
        }
        // SAFETY: the caller's promise.
        let is_far = |at: *const c_void| unsafe { slices::is_far(at.cast(), self.bytes) };
        let destination = is_far(self.to);
        Distance::of(!ptr::eq(self.to, self.from) && is_far(self.from), destination)
    }
}
