//! One copy over plain pointers, done by this process and its lanes before it returns.
//!
//! ```text
//! mf_copy ─ both ranges looked at by the kernel ─┬─ short: memmove
//!                                                └─ long: lent to the embedded service ─► this thread and its lanes
//! ```
//!
//! A look is `madvise(MADV_POPULATE_*)`: it says whether a range is mapped and may be read or written, where touching it would
//! end the process. Linux before 5.14 has no such call; there nothing is looked at. What another thread unmaps meanwhile is
//! that thread's mistake.

use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use memferry::{Access, Channel, Client, Frame, Lent, Transfer};
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::boundary::{bytes, call};
use crate::error::{Fault, mf_error};
use crate::table;

/// Bytes from which lending both ranges, which takes about 50 microseconds, costs less than the lanes gain.
const LENDING_PAYS: usize = 4 << 20;
/// Channels kept for threads to come.
const KEPT: usize = 8;

/// The client that plain copies are made with, and its channels that no thread uses now.
#[derive(Default)]
pub(crate) struct Crew(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    client: Option<Client>,
    channels: Vec<Channel>,
}

impl Crew {
    fn claim(&self) -> Result<(Client, Channel), Fault> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match &idle.client {
            Some(client) => client.clone(),
            None => idle.client.insert(Client::embedded()?).clone(),
        };
        let channel = idle.channels.pop();
        drop(idle);
        let channel = channel.map_or_else(|| client.open_channel(2), Ok)?;
        Ok((client, channel))
    }

    fn give_back(&self, channel: Channel) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.channels.len() < KEPT {
            idle.channels.push(channel);
        }
    }
}

/// Has the kernel look at the pages of a range.
fn look(start: *const u8, length: usize, advice: Advice) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    let first = start.wrapping_byte_sub(start.addr() % page);
    let length = (start.addr() % page).saturating_add(length).checked_next_multiple_of(page);
    let length = length.ok_or(Errno::NOMEM)?;
    // SAFETY: it makes pages present that are mapped already, and changes no byte; the kernel checks the range.
    unsafe { rustix::mm::madvise(first.cast_mut().cast(), length, advice) }
}

/// Whether the kernel can say that.
fn can_look() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| look(std::ptr::from_ref(&CAN).cast(), 1, Advice::LinuxPopulateRead).is_ok())
}

/// Whether memory of this process may be used so, where the kernel can say.
pub(crate) fn check(what: &str, start: *const u8, length: usize, access: Access) -> Result<(), Fault> {
    if length == 0 || !can_look() {
        return Ok(());
    }
    let (advice, may) = match access {
        Access::ReadOnly => (Advice::LinuxPopulateRead, "be read"),
        Access::ReadWrite => (Advice::LinuxPopulateWrite, "be written"),
    };
    let said = |number, problem: &str| {
        Err(Fault::new(number, format!("{what}, {length} bytes at {start:p}, {problem}")))
    };
    loop {
        return match look(start, length, advice) {
            Ok(()) => Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::NOMEM) => said(mf_error::NotMapped, "is not all mapped, or there is no memory for it"),
            Err(Errno::INVAL) if access == Access::ReadWrite => {
                said(mf_error::ReadOnly, &format!("may not {may}"))
            }
            Err(Errno::INVAL) => said(mf_error::NotMapped, &format!("may not {may}")),
            Err(error) => said(mf_error::MemoryFault, &format!("may not {may}: {error}")),
        };
    }
}

fn lend(client: &Client, start: *mut u8, length: usize, access: Access) -> Result<Frame, Fault> {
    // SAFETY: C1: the range is good during the call, and both frames are dropped, which revokes them, before it ends.
    let lent = unsafe { Lent::new(start, length, access) };
    let lent = lent.ok_or_else(|| Fault::new(mf_error::NullPointer, "memory is null"))?;
    Ok(client.register_lent(lent)?)
}

/// Has this process's lanes help: `Err` when it could not begin, else how it ended.
fn with_lanes(destination: *mut u8, source: *const u8, length: usize) -> Result<Result<(), Fault>, Fault> {
    let crew = &table::current_or_new()?.crew;
    let (client, mut channel) = crew.claim()?;
    let from = lend(&client, source.cast_mut(), length, Access::ReadOnly)?;
    let to = lend(&client, destination, length, Access::ReadWrite)?;
    let done = channel.perform(Transfer::copy(&from.all(), &to.all())?);
    let done = done.map_err(|error| Fault::from(error.reason))?;
    crew.give_back(channel);
    Ok(done.outcome.map_err(Fault::from))
}

/// Copies `length` bytes between plain memory of this process and returns when it is done; the ranges may overlap, as with memmove.
/// Long copies go past the caches where that is faster, and are shared by the lanes of the embedded service, which starts with the
/// first. What may not be read or written is an error and not a signal (on Linux 5.14 and later); the look costs a system call
/// for each side, so memcpy is better for a few bytes.
///
/// MF_ERROR_NULL_POINTER, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY, MF_ERROR_MEMORY_FAULT; nothing was written. Any thread, and in a
/// forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_copy(destination: *mut c_void, source: *const c_void, length: usize) -> mf_error {
    call(|| {
        let (destination, source): (*mut u8, *const u8) = (destination.cast(), source.cast());
        bytes("destination", destination, length)?;
        bytes("source", source, length)?;
        check("source", source, length, Access::ReadOnly)?;
        check("destination", destination, length, Access::ReadWrite)?;
        // Without lanes, a quota or descriptors to spare the C library's way is left.
        if length >= LENDING_PAYS
            && let Ok(ended) = with_lanes(destination, source, length)
        {
            return ended;
        }
        if length > 0 {
            // SAFETY: C1: readable and writable during the call, as the kernel agreed where it can; they may overlap.
            unsafe { std::ptr::copy(source, destination, length) };
        }
        Ok(())
    })
}
