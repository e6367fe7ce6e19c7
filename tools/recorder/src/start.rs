//! One-time start-up when the library is loaded: maps the recording.
//!
//! ```text
//! .init_array ─► real::find ─► setuid, or no recording to open? ─ yes ─► nothing is counted
//!                                                              └ no ──► recording mapped for the process's lifetime
//! ```
//!
//! The descriptor is closed at once, since programs may count their descriptors. A forked child inherits the mapping and
//! keeps counting.

use std::ffi::{CStr, OsStr, c_int, c_ulong};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use memferry_cpu::tuning;

use crate::{caller, real, state};

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if !real::find() || is_secure() {
        return;
    }
    let Some(recorder) = path().and_then(|path| memferry_recording::open(path).ok()) else { return };
    // The engine reads its thresholds at first use; later the program may forbid opening files and allocating.
    if clock_is_forbidden() {
        state::stop_the_clock();
    } else {
        state::set_can_measure_distance(tuning::current().far_ticks > 0);
    }
    caller::find();
    recorder.count_process();
    state::install(recorder);
}

/// Whether the program runs with privileges that its caller lacks (setuid or similar).
fn is_secure() -> bool {
    // SAFETY: it takes a number and does not access our memory.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether the program was started with the cycle counter forbidden.
fn clock_is_forbidden() -> bool {
    let mut state: c_int = libc::PR_TSC_ENABLE;
    let address = ptr::from_mut(&mut state).expose_provenance() as c_ulong;
    // SAFETY: it writes one number at that address, or fails on machines without this setting.
    unsafe { real::prctl(libc::PR_GET_TSC, [address, 0, 0, 0]) };
    state == libc::PR_TSC_SIGSEGV
}

fn path() -> Option<&'static OsStr> {
    const NAME: &CStr = c"MEMFERRY_RECORDING";
    // SAFETY: nobody changes the environment while libraries are loaded, and the name is zero-terminated.
    let value = unsafe { libc::getenv(NAME.as_ptr()) };
    // SAFETY: a non-null result is a string of the environment, which stays unchanged while libraries are loaded.
    (!value.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(value) }.to_bytes()))
}
