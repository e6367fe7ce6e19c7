//! Many transfers at once: written one after the other, made visible in groups, so that the lane works on the first while the
//! last are being written.
//!
//! ```text
//! submit_batch ─ stage, stage, ... publish ─ stage, ... publish ─► tickets, or what was not submitted and why
//! ```
//!
//! A batch is no unit to the service: each transfer has its own completion and fails alone, unless it is linked. A fenced
//! [`Transfer::nop`] at the end completes when all of it has ended.

use thiserror::Error;

use super::{Channel, SubmitError, Ticket};
use crate::transfer::Transfer;

/// Transfers that become visible together: few enough that the lane need not wait for long, enough that it finds several.
const GROUP: usize = 8;

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
