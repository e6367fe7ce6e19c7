//! Channels: opening them, taking completions, and being signalled.
//!
//! ```text
//! mf_channel_open ─► mf_channel ─ mf_submit_* ─► ticket ─ mf_wait, mf_wait_any, mf_wait_range, mf_poll, mf_cancel
//!                        └ mf_eventfd ─► descriptor ─ mf_arm ─► readable at the next completion
//! ```
//!
//! One thread at a time: a call that finds another one in the channel gives MF_ERROR_IN_USE at once.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::time::Duration;

use memferry::{Armed, Arrival, Channel, Completion};

use crate::boundary::{Out, call};
use crate::error::{Fault, mf_error};
use crate::table::{self, ChannelEntry};
use crate::types::{MF_FOREVER, mf_channel, mf_client, mf_completion, mf_ticket};

/// Opens a channel for up to `capacity` transfers outstanding: a power of two from 2 to 4096.
///
/// MF_ERROR_REFUSED_ARGUMENT, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_channel_open(
    client: mf_client,
    capacity: u32,
    channel: *mut mf_channel,
) -> mf_error {
    call(|| {
        let channel = Out::new("channel", channel)?;
        let opened = ChannelEntry::new(table::client(client)?.open_channel(capacity)?);
        channel.store(mf_channel { id: table::current_or_new()?.channels.insert(opened)? });
        Ok(())
    })
}

/// Closes the channel: what it has outstanding is cancelled, and its completions are lost. A thread that waits there goes on, and
/// the channel closes when that is over.
///
/// MF_ERROR_BAD_HANDLE. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_channel_close(channel: mf_channel) -> mf_error {
    call(|| table::take_channel(channel).map(drop))
}

/// Looks a channel up, claims it, and does something with it.
pub(crate) fn with<R>(
    channel: mf_channel,
    act: impl FnOnce(&mut Channel) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let entry = table::channel(channel)?;
    let mut channel = entry.claim()?;
    act(&mut channel)
}

/// A difference of times that came out negative is a time that has passed, not one that never comes.
fn limit(nanoseconds: i64) -> Option<Duration> {
    let wait = u64::try_from(nanoseconds).unwrap_or(0);
    (nanoseconds != MF_FOREVER).then_some(Duration::from_nanos(wait))
}

/// Hands a completion over; its failure's words become the thread's message.
fn hand_over(
    channel: mf_channel,
    completion: Completion,
    to: Option<Out<mf_completion>>,
) -> Result<(), Fault> {
    if let Some(to) = to {
        to.store(mf_completion::of(channel, completion));
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
    channel: mf_channel,
    ticket: mf_ticket,
    limit_ns: i64,
    completion: *mut mf_completion,
) -> mf_error {
    call(|| {
        let to = Out::optional("completion", completion)?;
        let ended = with(channel, |open| Ok(open.wait(ticket.known(channel, open)?, limit(limit_ns))?))?;
        hand_over(channel, ended, to)
    })
}

/// Waits for any transfer to end, as mf_wait; the completion says which. MF_ERROR_UNKNOWN_TICKET when nothing is outstanding.
///
/// As mf_wait. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_wait_any(
    channel: mf_channel,
    limit_ns: i64,
    completion: *mut mf_completion,
) -> mf_error {
    call(|| {
        let to = Out::new("completion", completion)?;
        let ended = with(channel, |channel| Ok(channel.wait_any(limit(limit_ns))?))?;
        hand_over(channel, ended, Some(to))
    })
}

/// Waits until the bytes from `first` up to `end` of the transfer's destination are in place: often long before it ends.
/// `ended` may be null; it becomes 1 when the transfer has ended, with its completion still to be taken, and 0 when it goes on.
///
/// MF_ERROR_TIMED_OUT, MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_wait_range(
    channel: mf_channel,
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
        let arrival = with(channel, |open| {
            let ticket = ticket.known(channel, open)?;
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
pub unsafe extern "C" fn mf_poll(channel: mf_channel, completion: *mut mf_completion) -> mf_error {
    call(|| {
        let to = Out::new("completion", completion)?;
        let polled = with(channel, |channel| Ok(channel.poll()))?;
        let ended = polled.ok_or_else(|| Fault::new(mf_error::Nothing, "there is no completion now"))?;
        if let Err(failure) = ended.outcome {
            Fault::from(failure).remember();
        }
        to.store(mf_completion::of(channel, ended));
        Ok(())
    })
}

/// Asks that a transfer end early. Its completion comes in any case and says how it ended.
///
/// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_cancel(channel: mf_channel, ticket: mf_ticket) -> mf_error {
    call(|| with(channel, |open| Ok(open.cancel(ticket.known(channel, open)?)?)))
}

/// Asks that the loop of mf_submit_repeat end when its present round is whole.
///
/// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_stop(channel: mf_channel, ticket: mf_ticket) -> mf_error {
    call(|| with(channel, |open| Ok(open.stop(ticket.known(channel, open)?)?)))
}

/// Starts what was submitted with MF_FLAG_STAGED.
///
/// MF_ERROR_IN_USE, MF_ERROR_BAD_HANDLE. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn mf_publish(channel: mf_channel) -> mf_error {
    call(|| {
        with(channel, |channel| {
            channel.publish();
            Ok(())
        })
    })
}

/// An eventfd that becomes readable when a completion comes while the channel is armed. Closing it is the caller's. A channel has
/// one; reading the descriptor resets it. A service that was killed signals nothing: wait with a limit, of a second say, and call
/// mf_arm again, which finds that.
///
/// MF_ERROR_REFUSED_ARGUMENT when the channel has one already, MF_ERROR_REFUSED_SYSTEM without io_uring. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_eventfd(channel: mf_channel, descriptor: *mut c_int) -> mf_error {
    call(|| {
        let descriptor = Out::new("descriptor", descriptor)?;
        let event = with(channel, |channel| Ok(channel.notify_by_event()?))?;
        descriptor.store(event.into_raw_fd());
        Ok(())
    })
}

/// Asks to be signalled for the next completion. `ready` becomes 1 when there is one already, which will not be signalled: take it
/// with mf_poll until MF_ERROR_NOTHING, then arm again. Else 0. It holds until the next mf_poll or mf_wait, and may be called again
/// meanwhile: when the service was lost, `ready` becomes 1 and mf_poll gives the completions of what was outstanding; after these
/// `ready` stays 1 and there are none, so a channel that is ready twice with nothing to take is to be closed.
///
/// MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_arm(channel: mf_channel, ready: *mut c_int) -> mf_error {
    call(|| {
        let ready = Out::new("ready", ready)?;
        let armed = with(channel, |channel| Ok(channel.arm()))?;
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
