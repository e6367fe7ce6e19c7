//! Uses memory that only an engine process reaches, while that process lies, stalls and dies.
//!
//! ```text
//! frame at the engine: zeros ─► random bytes there ─► back, compared ─► a grant to the own user, revoked in mid-flight
//!                        └ the engine is gone: its requests end once each, the frame is revoked, another is allocated
//! ```

use std::time::Duration;

use memferry::{
    CallError, Client, Failure, Frame, FrameError, Grantee, Queue, RefusalKind, Rights, Ticket, copy,
};
use memferry_conformance::noise;

use super::{ENGINE, PATIENCE, lender};
use crate::output::{Progress, Stop, finding};
use crate::random::Random;

/// Bytes of the longest frame.
const LONGEST: u64 = 600_000;

pub(super) fn session(
    client: &Client,
    random: &mut Random,
    progress: &mut Progress,
    rounds: u64,
) -> Result<(), Stop> {
    let near = client.frame(LONGEST).alloc()?;
    let mut queue = client.queue(64)?;
    for _ in 0..rounds {
        let length = random.between(1, LONGEST);
        match client.frame(length).home(ENGINE).alloc() {
            Ok(far) => use_frame(client, &mut queue, (&near, &far), random, progress)?,
            // The engine is away, has not so much memory, or serves another service now.
            Err(FrameError::Call(CallError::Refused(refusal)))
                if matches!(
                    refusal.kind,
                    RefusalKind::System | RefusalKind::Quota | RefusalKind::Argument
                ) =>
            {
                std::thread::sleep(Duration::from_millis(random.below(20)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What a copy did: it succeeded, or its memory is lost.
enum Copied {
    Done,
    Lost,
}

fn wait(queue: &mut Queue, ticket: Ticket) -> Result<Copied, Stop> {
    match queue.wait_for(ticket, PATIENCE) {
        Ok(Some(_)) => Ok(Copied::Done),
        Ok(None) => finding("a request in an engine's memory did not end"),
        Err(error) => match error.failure {
            Failure::ServiceLost => Err(Stop::Lost),
            Failure::EngineReset
            | Failure::Unsupported
            | Failure::Revoked { .. }
            // Of the grant, after its revocation: its place may be in use again.
            | Failure::StaleHandle { .. }
            | Failure::UnknownHandle { .. }
            | Failure::Cancelled
            | Failure::ChannelFaulted
            | Failure::MemoryFault
            | Failure::ServiceStopping => Ok(Copied::Lost),
            other => finding(format!("a request in an engine's memory failed: {other}")),
        },
    }
}

fn use_frame(
    client: &Client,
    queue: &mut Queue,
    (near, far): (&Frame, &Frame),
    random: &mut Random,
    progress: &mut Progress,
) -> Result<(), Stop> {
    let length = far.length();
    let mut expected = vec![0; length as usize];
    near.write(0, &noise(length as usize, random.next()))?;
    for _ in 0..random.between(1, 8) {
        let back = queue.submit(copy(far, near.slice(..length))).map_err(|error| error.reason)?;
        let Copied::Done = wait(queue, back)? else { return Ok(()) };
        let mut found = vec![0; length as usize];
        near.read(0, &mut found)?;
        if found != expected {
            return finding(format!("{length} bytes of an engine's memory are wrong"));
        }
        progress.add(1, length);
        let offset = random.below(length);
        let part = random.between(1, length - offset);
        let bytes = noise(part as usize, random.next());
        near.write(0, &bytes)?;
        let there = copy(near.slice(..part), far.slice(offset..offset + part));
        let there = queue.submit(there).map_err(|error| error.reason)?;
        let Copied::Done = wait(queue, there)? else { return Ok(()) };
        expected[offset as usize..][..part as usize].copy_from_slice(&bytes);
        progress.add(1, part);
    }
    let user = Grantee::User(rustix::process::geteuid().as_raw());
    let granted = client.grant(far, Rights::READ, user);
    let (grant, granted) = match granted.and_then(|grant| Ok((client.accept(grant.token())?, grant))) {
        Ok((granted, grant)) => (grant, granted),
        // The engine went away meanwhile.
        Err(CallError::Refused(refusal)) if refusal.kind == RefusalKind::Capability => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut tickets = Vec::new();
    for _ in 0..random.between(1, 40) {
        tickets.push(queue.submit(copy(&granted, near.slice(..length))).map_err(|error| error.reason)?);
    }
    match lender::revoke(client, grant.token()) {
        Ok(()) | Err(CallError::Refused(_)) => {}
        Err(error) => return Err(error.into()),
    }
    for ticket in tickets {
        wait(queue, ticket)?;
        progress.add(1, 0);
    }
    Ok(())
}
