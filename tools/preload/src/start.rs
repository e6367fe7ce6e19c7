//! One-time start-up when the library is loaded: sets the thresholds.
//!
//! ```text
//! .init_array ─► real::find ─► setuid or MEMFERRY_PRELOAD=off? ─ yes ─► thresholds stay at the maximum: C library only
//!                                └ no ──► unknown value: a line on stderr ─► cache sizes of this machine ─► thresholds
//! first long copy ─► is_ready: the CPU's features, without the environment    (most programs end before one)
//! prctl or syscall that forbids the cycle counter ─► thresholds return to the maximum
//! ```
//!
//! Everything that needs the system happens when the library is loaded, because the program may forbid it later. `memferry tune`
//! profiles are not read.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use memferry_cpu::level::{self, Cpu};
use memferry_cpu::slices;
use memferry_cpu::tuning::{self, Tuning};

use crate::real;

static COPIES_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static ZEROS_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Minimum bytes of a copy that may bypass the caches.
#[inline]
pub(crate) fn copies_from() -> usize {
    COPIES_FROM.load(Ordering::Relaxed)
}

/// Minimum bytes of zeroing that may bypass the caches.
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
            _ => reject(value, place),
        }
    }
    let tuning = Tuning::of_caches(last_level_bytes());
    // The engine initializes these at first use; later the program may forbid opening files and allocating.
    let _ = (tuning::install(tuning), slices::untouched_ticks());
    if is_set(level::VARIABLE) {
        // Reading the variable allocates, and later the program may change the environment meanwhile.
        let _ = Cpu::of_this_process();
        FEATURES.store(FOUND, Ordering::Release);
    }
    COPIES_FROM.store(usize_of(tuning.stream_cold_bytes), Ordering::Relaxed);
    ZEROS_FROM.store(usize_of(tuning.zero_cold_bytes), Ordering::Relaxed);
}

const FOUND: u8 = 2;
const SOUGHT: u8 = 1;
const UNKNOWN: u8 = 0;
static FEATURES: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether the engine's kernels may be used. The first call asks the CPU for its features, which takes longer than all else at the
/// start, most of all in a virtual machine. It makes no system call, reads no environment and does not allocate. A copy in a signal
/// handler that interrupts it, or in another thread meanwhile, is the C library's; so are all copies of a child that was forked
/// during it.
pub(crate) fn is_ready() -> bool {
    if FEATURES.load(Ordering::Acquire) == FOUND {
        return true;
    }
    if FEATURES.compare_exchange(UNKNOWN, SOUGHT, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    let _ = Cpu::unforced();
    FEATURES.store(FOUND, Ordering::Release);
    true
}

/// Whether the environment has a variable.
fn is_set(name: &str) -> bool {
    let mut room = [0; 32];
    let Some(start) = room.get_mut(..name.len()) else { return true };
    start.copy_from_slice(name.as_bytes());
    // SAFETY: nobody changes the environment while libraries are loaded, and the name is zero-terminated.
    CStr::from_bytes_until_nul(&room).is_ok_and(|name| unsafe { !libc::getenv(name.as_ptr()).is_null() })
}

/// Reports an invalid value, and empties it so that child programs do not report it again.
fn reject(value: &CStr, place: *mut c_char) {
    let line = match value.to_bytes() {
        b"split" => {
            "memferry: MEMFERRY_PRELOAD=split is ignored: copies are no longer split; unset it, or set it to off\n"
        }
        b"async" => {
            "memferry: MEMFERRY_PRELOAD=async is ignored: copies are no longer asynchronous; unset it, or set it to off\n"
        }
        _ => "memferry: MEMFERRY_PRELOAD is ignored: its only value is off; unset it, or set it to off\n",
    };
    // SAFETY: `write` reads the line. The environment's string is not empty, and nobody else uses the environment while
    // libraries are loaded.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        place.write(0);
    }
}

/// Call before a `prctl`: without the cycle counter the engine cannot measure whether memory is cached.
pub(crate) fn before_prctl(option: c_int, second: c_ulong) {
    let is_strict = option == libc::PR_SET_SECCOMP && second == c_ulong::from(libc::SECCOMP_MODE_STRICT);
    if is_strict || option == libc::PR_SET_TSC {
        COPIES_FROM.store(usize::MAX, Ordering::Relaxed);
        ZEROS_FROM.store(usize::MAX, Ordering::Relaxed);
    }
}

/// Call before a `syscall`.
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

/// Whether the program runs with privileges that its caller lacks (setuid or similar).
fn is_secure() -> bool {
    // SAFETY: it takes a number and does not access our memory.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of `MEMFERRY_PRELOAD`, and its address in the environment.
fn setting() -> Option<(&'static CStr, *mut c_char)> {
    // SAFETY: nobody changes the environment while libraries are loaded, and the name is zero-terminated.
    let value = unsafe { libc::getenv(c"MEMFERRY_PRELOAD".as_ptr()) };
    // SAFETY: a non-null result is a string of the environment; it is used only while libraries are loaded.
    (!value.is_null()).then(|| (unsafe { CStr::from_ptr(value) }, value))
}

/// Size of the last-level cache according to the kernel; if unknown, a common minimum.
fn last_level_bytes() -> u64 {
    const USUAL: u64 = 8 << 20;
    let mut room = [0; 16];
    let kibibytes = read_start(c"/sys/devices/system/cpu/cpu0/cache/index3/size", &mut room)
        .and_then(|text| std::str::from_utf8(text).ok()?.trim().strip_suffix('K')?.parse::<u64>().ok());
    kibibytes.and_then(|size| size.checked_mul(1024)).filter(|size| *size > 0).unwrap_or(USUAL)
}

/// The first bytes of a file. The standard library's functions would touch many pages of code that no program needs otherwise.
fn read_start<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path is zero-terminated, `read` writes at most the room's bytes, and the descriptor is this function's own.
    let count = unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let count = libc::read(file, room.as_mut_ptr().cast(), room.len());
        libc::close(file);
        count
    };
    room.get(..usize::try_from(count).ok()?)
}
