//! Random jobs on random memory, against a plain model.

use std::sync::Arc;

use memferry_engine_cuda::{Device, HostMemory, Job, JobError, Place, Rows, Settings, Stream, Vram};
use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::Pattern;
use proptest::prelude::*;

use crate::stage::{bytes, finish_well, frame, is_real, stage, vram};

const LENGTH: u64 = 4096;
/// Memories: two of the device, one pinned, one not pinned.
const MEMORIES: usize = 4;
const VRAM_MEMORIES: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Range {
    memory: usize,
    start: u64,
}

#[derive(Clone, Debug)]
enum Drawn {
    Copy(Range, Range, u64),
    Copy2d { from: Range, from_pitch: u64, to: Range, to_pitch: u64, row_bytes: u64, rows: u64 },
    Fill(Range, u64, Pattern),
    Fill2d { to: Range, pitch: u64, row_bytes: u64, rows: u64, pattern: Pattern },
    Scatter(Vec<(Range, Range, u64)>),
}

fn range() -> impl Strategy<Value = Range> {
    (0..MEMORIES, 0..LENGTH).prop_map(|(memory, start)| Range { memory, start })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        any::<u8>().prop_map(Pattern::Byte),
        any::<u16>().prop_map(Pattern::Half),
        any::<u32>().prop_map(Pattern::Word),
    ]
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let rows = || (0..130_u64, 0..90_u64, 0..9_u64);
    prop_oneof![
        (range(), range(), 0..600_u64).prop_map(|(from, to, length)| Drawn::Copy(from, to, length)),
        (range(), range(), 0..130_u64, rows()).prop_map(
            |(from, to, from_pitch, (to_pitch, row_bytes, rows))| {
                Drawn::Copy2d { from, from_pitch, to, to_pitch, row_bytes, rows }
            }
        ),
        (range(), 0..600_u64, pattern()).prop_map(|(to, length, pattern)| Drawn::Fill(to, length, pattern)),
        (range(), rows(), pattern()).prop_map(|(to, (pitch, row_bytes, rows), pattern)| {
            Drawn::Fill2d { to, pitch, row_bytes, rows, pattern }
        }),
        prop::collection::vec((range(), range(), 0..60_u64), 0..20).prop_map(Drawn::Scatter),
    ]
}

/// The same memories twice: on the device or for it, and as plain bytes.
struct Both {
    vram: [Arc<Vram>; VRAM_MEMORIES],
    host: [Arc<HostMemory>; MEMORIES - VRAM_MEMORIES],
    model: [Vec<u8>; MEMORIES],
}

impl Both {
    fn new(device: &Arc<Device>, unpinned: Mapping) -> Self {
        let pinned = HostMemory::new(device, Mapping::owned(vec![0; LENGTH as usize]));
        let unpinned = HostMemory::new(device, unpinned);
        assert!(pinned.not_pinned().is_none() && (is_real() || unpinned.not_pinned().is_some()));
        let vram = [vram(device, LENGTH), vram(device, LENGTH)];
        let model = std::array::from_fn(|_| vec![0; LENGTH as usize]);
        Self { vram, host: [pinned, unpinned], model }
    }

    fn place(&self, range: Range, length: u64) -> Option<Place> {
        let wanted = range.start..range.start + length;
        match self.vram.get(range.memory) {
            Some(vram) => vram.place(wanted),
            None => self.host[range.memory - VRAM_MEMORIES].place(wanted),
        }
    }

    /// From the range's start to the end of its memory.
    fn rows(&self, range: Range, pitch_bytes: u64) -> Option<Rows> {
        Some(Rows { place: self.place(range, LENGTH - range.start)?, pitch_bytes })
    }

    /// `None`: a range is not inside its memory.
    fn job(&self, drawn: &Drawn) -> Option<Job> {
        Some(match drawn {
            Drawn::Copy(from, to, length) => {
                Job::Copy { from: self.place(*from, *length)?, to: self.place(*to, *length)? }
            }
            Drawn::Copy2d { from, from_pitch, to, to_pitch, row_bytes, rows } => Job::Copy2d {
                from: self.rows(*from, *from_pitch)?,
                to: self.rows(*to, *to_pitch)?,
                row_bytes: *row_bytes,
                rows: *rows,
            },
            Drawn::Fill(to, length, pattern) => {
                Job::Fill { to: self.place(*to, *length)?, pattern: *pattern }
            }
            Drawn::Fill2d { to, pitch, row_bytes, rows, pattern } => Job::Fill2d {
                to: self.rows(*to, *pitch)?,
                pattern: *pattern,
                row_bytes: *row_bytes,
                rows: *rows,
            },
            Drawn::Scatter(pieces) => Job::Scatter(
                pieces
                    .iter()
                    .map(|(from, to, length)| Some((self.place(*from, *length)?, self.place(*to, *length)?)))
                    .collect::<Option<_>>()?,
            ),
        })
    }

    /// Does the same to the model, byte by byte in order.
    fn play(&mut self, drawn: &Drawn) {
        match drawn {
            Drawn::Copy(from, to, length) => self.copy(*from, *to, *length),
            Drawn::Copy2d { from, from_pitch, to, to_pitch, row_bytes, rows } => {
                for row in 0..*rows {
                    self.copy(after(*from, row * from_pitch), after(*to, row * to_pitch), *row_bytes);
                }
            }
            Drawn::Fill(to, length, pattern) => self.fill(*to, *length, *pattern),
            Drawn::Fill2d { to, pitch, row_bytes, rows, pattern } => {
                for row in 0..*rows {
                    self.fill(after(*to, row * pitch), *row_bytes, *pattern);
                }
            }
            Drawn::Scatter(pieces) => {
                for (from, to, length) in pieces {
                    self.copy(*from, *to, *length);
                }
            }
        }
    }

    fn copy(&mut self, from: Range, to: Range, length: u64) {
        for at in 0..length {
            self.model[to.memory][(to.start + at) as usize] =
                self.model[from.memory][(from.start + at) as usize];
        }
    }

    fn fill(&mut self, to: Range, length: u64, pattern: Pattern) {
        for at in 0..length {
            self.model[to.memory][(to.start + at) as usize] = pattern.word_bytes()[(at % 4) as usize];
        }
    }

    fn contents(&self, device: &Arc<Device>) -> Vec<Vec<u8>> {
        let mut stream = Stream::open(device, Settings::default()).expect("it opens");
        let mut all = Vec::new();
        for vram in &self.vram {
            let to = HostMemory::new(device, Mapping::owned(vec![0; LENGTH as usize]));
            let from = vram.place(0..LENGTH);
            let place = to.place(0..LENGTH);
            let (Some(from), Some(place)) = (from, place) else { unreachable!("all of both") };
            stream.submit(Job::Copy { from, to: place }).expect("it is right");
            finish_well(&mut stream);
            all.push(bytes(&to));
        }
        all.extend(self.host.iter().map(|host| bytes(host)));
        all
    }
}

fn after(range: Range, bytes: u64) -> Range {
    Range { start: range.start + bytes, ..range }
}

/// Whether this error is right for the job: the checks once more, from the ranges alone.
fn may_be_refused(drawn: &Drawn, error: &JobError) -> bool {
    let is_host = |range: &Range| range.memory >= VRAM_MEMORIES;
    let overlap = |from: &Range, to: &Range, length: u64| {
        from.memory == to.memory && from.start.abs_diff(to.start) < length
    };
    let end = |to: &Range, pitch: u64, row_bytes: u64, rows: u64| match rows {
        0 => 0,
        rows => to.start + (rows - 1) * pitch + row_bytes,
    };
    match (drawn, error) {
        (Drawn::Copy(from, to, _), JobError::NoVram) => is_host(from) && is_host(to),
        (Drawn::Copy2d { from, to, .. }, JobError::NoVram) => is_host(from) && is_host(to),
        (Drawn::Copy(from, to, length), JobError::Overlap) => overlap(from, to, *length),
        (Drawn::Copy2d { from, from_pitch, to, to_pitch, row_bytes, rows }, JobError::Overlap) => (0..*rows)
            .any(|row| {
                (0..*rows).any(|other| {
                    overlap(&after(*from, row * from_pitch), &after(*to, other * to_pitch), *row_bytes)
                })
            }),
        (Drawn::Copy2d { from, from_pitch, to, to_pitch, row_bytes, rows }, JobError::Geometry { .. }) => {
            end(from, *from_pitch, *row_bytes, *rows) > LENGTH
                || end(to, *to_pitch, *row_bytes, *rows) > LENGTH
                || (*rows > 1 && to_pitch < row_bytes)
        }
        (Drawn::Fill2d { to, pitch, row_bytes, rows, .. }, JobError::Geometry { .. }) => {
            end(to, *pitch, *row_bytes, *rows) > LENGTH || (*rows > 1 && pitch < row_bytes)
        }
        (Drawn::Fill(to, ..) | Drawn::Fill2d { to, .. }, JobError::NoVram) => is_host(to),
        (Drawn::Scatter(pieces), JobError::NoVram) => {
            pieces.iter().any(|(from, to, _)| is_host(from) && is_host(to))
        }
        (Drawn::Scatter(pieces), JobError::Overlap) => {
            pieces.iter().any(|(from, to, length)| overlap(from, to, *length))
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if is_real() { 20 } else { 100 }, ..ProptestConfig::default() })]

    #[test]
    fn random_jobs_do_what_the_model_does(
        jobs in prop::collection::vec(drawn(), 1..60),
        depth in 1..9_usize,
        kernel_below_bytes in prop_oneof![Just(0), Just(20), Just(1 << 20)],
        without in prop_oneof![Just(""), Just("without=cuMemcpyBatchAsync"), Just("fail=cuModuleLoadData:218:1")],
    ) {
        let faults = if is_real() { String::new() } else { format!("register=refused {without}") };
        let (_fake, device) = stage(&faults);
        let mut both = Both::new(&device, frame(LENGTH as usize, Access::ReadWrite));
        let settings = Settings { depth, kernel_below_bytes, ..Settings::default() };
        let mut stream = Stream::open(&device, settings).expect("it opens");
        let mut completions = Vec::new();
        let mut accepted = 0;
        for drawn in &jobs {
            let Some(job) = both.job(drawn) else { continue };
            match stream.submit(job) {
                Ok(_) => {
                    both.play(drawn);
                    accepted += 1;
                }
                Err(error) => prop_assert!(may_be_refused(drawn, &error), "{drawn:?}: {error}"),
            }
            stream.poll(&mut completions);
        }
        completions.extend(crate::stage::finish(&mut stream));
        prop_assert_eq!(completions.len(), accepted);
        prop_assert!(completions.iter().all(|done| done.result.is_ok()), "{:?}", completions);
        prop_assert!(completions.is_sorted_by_key(|done| done.ticket));
        let contents = both.contents(&device);
        for (memory, (found, expected)) in contents.iter().zip(&both.model).enumerate() {
            prop_assert!(found == expected, "memory {} differs", memory);
        }
    }
}
