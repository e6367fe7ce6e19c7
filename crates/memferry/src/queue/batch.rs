//! One transfer at once, done on this thread where that is possible; and many, written one after the other and made visible
//! in groups, so that the worker works on the first while the last are being written.
//!
//! ```text
//! perform ─► embedded: the kernels, on this thread        submit, when it is short ─► the same; the completion waits
//! submit_batch ─ stage, stage, ... publish ─ stage, ... publish ─► tickets, or what was not submitted and why
//! ```
//!
//! A batch is no unit to the service: each transfer has its own completion and fails alone, unless it is linked. A fenced
//! [`Transfer::nop`] at the end completes when all of it has ended.

use memferry_service::embedded::Embedded;
use memferry_service::profile;
use memferry_transfer::{Failure, Operation, Outcome, Span};
use thiserror::Error;

use super::{NO_TAG, Queue, SubmitError, SubmitReason, Ticket};
use crate::Completion;
use crate::link::Link;
use crate::transfer::Transfer;

/// Transfers that become visible together: few enough that the worker need not wait for long, enough that it finds several.
const GROUP: usize = 16;

/// A batch of which only a part was submitted. Nothing is lost.
#[derive(Debug, Error)]
#[error("transfer {} of the batch was not submitted: {error}", submitted.len() + 1)]
pub struct BatchError {
    /// Tickets of those before it, which were submitted.
    pub submitted: Vec<Ticket>,
    /// Why it was not, with the transfer.
    pub error: SubmitError,
    /// Those after it.
    pub rest: Vec<Transfer>,
}

/// Whether the time an operation takes goes by its bytes: pixels may lie in pages of their own, and what moves nothing is
/// submitted to meet the worker.
fn moves_briefly(operation: &Operation<Span>) -> bool {
    !matches!(operation, Operation::Nop | Operation::Copy2d { .. } | Operation::Fill2d { .. })
}

impl Queue {
    /// Does a transfer and gives its end: on this thread where the service is in this process, so that nothing is handed
    /// over; else by submitting it and waiting. It is not ordered with what was submitted before; a fenced one waits for all
    /// of that, and a linked one is submitted.
    ///
    /// # Errors
    /// [`SubmitError`] with the transfer.
    pub fn perform(&mut self, transfer: Transfer) -> Result<Completion, SubmitError> {
        if let Some(embedded) = self.performs_here(&transfer) {
            return match self.perform_here(embedded, &transfer, NO_TAG) {
                Ok(completion) => Ok(completion),
                Err(reason) => Err(SubmitError { reason, transfer: Box::new(transfer) }),
            };
        }
        if transfer.request.operation().is_none() {
            return Err(SubmitError { reason: SubmitReason::Loop, transfer: Box::new(transfer) });
        }
        let ticket = self.submit(transfer)?;
        // Without a limit a wait ends only with a completion, or in a child of fork, which gets none.
        Ok(self
            .wait(ticket, None)
            .unwrap_or_else(|_| Completion::without_engine(ticket, Failure::ServiceLost)))
    }

    /// Does a transfer on this thread, with the help of workers that have nothing to do: `None` when it is not done, or would have to
    /// be submitted. No device has it, so nothing is written after this has returned, however it ended.
    pub(crate) fn perform_by_cpu(&self, transfer: &Transfer) -> Option<Completion> {
        self.perform_here(self.performs_here(transfer)?, transfer, NO_TAG).ok()
    }

    /// The service, when it is in this process and the transfer is one that stands alone.
    fn performs_here(&self, transfer: &Transfer) -> Option<&Embedded> {
        let terms = &transfer.request.terms;
        let plain = !terms.linked && !terms.fenced && terms.deadline.is_none();
        match &self.session.link {
            Link::Embedded(embedded) if plain && transfer.request.operation().is_some() => Some(embedded),
            _ => None,
        }
    }

    fn perform_here(
        &self,
        embedded: &Embedded,
        transfer: &Transfer,
        tag: u64,
    ) -> Result<Completion, SubmitReason> {
        self.may_submit(transfer)?;
        let Some(operation) = transfer.request.operation() else { return Err(SubmitReason::Loop) };
        let ticket = Ticket { queue: self.identity, tag };
        let Outcome { result: outcome, bytes_done, value, engine } =
            embedded.service().perform(self.session.id, operation, &transfer.request.terms);
        Ok(Completion { ticket, outcome, inherited: false, bytes_done, value, engine })
    }

    /// Does a short transfer on this thread, where that takes less than handing it over; its completion waits to be taken.
    /// Not while anything is outstanding, for transfers start in order; nor where the last one binds this one to it; nor while
    /// a signal is asked for, which only the service gives; nor when too many completions wait already.
    pub(super) fn submit_here(&mut self, transfer: &Transfer) -> Option<Ticket> {
        let embedded = self.performs_here(transfer)?;
        let bytes = transfer.request.operation().filter(|operation| moves_briefly(operation))?.total_bytes();
        let alone = self.outstanding() == 0 && !self.binds_next && !self.armed;
        let room = self.finished.len() < self.free.len();
        if !alone || !room || bytes >= profile::inline_end() {
            return None;
        }
        let tag = self.lap * u64::from(self.end.capacity()) + u64::from(*self.free.last()?);
        let completion = self.perform_here(embedded, transfer, tag).ok()?;
        self.lap = self.lap.wrapping_add(1);
        let ticket = completion.ticket;
        self.finished.push_back(completion);
        Some(ticket)
    }

    /// Submits transfers in order; they start in that order.
    ///
    /// # Errors
    /// [`BatchError`]: those before the one at fault were submitted, and run.
    pub fn submit_batch(
        &mut self,
        transfers: impl IntoIterator<Item = Transfer>,
    ) -> Result<Vec<Ticket>, Box<BatchError>> {
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
