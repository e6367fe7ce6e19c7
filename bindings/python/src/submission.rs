//! The queues behind one Python queue: how transfers are submitted, kept until they have ended, and their ends taken.
//!
//! ```text
//! submit ─ sweep ─ place ─ start ─► Running, in `running` ─ sweep: has it ended? ─► `ended` ─ poll, completions ─► the program
//! run ───────────── place ─ here, on this thread ─► End                               └ a wait took the end: left out
//! finish ─ waits, closes             the last Queue and Ticket dropped ─ waits, a minute at most, closes
//! ```
//!
//! A sweep looks at the transfers that reported since the last one ([`Reports`]), so a call costs the same however many are outstanding.
//!
//! Frames go to the service's queue, other memory to one in this process. A call that may be a message to a service in another
//! process is made without the interpreter's lock, and so is waiting for a lock that is held during such a message. `sides` and
//! `lists` are never held that long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry::{AsyncQueue, EngineKind, Pending, Queue, RunError, SubmitError, SubmitReason, TicketId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::Terms;
use crate::errors;
use crate::home::Home;
use crate::operand::{are_frames, copy_here, place};
use crate::running::{End, Output, Reports, Running};
use crate::session::{OpenQueue, Session};
use crate::transfer::Transfer;

/// How long running transfers are waited for when the last object that could wait for them is dropped. Copies in this process
/// take seconds at most; a service in another one may be stopped, or its engine be stuck.
const LETTING_GO: Duration = Duration::from_secs(60);

/// A client and its queue.
#[derive(Clone)]
struct Side {
    client: memferry::Client,
    queue: AsyncQueue,
    order: Arc<Order>,
    /// For transfers done on the calling thread, where the service is in this process.
    direct: Option<Arc<Mutex<Queue>>>,
}

#[derive(Default)]
struct Order {
    /// Held while a transfer is submitted.
    submitting: Mutex<()>,
    /// Whether the last submitted transfer is linked to the next.
    linked: AtomicBool,
}

impl Side {
    fn open(client: memferry::Client, capacity: u32) -> PyResult<Self> {
        let queue = client.async_queue(capacity).map_err(errors::of_open)?;
        let direct = match client.is_embedded() {
            true => Some(Arc::new(Mutex::new(client.queue(2).map_err(errors::of_open)?))),
            false => None,
        };
        Ok(Self { client, queue, order: Arc::default(), direct })
    }

    /// Whether the last submitted transfer is linked to the next.
    fn is_linked(&self) -> bool {
        self.order.linked.load(Ordering::Acquire)
    }

    fn submit(
        &self,
        transfer: memferry::Transfer<u64>,
        linked: bool,
    ) -> Result<Pending<u64>, SubmitError<u64>> {
        let _submitting = self.order.submitting.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = self.queue.submit(transfer)?;
        self.order.linked.store(linked, Ordering::Release);
        Ok(pending)
    }

    /// Does a transfer on this thread, unless another thread uses the direct queue at this moment.
    fn run(&self, transfer: &memferry::Transfer<u64>) -> Option<Result<End, SubmitReason>> {
        let mut queue = self.direct.as_ref()?.try_lock().ok()?;
        Some(match queue.run(transfer.clone()) {
            Ok(done) => Ok(Ok(done)),
            Err(RunError::Transfer(error)) => Ok(Err(error)),
            Err(RunError::Submit(error)) => Err(error.reason),
        })
    }
}

struct Sides {
    service: Side,
    /// Where the service is in another process: opened with the first memory that is no frame.
    local: Option<Side>,
}

#[derive(Default)]
struct Lists {
    /// Transfers whose end was not found yet, by number.
    running: BTreeMap<u64, Arc<Running>>,
    /// Ends that were found. Waits take some of them from the middle, which stay for a while.
    ended: VecDeque<Arc<Running>>,
    /// With so many, the taken ones are removed.
    full: usize,
}

/// Ends up to which taken ones stay.
const FEW: usize = 64;

impl Lists {
    fn push_ended(&mut self, ended: Arc<Running>) {
        self.ended.push_back(ended);
        if self.ended.len() >= self.full {
            self.ended.retain(|ended| !ended.is_taken());
            // Twice as many, so that each new end pays for looking at two.
            self.full = FEW.max(2 * self.ended.len());
        }
    }
}

/// The next end of a queue.
pub(crate) enum Next {
    Ended(Arc<Running>),
    NotYet,
    /// No transfer is outstanding.
    Nothing,
}

/// A Python queue without its Python object.
pub(crate) struct Submission {
    session: Arc<Session>,
    capacity: u32,
    sides: Mutex<Option<Sides>>,
    lists: Mutex<Lists>,
    reports: Arc<Reports>,
}

fn closed() -> PyErr {
    PyValueError::new_err("the queue is closed")
}

impl Submission {
    /// Opens a queue at the client's service, which may answer late.
    pub(crate) fn open(py: Python<'_>, session: Arc<Session>, capacity: u32) -> PyResult<Arc<Self>> {
        let client = session.client()?;
        let service = py.detach(|| Side::open(client, capacity))?;
        let submission = Arc::new(Self {
            session,
            capacity,
            sides: Mutex::new(Some(Sides { service, local: None })),
            lists: Mutex::default(),
            reports: Arc::default(),
        });
        let weak = Arc::downgrade(&submission);
        submission.session.add(weak);
        Ok(submission)
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    fn sides(&self) -> PyResult<MutexGuard<'_, Option<Sides>>> {
        self.session.home.check()?;
        Ok(self.sides.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The side that moves frames, or other memory, and whether the client's frames are known there.
    fn side(&self, frames: bool) -> PyResult<(Side, bool)> {
        let mut sides = self.sides()?;
        let Sides { service, local } = sides.as_mut().ok_or_else(closed)?;
        if frames || service.client.is_embedded() {
            return Ok((service.clone(), true));
        }
        let side = match local {
            Some(side) => side.clone(),
            None => Side::open(self.session.local_client()?, self.capacity)?,
        };
        Ok((local.insert(side).clone(), false))
    }

    /// The side in this process, when it is another one and was needed before.
    fn local(&self) -> PyResult<Option<Side>> {
        Ok(self.sides()?.as_ref().ok_or_else(closed)?.local.clone())
    }

    /// Whether memory that is no frame may be copied on this thread without a queue.
    fn copies_here(&self, terms: &Terms) -> PyResult<bool> {
        let sides = self.sides()?;
        let Sides { service, local } = sides.as_ref().ok_or_else(closed)?;
        let side = if service.client.is_embedded() { Some(service) } else { local.as_ref() };
        let in_order = !terms.needs_queue() && side.is_none_or(|side| !side.is_linked());
        Ok(in_order && terms.is_plain())
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a transfer to the side that moves its memory.
    pub(crate) fn submit(&self, py: Python<'_>, transfer: &Transfer) -> PyResult<Arc<Running>> {
        self.begin(py, transfer, false)
    }

    /// Does a transfer, on this thread where it can be, and gives it with its end.
    pub(crate) fn run(&self, py: Python<'_>, transfer: &Transfer) -> PyResult<(Arc<Running>, End)> {
        let running = self.begin(py, transfer, true)?;
        // Another thread uses the direct queue, the service is elsewhere, or the transfer has to be done in its turn.
        let end = running.wait(py, None)?;
        Ok((running, end))
    }

    fn begin(&self, py: Python<'_>, transfer: &Transfer, now: bool) -> PyResult<Arc<Running>> {
        self.session.home.check()?;
        // First, since other threads may run meanwhile and close the queue: its last clone would then be dropped here.
        self.tidy();
        if !now {
            self.check_room()?;
        }
        let terms = transfer.terms();
        if transfer.is_nop()
            && terms.fenced
            && let Some(local) = self.local()?
        {
            return self.fence_both(local, terms, now);
        }
        let parts = transfer.parts(py, &self.session.frames)?;
        if transfer.is_copy()
            && self.copies_here(terms)?
            && let Some(bytes_done) = copy_here(py, &parts[0], &parts[1])
        {
            let done = memferry::Done { id: TicketId::NONE, bytes_done, output: 0, engine: EngineKind::Cpu };
            return Ok(self.ended(Output::Nothing, Ok(done), now));
        }
        let shape = transfer.shape(&parts)?;
        let (side, own) = self.side(are_frames(&parts))?;
        let (regions, hold) = place(&side.client, own, parts)?;
        let described = terms.apply(transfer.describe(shape, &regions));
        let output = transfer.output(&regions);
        // The hold is the last to release them.
        drop(regions);
        if now
            && !terms.needs_queue()
            && !side.is_linked()
            && let Some(end) = py.detach(|| side.run(&described))
        {
            drop(described);
            let end = end.map_err(errors::of_submit)?;
            hold.release(end.as_ref().err().is_none_or(memferry::TransferError::is_settled));
            return Ok(self.ended(output, end, now));
        }
        self.check_room()?;
        let running = self.start(side, described, terms.linked, |home, pending| {
            Running::new(home, Arc::clone(&self.reports), output, pending, Some(hold), None)
        })?;
        Ok(self.keep(running, now))
    }

    /// A fence on both sides: it ends when all transfers of both have.
    fn fence_both(&self, local: Side, terms: &Terms, now: bool) -> PyResult<Arc<Running>> {
        self.check_room()?;
        let (service, _) = self.side(true)?;
        let reports = || Arc::clone(&self.reports);
        let nop = || terms.apply(memferry::nop()).untyped();
        let before = self.start(local, nop(), terms.linked, |home, pending| {
            Running::new(home, reports(), Output::Nothing, pending, None, None)
        })?;
        let running = self.start(service, nop(), terms.linked, |home, pending| {
            Running::new(home, reports(), Output::Nothing, pending, None, Some(Arc::new(before)))
        })?;
        Ok(self.keep(running, now))
    }

    fn start(
        &self,
        side: Side,
        transfer: memferry::Transfer<u64>,
        linked: bool,
        running: impl FnOnce(Arc<Home>, Pending<u64>) -> Running,
    ) -> PyResult<Running> {
        // The queue takes earlier ends first, and may release the last clone of a frame with them.
        let submit = move || side.submit(transfer, linked).map_err(|error| errors::of_submit(error.reason));
        let pending = self.session.home.asking(submit)?;
        Ok(running(Arc::clone(&self.session.home), pending))
    }

    /// Keeps a transfer until it has ended, and its end until it is taken: at once by the call that waits `now`.
    fn keep(&self, running: Running, now: bool) -> Arc<Running> {
        let running = Arc::new(running);
        if now {
            running.take();
        }
        self.lists().running.insert(running.id(), Arc::clone(&running));
        running.keep();
        running
    }

    /// A transfer that was done on this thread; its end is to be taken unless it was `now` waited for.
    fn ended(&self, output: Output, end: End, now: bool) -> Arc<Running> {
        let running = Running::ended(Arc::clone(&self.session.home), Arc::clone(&self.reports), output, end);
        let running = Arc::new(running);
        if !now {
            self.lists().push_ended(Arc::clone(&running));
            running.keep();
        }
        running
    }

    /// As with a queue of the client library, ends that were not taken use up the capacity.
    fn check_room(&self) -> PyResult<()> {
        if self.reports.outstanding() < self.capacity as usize {
            return Ok(());
        }
        Err(errors::of_submit(SubmitReason::Full { capacity: self.capacity }))
    }

    /// As [`sweep`](Self::sweep), by a caller with the interpreter's lock.
    fn tidy(&self) {
        if self.reports.has_rung() {
            self.session.home.asking(|| self.sweep());
        }
    }

    /// Releases the memory of ended transfers; their ends are kept until they are taken.
    fn sweep(&self) {
        for id in self.reports.take_rung() {
            let Some(running) = self.lists().running.get(&id).cloned() else { continue };
            running.poll_if_rung();
            if !running.is_over() {
                continue;
            }
            // An ended transfer holds nothing, so nothing but itself is released while the lists are locked.
            let mut lists = self.lists();
            if lists.running.remove(&id).is_some() && !running.is_taken() {
                lists.push_ended(running);
            }
        }
    }

    /// Takes the next end that has come. The caller has the interpreter's lock.
    pub(crate) fn next(&self) -> PyResult<Next> {
        self.session.home.check()?;
        Ok(self.session.home.asking(|| self.look()))
    }

    /// As [`next`](Self::next), within `Home::asking` or without the interpreter's lock.
    fn look(&self) -> Next {
        // One look at a queue takes all ends that it has, and rings the alarms of these.
        let first = self.lists().running.values().next().cloned();
        if let Some(first) = first {
            first.poll();
        }
        self.sweep();
        let mut lists = self.lists();
        while let Some(ended) = lists.ended.pop_front() {
            if ended.take() {
                return Next::Ended(ended);
            }
        }
        if lists.running.is_empty() { Next::Nothing } else { Next::NotYet }
    }

    /// Waits for the next end and takes it; `None` when no transfer is outstanding.
    pub(crate) fn wait_next(&self, py: Python<'_>) -> PyResult<Option<Arc<Running>>> {
        self.session.home.check()?;
        loop {
            let look = || match self.look() {
                Next::Ended(ended) => Some(Some(ended)),
                Next::Nothing => Some(None),
                Next::NotYet => None,
            };
            if let Some(found) = py.detach(|| self.reports.waiters.sleep(None, look)) {
                return Ok(found);
            }
            py.check_signals()?;
        }
    }

    /// Closes the queue: waits until all transfers have ended, after cancelling them where `cancel`.
    pub(crate) fn close(&self, py: Python<'_>, cancel: bool) -> PyResult<()> {
        self.session.home.check()?;
        if cancel {
            self.session.home.asking(|| self.cancel_all());
        }
        self.finish(py)
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.session.home.is_forked()
    }
}

impl OpenQueue for Submission {
    fn cancel_all(&self) {
        let running = Vec::from_iter(self.lists().running.values().cloned());
        running.iter().for_each(|running| running.cancel());
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let running = Vec::from_iter(self.lists().running.values().cloned());
        for running in &running {
            // A failure is for the program that takes the end.
            let _ = running.wait(py, None)?;
        }
        let sides = self.sides()?.take();
        py.detach(|| drop(sides));
        Ok(())
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        let sides = self.sides.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let lists = std::mem::take(self.lists.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.session.home.is_forked() {
            std::mem::forget(sides);
            return;
        }
        let let_go = || {
            // Submitted transfers are done, though no object is left that could wait for them.
            let until = Instant::now() + LETTING_GO;
            lists.running.values().for_each(|running| running.wait_or_cancel(until));
            drop(lists);
            drop(sides);
        };
        // Closing is a message to the service.
        Python::attach(|py| py.detach(let_go));
    }
}
