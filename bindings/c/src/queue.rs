//! Queues: opening them, taking completions, and signals.
//!
//! ```text
//! mf_queue_open ─► mf_queue ─ mf_submit_* ─► ticket ─ mf_wait, mf_wait_any, mf_wait_range, mf_poll, mf_cancel
//!                        └ mf_eventfd ─► descriptor ─ mf_arm ─► readable at the next completion
//! ```
//!
//! One thread at a time: a call that finds another thread in the queue returns MF_ERROR_IN_USE at once.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::time::Duration;

use memferry::{Armed, Arrival, Done, Queue, TransferError};

use crate::boundary::{Out, call};
use crate::error::{Fault, is_call_error, mf_error};
use crate::table::{self, QueueEntry};
use crate::types::{MF_FOREVER, mf_client, mf_completion, mf_queue, mf_ticket};

/// The end of a transfer as the client library reports it.
type Ended = Result<Done<u64>, TransferError>;

/// Opens a queue for up to `capacity` outstanding transfers: a power of two from 2 to 4096.
///
/// MF_ERROR_REFUSED_ARGUMENT, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_queue_open(client: mf_client, capacity: u32, queue: *mut mf_queue) -> mf_error {
    call(|| {
        let queue = Out::new("queue", queue)?;
        let opened = QueueEntry::new(table::client(client)?.queue(capacity)?);
        queue.store(mf_queue { id: table::current_or_new()?.queues.insert(opened)? });
        Ok(())
    })
}

/// Closes the queue: outstanding transfers are cancelled, and their completions are lost. A thread that waits in the queue
/// continues to wait, and the queue closes when that wait returns.
///
/// MF_ERROR_BAD_HANDLE. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_queue_close(queue: mf_queue) -> mf_error {
    call(|| table::take_queue(queue).map(drop))
}

/// Looks a queue up and claims it for one action.
pub(crate) fn with<R>(queue: mf_queue, act: impl FnOnce(&mut Queue) -> Result<R, Fault>) -> Result<R, Fault> {
    let entry = table::queue(queue)?;
    let mut queue = entry.claim()?;
    act(&mut queue)
}

/// The longest wait, `None` for no limit. Other negative limits are differences to times that have passed: no wait.
fn limit(nanoseconds: i64) -> Option<Duration> {
    let wait = u64::try_from(nanoseconds).unwrap_or(0);
    (nanoseconds != MF_FOREVER).then_some(Duration::from_nanos(wait))
}

fn timed_out() -> Fault {
    Fault::new(mf_error::TimedOut, "the time limit was reached; the transfer continues")
}

/// Stores the completion of an ended transfer. A failure of the transfer is the call's result.
fn report(queue: mf_queue, ended: Ended, to: Option<Out<mf_completion>>) -> Result<(), Fault> {
    if let Err(error) = ended
        && is_call_error(error.failure)
    {
        return Err(error.into());
    }
    if let Some(to) = to {
        to.store(mf_completion::of(queue, ended));
    }
    ended?;
    Ok(())
}

/// Waits until the transfer has ended, at most `limit_ns` nanoseconds or MF_FOREVER, and takes its completion. `completion` may be
/// null. Completions of other transfers stay for later calls.
///
/// MF_ERROR_NONE only when the transfer succeeded. From 100: how the transfer failed, with `completion` filled. Below 100 nothing
/// was taken: MF_ERROR_TIMED_OUT (the transfer continues), MF_ERROR_UNKNOWN_TICKET (also when its completion was taken before),
/// MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_wait(
    queue: mf_queue,
    ticket: mf_ticket,
    limit_ns: i64,
    completion: *mut mf_completion,
) -> mf_error {
    call(|| {
        let to = Out::optional("completion", completion)?;
        let ended = with(queue, |open| {
            let ticket = ticket.resolve(queue, open)?.into();
            match limit(limit_ns) {
                None => Ok(open.wait(ticket)),
                Some(limit) => open.wait_for(ticket, limit).transpose().ok_or_else(timed_out),
            }
        })?;
        report(queue, ended, to)
    })
}

/// Waits until any transfer has ended, as mf_wait; the completion names it. MF_ERROR_UNKNOWN_TICKET when nothing is outstanding.
///
/// As mf_wait. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_wait_any(
    queue: mf_queue,
    limit_ns: i64,
    completion: *mut mf_completion,
) -> mf_error {
    call(|| {
        let to = Out::new("completion", completion)?;
        let ended = with(queue, |open| {
            let ended = match limit(limit_ns) {
                None => open.wait_any(),
                Some(limit) => open.wait_any_for(limit),
            };
            ended.transpose().ok_or_else(|| match open.outstanding() {
                0 => Fault::new(mf_error::UnknownTicket, "no transfer of the queue is outstanding"),
                _ => Fault::new(mf_error::TimedOut, "the time limit was reached; all transfers continue"),
            })
        })?;
        report(queue, ended, Some(to))
    })
}

/// Waits until the bytes from `first` up to `end` of the transfer's destination are in place, often long before it ends.
/// `ended` may be null. It becomes 1 when the transfer has ended, with its completion still to be taken, and 0 while it continues.
///
/// From 100: how the transfer failed, with `ended` 1. Below 100 `ended` is not set: MF_ERROR_TIMED_OUT, MF_ERROR_UNKNOWN_TICKET,
/// MF_ERROR_ARGUMENT (`end` before `first`), MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_wait_range(
    queue: mf_queue,
    ticket: mf_ticket,
    first: u64,
    end: u64,
    limit_ns: i64,
    ended: *mut c_int,
) -> mf_error {
    call(|| {
        let to = Out::optional("ended", ended)?;
        if first > end {
            let message = format!("the range ends at {end}, before its start {first}");
            return Err(Fault::new(mf_error::Argument, message));
        }
        let arrival = with(queue, |open| {
            let ticket = ticket.resolve(queue, open)?;
            match limit(limit_ns) {
                None => Ok(open.wait_range(ticket, first..end)),
                Some(limit) => {
                    open.wait_range_for(ticket, first..end, limit).transpose().ok_or_else(timed_out)
                }
            }
        })?;
        if let Err(error) = arrival
            && is_call_error(error.failure)
        {
            return Err(error.into());
        }
        if let Some(to) = to {
            to.store(c_int::from(arrival != Ok(Arrival::Moved)));
        }
        arrival?;
        Ok(())
    })
}

/// Takes the next completion without waiting; MF_ERROR_NOTHING when there is none. The loss of the service shows after a tenth of
/// a second and 512 calls that find nothing, at the latest.
///
/// MF_ERROR_NONE only when a transfer ended and succeeded. From 100: how a transfer failed, with `completion` filled. Below 100
/// nothing was taken: MF_ERROR_NOTHING, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_poll(queue: mf_queue, completion: *mut mf_completion) -> mf_error {
    call(|| {
        let to = Out::new("completion", completion)?;
        let polled = with(queue, |open| Ok(open.poll()))?;
        let ended = polled.ok_or(Fault::fixed(mf_error::Nothing, c"there is no completion now"))?;
        report(queue, ended, Some(to))
    })
}

/// Requests that a transfer end early. Its completion comes in any case and tells how it ended.
///
/// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_cancel(queue: mf_queue, ticket: mf_ticket) -> mf_error {
    call(|| with(queue, |open| Ok(open.cancel(ticket.resolve(queue, open)?)?)))
}

/// Requests that the loop of mf_submit_repeat end after its present round.
///
/// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_stop(queue: mf_queue, ticket: mf_ticket) -> mf_error {
    call(|| with(queue, |open| Ok(open.stop(ticket.resolve(queue, open)?)?)))
}

/// Starts the transfers that were submitted with MF_FLAG_STAGED.
///
/// MF_ERROR_IN_USE, MF_ERROR_BAD_HANDLE. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn mf_publish(queue: mf_queue) -> mf_error {
    call(|| {
        with(queue, |open| {
            open.publish();
            Ok(())
        })
    })
}

/// Creates an eventfd that becomes readable when a completion comes while the queue is armed. The caller closes it. A queue has
/// one; reading the descriptor resets it. A service that was killed signals nothing: wait with a limit, a second for example, and
/// call mf_arm again, which detects that.
///
/// MF_ERROR_REFUSED_ARGUMENT when the queue has one already, MF_ERROR_REFUSED_SYSTEM without io_uring. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_eventfd(queue: mf_queue, descriptor: *mut c_int) -> mf_error {
    call(|| {
        let descriptor = Out::new("descriptor", descriptor)?;
        let event = with(queue, |open| Ok(open.notify_by_event()?))?;
        descriptor.store(event.into_raw_fd());
        Ok(())
    })
}

/// Requests a signal for the next completion. `ready` becomes 1 when there is a completion already, which is not signalled: call
/// mf_poll until MF_ERROR_NOTHING, then arm again. Otherwise `ready` becomes 0. The request holds until the next mf_poll or mf_wait
/// and may be repeated meanwhile: when the service was lost, `ready` becomes 1 and mf_poll gives the completions of the outstanding
/// transfers. After these `ready` stays 1 with nothing to take, so close a queue that is ready twice with nothing to take.
///
/// MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_arm(queue: mf_queue, ready: *mut c_int) -> mf_error {
    call(|| {
        let ready = Out::new("ready", ready)?;
        let armed = with(queue, |open| Ok(open.arm()))?;
        ready.store(c_int::from(armed == Armed::Ready));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mf_forever_has_no_limit() {
        assert_eq!(limit(MF_FOREVER), None);
        for past in [i64::MIN, -1_000_000_000, -2, 0] {
            assert_eq!(limit(past), Some(Duration::ZERO), "{past}");
        }
        assert_eq!(limit(i64::MAX), Some(Duration::from_nanos(i64::MAX as u64)));
    }
}
