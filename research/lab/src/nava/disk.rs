//! A SCSI disk of the early nineties: a rotating platter, moving heads, and a buffer with read-ahead.
//!
//! ```text
//! read(start, length, at) ─ command ─► in a segment of the buffer, or next to arrive? ─► over the bus, as fast as both allow
//!                                        └ no: seek, wait until it passes under the head, read ─┘
//!                                      └► the head reads ahead until its segment is full or another command needs it
//! ```
//!
//! A segment is a ring: reading ahead overwrites bytes that the host has read. Reading ahead for one reader ends with the
//! next command of another (a minimum pre-fetch of zero in the caching page); the head then reads ahead of that one. Errors,
//! spare sectors and zones are not modelled: all tracks have the same size. Times in nanoseconds, places in bytes.
//!
//! Source: SCSI-2 (X3.131-1994) caching page; data of the DEC RZ28B and Seagate's Hawk 2 manual for segments, its Medalist Pro
//! manual for when reading ahead ends; the paper for the rotation.

/// The properties of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Geometry {
    pub(super) turn: f64,
    /// Bytes of a track.
    pub(super) track: u64,
    /// Time from the end of a track to the start of the next one.
    pub(super) skew: f64,
    /// Seek time to the next cylinder.
    pub(super) seek_track: f64,
    /// Seek time over a third of the disk.
    pub(super) seek_average: f64,
    pub(super) bytes: f64,
    /// Time of the disk and the driver for each command.
    pub(super) command: f64,
    /// Time of a byte on the bus.
    pub(super) bus: f64,
    /// Bytes of a segment of the buffer; zero without a buffer.
    pub(super) segment: u64,
    pub(super) segments: usize,
    /// Whether it finishes reading ahead for one reader before another; shows the cost of the usual rule.
    pub(super) finishes: bool,
    /// When the first byte of the first track first passes the head.
    pub(super) phase: f64,
}

/// Bytes read one after the other: `from` starts to pass at `at`, and the head reads on to `until`.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: u64,
    at: f64,
    until: u64,
}

/// A segment of the buffer: bytes in order, as the runs that read them.
#[derive(Clone, Debug)]
struct Segment {
    runs: Vec<Run>,
    used: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    geometry: Geometry,
    segments: Vec<Segment>,
    /// The segment of the head's present or last run.
    reading: usize,
    /// Number of commands whose first byte was in the buffer, or the next to arrive.
    found: u64,
}

impl Disk {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self { geometry, segments: Vec::new(), reading: 0, found: 0 }
    }

    /// Number of commands whose first byte was in the buffer, or the next to arrive.
    pub(super) const fn found(&self) -> u64 {
        self.found
    }

    /// The size of the disk, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.geometry.bytes as u64
    }

    /// Reads `length` bytes from `start`. The command starts at `at`, not before the end of the last one. Returns when the
    /// last byte is in the host's memory.
    pub(super) fn read(&mut self, start: u64, length: u64, at: f64) -> f64 {
        let at = at + self.geometry.command;
        let end = start + length;
        let place = match self.segments.iter().position(|segment| self.has(segment, start, at)) {
            Some(place) => {
                self.found += 1;
                place
            }
            None => self.begin(start, end, at),
        };
        self.read_on(place, end, at);
        self.segments[place].used = at;
        let done = self.carried(&self.segments[place], start..end, at);
        self.trim(place);
        done
    }

    /// Whether a byte is in a segment or next to arrive there, so that continuing is better than a new run.
    fn has(&self, segment: &Segment, byte: u64, at: f64) -> bool {
        let (Some(first), Some(last)) = (segment.runs.first(), segment.runs.last()) else {
            return false;
        };
        let ring = self.reached(last, at).saturating_sub(self.geometry.segment);
        self.geometry.segment > 0 && byte >= first.from.max(ring) && byte <= last.until
    }

    /// Takes the least recently used segment and moves the head to `start`.
    fn begin(&mut self, start: u64, end: u64, at: f64) -> usize {
        let run = Run { from: start, at: self.arrives(start, at), until: end };
        self.stop(at);
        let fresh = Segment { runs: vec![run], used: at };
        if self.segments.len() < self.geometry.segments.max(1) {
            self.segments.push(fresh);
            self.reading = self.segments.len() - 1;
        } else {
            let oldest = (0..self.segments.len())
                .min_by(|a, b| self.segments[*a].used.total_cmp(&self.segments[*b].used));
            self.reading = oldest.unwrap_or(0);
            self.segments[self.reading] = fresh;
        }
        self.reading
    }

    /// Lets the head read the missing bytes of a command, and then ahead.
    fn read_on(&mut self, place: usize, end: u64, at: f64) {
        let target = end + self.geometry.segment;
        let Some(last) = self.segments[place].runs.last().copied() else {
            return;
        };
        let is_reading = place == self.reading && self.passed(&last, last.until) >= at;
        if is_reading {
            if let Some(last) = self.segments[place].runs.last_mut() {
                last.until = last.until.max(target);
            }
        } else if last.until < target {
            let begins = if self.geometry.finishes && last.until >= end { at.max(self.free()) } else { at };
            let next = Run { from: last.until, at: self.arrives(last.until, begins), until: target };
            self.stop(begins);
            self.segments[place].runs.push(next);
            self.reading = place;
        }
    }

    /// When the head has finished reading ahead.
    fn free(&self) -> f64 {
        let last = self.segments.get(self.reading).and_then(|segment| segment.runs.last());
        last.map_or(0.0, |run| self.passed(run, run.until))
    }

    /// Ends the head's run.
    fn stop(&mut self, at: f64) {
        let Some(last) = self.segments.get(self.reading).and_then(|segment| segment.runs.last()).copied()
        else {
            return;
        };
        let reached = self.reached(&last, at);
        if let Some(last) = self.segments.get_mut(self.reading).and_then(|segment| segment.runs.last_mut()) {
            last.until = reached;
        }
    }

    /// When the last of `bytes` is at the host. Each run's part goes over the bus as it arrives, no faster than the platter.
    fn carried(&self, segment: &Segment, bytes: std::ops::Range<u64>, at: f64) -> f64 {
        let mut done = at;
        for run in &segment.runs {
            let from = run.from.max(bytes.start);
            let until = run.until.min(bytes.end);
            if from < until {
                let begins = done.max(self.passed(run, from));
                done = (begins + (until - from) as f64 * self.geometry.bus).max(self.passed(run, until));
            }
        }
        done
    }

    /// Drops runs that the ring has overwritten.
    fn trim(&mut self, place: usize) {
        let segment = self.geometry.segment;
        let runs = &mut self.segments[place].runs;
        let end = runs.last().map_or(0, |run| run.until);
        runs.retain(|run| run.until + 2 * segment >= end);
    }

    /// When `byte` starts to pass under the head: after `at` and the seek.
    fn arrives(&self, byte: u64, at: f64) -> f64 {
        let Geometry { turn, track, skew, phase, .. } = self.geometry;
        let ready = at + self.seek(byte, at);
        let whole = byte / track;
        let part = byte % track;
        let angle = whole as f64 * skew + part as f64 / track as f64 * turn + phase;
        ready + (angle - ready).rem_euclid(turn)
    }

    /// Seek time to a byte: zero within a cylinder, otherwise by the square root of the distance.
    fn seek(&self, byte: u64, at: f64) -> f64 {
        let Geometry { track, seek_track, seek_average, bytes, .. } = self.geometry;
        let last = self.segments.get(self.reading).and_then(|segment| segment.runs.last());
        let distance = byte.abs_diff(last.map_or(0, |run| self.reached(run, at)));
        if distance <= track {
            return 0.0;
        }
        seek_track + (seek_average - seek_track) * (3.0 * distance as f64 / bytes).sqrt()
    }

    /// When the byte before `byte` of a run has passed.
    fn passed(&self, run: &Run, byte: u64) -> f64 {
        let Geometry { turn, track, skew, .. } = self.geometry;
        // Without the gap after a track's last byte.
        let last = byte.saturating_sub(1).max(run.from);
        let tracks = last / track - run.from / track;
        run.at + (byte - run.from) as f64 / track as f64 * turn + tracks as f64 * skew
    }

    /// The position of a run at `at`.
    fn reached(&self, run: &Run, at: f64) -> u64 {
        if self.passed(run, run.until) <= at {
            return run.until;
        }
        let mut low = run.from;
        let mut high = run.until;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.passed(run, middle) <= at { low = middle } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rotation of 16 ms, tracks of 64 KiB, a bus twice as fast as the platter, no skew.
    fn disk(segment: u64) -> Disk {
        Disk::new(Geometry {
            turn: 16e6,
            track: 65536,
            skew: 0.0,
            seek_track: 3e6,
            seek_average: 12e6,
            bytes: 500e6,
            command: 1e6,
            bus: 8e6 / 65536.0,
            segment,
            segments: 2,
            finishes: false,
            phase: 0.0,
        })
    }

    #[test]
    fn without_a_buffer_a_block_takes_whole_turns() {
        let mut disk = disk(0);
        let mut at = 0.0;
        let mut ends = Vec::new();
        for _ in 0..4 {
            at = disk.read(0, 65536, at) + 5e6;
            ends.push(at);
        }
        assert!(ends.windows(2).all(|pair| (pair[1] - pair[0] - 32e6).abs() < 1.0), "{ends:?}");
        assert_eq!(disk.found(), 0);
    }

    #[test]
    fn reader_or_platter_sets_the_pace() {
        for (think, each) in [(12e6, 21e6), (0.5e6, 16e6)] {
            let mut disk = disk(128 << 10);
            let mut at = 0.0;
            let ends: Vec<f64> = (0..50)
                .map(|block| {
                    at = disk.read(block * 65536, 65536, at) + think;
                    at
                })
                .collect();
            let mean = (ends[49] - ends[9]) / 40.0;
            assert!((mean - each).abs() < 1e5, "{mean} where {each}");
        }
    }

    #[test]
    fn two_readers_keep_a_segment_each() {
        let mut disk = disk(64 << 10);
        let far = 100 << 20;
        let mut slowest = 0.0_f64;
        let mut at = disk.read(0, 65536, 0.0);
        at = disk.read(far, 65536, at + 100e6);
        for block in 1..10 {
            for base in [0, far] {
                at += 100e6;
                slowest = slowest.max(disk.read(base + block * 65536, 65536, at) - at);
            }
        }
        assert!(slowest < 9.1e6, "{slowest}: every block is in the buffer; a command and the bus remain");
        assert_eq!(disk.found(), 18);
    }

    #[test]
    fn another_reader_makes_the_head_seek() {
        let mut disk = disk(64 << 10);
        let at = disk.read(0, 65536, 0.0);
        let time = disk.read(200 << 20, 65536, at) - at;
        assert!(time > 16e6 + 3e6 + 1e6 && time < 16e6 + 16e6 + 14e6, "{time}");
    }
}
