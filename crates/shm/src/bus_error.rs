//! Turns SIGBUS on guarded mappings into an error, so that a worker survives memory that fails.
//!
//! ```text
//! guarded(mappings, copy) ─ SIGBUS inside one of them ─► private page in its place, mapping damaged ─► MemoryFault
//!                         ─ SIGBUS elsewhere ──────────► the previous handler, else the default action
//! ```
//!
//! Seals keep clients from removing pages, but a memory limit, an empty huge-page pool or bad RAM can still make an access
//! fail. The copy then continues in the private page and its result is discarded. The mapping is marked damaged, and every
//! later guarded access to it fails too. The caller reports the failure to the client that owns the mapping.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, compiler_fence};

use thiserror::Error;

use crate::mapping::{Inner, Mapping};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("memory failed while it was being accessed")]
pub struct MemoryFault;

/// The memory of one [`guarded`] call; lies on that call's stack.
struct Guard {
    memories: *const [&'static Inner],
}

thread_local! {
    /// The present guard of this thread. It is const-initialized and has no destructor, so a signal handler may read it.
    static GUARD: AtomicPtr<Guard> = const { AtomicPtr::new(std::ptr::null_mut()) };
}

/// Whether memory of any mapping of this process has failed. Until then an access need not look at its mappings' own flags, which lie
/// in other cache lines.
static ANY_DAMAGED: AtomicBool = AtomicBool::new(false);

static PREVIOUS: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Installs the handler, once for the process. Faults outside guarded mappings go to the previous handler.
///
/// # Errors
/// Those of `sigaction`.
pub fn install() -> io::Result<()> {
    let previous = PREVIOUS.get_or_init(|| {
        // SAFETY: zeroed sigactions are valid. The handler is async-signal-safe: it reads a const thread-local, and calls
        // mmap, sigaction and the previous handler only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut previous: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            (libc::sigaction(libc::SIGBUS, &action, &mut previous) == 0).then_some(previous)
        }
    });
    if previous.is_some() { Ok(()) } else { Err(io::Error::other("cannot install the SIGBUS handler")) }
}

/// Runs `access`, which may fault in `mappings` only.
///
/// # Errors
/// [`MemoryFault`] when memory of a mapping failed, now or before. The result of `access` is then discarded.
#[inline]
pub fn guarded<T, const N: usize>(
    mappings: [&Mapping; N],
    access: impl FnOnce() -> T,
) -> Result<T, MemoryFault> {
    guarded_memories(mappings.map(Mapping::inner), access)
}

/// As [`guarded`].
#[inline]
pub(crate) fn guarded_memories<T, const N: usize>(
    memories: [&Inner; N],
    access: impl FnOnce() -> T,
) -> Result<T, MemoryFault> {
    let guard = Guard { memories: (&raw const memories).cast::<[&'static Inner; N]>() };
    let outer = GUARD.with(|current| {
        // Only this thread and its handler use the pointer, so no exchange.
        let outer = current.load(Ordering::Relaxed);
        current.store((&raw const guard).cast_mut(), Ordering::Relaxed);
        outer
    });
    // The handler runs on this thread in the middle of `access`. The fences keep the compiler from moving accesses out of
    // the guard.
    compiler_fence(Ordering::SeqCst);
    let result = access();
    compiler_fence(Ordering::SeqCst);
    GUARD.with(|current| current.store(outer, Ordering::Relaxed));
    let failed = ANY_DAMAGED.load(Ordering::Acquire) && memories.iter().any(|memory| memory.damaged());
    if failed { Err(MemoryFault) } else { Ok(result) }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: Linux passes a valid siginfo to a SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    let guard = GUARD.with(|current| current.load(Ordering::Relaxed));
    // SAFETY: the pointer is non-null only while `guarded_memories` runs on this thread. Its stack frame holds the guard and the
    // array to which the guard points, and borrows what that refers to.
    let memories = unsafe { guard.as_ref().map(|guard| &*guard.memories) };
    let hit = memories.and_then(|memories| {
        memories.iter().find_map(|memory| Some((memory, memory.replaceable_page(address)?)))
    });
    if let Some((memory, (page, length))) = hit {
        // The flags are set before the page is replaced, so another thread that reads the fresh page finds the mapping damaged
        // when its own access ends.
        memory.set_damaged();
        ANY_DAMAGED.store(true, Ordering::SeqCst);
        if replace_page(page, length) {
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Maps a zeroed private page over the one that failed.
fn replace_page(page: usize, length: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: M1: the page lies in a watched mapping, which stays mapped at its address. Its bytes are already lost.
    unsafe { libc::mmap(page as *mut c_void, length, protection, flags, -1, 0) != libc::MAP_FAILED }
}

/// Passes a fault outside guarded mappings to the previous handler, else to the default action.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get().copied().flatten();
    match previous.map(|action| (action.sa_sigaction, action.sa_flags)) {
        Some((handler, flags)) if handler != libc::SIG_DFL && handler != libc::SIG_IGN => {
            // SAFETY: the handler was installed before this one, and is called with the arguments that its flags promise.
            unsafe {
                if flags & libc::SA_SIGINFO != 0 {
                    let call: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        std::mem::transmute(handler);
                    call(signal, info, context);
                } else {
                    let call: extern "C" fn(c_int) = std::mem::transmute(handler);
                    call(signal);
                }
            }
        }
        // SAFETY: this restores the default action. The faulting instruction then runs again and ends the process.
        _ => unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        },
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::mapping::Access;

    #[test]
    fn a_copy_over_removed_pages_returns_a_fault() {
        install().unwrap();
        let page = rustix::param::page_size();
        let (descriptor, _) = crate::frame::allocate(2 * page as u64, Default::default()).unwrap();
        let mapping = Mapping::shared(descriptor.as_fd(), 2 * page, Access::ReadWrite, page).unwrap();
        let sound = Mapping::owned(vec![0; 8]);
        // The memfd was not admitted as a frame and has no seals, so it can shrink.
        rustix::fs::ftruncate(&descriptor, page as u64).unwrap();
        let touch = |offset: u64| guarded([&mapping, &sound], || mapping.write(offset, &[1; 8]).unwrap());
        assert_eq!(touch(0), Ok(()));
        assert_eq!(touch(page as u64 + 8), Err(MemoryFault));
        assert!(mapping.damaged() && !sound.damaged());
        assert_eq!(touch(0), Err(MemoryFault), "a damaged mapping served another access");
    }

    #[test]
    fn what_is_replaced_ends_with_the_mapping() {
        let page = rustix::param::page_size();
        let (descriptor, _) = crate::frame::allocate(2 * page as u64, Default::default()).unwrap();
        let map = |bytes| Mapping::shared(descriptor.as_fd(), 2 * page, Access::ReadWrite, bytes).unwrap();
        let mapping = map(1 << 40);
        let start = mapping.pointer().addr();
        for address in [start, start + page, start + 2 * page - 1] {
            assert_eq!(mapping.inner().replaceable_page(address), Some((start, 2 * page)));
        }
        assert_eq!(mapping.inner().replaceable_page(start + 2 * page), None);
        let mapping = map(page);
        let second = mapping.pointer().addr() + page;
        assert_eq!(mapping.inner().replaceable_page(second + 8), Some((second, page)));
    }
}
