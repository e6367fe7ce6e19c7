//! One buffer of a pool, and read-only views of its bytes.
//!
//! ```text
//! Buffer (one owner) ─ write, read a file into it ─ share ─► BufferView, clones ─ last one dropped ─► pool
//! UsedBuffer (being zeroed) ─ zeroed ─► pool, as a zero buffer        ─ dropped ─► pool, as a used buffer
//!                           └ abandoned ─► set aside: never handed out again
//! ```
//!
//! Bytes go in and out by raw copies (M2), because other processes may map the segment.

use std::fmt;
use std::sync::Arc;

use super::{Pool, Segment};
use memferry_shm::mapping::AccessError;

/// A buffer in use. Dropping it returns it to the pool.
pub struct Buffer {
    pool: Pool,
    segment: Arc<Segment>,
    index: u32,
    /// The drop returns it as a zero buffer.
    zero: bool,
    /// It is the buffer of a [`UsedBuffer`].
    zeroing: bool,
    /// A transfer may still write it, so the drop sets it aside.
    abandoned: bool,
}

impl Buffer {
    pub(super) fn new(pool: Pool, segment: Arc<Segment>, index: u32) -> Self {
        Self { pool, segment, index, zero: false, zeroing: false, abandoned: false }
    }

    pub fn length(&self) -> usize {
        self.segment.buffer_bytes()
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Its index among the segment's buffers.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The address of the first byte. Unsafe code that uses it stays inside the buffer and copies raw (P, M2).
    pub fn pointer(&self) -> *mut u8 {
        self.segment.mapping().pointer().wrapping_add(self.segment.offset_of(self.index))
    }

    /// Checks that `length` bytes at `offset` lie in the buffer.
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

    /// Copies bytes out of the buffer.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, bytes.len())?;
        self.segment.mapping().read((self.segment.offset_of(self.index) + offset) as u64, bytes)
    }

    /// Copies bytes into the buffer.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.check(offset, bytes.len())?;
        self.segment.mapping().write((self.segment.offset_of(self.index) + offset) as u64, bytes)
    }

    /// Fills the buffer with zeros.
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

    /// Turns the buffer into a read-only view of `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`]; the buffer is then returned to the pool.
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

/// A free buffer with bytes of its last user, taken to be zeroed. [`zeroed`](Self::zeroed) returns it as a zero buffer, and a
/// drop returns it as a used one.
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

    /// Returns it as a zero buffer. The caller must have filled all of it with zeros.
    pub fn zeroed(mut self) {
        self.0.zero = true;
    }

    /// Fills it with zeros on the calling CPU and returns it.
    pub fn clear(mut self) {
        // Cannot fail: the range is the buffer's whole length. A failure would return it as a used buffer.
        self.0.zero = self.0.clear().is_ok();
    }

    /// Sets it aside because the transfer that was to zero it may still write it. It is never handed out again, and its
    /// segment stays with the pool.
    pub fn abandon(mut self) {
        self.0.abandoned = true;
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of segment {})", self.index, self.segment.id())
    }
}

/// Bytes of a buffer that is not written while a view of it lives. Clones share the buffer.
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

    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Offset of the first byte in the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// A view of `length` bytes at `offset` of this view.
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

    /// Copies bytes out of the view.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        let part = self.part(offset, bytes.len())?;
        self.buffer.read(part.offset, bytes)
    }
}
