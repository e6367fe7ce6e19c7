//! One transfer at once, done on this thread where that is possible; and many, written one after the other and made visible
//! in groups, so that the lane works on the first while the last are being written.
//!
//! ```text
//! perform ─► embedded: the kernels, on this thread
//! submit_batch ─ stage, stage, ... publish ─ stage, ... publish ─► tickets, or what was not submitted and why
//! ```
//!
//! A batch is no unit to the service: each transfer has its own completion and fails alone, unless it is linked. A fenced
//! [`Transfer::nop`] at the end completes when all of it has ended.

use memferry_transfer::{Ended, EngineKind, Failure};
use thiserror::Error;

use super::{Channel, NO_TAG, SubmitError, SubmitReason, Ticket};
use crate::Completion;
use crate::link::Link;
use crate::transfer::Transfer;

/// Transfers that become visible together: few enough that the lane need not wait for long, enough that it finds several.
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

impl Channel {
    /// Does a transfer and gives its end: on this thread where the service is in this process, so that nothing is handed
    /// over; else by submitting it and waiting. It is not ordered with what was submitted before; a fenced one waits for all
    /// of that, and a linked one is submitted.
    ///
    /// # Errors
    /// [`SubmitError`] with the transfer.
    pub fn perform(&mut self, transfer: Transfer) -> Result<Completion, SubmitError> {
        let terms = transfer.request.terms;
        let plain = !terms.linked && !terms.fenced && terms.deadline.is_none();
        if let Link::Embedded(embedded) = &self.session.link
            && plain
            && let Some(operation) = transfer.request.operation()
        {
            let checked = match self.session.check_fork() {
                Err(forked) => Err(SubmitReason::Forked(forked)),
                Ok(()) if transfer.held.iter().any(|frame| !frame.is_of(&self.session)) => {
                    Err(SubmitReason::ForeignFrame)
                }
                Ok(()) => Ok(()),
            };
            if let Err(reason) = checked {
                return Err(SubmitError { reason, transfer: Box::new(transfer) });
            }
            let ended = embedded.service().perform(self.session.id, operation, &terms);
            let ticket = Ticket { channel: self.number, tag: NO_TAG };
            let (inherited, engine) = (false, EngineKind::CpuLane);
            return Ok(match ended {
                Ok(Ended { outcome, bytes_done, value }) => {
                    Completion { ticket, outcome, inherited, bytes_done, value, engine }
                }
                Err(failure) => Completion::without_engine(ticket, failure),
            });
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
