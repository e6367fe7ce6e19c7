//! Takes grants up and uses them while they last.
//!
//! ```text
//! a file with a token ─► accept ─► copy out of it: all as it was granted, or refused     fill it, where allowed
//! ```

use std::path::Path;
use std::time::Duration;

use memferry::{CallError, Client, Completion, Failure, Frame, Handle, Pattern, Queue, Side, Transfer};
use memferry_conformance::noise;
use memferry_service::protocol::RefusalKind;

use super::{PATIENCE, lender};
use crate::random::Random;
use crate::saying::{Stop, Teller, finding};

struct LentFrame {
    token: Handle,
    length: u64,
    write: bool,
    seed: u64,
}

impl LentFrame {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let token = Handle::from_bits(next()?);
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
    teller: &mut Teller,
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
            teller.did(0, 0);
            // It may have been lost while nobody asked it anything.
            client.status()?;
            continue;
        };
        match client.accept(lent.token) {
            Ok(frame) => borrow(client, &mut queue, &frame, &lent, random, teller)?,
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
    teller: &mut Teller,
) -> Result<(), Stop> {
    let own = client.allocate(lent.length)?;
    let expected = (!lent.write).then(|| {
        let start = lender::MARGIN as usize;
        noise(start + lent.length as usize, lent.seed)[start..].to_vec()
    });
    for _ in 0..random.between(1, 6) {
        let to = own.range(0, lent.length);
        let done = wait(
            queue,
            Transfer::copy(&frame.all(), &to).map_err(|error| Stop::Finding(error.to_string()))?,
        )?;
        if !may_end_so(&done) {
            return finding(format!("a copy out of granted memory ended as {done:?}"));
        }
        if done.outcome.is_ok()
            && let Some(expected) = &expected
        {
            let mut found = vec![0; expected.len()];
            own.read(0, &mut found)?;
            if found != *expected {
                return finding("what was granted is not what was read before it was revoked");
            }
        }
        teller.did(1, done.bytes_done);
        let done = wait(queue, Transfer::fill(&frame.all(), Pattern::Byte(random.next() as u8)))?;
        let refused = matches!(done.outcome, Err(Failure::MissingRight { side: Side::Destination, .. }));
        let fair = may_end_so(&done) && (lent.write || done.outcome.is_err()) || !lent.write && refused;
        if !fair {
            return finding(format!(
                "a fill of memory granted for writing: {}, ended as {done:?}",
                lent.write
            ));
        }
        teller.did(1, done.bytes_done);
    }
    Ok(())
}

fn wait(queue: &mut Queue, transfer: Transfer) -> Result<Completion, Stop> {
    let ticket = queue.submit(transfer).map_err(|error| Stop::from(error.reason))?;
    let done = queue.wait(ticket, PATIENCE).map_err(|error| Stop::Finding(error.to_string()))?;
    match done.outcome {
        Err(Failure::ServiceLost) => Err(Stop::Lost),
        Err(Failure::ServiceStopping) => Err(Stop::Refused("stopping", "stopping".to_owned())),
        _ => Ok(done),
    }
}

/// The lender may take it back or die at any moment.
fn may_end_so(done: &Completion) -> bool {
    use Failure::{Cancelled, Revoked, StaleHandle, UnknownHandle};
    match done.outcome {
        Ok(()) => true,
        Err(failure) => {
            matches!(failure, Cancelled | Revoked { .. } | StaleHandle { .. } | UnknownHandle { .. })
        }
    }
}
