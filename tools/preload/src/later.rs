//! A copy that returns before it is made, where the memory it goes to is new.
//!
//! ```text
//! memcpy ─ long, and nothing where it goes (three looks)? ─ no ──► at once
//!            └ yes ─► what is before the guarded pages, and after them: at once
//!                     whole pages ─► lane: guards them ─┬─ accepted ─► return
//!                                                       └─ refused ──► at once
//! ```
//!
//! New memory is where a program spends most on a copy: each page's first touch is a fault, and is zeroed before it is written. The
//! lane puts pages there whole. Where pages are already, guarding them takes longer than copying.

use crate::guard::Whole;
use crate::lane::{self, Kind};
use crate::pinned::MOST_BYTES;
use crate::system::{self, PAGE, Undisturbed};
use crate::{now, start};

/// Bytes from which the hand-over is worth its time.
pub(crate) const LEAST_BYTES: usize = 1 << 20;

/// Bytes of a huge page. Where new memory comes in these, its first touch costs little, and they are worth having.
const HUGE_PAGE: usize = 2 << 20;

/// Copies, or sees to it that nobody can tell it was not copied yet.
///
/// # Safety
/// As `memcpy`.
pub(crate) unsafe fn copy(to: usize, from: usize, bytes: usize) {
    let end = (to + bytes) & !(PAGE - 1);
    // One whole page at least is touched before: what keeps the caller from this mapping shows there.
    let begin = (to.next_multiple_of(PAGE) + PAGE).max(end.saturating_sub(MOST_BYTES));
    let middle = Whole { to: begin, from: from + (begin - to), bytes: end.saturating_sub(begin) };
    let huge = start::may_be_huge() && begin.next_multiple_of(HUGE_PAGE) + HUGE_PAGE <= end;
    if middle.bytes < LEAST_BYTES / 2 || huge || !looks_new(begin, end) || !lane::is_ours() {
        // SAFETY: the caller's promise.
        return unsafe { now(to, from, bytes) };
    }
    // SAFETY: the caller's promise, for parts of it.
    unsafe {
        now(to, from, begin - to);
        now(end, from + (end - to), to + bytes - end);
    }
    let undisturbed = Undisturbed::new();
    if lane::ask(Kind::Guard, middle, &undisturbed) {
        lane::release(&undisturbed);
        return;
    }
    drop(undisturbed);
    // SAFETY: as above.
    unsafe { now(middle.to, middle.from, middle.bytes) };
}

/// Whether pages at three places of a range are in no memory yet. Most destinations that are not new show it here.
fn looks_new(begin: usize, end: usize) -> bool {
    let middle = (begin + (end - begin) / 2) & !(PAGE - 1);
    [begin, middle, end - PAGE].into_iter().all(|page| {
        let mut there = [1u8];
        // SAFETY: it writes one byte.
        let asked =
            unsafe { system::call(libc::SYS_mincore, [page, PAGE, there.as_mut_ptr().addr(), 0, 0, 0]) };
        asked.is_ok() && there == [0]
    })
}
