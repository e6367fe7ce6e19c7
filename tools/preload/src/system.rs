//! System calls that leave `errno` alone: a copy must not change it, and a lane has no `errno` of its own.
//!
//! ```text
//! what is asked ─► one instruction ─► Ok(value) or Err(number)
//! ```
//!
//! Only what lanes and those that hand copies to them need. Nothing here allocates, locks, or is seen by other stand-ins.

use std::arch::asm;
use std::ffi::{CStr, c_long};
use std::ptr;
use std::sync::atomic::AtomicU32;

/// What the kernel answers when it does not do it.
pub(crate) type Number = i32;
pub(crate) type Descriptor = i32;

/// Bytes of a page; where they are others, no copy is handed to a lane.
pub(crate) const PAGE: usize = 4096;

/// One system call.
///
/// # Safety
/// What the call does with these arguments is within what the caller may do to memory.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, Number> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's convention: it changes these registers, and the memory that the caller answers for.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") first, in("rsi") second, in("rdx") third,
             in("r10") fourth, in("r8") fifth, in("r9") sixth, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") first => answer, in("x1") second, in("x2") third,
             in("x3") fourth, in("x4") fifth, in("x5") sixth, options(nostack));
    }
    if (-4095..0).contains(&answer) { Err(-answer as Number) } else { Ok(answer as usize) }
}

/// The number of the calling process, asked of the kernel each time: a child may share this memory.
pub(crate) fn process() -> u32 {
    // SAFETY: it touches no memory.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u32
}

/// While it lives, the calling thread runs no signal handler, those of the C library's own signals included.
pub(crate) struct Undisturbed(u64);

impl Undisturbed {
    pub(crate) fn new() -> Self {
        let all = u64::MAX;
        let mut before = 0u64;
        // SAFETY: it reads one set and writes the other, of eight bytes each.
        let _ =
            unsafe { call(libc::SYS_rt_sigprocmask, [0, address(&all), address(&raw mut before), 8, 0, 0]) };
        Self(before)
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        const SET: usize = libc::SIG_SETMASK as usize;
        // SAFETY: it reads a set of eight bytes.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, [SET, address(&self.0), 0, 8, 0, 0]) };
    }
}

fn address<T>(of: *const T) -> usize {
    of.addr()
}

/// Sleeps while `word` is `value`; may wake for no reason. `false` when it slept as long as it may.
pub(crate) fn wait(word: &AtomicU32, value: u32, most_ms: u64) -> bool {
    const WAIT: usize = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let most = [most_ms / 1000, most_ms % 1000 * 1_000_000];
    // SAFETY: it reads the word and a time of two words.
    let slept =
        unsafe { call(libc::SYS_futex, [word.as_ptr().addr(), WAIT, value as usize, address(&most), 0, 0]) };
    slept != Err(libc::ETIMEDOUT)
}

/// Wakes whoever sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    const WAKE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: it touches no memory.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr().addr(), WAKE, i32::MAX as usize, 0, 0, 0]) };
}

/// Lets others have this processor.
pub(crate) fn give_way() {
    // SAFETY: it touches no memory.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Sleeps for a millisecond.
pub(crate) fn pause() {
    wait(&AtomicU32::new(0), 0, 1);
}

/// Opens what is there.
pub(crate) fn open(path: &CStr, flags: i32) -> Result<Descriptor, Number> {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: it reads a name that ends with zero.
    unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr().addr(), flags, 0, 0, 0]) }
        .map(|descriptor| descriptor as Descriptor)
}

pub(crate) fn close(descriptor: Descriptor) {
    // SAFETY: only descriptors opened here are closed, by whoever opened them.
    let _ = unsafe { call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
}

/// Reads what is there now, from the beginning of a file or the front of a stream.
pub(crate) fn read(descriptor: Descriptor, into: &mut [u8], from_beginning: bool) -> Result<usize, Number> {
    let number = if from_beginning { libc::SYS_pread64 } else { libc::SYS_read };
    let start = into.as_mut_ptr().addr();
    let length = into.len();
    // SAFETY: it writes within the slice.
    unsafe { call(number, [descriptor as usize, start, length, 0, 0, 0]) }
}

/// `ioctl(2)` with a structure.
///
/// # Safety
/// The request takes a structure of this type, and what it does to memory besides is within what the caller may do.
pub(crate) unsafe fn control<T>(
    descriptor: Descriptor,
    request: usize,
    about: &mut T,
) -> Result<usize, Number> {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_ioctl, [descriptor as usize, request, ptr::from_mut(about).addr(), 0, 0, 0]) }
}

/// Ends the process at once: for the few cases where going on would let it see bytes that are not those it was promised. A lane is
/// confined, and may not even call this: it is killed for it, and the process with it.
pub(crate) fn end_process() -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { call(libc::SYS_exit_group, [128 + libc::SIGKILL as usize, 0, 0, 0, 0, 0]) };
    }
}
