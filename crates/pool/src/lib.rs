//! A pool of buffers that disk, network and engine can all use: the DMA-compatible buffer pool of Nava 1996 (section 3).
//!
//! ```text
//! take ─ a free buffer? ─ yes ───────────────────────────────► Buffer ─ dropped ─► free again
//!                       └ no ─ room under the limit? ─ yes ─► a buffer of a segment that is mapped now
//!                                                    └ no ──► Exhausted, or wait until a buffer is returned
//! Holder (a process) ─ take ─► place (segment, index) ─ returned, or the Holder dropped at close or death
//! returned ─► used ─ take_used ─► UsedBuffer ─ zeroed ─► zero ─ take_zero ─► a buffer of zeros
//!                  └ take_zero, when no buffer is zero: the CPU clears it first
//! ```
//!
//! A pool starts without memory and maps a segment at first use, like the paper's `dma` segment type. A segment is a memfd,
//! so other processes can map it (`frame`). It uses huge pages where the machine has some; a buffer within one huge page is
//! physically contiguous.
//!
//! Invariant P, on which the unsafe code relies: a [`Buffer`] has one holder, and its segment stays mapped and pinned at its
//! address while the buffer lives. Other processes may map the bytes too, so they are only copied (M2).
//!
//! The pool moves no file data (`direct`) and drives no ring (`uring`). It knows physical addresses only where Linux shows
//! them. It pins memory only by `mlock` and by registration with a ring.

#![expect(unsafe_code, reason = "Linux gets the addresses of buffers: invariants P and U")]

mod buffer;
mod direct;
mod holder;
mod segment;
#[cfg(all(test, not(miri)))]
mod tests;
pub mod uring;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

pub use buffer::{Buffer, BufferView, UsedBuffer};
pub use direct::{
    Alignments, Direct, DirectError, Moved, Way, WhyCopied, cached_pages, direct_alignments, reopen_direct,
};
pub use holder::{Holder, NotHeld, Place};
pub use segment::{Segment, SegmentView};

use memferry_shm::frame::AllocateError;

/// The size of a huge page.
const MAX_ALIGNMENT: usize = 2 << 20;

/// Whether a buffer's pages follow one another in physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contiguity {
    Any,
    /// On huge pages if the machine has free ones that are no larger than a segment, otherwise any pages.
    #[default]
    Preferred,
    /// Buffers that are not contiguous are set aside. A segment without contiguous buffers is an error.
    Required,
}

/// The requirements of an engine on the buffers that it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Constraints {
    /// Buffer addresses are multiples of this many bytes, a power of two up to 2 MiB. The minimum is a page.
    pub align: usize,
    pub contiguity: Contiguity,
    /// Physical addresses are below this; other buffers are set aside. Linux shows physical addresses only to a process
    /// with `CAP_SYS_ADMIN`; without it, mapping a segment fails.
    pub address_limit: Option<u64>,
    /// Lock each segment into memory when it is mapped.
    pub locked: bool,
}

impl Default for Constraints {
    fn default() -> Self {
        Self { align: 4096, contiguity: Contiguity::default(), address_limit: None, locked: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Usable bytes of each buffer, rounded up to its alignment.
    pub buffer_bytes: usize,
    /// Bytes of a segment, rounded up to huge pages; at least one buffer.
    pub segment_bytes: usize,
    /// Limit on the bytes of all segments together. A segment on ordinary pages whose buffers are aligned to more than a page
    /// needs that alignment in addition. [`Pool::set_limit`] changes the limit later.
    pub limit_bytes: u64,
    pub constraints: Constraints,
}

impl Options {
    /// Maximum number of buffers of a pool with these (rounded, [`Pool::options`]) options and a limit of `bytes`. The pool
    /// has fewer when buffers do not meet its constraints, or when their alignment takes room.
    pub fn buffers_within(&self, bytes: u64) -> u64 {
        let per_segment = self.segment_bytes.checked_div(self.buffer_bytes).unwrap_or(0) as u64;
        bytes.checked_div(self.segment_bytes as u64).unwrap_or(0).saturating_mul(per_segment)
    }
}

impl Default for Options {
    /// The paper's blocks of 64 KiB plus two pages, in segments of 2 MiB, with a limit of 64 MiB.
    fn default() -> Self {
        Self {
            buffer_bytes: (64 << 10) + 2 * 4096,
            segment_bytes: 2 << 20,
            limit_bytes: 64 << 20,
            constraints: Constraints::default(),
        }
    }
}

#[derive(Debug, Error)]
pub enum PoolError {
    #[error(
        "a pool's buffers have 1 byte to 1 GiB (not {buffer_bytes}), aligned to a power of two up to {MAX_ALIGNMENT} (not {align})"
    )]
    Options { buffer_bytes: usize, align: usize },
    /// No buffer is free and the limit allows no further segment.
    #[error(
        "the pool is exhausted: {in_use} buffers are in use, {zeroing} are being zeroed, and the limit of {limit} bytes allows no more; return buffers, wait, or raise the limit"
    )]
    Exhausted {
        in_use: u64,
        /// Free buffers that are being zeroed.
        zeroing: u64,
        /// The pool's limit in bytes.
        limit: u64,
    },
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    #[error(
        "cannot lock a segment of {bytes} bytes into memory: {source}; raise RLIMIT_MEMLOCK or make the pool without `locked`"
    )]
    Lock { bytes: usize, source: io::Error },
    /// The constraints concern physical addresses, and Linux does not show them.
    #[error(
        "cannot read a segment's physical addresses ({source}); run with CAP_SYS_ADMIN or remove the constraints on them"
    )]
    AddressesHidden { source: io::Error },
    /// No buffer of a fresh segment meets the constraints. The segment was released.
    #[error(
        "no buffer of a segment of {bytes} bytes meets the constraints on physical addresses; relax them or retry"
    )]
    OutOfReach { bytes: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    pub segments: u64,
    pub segment_bytes: u64,
    /// Segments on huge pages.
    pub huge_segments: u64,
    pub buffers: u64,
    pub in_use: u64,
    /// Highest `in_use` so far.
    pub peak_in_use: u64,
    /// Buffers that are never handed out: they do not meet the constraints, or an abandoned zeroing may still write them.
    pub set_aside: u64,
    /// Count of buffers handed out.
    pub taken: u64,
    /// Count of calls that waited for a buffer.
    pub waited: u64,
    /// Count of calls that failed because the pool was exhausted.
    pub refused: u64,
    /// Free buffers that are known to be zero.
    pub zero: u64,
    /// Count of buffers zeroed while they were free.
    pub zeroed: u64,
    /// Count of buffers that [`Pool::take_zero`] had to clear.
    pub cleared: u64,
    pub limit_bytes: u64,
}

/// A pool of buffers; clones share it. It lives until the last clone and the last [`Buffer`] are dropped.
///
/// ```
/// use memferry_pool::{Options, Pool};
///
/// let pool = Pool::new(Options::default())?;
/// let mut buffer = pool.take()?;
/// buffer.write(0, b"bytes")?;
/// assert_eq!(pool.statistics().in_use, 1);
/// drop(buffer);
/// assert_eq!(pool.statistics().in_use, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    options: Options,
    state: Mutex<State>,
    /// Notified when a buffer was returned, or when the limit or the segments changed.
    returned: Condvar,
    /// Notified when a used buffer was returned, which can be zeroed.
    used: Condvar,
}

#[derive(Default)]
struct State {
    segments: Vec<Arc<Segment>>,
    /// Bytes of segments that are being mapped without the lock.
    pending_bytes: u64,
    next_id: u32,
    limit_bytes: u64,
    /// Number of free buffers that are being zeroed.
    zeroing: u64,
    counters: Statistics,
}

impl Pool {
    /// Makes a pool without memory. The first `take` maps a segment.
    ///
    /// # Errors
    /// [`PoolError::Options`].
    pub fn new(options: Options) -> Result<Self, PoolError> {
        let Options { buffer_bytes, limit_bytes, .. } = options;
        let align = options.constraints.align;
        if !align.is_power_of_two() || align > MAX_ALIGNMENT || buffer_bytes == 0 || buffer_bytes > 1 << 30 {
            return Err(PoolError::Options { buffer_bytes, align });
        }
        let mut options = options;
        options.constraints.align = align.max(rustix::param::page_size());
        options.buffer_bytes = buffer_bytes.next_multiple_of(options.constraints.align);
        options.segment_bytes =
            options.segment_bytes.clamp(options.buffer_bytes, 1 << 30).next_multiple_of(MAX_ALIGNMENT);
        Ok(Self(Arc::new(Shared {
            options,
            state: Mutex::new(State { limit_bytes, ..State::default() }),
            returned: Condvar::new(),
            used: Condvar::new(),
        })))
    }

    /// The options of [`new`](Self::new), with lengths rounded up.
    pub fn options(&self) -> Options {
        self.0.options
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer, from a fresh segment when all others are in use or being zeroed. Its bytes are those of its last user,
    /// or zeros. The call may wait for a segment that is being mapped, but never for a buffer.
    ///
    /// # Errors
    /// [`PoolError`]; [`PoolError::Exhausted`] at the limit.
    pub fn take(&self) -> Result<Buffer, PoolError> {
        self.take_until(Some(Instant::now()), false).map(|(buffer, _)| buffer)
    }

    /// Takes a buffer of zeros: one that was zeroed while it was free, else one that is cleared now.
    ///
    /// # Errors
    /// [`PoolError`], as [`take`](Self::take).
    pub fn take_zero(&self) -> Result<Buffer, PoolError> {
        let (mut buffer, zero) = self.take_until(Some(Instant::now()), true)?;
        if !zero {
            self.state().counters.cleared += 1;
            // Cannot fail: the range is the buffer's whole length.
            let _ = buffer.clear();
        }
        Ok(buffer)
    }

    /// Takes a free used buffer, to be zeroed; waits up to `time` for one. It counts neither as taken nor as in use, but is
    /// not available to other callers. Therefore the pool leaves at least as many buffers free as are being zeroed.
    pub fn take_used(&self, time: Duration) -> Option<UsedBuffer> {
        let find = |state: &State| {
            let free: usize = state.segments.iter().map(|segment| segment.free()).sum();
            if (free as u64) < state.zeroing + 2 {
                return None;
            }
            state.segments.iter().find_map(|segment| Some((Arc::clone(segment), segment.take_used()?)))
        };
        let mut state = self.state();
        let mut found = find(&state);
        if found.is_none() && !time.is_zero() {
            state = self.0.used.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
            found = find(&state);
        }
        let (segment, index) = found?;
        state.zeroing += 1;
        Some(UsedBuffer::new(Buffer::new(self.clone(), segment, index)))
    }

    /// As [`take`](Self::take), but waits at the limit for a returned buffer, without a time limit if `time` is `None`.
    ///
    /// # Errors
    /// [`PoolError`]; [`PoolError::Exhausted`] after `time`.
    pub fn take_waiting(&self, time: Option<Duration>) -> Result<Buffer, PoolError> {
        let deadline = time.and_then(|time| Instant::now().checked_add(time));
        self.take_until(deadline, false).map(|(buffer, _)| buffer)
    }

    /// Takes a buffer and returns whether it is zero. Prefers zero buffers if `zero`, else used ones.
    fn take_until(&self, deadline: Option<Instant>, zero: bool) -> Result<(Buffer, bool), PoolError> {
        let bytes = segment::maximum_bytes(&self.0.options);
        let mut state = self.state();
        let mut waited = false;
        loop {
            if let Some(taken) = state.take(self, zero) {
                return Ok(taken);
            }
            let held = state.counters.segment_bytes + state.pending_bytes;
            if held.saturating_add(bytes) <= state.limit_bytes {
                return self.take_from_new_segment(state, zero);
            }
            // While another thread maps a segment, the pool is not exhausted: wait for that segment.
            let deadline = deadline.filter(|_| state.pending_bytes == 0);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                state.counters.refused += 1;
                return Err(state.exhausted());
            }
            state.counters.waited += u64::from(!std::mem::replace(&mut waited, true));
            state = match left {
                None => self.0.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.0.returned.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Maps a segment and takes a buffer of it. Mapping zeroes pages, which takes long, so the lock is released meanwhile.
    fn take_from_new_segment(
        &self,
        mut state: MutexGuard<'_, State>,
        zero: bool,
    ) -> Result<(Buffer, bool), PoolError> {
        let bytes = segment::maximum_bytes(&self.0.options);
        state.pending_bytes += bytes;
        let id = state.next_id;
        state.next_id += 1;
        drop(state);
        let fresh = Segment::map(id, &self.0.options);
        let mut state = self.state();
        state.pending_bytes -= bytes;
        let segment = fresh.inspect_err(|_| self.0.returned.notify_all())?;
        state.counters.segments += 1;
        state.counters.segment_bytes += segment.bytes();
        state.counters.huge_segments += u64::from(segment.huge());
        state.counters.buffers += segment.usable() as u64;
        state.counters.set_aside += segment.set_aside() as u64;
        state.segments.push(Arc::new(segment));
        let buffer = state.take(self, zero);
        let exhausted = state.exhausted();
        drop(state);
        // The segment's other buffers serve waiting callers.
        self.0.returned.notify_all();
        buffer.ok_or(exhausted)
    }

    /// Adds a buffer to the free ones. `zero`: its bytes are zeros. `zeroing`: it is a [`UsedBuffer`], which was free before.
    fn give_back(&self, segment: &Segment, index: u32, (zero, zeroing): (bool, bool)) {
        let mut state = self.state();
        segment.give_back(index, zero);
        if zeroing {
            state.zeroing -= 1;
            state.counters.zeroed += u64::from(zero);
        } else {
            state.counters.in_use -= 1;
        }
        drop(state);
        if zeroing {
            // Several callers may wait: for this buffer, or for any.
            self.0.returned.notify_all();
        } else {
            self.0.returned.notify_one();
            self.0.used.notify_one();
        }
    }

    /// Takes a buffer that was being zeroed out of use. It is in no free list, so its segment is never trimmed.
    fn set_aside(&self) {
        let mut state = self.state();
        state.zeroing -= 1;
        state.counters.buffers -= 1;
        state.counters.set_aside += 1;
        drop(state);
        // Waiting callers check again: this buffer will not be returned.
        self.0.returned.notify_all();
    }

    pub fn statistics(&self) -> Statistics {
        let state = self.state();
        let zero = state.segments.iter().map(|segment| segment.zero() as u64).sum();
        Statistics { limit_bytes: state.limit_bytes, zero, ..state.counters }
    }

    /// The segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentView> {
        self.state().segments.iter().map(|segment| segment.view()).collect()
    }

    /// Sets the limit. Segments above a lowered limit stay until they are trimmed.
    pub fn set_limit(&self, bytes: u64) {
        self.state().limit_bytes = bytes;
        self.0.returned.notify_all();
    }

    /// Releases every segment without a buffer in use, and returns their bytes.
    ///
    /// A ring that registered a released segment keeps it mapped until the ring's next registration.
    pub fn trim(&self) -> u64 {
        let mut state = self.state();
        let (unused, used): (Vec<_>, Vec<_>) = std::mem::take(&mut state.segments)
            .into_iter()
            .partition(|segment| segment.free() == segment.usable());
        state.segments = used;
        let bytes: u64 = unused.iter().map(|segment| segment.bytes()).sum();
        state.counters.segments -= unused.len() as u64;
        state.counters.segment_bytes -= bytes;
        for segment in &unused {
            segment.retire();
            state.counters.huge_segments -= u64::from(segment.huge());
            state.counters.buffers -= segment.usable() as u64;
            state.counters.set_aside -= segment.set_aside() as u64;
        }
        drop(state);
        self.0.returned.notify_all();
        bytes
    }

    /// Makes a holder for another process's buffers. Dropping it returns all of them.
    pub fn holder(&self) -> Holder {
        Holder::new(self.clone())
    }
}

impl State {
    fn exhausted(&self) -> PoolError {
        let in_use = self.counters.in_use;
        let zeroing = self.zeroing;
        let limit = self.limit_bytes;
        PoolError::Exhausted { in_use, zeroing, limit }
    }

    /// Takes a free buffer of the fullest segment that has one, so that other segments become empty and can be trimmed.
    fn take(&mut self, pool: &Pool, zero: bool) -> Option<(Buffer, bool)> {
        let free = || self.segments.iter().filter(|segment| segment.free() > 0);
        let fullest = |segment: &&Arc<Segment>| segment.free();
        let clean = || free().filter(|segment| segment.zero() > 0).min_by_key(fullest);
        let segment = if zero { clean() } else { None }.or_else(|| free().min_by_key(fullest))?;
        let (index, zero) = segment.take(zero)?;
        self.counters.taken += 1;
        self.counters.in_use += 1;
        self.counters.peak_in_use = self.counters.peak_in_use.max(self.counters.in_use);
        Some((Buffer::new(pool.clone(), Arc::clone(segment), index), zero))
    }
}
