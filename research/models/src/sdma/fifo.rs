//! A channel's FIFO between the read port and the write port.
//!
//! ```text
//! read issued ── reserve ──► read done ── fill ──► bytes ── take ──► write issued
//! ```
//!
//! Issuing a read reserves room, so that its data always fits. The scheduler limits the pool that all channels share.

use alloc::collections::VecDeque;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fifo {
    bytes: VecDeque<u8>,
    reserved: u32,
    capacity: u32,
}

impl Fifo {
    pub(super) const fn new(capacity: u32) -> Self {
        Self { bytes: VecDeque::new(), reserved: 0, capacity }
    }

    /// Bytes that can be taken.
    pub(super) fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Bytes held or reserved.
    pub(super) fn used(&self) -> u32 {
        self.len() + self.reserved
    }

    /// Bytes that can still be reserved.
    pub(super) fn room(&self) -> u32 {
        self.capacity.saturating_sub(self.used())
    }

    pub(super) fn reserve(&mut self, bytes: u32) {
        self.reserved += bytes;
    }

    /// Releases the room of a read that delivers no data.
    pub(super) fn release(&mut self, bytes: u32) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }

    /// Stores the data of a read in its reserved room.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        self.release(bytes.len() as u32);
        self.bytes.extend(bytes);
    }

    /// Moves bytes into `bytes`; if there are too few, the rest of `bytes` is left unchanged.
    pub(super) fn take(&mut self, bytes: &mut [u8]) {
        let count = bytes.len().min(self.bytes.len());
        for (byte, taken) in bytes.iter_mut().zip(self.bytes.drain(..count)) {
            *byte = taken;
        }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_reserved_and_freed_by_taking() {
        let mut fifo = Fifo::new(8);
        fifo.reserve(6);
        assert_eq!((fifo.room(), fifo.len(), fifo.used()), (2, 0, 6));
        fifo.fill(&[1, 2, 3, 4]);
        fifo.release(2);
        assert_eq!((fifo.room(), fifo.len(), fifo.used()), (4, 4, 4));
        let mut out = [0; 3];
        fifo.take(&mut out);
        assert_eq!((out, fifo.room()), ([1, 2, 3], 7));
        fifo.clear();
        assert_eq!(fifo.room(), 8);
    }
}
