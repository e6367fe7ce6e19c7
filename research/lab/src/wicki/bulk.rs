//! Bulk transfers in software and offloaded (Wicki 2014, 4.3), and the core time that is free during an offload.
//!
//! ```text
//! mapped       map both frames ─► copy through the caches ─► unmap          premapped   copy through the caches
//! offloaded    mem_copy_2d through the service, one after the other         outstanding   eight at once
//! maintained   the driver's hooks on the caches, around an offload          non-cacheable   both sides past the caches
//! ```
//!
//! Frames are those of the thesis's benchmark (Barrelfish's `usr/bench/bulk_sdma`): eight sources, then eight destinations,
//! of 16 MiB each, used from their start; either one or all by turns. Caches are warm: the same number of transfers runs before
//! the measured ones. Processor and device do not contend for memory.

use memferry_drivers::sdma::{ChannelConfig, LinearPieces, Operation};

use super::clients::{Call, DeviceTimes, Outcome, Work, serve};
use super::host::{Host, PAGE_BYTES};
use super::service::ServiceError;
use crate::machine::cache::{Hierarchy, ProcessorError};

/// Frames of each side.
pub const FRAMES: u64 = 8;
/// Address of the page tables of mapped mode; the frames follow.
const TABLES: u64 = 0x8000_0000;
/// Bytes of a page table's entry.
const ENTRY_BYTES: u64 = 4;
/// Maximum number of measured transfers: two rounds of all frames.
const TRANSFERS: u64 = 2 * FRAMES;
/// Long transfers are measured up to about this many bytes in total.
const MEASURED_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The processor; it maps both frames for each request.
    Mapped,
    /// The processor, with all frames mapped in advance.
    Premapped,
    /// The device, one request after the other.
    Offloaded,
    /// The device, with one outstanding request for each frame.
    Outstanding,
    /// Like `Outstanding`, but the driver takes one request at a time, as the thesis's does for calls of one connection.
    OutstandingInTurn,
}

/// How the processor maps the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Caching {
    /// Cached without maintenance, as in the thesis's measurements.
    #[default]
    Cached,
    /// Cached, with the driver's maintenance around an offload.
    Maintained,
    NonCacheable,
}

/// One way to move bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bulk {
    pub mode: Mode,
    pub caching: Caching,
    /// Whether all frames are used by turns, or only one.
    pub alternating: bool,
}

/// The machine of the experiment.
#[derive(Clone, Debug)]
pub struct Board {
    /// Processor and operating system.
    pub host: Host,
    pub device: DeviceTimes,
    /// Seed of pseudo-random replacement.
    pub seed: u64,
}

/// Why a figure cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BulkError {
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The processor cannot be modelled.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
}

impl Board {
    /// Mean picoseconds of a transfer of `length` bytes.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn transfer(&self, bulk: &Bulk, length: u64) -> Result<f64, BulkError> {
        match bulk.mode {
            Mode::Mapped | Mode::Premapped => self.copied(bulk, length),
            Mode::Offloaded | Mode::Outstanding | Mode::OutstandingInTurn => self.offloaded(bulk, length),
        }
    }

    /// Mean MiB/s of a transfer of `length` bytes.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn throughput(&self, bulk: &Bulk, length: u64) -> Result<f64, BulkError> {
        Ok(rate(length, self.transfer(bulk, length)?))
    }

    fn frames(&self, index: u64) -> (u64, u64) {
        let source = TABLES + (1 + index) * self.host.frame_bytes;
        (source, source + FRAMES * self.host.frame_bytes)
    }

    fn copied(&self, bulk: &Bulk, length: u64) -> Result<f64, BulkError> {
        let mut caches = Hierarchy::new(&self.host.processor, self.seed)?;
        let transfers = (MEASURED_BYTES / length.max(1)).clamp(2, TRANSFERS);
        let mut total = 0;
        for at in 0..2 * transfers {
            let (source, destination) = self.frames(if bulk.alternating { at % FRAMES } else { 0 });
            let mapping = if bulk.mode == Mode::Mapped { self.map(&mut caches, length) } else { 0 };
            let copy = match bulk.caching {
                Caching::NonCacheable => caches.copy_uncached(length),
                Caching::Cached | Caching::Maintained => caches.copy(source, destination, length),
            };
            if at >= transfers {
                total += mapping + copy;
            }
        }
        Ok(total as f64 / transfers as f64)
    }

    /// Picoseconds to map and unmap both frames: the kernel's steps, its page table entries through the caches, and the page
    /// walks after the TLB flush.
    fn map(&self, caches: &mut Hierarchy, length: u64) -> u64 {
        let entries = 2 * ENTRY_BYTES * self.host.frame_bytes.div_ceil(PAGE_BYTES);
        let walks = 2 * length.div_ceil(PAGE_BYTES) * self.host.page_walk;
        self.host.map_both() + caches.write(TABLES, entries) + walks + caches.write(TABLES, entries)
    }

    fn offloaded(&self, bulk: &Bulk, length: u64) -> Result<f64, BulkError> {
        let (transfers, outstanding) = match bulk.mode {
            Mode::Outstanding | Mode::OutstandingInTurn => (FRAMES as usize, FRAMES as usize),
            _ => (1, 1),
        };
        let frames = if bulk.alternating { FRAMES as usize } else { 1 };
        let in_turn = bulk.mode == Mode::OutstandingInTurn;
        let once = Work::once(1, Call::TwoDimensional, length);
        let work = Work { transfers, outstanding, frames, in_turn, ..once };
        let served = serve(&self.host, &self.device, &work)?;
        let maintenance = match bulk.caching {
            Caching::Maintained => self.maintenance(bulk, length)?,
            Caching::Cached | Caching::NonCacheable => 0.0,
        };
        Ok(served.elapsed as f64 / transfers as f64 + maintenance)
    }

    /// Picoseconds of the driver's maintenance around a transfer, just after the processor wrote its source.
    fn maintenance(&self, bulk: &Bulk, length: u64) -> Result<f64, BulkError> {
        let mut caches = Hierarchy::new(&self.host.processor, self.seed)?;
        let rounds = if bulk.alternating { FRAMES } else { 1 };
        let mut total = 0;
        for index in 0..rounds {
            let (source, destination) = self.frames(index);
            caches.write(source, length);
            let pieces = LinearPieces::copy(source, destination, length).into_iter().flatten();
            for piece in pieces {
                let config = ChannelConfig::new(Operation::Copy, piece);
                config.prepare_caches(&mut caches);
                config.finish_caches(&mut caches);
            }
            total += caches.take_maintenance();
        }
        Ok(total as f64 / rounds as f64)
    }

    /// The crossing: the shortest transfer of one frame whose offload is faster than the pre-mapped copy, in bytes, rounded to a
    /// page; `None` if there is none within a frame.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn crossing(&self, caching: Caching) -> Result<Option<u64>, BulkError> {
        let wins = |length: u64| -> Result<bool, BulkError> {
            let of = |mode| self.transfer(&Bulk { mode, caching, alternating: false }, length);
            Ok(of(Mode::Offloaded)? < of(Mode::Premapped)?)
        };
        let mut below = 0;
        let mut above = PAGE_BYTES;
        while !wins(above)? {
            (below, above) = (above, above * 2);
            if above > self.host.frame_bytes {
                return Ok(None);
            }
        }
        while above - below > PAGE_BYTES.max(above / 64) {
            let middle = ((below + above) / 2).next_multiple_of(PAGE_BYTES);
            if middle >= above {
                break;
            }
            if wins(middle)? {
                above = middle;
            } else {
                below = middle;
            }
        }
        Ok(Some(above))
    }

    /// The crossing by arithmetic: the shortest length at which the start of an offload takes no more than the additional time of
    /// the copy, rounded to a page; `None` if there is none within a frame.
    ///
    /// The copy's time for a byte is that of the last cache level or of memory, by the share of lines found. If `n` lines of
    /// a set with `ways` ways are used in a cycle, pseudo-random replacement keeps the share `h` that solves
    /// `h = (1 - 1/ways)^(n (1 - h))`: a line survives each miss of its set until its turn.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn expected_crossing(&self) -> Result<Option<u64>, BulkError> {
        let Some(last) = self.host.processor.levels.last() else { return Ok(None) };
        let bulk = |mode| Bulk { mode, caching: Caching::Cached, alternating: false };
        let of = |mode, length: u64| self.transfer(&bulk(mode), length);
        // Two lengths give the start time and the time for each byte.
        let short = 64 << 10;
        let long = 1 << 20;
        let short_time = of(Mode::Offloaded, short)?;
        let long_time = of(Mode::Offloaded, long)?;
        let moved = (long_time - short_time) / (long - short) as f64;
        let started = short_time - moved * short as f64;
        let [fits, frame] = [last.size_bytes / 2, self.host.frame_bytes];
        let near = of(Mode::Premapped, fits)? / fits as f64;
        let far = of(Mode::Premapped, frame)? / frame as f64;
        let copied = |length: u64| {
            let lines_of_a_set = 2.0 * length as f64 / (last.size_bytes as f64 / last.ways as f64);
            let share = share_found(lines_of_a_set, last.ways as f64);
            share * near + (1.0 - share) * far
        };
        let mut lengths = (1..=frame / PAGE_BYTES).map(|pages| pages * PAGE_BYTES);
        Ok(lengths.find(|length| started <= *length as f64 * (copied(*length) - moved)))
    }

    /// A single offload through the service: its time, and the core's busy time.
    ///
    /// # Errors
    /// [`BulkError`].
    pub fn offload(&self, length: u64) -> Result<Outcome, BulkError> {
        Ok(serve(&self.host, &self.device, &Work::once(1, Call::TwoDimensional, length))?)
    }
}

/// Share of a set's lines that are still present at their turn.
fn share_found(lines: f64, ways: f64) -> f64 {
    if lines <= ways {
        return 1.0;
    }
    // The iteration starts from zero and rises to the solution below one.
    (0..1_000).fold(0.0, |share: f64, _| (1.0 - 1.0 / ways).powf(lines * (1.0 - share)))
}

/// MiB/s of `length` bytes in this many picoseconds.
pub fn rate(length: u64, picoseconds: f64) -> f64 {
    length as f64 / f64::from(1 << 20) / (picoseconds / 1e12)
}

#[cfg(test)]
mod tests;
