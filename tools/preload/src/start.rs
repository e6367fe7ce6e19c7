//! What happens once, when the library is loaded, and the thresholds that come of it.
//!
//! ```text
//! .init_array ─► real::find ─► setuid or MEMFERRY_PRELOAD=off? ─ yes ─► thresholds stay out of reach: all is the C library's
//!                                └ no ──► another value: a line on stderr ─► caches of this machine ─► thresholds
//! prctl or syscall that forbids the processor's clock ─► thresholds are out of reach again
//! ```
//!
//! All that needs the system is done here: later the program may have forbidden it. A profile of `memferry tune` is not read.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use std::sync::atomic::{AtomicUsize, Ordering};

use memferry_cpu::level::Cpu;
use memferry_cpu::slices;
use memferry_cpu::tuning::{self, Tuning};

use crate::real;

static COPIES_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static ZEROS_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Bytes from which a copy may go past the caches.
#[inline]
pub(crate) fn copies_from() -> usize {
    COPIES_FROM.load(Ordering::Relaxed)
}

/// Bytes from which zeroing may.
#[inline]
pub(crate) fn zeros_from() -> usize {
    ZEROS_FROM.load(Ordering::Relaxed)
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if !real::find() || is_secure() {
        return;
    }
    if let Some((value, place)) = setting() {
        match value.to_bytes() {
            b"off" => return,
            b"" => {}
            _ => refuse(value, place),
        }
    }
    let tuning = Tuning::of_caches(last_level_bytes());
    // The engine looks for these at its first use; here is the last time that it may open files and allocate.
    let _ = (Cpu::of_this_process(), tuning::install(tuning), slices::untouched_ticks());
    COPIES_FROM.store(usize_of(tuning.stream_cold_bytes), Ordering::Relaxed);
    ZEROS_FROM.store(usize_of(tuning.zero_cold_bytes), Ordering::Relaxed);
}

/// Says that a value has no meaning, and empties it, so that programs started from here do not say it again.
fn refuse(value: &CStr, place: *mut c_char) {
    let line = match value.to_bytes() {
        b"split" => {
            "memferry: MEMFERRY_PRELOAD=split is ignored: copies are not split any more; unset it, or set it to off\n"
        }
        b"async" => {
            "memferry: MEMFERRY_PRELOAD=async is ignored: no copy is asynchronous any more; unset it, or set it to off\n"
        }
        _ => "memferry: MEMFERRY_PRELOAD is ignored: its only value is off; unset it, or set it to off\n",
    };
    // SAFETY: `write` reads the line. The string of the environment is not empty, and nobody else uses the environment while libraries
    // are loaded.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        place.write(0);
    }
}

/// To be called before a `prctl`: without the processor's clock nobody can tell how far memory is.
pub(crate) fn before_prctl(option: c_int, second: c_ulong) {
    let is_strict = option == libc::PR_SET_SECCOMP && second == c_ulong::from(libc::SECCOMP_MODE_STRICT);
    if is_strict || option == libc::PR_SET_TSC {
        COPIES_FROM.store(usize::MAX, Ordering::Relaxed);
        ZEROS_FROM.store(usize::MAX, Ordering::Relaxed);
    }
}

/// To be called before a `syscall`.
pub(crate) fn before_syscall(number: c_long, first: c_long, second: c_long) {
    match number {
        libc::SYS_prctl => before_prctl(first as c_int, second as c_ulong),
        libc::SYS_seccomp if first as u32 == libc::SECCOMP_SET_MODE_STRICT => {
            before_prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT.into());
        }
        _ => {}
    }
}

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Whether the program has rights that its caller lacks.
fn is_secure() -> bool {
    // SAFETY: it takes a number and touches no memory of ours.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of `MEMFERRY_PRELOAD`, and its place in the environment.
fn setting() -> Option<(&'static CStr, *mut c_char)> {
    // SAFETY: nobody changes the environment while libraries are loaded, and the name ends with zero.
    let value = unsafe { libc::getenv(c"MEMFERRY_PRELOAD".as_ptr()) };
    // SAFETY: what is not null is a string of the environment; it is used while libraries are loaded only.
    (!value.is_null()).then(|| (unsafe { CStr::from_ptr(value) }, value))
}

/// Bytes of the last cache, as the kernel tells in one file; where it does not, what most machines have at least.
fn last_level_bytes() -> u64 {
    const USUAL: u64 = 8 << 20;
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let kibibytes = text.ok().and_then(|text| text.trim().strip_suffix('K')?.parse::<u64>().ok());
    kibibytes.and_then(|size| size.checked_mul(1024)).filter(|size| *size > 0).unwrap_or(USUAL)
}
