//! The C library's functions that this library's exports replace.
//!
//! ```text
//! before `find`: plain loops without calls           after: results of `dlsym(RTLD_NEXT)`
//! ```
//!
//! Constructors of other libraries, and `dlsym` itself, may copy before this library's constructor runs.

use std::arch::asm;
use std::ffi::{CStr, c_int, c_long, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type Set = unsafe extern "C" fn(*mut c_void, c_int, usize) -> *mut c_void;

static MEMCPY: AtomicPtr<c_void> = AtomicPtr::new(early_move as *mut c_void);
static MEMMOVE: AtomicPtr<c_void> = AtomicPtr::new(early_move as *mut c_void);
static MEMSET: AtomicPtr<c_void> = AtomicPtr::new(early_set as *mut c_void);

static PRCTL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Looks up all functions; returns `false` if one is missing, which then stays a plain loop.
pub(crate) fn find() -> bool {
    let all = [
        (&MEMCPY, c"memcpy"),
        (&MEMMOVE, c"memmove"),
        (&MEMSET, c"memset"),
        (&PRCTL, c"prctl"),
        (&SYSCALL, c"syscall"),
    ];
    all.into_iter().all(|(place, name)| {
        let found = next(name);
        if !found.is_null() {
            place.store(found, Ordering::Relaxed);
        }
        !found.is_null()
    })
}

fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is zero-terminated, and none of our memory is accessed.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// # Safety
/// As `memcpy(3)`.
#[inline]
pub(crate) unsafe fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: only functions of this type are stored there; the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, Copy>(MEMCPY.load(Ordering::Relaxed))(to, from, bytes) }
}

/// # Safety
/// As `memmove(3)`.
#[inline]
pub(crate) unsafe fn memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    // SAFETY: only functions of this type are stored there; the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, Copy>(MEMMOVE.load(Ordering::Relaxed))(to, from, bytes) }
}

/// # Safety
/// As `memset(3)`.
#[inline]
pub(crate) unsafe fn memset(to: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    // SAFETY: only functions of this type are stored there; the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, Set>(MEMSET.load(Ordering::Relaxed))(to, byte, bytes) }
}

pub(crate) type Arguments = [c_ulong; 4];
type Control = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;

/// # Safety
/// As `prctl(2)`.
pub(crate) unsafe fn prctl(option: c_int, [second, third, fourth, fifth]: Arguments) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match PRCTL.load(Ordering::Relaxed) {
            found if found.is_null() => {
                let [option, second, third, fourth, fifth] =
                    [option as c_ulong, second, third, fourth, fifth].map(|value| value as c_long);
                syscall(libc::SYS_prctl, [option, second, third, fourth, fifth, 0]) as c_int
            }
            // Only a function of this type is stored there. It is variadic in C; fixed arguments are passed the same way.
            found => std::mem::transmute::<*mut c_void, Control>(found)(option, second, third, fourth, fifth),
        }
    }
}

type Call = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// # Safety
/// As `syscall(2)`.
pub(crate) unsafe fn syscall(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the caller's promise; `errno` is this thread's.
    unsafe {
        match SYSCALL.load(Ordering::Relaxed) {
            found if found.is_null() => {
                let result = kernel_call(number, arguments);
                if !(-4095..0).contains(&result) {
                    return result;
                }
                *libc::__errno_location() = -result as c_int;
                -1
            }
            // Only a function of this type is stored there. It is variadic in C; fixed arguments are passed the same way.
            found => std::mem::transmute::<*mut c_void, Call>(found)(
                number, first, second, third, fourth, fifth, sixth,
            ),
        }
    }
}

/// Makes a system call without the C library; an error is a negative error number.
///
/// # Safety
/// As `syscall(2)`.
unsafe fn kernel_call(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel changes only these registers, and memory for which the caller vouches.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") first, in("rsi") second, in("rdx") third,
             in("r10") fourth, in("r8") fifth, in("r9") sixth, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") first => result, in("x1") second, in("x2") third,
             in("x3") fourth, in("x4") fifth, in("x5") sixth, options(nostack));
    }
    result
}

/// Aborts like the C library, with its message, if a buffer would overflow.
#[inline]
pub(crate) fn check(bytes: usize, room: usize) {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    if bytes > room {
        // SAFETY: it takes no arguments and does not return.
        unsafe { __chk_fail() }
    }
}

/// Volatile and byte by byte, or the compiler would turn the loop into a call of the replaced function.
unsafe extern "C" fn early_move(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    let destination = to.cast::<u8>();
    let source = from.cast::<u8>();
    // SAFETY: the caller's promise for `bytes` bytes of both.
    let move_one = |at: usize| unsafe {
        ptr::write_volatile(destination.add(at), ptr::read_volatile(source.add(at)));
    };
    if from.addr() < to.addr() {
        (0..bytes).rev().for_each(move_one);
    } else {
        (0..bytes).for_each(move_one);
    }
    to
}

unsafe extern "C" fn early_set(to: *mut c_void, byte: c_int, bytes: usize) -> *mut c_void {
    for at in 0..bytes {
        // SAFETY: the caller's promise for `bytes` bytes.
        unsafe { ptr::write_volatile(to.cast::<u8>().add(at), byte as u8) };
    }
    to
}
