//! What happens once, when the library is loaded: the recording is mapped.
//!
//! ```text
//! .init_array ─► real::find ─► setuid, or no recording that can be opened? ─ yes ─► nothing is ever counted
//!                                                                         └ no ──► recording mapped for good
//! ```
//!
//! The descriptor is closed at once: programs count theirs. A forked child has the mapping and goes on counting.

use std::ffi::{CStr, OsStr, c_int, c_ulong};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use memferry_cpu::tuning;
use memferry_recording::Recorder;
use memferry_shm::storage::MappedWords;

use crate::{caller, real, record};

pub(crate) type Table = Recorder<MappedWords>;

static RECORDER: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
static CAN_LOOK: AtomicBool = AtomicBool::new(false);

/// Where calls are counted, when somebody wants to know.
#[inline]
pub(crate) fn recorder() -> Option<&'static Table> {
    // SAFETY: what is stored there was leaked, and is never changed.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

/// Whether memory can be told from a cache here.
pub(crate) fn can_look() -> bool {
    CAN_LOOK.load(Ordering::Relaxed)
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if !real::find() || is_secure() {
        return;
    }
    let Some(recorder) = path().and_then(|path| memferry_recording::open(path).ok()) else { return };
    // The engine looks for its thresholds at their first use; here is the last time that it may open files and
    // allocate.
    if clock_is_forbidden() {
        record::stop_the_clock();
    } else {
        CAN_LOOK.store(tuning::current().far_ticks > 0, Ordering::Relaxed);
    }
    caller::find();
    recorder.count_process();
    RECORDER.store(Box::into_raw(Box::new(recorder)), Ordering::Release);
}

/// Whether the program has rights that its caller lacks.
fn is_secure() -> bool {
    // SAFETY: it takes a number and touches no memory of ours.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether whoever started the program took the processor's clock away from it.
fn clock_is_forbidden() -> bool {
    let mut state: c_int = libc::PR_TSC_ENABLE;
    let address = ptr::from_mut(&mut state).expose_provenance() as c_ulong;
    // SAFETY: it writes one number at that address, or fails where nothing can be forbidden.
    unsafe { real::prctl(libc::PR_GET_TSC, [address, 0, 0, 0]) };
    state == libc::PR_TSC_SIGSEGV
}

fn path() -> Option<&'static OsStr> {
    const NAME: &CStr = c"MEMFERRY_RECORDING";
    // SAFETY: nobody changes the environment while libraries are loaded, and the name ends with zero.
    let value = unsafe { libc::getenv(NAME.as_ptr()) };
    // SAFETY: what is not null is a string of the environment, which stays as it is until libraries are loaded.
    (!value.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(value) }.to_bytes()))
}
