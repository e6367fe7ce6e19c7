//! Background zeroing: the engine zeroes free buffers of a pool.
//!
//! ```text
//! freed buffer ─► take_used ─► zero(region), class low ─┬─ done: returned as zeroed ─► Pool::take_zero hands it out
//!                                                       ├─ failed: this thread clears it and returns it as zeroed
//!                                                       └─ an engine may still write there: abandoned, never reused
//! ```
//!
//! The zeroing service of Wicki 2014, section 5.3. Nobody waits for it: a caller that needs zeros and finds no zeroed buffer
//! clears a used one itself. So old bytes are never handed out, even if the engine is slow, fails or is missing. A buffer
//! belongs to this thread until the completion of its zeroing.
//!
//! The service must be embedded: one in another process could be lost with all buffers that it holds. The buffer of a failed
//! engine channel is lost to the pool, because late zeros would overwrite the bytes of its next user. A pool cannot know
//! whether other processes that map a segment read it meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memferry_pool::{Pool, UsedBuffer};
use memferry_service::protocol::ZeroedStatus;
use memferry_transfer::{Failure, PriorityClass};
use thiserror::Error;

use crate::client::Client;
use crate::completion::Ticket;
use crate::error::{FrameError, OpenError};
use crate::frame::Frame;
use crate::queue::Queue;
use crate::transfer::zero;

/// Maximum number of buffers being zeroed at once.
const OUTSTANDING: u32 = 8;
/// Interval at which an idle thread checks whether it should end.
const IDLE_CHECK: Duration = Duration::from_millis(100);

/// Why [`Zeroing::start`] failed.
///
/// ```
/// use memferry::{Client, Zeroing, ZeroingError};
/// use memferry_pool::{Options, Pool};
///
/// let pool = Pool::new(Options::default())?;
/// match Zeroing::start(&Client::embedded()?, &pool) {
///     Ok(zeroing) => assert_eq!(zeroing.statistics().failed, 0),
///     Err(ZeroingError::NotEmbedded) => unreachable!("this client is embedded"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
pub enum ZeroingError {
    /// The service is in another process.
    #[error("only an embedded service zeroes a pool; use an embedded client")]
    NotEmbedded,
    /// The queue could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The thread could not be started.
    #[error("cannot start the zeroing thread: {0}")]
    Thread(io::Error),
}

#[derive(Default)]
struct Shared {
    ending: AtomicBool,
    buffers: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

/// Zeroes the used buffers of a pool in the background until it is dropped.
///
/// ```
/// use memferry::{Client, Zeroing};
/// use memferry_pool::{Options, Pool};
///
/// let pool = Pool::new(Options::default())?;
/// let zeroing = Zeroing::start(&Client::embedded()?, &pool)?;
/// pool.take()?.write(0, b"secret")?;
/// let mut bytes = [1; 6];
/// pool.take_zero()?.read(0, &mut bytes)?; // zeroed in the background or cleared here
/// assert_eq!(bytes, [0; 6]);
/// # drop(zeroing);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Zeroing {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    client: Client,
}

impl Zeroing {
    /// Starts a thread that has the service of an embedded client zero the buffers freed to `pool`.
    ///
    /// # Errors
    /// [`ZeroingError`]: the client is not embedded, or its queue or the thread cannot be created.
    pub fn start(client: &Client, pool: &Pool) -> Result<Self, ZeroingError> {
        if !client.is_embedded() {
            return Err(ZeroingError::NotEmbedded);
        }
        let queue = client.queue(OUTSTANDING)?;
        let shared = Arc::new(Shared::default());
        let frames = BTreeMap::new();
        let zeroing = VecDeque::new();
        let client = client.clone();
        let pool = pool.clone();
        let mut worker =
            Worker { client: client.clone(), pool, queue, frames, zeroing, shared: Arc::clone(&shared) };
        let builder = std::thread::Builder::new().name("memferry-zero".to_owned());
        let thread = builder.spawn(move || worker.run()).map_err(ZeroingError::Thread)?;
        Ok(Self { shared, thread: Some(thread), client })
    }

    /// Counts of this pool's zeroed buffers. The service's [status](Client::status) has the sum over all pools.
    pub fn statistics(&self) -> ZeroedStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { buffers, bytes, failed, .. } = &*self.shared;
        ZeroedStatus { buffers: get(buffers), bytes: get(bytes), failed: get(failed) }
    }
}

impl Drop for Zeroing {
    /// Waits for the buffers that are being zeroed. `take_zero` clears the remaining used buffers itself.
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        if self.client.check_fork().is_err() {
            // A forked child does not have the thread. Its name may be that of another thread there, which a drop would detach.
            std::mem::forget(thread);
        } else {
            let _ = thread.join();
        }
    }
}

struct Worker {
    client: Client,
    pool: Pool,
    queue: Queue,
    /// The frames of the pool's segments, by segment id.
    frames: BTreeMap<u32, Frame>,
    /// Submitted buffers, oldest first.
    zeroing: VecDeque<(Ticket, UsedBuffer)>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(&mut self) {
        loop {
            let ending = self.shared.ending.load(Ordering::Acquire);
            if ending && self.zeroing.is_empty() {
                return;
            }
            let full = self.zeroing.len() == OUTSTANDING as usize;
            if !ending && !full {
                let timeout = if self.zeroing.is_empty() { IDLE_CHECK } else { Duration::ZERO };
                if let Some(used) = self.pool.take_used(timeout) {
                    self.begin(used);
                    continue;
                }
            }
            self.release_retired();
            if let Some((ticket, used)) = self.zeroing.pop_front() {
                match self.queue.wait(ticket) {
                    Ok(done) => self.settle(used, Ok(done.bytes_done)),
                    Err(error) if error.is_settled() => self.settle(used, Err(error.failure)),
                    Err(_) => self.abandon(used),
                }
            }
        }
    }

    fn begin(&mut self, used: UsedBuffer) {
        match self.submit(&used) {
            Some(ticket) => self.zeroing.push_back((ticket, used)),
            None => self.settle(used, Err(Failure::Unsupported)),
        }
    }

    fn submit(&mut self, used: &UsedBuffer) -> Option<Ticket> {
        let segment = used.buffer().segment();
        let index = used.buffer().index();
        if !self.frames.contains_key(&segment.id()) {
            let frame = self.frame(segment.mapping().clone()).ok()?;
            self.frames.insert(segment.id(), frame);
        }
        let frame = self.frames.get(&segment.id())?;
        let start = segment.offset_of(index) as u64;
        let region = frame.slice(start..start + used.buffer().length() as u64);
        self.queue.submit(zero(region).with_class(PriorityClass::Low)).ok()
    }

    fn frame(&self, mapping: memferry_shm::mapping::Mapping) -> Result<Frame, FrameError> {
        self.client.register_mapping(mapping)
    }

    /// Returns a buffer to the pool; no engine writes to it any more. `done` is the number of zeroed bytes.
    fn settle(&self, used: UsedBuffer, done: Result<u64, Failure>) {
        let length = used.buffer().length() as u64;
        let is_zero = done == Ok(length);
        let more = match is_zero {
            true => ZeroedStatus { buffers: 1, bytes: length, failed: 0 },
            false => ZeroedStatus { failed: 1, ..ZeroedStatus::default() },
        };
        // Counted before others can see the buffer as zeroed.
        self.count(more);
        if is_zero { used.zeroed() } else { used.clear() }
    }

    /// Takes a buffer out of use, because an engine may still write zeros to it.
    fn abandon(&self, used: UsedBuffer) {
        self.count(ZeroedStatus { failed: 1, ..ZeroedStatus::default() });
        used.abandon();
    }

    fn count(&self, more: ZeroedStatus) {
        for (counter, more) in [
            (&self.shared.buffers, more.buffers),
            (&self.shared.bytes, more.bytes),
            (&self.shared.failed, more.failed),
        ] {
            counter.fetch_add(more, Ordering::Relaxed);
        }
        self.client.count_zeroed(more);
    }

    /// Drops the frames of segments that the pool has freed.
    fn release_retired(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        let present: Vec<u32> = self.pool.segments().iter().map(|segment| segment.id).collect();
        self.frames.retain(|id, _| present.contains(id));
    }
}

#[cfg(test)]
mod tests;
