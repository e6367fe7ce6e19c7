//! The memory that a receiver's messages are copied to, aligned to a cache line.
//!
//! ```text
//! part(received, end, whole) ─ buffer too short: grow to twice the size or `end` ─► the destination of a piece
//! ```
//!
//! Pieces start at a cache line of the other end's area. A copy to a different alignment, as ordinary allocators give, takes up
//! to a third longer: it loads each of the other core's lines twice.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Growing bytes that start at a cache line.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    /// Offset of the first aligned byte.
    start: usize,
}

impl Buffer {
    /// The first bytes. They must have been written.
    pub(crate) fn first(&self, length: usize) -> &[u8] {
        &self.bytes[self.start..self.start + length]
    }

    /// The place of the bytes from `received` to `end` of a message of `whole` bytes. Memory grows with the bytes received, not
    /// with the announced length.
    pub(crate) fn part(&mut self, received: usize, end: usize, whole: usize) -> &mut [u8] {
        let length = self.bytes.len() - self.start;
        if length < end {
            let mut bytes = vec![0; end.max(2 * length).min(whole) + LINE];
            let start = bytes.as_ptr().align_offset(LINE).min(LINE);
            bytes[start..start + received].copy_from_slice(self.first(received));
            *self = Self { bytes, start };
        }
        &mut self.bytes[self.start + received..self.start + end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_bytes_and_alignment() {
        let mut buffer = Buffer::default();
        let whole: Vec<u8> = (0..5000).map(|index| index as u8).collect();
        for (received, end) in [(0, 40), (40, 41), (41, 200), (200, 4000), (4000, 5000)] {
            buffer.part(received, end, whole.len()).copy_from_slice(&whole[received..end]);
            assert_eq!(buffer.first(end), &whole[..end]);
            assert!(buffer.first(end).as_ptr().addr().is_multiple_of(LINE));
        }
        assert!(buffer.bytes.len() <= whole.len() + LINE);
        // The next message reuses the buffer.
        buffer.part(0, 3, 3).copy_from_slice(b"abc");
        assert_eq!(buffer.first(3), b"abc");
    }
}
