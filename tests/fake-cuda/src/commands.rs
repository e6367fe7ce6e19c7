//! What the threads of streams do.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::codes::{Code, ILLEGAL_ADDRESS, INVALID_VALUE};
use crate::modules;
use crate::space::{Kind, Space, space};

/// Bytes of a word that a stream writes.
pub(crate) const WORD_BYTES: u64 = 4;

/// One range to another of the same length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) length: u64,
}

/// Elements of 1, 2 or 4 bytes in rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) to: u64,
    pub(crate) value: u32,
    pub(crate) width: u64,
    pub(crate) elements: u64,
    pub(crate) rows: u64,
    pub(crate) pitch: u64,
}

#[derive(Debug)]
pub(crate) enum Command {
    Copies(Vec<Copy>),
    Fill(Fill),
    Write32 { to: u64, value: u32 },
    Gather { table: u64, count: u32 },
}

impl Command {
    /// Runs it on the stream's thread. An error here loses the context.
    pub(crate) fn run(&self) -> Result<(), Code> {
        let space = space().read();
        let done = match self {
            Self::Copies(copies) => copies.iter().try_for_each(|copy| copy.run(&space)),
            Self::Fill(fill) => fill.run(&space),
            Self::Write32 { to, value } => write(&space, *to, *value),
            Self::Gather { table, count } => modules::gather(&space, *table, *count),
        };
        done.map_err(|_| ILLEGAL_ADDRESS)
    }
}

impl Copy {
    /// Whether the driver takes it, and whether one side is memory that it would first have to copy elsewhere.
    pub(crate) fn check(&self, space: &Space) -> Result<IsPageable, Code> {
        let from = space.find(self.from, self.length, false)?;
        let to = space.find(self.to, self.length, true)?;
        let distance = (from.pointer as u64).abs_diff(to.pointer as u64);
        if distance < self.length {
            return Err(INVALID_VALUE);
        }
        Ok(IsPageable(from.kind == Kind::Pageable || to.kind == Kind::Pageable))
    }

    pub(crate) fn run(&self, space: &Space) -> Result<(), Code> {
        let from = space.find(self.from, self.length, false)?;
        let to = space.find(self.to, self.length, true)?;
        // SAFETY: the table has both ranges and does not change while this guard of it lives; pageable memory is the caller's,
        // who waits for this copy in the call itself.
        unsafe { std::ptr::copy(from.pointer, to.pointer, self.length as usize) };
        Ok(())
    }
}

/// Whether a copy has a side that is not pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IsPageable(pub(crate) bool);

impl Fill {
    pub(crate) fn check(&self, space: &Space) -> Result<(), Code> {
        let row_bytes = self.width.checked_mul(self.elements).ok_or(INVALID_VALUE)?;
        let is_aligned = self.to.is_multiple_of(self.width) && self.pitch.is_multiple_of(self.width);
        if !is_aligned || self.rows == 0 || self.elements == 0 || (self.rows > 1 && self.pitch < row_bytes) {
            return Err(INVALID_VALUE);
        }
        self.rows(|row| space.find_by_device(row, row_bytes, true).map(|_| ()))
    }

    fn run(&self, space: &Space) -> Result<(), Code> {
        let bytes = self.value.to_le_bytes();
        let row_bytes = self.width * self.elements;
        self.rows(|row| {
            let found = space.find_by_device(row, row_bytes, true)?;
            for at in 0..row_bytes {
                // SAFETY: the table has the range, and does not change while this guard of it lives.
                unsafe { found.pointer.add(at as usize).write(bytes[(at % self.width) as usize]) };
            }
            Ok(())
        })
    }

    fn rows(&self, each: impl FnMut(u64) -> Result<(), Code>) -> Result<(), Code> {
        (0..self.rows).map(|row| self.to + row * self.pitch).try_for_each(each)
    }
}

/// Writes a word. A thread that reads the value also sees everything that the stream wrote before.
fn write(space: &Space, to: u64, value: u32) -> Result<(), Code> {
    let found = space.find_by_device(to, WORD_BYTES, true)?;
    // SAFETY: the table has the word, which was checked to be aligned.
    unsafe { AtomicU32::from_ptr(found.pointer.cast()) }.store(value, Ordering::SeqCst);
    Ok(())
}
