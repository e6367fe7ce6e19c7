//! The queues behind one Python queue: how transfers are submitted, kept until they have ended, and their ends taken.
//!
//! ```text
//! submit ─ sweep ─ place ─ start ─► Running, in `running` ─ sweep: has it ended? ─► `ended` ─ poll, completions ─► the program
//! run ───────────── place ─ here, on this thread ─► End                               └ a wait took the end: left out
//! finish ─ waits, closes             the last Queue and Ticket dropped ─ waits, a minute at most, closes
//! ```
//!
//! Frames go to the service's queue, other memory to one in this process. A call that may be a message to a service in another
//! process is made without the interpreter's lock, and so is waiting for a lock that is held during such a message. `sides` and
//! `lists` are never held that long.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memferry::{AsyncQueue, EngineKind, Pending, Queue, RunError, SubmitReason, TicketId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::Terms;
use crate::errors;
use crate::home::Home;
use crate::operand::{Unplaced, are_frames, copy_here, place};
use crate::running::{End, Output, Running, Waiters, joined};
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

    /// Submits the passes of a transfer, without another one in between. Where not all could be, those that were are cancelled and
    /// given with the reason: they hold the memory until they end.
    fn submit(
        &self,
        passes: Vec<memferry::Transfer<u64>>,
        linked: bool,
    ) -> Result<Passes, (Passes, SubmitReason)> {
        let _submitting = self.order.submitting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut submitted = VecDeque::with_capacity(passes.len());
        for pass in passes {
            match self.queue.submit(pass) {
                Ok(pending) => submitted.push_back(pending),
                Err(error) => {
                    submitted.iter().for_each(|pending| {
                        let _ = pending.cancel();
                    });
                    // The last pass is linked to what comes next: a transfer that fails with it, so that another one does not.
                    if !submitted.is_empty()
                        && let Ok(end) = self.queue.submit(memferry::nop().untyped())
                    {
                        submitted.push_back(end);
                    }
                    return Err((submitted, error.reason));
                }
            }
        }
        self.order.linked.store(linked, Ordering::Release);
        Ok(submitted)
    }

    /// Does a transfer on this thread, unless another thread uses the direct queue at this moment.
    fn run(&self, passes: &[memferry::Transfer<u64>]) -> Option<Result<End, SubmitReason>> {
        let mut queue = self.direct.as_ref()?.try_lock().ok()?;
        let mut whole = None;
        for pass in passes {
            let end = match queue.run(pass.clone()) {
                Ok(done) => Ok(done),
                Err(RunError::Transfer(error)) => Err(error),
                Err(RunError::Submit(error)) => return Some(Err(error.reason)),
            };
            let is_over = end.is_err();
            whole = Some(joined(whole, end));
            if is_over {
                break;
            }
        }
        whole.map(Ok)
    }
}

/// The passes of a transfer that were submitted, in order.
type Passes = VecDeque<Pending<u64>>;

/// The terms of each pass: one starts when the one before it has succeeded.
fn in_order(terms: &Terms, passes: Vec<memferry::Transfer<u64>>) -> Vec<memferry::Transfer<u64>> {
    let last = passes.len().saturating_sub(1);
    let with_terms = |(index, pass)| {
        let pass = terms.apply(pass);
        if index < last { pass.linked() } else { pass }
    };
    passes.into_iter().enumerate().map(with_terms).collect()
}

struct Sides {
    service: Side,
    /// Where the service is in another process: opened with the first memory that is no frame.
    local: Option<Side>,
}

#[derive(Default)]
struct Lists {
    /// Transfers whose end was not found yet.
    running: Vec<Arc<Running>>,
    /// Ends that were found and not taken.
    ended: VecDeque<Arc<Running>>,
    /// Places of transfers that are being submitted.
    reserved: usize,
}

/// Places of a queue for a transfer that is being submitted: no other takes them meanwhile, so that all its passes have one.
struct Room<'a> {
    submission: &'a Submission,
    places: usize,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.submission.lists().reserved -= self.places;
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
    /// Woken when any transfer has ended.
    waiters: Arc<Waiters>,
}

/// A transfer that was not submitted; some of its passes may have been, and are cancelled.
struct NotAll {
    part: Option<Box<Running>>,
    error: PyErr,
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
            waiters: Arc::default(),
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
            drop(self.reserve(1)?);
        }
        let terms = transfer.terms();
        if transfer.is_nop()
            && terms.fenced
            && let Some(local) = self.local()?
        {
            return self.fence_both(local, terms, now);
        }
        let mut parts = transfer.parts(py, &self.session.frames)?;
        if transfer.is_copy()
            && self.copies_here(terms)?
            && let Some(bytes_done) = copy_here(py, &parts[0], &parts[1])
        {
            let done = memferry::Done { id: TicketId::NONE, bytes_done, output: 0, engine: EngineKind::Cpu };
            return Ok(self.ended(Output::Nothing, Ok(done), now));
        }
        let (side, passes, (regions, hold)) = loop {
            // Anew after a wait, which holds no buffer: the program may have given an array another shape meanwhile.
            let passes = transfer.passes(&parts)?;
            let (side, own) = self.side(are_frames(&parts))?;
            match place(&side.client, own, parts) {
                Ok(placed) => break (side, passes, placed),
                Err(Unplaced::Quota(error)) => {
                    // Running transfers give their memory back when they end. The quotas are those of all queues.
                    if !self.wait_for_borrower(py)? && !self.session.wait_for_borrower(py)? {
                        return Err(error);
                    }
                    parts = transfer.parts(py, &self.session.frames)?;
                }
                Err(Unplaced::Refused(error)) => return Err(error),
            }
        };
        let described = transfer.describe(passes, &regions);
        let output = transfer.output(&regions);
        // The hold is the last to release them.
        drop(regions);
        if now
            && !terms.needs_queue()
            && !side.is_linked()
            && let Some(end) = {
                let described: Vec<_> = described.iter().map(|pass| terms.apply(pass.clone())).collect();
                py.detach(|| side.run(&described))
            }
        {
            drop(described);
            let end = end.map_err(errors::of_submit)?;
            hold.release(end.as_ref().err().is_none_or(memferry::TransferError::is_settled));
            return Ok(self.ended(output, end, now));
        }
        let room = self.reserve(described.len())?;
        let passes = in_order(terms, described);
        let started = self.start(side, passes, terms.linked, |home, pending| {
            Running::new(home, Arc::clone(&self.waiters), output, pending, Some(hold), None)
        });
        match started {
            Ok(running) => Ok(self.keep(running, now, room)),
            Err(NotAll { part, error }) => {
                if let Some(part) = part {
                    self.keep(*part, true, room);
                }
                Err(error)
            }
        }
    }

    /// A fence on both sides: it ends when all transfers of both have.
    fn fence_both(&self, local: Side, terms: &Terms, now: bool) -> PyResult<Arc<Running>> {
        let room = self.reserve(1)?;
        let (service, _) = self.side(true)?;
        let waiters = || Arc::clone(&self.waiters);
        let nop = || vec![terms.apply(memferry::nop()).untyped()];
        let before = self.start(local, nop(), terms.linked, |home, pending| {
            Running::new(home, waiters(), Output::Nothing, pending, None, None)
        });
        let before = before.map_err(|failed| failed.error)?;
        let running = self.start(service, nop(), terms.linked, |home, pending| {
            Running::new(home, waiters(), Output::Nothing, pending, None, Some(Arc::new(before)))
        });
        Ok(self.keep(running.map_err(|failed| failed.error)?, now, room))
    }

    fn start(
        &self,
        side: Side,
        passes: Vec<memferry::Transfer<u64>>,
        linked: bool,
        running: impl FnOnce(Arc<Home>, Passes) -> Running,
    ) -> Result<Running, NotAll> {
        // The queue takes earlier ends first, and may release the last clone of a frame with them.
        let home = &self.session.home;
        match home.asking(move || side.submit(passes, linked)) {
            Ok(pending) => Ok(running(Arc::clone(home), pending)),
            Err((submitted, reason)) => {
                let part = (!submitted.is_empty()).then(|| Box::new(running(Arc::clone(home), submitted)));
                Err(NotAll { part, error: errors::of_submit(reason) })
            }
        }
    }

    /// Keeps a transfer until it has ended, and its end until it is taken: at once by the call that waits `now`.
    fn keep(&self, running: Running, now: bool, mut room: Room<'_>) -> Arc<Running> {
        let running = Arc::new(running);
        if now {
            running.take();
        }
        let mut lists = self.lists();
        lists.running.push(Arc::clone(&running));
        // From here on it is counted itself.
        lists.reserved -= std::mem::take(&mut room.places);
        drop(lists);
        running
    }

    /// A transfer that was done on this thread; its end is to be taken unless it was `now` waited for.
    fn ended(&self, output: Output, end: End, now: bool) -> Arc<Running> {
        let running = Running::ended(Arc::clone(&self.session.home), Arc::clone(&self.waiters), output, end);
        let running = Arc::new(running);
        if !now {
            self.lists().ended.push_back(Arc::clone(&running));
            self.waiters.wake_all();
        }
        running
    }

    /// Reserves places. As with a queue of the client library, ends that were not taken use up the capacity.
    fn reserve(&self, places: usize) -> PyResult<Room<'_>> {
        let capacity = self.capacity as usize;
        if places > capacity {
            let message =
                format!("pixels of this size take {places} places of a queue; this one has {capacity}");
            return Err(PyValueError::new_err(message));
        }
        let mut lists = self.lists();
        let used: usize = lists.running.iter().chain(&lists.ended).map(|running| running.places()).sum();
        if used + lists.reserved + places <= capacity {
            lists.reserved += places;
            return Ok(Room { submission: self, places });
        }
        Err(errors::of_submit(SubmitReason::Full { capacity: self.capacity }))
    }

    /// As [`sweep`](Self::sweep), by a caller with the interpreter's lock.
    fn tidy(&self) {
        let is_empty = {
            let lists = self.lists();
            lists.running.is_empty() && lists.ended.is_empty()
        };
        if !is_empty {
            self.session.home.asking(|| self.sweep());
        }
    }

    /// Releases the memory of ended transfers; their ends are kept until they are taken.
    fn sweep(&self) {
        let all = self.lists().running.clone();
        all.iter().for_each(|running| running.poll_if_rung());
        // An ended transfer holds nothing, so nothing but itself is released while the lists are locked.
        let mut lists = self.lists();
        let Lists { running, ended, .. } = &mut *lists;
        ended.extend(running.extract_if(.., |running| running.is_over()));
        ended.retain(|running| !running.is_taken());
    }

    /// Takes the next end that has come. The caller has the interpreter's lock.
    pub(crate) fn next(&self) -> PyResult<Next> {
        self.session.home.check()?;
        Ok(self.session.home.asking(|| self.look()))
    }

    /// As [`next`](Self::next), within `Home::asking` or without the interpreter's lock.
    fn look(&self) -> Next {
        // One look at a queue takes all ends that it has, and rings the alarms of these.
        let first = self.lists().running.first().cloned();
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
            if let Some(found) = py.detach(|| self.waiters.sleep(None, look)) {
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
        let running = self.lists().running.clone();
        running.iter().for_each(|running| running.cancel());
    }

    fn wait_for_borrower(&self, py: Python<'_>) -> PyResult<bool> {
        let first = self.lists().running.iter().find(|running| running.borrows()).cloned();
        let Some(first) = first else { return Ok(false) };
        first.wait(py, None).map(|_| true)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.lists().running.clone();
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
            lists.running.iter().for_each(|running| running.wait_or_cancel(until));
            drop(lists);
            drop(sides);
        };
        // Closing is a message to the service.
        Python::attach(|py| py.detach(let_go));
    }
}
