//! One copy over plain pointers, done by this process and its workers before it returns.
//!
//! ```text
//! mf_copy ─ both ranges looked at by the kernel ─┬─ short: memmove
//!                                                └─ long: lent to the embedded service ─► this thread and its workers
//! ```
//!
//! A look says whether a range is mapped and may be read or written, where touching it would end the process. It is one ioctl
//! for each mapping (`PROCMAP_QUERY`, Linux 6.11), or else `madvise(MADV_POPULATE_*)` (Linux 5.14), which visits every page; on an
//! older system nothing is looked at. What another thread unmaps meanwhile is that thread's mistake, and a mapped file that
//! was cut short is not seen by the ioctl.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use memferry::{Access, Client, Frame, Lent, Queue, Transfer};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::Advice;

use crate::boundary::{bytes, call};
use crate::error::{Fault, mf_error};
use crate::table;

/// Bytes from which lending both ranges, which takes about 50 microseconds, costs less than the workers gain.
const LENDING_PAYS: usize = 4 << 20;
/// Channels kept for threads to come.
const KEPT: usize = 8;

/// The client that plain copies are made with, and its queues that no thread uses now.
#[derive(Default)]
pub(crate) struct CopyTeam {
    idle: Mutex<Idle>,
    /// This process's list of mappings.
    maps: OnceLock<Option<OwnedFd>>,
}

#[derive(Default)]
struct Idle {
    client: Option<Client>,
    queues: Vec<Queue>,
}

impl CopyTeam {
    fn claim(&self) -> Result<(Client, Queue), Fault> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match &idle.client {
            Some(client) => client.clone(),
            None => idle.client.insert(Client::embedded()?).clone(),
        };
        let queue = idle.queues.pop();
        drop(idle);
        let queue = queue.map_or_else(|| client.queue(2), Ok)?;
        Ok((client, queue))
    }

    fn maps(&self) -> Option<&OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || rustix::fs::open("/proc/self/maps", flags, Mode::empty()).ok();
        self.maps.get_or_init(open).as_ref()
    }

    fn give_back(&self, queue: Queue) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.queues.len() < KEPT {
            idle.queues.push(queue);
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

/// A mapping as the kernel tells of it: `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    found: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_and_build_id_bytes: [u32; 2],
    name_and_build_id: [u64; 2],
}

const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// The mapping that holds an address.
fn query(maps: &OwnedFd, address: u64) -> Result<Query, Errno> {
    const OPCODE: Opcode = opcode::read_write::<Query>(b'f', 17);
    let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
    // SAFETY: the number and the layout are those of linux/fs.h; nothing of the caller's is written but `query`.
    unsafe { ioctl(maps, Updater::<OPCODE, Query>::new(&mut query)) }?;
    Ok(query)
}

/// What a look found.
enum Found {
    Usable,
    Missing,
    Forbidden,
    /// The system failed otherwise.
    Failed(Errno),
}

/// Asks for the mappings of a range; `None` where the kernel does not answer that.
fn ask(maps: &OwnedFd, start: *const u8, length: usize, access: Access) -> Option<Found> {
    let mut at = start.addr() as u64;
    let end = (start.addr() + length) as u64;
    while at < end {
        match query(maps, at) {
            Ok(found) if found.found & READABLE == 0 => return Some(Found::Missing),
            Ok(found) if access == Access::ReadWrite && found.found & WRITABLE == 0 => {
                return Some(Found::Forbidden);
            }
            Ok(found) if found.end > at => at = found.end,
            Err(Errno::NOENT) => return Some(Found::Missing),
            _ => return None,
        }
    }
    Some(Found::Usable)
}

/// Has the kernel visit the pages of a range.
fn visit(start: *const u8, length: usize, access: Access) -> Found {
    if !can_look() {
        return Found::Usable;
    }
    let advice = match access {
        Access::ReadOnly => Advice::LinuxPopulateRead,
        Access::ReadWrite => Advice::LinuxPopulateWrite,
    };
    loop {
        return match look(start, length, advice) {
            Ok(()) => Found::Usable,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::INVAL) if access == Access::ReadWrite => Found::Forbidden,
            Err(Errno::NOMEM | Errno::INVAL) => Found::Missing,
            Err(error) => Found::Failed(error),
        };
    }
}

/// Whether memory of this process may be used so, where the kernel can say.
pub(crate) fn check(what: &str, start: *const u8, length: usize, access: Access) -> Result<(), Fault> {
    if length == 0 {
        return Ok(());
    }
    let maps = table::current_or_new()?.team.maps();
    let asked = maps.and_then(|maps| ask(maps, start, length, access));
    let (number, problem) = match asked.unwrap_or_else(|| visit(start, length, access)) {
        Found::Usable => return Ok(()),
        Found::Missing => (mf_error::NotMapped, "are not all mapped to be read".to_owned()),
        Found::Forbidden => (mf_error::ReadOnly, "may not be written".to_owned()),
        Found::Failed(error) => (mf_error::MemoryFault, format!("cannot be used: {error}")),
    };
    Err(Fault::new(number, format!("{what}: {length} bytes at {start:p} {problem}")))
}

fn lend(client: &Client, start: *mut u8, length: usize, access: Access) -> Result<Frame, Fault> {
    // SAFETY: C1: the range is good during the call, and both frames are dropped, which revokes them, before it ends.
    let lent = unsafe { Lent::new(start, length, access) };
    let lent = lent.ok_or_else(|| Fault::new(mf_error::NullPointer, "memory is null"))?;
    Ok(client.register_lent(lent)?)
}

/// Has this process's workers help: `Err` when it could not begin, else how it ended.
fn with_workers(destination: *mut u8, source: *const u8, length: usize) -> Result<Result<(), Fault>, Fault> {
    let team = &table::current_or_new()?.team;
    let (client, mut queue) = team.claim()?;
    let from = lend(&client, source.cast_mut(), length, Access::ReadOnly)?;
    let to = lend(&client, destination, length, Access::ReadWrite)?;
    let done = queue.perform(Transfer::copy(&from.all(), &to.all())?);
    let done = done.map_err(|error| Fault::from(error.reason))?;
    team.give_back(queue);
    Ok(done.outcome.map_err(Fault::from))
}

/// Copies `length` bytes between plain memory of this process and returns when it is done; the ranges may overlap, as with memmove.
/// Long copies go past the caches where that is faster, and are shared by the workers of the embedded service, which starts with the
/// first. What is not mapped or may not be read or written is an error and not a signal; the look costs a system call for each
/// side (and on Linux before 6.11 a visit of every page), so memcpy is better for a few bytes.
///
/// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT (beyond all addresses), MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY, MF_ERROR_MEMORY_FAULT,
/// MF_ERROR_SYSTEM; nothing was written. Any thread, and in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_copy(destination: *mut c_void, source: *const c_void, length: usize) -> mf_error {
    call(|| {
        let destination: *mut u8 = destination.cast();
        let source: *const u8 = source.cast();
        bytes("destination", destination, length)?;
        bytes("source", source, length)?;
        check("source", source, length, Access::ReadOnly)?;
        check("destination", destination, length, Access::ReadWrite)?;
        // Without workers, a quota or descriptors to spare the C library's way is left.
        if length >= LENDING_PAYS
            && let Ok(ended) = with_workers(destination, source, length)
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

#[cfg(test)]
mod tests {
    use super::*;

    static CONSTANT: [u8; 4] = [1, 2, 3, 4];

    #[test]
    fn both_ways_of_looking_say_the_same() {
        let team = CopyTeam::default();
        let kind = |found: Found| match found {
            Found::Usable => 'u',
            Found::Missing => 'm',
            Found::Forbidden => 'f',
            Found::Failed(error) => panic!("{error}"),
        };
        let mut own = vec![0_u8; 100_000];
        let cases = [
            (own.as_mut_ptr().cast_const(), own.len(), Access::ReadWrite, 'u'),
            (CONSTANT.as_ptr(), 4, Access::ReadOnly, 'u'),
            (CONSTANT.as_ptr(), 4, Access::ReadWrite, 'f'),
            (std::ptr::without_provenance(8), 4, Access::ReadOnly, 'm'),
            (own.as_ptr(), 1 << 46, Access::ReadOnly, 'm'),
        ];
        for (start, length, access, expected) in cases {
            let found = team.maps().and_then(|maps| ask(maps, start, length, access));
            assert_eq!(found.map_or(expected, kind), expected, "{start:p} {access:?}");
            if can_look() {
                assert_eq!(kind(visit(start, length.min(1 << 40), access)), expected, "{start:p} {access:?}");
            }
        }
    }
}
