//! The lane: one more thread of the program's, that is there only while there is something for it to do, and the hand-over to it.
//!
//! ```text
//! CLOSED ─ start: clone ─► FREE ─ caller ─► TAKEN ─ described ─► POSTED ─ lane ─┬─► ACCEPTED ─ caller ─► RUNNING ─ lane: done ─► FREE
//!    ▲                      │                                                   └─► REFUSED ─ caller ─► FREE
//!    └── nothing for a while, or asked to leave: the kernel clears TID when the thread is gone
//! ```
//!
//! It is made by the kernel alone: the C library does not know it, so that it neither waits for it nor takes the program for one
//! with threads. It has a table of descriptors of its own, which nobody can close or reuse; blocks every signal; has no thread-local
//! memory, so it calls nothing that might use any; touches no memory of the program, but asks the kernel to; and may make only the
//! system calls it needs (`confine`), whatever rights it began with.
//!
//! Who hands something over blocks its signals until that is answered: it cannot leave in between, so no request is ever stale. A
//! child of `fork` has no lane and starts its own; a child that shares this memory (`vfork`) never asks for one.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::guard::{self, Whole};
use crate::pinned::Pinned;
use crate::places::Files;
use crate::system::{self, Descriptor, Undisturbed};
use crate::{confine, split, start, userfault};

const CLOSED: u32 = 0;
const FREE: u32 = 1;
/// Somebody describes a request, or starts the lane.
const TAKEN: u32 = 2;
const POSTED: u32 = 3;
/// The lane does it.
const ACCEPTED: u32 = 4;
const REFUSED: u32 = 5;
/// The caller knows that the lane does it.
const RUNNING: u32 = 6;

/// Milliseconds that it waits for more: as long as starting one takes some hundred times.
const LINGER_MS: u64 = 50;
/// Looks at the word before sleeping: some ten microseconds.
const LOOKS: u32 = 2000;
/// By then the number is another thread's.
const MOST_LOOKS_FOR_THE_LAST: usize = 10_000;
const STACK_BYTES: usize = 64 << 10;

static JOB: AtomicU32 = AtomicU32::new(CLOSED);
/// Its number; the kernel clears it when the thread is over.
static TID: AtomicU32 = AtomicU32::new(0);
/// The number of the last one; it is cleared when that is known to be gone.
static LAST: AtomicU32 = AtomicU32::new(0);
/// The process whose lane that is; none other hands anything over.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// It looks at the word all the time, and will for some microseconds.
static AWAKE: AtomicU32 = AtomicU32::new(0);

static KIND: AtomicU8 = AtomicU8::new(Kind::Leave as u8);
static TO: AtomicUsize = AtomicUsize::new(0);
static FROM: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

#[repr(align(4096))]
struct Stack(UnsafeCell<[u8; STACK_BYTES]>);
// SAFETY: only the lane uses it, and there is one: none is started before the last one's number was cleared.
unsafe impl Sync for Stack {}
static STACK: Stack = Stack(UnsafeCell::new([0; STACK_BYTES]));

/// What can be asked of it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Leave,
    /// To answer for a copy, and make it afterwards.
    Guard,
    /// To make pieces of a copy meanwhile.
    Share,
}

/// This process may have a lane from now on.
pub(crate) fn allow() {
    OWNER.store(system::process(), Ordering::Relaxed);
}

/// Before a `fork`: a copy that is answered for is made, which takes less time than to make it in the child too.
pub(crate) extern "C" fn settle_before_fork() {
    settle();
}

/// In a child of `fork`: whatever was going on is the parent's.
pub(crate) extern "C" fn forget_in_child() {
    JOB.store(CLOSED, Ordering::Relaxed);
    TID.store(0, Ordering::Relaxed);
    LAST.store(0, Ordering::Relaxed);
    AWAKE.store(0, Ordering::Relaxed);
    split::forget();
    allow();
}

/// Whether the calling thread's process is the one that may have a lane.
pub(crate) fn is_ours() -> bool {
    OWNER.load(Ordering::Relaxed) == system::process()
}

/// Wakes the lane or starts one; it may be there before long.
pub(crate) fn rouse() {
    match JOB.load(Ordering::Relaxed) {
        CLOSED => begin(&Undisturbed::new()),
        FREE if !is_awake() => system::wake(&JOB),
        _ => {}
    }
}

/// Whether it looks for something to do.
pub(crate) fn is_awake() -> bool {
    AWAKE.load(Ordering::Relaxed) != 0
}

/// Asks the lane to do something, with signals blocked until it is answered; whether it does it. If so, [`release`] is to follow.
pub(crate) fn ask(kind: Kind, whole: Whole, undisturbed: &Undisturbed) -> bool {
    if JOB.load(Ordering::Relaxed) == CLOSED {
        begin(undisturbed);
    }
    post(kind, whole)
}

fn post(kind: Kind, Whole { to, from, bytes }: Whole) -> bool {
    if JOB.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    KIND.store(kind as u8, Ordering::Relaxed);
    TO.store(to, Ordering::Relaxed);
    FROM.store(from, Ordering::Relaxed);
    BYTES.store(bytes, Ordering::Relaxed);
    change_to(POSTED);
    let answer = until(|job| job != POSTED);
    if answer == REFUSED {
        change_to(FREE);
    }
    answer == ACCEPTED
}

fn change_to(job: u32) {
    JOB.store(job, Ordering::Release);
    system::wake(&JOB);
}

/// The caller needs nothing more of a request that the lane does.
pub(crate) fn release(_: &Undisturbed) {
    change_to(RUNNING);
}

/// Waits until nothing is under way.
pub(crate) fn settle() {
    let at_rest = |job| job == FREE || job == CLOSED;
    if !at_rest(JOB.load(Ordering::Relaxed)) && is_ours() {
        until(at_rest);
    }
}

/// Waits until nothing is under way and no lane is there.
pub(crate) fn dismiss() {
    // The program may be confined already: where none was since the last time, the system is not asked.
    if LAST.load(Ordering::Relaxed) == 0 || !is_ours() {
        return;
    }
    let _undisturbed = Undisturbed::new();
    let nothing = Whole { to: 0, from: 0, bytes: 0 };
    while until(|job| job == FREE || job == CLOSED) == FREE {
        post(Kind::Leave, nothing);
    }
    // The kernel counts one thread less a moment after it cleared the number.
    let process = system::process() as usize;
    let number = LAST.load(Ordering::Relaxed) as usize;
    for _ in 0..MOST_LOOKS_FOR_THE_LAST {
        // SAFETY: no signal is sent, and no memory touched.
        let there = unsafe { system::call(libc::SYS_tgkill, [process, number, 0, 0, 0, 0]) };
        if number == 0 || there.is_err() {
            break;
        }
        system::give_way();
    }
    LAST.store(0, Ordering::Relaxed);
}

/// Looks at the word until it is as wished, and sleeps between; what it is.
fn until(wished: impl Fn(u32) -> bool) -> u32 {
    let mut looks = 0;
    loop {
        let job = JOB.load(Ordering::Acquire);
        if wished(job) {
            return job;
        }
        looks += 1;
        if looks < LOOKS {
            std::hint::spin_loop();
        } else {
            system::wait(&JOB, job, LINGER_MS);
        }
    }
}

fn begin(_: &Undisturbed) {
    const FLAGS: c_int = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    if TID.load(Ordering::Acquire) != 0
        || JOB.compare_exchange(CLOSED, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return;
    }
    let top = STACK.0.get().cast::<c_void>().wrapping_byte_add(STACK_BYTES);
    let tid = TID.as_ptr();
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: the stack is nobody's: the last lane's number is cleared. The thread shares this memory and never ends the process's use
    // of it; the C library's function changes `errno` only when it fails, and that is put back.
    let number = unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let number = libc::clone(run, top, FLAGS, none, tid, none, tid);
        *errno = before;
        number
    };
    LAST.store(number.max(0) as u32, Ordering::Relaxed);
    JOB.store(if number < 0 { CLOSED } else { FREE }, Ordering::Release);
}

/// What the lane has of its own.
struct Lane {
    files: Files,
    device: Option<Descriptor>,
    held: Pinned,
}

extern "C" fn run(_: *mut c_void) -> c_int {
    let lane = Lane::new();
    if lane.is_none() {
        start::stay_alone();
    }
    let mut lane = lane;
    while await_request() {
        if KIND.load(Ordering::Relaxed) == Kind::Leave as u8 {
            JOB.store(CLOSED, Ordering::Release);
            break;
        }
        match &mut lane {
            Some(lane) => lane.serve(),
            None => change_to(REFUSED),
        }
    }
    AWAKE.store(0, Ordering::Relaxed);
    system::wake(&JOB);
    0
}

/// Waits for a request; `false` when none came for long, and none can any more.
fn await_request() -> bool {
    loop {
        AWAKE.store(1, Ordering::Relaxed);
        let posted = (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            JOB.load(Ordering::Acquire) == POSTED
        });
        if posted {
            return true;
        }
        AWAKE.store(0, Ordering::Relaxed);
        let job = JOB.load(Ordering::Acquire);
        let overslept = !system::wait(&JOB, job, LINGER_MS);
        let close = || JOB.compare_exchange(FREE, CLOSED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if overslept && job == FREE && close() {
            return false;
        }
    }
}

impl Lane {
    fn new() -> Option<Self> {
        const UNSHARED: usize = 2;
        // SAFETY: it leaves this thread without descriptors, and the program with all of its own.
        unsafe { system::call(libc::SYS_close_range, [0, u32::MAX as usize, UNSHARED, 0, 0, 0]) }.ok()?;
        let lane = Self { files: Files::open()?, device: userfault::device(), held: Pinned::new() };
        confine::this_thread().then_some(lane)
    }

    fn serve(&mut self) {
        let [to, from, bytes] = [&TO, &FROM, &BYTES].map(|word| word.load(Ordering::Relaxed));
        let whole = Whole { to, from, bytes };
        let accepted = || change_to(ACCEPTED);
        let done = if KIND.load(Ordering::Relaxed) == Kind::Share as u8 {
            let may = self.files.is_private(to - 1, to + bytes, true)
                && self.files.is_private(from - 1, from + bytes, false);
            if may {
                accepted();
                split::help(whole);
            }
            may
        } else {
            guard::copy(whole, self.files, self.device, &mut self.held, accepted)
        };
        if done {
            until(|job| job == RUNNING);
            change_to(FREE);
        } else {
            change_to(REFUSED);
        }
    }
}
