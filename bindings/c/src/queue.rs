//! Channels: opening them, taking completions, and being signalled.
//!
//! ```text
//! mf_queue_open ─► mf_queue ─ mf_submit_* ─► ticket ─ mf_wait, mf_wait_any, mf_wait_range, mf_poll, mf_cancel
//!                        └ mf_eventfd ─► descriptor ─ mf_arm ─► readable at the next completion
//! ```
//!
//! One thread at a time: a call that finds another one in the queue gives MF_ERROR_IN_USE at once.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::time::Duration;

use memferry::{Armed, Arrival, Completion, Queue};

use crate::boundary::{Out, call};
use crate::error::{Fault, mf_error};
use crate::table::{self, QueueEntry};
use crate::types::{MF_FOREVER, mf_client, mf_completion, mf_queue, mf_ticket};

/// Opens a queue for up to `capacity` transfers outstanding: a power of two from 2 to 4096.
///
/// MF_ERROR_REFUSED_ARGUMENT, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_queue_open(client: mf_client, capacity: u32, queue: *mut mf_queue) -> mf_error {
    call(|| {
        let queue = Out::new("queue", queue)?;
        let opened = QueueEntry::new(table::client(client)?.queue(capacity)?);
        queue.store(mf_queue { id: table::current_or_new()?.queues.insert(opened)? });
        Ok(())
    })
}

/// Closes the queue: what it has outstanding is cancelled, and its completions are lost. A thread that waits there goes on, and
/// the queue closes when that is over.
///
/// MF_ERROR_BAD_HANDLE. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_queue_close(queue: mf_queue) -> mf_error {
    call(|| table::take_channel(queue).map(drop))
}

/// Looks a queue up, claims it, and does something with it.
pub(crate) fn with<R>(queue: mf_queue, act: impl FnOnce(&mut Queue) -> Result<R, Fault>) -> Result<R, Fault> {
    let entry = table::queue(queue)?;
    let mut queue = entry.claim()?;
    act(&mut queue)
}

/// A difference of times that came out negative is a time that has passed, not one that never comes.
fn limit(nanoseconds: i64) -> Option<Duration> {
    let wait = u64::try_from(nanoseconds).unwrap_or(0);
    (nanoseconds != MF_FOREVER).then_some(Duration::from_nanos(wait))
}

/// Hands a completion over; its failure's words become the thread's message.
fn hand_over(queue: mf_queue, completion: Completion, to: Option<Out<mf_completion>>) -> Result<(), Fault> {
    if let Some(to) = to {
        to.store(mf_completion::of(queue, completion));
    }
    Ok(completion.outcome?)
}

/// Waits until the transfer has ended, at most `limit_ns` nanoseconds or MF_FOREVER, and takes its completion. `completion` may be
/// null. Completions of others stay for later calls.
///
/// The transfer's own error, from 100, with `completion` filled; below 100 nothing was taken: MF_ERROR_TIMED_OUT (it goes on),
/// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_wait(
    queue: mf_queue,
    ticket: mf_ticket,
    limit_ns: i64,
    completion: *mut mf_completion,
) -> mf_error {
    call(|| {
        let to = Out::optional("completion", completion)?;
        let ended = with(queue, |open| Ok(open.wait(ticket.known(queue, open)?, limit(limit_ns))?))?;
        hand_over(queue, ended, to)
    })
}

/// Waits for any transfer to end, as mf_wait; the completion says which. MF_ERROR_UNKNOWN_TICKET when nothing is outstanding.
///
/// As mf_wait. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_wait_any(
    queue: mf_queue,
    limit_ns: i64,
    completion: *mut mf_completion,
) -> mf_error {
    call(|| {
        let to = Out::new("completion", completion)?;
        let ended = with(queue, |queue| Ok(queue.wait_any(limit(limit_ns))?))?;
        hand_over(queue, ended, Some(to))
    })
}

/// Waits until the bytes from `first` up to `end` of the transfer's destination are in place: often long before it ends.
/// `ended` may be null; it becomes 1 when the transfer has ended, with its completion still to be taken, and 0 when it goes on.
///
/// MF_ERROR_TIMED_OUT, MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
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
            return Err(Fault::new(
                mf_error::Argument,
                format!("the range ends at {end}, before its start {first}"),
            ));
        }
        let arrival = with(queue, |open| {
            let ticket = ticket.known(queue, open)?;
            Ok(open.wait_range(ticket, first..end, limit(limit_ns))?)
        })?;
        if let Some(to) = to {
            to.store(c_int::from(arrival == Arrival::Ended));
        }
        Ok(())
    })
}

/// Takes the next completion if there is one; MF_ERROR_NOTHING when not. How the transfer ended is in `completion->error` only, so
/// that MF_ERROR_NONE means that one was taken. The loss of the service shows after a tenth
/// of a second and 512 calls that find nothing, at the latest.
///
/// MF_ERROR_NOTHING, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_poll(queue: mf_queue, completion: *mut mf_completion) -> mf_error {
    call(|| {
        let to = Out::new("completion", completion)?;
        let polled = with(queue, |queue| Ok(queue.poll()))?;
        let ended = polled.ok_or_else(|| Fault::new(mf_error::Nothing, "there is no completion now"))?;
        if let Err(failure) = ended.outcome {
            Fault::from(failure).remember();
        }
        to.store(mf_completion::of(queue, ended));
        Ok(())
    })
}

/// Asks that a transfer end early. Its completion comes in any case and says how it ended.
///
/// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_cancel(queue: mf_queue, ticket: mf_ticket) -> mf_error {
    call(|| with(queue, |open| Ok(open.cancel(ticket.known(queue, open)?)?)))
}

/// Asks that the loop of mf_submit_repeat end when its present round is whole.
///
/// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_stop(queue: mf_queue, ticket: mf_ticket) -> mf_error {
    call(|| with(queue, |open| Ok(open.stop(ticket.known(queue, open)?)?)))
}

/// Starts what was submitted with MF_FLAG_STAGED.
///
/// MF_ERROR_IN_USE, MF_ERROR_BAD_HANDLE. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_publish(queue: mf_queue) -> mf_error {
    call(|| {
        with(queue, |queue| {
            queue.publish();
            Ok(())
        })
    })
}

/// An eventfd that becomes readable when a completion comes while the queue is armed. Closing it is the caller's. A queue has
/// one; reading the descriptor resets it. A service that was killed signals nothing: wait with a limit, of a second say, and call
/// mf_arm again, which finds that.
///
/// MF_ERROR_REFUSED_ARGUMENT when the queue has one already, MF_ERROR_REFUSED_SYSTEM without io_uring. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_eventfd(queue: mf_queue, descriptor: *mut c_int) -> mf_error {
    call(|| {
        let descriptor = Out::new("descriptor", descriptor)?;
        let event = with(queue, |queue| Ok(queue.notify_by_event()?))?;
        descriptor.store(event.into_raw_fd());
        Ok(())
    })
}

/// Asks to be signalled for the next completion. `ready` becomes 1 when there is one already, which will not be signalled: take it
/// with mf_poll until MF_ERROR_NOTHING, then arm again. Else 0. It holds until the next mf_poll or mf_wait, and may be called again
/// meanwhile: when the service was lost, `ready` becomes 1 and mf_poll gives the completions of what was outstanding; after these
/// `ready` stays 1 and there are none, so a queue that is ready twice with nothing to take is to be closed.
///
/// MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_arm(queue: mf_queue, ready: *mut c_int) -> mf_error {
    call(|| {
        let ready = Out::new("ready", ready)?;
        let armed = with(queue, |queue| Ok(queue.arm()))?;
        ready.store(c_int::from(armed == Armed::Ready));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_forever_is_for_ever() {
        assert_eq!(limit(MF_FOREVER), None);
        for past in [i64::MIN, -1_000_000_000, -2, 0] {
            assert_eq!(limit(past), Some(Duration::ZERO), "{past}");
        }
        assert_eq!(limit(i64::MAX), Some(Duration::from_nanos(i64::MAX as u64)));
    }
}
