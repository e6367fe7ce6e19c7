//! `libmemferry_preload.so`: stands in for `memcpy`, `memmove`, `mempcpy`, `memset` and their checked variants, in programs
//! that know nothing of memferry (Wicki 2014, 5.2.1.1 and 5.3: application-transparent interfaces).
//!
//! ```text
//! LD_PRELOAD ─► start: finds the C library's own, sets the threshold and the mode
//! memcpy(n) ─┬─ n < threshold ─────────────────────────► the C library's: a comparison and a jump more
//!            └─ else ─ overlap? mode? ─┬─ alone, `now`: far (engine's choice)? ─┬─ past the caches: the engine's kernels
//!                                      │                                        └─ the C library's
//!                                      ├─ `split`: pieces by the caller, pieces by the lane
//!                                      └─ `later`: to new memory, by the lane, after the call returned
//! before start, in setuid programs, with MEMFERRY_PRELOAD=off: always the C library's (or, before it is found, a plain loop)
//! prctl, syscall, unshare, setns, mremap, madvise ─► what a lane or the processor's clock is in the way of is noticed, and passed on
//! ```
//!
//! Unless a mode is asked for, it allocates nothing, starts no thread, takes no lock, opens no descriptor that stays and makes no
//! system call after the program has begun, so that a program may fork, confine itself, close what it likes and copy in signal
//! handlers as it could before. The other modes have one thread (`lane`) that takes care of the same. A program that confines itself by
//! a system call of its own, past `prctl(2)` and `syscall(2)`, must run without it.
//!
//! Every exported function has the contract of the C library's function of that name.

#![expect(
    unsafe_code,
    reason = "the C library's interface is raw pointers, and its callers promise for them"
)]
#![expect(clippy::missing_safety_doc, reason = "the C library's contract, function by function")]

mod confine;
mod guard;
mod lane;
mod later;
mod pinned;
mod places;
mod real;
mod split;
mod start;
mod system;
mod userfault;

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use memferry_cpu::slices;
use start::{Mode, copies_from, zeros_from};

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

/// `memcpy` as programs compiled with `_FORTIFY_SOURCE` call it: `room` is what the destination holds.
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

/// `prctl(2)`, which can take the processor's clock away (`PR_SET_TSC`; strict seccomp does it too), and with it how memory is
/// told from a cache here. What confines the program would confine or kill its lane.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    start::heed_prctl(option, second);
    // SAFETY: the caller's promise.
    unsafe { real::prctl(option, [second, third, fourth, fifth]) }
}

/// `syscall(2)`: the same by number, and what only a process of one thread may do.
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
    start::heed_call(number, first, second);
    // SAFETY: the caller's promise.
    unsafe { real::syscall(number, [first, second, third, fourth, fifth, sixth]) }
}

/// `unshare(2)`, which wants a process of one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    lane::dismiss();
    // SAFETY: the caller's promise.
    unsafe { real::syscall(libc::SYS_unshare, [flags.into(), 0, 0, 0, 0, 0]) as c_int }
}

/// `mremap(2)`, which wants one mapping; while a copy is still to be made, what guards it makes several of one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_bytes: usize,
    bytes: usize,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    lane::settle();
    let arguments =
        [old.addr(), old_bytes, bytes, flags as usize, place.addr(), 0].map(|value| value as c_long);
    // SAFETY: the caller's promise.
    unsafe { with_exposed_provenance_mut(real::syscall(libc::SYS_mremap, arguments) as usize) }
}

/// `madvise(2)`, which asks for huge pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    start::heed_advice(advice);
    let arguments = [start.addr() as c_long, bytes as c_long, advice.into(), 0, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { real::syscall(libc::SYS_madvise, arguments) as c_int }
}

/// `setns(2)`, as `unshare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(descriptor: c_int, kind: c_int) -> c_int {
    lane::dismiss();
    // SAFETY: the caller's promise.
    unsafe { real::syscall(libc::SYS_setns, [descriptor.into(), kind.into(), 0, 0, 0, 0]) as c_int }
}

/// # Safety
/// As `memmove`.
#[cold]
#[inline(never)]
unsafe fn copy_long(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    let there = to.expose_provenance();
    let here = from.expose_provenance();
    // SAFETY: the caller's promise; but for `memmove` the ranges are apart.
    unsafe {
        match start::mode() {
            _ if here.abs_diff(there) < bytes => return real::memmove(to, from, bytes),
            Mode::Later if bytes >= later::LEAST_BYTES => later::copy(there, here, bytes),
            Mode::Split if bytes >= start::splits_from() => split::copy(there, here, bytes),
            _ => now(there, here, bytes),
        }
    }
    to
}

/// Copies at once, past the caches where that pays.
///
/// # Safety
/// As `memcpy`.
unsafe fn now(to: usize, from: usize, bytes: usize) {
    let to = with_exposed_provenance_mut::<u8>(to);
    let from = with_exposed_provenance::<u8>(from);
    // SAFETY: the caller's promise.
    unsafe {
        if !slices::copy_past_caches(to, from, bytes) {
            real::memcpy(to.cast(), from.cast(), bytes);
        }
    }
}

/// # Safety
/// As `memset`.
#[cold]
#[inline(never)]
unsafe fn set_long(to: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    if byte as u8 == 0 && unsafe { slices::zero_past_caches(to.cast(), bytes) } {
        return to;
    }
    // SAFETY: the caller's promise.
    unsafe { real::memset(to, byte, bytes) }
}
