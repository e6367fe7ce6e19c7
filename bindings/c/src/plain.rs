//! One copy between plain pointers, done before the call returns.
//!
//! ```text
//! mf_copy ─ the kernel checks both ranges ─┬─ short: memmove
//!                                          └─ long: lent to the embedded service ─► this thread and the workers
//! ```
//!
//! The check tells whether a range is mapped and may be read or written, so that a wrong pointer is an error and not a signal. It
//! is one ioctl for each mapping (`PROCMAP_QUERY`, Linux 6.11), or else `madvise(MADV_POPULATE_*)` (Linux 5.14), which visits
//! every page; older systems check nothing. It does not cover memory that another thread unmaps meanwhile, and the ioctl does not
//! see that a mapped file was truncated.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use memferry::{Access, Client, Frame, Lent, RunError, copy};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::Advice;

use crate::boundary::{bytes, call};
use crate::error::{Fault, mf_error};
use crate::table;

/// Bytes from which the workers gain more than the 50 microseconds that lending both ranges takes.
const LENDING_PAYS: usize = 4 << 20;

/// Makes the kernel populate the pages of a range.
fn populate(start: *const u8, length: usize, advice: Advice) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    let first = start.wrapping_byte_sub(start.addr() % page);
    let length = (start.addr() % page).saturating_add(length).checked_next_multiple_of(page);
    let length = length.ok_or(Errno::NOMEM)?;
    // SAFETY: it makes pages present that are mapped already, and changes no byte; the kernel checks the range.
    unsafe { rustix::mm::madvise(first.cast_mut().cast(), length, advice) }
}

/// Whether this kernel knows `MADV_POPULATE_READ`.
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| populate(std::ptr::from_ref(&CAN).cast(), 1, Advice::LinuxPopulateRead).is_ok())
}

/// `struct procmap_query` of linux/fs.h.
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
    // SAFETY: number and layout are those of linux/fs.h; the kernel writes only `query`.
    unsafe { ioctl(maps, Updater::<OPCODE, Query>::new(&mut query)) }?;
    Ok(query)
}

/// The result of a check.
enum Usability {
    Usable,
    Missing,
    Forbidden,
    Failed(Errno),
}

/// Checks a range by its mappings; `None` where the kernel does not answer the ioctl.
fn query_range(maps: &OwnedFd, start: *const u8, length: usize, access: Access) -> Option<Usability> {
    let mut at = start.addr() as u64;
    let end = (start.addr() + length) as u64;
    while at < end {
        match query(maps, at) {
            Ok(mapping) if mapping.found & READABLE == 0 => return Some(Usability::Missing),
            Ok(mapping) if access == Access::ReadWrite && mapping.found & WRITABLE == 0 => {
                return Some(Usability::Forbidden);
            }
            Ok(mapping) if mapping.end > at => at = mapping.end,
            Err(Errno::NOENT) => return Some(Usability::Missing),
            _ => return None,
        }
    }
    Some(Usability::Usable)
}

/// Checks a range by populating its pages.
fn populate_range(start: *const u8, length: usize, access: Access) -> Usability {
    if !can_populate() {
        return Usability::Usable;
    }
    let advice = match access {
        Access::ReadOnly => Advice::LinuxPopulateRead,
        Access::ReadWrite => Advice::LinuxPopulateWrite,
        Access::Elsewhere => return Usability::Forbidden,
    };
    loop {
        return match populate(start, length, advice) {
            Ok(()) => Usability::Usable,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::INVAL) if access == Access::ReadWrite => Usability::Forbidden,
            Err(Errno::NOMEM | Errno::INVAL) => Usability::Missing,
            Err(error) => Usability::Failed(error),
        };
    }
}

/// Refuses memory of this process that does not allow that access, where the kernel can tell.
pub(crate) fn check(what: &str, start: *const u8, length: usize, access: Access) -> Result<(), Fault> {
    if length == 0 {
        return Ok(());
    }
    let maps = table::current_or_new()?.team.maps();
    let queried = maps.and_then(|maps| query_range(maps, start, length, access));
    let (number, problem) = match queried.unwrap_or_else(|| populate_range(start, length, access)) {
        Usability::Usable => return Ok(()),
        Usability::Missing => (mf_error::NotMapped, "are not all mapped to be read".to_owned()),
        Usability::Forbidden => (mf_error::ReadOnly, "may not be written".to_owned()),
        Usability::Failed(error) => (mf_error::MemoryFault, format!("cannot be used: {error}")),
    };
    Err(Fault::new(number, format!("{what}: {length} bytes at {start:p} {problem}")))
}

fn lend(client: &Client, start: *mut u8, length: usize, access: Access) -> Result<Frame, Fault> {
    // SAFETY: C1: the range is valid during the call, and both frames are dropped, which revokes them, before it ends.
    let lent = unsafe { Lent::new(start, length, access) };
    let lent = lent.ok_or_else(|| Fault::new(mf_error::NullPointer, "memory is null"))?;
    Ok(client.register_lent(lent)?)
}

/// Copies with the help of this process's workers. The outer error: the copy did not start.
fn with_workers(destination: *mut u8, source: *const u8, length: usize) -> Result<Result<(), Fault>, Fault> {
    let team = &table::current_or_new()?.team;
    let (client, mut queue) = team.claim()?;
    let from = lend(&client, source.cast_mut(), length, Access::ReadOnly)?;
    let to = lend(&client, destination, length, Access::ReadWrite)?;
    let ended = match queue.run(copy(&from, &to)) {
        Ok(_) => Ok(()),
        Err(RunError::Transfer(error)) => Err(error.into()),
        Err(RunError::Submit(error)) => return Err(error.reason.into()),
    };
    team.give_back(queue);
    Ok(ended)
}

/// Copies `length` bytes between plain memory of this process and returns when it is done; the ranges may overlap, as with memmove.
/// Copies of four mebibytes and more bypass the caches where that is faster, and the workers of the embedded service, which the first
/// such copy starts, share them. Memory that is not mapped or may not be read or written gives an error and not a signal. That check
/// costs a system call for each side, so memcpy is better for a few bytes. Before Linux 6.11 the kernel visits every page, and before
/// 5.14 nothing is checked. The check does not notice that a mapped file was truncated.
///
/// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT (past the last address), MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY,
/// MF_ERROR_MEMORY_FAULT, MF_ERROR_SYSTEM; nothing was written. Any thread, and in a forked child.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_copy(destination: *mut c_void, source: *const c_void, length: usize) -> mf_error {
    call(|| {
        let destination: *mut u8 = destination.cast();
        let source: *const u8 = source.cast();
        bytes("destination", destination, length)?;
        bytes("source", source, length)?;
        check("source", source, length, Access::ReadOnly)?;
        check("destination", destination, length, Access::ReadWrite)?;
        // When the workers cannot start it (no threads, quota or descriptors), memmove remains.
        if length >= LENDING_PAYS
            && let Ok(ended) = with_workers(destination, source, length)
        {
            return ended;
        }
        if length > 0 {
            // SAFETY: C1: readable and writable during the call, as the kernel confirmed where it can; they may overlap.
            unsafe { std::ptr::copy(source, destination, length) };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::CopyTeam;

    static CONSTANT: [u8; 4] = [1, 2, 3, 4];

    #[test]
    fn both_checks_agree() {
        let team = CopyTeam::default();
        let kind = |usability: Usability| match usability {
            Usability::Usable => 'u',
            Usability::Missing => 'm',
            Usability::Forbidden => 'f',
            Usability::Failed(error) => panic!("{error}"),
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
            let queried = team.maps().and_then(|maps| query_range(maps, start, length, access));
            assert_eq!(queried.map_or(expected, kind), expected, "{start:p} {access:?}");
            if can_populate() {
                let populated = populate_range(start, length.min(1 << 40), access);
                assert_eq!(kind(populated), expected, "{start:p} {access:?}");
            }
        }
    }
}
