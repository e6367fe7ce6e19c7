//! Futures for transfers, for any executor. One driver thread waits for all futures of a queue.
//!
//! ```text
//! submit ─► Pending ─ poll: checks the ring, then leaves its waker ─► driver thread ─ futex ─► completion ─► waker
//!              └─ drop: the transfer keeps running, its result is discarded
//! ```
//!
//! The driver starts with the first future that has to wait, sleeps while no future waits, and ends with the queue. No runtime
//! is needed.
//!
//! A forked child has no driver, and another thread of the parent may have held the lock. So nothing is locked there.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use memferry_shm::fork_guard::Forked;
use memferry_shm::queue_pair::{Sleeper, futex};
use memferry_shm::storage::MappedWords;
use memferry_transfer::Failure;

use crate::completion::{Completion, Done, Output, Ticket, TicketId, TransferError};
use crate::queue::{LIVENESS, Queue, SubmitError, SubmitReason};
use crate::session::Session;
use crate::transfer::Transfer;

/// Polls of the ring before a future waits: an awake worker completes a small request in this time.
const POLLS: u32 = 64;

/// A queue whose transfers are futures. Clones share it; it closes when the last clone and future is dropped.
///
/// ```
/// use memferry::{Client, copy, crc32c};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
/// # runtime.block_on(async {
/// let client = Client::embedded()?;
/// let (source, destination) = (client.frame(4096).alloc()?, client.frame(4096).alloc()?);
/// let queue = client.async_queue(64)?;
/// queue.submit(copy(&source, &destination))?.await?;
/// let crc: u32 = queue.submit(crc32c(&destination))?.await?.output;
/// assert_eq!(crc, 0x98f9_4189); // of 4096 zeros
/// # Ok::<(), memferry::Error>(())
/// # })?;
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct AsyncQueue(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    session: Arc<Session>,
    control: Arc<DriverControl>,
}

struct State {
    queue: Queue,
    tasks: HashMap<TicketId, Task>,
    /// Whether the driver thread was started.
    has_driver: bool,
}

/// The state of a transfer whose result has not been taken.
enum Task {
    /// Its future was not polled yet.
    Fresh,
    Waits(Waker),
    Done(Completion),
    /// Its future was dropped.
    Detached,
}

/// Starts and stops the driver thread, which sleeps here while no future waits.
#[derive(Default)]
struct DriverControl {
    order: Mutex<Order>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Order {
    #[default]
    Sleep,
    Drive,
    /// The queue was dropped.
    End,
}

impl DriverControl {
    fn set(&self, order: Order) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = order;
        self.changed.notify_one();
    }

    /// Sleeps until a future waits. Returns false if the queue was dropped.
    fn wait(&self) -> bool {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let mut order = self
            .changed
            .wait_while(order, |order| *order == Order::Sleep)
            .unwrap_or_else(PoisonError::into_inner);
        let drives = *order == Order::Drive;
        if drives {
            *order = Order::Sleep;
        }
        drives
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.session.check_fork().is_ok() {
            return self.control.set(Order::End);
        }
        // A thread of the parent may have been changing the tasks at the fork, so they are not dropped.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut state.tasks));
    }
}

impl AsyncQueue {
    /// Turns a queue into an asynchronous one. Results of transfers submitted before are discarded.
    pub fn new(queue: Queue) -> Self {
        let session = Arc::clone(queue.session());
        let state = State { queue, tasks: HashMap::new(), has_driver: false };
        Self(Arc::new(Shared { state: Mutex::new(state), session, control: Arc::default() }))
    }

    /// Submits a transfer. It runs whether the future is polled or not.
    ///
    /// # Errors
    /// [`SubmitError`], which contains the transfer.
    pub fn submit<T>(&self, transfer: Transfer<T>) -> Result<Pending<T>, SubmitError<T>> {
        let mut state = match self.0.lock() {
            Ok(state) => state,
            Err(forked) => return Err(SubmitError::new(SubmitReason::Forked(forked), transfer)),
        };
        // Completions of detached transfers hold slots of the ring until they are taken.
        let wakers = state.collect();
        let submitted = state.queue.submit(transfer);
        if let Ok(ticket) = &submitted {
            state.tasks.insert(ticket.id(), Task::Fresh);
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(Pending { shared: Arc::clone(&self.0), ticket: submitted? })
    }

    /// The maximum number of outstanding transfers; 0 in a forked child.
    pub fn capacity(&self) -> u32 {
        self.0.lock().map_or(0, |state| state.queue.capacity())
    }
}

impl Shared {
    fn lock(&self) -> Result<MutexGuard<'_, State>, Forked> {
        self.session.check_fork()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    /// Takes all completions of the ring. Returns the wakers of the futures that wait for them.
    #[must_use = "a future that is not woken now is never woken"]
    fn collect(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(completion) = self.queue.poll_completion() {
            match self.tasks.remove(&completion.id) {
                Some(Task::Detached) | None => {}
                Some(task) => {
                    self.tasks.insert(completion.id, Task::Done(completion));
                    if let Task::Waits(waker) = task {
                        wakers.push(waker);
                    }
                }
            }
        }
        wakers
    }

    fn has_waiting(&self) -> bool {
        self.tasks.values().any(|task| matches!(task, Task::Waits(_)))
    }
}

/// The future of a transfer. The transfer keeps running if this is dropped.
///
/// ```
/// use memferry::{Client, Pattern, fill, nop};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(1 << 20).alloc()?;
/// let queue = client.async_queue(8)?;
/// let first = queue.submit(fill(&frame, Pattern::Byte(1)))?;
/// let second = queue.submit(nop().fenced())?; // both run, whether they are polled or not
/// let both = async { Ok::<_, memferry::Error>((first.await?.bytes_done, second.await?.bytes_done)) };
/// # fn block_on<T>(future: impl Future<Output = T>) -> T {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
/// #             return value;
/// #         }
/// #     }
/// # }
/// assert_eq!(block_on(both)?, (1 << 20, 0));
/// # Ok::<(), memferry::Error>(())
/// ```
#[must_use = "the transfer runs without this, but its failure goes unnoticed"]
pub struct Pending<T = ()> {
    shared: Arc<Shared>,
    ticket: Ticket<T>,
}

impl<T> Pending<T> {
    /// The ticket that names the transfer in its queue.
    pub fn ticket(&self) -> Ticket<T> {
        self.ticket
    }

    /// Asks the transfer to end early. Await the future to learn how it ended.
    ///
    /// # Errors
    /// [`Failure::UnknownTicket`] if the transfer has ended; [`Failure::Forked`].
    pub fn cancel(&self) -> Result<(), TransferError> {
        match self.shared.lock() {
            Ok(mut state) => state.queue.cancel(self.ticket),
            Err(_) => Err(TransferError::without_engine(self.ticket.id(), Failure::Forked)),
        }
    }
}

impl<T: Output> Future for Pending<T> {
    type Output = Result<Done<T>, TransferError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.poll(self.ticket.id(), context).map(Completion::into_result)
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        let id = self.ticket.id();
        let Ok(mut state) = self.shared.lock() else { return };
        let before = state.tasks.remove(&id);
        if !matches!(before, Some(Task::Done(_)) | None) {
            state.tasks.insert(id, Task::Detached);
        }
        drop(state);
        drop(before);
    }
}

impl Shared {
    fn poll(self: &Arc<Self>, id: TicketId, context: &mut Context<'_>) -> Poll<Completion> {
        // Wakers run code of the executor, so they are cloned, woken and dropped while the queue is not locked.
        let waker = context.waker().clone();
        let Ok(mut state) = self.lock() else {
            return Poll::Ready(Completion::without_engine(id, Failure::Forked));
        };
        let mut wakers = Vec::new();
        for _ in 0..POLLS {
            wakers.extend(state.collect());
            if matches!(state.tasks.get(&id), Some(Task::Done(_)) | None) {
                break;
            }
            std::hint::spin_loop();
        }
        let before = state.tasks.remove(&id);
        let polled = match &before {
            Some(Task::Done(completion)) => Poll::Ready(*completion),
            // The result was taken by an earlier poll.
            None => Poll::Ready(Completion::without_engine(id, Failure::UnknownTicket)),
            Some(_) => {
                state.tasks.insert(id, Task::Waits(waker));
                wakers.extend(self.start_driver(&mut state));
                Poll::Pending
            }
        };
        drop(state);
        drop(before);
        wakers.into_iter().for_each(Waker::wake);
        polled
    }

    /// Starts or wakes the driver. Returns the wakers of all waiting futures if no thread can be started.
    #[must_use = "a future that is not woken now is never woken"]
    fn start_driver(self: &Arc<Self>, state: &mut State) -> Vec<Waker> {
        let mut wakers = Vec::new();
        if !state.has_driver {
            let weak = Arc::downgrade(self);
            let control = Arc::clone(&self.control);
            let sleeper = state.queue.sleeper();
            let thread = std::thread::Builder::new().name("memferry-futures".to_owned());
            state.has_driver = thread.spawn(move || drive(&weak, &control, &sleeper)).is_ok();
            if !state.has_driver {
                // Without a driver the executor has to poll the futures until they are ready.
                let waits =
                    |task: &Task| if let Task::Waits(waker) = task { Some(waker.clone()) } else { None };
                wakers.extend(state.tasks.values().filter_map(waits));
            }
        }
        self.control.set(Order::Drive);
        wakers
    }
}

/// The driver thread: wakes futures until the queue is dropped.
fn drive(weak: &Weak<Shared>, control: &DriverControl, sleeper: &Sleeper<MappedWords>) {
    while control.wait() {
        while let Some(shared) = weak.upgrade() {
            let Ok(mut state) = shared.lock() else { return };
            let wakers = state.collect();
            if wakers.is_empty() && !state.has_waiting() {
                break;
            }
            // No wake-up is lost: the flag is raised before the last check, and the worker changes the word after it sees the flag.
            let expected = sleeper.wake_word().load(Ordering::Acquire);
            sleeper.parked().store(1, Ordering::Relaxed);
            sleeper.fences().heavy();
            let asleep = wakers.is_empty() && !state.queue.has_news();
            drop(state);
            let shared = if asleep {
                // Released during the sleep, so that the queue can close.
                drop(shared);
                futex::wait(sleeper.wake_word(), expected, LIVENESS);
                weak.upgrade()
            } else {
                Some(shared)
            };
            // If the queue has closed, its ring may belong to another queue by now.
            if shared.is_some() {
                sleeper.parked().store(0, Ordering::Relaxed);
            }
            drop(shared);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
