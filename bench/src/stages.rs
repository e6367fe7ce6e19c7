//! Group `stages`: the cost of the path itself, without rings, threads or a second process.
//!
//! Runs a worker's stages (admission, policy, queue, engine, settling) on one thread, in batches. The rest of a
//! round trip is cache lines moving between cores.

use std::time::Instant as Stopwatch;

use memferry::{Rights, SessionId};
use memferry_clock::Clock;
use memferry_cpu::{CpuEngine, DEFAULT_CHUNK_BYTES};
use memferry_path::{Capabilities, Path, PathLimits, PolicyKind, QueueKey};
use memferry_service::MonotonicClock;
use memferry_shm::mapping::Mapping;
use memferry_transfer::{Operation, Request, Span};

use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 41;
const STEPS: u32 = 2000;
const CHANNELS: u32 = 32;

struct Stages {
    path: Path<CpuEngine>,
    capabilities: Capabilities<Mapping>,
    queue: QueueKey,
}

impl Stages {
    /// Nanoseconds per request, in steps of `batch`.
    fn each_ns(&mut self, request: &Request, batch: u32) -> f64 {
        let started = Stopwatch::now();
        let now = MonotonicClock.now();
        for _ in 0..STEPS {
            for tag in 0..batch {
                // Like a worker: immediately if possible, else through the whole path.
                let done = request.operation().and_then(|operation| {
                    self.path.try_at_once(self.queue, CHANNELS, operation, &request.terms, &self.capabilities)
                });
                if std::hint::black_box(&done).is_some() {
                    continue;
                }
                if let Some(reservation) = self.path.reserve(self.queue, CHANNELS) {
                    self.path.submit(now, reservation, u64::from(tag), request, &mut self.capabilities);
                }
            }
            self.path.ring_doorbell();
            self.path.run(now);
            self.path.settle(now, &mut self.capabilities);
            std::hint::black_box(self.path.take_completions().count());
        }
        started.elapsed().as_nanos() as f64 / f64::from(STEPS * batch)
    }
}

pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("stages", ROUNDS);
    let limits = PathLimits { waiting_per_user: 0 };
    let mut path =
        Path::new(CpuEngine::new(CHANNELS, DEFAULT_CHUNK_BYTES), PolicyKind::Shared.build(), limits);
    let mut capabilities = Capabilities::new(4);
    let session = SessionId(1);
    let handle = capabilities.register(session, Mapping::owned(vec![1; 4096]), Rights::all())?;
    let queue = path.open_queue(session, 0);
    let mut stages = Stages { path, capabilities, queue };
    let nop = Request::new(Operation::Nop);
    let copy = Request::copy(Span::new(handle, 0), Span::new(handle, 2048), 64);
    let longer = Request::copy(Span::new(handle, 0), Span::new(handle, 2048), 1100);
    let mut series: [Vec<f64>; 4] = Default::default();
    for _ in 0..rounds {
        let values = [
            stages.each_ns(&nop, 1),
            stages.each_ns(&nop, CHANNELS),
            stages.each_ns(&copy, CHANNELS),
            stages.each_ns(&longer, CHANNELS - 4),
        ];
        series.iter_mut().zip(values).for_each(|(series, value)| series.push(value));
        run.round_done();
    }
    let [one, batch, copies, longer] = &series;
    Ok(vec![
        Row::new("NOP through the stages, one at a time", "ns", Target::None, one),
        Row::new("NOP through the stages, in batches of 32", "ns", Target::None, batch),
        Row::new("64 B copy through the stages, in batches of 32", "ns", Target::None, copies),
        Row::new("1100 B copy, through a queue, in batches of 28", "ns", Target::None, longer),
    ])
}
