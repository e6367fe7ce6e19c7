//! The memory of this process as frames, for copiers.
//!
//! ```text
//! address ─► window of 64 MiB ─ lent to the embedded service once, kept while used ─► region of the window's frame
//! ```
//!
//! A window covers addresses, not memory: most of it may be unmapped or belong to other code. Its frame never leaves this module.
//! Only the bytes of copies are named in it, which the program keeps until the copy is done.

use std::sync::{Mutex, PoisonError};

use memferry::{Access, AddressSpace, Client, CopyQueue, Frame, Lent, Region};

/// Bytes of a window.
const WINDOW: u64 = 64 << 20;
/// Windows kept: a GiB of the user's quota.
const KEPT: usize = 16;

/// All addresses of this process.
pub(crate) struct PlainMemory {
    client: Client,
    /// First address and frame, in order of use; the most recent is last.
    windows: Mutex<Vec<(u64, Frame)>>,
}

pub(crate) type CopierEntry = CopyQueue<PlainMemory>;

impl PlainMemory {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, windows: Mutex::default() }
    }

    fn window_of(&self, address: u64) -> Option<(u64, Frame)> {
        // Memory cannot be lent at null.
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
        // Revokes the frame, which is a call: not under the lock.
        drop(evicted);
        Some(found)
    }

    fn lend(&self, base: u64) -> Option<Frame> {
        let length = (WINDOW - base % WINDOW) as usize;
        let first = std::ptr::with_exposed_provenance_mut(base as usize);
        // SAFETY: C1: the frame stays in this module, which uses it only to copy bytes that mf_amemcpy was given. The program
        // keeps these unchanged until the copy is done.
        let lent = unsafe { Lent::new(first, length, Access::ReadWrite) }?;
        self.client.register_lent(lent).ok()
    }
}

impl AddressSpace for PlainMemory {
    fn region(&self, address: u64, length: u64) -> Option<Region> {
        let (base, frame) = self.window_of(address)?;
        let offset = address - base;
        let end = offset.saturating_add(length).min(frame.length());
        Some(frame.slice(offset..end))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_their_bytes_and_few_are_kept() {
        let space = PlainMemory::new(Client::embedded().unwrap());
        let part = |address: u64, length: u64| {
            let region = space.region(address, length).unwrap();
            (region.offset(), region.length())
        };
        assert_eq!(part(WINDOW + 5, 100), (5, 100));
        assert_eq!(part(2 * WINDOW - 5, 100), (WINDOW - 5, 5));
        assert_eq!(part(2 * WINDOW - 5, u64::MAX), (WINDOW - 5, 5), "the end does not overflow");
        assert_eq!(part(4096, 100), (4095, 100), "null is in no window");
        (0..40).for_each(|index| assert_eq!(part(index * WINDOW + 9, 1), (9 - u64::from(index == 0), 1)));
        let windows = space.windows.lock().unwrap();
        let kept: Vec<u64> = windows.iter().map(|(base, _)| base / WINDOW).collect();
        assert_eq!(kept, (40 - KEPT as u64..40).collect::<Vec<_>>());
    }
}
