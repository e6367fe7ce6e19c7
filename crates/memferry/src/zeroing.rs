//! Zeroing in the background: buffers of a pool are made zero by the engine while nobody has them.
//!
//! ```text
//! buffer given back ─► take_used ─► zero(region), class low ─┬─ done: given back as zeros ─► Pool::take_zero hands it out
//!                                                              ├─ failed: cleared by this thread, given back as zeros
//!                                                              └─ somebody may still write there: nobody gets it again
//! ```
//!
//! The zeroing service of Wicki 2014, section 5.3. Nobody waits for it: who asks for zeros and finds none clears a used
//! buffer by itself, so no old byte is ever handed out, whether the engine is behind, fails or is not there. A buffer
//! that is being zeroed belongs to nobody else until its completion came.
//!
//! The service has to be in this process: one in another process could be lost with every buffer that it has. What an engine
//! queue that failed had is lost to the pool, for zeros that come late would be written over its next user's bytes. Whether others that have a segment mapped look into it meanwhile, a pool cannot know.

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

/// Buffers that are being zeroed at a time.
const OUTSTANDING: u32 = 8;
/// How long the thread sleeps when there is nothing to zero, before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Zeroing was not started.
#[derive(Debug, Error)]
pub enum ZeroingError {
    /// The service is in another process.
    #[error("only a service in this process zeroes a pool; take an embedded client")]
    NotEmbedded,
    /// The queue could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The thread could not be started.
    #[error("cannot start the thread that zeroes: {0}")]
    Thread(io::Error),
}

#[derive(Default)]
struct Shared {
    ending: AtomicBool,
    buffers: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
}

/// Zeroes a pool's used buffers until it is dropped.
///
/// ```
/// use memferry::{Client, Zeroing};
/// use memferry_pool::{Options, Pool};
///
/// let pool = Pool::new(Options::default())?;
/// let zeroing = Zeroing::start(&Client::embedded()?, &pool)?;
/// pool.take()?.write(0, b"secret")?;
/// let mut bytes = [1; 6];
/// pool.take_zero()?.read(0, &mut bytes)?; // zeroed meanwhile, or cleared now
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
    /// Begins to zero what is given back to `pool`, by the service of an embedded client.
    ///
    /// # Errors
    /// [`ZeroingError`].
    pub fn start(client: &Client, pool: &Pool) -> Result<Self, ZeroingError> {
        if !client.is_embedded() {
            return Err(ZeroingError::NotEmbedded);
        }
        let queue = client.queue(OUTSTANDING)?;
        let shared = Arc::new(Shared::default());
        let frames = BTreeMap::new();
        let under_way = VecDeque::new();
        let client = client.clone();
        let pool = pool.clone();
        let mut worker =
            Worker { client: client.clone(), pool, queue, frames, under_way, shared: Arc::clone(&shared) };
        let builder = std::thread::Builder::new().name("memferry-zero".to_owned());
        let thread = builder.spawn(move || worker.run()).map_err(ZeroingError::Thread)?;
        Ok(Self { shared, thread: Some(thread), client })
    }

    /// What it did; the service's [status](Client::status) has it of all its pools.
    pub fn statistics(&self) -> ZeroedStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { buffers, bytes, failed, .. } = &*self.shared;
        ZeroedStatus { buffers: get(buffers), bytes: get(bytes), failed: get(failed) }
    }
}

impl Drop for Zeroing {
    /// Waits until what is being zeroed is zero; what is still used is cleared by whoever asks for zeros.
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        // A forked child has not the thread.
        if self.client.check_fork().is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

struct Worker {
    client: Client,
    pool: Pool,
    queue: Queue,
    /// Of segments, by their number.
    frames: BTreeMap<u32, Frame>,
    under_way: VecDeque<(Ticket, UsedBuffer)>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(&mut self) {
        loop {
            let ending = self.shared.ending.load(Ordering::Acquire);
            if ending && self.under_way.is_empty() {
                return;
            }
            let full = self.under_way.len() == OUTSTANDING as usize;
            if !ending && !full {
                let patience = if self.under_way.is_empty() { LOOK } else { Duration::ZERO };
                if let Some(used) = self.pool.take_used(patience) {
                    self.begin(used);
                    continue;
                }
            }
            self.forget_retired();
            if let Some((ticket, used)) = self.under_way.pop_front() {
                match self.queue.wait(ticket) {
                    Ok(done) => self.settle(used, Ok(done.bytes_done)),
                    Err(error) if error.is_settled() => self.settle(used, Err(error.failure)),
                    Err(_) => self.give_up(used),
                }
            }
        }
    }

    fn begin(&mut self, used: UsedBuffer) {
        match self.submit(&used) {
            Some(ticket) => self.under_way.push_back((ticket, used)),
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

    /// Gives a buffer back when nobody writes to it any more.
    fn settle(&self, used: UsedBuffer, done: Result<u64, Failure>) {
        let length = used.buffer().length() as u64;
        let whole = done == Ok(length);
        let more = match whole {
            true => ZeroedStatus { buffers: 1, bytes: length, failed: 0 },
            false => ZeroedStatus { failed: 1, ..ZeroedStatus::default() },
        };
        // Before others can see that it is zero.
        self.count(more);
        if whole { used.zeroed() } else { used.clear() }
    }

    /// Keeps a buffer from everybody: zeros may still be written to it.
    fn give_up(&self, used: UsedBuffer) {
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

    /// Lets go of segments that the pool has given up.
    fn forget_retired(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        let there: Vec<u32> = self.pool.segments().iter().map(|segment| segment.id).collect();
        self.frames.retain(|id, _| there.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use memferry_pool::{Options, Place};

    use super::*;
    use crate::EngineKind;
    use crate::queue::played::{FAULTED, PlayedWorker};

    fn small(buffer_bytes: usize) -> Pool {
        let options =
            Options { buffer_bytes, segment_bytes: 2 << 20, limit_bytes: 2 << 20, ..Options::default() };
        Pool::new(options).unwrap()
    }

    fn is_zero(holder: &mut memferry_pool::Holder, place: Place) -> bool {
        let buffer = holder.buffer(place).unwrap();
        let mut bytes = vec![1; buffer.length()];
        buffer.read(0, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == 0)
    }

    /// Processes take, write and give back all the pool has, over and over; one in four dies with what it holds.
    fn nobody_sees_an_old_byte(pool: &Pool) {
        std::thread::scope(|scope| {
            for seed in 1..4u8 {
                scope.spawn(move || {
                    for round in 0..60u8 {
                        let mut holder = pool.holder();
                        let places: Vec<Place> = (0..24).map(|_| holder.take().unwrap()).collect();
                        for place in places {
                            assert!(is_zero(&mut holder, place), "process {seed}, round {round}");
                            let length = holder.buffer(place).unwrap().length();
                            let bytes = vec![seed | round | 1; length];
                            holder.buffer(place).unwrap().write(0, &bytes).unwrap();
                            if round % 4 != 0 {
                                holder.give_back(place).unwrap();
                            }
                        }
                    }
                });
            }
        });
    }

    fn wait_until(so: impl Fn() -> bool) {
        let started = std::time::Instant::now();
        while !so() {
            assert!(started.elapsed() < Duration::from_secs(20), "never so");
            std::thread::yield_now();
        }
    }

    #[test]
    fn no_old_byte_is_ever_handed_out_and_the_engine_zeroes_what_is_free() {
        let pool = small(16 << 10);
        // The status of a service that others in these tests use would count theirs too.
        let client = Client::embedded_with(crate::ServiceConfig::default()).unwrap();
        let zeroing = Zeroing::start(&client, &pool).unwrap();
        nobody_sees_an_old_byte(&pool);
        let all = pool.statistics().buffers;
        wait_until(|| pool.statistics().zero == all);
        let told = client.status().unwrap().zeroed;
        let pool = pool.statistics();
        let zeroing = zeroing.statistics();
        println!("{pool:?} {zeroing:?}");
        assert_eq!((zeroing.failed, zeroing.buffers), (0, pool.zeroed));
        assert!(zeroing.buffers > 0 && zeroing.bytes == zeroing.buffers * (16 << 10));
        assert_eq!((pool.in_use, told), (0, zeroing));
    }

    #[test]
    fn an_engine_that_fails_or_ends_early_or_is_revoked_leaves_no_old_byte() {
        // Longer than what is done on the thread that submits it.
        let pool = small(128 << 10);
        let client = Client::embedded().unwrap();
        let queue = client.queue(OUTSTANDING).unwrap();
        let frames = Default::default();
        let under_way = Default::default();
        let shared = Default::default();
        let mut worker =
            Worker { client: client.clone(), pool: pool.clone(), queue, frames, under_way, shared };
        for done in [Err(Failure::EngineTimedOut), Ok(100)] {
            pool.take().unwrap().write(200, &[7; 1000]).unwrap();
            let used = pool.take_used(Duration::ZERO).unwrap();
            worker.settle(used, done);
        }
        // The engine's capability is taken away in the middle.
        pool.take().unwrap().write(0, &[7; 1000]).unwrap();
        let used = pool.take_used(Duration::ZERO).unwrap();
        let ticket = worker.submit(&used).unwrap();
        worker.frames.values().next().unwrap().revoke().unwrap();
        worker.under_way.push_back((ticket, used));
        let second = {
            pool.take().unwrap().write(0, &[7; 1000]).unwrap();
            pool.take_used(Duration::ZERO).unwrap()
        };
        worker.begin(second);
        worker.shared.ending.store(true, Ordering::Release);
        worker.run();
        assert!(worker.shared.failed.load(Ordering::Relaxed) >= 3);
        assert_eq!((pool.statistics().zero, pool.statistics().cleared), (pool.statistics().buffers, 0));
        let mut holder = pool.holder();
        for _ in 0..pool.statistics().buffers {
            let place = holder.take().unwrap();
            assert!(is_zero(&mut holder, place));
        }
        assert_eq!(pool.statistics().cleared, 0, "all were zero");
    }

    #[test]
    fn a_buffer_whose_engine_channel_failed_is_not_handed_out_again() {
        // Longer than what is done on the thread that submits it.
        let pool = small(128 << 10);
        let client = Client::embedded().unwrap();
        let (queue, mut played) = PlayedWorker::beside(&client, OUTSTANDING);
        let frames = Default::default();
        let under_way = Default::default();
        let shared = Default::default();
        let mut worker =
            Worker { client: client.clone(), pool: pool.clone(), queue, frames, under_way, shared };
        drop(pool.take().unwrap());
        let all = pool.statistics().buffers;
        worker.begin(pool.take_used(Duration::ZERO).unwrap());
        worker.shared.ending.store(true, Ordering::Release);
        let late = std::thread::scope(|scope| {
            let late = scope.spawn(|| played.end(FAULTED, EngineKind::Module));
            worker.run();
            late.join().unwrap()
        });
        let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take_zero().ok()).collect();
        buffers.iter_mut().for_each(|buffer| buffer.write(0, &[7; 128 << 10]).unwrap());
        // What the failed engine still writes.
        client.queue(2).unwrap().run(late).unwrap();
        for buffer in &buffers {
            let mut bytes = vec![0; 128 << 10];
            buffer.read(0, &mut bytes).unwrap();
            assert!(bytes == [7; 128 << 10], "{buffer:?} is somebody's and was zeroed");
        }
        let left = pool.statistics();
        let failed = worker.shared.failed.load(Ordering::Relaxed);
        assert_eq!((buffers.len() as u64, left.buffers, left.set_aside, failed), (all - 1, all - 1, 1, 1));
        drop(buffers);
        assert_eq!((pool.trim(), pool.statistics().segments), (0, 1), "its segment stays");
    }

    #[test]
    fn who_takes_never_waits_for_zeroing_unless_asked_to() {
        let pool = small(16 << 10);
        drop(std::iter::from_fn(|| pool.take().ok()).collect::<Vec<_>>());
        let used: Vec<_> = std::iter::from_fn(|| pool.take_used(Duration::ZERO)).collect();
        let all = pool.statistics().buffers as usize;
        assert_eq!(used.len(), all / 2, "as many are left");
        let taken: Vec<_> = std::iter::from_fn(|| pool.take().ok()).collect();
        assert_eq!(taken.len(), all - used.len());
        assert!(pool.take_zero().is_err() && pool.take_waiting(Some(Duration::from_millis(1))).is_err());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take_waiting(None).map(drop));
            used.into_iter().for_each(UsedBuffer::zeroed);
            waiter.join().unwrap().unwrap();
        });
        assert_eq!(pool.statistics().zeroed as usize, all / 2);
    }

    #[test]
    fn zeroing_ends_with_what_was_begun() {
        let pool = small(16 << 10);
        let zeroing = Zeroing::start(&Client::embedded().unwrap(), &pool).unwrap();
        drop(pool.take().unwrap());
        drop(zeroing);
        let statistics = pool.statistics();
        assert_eq!(statistics.in_use, 0);
        assert!(pool.take_used(Duration::ZERO).is_some() || statistics.zero == statistics.buffers);
    }
}
