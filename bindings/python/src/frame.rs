//! Frames as Python objects: bytes that the service may move, with the buffer protocol.
//!
//! ```text
//! Frame ─ memoryview, numpy.frombuffer ─► views that keep it alive        frame[a:b] ─► Region ─ region[c:d] ─► Region
//! Frame ─ __dlpack__, __cuda_array_interface__ ─► tensors of other libraries, also over memory of a GPU
//! ```
//!
//! A frame that was accepted from another client is not mapped here and has no buffer.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use memferry::{Access, Rights};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyOverflowError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PySlice};

use crate::errors::RefusedError;
use crate::export::{self, CPU, CUDA, Exported};
use crate::session::Session;

/// Memory that the service may move bytes in. `frame[a:b]` is a part of it, in bytes; other steps and parts outside are a
/// ValueError. It has the buffer protocol, of unsigned bytes (`numpy.frombuffer` gives it a dtype), unless it was accepted
/// from another client or has a home: then BufferError. `numpy.from_dlpack`, and for memory of a GPU `torch.from_dlpack` and
/// `cupy.asarray`, make arrays of it without a copy.
#[pyclass(frozen, module = "memferry")]
pub struct Frame {
    pub(crate) session: Arc<Session>,
    /// Dropped without the interpreter's lock.
    pub(crate) frame: ManuallyDrop<memferry::Frame>,
    /// Its memory at a GPU, mapped here when it is first used so.
    cuda: PyOnceLock<Py<PyAny>>,
}

impl Frame {
    pub(crate) fn new(session: Arc<Session>, frame: memferry::Frame) -> Self {
        if let Some((start, length, _)) = frame.pointer() {
            session.frames.add(start.addr(), length, frame.clone());
        }
        Self { session, frame: ManuallyDrop::new(frame), cuda: PyOnceLock::new() }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: P1: taken here only, and not used after.
        let frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        // In a forked child a thread that only the parent has may hold the registry's lock. The frame is the parent's.
        if self.session.home.is_forked() {
            return;
        }
        if let Some((start, ..)) = frame.pointer() {
            self.session.frames.remove(start.addr());
        }
        // The service revokes it, which waits for transfers that use it.
        Python::attach(|py| py.detach(|| drop(frame)));
    }
}

fn letters(rights: Rights) -> String {
    let known = [(Rights::READ, 'r'), (Rights::WRITE, 'w'), (Rights::GRANT, 'g'), (Rights::DIRECT, 'd')];
    known.into_iter().filter(|(right, _)| rights.contains(*right)).map(|(_, letter)| letter).collect()
}

/// A length as Python has lengths.
fn length_of(bytes: u64) -> PyResult<usize> {
    usize::try_from(bytes).map_err(|_| PyValueError::new_err("longer than any memory"))
}

/// A bound of a slice, counted from the end where it is negative; `None` where no memory has that many bytes.
fn bound(slice: &Bound<'_, PySlice>, name: &str, length: i64, default: i64) -> PyResult<Option<i64>> {
    let given = slice.getattr(name)?;
    if given.is_none() {
        return Ok(Some(default));
    }
    match given.extract::<i64>() {
        Ok(bound) if bound < 0 => Ok(bound.checked_add(length)),
        Ok(bound) => Ok(Some(bound)),
        Err(error) if error.is_instance_of::<PyOverflowError>(slice.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// First byte and end of a slice of `length` bytes. Unlike a slice of `bytes` it has to lie inside.
fn bounds(slice: &Bound<'_, PySlice>, length: u64) -> PyResult<(u64, u64)> {
    let step = slice.getattr("step")?;
    if !step.is_none() && !step.eq(1)? {
        return Err(PyValueError::new_err("a slice of a frame has no step"));
    }
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let start = bound(slice, "start", length, 0)?;
    let end = bound(slice, "stop", length, length)?;
    match (start, end) {
        (Some(start), Some(end)) if 0 <= start && start <= end && end <= length => {
            Ok((start.unsigned_abs(), end.unsigned_abs()))
        }
        _ => {
            let message =
                format!("{slice} is no part of {length} bytes; it has to begin, and end after that, inside");
            Err(PyValueError::new_err(message))
        }
    }
}

fn not_a_gpu() -> PyErr {
    PyBufferError::new_err(
        "the frame's engine has no memory of a GPU; map what `export` gives, or copy the frame to one in memory of the host",
    )
}

impl Frame {
    /// Its memory at a GPU, mapped in this process; `None` for memory of another kind.
    fn cuda<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.session.home.check()?;
        if let Some(memory) = self.cuda.get(py) {
            return Ok(Some(memory.bind(py).clone()));
        }
        let exported = self.export(py)?;
        if !exported.is_cuda() {
            return Ok(None);
        }
        let exported = Bound::new(py, exported)?;
        let memory = py.import("memferry._cuda")?.getattr("Memory")?.call1((exported,))?;
        // Another thread may have been faster: then this mapping ends at once.
        let kept = self.cuda.get_or_init(py, || memory.unbind());
        Ok(Some(kept.bind(py).clone()))
    }
}

#[pymethods]
impl Frame {
    fn __len__(&self) -> PyResult<usize> {
        length_of(self.frame.length())
    }

    /// The allowed uses, letters of "rwgd": to read, to write, to grant, and to grant for use in place by another node.
    #[getter]
    fn rights(&self) -> String {
        letters(self.frame.rights())
    }

    /// Whether it is mapped in this process and so has a buffer.
    #[getter]
    fn mapped(&self) -> bool {
        self.frame.pointer().is_some()
    }

    /// The session that granted an accepted frame; else `None`. A token alone does not identify its grantor.
    #[getter]
    fn grantor(&self) -> Option<u64> {
        self.frame.grantor().map(|session| session.0)
    }

    /// Its bytes from `a` up to `b`, for `frame[a:b]`.
    fn __getitem__(slf: Bound<'_, Self>, part: &Bound<'_, PySlice>) -> PyResult<Region> {
        let (start, end) = bounds(part, slf.get().frame.length())?;
        Ok(Region { region: slf.get().frame.slice(start..end), frame: slf.unbind() })
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Frame of {} bytes, {}>", self.frame.length(), letters(self.frame.rights()))
    }

    /// A descriptor of the memory of a frame with a home, for this process to map. It cannot be taken back: the memory stays until the
    /// descriptor and all mappings of it are gone, also when the frame is. Only the client that allocated the frame gets it. For
    /// memory of a GPU, `torch.from_dlpack(frame)` and `cupy.asarray(frame)` do the rest.
    ///
    /// Raises RefusedError for memory of the host, for a frame that was accepted, and if the engine does not export its memory, is gone
    /// or too late.
    fn export(&self, py: Python<'_>) -> PyResult<Exported> {
        self.session.home.check()?;
        let exported = py.detach(|| self.frame.export()).map_err(export::of_export)?;
        Ok(exported.into())
    }

    /// The CUDA array interface, version 3, of unsigned bytes: the memory is mapped in this process, and stays with this frame.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // Libraries ask every object whether it has this attribute.
        let none = || PyAttributeError::new_err("the frame does not lie in memory of a GPU");
        if self.frame.pointer().is_some() || self.frame.grantor().is_some() {
            return Err(none());
        }
        let memory = self.cuda(py).map_err(|error| {
            if !error.is_instance_of::<RefusedError>(py) {
                return error;
            }
            let refused = PyAttributeError::new_err(error.value(py).to_string());
            refused.set_cause(py, Some(error));
            refused
        });
        let memory = memory?.ok_or_else(none)?;
        let pointer: usize = memory.getattr("pointer")?.extract()?;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.frame.length(),))?;
        interface.set_item("data", (pointer, false))?;
        interface.set_item("strides", py.None())?;
        // Nothing is under way on a stream of this process: transfers end by their completions.
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    /// Type and number of the device, for DLPack: 1 memory of the host, 2 a GPU by its number in this process.
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        if self.frame.pointer().is_some() {
            return Ok((CPU, 0));
        }
        let memory = self.cuda(py)?.ok_or_else(not_a_gpu)?;
        Ok((CUDA, memory.getattr("ordinal")?.extract()?))
    }

    /// A capsule of the frame's bytes, for DLPack: unsigned bytes, one dimension, no copy. Streams do not matter, because transfers end
    /// by their completions: wait for those that write the frame before.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let _any = (stream, max_version);
        if copy == Some(true) {
            return Err(PyBufferError::new_err("a frame makes no copy; copy the array made of it"));
        }
        let this = slf.get();
        let device = this.__dlpack_device__(py)?;
        if let Some(wanted) = dl_device.filter(|wanted| *wanted != device) {
            let message = format!(
                "the frame is on device {device:?} and not moved to {wanted:?}; copy it by a transfer"
            );
            return Err(PyBufferError::new_err(message));
        }
        let length = i64::try_from(this.frame.length())
            .map_err(|_| PyBufferError::new_err("longer than any memory"))?;
        if let Some((start, _, access)) = this.frame.pointer() {
            if access == Access::ReadOnly {
                return Err(PyBufferError::new_err(
                    "the frame is read-only, which DLPack without versions cannot say; use the buffer protocol",
                ));
            }
            let data = start.expose_provenance();
            return export::capsule(py, (data, length), device, slf.clone().into_any().unbind());
        }
        let memory = this.cuda(py)?.ok_or_else(not_a_gpu)?;
        let data: usize = memory.getattr("pointer")?.extract()?;
        export::capsule(py, (data, length), device, memory.unbind())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let Some((start, length, access)) = slf.get().frame.pointer() else {
            return Err(PyBufferError::new_err(
                "a frame of another client or with a home is not mapped here; copy it to one that is",
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

/// A part of a frame, made by `frame[a:b]`; slices of it count from its first byte.
#[pyclass(frozen, module = "memferry")]
pub struct Region {
    pub(crate) region: memferry::Region,
    /// Keeps the frame registered as long as its parts are.
    frame: Py<Frame>,
}

#[pymethods]
impl Region {
    fn __len__(&self) -> PyResult<usize> {
        length_of(self.region.length())
    }

    /// The frame it is a part of.
    #[getter]
    fn frame(&self, py: Python<'_>) -> Py<Frame> {
        self.frame.clone_ref(py)
    }

    /// Its first byte, counted from the frame's start.
    #[getter]
    fn offset(&self) -> u64 {
        self.region.offset()
    }

    /// A part of it, counted from its first byte.
    fn __getitem__(&self, py: Python<'_>, part: &Bound<'_, PySlice>) -> PyResult<Self> {
        let (start, end) = bounds(part, self.region.length())?;
        let first = self.region.offset();
        Ok(Self {
            region: self.region.frame().slice(first + start..first + end),
            frame: self.frame.clone_ref(py),
        })
    }

    fn __repr__(&self) -> String {
        format!("<memferry.Region of {} bytes at {}>", self.region.length(), self.region.offset())
    }
}
