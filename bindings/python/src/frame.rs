//! Frames as Python objects: bytes that the service may move, with the buffer protocol.
//!
//! ```text
//! Frame ─ memoryview, numpy.frombuffer ─► views that keep it alive        Frame.range ─► Range, an operand
//! ```
//!
//! A frame that was accepted from another client is not mapped here and has no buffer.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use memferry::{Access, FrameRange, Rights};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::shared::Shared;

/// Memory the service may move bytes in. It has the buffer protocol, unless it was accepted from another client.
#[pyclass(frozen, module = "memferry")]
pub struct Frame {
    pub(crate) shared: Arc<Shared>,
    /// Dropped without the interpreter's lock.
    pub(crate) frame: ManuallyDrop<memferry::Frame>,
}

impl Frame {
    pub(crate) fn new(shared: Arc<Shared>, frame: memferry::Frame) -> Self {
        if let Some((start, length, _)) = frame.pointer() {
            shared.frames.add(start.addr(), length, frame.clone());
        }
        Self { shared, frame: ManuallyDrop::new(frame) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: taken here only, and not used after.
        let frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        // In a forked child a thread of the parent may hold the lock for ever; the frame is the parent's, and nobody is told.
        if self.shared.is_forked() {
            return;
        }
        if let Some((start, ..)) = frame.pointer() {
            self.shared.frames.remove(start.addr());
        }
        // The service revokes it, which waits for transfers that use it.
        Python::attach(|py| py.detach(|| drop(frame)));
    }
}

fn letters(rights: Rights) -> String {
    let known = [(Rights::READ, 'r'), (Rights::WRITE, 'w'), (Rights::GRANT, 'g')];
    known.into_iter().filter(|(right, _)| rights.contains(*right)).map(|(_, letter)| letter).collect()
}

#[pymethods]
impl Frame {
    fn __len__(&self) -> PyResult<usize> {
        usize::try_from(self.frame.length()).map_err(|_| PyValueError::new_err("longer than any memory"))
    }

    /// What may be done with it: letters of "rwg", to read, to write, to grant.
    #[getter]
    fn rights(&self) -> String {
        letters(self.frame.rights())
    }

    /// Whether it is mapped in this process and so has a buffer.
    #[getter]
    fn mapped(&self) -> bool {
        self.frame.pointer().is_some()
    }

    /// The session that granted it, of a frame that was accepted; else `None`. A token alone does not tell.
    #[getter]
    fn grantor(&self) -> Option<u64> {
        self.frame.grantor().map(|session| session.0)
    }

    /// A part of it, as an operand or to be granted.
    #[pyo3(signature = (offset, length))]
    fn range(slf: Bound<'_, Self>, offset: u64, length: u64) -> PyResult<Range> {
        let range = slf.get().frame.range(offset, length);
        let inside = offset.checked_add(length).is_some_and(|end| end <= slf.get().frame.length());
        if !inside {
            let available = slf.get().frame.length();
            let message = format!("{length} bytes at offset {offset} leave the frame's {available}");
            return Err(PyValueError::new_err(message));
        }
        Ok(Range { range, _frame: slf.unbind() })
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Frame of {} bytes, {}>", self.frame.length(), letters(self.frame.rights()))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let Some((start, length, access)) = slf.get().frame.pointer() else {
            return Err(PyBufferError::new_err(
                "a frame of another client is not mapped here; copy it to one that is",
            ));
        };
        let length = isize::try_from(length).map_err(|_| PyBufferError::new_err("longer than any memory"))?;
        let read_only = c_int::from(access == Access::ReadOnly);
        // SAFETY: P1: the view holds the object, which holds the frame, which keeps these bytes mapped; `view` is the
        // interpreter's.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), length, read_only, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// A part of a frame.
#[pyclass(frozen, module = "memferry")]
pub struct Range {
    pub(crate) range: FrameRange,
    /// So that the frame is known as long as its parts are.
    _frame: Py<Frame>,
}

#[pymethods]
impl Range {
    fn __len__(&self) -> PyResult<usize> {
        usize::try_from(self.range.length()).map_err(|_| PyValueError::new_err("longer than any memory"))
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Range of {} bytes at {}>", self.range.length(), self.range.offset())
    }
}
