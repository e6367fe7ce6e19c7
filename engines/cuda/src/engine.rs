//! The engine process: requests of the service, done by streams of a GPU.
//!
//! ```text
//! Engine::next ─► divide: parts ─► the stream with the fewest requests: two parts at a time ─► completed words
//!                                     └─ cancelled: what has not begun is taken back          └─► progress, complete
//! context lost ─► an error ─► the process ends, its frames are revoked, the keeper starts another
//! ```
//!
//! Requests that the service sends do not depend on each other, so they may run on any stream and end in any order.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use memferry_engine::{
    Engine, EngineDescription, EngineOptions, Failure, Job as Request, Operations, Pauses, Reports, RunError,
    WorkId, report,
};
use thiserror::Error;

use crate::checks::JobError;
use crate::device::{Device, DeviceError};
use crate::driver::{CallError, Code, Driver, LIBRARY, LoadError};
use crate::frames::Frames;
use crate::parts::{Direction, Part, Parts, divide};
use crate::place::Place;
use crate::stream::{Completion, Settings, Stream, Ticket};
use crate::vram::{VramError, VramPool};

/// Requests of one stream at a time.
const STREAM_REQUESTS: u32 = 16;
/// Parts of one request at a time: the second one keeps the device busy while the first one's end is noticed.
const PARTS_AHEAD: usize = 2;
/// VRAM of a stream for copies whose bytes have to be moved twice.
const BUFFER_BYTES: u64 = 2 << 20;
/// Failures that are reported one by one.
const REPORTED_FAILURES: u32 = 20;

/// Gives clients of a memferry service memory of an NVIDIA GPU, and copies between it and their host memory.
///
/// The service's configuration has to name the engine and its user, as in:
/// memferry serve --engine "cuda-0 user=memferry-engine frames=all"
#[derive(Clone, PartialEq, Eq, Debug, Parser)]
#[command(name = "memferry-engine-cuda", version)]
pub struct Options {
    /// Socket of the service.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Name of the engine in the service's configuration. Clients name it as the home of frames.
    #[arg(long)]
    pub name: String,
    /// Number of the GPU, as CUDA counts them.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    pub device: i32,
    /// VRAM in which clients can have frames. Each frame takes a multiple of the driver's granularity, usually 2 MiB.
    #[arg(long, value_name = "BYTES")]
    pub memory: u64,
    /// Streams, which run at the same time as far as the GPU has copy engines for them.
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// Library of the CUDA driver.
    #[arg(long, value_name = "PATH", default_value = LIBRARY)]
    pub library: PathBuf,
}

/// Runs the engine until SIGTERM or SIGINT. The process must have one thread. The driver is loaded only in the processes that this one
/// forks, because it does not survive a fork.
///
/// # Errors
/// Those of [`memferry_engine::run`].
pub fn run(options: &Options) -> Result<(), RunError> {
    let any = EngineDescription::default();
    let description = EngineDescription {
        operations: Operations::COPY
            | Operations::FILL
            | Operations::COPY_2D
            | Operations::FILL_2D
            | Operations::SCATTER_GATHER,
        // Between places in host memory only if `shortest=` asks: the detour takes the link's bandwidth twice.
        shortest_bytes: any.longest_bytes,
        channels: options.streams * STREAM_REQUESTS,
        memory_bytes: options.memory,
        ..any
    };
    let connected = EngineOptions { socket: options.socket.clone(), name: options.name.clone(), description };
    memferry_engine::run(connected, |engine| serve(engine, options))
}

/// Why an engine's process ends.
#[derive(Debug, Error)]
enum ServeError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("device {ordinal}: {source}; --device names another one")]
    Device { ordinal: i32, source: DeviceError },
    #[error(
        "device {ordinal} ({device}) has {all} bytes of VRAM, fewer than the {wanted} for frames and {buffers} for buffers: name a smaller --memory, or fewer --streams"
    )]
    Memory { ordinal: i32, device: String, all: u64, wanted: u64, buffers: u64 },
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("buffers of streams: {0}")]
    Buffers(#[from] VramError),
    #[error("the context of the device is lost: {0}; its memory is lost with it")]
    Lost(Code),
}

fn serve(engine: &mut Engine, options: &Options) -> Result<(), ServeError> {
    let Options { name, device: ordinal, memory, streams, .. } = options;
    let ordinal = *ordinal;
    let driver = Driver::load(&options.library)?;
    let device = Device::open(&driver, ordinal).map_err(|source| ServeError::Device { ordinal, source })?;
    let (_, all) = device.memory_info()?;
    let buffers = u64::from(*streams) * BUFFER_BYTES;
    if memory.saturating_add(buffers) > all {
        let device = device.name().to_owned();
        return Err(ServeError::Memory { ordinal, device, all, wanted: *memory, buffers });
    }
    let streams = (0..*streams).map(|_| RequestStream::open(&device)).collect::<Result<_, _>>()?;
    if let Some(why) = device.no_gather() {
        report(name, format_args!("lists of small pieces are copied without the kernel for them: {why}"));
    }
    let frames = Frames::new(name, &device, *memory);
    engine.watch_frames(frames.clone());
    report(
        name,
        format_args!("device {ordinal} ({}) is ready, with {memory} bytes for frames", device.name()),
    );
    let failures = Reports::new(name, REPORTED_FAILURES);
    Server { device, frames, streams, pauses: Pauses::new(), failures }.serve(engine)
}

struct Server {
    device: Arc<Device>,
    frames: Frames,
    streams: Vec<RequestStream>,
    pauses: Pauses,
    failures: Reports,
}

impl Server {
    fn serve(mut self, engine: &mut Engine) -> Result<(), ServeError> {
        loop {
            let mut wait = self.pauses.next(self.is_idle());
            // Requests that are refused at once could come without an end.
            for _ in 0..self.streams.len() * STREAM_REQUESTS as usize {
                let Some(request) = engine.next(wait) else { break };
                self.pauses.note_news();
                self.accept(engine, request);
                wait = Duration::ZERO;
            }
            if engine.take_cancels() {
                self.streams.iter_mut().for_each(|stream| stream.cancel(engine));
            }
            let mut any = false;
            for stream in &mut self.streams {
                any |= stream.poll(engine, &self.device, &mut self.failures);
            }
            if let Some(code) = self.device.lost() {
                // What has not ended is ended by the service, once this process and the device's access to memory have.
                return Err(ServeError::Lost(code));
            }
            if any {
                self.pauses.note_news();
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.streams.iter().all(|stream| stream.requests.is_empty())
    }

    fn accept(&mut self, engine: &mut Engine, request: Request) {
        let Some(stream) = self.streams.iter_mut().min_by_key(|stream| stream.requests.len()) else { return };
        let divided = divide(request.operation(), self.frames.finder(), &stream.buffer);
        match divided {
            Some(parts) => stream.begin(engine, request, parts),
            None => engine.complete(request.id(), request.failed(Failure::Unsupported, 0)),
        }
    }
}

/// A stream, and the requests that it does.
struct RequestStream {
    stream: Stream,
    buffer: Place,
    requests: Vec<Running>,
    completions: Vec<Completion>,
}

/// A request on a stream.
struct Running {
    request: Request,
    left: VecDeque<Part>,
    /// In the order of the stream, with their bytes.
    given: VecDeque<(Ticket, u64)>,
    direction: Direction,
    /// By the parts that have ended, all of them well.
    done_bytes: u64,
    failure: Option<Failure>,
}

impl RequestStream {
    fn open(device: &Arc<Device>) -> Result<Self, ServeError> {
        let stream = Stream::open(device, Settings::default())?;
        let buffer = VramPool::new(device, u64::MAX).allocate(BUFFER_BYTES)?;
        let buffer = buffer.place(0..BUFFER_BYTES).ok_or(VramError::Length { length_bytes: BUFFER_BYTES })?;
        Ok(Self { stream, buffer, requests: Vec::new(), completions: Vec::new() })
    }

    fn begin(&mut self, engine: &mut Engine, request: Request, parts: Parts) {
        let Parts { parts: left, direction } = parts;
        let mut running =
            Running { request, left, given: VecDeque::new(), direction, done_bytes: 0, failure: None };
        running.give(&mut self.stream);
        if !running.end(engine) {
            self.requests.push(running);
        }
    }

    /// Ends early what the service no longer wants.
    fn cancel(&mut self, engine: &mut Engine) {
        let Self { stream, requests, .. } = self;
        requests.retain_mut(|running| {
            if engine.is_cancelled(running.id()) {
                running.left.clear();
                // From the end: a part is done only after those before it.
                while running.given.pop_back_if(|(ticket, _)| stream.cancel(*ticket)).is_some() {}
            }
            !running.end(engine)
        });
    }

    /// Goes on with requests whose parts have ended. Returns whether any have.
    fn poll(&mut self, engine: &mut Engine, device: &Device, failures: &mut Reports) -> bool {
        if self.requests.is_empty() {
            return false;
        }
        self.stream.poll(&mut self.completions);
        let any = !self.completions.is_empty();
        for Completion { ticket, result } in self.completions.drain(..) {
            // The device may still access the memory of this one: it must not be completed while this process lives.
            if result.is_err() && device.lost().is_some() {
                continue;
            }
            if let Err(error) = &result {
                failures.report(format_args!("a request failed: {error}"));
            }
            let is_it = |running: &Running| running.given.front().is_some_and(|(first, _)| *first == ticket);
            let Some(index) = self.requests.iter().position(is_it) else { continue };
            let running = &mut self.requests[index];
            running.part_ended(engine, result);
            running.give(&mut self.stream);
            if running.end(engine) {
                self.requests.swap_remove(index);
            }
        }
        any
    }
}

impl Running {
    fn id(&self) -> WorkId {
        self.request.id()
    }

    /// Gives the stream the next parts.
    fn give(&mut self, stream: &mut Stream) {
        while self.given.len() < PARTS_AHEAD
            && let Some(Part { job, bytes }) = self.left.pop_front()
        {
            match stream.submit(job) {
                Ok(ticket) => self.given.push_back((ticket, bytes)),
                Err(_) => self.fail(Failure::Unsupported),
            }
        }
    }

    fn part_ended(&mut self, engine: &Engine, result: Result<(), JobError>) {
        let Some((_, bytes)) = self.given.pop_front() else { return };
        match result {
            Ok(()) if self.failure.is_none() => {
                self.done_bytes += bytes;
                // Also where the direction is unclear, which clients are not shown: without reports the service takes the engine for
                // stalled.
                engine.progress(self.id(), self.done_bytes, self.direction == Direction::Downward);
            }
            Ok(()) => {}
            Err(error) => self.fail(failure(&error)),
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.left.clear();
    }

    /// Completes the request if nothing of it is left. Returns whether it has ended.
    fn end(&self, engine: &mut Engine) -> bool {
        if !self.left.is_empty() || !self.given.is_empty() {
            return false;
        }
        let is_whole = self.done_bytes == self.request.operation().total_bytes();
        let outcome = match self.failure {
            Some(failure) => self.request.failed(failure, self.done_bytes),
            None if is_whole => self.request.succeeded(),
            None => self.request.failed(Failure::Cancelled, self.done_bytes),
        };
        engine.complete(self.id(), outcome);
        true
    }
}

/// How a request fails if the driver did not do one of its parts.
fn failure(error: &JobError) -> Failure {
    match error {
        JobError::Call(CallError { code: Code::NotSupported | Code::NotPermitted, .. }) => {
            Failure::Unsupported
        }
        JobError::Call(_) => Failure::EngineReset,
        _ => Failure::Unsupported,
    }
}
