//! Data of a channel between the read port and the write port.
//!
//! ```text
//! read issued ── reserve ──► read done ── fill ──► bytes ── take ──► write issued
//! ```
//!
//! Room is taken when a read is issued, so that its data always fits. The FIFO knows nothing of the other channels;
//! the pool that they share is the scheduler's.

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

    /// Bytes that it holds or waits for.
    pub(super) fn used(&self) -> u32 {
        self.len() + self.reserved
    }

    /// Bytes that may still be asked for.
    pub(super) fn room(&self) -> u32 {
        self.capacity.saturating_sub(self.used())
    }

    pub(super) fn reserve(&mut self, bytes: u32) {
        self.reserved += bytes;
    }

    /// Gives back the room of a read whose data does not come.
    pub(super) fn release(&mut self, bytes: u32) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }

    /// Puts the data of a read into its room.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        self.release(bytes.len() as u32);
        self.bytes.extend(bytes);
    }

    /// Takes bytes to fill `bytes`; missing ones stay as they are.
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
    fn room_is_taken_when_it_is_reserved_and_given_back_when_it_is_taken_out() {
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
