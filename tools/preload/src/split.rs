//! One long copy by two threads: the caller, and the lane where it is awake.
//!
//! ```text
//! caller: a piece, a piece, ... until the lane is awake ─ slice: signals blocked, lane asked ─┬─ pieces from the front ─┐ they meet
//! lane:   ............ wakes ... awake ............... both ranges private? yes ──────────────┴─ pieces from the back ──┘
//! ```
//!
//! Nobody waits for a lane to wake: until then the caller copies as it would alone. While a slice is shared no handler runs, so none can
//! leave by `longjmp` with the lane still writing. Only private memory without a file behind it is shared: nothing else can fault
//! in the lane that would have faulted in the caller.

use std::sync::atomic::AtomicU64;

use memferry_shm::berth;

use crate::guard::Whole;
use crate::lane::{self, Kind};
use crate::now;
use crate::system::Undisturbed;

/// Bytes that one of the two copies at a time.
const PIECE: usize = 128 << 10;
/// Bytes copied with signals blocked: a fraction of a millisecond, unless memory is new.
const SLICE: usize = 4 << 20;

static WORD: AtomicU64 = AtomicU64::new(0);

/// In a child of `fork`.
pub(crate) fn forget() {
    berth::free(&WORD);
}

/// Copies, sharing with the lane what it is in time for.
///
/// # Safety
/// As `memcpy`.
pub(crate) unsafe fn copy(to: usize, from: usize, bytes: usize) {
    let mut at = 0;
    let mut shares = lane::is_ours();
    if shares {
        lane::rouse();
    }
    while at < bytes {
        // The first piece is the caller's: what keeps it from these mappings shows here, and not in the lane.
        shares &= bytes - at >= 2 * PIECE;
        let slice = Whole { to: to + at, from: from + at, bytes: SLICE.min(bytes - at) };
        // SAFETY: the caller's promise, for a part of it.
        if at > 0 && shares && lane::is_awake() && unsafe { together(slice, &mut shares) } {
            at += slice.bytes;
            continue;
        }
        let alone = if shares { PIECE.min(bytes - at) } else { bytes - at };
        // SAFETY: as above.
        unsafe { now(slice.to, slice.from, alone) };
        at += alone;
    }
}

/// Copies a slice with the lane; `false` when it would not, and `shares` says so from then on.
///
/// # Safety
/// As `memcpy`.
unsafe fn together(slice: Whole, shares: &mut bool) -> bool {
    let undisturbed = Undisturbed::new();
    *shares = berth::claim(&WORD);
    if !*shares {
        return false;
    }
    berth::open(&WORD, slice.bytes.div_ceil(PIECE) as u64);
    *shares = lane::ask(Kind::Share, slice, &undisturbed);
    while let Some(number) = if *shares { berth::take_front(&WORD) } else { None } {
        // SAFETY: the caller's promise; who takes a piece does so alone.
        unsafe { piece(slice, number) };
    }
    berth::close(&WORD, std::hint::spin_loop);
    berth::free(&WORD);
    if *shares {
        lane::release(&undisturbed);
    }
    *shares
}

pub(crate) fn help(slice: Whole) {
    let mut taken = berth::join(&WORD);
    let joined = taken.is_some();
    while let Some(number) = taken {
        // SAFETY: the caller of `together` promised, and waits until this thread has left.
        unsafe { piece(slice, number) };
        taken = berth::take_back(&WORD);
    }
    if joined {
        berth::leave(&WORD);
    }
}

/// # Safety
/// As `memcpy`; `number` is one of the slice's pieces.
unsafe fn piece(slice: Whole, number: u64) {
    let at = number as usize * PIECE;
    // SAFETY: the caller's promise.
    unsafe { now(slice.to + at, slice.from + at, PIECE.min(slice.bytes - at)) };
}
