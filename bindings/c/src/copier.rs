//! Asynchronous copies between plain pointers, in the order of the calls.
//!
//! ```text
//! mf_amemcpy ─ both ranges looked at by the kernel ─► CopyQueue ─► worker, mf_csync* ─► engine, CPU
//!                                                         └ addresses in windows of 64 MiB, lent to the embedded service
//! ```
//!
//! A window is addresses, not memory: most of it may not be mapped, or be somebody else's. Its frame never leaves this module,
//! and is named for the bytes of copies only, which the program keeps until it was told that they are done.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use memferry::{Access, AddressSpace, Client, CopyQueue, Frame, FrameRange, Lent};

use crate::boundary::{Out, bytes, call};
use crate::error::{Fault, mf_error};
use crate::plain::check;
use crate::table;
use crate::types::{mf_client, mf_copier};

/// Bytes of a window.
const WINDOW: u64 = 64 << 20;
/// Windows kept: a GiB of the user's quota.
const KEPT: usize = 16;

/// The memory of this process.
pub(crate) struct Plain {
    client: Client,
    /// First address and frame, the one used last at the end.
    windows: Mutex<Vec<(u64, Frame)>>,
}

pub(crate) type CopierEntry = CopyQueue<Plain>;

impl Plain {
    /// The window that holds an address.
    fn window(&self, address: u64) -> Option<(u64, Frame)> {
        // Null is no memory.
        let base = (address / WINDOW * WINDOW).max(1);
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let known = windows.iter().position(|(first, _)| *first == base);
        let found = match known {
            Some(index) => windows.remove(index),
            None => (base, self.lend(base)?),
        };
        windows.push(found.clone());
        let evicted = (windows.len() > KEPT).then(|| windows.remove(0));
        drop(windows);
        // Revokes it, which is a call.
        drop(evicted);
        Some(found)
    }

    fn lend(&self, base: u64) -> Option<Frame> {
        let length = (WINDOW - base % WINDOW) as usize;
        let first = std::ptr::with_exposed_provenance_mut(base as usize);
        // SAFETY: C1: the frame stays here, and all that is ever asked of it is to copy bytes that mf_amemcpy was given, which
        // stay as they were found until the copy is done.
        let lent = unsafe { Lent::new(first, length, Access::ReadWrite) }?;
        self.client.register_lent(lent).ok()
    }
}

impl AddressSpace for Plain {
    fn frame_range(&self, address: u64, length: u64) -> Option<FrameRange> {
        let (base, frame) = self.window(address)?;
        let offset = address - base;
        Some(frame.range(offset, length.min(frame.length() - offset)))
    }

    fn copy(&self, to: u64, from: u64, length: u64) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
        let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
        if length > 0 {
            // SAFETY: C1: bytes of a copy that is not done yet, readable and writable; they may overlap.
            unsafe { std::ptr::copy(from, to, length as usize) };
        }
    }
}

/// Opens a copier: an order of asynchronous copies between plain pointers. It has a thread of its own. Only for clients of
/// mf_embed.
///
/// MF_ERROR_NOT_EMBEDDED, MF_ERROR_SYSTEM. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_copier_open(client: mf_client, copier: *mut mf_copier) -> mf_error {
    call(|| {
        let copier = Out::new("copier", copier)?;
        let client = table::client(client)?;
        let client = Client::clone(&client);
        let space = Plain { client: client.clone(), windows: Mutex::default() };
        let entry = CopyQueue::new(&client, space)?;
        copier.store(mf_copier { id: table::current_or_new()?.copiers.insert(entry)? });
        Ok(())
    })
}

/// Frees the handle when every copy is in place, also those that other threads ask for at this moment.
///
/// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_copier_close(copier: mf_copier) -> mf_error {
    call(|| {
        table::last(table::take_copier(copier)?);
        Ok(())
    })
}

/// Has `length` bytes at `source` copied to `destination`, and returns at once. They are there after mf_csync of them, any part at
/// any time, as if memcpy had copied them at this call; calls with one copier count in the order in which they are made. The ranges
/// may overlap, as with memmove.
///
/// Until then, neither read nor write the destination, and do not write the source: call mf_csync_to_write, or mf_cforget, first. A
/// source may be written without a word when every destination that was copied to from it was csynced; where one was forgotten or
/// copied over before that, call mf_csync_to_write of the source. Freeing and unmapping count as writing.
///
/// What is to be copied from a destination still to come is copied from where the bytes are. The call takes longer when the ranges
/// overlap and begin less than 4 KiB apart, when bytes are copied from a copy of something that a pending copy overwrites, and when
/// thousands of copies are pending; up to 8 KiB are copied by the caller where nothing pending is in the way. The bytes are moved in
/// any case: by the CPU when the engine does not.
///
/// MF_ERROR_NULL_POINTER, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (beyond all addresses),
/// MF_ERROR_MEMORY_FAULT, MF_ERROR_FORKED; nothing is copied. Any thread.
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

/// Returns when `length` bytes at `memory` are in place, so that they may be read. What is missing is moved by this thread.
///
/// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (beyond all addresses), MF_ERROR_FORKED. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_csync(copier: mf_copier, memory: *const c_void, length: usize) -> mf_error {
    with(copier, memory, length, CopyQueue::csync)
}

/// Returns when `length` bytes at `memory` are in place and no copy reads them any more, so that they may be written or freed.
///
/// As mf_csync. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_csync_to_write(
    copier: mf_copier,
    memory: *const c_void,
    length: usize,
) -> mf_error {
    with(copier, memory, length, CopyQueue::csync_to_write)
}

/// Returns when everything is in place, also what other threads ask for meanwhile.
///
/// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mf_csync_all(copier: mf_copier) -> mf_error {
    call(|| Ok(table::copier(copier)?.csync_all()?))
}

/// Gives `length` bytes at `memory` up, which hold nothing certain then: what was to be copied there is not, and what is to be
/// copied from there is copied first. When it returns nothing touches them, and they may be freed, or written anew as a whole.
///
/// As mf_csync. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_cforget(copier: mf_copier, memory: *const c_void, length: usize) -> mf_error {
    with(copier, memory, length, CopyQueue::forget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_windows_and_few_windows_are_kept() {
        let space = Plain { client: Client::embedded().unwrap(), windows: Mutex::default() };
        let part = |address: u64, length: u64| {
            let range = space.frame_range(address, length).unwrap();
            (range.offset(), range.length())
        };
        assert_eq!(part(WINDOW + 5, 100), (5, 100));
        assert_eq!(part(2 * WINDOW - 5, 100), (WINDOW - 5, 5));
        assert_eq!(part(4096, 100), (4095, 100), "null is in no window");
        (0..40).for_each(|index| assert_eq!(part(index * WINDOW + 9, 1), (9 - u64::from(index == 0), 1)));
        let windows = space.windows.lock().unwrap();
        let kept: Vec<u64> = windows.iter().map(|(base, _)| base / WINDOW).collect();
        assert_eq!(kept, (40 - KEPT as u64..40).collect::<Vec<_>>());
    }
}
