//! One buffer of a pool, and a part of one that is only read.
//!
//! ```text
//! Buffer (one owner) ─ write, a file's bytes land here ─ share ─► BufferView, clones ─ last one dropped ─► pool
//! UsedBuffer (whoever zeroes) ─ zeroed ─► pool, to be handed out as it is        ─ dropped ─► pool, as it was
//!                             └ abandoned ─► nobody gets it again
//! ```
//!
//! Bytes go in and out by raw copies (M2): the segment may be mapped by other processes. It does not say what the bytes are.

use std::fmt;
use std::sync::Arc;

use super::{Pool, Segment};
use memferry_shm::mapping::AccessError;

/// A buffer in use; dropping it gives it back.
pub struct Buffer {
    pool: Pool,
    segment: Arc<Segment>,
    index: u32,
    /// Whether it is zero when it is given back.
    zero: bool,
    /// Whether it was taken to be zeroed.
    zeroing: bool,
    /// Whether somebody may still write to it when it is given back.
    abandoned: bool,
}

impl Buffer {
    pub(super) fn new(pool: Pool, segment: Arc<Segment>, index: u32) -> Self {
        Self { pool, segment, index, zero: false, zeroing: false, abandoned: false }
    }

    pub fn length(&self) -> usize {
        self.segment.buffer_bytes()
    }

    /// The segment it is cut from.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Its place among the segment's buffers.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its first byte. Using it is unsafe: stay inside and copy raw (P, M2).
    pub fn pointer(&self) -> *mut u8 {
        self.segment.mapping().pointer().wrapping_add(self.segment.offset_of(self.index))
    }

    /// Checks that `length` bytes at `offset` are in it.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`].
    pub fn check(&self, offset: usize, length: usize) -> Result<(), AccessError> {
        let available = self.length();
        if offset.checked_add(length).is_some_and(|end| end <= available) {
            return Ok(());
        }
        let offset = offset as u64;
        let length = length as u64;
        let available = available as u64;
        Err(AccessError::OutOfRange { offset, length, available })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, bytes.len())?;
        self.segment.mapping().read((self.segment.offset_of(self.index) + offset) as u64, bytes)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.check(offset, bytes.len())?;
        self.segment.mapping().write((self.segment.offset_of(self.index) + offset) as u64, bytes)
    }

    /// Fills it with zeros.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn clear(&mut self) -> Result<(), AccessError> {
        let zeros = [0; 4096];
        (0..self.length()).step_by(zeros.len()).try_for_each(|at| {
            let length = zeros.len().min(self.length() - at);
            self.write(at, &zeros[..length])
        })
    }

    /// `length` bytes at `offset`, only to be read from now on.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; the buffer is given back.
    pub fn share(self, offset: usize, length: usize) -> Result<BufferView, AccessError> {
        self.check(offset, length)?;
        Ok(BufferView { buffer: Arc::new(self), offset, length })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.abandoned {
            return self.pool.set_aside();
        }
        self.pool.give_back(&self.segment, self.index, (self.zero, self.zeroing));
    }
}

/// A free buffer with what its last user left in it, taken out to be zeroed. It is nobody's until it is given back: dropped
/// it is what it was, and [`zeroed`](Self::zeroed) it is handed out as zeros.
#[derive(Debug)]
pub struct UsedBuffer(Buffer);

impl UsedBuffer {
    pub(super) fn new(mut buffer: Buffer) -> Self {
        buffer.zeroing = true;
        Self(buffer)
    }

    pub fn buffer(&self) -> &Buffer {
        &self.0
    }

    /// Gives it back as one that holds zeros, which whoever moved bytes there has made sure of.
    pub fn zeroed(mut self) {
        self.0.zero = true;
    }

    /// Fills it with zeros by this CPU and gives it back.
    pub fn clear(mut self) {
        // Within its own length it cannot fail; if it did, the buffer is what it was.
        self.0.zero = self.0.clear().is_ok();
    }

    /// Says that whoever was to zero it may still write there: it is handed out to nobody again, and its segment stays with the pool.
    pub fn abandon(mut self) {
        self.0.abandoned = true;
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of segment {})", self.index, self.segment.id())
    }
}

/// Bytes of a buffer that nobody writes while any view of it lives; clones share it.
#[derive(Clone, Debug)]
pub struct BufferView {
    buffer: Arc<Buffer>,
    offset: usize,
    length: usize,
}

impl BufferView {
    pub fn length(&self) -> usize {
        self.length
    }

    /// The buffer it is of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where in the buffer it begins, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`].
    pub fn part(&self, offset: usize, length: usize) -> Result<Self, AccessError> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            let offset = offset as u64;
            let length = length as u64;
            let available = self.length as u64;
            return Err(AccessError::OutOfRange { offset, length, available });
        }
        Ok(Self { buffer: Arc::clone(&self.buffer), offset: self.offset + offset, length })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        let part = self.part(offset, bytes.len())?;
        self.buffer.read(part.offset, bytes)
    }
}
