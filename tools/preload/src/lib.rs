//! `libmemferry_preload.so`: replaces `memcpy`, `memmove`, `mempcpy`, `memset` and their checked variants in unmodified
//! programs (Wicki 2014, 5.2.1.1 and 5.3: application-transparent interfaces).
//!
//! ```text
//! LD_PRELOAD ─► start: finds the C library's functions, sets the thresholds
//! memcpy(n) ─┬─ n < threshold, or overlapping ranges ─► C library; costs a comparison and a jump
//!            └─ else ─► uncached (measured by the engine)? ─┬─ yes ─► the engine's kernels, bypassing the caches
//!                                                           └─ no ──► C library
//! before start, in setuid programs, with MEMFERRY_PRELOAD=off: always the C library (before it is found, a plain loop)
//! prctl, syscall ─► passed on; a call that forbids reading the cycle counter sends all later copies to the C library
//! ```
//!
//! After start-up the library allocates nothing, starts no thread, takes no lock, opens no descriptor and makes no system
//! call. A program may therefore still fork, sandbox itself, close any descriptor and copy in signal handlers. A program that
//! forbids the cycle counter with a direct system call, bypassing `prctl(2)` and `syscall(2)`, must not use the library.
//!
//! Every exported function has the contract of the C library's function of that name.

#![expect(
    unsafe_code,
    reason = "the C library's interface is raw pointers, and its callers promise for them"
)]
#![expect(clippy::missing_safety_doc, reason = "the C library's contract, function by function")]

mod real;
mod start;

use std::ffi::{c_int, c_long, c_ulong, c_void};

use memferry_cpu::slices;
use start::{copies_from, zeros_from};

/// `memcpy(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { if bytes < copies_from() { real::memcpy(to, from, bytes) } else { copy_long(to, from, bytes) } }
}

/// `memmove(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { if bytes < copies_from() { real::memmove(to, from, bytes) } else { copy_long(to, from, bytes) } }
}

/// `mempcpy(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mempcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { memcpy(to, from, bytes) };
    to.wrapping_byte_add(bytes)
}

/// `memset(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { if bytes < zeros_from() { real::memset(to, byte, bytes) } else { set_long(to, byte, bytes) } }
}

/// `memcpy` as called by programs compiled with `_FORTIFY_SOURCE`; `room` is the destination's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __memcpy_chk(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    room: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { memcpy(to, from, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __memmove_chk(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    room: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { memmove(to, from, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __mempcpy_chk(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    room: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { mempcpy(to, from, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __memset_chk(
    to: *mut c_void,
    byte: c_int,
    bytes: usize,
    room: usize,
) -> *mut c_void {
    real::check(bytes, room);
    // SAFETY: the caller's promise.
    unsafe { memset(to, byte, bytes) }
}

/// `prctl(2)`: can forbid reading the cycle counter, by `PR_SET_TSC` or strict seccomp.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    start::before_prctl(option, second);
    // SAFETY: the caller's promise.
    unsafe { real::prctl(option, [second, third, fourth, fifth]) }
}

/// `syscall(2)`: can do the same by call number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    start::before_syscall(number, first, second);
    // SAFETY: the caller's promise.
    unsafe { real::syscall(number, [first, second, third, fourth, fifth, sixth]) }
}

/// # Safety
/// As `memmove`.
#[cold]
#[inline(never)]
unsafe fn copy_long(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    let overlap = from.addr().abs_diff(to.addr()) < bytes;
    // SAFETY: the caller's promise, and the ranges do not overlap.
    if !overlap && start::is_ready() && unsafe { slices::copy_past_caches(to.cast(), from.cast(), bytes) } {
        return to;
    }
    // SAFETY: the caller's promise; `memcpy` is only called if the ranges do not overlap.
    unsafe { if overlap { real::memmove(to, from, bytes) } else { real::memcpy(to, from, bytes) } }
}

/// # Safety
/// As `memset`.
#[cold]
#[inline(never)]
unsafe fn set_long(to: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    if byte as u8 == 0 && start::is_ready() && unsafe { slices::zero_past_caches(to.cast(), bytes) } {
        return to;
    }
    // SAFETY: the caller's promise.
    unsafe { real::memset(to, byte, bytes) }
}
