//! Parts `manners` and `detours`: the engine's streams in this process, without a service: what its thresholds rest on.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use memferry_engine_cuda::{Device, Driver, HostMemory, Job, Settings, Stream, Vram, VramPool};
use memferry_shm::mapping::{Access, Mapping};
use rustix::fs::{MemfdFlags, memfd_create};

use super::Direction;
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::random_bytes;

const ROUNDS: usize = 9;
/// Bytes of each memory.
const BYTES: u64 = 128 << 20;
/// Pieces of a list: the most that a request has.
const PIECES: u64 = 1024;
const LENGTHS: [(&str, u64); 7] = [
    ("512 B", 512),
    ("2 KiB", 2 << 10),
    ("8 KiB", 8 << 10),
    ("16 KiB", 16 << 10),
    ("32 KiB", 32 << 10),
    ("64 KiB", 64 << 10),
    ("128 KiB", 128 << 10),
];
const MANNERS: [&str; 3] = ["kernel", "batch", "single calls"];
/// Lists of a round for each length and manner.
const LISTS: usize = 4;
const DETOUR_BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;

/// Memory on both sides, and a stream for each manner.
struct Alone {
    device: Arc<Device>,
    host: Arc<HostMemory>,
    vram: Arc<Vram>,
}

impl Alone {
    fn new(library: &Path) -> Result<Self, BenchError> {
        let device = Device::open(&Driver::load(library)?, 0)?;
        let host = host(&device, BYTES)?;
        let vram = VramPool::new(&device, u64::MAX).allocate(BYTES)?;
        Ok(Self { device, host, vram })
    }

    fn stream(&self, settings: Settings) -> Result<Stream, BenchError> {
        Ok(Stream::open(&self.device, settings)?)
    }
}

/// Random bytes in shared memory, as frames are.
fn host(device: &Arc<Device>, bytes: u64) -> Result<Arc<HostMemory>, BenchError> {
    let memory = File::from(memfd_create(c"pages", MemfdFlags::CLOEXEC)?);
    memory.set_len(bytes)?;
    let mapping = Mapping::shared(memory.as_fd(), bytes as usize, Access::ReadWrite, PAGE)?;
    mapping.write(0, &random_bytes(bytes as usize, 29))?;
    let host = HostMemory::new(device, mapping);
    match host.not_pinned() {
        Some(why) => Err(format!("memory is not pinned: {why}").into()),
        None => Ok(host),
    }
}

fn finish(stream: &mut Stream) -> Result<(), BenchError> {
    let mut completions = Vec::new();
    while stream.outstanding() > 0 {
        stream.poll(&mut completions);
        for completion in completions.drain(..) {
            completion.result?;
        }
    }
    Ok(())
}

/// Seconds until the jobs are done.
fn timed(stream: &mut Stream, jobs: Vec<Job>) -> Result<f64, BenchError> {
    let began = Instant::now();
    for job in jobs {
        stream.submit(job)?;
    }
    finish(stream)?;
    Ok(began.elapsed().as_secs_f64())
}

/// Lists of scattered pieces by each manner: below which length the kernel is the best.
pub(super) fn manners(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let alone = Alone::new(library)?;
    let settings = |kernel_below_bytes, uses_batches| Settings {
        kernel_below_bytes,
        uses_batches,
        ..Settings::default()
    };
    let mut streams = [
        alone.stream(settings(u64::MAX, true))?,
        alone.stream(settings(0, true))?,
        alone.stream(settings(0, false))?,
    ];
    let mut random = Rng::with_seed(7);
    let mut rows = Vec::new();
    for (name, length) in LENGTHS {
        let mut columns: [[Vec<f64>; 3]; 2] = Default::default();
        for round in 0..=run.part("manners", ROUNDS) {
            for (direction, values) in Direction::BOTH.into_iter().zip(&mut columns) {
                for (stream, values) in streams.iter_mut().zip(values) {
                    let jobs = (0..LISTS).map(|_| list(&alone, direction, length, &mut random));
                    let jobs = jobs.collect::<Option<Vec<_>>>().ok_or("a piece is outside its memory")?;
                    let seconds = timed(stream, jobs)?;
                    // The first one warms up.
                    if round > 0 {
                        values.push((LISTS as u64 * PIECES * length) as f64 / seconds * 1e-9);
                    }
                }
            }
            run.round_done();
        }
        for (direction, columns) in Direction::BOTH.into_iter().zip(&columns) {
            for (manner, rates) in MANNERS.iter().zip(columns) {
                let name = format!("pieces of {name} {} by {manner}", direction.name());
                rows.push(Row::new(name, "GB/s", Target::None, rates));
            }
        }
    }
    let counts = streams.map(|stream| stream.counts());
    let has_fallen_back = counts.iter().any(|counts| counts.fallbacks > 0);
    if has_fallen_back || counts[0].kernels == 0 || counts[1].batches == 0 || counts[2].copies == 0 {
        run.say(&format!("not every manner was used as it is named: {counts:?}"));
    }
    Ok(rows)
}

/// Pieces anywhere on both sides, apart from each other.
fn list(alone: &Alone, direction: Direction, length: u64, random: &mut Rng) -> Option<Job> {
    let mut places = || {
        let mut places: Vec<u64> = (0..BYTES / length).collect();
        random.shuffle(&mut places);
        places
    };
    let here = places();
    let there = places();
    let pieces = here.iter().zip(&there).take(PIECES as usize).map(|(here, there)| {
        let range = |place: &u64| place * length..(place + 1) * length;
        Some(direction.ends(alone.host.place(range(here))?, alone.vram.place(range(there))?))
    });
    Some(Job::Scatter(pieces.collect::<Option<_>>()?))
}

/// Copies between two places in host memory: by the GPU, through its memory or directly, and by this thread.
pub(super) fn detours(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let alone = Alone::new(library)?;
    let other = host(&alone.device, DETOUR_BYTES)?;
    let whole = 0..DETOUR_BYTES;
    let outside = "a place is outside its memory";
    let from = alone.host.place(whole.clone()).ok_or(outside)?;
    let to = other.place(whole.clone()).ok_or(outside)?;
    let through = [2 << 20, DETOUR_BYTES].map(|bytes| alone.vram.place(0..bytes));
    let mut stream = alone.stream(Settings::default())?;
    let mut columns: [Vec<f64>; 4] = Default::default();
    for round in 0..=run.part("detours", ROUNDS) {
        let detour = |through| Job::Detour { from: from.clone(), to: to.clone(), through };
        let mut seconds = Vec::new();
        for through in [None, through[0].clone(), through[1].clone()] {
            seconds.push(timed(&mut stream, vec![detour(through)])?);
        }
        let began = Instant::now();
        alone.host.mapping().copy_to(0, DETOUR_BYTES as usize, other.mapping(), 0)?;
        seconds.push(began.elapsed().as_secs_f64());
        if round > 0 {
            for (values, seconds) in columns.iter_mut().zip(seconds) {
                values.push(DETOUR_BYTES as f64 / seconds * 1e-9);
            }
        }
        run.round_done();
    }
    let names = [
        "by the GPU, directly",
        "by the GPU, through 2 MiB of its memory",
        "by the GPU, through 64 MiB",
        "by one CPU",
    ];
    let rows = names
        .iter()
        .zip(&columns)
        .map(|(name, rates)| Row::new(format!("64 MiB in host memory {name}"), "GB/s", Target::None, rates));
    Ok(rows.collect())
}
