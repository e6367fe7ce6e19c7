//! Sleep on a wake word and wake its sleepers, across processes, by a futex on its low half.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The address of the low half, which every increment changes.
fn low_half(word: &AtomicU64) -> *const u32 {
    let halves = std::ptr::from_ref(word).cast::<u32>();
    if cfg!(target_endian = "little") { halves } else { halves.wrapping_add(1) }
}

/// Sleeps for at most `limit` while the low half of `word` equals that of `expected`. May return early.
pub fn wait(word: &AtomicU64, expected: u64, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: limit.subsec_nanos() as _,
    };
    // SAFETY: the word lives during the call, and Linux only reads it. The time-out is a valid timespec.
    unsafe {
        libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAIT, expected as u32, &raw const limit);
    }
}

/// Limit on the sleepers that one call wakes, far above what an honest client has. It bounds the service's work for a client
/// that lets thousands of threads sleep; further sleepers check again after their time limit.
const MAX_WOKEN: i32 = 64;

/// Wakes up to `MAX_WOKEN` sleepers of `word`.
pub fn wake(word: &AtomicU64) {
    // SAFETY: the word lives during the call, and Linux uses only its address.
    unsafe {
        libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, MAX_WOKEN);
    }
}
