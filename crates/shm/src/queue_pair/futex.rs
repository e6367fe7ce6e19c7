//! The futex of a wake word: sleeping on its low half and waking it, across processes.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The address of the half that changes with every increment.
fn low_half(word: &AtomicU64) -> *const u32 {
    let halves = std::ptr::from_ref(word).cast::<u32>();
    if cfg!(target_endian = "little") { halves } else { halves.wrapping_add(1) }
}

/// Sleeps while the low half of `word` is that of `expected`, `limit` at most; may return early.
pub fn wait(word: &AtomicU64, expected: u64, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: limit.subsec_nanos() as _,
    };
    // SAFETY: the word lives during the call and the kernel only reads it; the time-out is a valid timespec.
    unsafe {
        libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAIT, expected as u32, &raw const limit);
    }
}

/// Sleepers that are woken at once, many times what a client has: it may let thousands of threads sleep, and have who wakes them work
/// for each. Those beyond look again after their limit.
const MOST_WOKEN: i32 = 64;

/// Wakes the sleepers of `word`.
pub fn wake(word: &AtomicU64) {
    // SAFETY: the word lives during the call and the kernel uses its address only.
    unsafe {
        libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, MOST_WOKEN);
    }
}
