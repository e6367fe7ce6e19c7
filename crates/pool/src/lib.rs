//! A pool of buffers that disk, network and engine can all use: the DMA-compatible buffer pool of Nava 1996 (section 3).
//!
//! ```text
//! take ─ a free buffer? ─ yes ───────────────────────────────► Buffer ─ dropped ─► free again
//!                       └ no ─ room under the limit? ─ yes ─► a segment is mapped now, and a buffer of it
//!                                                    └ no ──► Exhausted, or wait until one comes back
//! Holder (a process) ─ take ─► place (segment, index) ─ given back, or its Holder dropped at close or death
//! given back ─► used ─ take_used ─► UsedBuffer ─ zeroed ─► zero ─ take_zero ─► handed out as it is
//!                    └ take_zero, when none is zero: cleared by the CPU first
//! ```
//!
//! A pool has no memory at first: like the paper's `dma` segment type it gets it at first use. A segment is a memfd, so that
//! other processes can map it (`frame`), on huge pages where the machine has some; a buffer that lies within one of
//! these is physically contiguous. Invariant P, which the unsafe code rests on: a [`Buffer`] is one holder's alone, and
//! what it is cut from stays mapped and pinned at its place while it lives. The bytes may be mapped by other processes
//! too, so they are only copied (M2).
//!
//! It moves no file's bytes (`direct`), and drives no ring (`uring`). Where pages lie physically it can only tell where the
//! kernel lets it look; it pins nothing by itself but by `mlock` and by being registered with a ring.

#![expect(unsafe_code, reason = "buffers are addresses that the kernel is given: invariants P and U")]

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
    Direct, DirectError, Moved, Way, WhyCopied, cached_pages, direct_alignments, reopen_direct,
};
pub use holder::{Holder, NotHeld, Place};
pub use segment::{Segment, SegmentView};

use memferry_shm::frame::AllocateError;

/// The most an alignment can be: that of a huge page.
const MOST_ALIGNMENT: usize = 2 << 20;

/// Whether a buffer's pages follow one another in physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contiguity {
    Any,
    /// On huge pages where the machine has free ones that are no larger than a segment, otherwise as it comes.
    #[default]
    Preferred,
    /// Always; a segment that cannot have it is an error.
    Required,
}

/// What an engine asks of a buffer it is to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Constraints {
    /// Its address is a multiple of this many bytes, a power of two up to 2 MiB. Buffers have at least a page's.
    pub align: usize,
    pub contiguity: Contiguity,
    /// Physical addresses are below this. Buffers that are not are set aside; where the kernel does not show physical
    /// addresses (it takes `CAP_SYS_ADMIN`) there is no segment.
    pub address_limit: Option<u64>,
    /// Resident: locked into memory when its segment is made.
    pub locked: bool,
}

impl Default for Constraints {
    fn default() -> Self {
        Self { align: 4096, contiguity: Contiguity::default(), address_limit: None, locked: false }
    }
}

/// How a pool works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Usable bytes of each buffer, rounded up to its alignment.
    pub buffer_bytes: usize,
    /// Bytes of a segment, rounded up to huge pages; at least one buffer.
    pub segment_bytes: usize,
    /// Bytes of all segments together, with what a buffer's alignment above a page costs each of them: as much again as that. It
    /// can be changed later.
    pub limit_bytes: u64,
    /// What each buffer meets.
    pub constraints: Constraints,
}

impl Options {
    /// Buffers that the segments hold which fit into so many bytes. Of rounded options ([`Pool::options`]) no pool with that
    /// limit has more; it has fewer where buffers do not meet its constraints, or their alignment takes room.
    pub fn buffers_within(&self, bytes: u64) -> u64 {
        let of_segment = self.segment_bytes.checked_div(self.buffer_bytes).unwrap_or(0) as u64;
        bytes.checked_div(self.segment_bytes as u64).unwrap_or(0).saturating_mul(of_segment)
    }
}

impl Default for Options {
    /// The paper's blocks of 64 KiB with two pages to spare, in segments of 2 MiB, 64 MiB in all.
    fn default() -> Self {
        Self {
            buffer_bytes: (64 << 10) + 2 * 4096,
            segment_bytes: 2 << 20,
            limit_bytes: 64 << 20,
            constraints: Constraints::default(),
        }
    }
}

/// Why there is no buffer.
#[derive(Debug, Error)]
pub enum PoolError {
    /// Options that no pool can have.
    #[error(
        "a pool's buffers have 1 byte to 1 GiB (not {buffer_bytes}), aligned to a power of two up to {MOST_ALIGNMENT} (not {align})"
    )]
    Options { buffer_bytes: usize, align: usize },
    /// No buffer is free and the limit allows no further segment.
    #[error(
        "{in_use} buffers of the pool are in use, {zeroing} are being zeroed, and {limit} bytes allow no more; give some back, wait, or raise the limit"
    )]
    Exhausted {
        in_use: u64,
        /// Buffers that nobody uses and that are being zeroed.
        zeroing: u64,
        /// The pool's limit in bytes.
        limit: u64,
    },
    /// The system gave no memory.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The memory cannot be locked.
    #[error(
        "cannot lock a segment of {bytes} bytes into memory: {source}; raise RLIMIT_MEMLOCK or do not ask for it"
    )]
    Lock {
        /// Bytes of the segment.
        bytes: usize,
        source: io::Error,
    },
    /// A constraint on physical addresses, where the kernel does not tell them.
    #[error(
        "cannot see where a segment lies in physical memory ({source}); that takes CAP_SYS_ADMIN, or no such constraint"
    )]
    AddressesHidden {
        /// What reading them said.
        source: io::Error,
    },
    /// No buffer of a fresh segment meets the constraints.
    #[error("no buffer of a segment of {bytes} bytes lies where the engine can reach it")]
    OutOfReach {
        /// Bytes of the segment, which was given back.
        bytes: usize,
    },
}

/// What a pool holds and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    pub segments: u64,
    pub segment_bytes: u64,
    /// Segments on huge pages.
    pub huge_segments: u64,
    pub buffers: u64,
    pub in_use: u64,
    /// The most that were ever in use.
    pub peak_in_use: u64,
    /// Buffers that are never handed out: they do not meet the constraints, or somebody who was to zero them may still write there.
    pub set_aside: u64,
    /// Buffers handed out since the beginning.
    pub taken: u64,
    /// Times somebody had to wait for one.
    pub waited: u64,
    /// Times there was none.
    pub refused: u64,
    /// Free buffers that are known to be zero.
    pub zero: u64,
    /// Buffers that were zeroed while they were free.
    pub zeroed: u64,
    /// Buffers that had to be cleared when zeros were asked for.
    pub cleared: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
}

/// A pool of buffers; clones share it. It lives until the last of them and of its [`Buffer`]s.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    options: Options,
    state: Mutex<State>,
    /// Somebody gave a buffer back, or the limit was changed.
    returned: Condvar,
    /// There is a used buffer to zero.
    used: Condvar,
}

#[derive(Default)]
struct State {
    segments: Vec<Arc<Segment>>,
    /// Bytes of segments that are being made without the lock.
    coming: u64,
    next_id: u32,
    limit_bytes: u64,
    /// Free buffers that are being zeroed: they come back soon.
    zeroing: u64,
    counters: Statistics,
}

impl Pool {
    /// A pool without memory yet.
    ///
    /// # Errors
    /// [`PoolError::Options`].
    pub fn new(options: Options) -> Result<Self, PoolError> {
        let Options { buffer_bytes, limit_bytes, .. } = options;
        let align = options.constraints.align;
        if !align.is_power_of_two() || align > MOST_ALIGNMENT || buffer_bytes == 0 || buffer_bytes > 1 << 30 {
            return Err(PoolError::Options { buffer_bytes, align });
        }
        let mut options = options;
        options.constraints.align = align.max(rustix::param::page_size());
        options.buffer_bytes = buffer_bytes.next_multiple_of(options.constraints.align);
        options.segment_bytes =
            options.segment_bytes.clamp(options.buffer_bytes, 1 << 30).next_multiple_of(MOST_ALIGNMENT);
        let state = State { limit_bytes, ..State::default() };
        let returned = Default::default();
        let used = Default::default();
        Ok(Self(Arc::new(Shared { options, state: Mutex::new(state), returned, used })))
    }

    /// What the pool was made with, lengths rounded up.
    pub fn options(&self) -> Options {
        self.0.options
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer, from a fresh segment when all others are in use or being zeroed. Its bytes are what its last user left
    /// there, or zeros. It waits for a segment that is being mapped, never for a buffer.
    ///
    /// # Errors
    /// [`PoolError`]; [`PoolError::Exhausted`] at the limit.
    pub fn take(&self) -> Result<Buffer, PoolError> {
        self.take_until(Some(Instant::now()), false).map(|(buffer, _)| buffer)
    }

    /// A buffer of zeros: one that was zeroed while it was free, else one that is cleared now.
    ///
    /// # Errors
    /// [`PoolError`], as [`take`](Self::take).
    pub fn take_zero(&self) -> Result<Buffer, PoolError> {
        let (mut buffer, zero) = self.take_until(Some(Instant::now()), true)?;
        if !zero {
            self.state().counters.cleared += 1;
            // Within its own length it cannot fail.
            let _ = buffer.clear();
        }
        Ok(buffer)
    }

    /// A free buffer that was used, to be zeroed; waits for one at most for `time`. It counts neither as taken nor as in use, but
    /// nobody else gets it meanwhile, so as many free ones are left as are being zeroed.
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

    /// As [`take`](Self::take), but at the limit it waits for a buffer to come back, for ever without a `time`.
    ///
    /// # Errors
    /// [`PoolError`]; [`PoolError::Exhausted`] when the time is up.
    pub fn take_waiting(&self, time: Option<Duration>) -> Result<Buffer, PoolError> {
        let deadline = time.and_then(|time| Instant::now().checked_add(time));
        self.take_until(deadline, false).map(|(buffer, _)| buffer)
    }

    /// A buffer and whether it is zero, of the sort that is wanted where there is one.
    fn take_until(&self, deadline: Option<Instant>, zero: bool) -> Result<(Buffer, bool), PoolError> {
        let bytes = segment::most_bytes(&self.0.options);
        let mut state = self.state();
        let mut waited = false;
        loop {
            if let Some(taken) = state.take(self, zero) {
                return Ok(taken);
            }
            let held = state.counters.segment_bytes + state.coming;
            if held.saturating_add(bytes) <= state.limit_bytes {
                return self.take_of_fresh(state, zero);
            }
            // Who finds the limit reached by a segment that another thread is mapping has not found the pool empty.
            let deadline = deadline.filter(|_| state.coming == 0);
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

    /// Maps a segment, not under the lock, since zeroing its pages takes a while.
    fn take_of_fresh(
        &self,
        mut state: MutexGuard<'_, State>,
        zero: bool,
    ) -> Result<(Buffer, bool), PoolError> {
        let most = segment::most_bytes(&self.0.options);
        state.coming += most;
        let id = state.next_id;
        state.next_id += 1;
        drop(state);
        let fresh = Segment::map(id, &self.0.options);
        let mut state = self.state();
        state.coming -= most;
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
        // The others of the segment are for whoever waits.
        self.0.returned.notify_all();
        buffer.ok_or(exhausted)
    }

    /// Takes a buffer back; whether it is `zero`, and whether it was free and `zeroing`.
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
            // Who waits for it and who waits for any may be several.
            self.0.returned.notify_all();
        } else {
            self.0.returned.notify_one();
            self.0.used.notify_one();
        }
    }

    /// A buffer that was being zeroed does not come back. It is in no list of free ones any more, so its segment is never unused.
    fn set_aside(&self) {
        let mut state = self.state();
        state.zeroing -= 1;
        state.counters.buffers -= 1;
        state.counters.set_aside += 1;
        drop(state);
        // Who waits for a buffer to come back may find that there is room for a segment, or that none will.
        self.0.returned.notify_all();
    }

    /// What it holds and did.
    pub fn statistics(&self) -> Statistics {
        let state = self.state();
        let zero = state.segments.iter().map(|segment| segment.zero() as u64).sum();
        Statistics { limit_bytes: state.limit_bytes, zero, ..state.counters }
    }

    /// Its segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentView> {
        self.state().segments.iter().map(|segment| segment.view()).collect()
    }

    /// Sets the limit; segments beyond it stay until they are trimmed.
    pub fn set_limit(&self, bytes: u64) {
        self.state().limit_bytes = bytes;
        self.0.returned.notify_all();
    }

    /// Gives the system back every segment of which no buffer is in use; returns their bytes.
    ///
    /// A ring that has registered such a segment gives it up at its next registration.
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

    /// Keeps track of the buffers of another process; all come back when it is dropped.
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

    /// A free buffer of the fullest segment that has one, so that others become empty and can be trimmed.
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
