//! Time that a processor takes to copy memory through its caches, and to maintain the caches.
//!
//! ```text
//! copy(source, destination, length): for each line   issue
//!        source line, read ─────► level 0 ─► level 1 ─► ... ─► memory     the first level that has it gives the cost
//!        destination line, write ─► level 0 (dirty) ... evicted dirty lines move down, and out to memory
//! ```
//!
//! Only tags are stored, across calls, so that reuse and alternation have an effect. Every miss, read or write, fills all levels
//! above; levels are neither inclusive nor exclusive. Cost of a stream of lines: the issue of its loads and stores; from a level
//! below the first, the stream time of a line there; from memory, the latency divided by the number of lines fetched at once, but
//! at least what the bandwidth allows. Writing a line back uses bandwidth. Address translation is not modelled: a page is walked
//! once for 128 lines, in a cache. A single access ([`Hierarchy::access`]) waits for the latencies instead; device accesses are
//! [`Hierarchy::snoop`].
//!
//! Sources of the structure: Cortex-A9 TRM, chapters 7 and 8. The figures are parameters of the papers.

use memferry_drivers::sdma::CacheMaintenance;

use crate::rng::Rng;

/// Which line of a full set is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The least recently used one.
    LeastRecent,
    /// A pseudo-random one, repeatable.
    PseudoRandom,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    pub size_bytes: u64,
    pub ways: usize,
    pub replacement: Replacement,
    /// Nanoseconds from the level above to this one and back, for one line.
    pub latency_ns: f64,
    /// Nanoseconds for each line of a read stream that hits here, without its issue.
    pub read_ns: f64,
    /// Nanoseconds for each line of a write stream that hits here, without its issue.
    pub write_ns: f64,
    /// Nanoseconds to maintain one line by address.
    pub maintain_ns: f64,
}

/// Memory below the last level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backing {
    /// Nanoseconds of a read, without the latencies of the levels.
    pub latency_ns: f64,
    /// Bandwidth in bytes per nanosecond.
    pub bytes_per_ns: f64,
}

/// A processor, as needed for copies.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// Bytes of a line in all levels.
    pub line_bytes: u64,
    /// Bytes of an uncached access.
    pub word_bytes: u64,
    /// Nanoseconds to issue the loads and stores that copy one line.
    pub issue_ns: f64,
    /// Lines that the core fetches at once.
    pub line_fills: u32,
    /// Further lines that a prefetcher fetches at once.
    pub prefetch_lines: u32,
    pub levels: Vec<Level>,
    pub memory: Backing,
}

/// Why a processor cannot be modelled.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ProcessorError {
    /// The number of sets of a level is not a power of two.
    #[error(
        "a level of {size_bytes} bytes in {ways} ways of {line_bytes}-byte lines does not give a power of two of sets"
    )]
    Geometry { size_bytes: u64, ways: usize, line_bytes: u64 },
    #[error("line and word bytes, line fills and memory's bandwidth must be above zero")]
    Zero,
}

/// The tag of one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tag {
    /// Number of the line plus one; zero if empty.
    line: u64,
    dirty: bool,
}

#[derive(Clone, Debug)]
struct Cache {
    tags: Vec<Tag>,
    ways: usize,
    sets: u64,
    replacement: Replacement,
    rng: Rng,
    latency: u64,
    read: u64,
    write: u64,
    maintain: u64,
}

impl Cache {
    fn new(level: &Level, line_bytes: u64, seed: u64) -> Result<Self, ProcessorError> {
        let ways = level.ways as u64;
        let sets = level.size_bytes.checked_div(ways * line_bytes).unwrap_or(0);
        if !sets.is_power_of_two() || sets * ways * line_bytes != level.size_bytes {
            let Level { size_bytes, ways, .. } = *level;
            return Err(ProcessorError::Geometry { size_bytes, ways, line_bytes });
        }
        Ok(Self {
            tags: vec![Tag::default(); (sets * ways) as usize],
            ways: level.ways,
            sets,
            replacement: level.replacement,
            rng: Rng::of_neighbour(seed),
            latency: picoseconds(level.latency_ns),
            read: picoseconds(level.read_ns),
            write: picoseconds(level.write_ns),
            maintain: picoseconds(level.maintain_ns),
        })
    }

    fn set(&mut self, line: u64) -> &mut [Tag] {
        let first = (line & (self.sets - 1)) as usize * self.ways;
        &mut self.tags[first..first + self.ways]
    }

    /// Whether the line is present; marks it dirty on a write.
    fn look_up(&mut self, line: u64, write: bool) -> bool {
        let recent = self.replacement == Replacement::LeastRecent;
        let set = self.set(line);
        let Some(way) = set.iter().position(|tag| tag.line == line + 1) else { return false };
        set[way].dirty |= write;
        if recent {
            set[..=way].rotate_right(1);
        }
        true
    }

    /// Inserts an absent line; returns the dirty line that it replaced.
    fn insert(&mut self, line: u64, dirty: bool) -> Option<u64> {
        let way = match self.set(line).iter().position(|tag| tag.line == 0) {
            Some(free) => free,
            None if self.replacement == Replacement::LeastRecent => self.ways - 1,
            None => (self.rng.word() % self.ways as u64) as usize,
        };
        let recent = self.replacement == Replacement::LeastRecent;
        let set = self.set(line);
        let old = std::mem::replace(&mut set[way], Tag { line: line + 1, dirty });
        if recent {
            set[..=way].rotate_right(1);
        }
        (old.line > 0 && old.dirty).then(|| old.line - 1)
    }

    /// Cleans a line, and drops it if asked; returns whether it was dirty.
    fn maintain(&mut self, line: u64, clean: bool, drop: bool) -> bool {
        let Some(tag) = self.set(line).iter_mut().find(|tag| tag.line == line + 1) else { return false };
        let dirty = tag.dirty && clean;
        tag.dirty &= !clean;
        if drop {
            *tag = Tag::default();
        }
        dirty
    }
}

fn picoseconds(ns: f64) -> u64 {
    (ns * 1e3).round().max(0.0) as u64
}

/// The caches of a processor with their present lines.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    line_bytes: u64,
    levels: Vec<Cache>,
    issue: u64,
    fetch: u64,
    carry: u64,
    uncached: u64,
    memory_latency: u64,
    maintenance: u64,
}

impl Hierarchy {
    /// Creates empty caches. `seed` is for pseudo-random replacement.
    ///
    /// # Errors
    /// [`ProcessorError`].
    pub fn new(processor: &Processor, seed: u64) -> Result<Self, ProcessorError> {
        let Processor { line_bytes, word_bytes, memory, .. } = *processor;
        let at_once = f64::from(processor.line_fills + processor.prefetch_lines);
        if line_bytes == 0 || word_bytes == 0 || at_once == 0.0 || memory.bytes_per_ns <= 0.0 {
            return Err(ProcessorError::Zero);
        }
        let levels = processor.levels.iter().zip(seed..);
        let levels = levels.map(|(level, seed)| Cache::new(level, line_bytes, seed));
        let behind: f64 = processor.levels.iter().map(|level| level.latency_ns).sum();
        let carry_ns = line_bytes as f64 / memory.bytes_per_ns;
        let fetch_ns = ((behind + memory.latency_ns) / at_once).max(carry_ns);
        let words = (line_bytes / word_bytes.min(line_bytes)) as f64;
        // Loads go to memory one by one, or as many at once as line fills; stores are merged into lines.
        let uncached_ns = words * memory.latency_ns / f64::from(processor.line_fills.max(1)) + carry_ns;
        Ok(Self {
            line_bytes,
            levels: levels.collect::<Result<_, _>>()?,
            issue: picoseconds(processor.issue_ns),
            fetch: picoseconds(fetch_ns),
            carry: picoseconds(carry_ns),
            uncached: picoseconds(uncached_ns).max(picoseconds(processor.issue_ns)),
            memory_latency: picoseconds(memory.latency_ns),
            maintenance: 0,
        })
    }

    /// Picoseconds to copy `length` bytes.
    pub fn copy(&mut self, source: u64, destination: u64, length: u64) -> u64 {
        let lines = length.div_ceil(self.line_bytes);
        let from = source / self.line_bytes;
        let to = destination / self.line_bytes;
        (0..lines).map(|at| self.issue + self.touch(from + at, false) + self.touch(to + at, true)).sum()
    }

    /// Picoseconds to copy `length` bytes with both sides mapped uncached.
    pub fn copy_uncached(&self, length: u64) -> u64 {
        length.div_ceil(self.line_bytes) * self.uncached
    }

    /// Picoseconds beyond the issue to write a range.
    pub fn write(&mut self, address: u64, length: u64) -> u64 {
        self.lines(address, length).map(|line| self.touch(line, true)).sum()
    }

    /// Picoseconds beyond the issue to read a range.
    pub fn read(&mut self, address: u64, length: u64) -> u64 {
        self.lines(address, length).map(|line| self.touch(line, false)).sum()
    }

    /// Picoseconds that a single access waits, with no overlap.
    pub fn access(&mut self, address: u64, write: bool) -> u64 {
        let line = address / self.line_bytes;
        let found = self.levels.iter_mut().position(|level| level.look_up(line, false));
        let passed = self.levels.iter().take(found.map_or(usize::MAX, |found| found + 1));
        let waits: u64 = passed.map(|level| level.latency).sum();
        self.touch(line, write);
        waits + if found.is_none() { self.memory_latency } else { 0 }
    }

    /// A device reads a range, which cleans modified lines, or writes it, which drops its lines. Returns the number of modified
    /// lines.
    pub fn snoop(&mut self, address: u64, length: u64, write: bool) -> u64 {
        let Self { levels, line_bytes, .. } = self;
        let lines = address / *line_bytes..(address + length).div_ceil(*line_bytes);
        let modified = lines.filter(|line| {
            levels.iter_mut().fold(false, |dirty, level| level.maintain(*line, true, write) | dirty)
        });
        modified.count() as u64
    }

    /// Picoseconds of maintenance since the last call.
    pub fn take_maintenance(&mut self) -> u64 {
        std::mem::take(&mut self.maintenance)
    }

    fn lines(&self, address: u64, length: u64) -> std::ops::Range<u64> {
        address / self.line_bytes..(address + length).div_ceil(self.line_bytes)
    }

    /// Brings a line into the first level; picoseconds beyond the issue.
    fn touch(&mut self, line: u64, write: bool) -> u64 {
        let found = self.levels.iter_mut().position(|level| level.look_up(line, false));
        let mut time = match found.and_then(|found| self.levels.get(found)) {
            None => self.fetch,
            Some(_) if found == Some(0) => 0,
            Some(level) => {
                if write {
                    level.write
                } else {
                    level.read
                }
            }
        };
        for level in 0..found.unwrap_or(self.levels.len()) {
            time += self.fill(level, line);
        }
        if write && let Some(first) = self.levels.first_mut() {
            first.look_up(line, true);
        }
        time
    }

    /// Inserts a line into a level. A dirty line that it replaces moves down, at the end to memory: picoseconds of its bandwidth.
    fn fill(&mut self, level: usize, line: u64) -> u64 {
        let Some(mut evicted) = self.levels.get_mut(level).and_then(|cache| cache.insert(line, false)) else {
            return 0;
        };
        for below in self.levels.iter_mut().skip(level + 1) {
            if below.look_up(evicted, true) {
                return 0;
            }
            match below.insert(evicted, true) {
                Some(next) => evicted = next,
                None => return 0,
            }
        }
        self.carry
    }

    /// Maintains a range in all levels. The steps in a level are limited to its number of lines, as in operating systems (Linux's
    /// `cache-l2x0.c` cleans by ways if the range is at least as large as the cache).
    fn maintain(&mut self, address: u64, length: u64, clean: bool, drop: bool) {
        let lines = self.lines(address, length);
        let count = lines.end - lines.start;
        let last = self.levels.len().saturating_sub(1);
        for at in 0..self.levels.len() {
            let level = &mut self.levels[at];
            let steps = count.min(level.tags.len() as u64);
            self.maintenance += steps * level.maintain;
            for line in lines.clone() {
                if !self.levels[at].maintain(line, clean, drop) {
                    continue;
                }
                // A line cleaned in the upper level moves to the lower one, which is cleaned next.
                if at == last || !self.levels[at + 1].look_up(line, true) {
                    self.maintenance += self.carry;
                }
            }
        }
    }
}

impl CacheMaintenance for Hierarchy {
    fn clean(&mut self, address: u64, length_bytes: u64) {
        self.maintain(address, length_bytes, true, false);
    }

    fn clean_and_invalidate(&mut self, address: u64, length_bytes: u64) {
        self.maintain(address, length_bytes, true, true);
    }

    fn invalidate(&mut self, address: u64, length_bytes: u64) {
        self.maintain(address, length_bytes, false, true);
    }
}

#[cfg(test)]
mod tests;
