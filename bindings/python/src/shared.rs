//! What the objects of one client share: where its service is, its queues, and the transfers under way.
//!
//! ```text
//! submit ─ sweep: what has ended is let go ─ place ─┬ now, by workers of this process: performed ─► ended
//!                                                   └ start ─► Running, kept here until it has ended
//! finish ─ waits, closes          the last Client, Frame and Transfer dropped ─ waits, a minute at most, closes
//! ```
//!
//! Whatever may be a message to a service in another process, which may be stopped, is done without the interpreter's lock, and so
//! is waiting for a lock that somebody holds during such a message. `sides` and `running` are never held that long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry::{
    AsyncQueue, EngineKind, ForkGuard, FrameRange, Pending, Queue, SubmitError, Ticket, Transfer,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::Terms;
use crate::errors;
use crate::operand::{Frames, Part, by_service, place};
use crate::transfer::{NativeTransfer, Running};

/// How long what runs is waited for when the last who could wait for it goes. Copies in this process take seconds at most; a
/// service in another one may be stopped, or its engine be stuck.
const LETTING_GO: Duration = Duration::from_secs(60);

/// The process a client belongs to, and whether its service is another one.
pub(crate) struct Home {
    guard: ForkGuard,
    elsewhere: bool,
}

impl Home {
    pub(crate) fn is_forked(&self) -> bool {
        self.guard.check().is_err()
    }

    pub(crate) fn check(&self) -> PyResult<()> {
        if self.is_forked() { Err(errors::forked()) } else { Ok(()) }
    }

    /// Does what may ask the service, as letting go of what has ended does. One in this process answers at once; while one in
    /// another process is asked, other threads run. Who calls has the interpreter's lock.
    pub(crate) fn asking<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        if self.elsewhere { Python::attach(|py| py.detach(call)) } else { call() }
    }
}

/// A session and the queue its transfers take.
#[derive(Clone)]
struct Side {
    client: memferry::Client,
    queue: AsyncQueue,
    order: Arc<Order>,
    /// For what is done on the calling thread, where the service is in this process.
    performing: Option<Arc<Mutex<Queue>>>,
}

/// The order of what is submitted.
#[derive(Default)]
struct Order {
    /// Held while something is.
    submitting: Mutex<()>,
    /// Whether what was submitted last is linked to what comes next.
    linked: AtomicBool,
}

struct Sides {
    service: Side,
    /// For memory that is no frame: the service in this process. The same where `service` is.
    local: Option<Side>,
    capacity: u32,
}

/// What a client's objects share.
pub(crate) struct Shared {
    home: Arc<Home>,
    pub(crate) frames: Frames,
    sides: Mutex<Option<Sides>>,
    running: Mutex<Vec<Arc<Running>>>,
}

fn open(client: memferry::Client, capacity: u32) -> PyResult<Side> {
    let queue = client.async_queue(capacity).map_err(errors::of_open)?;
    let performing = match client.is_embedded() {
        true => Some(Arc::new(Mutex::new(client.queue(2).map_err(errors::of_open)?))),
        false => None,
    };
    Ok(Side { client, queue, order: Arc::default(), performing })
}

impl Side {
    /// Whether a transfer may be done beside the queue: neither does it wait for one there, nor one there for it.
    fn beside(&self, terms: &Terms) -> bool {
        !terms.linked && !terms.fenced && !self.order.linked.load(Ordering::Acquire)
    }

    fn submit(&self, transfer: Transfer, linked: bool) -> Result<Pending, SubmitError> {
        let _submitting = self.order.submitting.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = self.queue.submit(transfer)?;
        self.order.linked.store(linked, Ordering::Release);
        Ok(pending)
    }
}

/// Does a transfer on this thread, unless another one performs at this moment.
fn perform(queue: &Mutex<Queue>, transfer: &Transfer) -> Option<Result<memferry::Completion, SubmitError>> {
    Some(queue.try_lock().ok()?.perform(transfer.clone()))
}

fn closed() -> PyErr {
    PyValueError::new_err("the client is closed")
}

impl Shared {
    /// With a queue to the client's service, which may answer late.
    pub(crate) fn open(guard: ForkGuard, client: memferry::Client, capacity: u32) -> PyResult<Self> {
        let home = Arc::new(Home { guard, elsewhere: !client.is_embedded() });
        let sides = Mutex::new(Some(Sides { service: open(client, capacity)?, local: None, capacity }));
        Ok(Self { home, frames: Frames::default(), sides, running: Mutex::default() })
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.home.is_forked()
    }

    pub(crate) fn check_fork(&self) -> PyResult<()> {
        self.home.check()
    }

    fn sides(&self) -> PyResult<MutexGuard<'_, Option<Sides>>> {
        self.home.check()?;
        Ok(self.sides.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn side(&self, service: bool) -> PyResult<(Side, bool)> {
        let mut sides = self.sides()?;
        let sides = sides.as_mut().ok_or_else(closed)?;
        if service || sides.service.client.is_embedded() {
            return Ok((sides.service.clone(), true));
        }
        if let Some(local) = &sides.local {
            return Ok((local.clone(), false));
        }
        let local = open(memferry::Client::embedded().map_err(errors::of_connect)?, sides.capacity)?;
        Ok((sides.local.insert(local).clone(), false))
    }

    /// The side of the service in this process, when it is another one and was needed before.
    fn local(&self) -> PyResult<Option<Side>> {
        Ok(self.sides()?.as_ref().ok_or_else(closed)?.local.clone())
    }

    pub(crate) fn client(&self) -> PyResult<memferry::Client> {
        Ok(self.sides()?.as_ref().ok_or_else(closed)?.service.client.clone())
    }

    /// Whether memory that is no frame may be copied without the service; a closed client copies nothing.
    pub(crate) fn here(&self, terms: &Terms) -> PyResult<bool> {
        let sides = self.sides()?;
        let Sides { service, local, .. } = sides.as_ref().ok_or_else(closed)?;
        let side = if service.client.is_embedded() { Some(service) } else { local.as_ref() };
        Ok(terms.plain() && side.is_none_or(|side| side.beside(terms)))
    }

    pub(crate) fn submit(
        self: &Arc<Self>,
        parts: Vec<Part>,
        terms: &Terms,
        describe: impl FnOnce(&[FrameRange]) -> PyResult<Transfer>,
    ) -> PyResult<NativeTransfer> {
        self.home.check()?;
        // First, for other threads may run meanwhile and close the client: whoever then had its queue would close that.
        self.sweep();
        let (side, own) = self.side(by_service(&parts))?;
        let (ranges, hold) = place(&side.client, own, parts)?;
        let transfer = terms.apply(describe(&ranges)?)?;
        if let Some(queue) = side.performing.as_ref().filter(|_| terms.now && side.beside(terms))
            && let Some(ended) = Python::attach(|py| py.detach(|| perform(queue, &transfer)))
        {
            let completion = ended.map_err(|error| errors::of_submit(error.reason))?;
            hold.ended(&completion);
            return Ok(NativeTransfer::ended(Arc::clone(&self.home), completion));
        }
        let running = self.start(side, transfer, terms.linked, |home, pending| {
            Running::new(home, pending, Some(hold), None)
        })?;
        self.given(running, terms)
    }

    /// Moves nothing. With a fence it is the end of all before it, so it goes to both sides where there are two.
    pub(crate) fn nop(self: &Arc<Self>, terms: &Terms) -> PyResult<NativeTransfer> {
        let Some(local) = self.local()?.filter(|_| terms.fenced) else {
            return self.submit(Vec::new(), terms, |_| Ok(Transfer::nop()));
        };
        self.sweep();
        let nop = terms.apply(Transfer::nop())?;
        let before = self.start(local, nop.clone(), terms.linked, |home, pending| {
            Running::new(home, pending, None, None)
        })?;
        let (service, _) = self.side(true)?;
        let running = self.start(service, nop, terms.linked, |home, pending| {
            Running::new(home, pending, None, Some(before))
        })?;
        self.given(running, terms)
    }

    fn start(
        &self,
        side: Side,
        transfer: Transfer,
        linked: bool,
        running: impl FnOnce(Arc<Home>, Pending) -> Running,
    ) -> PyResult<Arc<Running>> {
        // The queue takes what has ended before, and with it maybe the last that is known of a frame.
        let submit = move || side.submit(transfer, linked).map_err(|error| errors::of_submit(error.reason));
        let pending = self.home.asking(submit)?;
        let running = Arc::new(running(Arc::clone(&self.home), pending));
        self.running().push(Arc::clone(&running));
        Ok(running)
    }

    fn given(self: &Arc<Self>, running: Arc<Running>, terms: &Terms) -> PyResult<NativeTransfer> {
        if terms.now {
            // Another thread performs at this moment, the service is elsewhere, or it has to come in its turn.
            Python::attach(|py| running.wait(py, None))?;
        }
        Ok(NativeTransfer::of(running, Arc::clone(self)))
    }

    /// A copy that was done without the service.
    pub(crate) fn done_here(&self, bytes_done: u64) -> NativeTransfer {
        let ticket = Ticket::NONE;
        let engine = EngineKind::Cpu;
        let outcome = Ok(());
        let inherited = false;
        let value = 0;
        let ended = memferry::Completion { ticket, outcome, inherited, bytes_done, value, engine };
        NativeTransfer::ended(Arc::clone(&self.home), ended)
    }

    fn running(&self) -> MutexGuard<'_, Vec<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of what has ended.
    fn sweep(&self) {
        let all = self.running().clone();
        if all.is_empty() {
            return;
        }
        self.home.asking(|| {
            for running in &all {
                running.poll();
            }
        });
        // None of them is the last, for `all` has them too: nothing is dropped while the list is locked.
        self.running().retain(|running| !running.is_over());
    }

    /// Waits until all transfers have ended, and closes.
    pub(crate) fn finish(&self, py: Python<'_>, cancel: bool) -> PyResult<()> {
        self.home.check()?;
        let running = self.running().clone();
        if cancel {
            self.home.asking(|| running.iter().for_each(|running| running.cancel()));
        }
        for running in &running {
            running.wait(py, None)?;
        }
        let sides = self.sides()?.take();
        py.detach(|| drop(sides));
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let sides = self.sides.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let running = std::mem::take(self.running.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.home.is_forked() {
            std::mem::forget(sides);
            return;
        }
        let let_go = || {
            // What was asked for is done, though nobody is left who could wait for it.
            let until = Instant::now() + LETTING_GO;
            running.iter().for_each(|running| running.outlast(until));
            drop(running);
            drop(sides);
        };
        // Closing is a message to the service.
        Python::attach(|py| py.detach(let_go));
    }
}
