//! The engine's process: attaches, then takes requests and completes them, while other threads map frames and show them.
//!
//! ```text
//! attach ─► AttachEngine, OpenEngine ─► EngineEnd ─► report to the keeper ─► thread: NextFrame ...
//! Work (handles) ─ Frames ─► Job (mappings, checked)       a frame that is not here, or a byte outside: unsupported
//! ```

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use memferry_external::layout::EngineLayout;
use memferry_external::{EngineEnd, Work, WorkId};
use memferry_service::protocol::{Answer, Command, EngineRole};
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Spin;
use memferry_transfer::{
    CacheHint, Descriptor, Failure, Handle, Operation, Outcome, Reach, Region, Side, Span,
};

use crate::connection::{Connection, ConnectionError};
use crate::events;
use crate::frames::Frames;
use crate::options::{EngineOptions, report};
use crate::process;
use crate::watcher::{FrameWatcher, Watcher};

/// About the cost of being woken.
const SPIN: Duration = Duration::from_micros(50);
/// How many times the service's limit without progress a request that only this engine can do waits for a frame with which the watcher
/// is not done. A request has to end within four times.
const ARRIVAL_STALLS: u32 = 2;
/// How often such a request is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// How long a client's frame in own memory waits for an engine that has just begun to set its watcher: less than the service waits.
const WATCHER_LIMIT: Duration = Duration::from_secs(3);

/// A request to carry out: every byte that it names lies in memory of this process, and what it writes is writable.
#[derive(Clone, Debug)]
pub struct Job {
    id: WorkId,
    descriptor: Descriptor<Mapping>,
}

impl Job {
    /// A job that no service submitted, for tests of an engine.
    pub const fn new(id: WorkId, descriptor: Descriptor<Mapping>) -> Self {
        Self { id, descriptor }
    }

    /// Names it until it is completed.
    pub const fn id(&self) -> WorkId {
        self.id
    }

    /// The operation over mapped memory. The mappings stay while this job lives.
    pub const fn operation(&self) -> &Operation<Region<Mapping>> {
        self.descriptor.operation()
    }

    /// How to treat the CPU caches; an engine may ignore it.
    pub const fn hint(&self) -> CacheHint {
        self.descriptor.hint()
    }

    /// The outcome of an operation without a value that was carried out as a whole.
    pub fn succeeded(&self) -> Outcome {
        self.succeeded_with(0)
    }

    /// As [`succeeded`](Self::succeeded), of an operation with a value: a CRC, or the offset of the first difference.
    pub fn succeeded_with(&self, value: u64) -> Outcome {
        let bytes_done = self.operation().total_bytes();
        Outcome { result: Ok(()), bytes_done, value, ..Outcome::refused(Failure::Unsupported) }
    }

    /// The outcome of an operation that failed after `bytes_done` bytes.
    pub fn failed(&self, failure: Failure, bytes_done: u64) -> Outcome {
        Outcome { bytes_done, ..Outcome::refused(failure) }
    }
}

/// The process's end of its queue pairs with all workers of the service, and the frames that requests name.
pub struct Engine {
    end: EngineEnd,
    frames: Frames,
    watcher: Watcher,
    spin: Spin,
    /// Requests that wait for frames, and since when.
    held: VecDeque<(Work, Instant)>,
    /// How long they wait.
    arrival: Duration,
    /// Cancels that were noticed and that [`take_cancels`](Self::take_cancels) has not reported.
    has_cancels: bool,
    /// The keeper, until it has learned that this process has done work.
    keeper: Option<OwnedFd>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("end", &self.end).finish_non_exhaustive()
    }
}

/// The watcher may hold what `serve` owns, so it is not called after that.
impl Drop for Engine {
    fn drop(&mut self) {
        self.watcher.clear();
    }
}

impl Engine {
    /// An engine over an end and frames, of a keeper if it has one. `stall` is the service's limit without progress.
    pub(crate) fn new(
        end: EngineEnd,
        (frames, watcher): (Frames, Watcher),
        stall: Duration,
        keeper: Option<OwnedFd>,
    ) -> Self {
        Self {
            end,
            frames,
            watcher,
            spin: Spin::new(SPIN),
            held: VecDeque::new(),
            arrival: stall.saturating_mul(ARRIVAL_STALLS),
            has_cancels: false,
            keeper,
        }
    }

    /// The next request. Waits for at most `limit`: it spins for a short while, then sleeps. Returns `None` before that if the service
    /// asked for the early end of a request, see [`take_cancels`](Self::take_cancels).
    ///
    /// Requests whose frames are not here are completed as unsupported; the service leaves them to its CPU workers. One that also names
    /// the engine's own memory is held back for a while instead, because its frame may be about to come.
    pub fn next(&mut self, limit: Duration) -> Option<Job> {
        if let Some(job) = self.take() {
            return Some(job);
        }
        if limit.is_zero() {
            return None;
        }
        let start = Instant::now();
        let spin = self.spin.time().min(limit);
        while start.elapsed() < spin {
            if let Some(job) = self.take() {
                self.spin.record_success();
                return Some(job);
            }
            std::hint::spin_loop();
        }
        self.spin.record_failure();
        loop {
            if self.notices_cancels() {
                return None;
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return None;
            }
            self.end.sleep(if self.held.is_empty() { left } else { left.min(LOOK) });
            if let Some(job) = self.take() {
                return Some(job);
            }
        }
    }

    /// The next request that can be carried out, if one waits.
    fn take(&mut self) -> Option<Job> {
        for _ in 0..self.held.len() {
            let (work, since) = self.held.pop_front()?;
            let located = self.take_work(work, Some(since));
            if located.is_some() {
                return located;
            }
        }
        loop {
            let work = self.end.next_work()?;
            let located = self.take_work(work, None);
            if located.is_some() {
                return located;
            }
        }
    }

    /// The request over mapped memory; `None` if it is completed or held back. `since` is when it was first held back.
    fn take_work(&mut self, work: Work, since: Option<Instant>) -> Option<Job> {
        // `take_cancels` may have reported this cancel while the request was still in the ring.
        if self.end.is_cancelled(work.id) {
            self.end.complete(work.id, Outcome::refused(Failure::Cancelled));
            return None;
        }
        if let Some(descriptor) = locate(&work.operation, &self.frames) {
            if since.is_some() {
                self.end.clear_progress(work.id);
            }
            return Some(Job::new(work.id, descriptor.with_hint(work.hint)));
        }
        let since = since.unwrap_or_else(Instant::now);
        if waits_for_a_frame(&work.operation, &self.frames) && since.elapsed() < self.arrival {
            // It is being prepared, and not stalled.
            self.end.progress(work.id, 0, false);
            self.held.push_back((work, since));
        } else {
            self.end.complete(work.id, Outcome::refused(Failure::Unsupported));
        }
        None
    }

    /// Completes a request, once. Its memory must not be touched any more: if the device cannot be stopped, end the process instead. The
    /// service ends the connection with an engine that completes what it does not have, claims more bytes than the request has, or fails
    /// in a way that only the service can.
    pub fn complete(&mut self, id: WorkId, outcome: Outcome) {
        self.end.complete(id, outcome);
        if outcome.result.is_ok()
            && let Some(keeper) = self.keeper.take()
        {
            // Without the report the keeper waits longer before it starts the next engine.
            let _ = rustix::io::write(&keeper, &[1]);
        }
    }

    /// Reports that the first `bytes` of the destination are final, or the last ones if `downward`. With a comparison or a CRC: that they
    /// were read. This keeps a long request from being taken for stalled: the service ends the connection with an engine that neither
    /// completes nor reports anything for as long as its configuration says (`stall-ms`). Each request must also move at 32 MiB/s at
    /// least, counted with those submitted before it, and has four times `stall-ms` on top. 0 bytes say that its memory is being prepared:
    /// for four times `stall-ms` that is as good as progress.
    pub fn progress(&self, id: WorkId, bytes: u64, downward: bool) {
        self.end.progress(id, bytes, downward);
    }

    /// Whether the service asked for the early end of any request since the last call. If so, look at all that run. A cancelled request
    /// is completed too: as [`Failure::Cancelled`], or in any other way.
    pub fn take_cancels(&mut self) -> bool {
        self.notices_cancels();
        std::mem::take(&mut self.has_cancels)
    }

    fn notices_cancels(&mut self) -> bool {
        let are_new = self.end.take_cancels();
        self.has_cancels |= are_new;
        are_new
    }

    /// Whether the service asked for the early end of the request.
    pub fn is_cancelled(&self, id: WorkId) -> bool {
        self.end.is_cancelled(id)
    }

    /// The frames that this process has.
    pub const fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Sets the watcher, in place of an earlier one. Its `mapped` is called for the frames that are here already: on this thread and before
    /// this returns, unless it pins them. It is dropped when `serve` has returned.
    pub fn watch_frames(&mut self, watcher: impl FrameWatcher + 'static) {
        self.watcher.set(&self.frames, Box::new(watcher));
    }
}

/// Whether only this engine can do the operation, once a frame of it is here: another operand lies in the engine's own memory.
fn waits_for_a_frame(operation: &Operation<Span>, frames: &Frames) -> bool {
    let is_own = |span: &Span| frames.get(span.handle).is_some_and(|memory| memory.is_elsewhere());
    let is_missing = |span: &Span| frames.get(span.handle).is_none();
    operation.has_operand(is_own) && operation.has_operand(is_missing)
}

/// The operation over the frames' mappings; `None` if a frame is not here, cannot be written, or does not have all bytes.
fn locate(operation: &Operation<Span>, frames: &Frames) -> Option<Descriptor<Mapping>> {
    // Segments of a list are often in the same frame.
    let mut last: Option<(Handle, Mapping)> = None;
    let mut find = |handle| match &last {
        Some((known, mapping)) if *known == handle => Some(mapping.clone()),
        _ => Some(last.insert((handle, frames.get(handle)?)).1.clone()),
    };
    let located = operation.try_map(|side, span, reach| region(side, span, reach, &mut find).ok_or(()));
    Descriptor::new(0, located.ok()?).ok()
}

/// The range of an operand, and the start of its walk in it.
fn region(
    side: Side,
    span: &Span,
    reach: Reach,
    find: impl FnOnce(Handle) -> Option<Mapping>,
) -> Option<(Region<Mapping>, u64)> {
    let mapping = find(span.handle)?;
    if side == Side::Destination && mapping.access() == Access::ReadOnly {
        return None;
    }
    let (offset, length, start) = match reach {
        Reach::Bytes(length) => (span.offset, length, 0),
        Reach::Walk(plane, count) => match plane.extent(&count).ok()? {
            Some(extent) => {
                (span.offset.checked_add(extent.first)?, extent.length, plane.start - extent.first)
            }
            None => (span.offset, 0, 0),
        },
    };
    Some((Region::new(mapping, offset, length)?, start))
}

/// The life of the engine's process after the fork.
pub(crate) fn live<E: std::fmt::Display>(
    options: &EngineOptions,
    frames: Frames,
    keeper: OwnedFd,
    serve: &mut impl FnMut(&mut Engine) -> Result<(), E>,
) -> ! {
    let live = || {
        let mut engine = match attach(options, frames, keeper) {
            Ok(engine) => engine,
            Err(error) => {
                report(&options.name, format_args!("the engine cannot start: {error}"));
                return 1;
            }
        };
        match serve(&mut engine) {
            Ok(()) => 0,
            Err(error) => {
                report(&options.name, format_args!("the engine ends: {error}"));
                1
            }
        }
    };
    // A panic must not reach what the keeper's process would do next.
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(live)).unwrap_or_else(|panic| {
        // Its own drop might panic.
        std::mem::forget(panic);
        101
    });
    process::flush();
    process::exit(code);
}

/// Connects and opens the queue pairs. Then the keeper learns of it, and threads go on with frames.
fn attach(options: &EngineOptions, frames: Frames, keeper: OwnedFd) -> Result<Engine, ConnectionError> {
    memferry_shm::bus_error::install()
        .map_err(|source| ConnectionError::System { step: "sigaction", source })?;
    let mut connection = Connection::open(&options.socket)?;
    let role = EngineRole::Engine(options.description);
    let attach = Command::AttachEngine { name: options.name.clone(), role };
    let (answer, _) = connection.call("attach the engine", attach, &[])?;
    let Answer::EngineAttached { workers, capacity, stall } = answer else {
        return Err(ConnectionError::Protocol("it answered an attached engine with something else"));
    };
    let end = open(&mut connection, workers, capacity)?;
    rustix::io::write(&keeper, &[1]).map_err(ConnectionError::system("writing to the keeper"))?;
    let reports = keeper.try_clone().ok();
    let has_memory = options.description.memory_bytes > 0;
    let watcher = Watcher::awaited(if has_memory { WATCHER_LIMIT } else { Duration::ZERO });
    let name = options.name.clone();
    let engine = Engine::new(end, (frames.clone(), watcher.clone()), stall, reports);
    let shower = watcher.clone();
    let shown = frames.clone();
    spawn("memferry-watch", move || {
        loop {
            shower.show_next(&shown);
        }
    })?;
    spawn("memferry-frames", move || {
        let error = follow_frames(&mut connection, &keeper, &frames, &watcher);
        report(&name, format_args!("the engine ends: {error}"));
    })?;
    Ok(engine)
}

/// Starts a thread with which the process ends, also by a panic: without it there is nothing to do here, and no frame may be used.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ConnectionError> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let spawned = thread.spawn(move || {
        let _ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        process::exit(2);
    });
    spawned.map(drop).map_err(|source| ConnectionError::System { step: "starting a thread", source })
}

/// Makes the memory of this side and exchanges it for the service's.
fn open(connection: &mut Connection, workers: u32, capacity: u32) -> Result<EngineEnd, ConnectionError> {
    let layout = EngineLayout::new(workers, capacity)
        .map_err(|_| ConnectionError::Protocol("its number of workers or capacity is impossible"))?;
    let (descriptor, own) = frame::allocate_half(layout.engine_bytes()).map_err(|error| {
        ConnectionError::System { step: "allocating the queue pairs", source: std::io::Error::other(error) }
    })?;
    let command = Command::OpenEngine { workers, capacity };
    let sent = [std::os::fd::AsFd::as_fd(&descriptor)];
    let (answer, descriptors) = connection.call("open the engine", command, &sent)?;
    let [service, doorbell]: [OwnedFd; 2] = match (answer, descriptors.try_into()) {
        (Answer::EngineOpened, Ok(two)) => two,
        _ => return Err(ConnectionError::Protocol("it answered an open engine with something else")),
    };
    let needed = usize::try_from(layout.service_bytes()).unwrap_or(usize::MAX);
    let unsafe_memory = |_| ConnectionError::Protocol("its memory can shrink, or is too small");
    let length = frame::check_sealed(std::os::fd::AsFd::as_fd(&service), needed).map_err(unsafe_memory)?;
    let page = rustix::param::page_size();
    let service = Mapping::shared(std::os::fd::AsFd::as_fd(&service), length, Access::ReadOnly, page)
        .map_err(|source| ConnectionError::System { step: "mapping the service's memory", source })?;
    EngineEnd::new(layout, (service, own), doorbell, connection.fences())
        .map_err(|_| ConnectionError::Protocol("its memory is too small"))
}

/// Does what the service's events ask for until the connection or the keeper ends.
fn follow_frames(
    connection: &mut Connection,
    keeper: &OwnedFd,
    frames: &Frames,
    watcher: &Watcher,
) -> ConnectionError {
    let mut follow = || -> Result<(), ConnectionError> {
        connection.ask(Command::NextFrame { done: None }, &[])?;
        loop {
            connection.wait_beside(keeper)?;
            let (answer, descriptors) = connection.answer("name the next frame")?;
            let Answer::Frame(event) = answer else {
                return Err(ConnectionError::Protocol("it answered with something else than an event"));
            };
            events::process(event, descriptors, frames, watcher, |done, descriptors| {
                connection.ask(Command::NextFrame { done: Some(done) }, descriptors)
            })?;
        }
    };
    follow().err().unwrap_or(ConnectionError::Lost)
}

#[cfg(test)]
mod tests;
