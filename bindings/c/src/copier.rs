//! Asynchronous copies between plain pointers, in the order of the calls.
//!
//! ```text
//! mf_amemcpy ─ the kernel checks both ranges ─► CopyQueue ─► worker, mf_csync* ─► engine, CPU
//!                                                  └ addresses become regions in `address_space`
//! ```

use std::ffi::c_void;

use memferry::{Access, Client, CopyQueue};

use crate::address_space::{CopierEntry, PlainMemory};
use crate::boundary::{Out, bytes, call};
use crate::error::{Fault, mf_error};
use crate::plain::check;
use crate::table;
use crate::types::{mf_client, mf_copier};

/// Opens a copier: a sequence of asynchronous copies between plain pointers. It has its own thread. Only for clients of
/// mf_embed. A forked child has none of its parent's copiers, and pending copies are never done in it: call mf_csync_all before
/// the fork.
///
/// MF_ERROR_NOT_EMBEDDED, MF_ERROR_SYSTEM. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_copier_open(client: mf_client, copier: *mut mf_copier) -> mf_error {
    call(|| {
        let copier = Out::new("copier", copier)?;
        let client = table::client(client)?;
        let client = Client::clone(&client);
        let entry = CopyQueue::new(&client, PlainMemory::new(client.clone()))?;
        copier.store(mf_copier { id: table::current_or_new()?.copiers.insert(entry)? });
        Ok(())
    })
}

/// Frees the handle when every copy is in place, including those that other threads request at this moment.
///
/// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_copier_close(copier: mf_copier) -> mf_error {
    call(|| {
        table::wait_for_drop(table::take_copier(copier)?);
        Ok(())
    })
}

/// Requests a copy of `length` bytes from `source` to `destination` and returns at once. After mf_csync of any part of the
/// destination, that part holds what memcpy would have copied at this call. One copier takes calls in the order in which they
/// are made. The ranges may overlap, as with memmove.
///
/// Until then, do not read or write the destination, and do not write the source: call mf_csync_to_write or mf_cforget first. A
/// source may be written without these calls once mf_csync has returned for every destination that was copied from it. If one of
/// them was forgotten or copied over before that, call mf_csync_to_write of the source. Freeing and unmapping count as writing.
///
/// A copy from a destination that is still pending reads the bytes where they are now; the buffer between is filled after
/// everything else, or never when it is forgotten. Bytes that a later copy overwrites are not moved. The call takes longer when the ranges
/// overlap and start less than 4 KiB apart, when it copies from a copy of something that a pending copy overwrites, and when
/// thousands of copies are pending. The caller copies up to 8 KiB itself where no pending copy is in the way. Bytes that no engine
/// moves are moved by the CPU, so an accepted copy does not fail.
///
/// MF_ERROR_NULL_POINTER, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (past the last
/// address), MF_ERROR_MEMORY_FAULT, MF_ERROR_FORKED; nothing is copied. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_amemcpy(
    copier: mf_copier,
    destination: *mut c_void,
    source: *const c_void,
    length: usize,
) -> mf_error {
    call(|| {
        let destination: *mut u8 = destination.cast();
        let source: *const u8 = source.cast();
        let entry = table::copier(copier)?;
        bytes("destination", destination, length)?;
        bytes("source", source, length)?;
        check("source", source, length, Access::ReadOnly)?;
        check("destination", destination, length, Access::ReadWrite)?;
        let to = destination.expose_provenance();
        let from = source.expose_provenance();
        Ok(entry.amemcpy(to as u64, from as u64, length as u64)?)
    })
}

fn with(
    copier: mf_copier,
    memory: *const c_void,
    length: usize,
    act: impl FnOnce(&CopierEntry, u64, u64) -> Result<(), memferry::AccessError>,
) -> mf_error {
    call(|| {
        let entry = table::copier(copier)?;
        bytes("memory", memory.cast(), length)?;
        act(&entry, memory.addr() as u64, length as u64).map_err(Fault::from)
    })
}

/// Returns when `length` bytes at `memory` are in place and may be read. This thread moves those that are missing.
///
/// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (past the last address), MF_ERROR_FORKED. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_csync(copier: mf_copier, memory: *const c_void, length: usize) -> mf_error {
    with(copier, memory, length, CopyQueue::csync)
}

/// Returns when `length` bytes at `memory` are in place and no copy reads them any more, so that they may be written or freed.
///
/// As mf_csync. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_csync_to_write(
    copier: mf_copier,
    memory: *const c_void,
    length: usize,
) -> mf_error {
    with(copier, memory, length, CopyQueue::csync_to_write)
}

/// Returns when every copy is in place, including those that other threads request meanwhile.
///
/// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub extern "C" fn mf_csync_all(copier: mf_copier) -> mf_error {
    call(|| Ok(table::copier(copier)?.csync_all()?))
}

/// Discards `length` bytes at `memory`: copies to them are dropped, and pending copies from them are done first. When it returns,
/// their content is undefined and no copy uses them, so they may be freed, or written again as a whole.
///
/// As mf_csync. Any thread.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cforget(copier: mf_copier, memory: *const c_void, length: usize) -> mf_error {
    with(copier, memory, length, CopyQueue::forget)
}
