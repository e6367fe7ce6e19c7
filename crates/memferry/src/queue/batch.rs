//! Running one transfer, on this thread if possible, and submitting many. A batch is published in groups, so that the worker
//! starts on the first group while the next is written.
//!
//! ```text
//! run ─► embedded: the CPU kernels, on this thread        a short submit ─► the same; its completion waits in the queue
//! submit_batch ─ stage, stage, ... publish ─ stage, ... publish ─► tickets, or the transfer that was refused and the rest
//! ```
//!
//! The service does not know batches: each transfer has its own completion, and a failure affects linked transfers only. A
//! fenced [`nop`](crate::nop) at the end completes when the whole batch has ended.

use memferry_service::embedded::Embedded;
use memferry_service::{Immediate, profile};
use memferry_transfer::{CacheHint, Operation, Operations, Outcome, Request, Span, Terms};
use thiserror::Error;

use super::{Queue, SubmitError, SubmitReason};
use crate::completion::{Completion, Done, NO_TAG, Output, Ticket, TicketId, TransferError};
use crate::link::Link;
use crate::transfer::{Description, Transfer};

/// Transfers published together: two cache lines of short slots. The worker starts early; larger groups measured slower.
const GROUP: usize = 4;

/// A batch was submitted in part. Contains the transfers that were not.
///
/// ```
/// use memferry::{Client, copy};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let mut queue = client.queue(4)?;
/// let good = copy(frame.slice(..9), frame.slice(9..18));
/// let bad = copy(frame.slice(..9), frame.slice(..8));
/// let Err(error) = queue.submit_batch([good.clone(), bad, good]) else { panic!("9 bytes do not fit 8") };
/// assert_eq!((error.submitted.len(), error.rest.len()), (1, 1));
/// for done in queue.completions() {
///     done?; // the first one runs
/// }
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
#[error("transfer {} of the batch was not submitted: {error}", submitted.len() + 1)]
pub struct BatchError<T = ()> {
    /// Tickets of the transfers before the refused one. These were submitted and run.
    pub submitted: Vec<Ticket<T>>,
    /// The refused transfer and the reason.
    pub error: SubmitError<T>,
    /// The transfers after the refused one, which were not submitted.
    pub rest: Vec<Transfer<T>>,
}

impl<T> BatchError<T> {
    /// The same error with [untyped](Transfer::untyped) tickets and transfers.
    pub fn untyped(self) -> BatchError<u64> {
        BatchError {
            submitted: self.submitted.into_iter().map(Ticket::untyped).collect(),
            error: self.error.untyped(),
            rest: self.rest.into_iter().map(Transfer::untyped).collect(),
        }
    }
}

/// Why [`Queue::run`] failed.
///
/// ```
/// use memferry::{Client, RunError, copy};
///
/// let client = Client::embedded()?;
/// let frame = client.frame(4096).alloc()?;
/// let mut queue = client.queue(4)?;
/// match queue.run(copy(&frame, frame.slice(..9))) {
///     Ok(done) => println!("{} bytes", done.bytes_done),
///     Err(RunError::Submit(error)) => println!("not submitted: {error}"),
///     Err(RunError::Transfer(error)) => println!("failed after {} bytes: {error}", error.bytes_done),
/// }
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum RunError<T = ()> {
    /// The transfer was refused. Contains the transfer.
    #[error(transparent)]
    Submit(#[from] SubmitError<T>),
    /// The transfer started and failed, or its outcome is unknown.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Operations that `submit` never runs itself. The bytes of a 2-D operation do not determine its duration, because each pixel may
/// lie in another page. A nop always goes to the worker, because programs use it to measure or fence the queue.
const NEVER_INLINE: Operations = Operations::NOP.union(Operations::COPY_2D).union(Operations::FILL_2D);

/// The operation of a request, if `immediate` allows it on this thread.
#[inline]
fn inline_operation<'a>(request: &'a Request, immediate: &Immediate) -> Option<&'a Operation<Span>> {
    let operation = request.operation()?;
    immediate.allows(operation, &request.terms).then_some(operation)
}

impl Queue {
    /// Runs a transfer to its end and returns the result. With an embedded service this thread moves the bytes; otherwise the
    /// transfer is submitted and waited for. It is not ordered with transfers submitted before, unless it is fenced. Linked
    /// and fenced transfers and those with a deadline are always submitted.
    ///
    /// # Errors
    /// [`RunError::Submit`] with the transfer if it was refused; [`RunError::Transfer`] if it failed.
    #[inline]
    pub fn run<T: Output>(&mut self, transfer: Transfer<T>) -> Result<Done<T>, RunError<T>> {
        if let Some(completion) = self.run_plain(&transfer.description, NO_TAG, u64::MAX) {
            return Ok(completion.into_result()?);
        }
        match self.run_here(&transfer.description) {
            Ok(Some(completion)) => Ok(completion.into_result()?),
            Ok(None) => {
                let ticket = self.submit(transfer)?;
                Ok(self.wait(ticket)?)
            }
            Err(reason) => Err(SubmitError::new(reason, transfer).into()),
        }
    }

    /// Runs a short copy without terms on this thread, if the service is embedded. `None`, and nothing was done, if it is another
    /// transfer or anything is wrong with it. It need not decode the transfer, which takes as long as moving a KiB.
    #[inline(always)]
    fn run_plain(&self, transfer: &Description, tag: u64, longest_bytes: u64) -> Option<Completion> {
        let Link::Embedded(embedded) = &self.session.link else { return None };
        let plain = transfer.work.plain_copy().filter(|plain| plain.length <= longest_bytes)?;
        self.check_submit(transfer).ok()?;
        let done = embedded.service().perform_short(self.session.id, &plain.operation(), CacheHint::Auto)?;
        let Outcome { result, bytes_done, value, engine } = done;
        let outcome = result.map(|()| value);
        let id = self.ticket(tag);
        Some(Completion { id, outcome, inherited: false, bytes_done, engine, length: plain.length })
    }

    /// Runs a transfer on this thread, if the service is embedded. `None` if it must be submitted.
    #[inline]
    fn run_here(&self, transfer: &Description) -> Result<Option<Completion>, SubmitReason> {
        let request = transfer.work.request();
        if let Link::Embedded(embedded) = &self.session.link
            && let Some(operation) = inline_operation(&request, &Immediate::OWN_THREAD)
        {
            self.check_submit(transfer)?;
            return Ok(Some(self.run_inline(embedded, operation, &request.terms, NO_TAG)));
        }
        match request.operation() {
            Some(_) => Ok(None),
            None => Err(SubmitReason::Loop),
        }
    }

    /// Runs a transfer on this thread with the help of idle workers. `None` if it was refused or must be submitted. No device
    /// takes part, so nothing is written after the return, whatever the outcome.
    pub(crate) fn run_by_cpu<T: Output>(
        &self,
        transfer: &Transfer<T>,
    ) -> Option<Result<Done<T>, TransferError>> {
        let Link::Embedded(embedded) = &self.session.link else { return None };
        let transfer = &transfer.description;
        let request = transfer.work.request();
        let operation = inline_operation(&request, &Immediate::OWN_THREAD)?;
        self.check_submit(transfer).ok()?;
        Some(self.run_inline(embedded, operation, &request.terms, NO_TAG).into_result())
    }

    #[inline]
    fn run_inline(
        &self,
        embedded: &Embedded,
        operation: &Operation<Span>,
        terms: &Terms,
        tag: u64,
    ) -> Completion {
        let id = self.ticket(tag);
        let outcome = embedded.service().perform(self.session.id, operation, terms);
        match outcome {
            Ok(Outcome { result, bytes_done, value, engine }) => Completion {
                id,
                outcome: result.map(|()| value),
                inherited: false,
                bytes_done,
                engine,
                length: operation.total_bytes(),
            },
            Err(failure) => Completion::without_engine(id, failure),
        }
    }

    /// Runs a short transfer on this thread and keeps its completion for a later poll or wait, since the hand-over would take
    /// longer. `None`, and nothing is done, if another request is outstanding (transfers start in order), the previous transfer
    /// is linked to this one, the queue is armed (only the service signals), or too many completions wait already.
    pub(super) fn submit_inline(&mut self, transfer: &Description) -> Option<TicketId> {
        let is_idle = self.outstanding() == 0 && !self.binds_next && !self.armed;
        let has_room = self.finished.len() < self.free.len();
        if !is_idle || !has_room {
            return None;
        }
        let longest_bytes = profile::inline_end().checked_sub(1)?;
        let tag = self.next_tag()?;
        let completion = match self.run_plain(transfer, tag, longest_bytes) {
            Some(completion) => completion,
            None => {
                let Link::Embedded(embedded) = &self.session.link else { return None };
                let immediate = Immediate { longest_bytes, except: NEVER_INLINE, ..Immediate::OWN_THREAD };
                let request = transfer.work.request();
                let operation = inline_operation(&request, &immediate)?;
                self.check_submit(transfer).ok()?;
                self.run_inline(embedded, operation, &request.terms, tag)
            }
        };
        self.lap = self.lap.wrapping_add(1);
        let id = completion.id;
        self.finished.push(completion);
        Some(id)
    }

    /// Submits transfers, which start in the order given. Transfers with different output types have to be
    /// [untyped](Transfer::untyped).
    ///
    /// ```
    /// use memferry::{Client, copy, crc32c};
    ///
    /// let client = Client::embedded()?;
    /// let (source, destination) = (client.frame(4096).alloc()?, client.frame(4096).alloc()?);
    /// let mut queue = client.queue(4)?;
    /// let batch = [copy(&source, &destination).linked().untyped(), crc32c(&destination).untyped()];
    /// let tickets = queue.submit_batch(batch)?;
    /// let crc = queue.wait(tickets[1])?.output as u32;
    /// assert_eq!(crc, queue.run(crc32c(&source))?.output);
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`BatchError`] if a transfer is refused. The transfers before it were submitted and run; the error contains the others.
    pub fn submit_batch<T>(
        &mut self,
        transfers: impl IntoIterator<Item = Transfer<T>>,
    ) -> Result<Vec<Ticket<T>>, Box<BatchError<T>>> {
        let mut transfers = transfers.into_iter();
        let mut submitted = Vec::with_capacity(transfers.size_hint().0);
        while let Some(transfer) = transfers.next() {
            match self.stage(transfer) {
                Ok(ticket) => submitted.push(ticket),
                Err(error) => {
                    self.publish();
                    return Err(Box::new(BatchError { submitted, error, rest: transfers.collect() }));
                }
            }
            if submitted.len() % GROUP == 0 {
                self.publish();
            }
        }
        self.publish();
        Ok(submitted)
    }
}
