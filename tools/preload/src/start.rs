//! What happens once, when the library is loaded, and the thresholds and the mode that come of it.
//!
//! ```text
//! .init_array ─► real::find ─► setuid or MEMFERRY_PRELOAD=off? ─ yes ─► nothing ever goes another way
//!                                ├ another word ─► said once, and as if there were none
//!                                └ no ──► caches of this machine ─► thresholds
//!                                         MEMFERRY_PRELOAD=split ──► may there be a lane? ─────────────────┐
//!                                         MEMFERRY_PRELOAD=async ──► and userfaultfd? ─ no: said, split ─┴─► mode
//! prctl that forbids the processor's clock ─► from here on all is left to the C library
//! seccomp ─► no lane from here on       unshare, setns ─► no lane for the moment       fork ─► the child starts its own
//! ```
//!
//! All that needs the system is done here: later the program may have forbidden it. A profile of `memferry tune` is not read.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use memferry_cpu::level::Cpu;
use memferry_cpu::slices;
use memferry_cpu::tuning::{self, Tuning};

use crate::places::{self, Files};
use crate::userfault::{self, Userfault};
use crate::{lane, real, system};

static COPIES_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static ZEROS_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
static SPLITS_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
/// New memory may come in huge pages.
static HUGE: AtomicBool = AtomicBool::new(false);
static MODE: AtomicU8 = AtomicU8::new(Mode::Alone as u8);

/// How long copies are made.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    Alone,
    /// By the caller and a lane.
    Split,
    /// To new memory by a lane, after the call returned.
    Later,
}

/// Bytes from which a copy may go another way than the C library's.
#[inline]
pub(crate) fn copies_from() -> usize {
    COPIES_FROM.load(Ordering::Relaxed)
}

/// Bytes from which zeroing may.
#[inline]
pub(crate) fn zeros_from() -> usize {
    ZEROS_FROM.load(Ordering::Relaxed)
}

/// Bytes from which a copy is worth waking a lane for.
pub(crate) fn splits_from() -> usize {
    SPLITS_FROM.load(Ordering::Relaxed)
}

/// How long copies are made now.
pub(crate) fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        mode if mode == Mode::Later as u8 => Mode::Later,
        mode if mode == Mode::Split as u8 => Mode::Split,
        _ => Mode::Alone,
    }
}

/// Whether new memory may come in huge pages, which a lane would not put there.
pub(crate) fn may_be_huge() -> bool {
    HUGE.load(Ordering::Relaxed)
}

/// The program asks for huge pages somewhere.
pub(crate) fn heed_advice(advice: c_int) {
    if advice == libc::MADV_HUGEPAGE {
        HUGE.store(true, Ordering::Relaxed);
    }
}

/// No copy is handed to a lane any more.
pub(crate) fn stay_alone() {
    MODE.store(Mode::Alone as u8, Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let is_wished = |mode| wish().is_some_and(|(wish, _)| wish == mode);
    if !real::find() || is_secure() || is_wished(c"off") {
        return;
    }
    refuse_another_wish();
    let tuning = Tuning::of_caches(last_level_bytes());
    // The engine looks for these at its first use; here is the last time that it may open files and allocate.
    let _ = (Cpu::of_this_process(), tuning::install(tuning), slices::untouched_ticks());
    SPLITS_FROM.store(usize_of(tuning.share_asleep_cold_bytes), Ordering::Relaxed);
    let mode = match () {
        () if is_wished(c"async") => later_or_less(),
        () if is_wished(c"split") && lanes_can_be() => Mode::Split,
        () => Mode::Alone,
    };
    if mode != Mode::Alone {
        lane::allow();
        let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        HUGE.store(huge.is_ok_and(|text| text.contains("[always]")), Ordering::Relaxed);
        // SAFETY: functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(lane::settle_before_fork), None, Some(lane::forget_in_child)) };
        MODE.store(mode as u8, Ordering::Relaxed);
    }
    COPIES_FROM.store(usize_of(tuning.stream_cold_bytes), Ordering::Relaxed);
    ZEROS_FROM.store(usize_of(tuning.zero_cold_bytes), Ordering::Relaxed);
}

/// Copies that return early where they can be had. Else this is said, and the wish in the environment changed, so that whoever is
/// started from here does not say it again.
fn later_or_less() -> Mode {
    let possible = lanes_can_be();
    let device = userfault::device();
    let permitted = Userfault::open(device).map(Userfault::close).is_ok();
    device.into_iter().for_each(system::close);
    let why = match (possible, permitted) {
        (true, true) => return Mode::Later,
        (true, false) => {
            "it needs userfaultfd with faults of the kernel (CAP_SYS_PTRACE), so long copies are split"
        }
        (false, _) => "it needs Linux 6.11, two processors, no seccomp and no tracer, so nothing is",
    };
    say("no copy is asynchronous here", why);
    if let Some((_, place)) = wish() {
        // SAFETY: the string of the environment is "async", as long, and nobody else uses the environment while libraries are loaded.
        unsafe { place.copy_from_nonoverlapping(c"split".as_ptr(), 5) };
    }
    if possible { Mode::Split } else { Mode::Alone }
}

/// A word that asks for nothing there is, such as a mistyped one, is said, and taken out of the environment, so that whoever is
/// started from here does not say it again.
fn refuse_another_wish() {
    let Some((word, place)) = wish() else { return };
    if matches!(word.to_bytes(), b"" | b"off" | b"split" | b"async") {
        return;
    }
    say("MEMFERRY_PRELOAD is passed over", "it has to be off, split or async");
    // SAFETY: the string of the environment is not empty, and nobody else uses the environment while libraries are loaded.
    unsafe { place.write(0) };
}

/// A line on standard error, which nobody has closed or replaced yet.
fn say(what: &str, why: &str) {
    for part in ["memferry: ", what, ": ", why, "\n"] {
        // SAFETY: it reads the string.
        let _ = unsafe { system::call(libc::SYS_write, [2, part.as_ptr().addr(), part.len(), 0, 0, 0]) };
    }
}

/// Whether this process may have a thread that the program knows nothing of.
fn lanes_can_be() -> bool {
    let mut text = [0u8; 4096];
    let Ok(file) = system::open(c"/proc/self/status", libc::O_RDONLY) else { return false };
    let read = system::read(file, &mut text, true).unwrap_or(0);
    system::close(file);
    let text = text.get(..read).unwrap_or_default();
    let free = [b"\nTracerPid:".as_slice(), b"\nSeccomp:"]
        .into_iter()
        .all(|name| places::value(text, name) == Some(0));
    // SAFETY: it takes a number and touches no memory of ours.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
    free && page == system::PAGE && processors() > 1 && Files::open().map(Files::close).is_some()
}

/// Processors that the program may use.
fn processors() -> u32 {
    let mut set = [0u64; 128];
    let arguments = [0, size_of_val(&set), set.as_mut_ptr().addr(), 0, 0, 0];
    // SAFETY: it writes within the set.
    let _ = unsafe { system::call(libc::SYS_sched_getaffinity, arguments) };
    set.iter().map(|word| word.count_ones()).sum()
}

/// The processor's clock will be out of bounds, so nobody can tell any more how far memory is: all is left to the C library from here on.
fn stop_looking() {
    COPIES_FROM.store(usize::MAX, Ordering::Relaxed);
    ZEROS_FROM.store(usize::MAX, Ordering::Relaxed);
}

/// What `prctl` is about to do.
pub(crate) fn heed_prctl(option: c_int, second: c_ulong) {
    let confines = option == libc::PR_SET_SECCOMP;
    let is_strict = confines && second == c_ulong::from(libc::SECCOMP_MODE_STRICT);
    if is_strict || option == libc::PR_SET_TSC {
        stop_looking();
    }
    if confines || option == libc::PR_SET_TSC {
        stay_alone();
        lane::dismiss();
    }
}

/// What `syscall` is about to do.
pub(crate) fn heed_call(number: c_long, first: c_long, second: c_long) {
    match number {
        libc::SYS_prctl => heed_prctl(first as c_int, second as c_ulong),
        libc::SYS_seccomp if first as u32 == libc::SECCOMP_SET_MODE_STRICT => {
            heed_prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT.into());
        }
        libc::SYS_seccomp => heed_prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER.into()),
        // The thread that ends last gives the process its status.
        libc::SYS_unshare | libc::SYS_setns | libc::SYS_exit => lane::dismiss(),
        libc::SYS_mremap => lane::settle(),
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

/// What `MEMFERRY_PRELOAD` says, and where it does.
fn wish() -> Option<(&'static CStr, *mut c_char)> {
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
