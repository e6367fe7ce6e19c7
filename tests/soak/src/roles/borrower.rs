//! Accepts grants and uses them until they are revoked.
//!
//! ```text
//! a file with a token ─► accept ─► copy out of it: the granted contents, or refused     fill it, if allowed
//! ```

use std::path::Path;
use std::time::Duration;

use memferry::{
    CallError, Client, Done, Failure, Frame, GrantToken, Pattern, Queue, Side, Transfer, TransferError, copy,
    fill,
};
use memferry_conformance::noise;
use memferry_service::protocol::RefusalKind;

use super::{PATIENCE, judge, lender};
use crate::output::{Progress, Stop, finding};
use crate::random::Random;

struct LentFrame {
    token: GrantToken,
    length: u64,
    write: bool,
    seed: u64,
}

impl LentFrame {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let token = GrantToken::from_raw(next()?);
        let length = next()?;
        let write = next()? == 1;
        let seed = next()?;
        Some(Self { token, length, write, seed })
    }
}

pub(super) fn session(
    client: &Client,
    meeting: &Path,
    random: &mut Random,
    progress: &mut Progress,
    rounds: u64,
) -> Result<(), Stop> {
    let directory = lender::lends(meeting, client.status()?.process);
    let mut queue = client.queue(8)?;
    for _ in 0..rounds {
        let files: Vec<_> =
            std::fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        let text = match files.is_empty() {
            true => None,
            false => std::fs::read_to_string(&files[random.below(files.len() as u64) as usize]).ok(),
        };
        let Some(lent) = text.as_deref().and_then(LentFrame::parse) else {
            std::thread::sleep(Duration::from_millis(2));
            progress.add(0, 0);
            // The service may be lost while this client made no call.
            client.status()?;
            continue;
        };
        match client.accept(lent.token) {
            Ok(frame) => borrow(client, &mut queue, &frame, &lent, random, progress)?,
            Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::Capability => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn borrow(
    client: &Client,
    queue: &mut Queue,
    frame: &Frame,
    lent: &LentFrame,
    random: &mut Random,
    progress: &mut Progress,
) -> Result<(), Stop> {
    let own = client.frame(lent.length).alloc()?;
    let expected = (!lent.write).then(|| {
        let start = lender::MARGIN as usize;
        noise(start + lent.length as usize, lent.seed)[start..].to_vec()
    });
    for _ in 0..random.between(1, 6) {
        let outcome = wait(queue, copy(frame, own.slice(..lent.length)))?;
        if !is_allowed(&outcome) {
            return finding(format!("a copy from granted memory ended with {outcome:?}"));
        }
        if outcome.is_ok()
            && let Some(expected) = &expected
        {
            let mut found = vec![0; expected.len()];
            own.read(0, &mut found)?;
            if found != *expected {
                return finding("granted memory changed before the grant was revoked");
            }
        }
        progress.add(1, bytes_done(&outcome));
        let outcome = wait(queue, fill(frame, Pattern::Byte(random.next() as u8)))?;
        let failure = outcome.map(drop).map_err(|error| error.failure);
        let refused = matches!(failure, Err(Failure::MissingRight { side: Side::Destination, .. }));
        let fair = is_allowed(&outcome) && (lent.write || outcome.is_err()) || !lent.write && refused;
        if !fair {
            return finding(format!(
                "a fill of granted memory (write right: {}) ended with {outcome:?}",
                lent.write
            ));
        }
        progress.add(1, bytes_done(&outcome));
    }
    Ok(())
}

/// The outcome of a transfer.
type Outcome = Result<Done, TransferError>;

fn bytes_done(outcome: &Outcome) -> u64 {
    outcome.map_or_else(|error| error.bytes_done, |done| done.bytes_done)
}

/// The outcome of a transfer, unless the service is gone or stops.
fn wait(queue: &mut Queue, transfer: Transfer) -> Result<Outcome, Stop> {
    let ticket = queue.submit(transfer).map_err(|error| Stop::from(error.reason))?;
    match queue.wait_for(ticket, PATIENCE).transpose() {
        None => finding("a transfer with granted memory does not end"),
        Some(Err(TransferError { failure: Failure::ServiceLost, .. })) => Err(Stop::Lost),
        Some(Err(TransferError { failure: Failure::ServiceStopping, .. })) => {
            Err(Stop::Refused("stopping", "stopping".to_owned()))
        }
        Some(outcome) if judge::is_lingering(&outcome) => {
            Err(Stop::Refused("lingering", format!("{outcome:?}")))
        }
        Some(outcome) => Ok(outcome),
    }
}

/// Whether an outcome is allowed: the lender may revoke the grant or die at any time.
fn is_allowed(outcome: &Outcome) -> bool {
    use Failure::{Cancelled, Revoked, StaleHandle, UnknownHandle};
    match outcome {
        Ok(_) => true,
        Err(error) => {
            matches!(error.failure, Cancelled | Revoked { .. } | StaleHandle { .. } | UnknownHandle { .. })
        }
    }
}
