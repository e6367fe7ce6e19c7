//! Where a receiver's messages lie: memory that begins with a cache line.
//!
//! ```text
//! part(come, end, whole) ─ too short: twice as long, or what comes ─► the place of a piece
//! ```
//!
//! Pieces begin with a line in the other end's area. A copy that is out of step with that, as it would be to memory of the
//! usual allocators, takes up to a third longer: each line of the other core's is loaded from twice.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Bytes that begin with a line and grow.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    /// Where the line begins.
    start: usize,
}

impl Buffer {
    /// The first bytes, which were written before.
    pub(crate) fn first(&self, length: usize) -> &[u8] {
        &self.bytes[self.start..self.start + length]
    }

    /// A place of a message of `whole` bytes of which `come` are there. Memory is taken with what comes, not with what is
    /// announced.
    pub(crate) fn part(&mut self, come: usize, end: usize, whole: usize) -> &mut [u8] {
        let length = self.bytes.len() - self.start;
        if length < end {
            let mut bytes = vec![0; end.max(2 * length).min(whole) + LINE];
            let start = bytes.as_ptr().align_offset(LINE).min(LINE);
            bytes[start..start + come].copy_from_slice(self.first(come));
            *self = Self { bytes, start };
        }
        &mut self.bytes[self.start + come..self.start + end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_stays_while_it_grows_and_lies_on_a_line() {
        let mut buffer = Buffer::default();
        let whole: Vec<u8> = (0..5000).map(|index| index as u8).collect();
        for (come, end) in [(0, 40), (40, 41), (41, 200), (200, 4000), (4000, 5000)] {
            buffer.part(come, end, whole.len()).copy_from_slice(&whole[come..end]);
            assert_eq!(buffer.first(end), &whole[..end]);
            assert!(buffer.first(end).as_ptr().addr().is_multiple_of(LINE));
        }
        assert!(buffer.bytes.len() <= whole.len() + LINE);
        // The next one takes its place.
        buffer.part(0, 3, 3).copy_from_slice(b"abc");
        assert_eq!(buffer.first(3), b"abc");
    }
}
