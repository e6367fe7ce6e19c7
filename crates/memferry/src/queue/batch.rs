//! One transfer at once, done on this thread where that is possible; and many, written one after the other and made visible
//! in groups, so that the worker works on the first while the last are being written.
//!
//! ```text
//! run ─► embedded: the kernels, on this thread        submit, when it is short ─► the same; the completion waits
//! submit_batch ─ stage, stage, ... publish ─ stage, ... publish ─► tickets, or what was not submitted and why
//! ```
//!
//! A batch is no unit to the service: each transfer has its own completion and fails alone, unless it is linked. A fenced
//! [`nop`](crate::nop) at the end completes when all of it has ended.

use memferry_service::embedded::Embedded;
use memferry_service::{Immediate, profile};
use memferry_transfer::{Operations, Outcome};
use thiserror::Error;

use super::{Queue, SubmitError, SubmitReason};
use crate::completion::{Completion, Done, NO_TAG, Output, Ticket, TicketId, TransferError};
use crate::link::Link;
use crate::transfer::{Description, Transfer};

/// Transfers that become visible together: few enough that the worker need not wait for long, enough that it finds several.
const GROUP: usize = 16;

/// A batch of which only a part was submitted. Nothing is lost.
#[derive(Debug, Error)]
#[error("transfer {} of the batch was not submitted: {error}", submitted.len() + 1)]
pub struct BatchError<T = ()> {
    /// Tickets of those before it, which were submitted.
    pub submitted: Vec<Ticket<T>>,
    /// Why it was not, with the transfer.
    pub error: SubmitError<T>,
    /// Those after it.
    pub rest: Vec<Transfer<T>>,
}

impl<T> BatchError<T> {
    /// The same error, with tickets and transfers as [`Transfer::untyped`] gives them.
    pub fn untyped(self) -> BatchError<u64> {
        BatchError {
            submitted: self.submitted.into_iter().map(Ticket::untyped).collect(),
            error: self.error.untyped(),
            rest: self.rest.into_iter().map(Transfer::untyped).collect(),
        }
    }
}

/// A transfer was not [run](Queue::run), or not to its end.
#[derive(Debug, Error)]
pub enum RunError<T = ()> {
    /// It was not submitted.
    #[error(transparent)]
    Submit(#[from] SubmitError<T>),
    /// It did not do all that it was asked for.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Operations never done by `submit` itself. Pixels may lie in pages of their own, so their bytes say nothing about their time;
/// an operation that moves nothing is submitted to reach the worker.
const NOT_BRIEF: Operations = Operations::NOP.union(Operations::COPY_2D).union(Operations::FILL_2D);

impl Queue {
    /// Does a transfer and gives its end: on this thread where the service is in this process, so that nothing is handed
    /// over; else by submitting it and waiting. It is not ordered with what was submitted before; a fenced one waits for all
    /// of that, and a linked one is submitted.
    ///
    /// # Errors
    /// [`RunError::Submit`] with the transfer, [`RunError::Transfer`] when it failed.
    pub fn run<T: Output>(&mut self, mut transfer: Transfer<T>) -> Result<Done<T>, RunError<T>> {
        match self.run_description(&mut transfer.description) {
            Ok(completion) => Ok(completion.into_result()?),
            Err(reason) => Err(SubmitError::new(reason, transfer).into()),
        }
    }

    fn run_description(&mut self, transfer: &mut Description) -> Result<Completion, SubmitReason> {
        if let Some(embedded) = self.runs_here(transfer, &Immediate::OWN_THREAD) {
            return self.run_here(embedded, transfer, NO_TAG);
        }
        if transfer.request.operation().is_none() {
            return Err(SubmitReason::Loop);
        }
        let id = self.submit_description(transfer)?;
        Ok(self.wait_completion(id))
    }

    /// Does a transfer on this thread, with the help of workers that have nothing to do: `None` when it is not done, or would have to
    /// be submitted. No device has it, so nothing is written after this has returned, however it ended.
    pub(crate) fn run_by_cpu<T: Output>(
        &self,
        transfer: &Transfer<T>,
    ) -> Option<Result<Done<T>, TransferError>> {
        let transfer = &transfer.description;
        let embedded = self.runs_here(transfer, &Immediate::OWN_THREAD)?;
        let completion = self.run_here(embedded, transfer, NO_TAG).ok()?;
        Some(completion.into_result())
    }

    /// The service, when it is in this process and `immediate` allows the transfer.
    fn runs_here(&self, transfer: &Description, immediate: &Immediate) -> Option<&Embedded> {
        let Link::Embedded(embedded) = &self.session.link else { return None };
        let request = &transfer.request;
        immediate.allows(request.operation()?, &request.terms).then_some(embedded)
    }

    fn run_here(
        &self,
        embedded: &Embedded,
        transfer: &Description,
        tag: u64,
    ) -> Result<Completion, SubmitReason> {
        self.may_submit(transfer)?;
        let Some(operation) = transfer.request.operation() else { return Err(SubmitReason::Loop) };
        let id = self.ticket(tag);
        let ended = embedded.service().perform(self.session.id, operation, &transfer.request.terms);
        Ok(match ended {
            Ok(Outcome { result, bytes_done, value, engine }) => Completion {
                id,
                outcome: result.map(|()| value),
                inherited: false,
                bytes_done,
                engine,
                length: operation.total_bytes(),
            },
            Err(failure) => Completion::without_engine(id, failure),
        })
    }

    /// Does a short transfer on this thread, where that takes less than handing it over; its completion waits to be taken.
    /// Not while anything is outstanding, for transfers start in order; nor where the last one binds this one to it; nor while
    /// a signal is asked for, which only the service gives; nor when too many completions wait already.
    pub(super) fn submit_here(&mut self, transfer: &Description) -> Option<TicketId> {
        let alone = self.outstanding() == 0 && !self.binds_next && !self.armed;
        let room = self.finished.len() < self.free.len();
        let immediate = Immediate {
            longest_bytes: profile::inline_end().checked_sub(1)?,
            except: NOT_BRIEF,
            held_back: !alone || !room,
            ..Immediate::OWN_THREAD
        };
        let embedded = self.runs_here(transfer, &immediate)?;
        let tag = self.lap * u64::from(self.end.capacity()) + u64::from(*self.free.last()?);
        let completion = self.run_here(embedded, transfer, tag).ok()?;
        self.lap = self.lap.wrapping_add(1);
        let id = completion.id;
        self.finished.push_back(completion);
        Some(id)
    }

    /// Submits transfers in order; they start in that order. Transfers that find different things are submitted
    /// [untyped](Transfer::untyped).
    ///
    /// ```
    /// # #![deny(unused_must_use)]
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
    /// [`BatchError`]: those before the one at fault were submitted, and run.
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
