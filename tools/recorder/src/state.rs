//! Process-wide state of the recorder: the recording and whether the cycle counter may be read.
//!
//! ```text
//! start ─ install, set_can_measure_distance ─► state ─ recorder, clock_works, can_measure_distance ─► record
//! prctl ─ stop_the_clock ────────────────────► state
//! ```
//!
//! Reading it takes one atomic load and no lock, so that it is safe in signal handlers.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use memferry_recording::Recorder;
use memferry_shm::storage::MappedWords;

pub(crate) type Table = Recorder<MappedWords>;

static RECORDER: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
static CAN_MEASURE_DISTANCE: AtomicBool = AtomicBool::new(false);
static CLOCK_WORKS: AtomicBool = AtomicBool::new(true);

/// The recording, if there is one.
#[inline]
pub(crate) fn recorder() -> Option<&'static Table> {
    // SAFETY: the stored pointer comes from a leaked box, which is never changed.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

/// Starts counting in `recorder`. Call it once: the recorder is leaked.
pub(crate) fn install(recorder: Table) {
    RECORDER.store(Box::into_raw(Box::new(recorder)), Ordering::Release);
}

/// Whether cached memory can be distinguished from uncached memory on this machine.
pub(crate) fn can_measure_distance() -> bool {
    CAN_MEASURE_DISTANCE.load(Ordering::Relaxed)
}

pub(crate) fn set_can_measure_distance(can: bool) {
    CAN_MEASURE_DISTANCE.store(can, Ordering::Relaxed);
}

/// Whether the cycle counter may be read.
#[inline]
pub(crate) fn clock_works() -> bool {
    CLOCK_WORKS.load(Ordering::Relaxed)
}

/// From now on no call is timed and no distance is measured.
pub(crate) fn stop_the_clock() {
    CLOCK_WORKS.store(false, Ordering::Relaxed);
}
