//! Transfers to be awaited, on any executor or none: a future for each, and a thread that sleeps for all of them.
//!
//! ```text
//! submit ─► Pending ─ poll: a look at the ring, then its waker is left ─► driver thread ─ futex ─► completion ─► waker
//!              └─ dropped: the transfer goes on, nobody is told
//! ```
//!
//! The driver starts with the first future that has to wait, sleeps while none does, and ends with the queue. No runtime is
//! needed, and none is known here.
//!
//! A forked child has the lock as some thread of its parent's had it, and no driver: there nothing here is locked or looked at.

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

/// Looks at the ring before a future waits: an awake worker answers a small request meanwhile.
const LOOKS: u32 = 64;

/// A queue whose transfers are awaited. Clones share it; it closes with the last of them and their futures.
///
/// ```
/// # #![deny(unused_must_use)]
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
    bell: Arc<Bell>,
}

struct State {
    queue: Queue,
    tasks: HashMap<TicketId, Task>,
    /// The driver thread runs.
    driven: bool,
}

/// A transfer that has not been taken yet.
enum Task {
    /// Nobody has asked yet.
    Fresh,
    Waits(Waker),
    Done(Completion),
    /// Nobody will ask.
    Detached,
}

/// What the driver sleeps on while no future waits.
#[derive(Default)]
struct Bell {
    wanted: Mutex<Wanted>,
    rung: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Wanted {
    #[default]
    No,
    Yes,
    /// The queue is gone.
    Never,
}

impl Bell {
    fn ring(&self, wanted: Wanted) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        self.rung.notify_one();
    }

    /// Sleeps until a future waits; whether the queue is still there.
    fn wait(&self) -> bool {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = self
            .rung
            .wait_while(wanted, |wanted| *wanted == Wanted::No)
            .unwrap_or_else(PoisonError::into_inner);
        let there = *wanted == Wanted::Yes;
        if there {
            *wanted = Wanted::No;
        }
        there
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.session.check_fork().is_ok() {
            return self.bell.ring(Wanted::Never);
        }
        // A thread of the parent's may have been in the middle of changing them.
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut state.tasks));
    }
}

impl AsyncQueue {
    /// Takes over a queue. Its earlier tickets are forgotten.
    pub fn new(queue: Queue) -> Self {
        let session = Arc::clone(queue.session());
        let state = State { queue, tasks: HashMap::new(), driven: false };
        Self(Arc::new(Shared { state: Mutex::new(state), session, bell: Arc::default() }))
    }

    /// Hands a transfer to the service. It runs whether the future is polled or not.
    ///
    /// # Errors
    /// [`SubmitError`] with the transfer.
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

    /// Transfers that may be outstanding; none in a forked child.
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
    /// Takes what the ring has; gives the wakers of those who wait for it.
    #[must_use = "who is not woken now never is"]
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

    fn anyone_waits(&self) -> bool {
        self.tasks.values().any(|task| matches!(task, Task::Waits(_)))
    }
}

/// A transfer under way. Dropping it lets the transfer go on.
#[must_use = "a transfer runs without this, but its end is not seen"]
pub struct Pending<T = ()> {
    shared: Arc<Shared>,
    ticket: Ticket<T>,
}

impl<T> Pending<T> {
    /// What the queue knows the transfer by.
    pub fn ticket(&self) -> Ticket<T> {
        self.ticket
    }

    /// Asks that it end early; the future still has to be awaited to learn how it ended.
    ///
    /// # Errors
    /// [`Failure::UnknownTicket`] when it has ended, [`Failure::Forked`].
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
        // Wakers are an executor's code: they are cloned, woken and dropped while the queue is not locked.
        let waker = context.waker().clone();
        let Ok(mut state) = self.lock() else {
            return Poll::Ready(Completion::without_engine(id, Failure::Forked));
        };
        let mut wakers = Vec::new();
        for _ in 0..LOOKS {
            wakers.extend(state.collect());
            if matches!(state.tasks.get(&id), Some(Task::Done(_)) | None) {
                break;
            }
            std::hint::spin_loop();
        }
        let before = state.tasks.remove(&id);
        let polled = match &before {
            Some(Task::Done(completion)) => Poll::Ready(*completion),
            // Awaited to its end before.
            None => Poll::Ready(Completion::without_engine(id, Failure::UnknownTicket)),
            Some(_) => {
                state.tasks.insert(id, Task::Waits(waker));
                wakers.extend(self.drive(&mut state));
                Poll::Pending
            }
        };
        drop(state);
        drop(before);
        wakers.into_iter().for_each(Waker::wake);
        polled
    }

    /// Makes sure that the driver looks after those who wait; gives the wakers of all when there is no thread to spare for it.
    #[must_use = "who is not woken now never is"]
    fn drive(self: &Arc<Self>, state: &mut State) -> Vec<Waker> {
        let mut wakers = Vec::new();
        if !state.driven {
            let weak = Arc::downgrade(self);
            let bell = Arc::clone(&self.bell);
            let sleeper = state.queue.sleeper();
            let thread = std::thread::Builder::new().name("memferry-futures".to_owned());
            state.driven = thread.spawn(move || run(&weak, &bell, &sleeper)).is_ok();
            if !state.driven {
                // Without a thread to spare the futures have to be polled until they are ready.
                let waits =
                    |task: &Task| if let Task::Waits(waker) = task { Some(waker.clone()) } else { None };
                wakers.extend(state.tasks.values().filter_map(waits));
            }
        }
        self.bell.ring(Wanted::Yes);
        wakers
    }
}

/// The driver: wakes futures until the queue is gone.
fn run(weak: &Weak<Shared>, bell: &Bell, sleeper: &Sleeper<MappedWords>) {
    while bell.wait() {
        while let Some(shared) = weak.upgrade() {
            let Ok(mut state) = shared.lock() else { return };
            let wakers = state.collect();
            if wakers.is_empty() && !state.anyone_waits() {
                break;
            }
            // The flag is raised before the last look, and the worker changes the word after it has seen the flag.
            let expected = sleeper.wake_word().load(Ordering::Acquire);
            sleeper.parked().store(1, Ordering::Relaxed);
            sleeper.fences().heavy();
            let asleep = wakers.is_empty() && !state.queue.has_news();
            drop(state);
            let shared = if asleep {
                // The queue may close meanwhile.
                drop(shared);
                futex::wait(sleeper.wake_word(), expected, LIVENESS);
                weak.upgrade()
            } else {
                Some(shared)
            };
            // Without the queue the ring may be another's by now.
            if shared.is_some() {
                sleeper.parked().store(0, Ordering::Relaxed);
            }
            drop(shared);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
