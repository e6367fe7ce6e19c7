//! `libmemferry_recorder.so`: replaces `memcpy`, `memmove`, `mempcpy`, `memset` and their checked variants; counts each call
//! and forwards it to the C library. `memferry profile` loads it into a program and reads the counts.
//!
//! ```text
//! memcpy ─ its return address ─► record ─► near or far? ─► clock ─► the C library's memcpy ─► clock ─► one row
//! no recording, setuid, before start: the C library at once
//! prctl ─► passed on; a call that forbids the cycle counter stops the timing
//! ```
//!
//! It is a separate library so that `libmemferry_preload.so` need not check at each call whether a recording is active. After
//! start-up it allocates nothing, takes no lock and makes no system call, so that programs may fork, sandbox themselves, and
//! copy in signal handlers. A call that the compiler turned into a jump is attributed to the caller's caller.
//!
//! Every exported function has the contract of the C library's function of that name.

#![expect(
    unsafe_code,
    reason = "the C library's interface is raw pointers, and its callers promise for them"
)]
#![expect(clippy::missing_safety_doc, reason = "the C library's contract, function by function")]

mod caller;
#[path = "../../preload/src/real.rs"]
mod real;
mod record;
mod start;
mod state;

use std::ffi::{c_int, c_ulong, c_void};

/// Exports a function that jumps to `$to` with its return address as an additional argument.
macro_rules! with_return_address {
    ($(#[$documentation:meta])* $name:ident, $to:path, $x86:literal, $arm:literal,
     ($($argument:ident: $kind:ty),+)) => {
        $(#[$documentation])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $kind),+) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym $to);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym $to);
        }
    };
}

with_return_address!(
    /// `memcpy(3)`.
    memcpy, record::memcpy, "rcx", "x3", (to: *mut c_void, from: *const c_void, bytes: usize)
);
with_return_address!(
    /// `memmove(3)`.
    memmove, record::memmove, "rcx", "x3", (to: *mut c_void, from: *const c_void, bytes: usize)
);
with_return_address!(
    /// `mempcpy(3)`.
    mempcpy, record::mempcpy, "rcx", "x3", (to: *mut c_void, from: *const c_void, bytes: usize)
);
with_return_address!(
    /// `memset(3)`.
    memset, record::memset, "rcx", "x3", (to: *mut c_void, byte: c_int, bytes: usize)
);
with_return_address!(
    /// `memcpy` as called by programs compiled with `_FORTIFY_SOURCE`; `room` is the destination's size.
    __memcpy_chk, record::memcpy_checked, "r8", "x4",
    (to: *mut c_void, from: *const c_void, bytes: usize, room: usize)
);
with_return_address!(
    __memmove_chk, record::memmove_checked, "r8", "x4",
    (to: *mut c_void, from: *const c_void, bytes: usize, room: usize)
);
with_return_address!(
    __mempcpy_chk, record::mempcpy_checked, "r8", "x4",
    (to: *mut c_void, from: *const c_void, bytes: usize, room: usize)
);
with_return_address!(
    __memset_chk, record::memset_checked, "r8", "x4",
    (to: *mut c_void, byte: c_int, bytes: usize, room: usize)
);

/// `prctl(2)`: can forbid reading the cycle counter, by `PR_SET_TSC` or strict seccomp.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let is_strict = option == libc::PR_SET_SECCOMP && second == c_ulong::from(libc::SECCOMP_MODE_STRICT);
    if is_strict || option == libc::PR_SET_TSC {
        state::stop_the_clock();
    }
    // SAFETY: the caller's promise.
    unsafe { real::prctl(option, [second, third, fourth, fifth]) }
}
