//! Operands: what a caller names memory by, and where it is then moved.
//!
//! ```text
//! Frame, Range, any buffer ─► Part { range of a frame?, memory here?, picture? }
//!     all of them frames of the service ─► its queue
//!     all of them mapped here ───────────► lent to the service in this process, each held until the end
//! ```
//!
//! A view of a frame's own buffer (a NumPy array over it, a slice of its memoryview) is found by its address and is that frame.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use memferry::{Access, CallError, Client, FrameRange, Image, Lent, PixelSize};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::errors;
use crate::frame::{Frame, Range};

/// The mapped frames of a client by their first addresses.
#[derive(Default)]
pub(crate) struct Frames(Mutex<BTreeMap<usize, (usize, memferry::Frame)>>);

impl Frames {
    pub(crate) fn add(&self, start: usize, length: usize, frame: memferry::Frame) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(start, (length, frame));
    }

    pub(crate) fn remove(&self, start: usize) {
        let removed = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
        // Revoked when it is the last, which is a message.
        drop(removed);
    }

    /// The range that these bytes are of a frame.
    fn find(&self, start: usize, length: usize) -> Option<FrameRange> {
        let frames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, (bytes, frame)) = frames.range(..=start).next_back()?;
        let offset = start - base;
        let inside = offset.checked_add(length).is_some_and(|end| end <= *bytes);
        inside.then(|| frame.range(offset as u64, length as u64))
    }
}

/// Memory of this process.
#[derive(Clone, Copy)]
struct Memory {
    start: *mut u8,
    length: usize,
    access: Access,
}

// SAFETY: an address; what may be done with it is decided where it is used.
unsafe impl Send for Memory {}

pub(crate) struct Part {
    range: Option<FrameRange>,
    memory: Option<Memory>,
    buffer: Option<PyUntypedBuffer>,
    /// How its pixels lie, when it has at least two dimensions.
    image: Option<Image>,
    what: &'static str,
}

impl Part {
    /// What `object` names. `to_write`: it is a destination.
    pub(crate) fn of(
        frames: &Frames,
        what: &'static str,
        object: &Bound<'_, PyAny>,
        to_write: bool,
    ) -> PyResult<Self> {
        if let Ok(frame) = object.cast::<Frame>() {
            return Ok(Self::of_range(what, frame.get().frame.all()));
        }
        if let Ok(range) = object.cast::<Range>() {
            return Ok(Self::of_range(what, range.get().range.clone()));
        }
        let buffer = PyUntypedBuffer::get(object).map_err(|error| {
            // What has the protocol says itself why there is no buffer now: it was released or closed, or memory is short.
            if !error.is_instance_of::<PyTypeError>(object.py()) {
                return error;
            }
            let message = format!("{what} is neither a frame nor has it the buffer protocol: {error}");
            PyTypeError::new_err(message)
        })?;
        if to_write && buffer.readonly() {
            return Err(PyBufferError::new_err(format!(
                "{what} may not be written: its buffer is read-only"
            )));
        }
        if names_objects(buffer.format()) {
            return Err(PyBufferError::new_err(format!(
                "{what} holds references to Python objects, which are counted; copy it with Python"
            )));
        }
        let (length, image) = layout(what, &buffer)?;
        let start: *mut u8 = buffer.buf_ptr().cast();
        let access = if to_write { Access::ReadWrite } else { Access::ReadOnly };
        let range = frames.find(start.addr(), length);
        Ok(Self { range, memory: Some(Memory { start, length, access }), buffer: Some(buffer), image, what })
    }

    fn of_range(what: &'static str, range: FrameRange) -> Self {
        let memory = range.frame().pointer().and_then(|(start, length, access)| {
            let offset = usize::try_from(range.offset()).ok()?;
            let bytes = usize::try_from(range.length()).ok()?;
            let inside = offset.checked_add(bytes).is_some_and(|end| end <= length);
            inside.then(|| Memory { start: start.wrapping_add(offset), length: bytes, access })
        });
        Self { range: Some(range), memory, buffer: None, image: None, what }
    }

    /// How its pixels lie.
    pub(crate) fn image(&self) -> PyResult<Image> {
        self.image.ok_or_else(|| {
            let message = format!(
                "{} is no picture: it needs two dimensions of pixels of 1, 2 or 4 bytes, or a third within the pixel; \
                 for a frame, numpy.frombuffer(frame, ...).reshape(height, width)",
                self.what
            );
            PyValueError::new_err(message)
        })
    }
}

/// Whether a format of the buffer protocol (PEP 3118) has an item that is a reference; the names of fields stand between colons.
fn names_objects(format: &CStr) -> bool {
    format.to_bytes().split(|byte| *byte == b':').step_by(2).any(|codes| codes.contains(&b'O'))
}

/// Bytes from the first to the last, and the picture that they are.
fn layout(what: &str, buffer: &PyUntypedBuffer) -> PyResult<(usize, Option<Image>)> {
    let strided = || {
        let message = format!("{what} has gaps within its rows; numpy.ascontiguousarray makes one without");
        PyBufferError::new_err(message)
    };
    if buffer.suboffsets().is_some() {
        return Err(strided());
    }
    let shape = buffer.shape();
    let strides = buffer.strides();
    let item = buffer.item_size();
    let (width, pixel) = match shape {
        [_, width] if strides[1] == item as isize => (*width, item),
        [_, width, queues] if strides[2] == item as isize && strides[1] == (item * queues) as isize => {
            (*width, item * queues)
        }
        _ if buffer.is_c_contiguous() => return Ok((buffer.len_bytes(), None)),
        _ => return Err(strided()),
    };
    let height = shape[0];
    let row = width * pixel;
    let pitch = if height > 1 { strides[0] } else { row as isize };
    let pitch = usize::try_from(pitch).ok().filter(|pitch| *pitch >= row).ok_or_else(strided)?;
    let length = if height == 0 || row == 0 { 0 } else { (height - 1) * pitch + row };
    let image = picture(width, height, pitch, pixel);
    if image.is_none() && !buffer.is_c_contiguous() {
        return Err(strided());
    }
    Ok((length, image))
}

fn picture(width: usize, height: usize, pitch: usize, pixel: usize) -> Option<Image> {
    Some(Image {
        origin: 0,
        width: u32::try_from(width).ok()?,
        height: u32::try_from(height).ok()?,
        pitch_bytes: pitch as u64,
        pixel: PixelSize::from_bytes(pixel as u64)?,
    })
}

/// What a transfer holds besides the frames it names: memory lent for it, and the exports of its buffers.
pub(crate) struct Hold {
    client: Option<Client>,
    lent: Vec<memferry::Frame>,
    /// Frames of another session whose memory was lent.
    kept: Vec<FrameRange>,
    buffers: Vec<PyUntypedBuffer>,
}

impl Hold {
    /// The transfer has ended. Where that says that nothing touches the memory any more, nobody has to be asked; else the drop
    /// asks, and keeps what a failed engine may still write to.
    pub(crate) fn ended(mut self, completion: &memferry::Completion) {
        if completion.is_settled() {
            self.client = None;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // P1: the service lets go of the memory before its export ends.
        let Some(client) = &self.client else { return };
        let touched = |frame: &memferry::Frame| match client.revoke(frame.handle()) {
            Err(error @ CallError::Refused(_)) => !error.is_revoked_before(),
            _ => false,
        };
        // Where a failed engine may still write to it, it stays exported for good. All are revoked first.
        if self.lent.iter().filter(|frame| touched(frame)).count() > 0 {
            std::mem::forget((std::mem::take(&mut self.buffers), std::mem::take(&mut self.kept)));
        }
    }
}

/// Bytes from which lending memory, which takes about 25 microseconds for each range, costs less than workers gain.
const LENDING_PAYS: usize = 4 << 20;
/// Bytes from which other threads may run during a copy.
const LETS_GO: usize = 64 << 10;

/// Copies between memory of this process at once where that takes less than lending it; the bytes copied.
pub(crate) fn copy_here(py: Python<'_>, source: &Part, destination: &Part) -> Option<u64> {
    let frames = source.range.is_some() && destination.range.is_some();
    let from = source.memory?;
    let to = destination.memory?;
    if frames || from.length > to.length || from.length >= LENDING_PAYS || to.access == Access::ReadOnly {
        return None;
    }
    // The fields one by one would be captured as pointers, which may not cross.
    let copy = move || {
        let from = &from;
        let to = &to;
        // SAFETY: P1: the parts hold both ranges; they may overlap.
        unsafe { std::ptr::copy(from.start, to.start, from.length) };
    };
    if from.length >= LETS_GO {
        py.detach(copy)
    } else {
        copy()
    }
    Some(from.length as u64)
}

/// Whether strided rows of a part may be moved as if they were one range.
pub(crate) fn whole(part: &Part) -> PyResult<()> {
    match part.image {
        Some(image)
            if image.height > 1 && image.pitch_bytes != u64::from(image.width) * image.pixel.bytes() =>
        {
            let message = format!(
                "{} has gaps between its rows; use turn for pictures, or numpy.ascontiguousarray",
                part.what
            );
            Err(PyBufferError::new_err(message))
        }
        _ => Ok(()),
    }
}

/// Refuses two that have some bytes in common but do not begin together, where the result would be undefined. What is not mapped
/// here is known by its frame; who names one memory in two ways there is not found out.
pub(crate) fn refuse_partial_overlap(one: &Part, other: &Part) -> PyResult<()> {
    let at = |memory: Memory| (memory.start.addr() as u64, memory.length as u64);
    let ((start, length), (to, written)) = match (one.memory, other.memory, &one.range, &other.range) {
        (Some(one), Some(other), ..) => (at(one), at(other)),
        (.., Some(one), Some(other)) if one.frame().handle() == other.frame().handle() => {
            ((one.offset(), one.length()), (other.offset(), other.length()))
        }
        _ => return Ok(()),
    };
    let apart = start >= to.saturating_add(written) || to >= start.saturating_add(length);
    if apart || start == to {
        return Ok(());
    }
    let message = format!("{} and {} overlap in part; the result would be undefined", one.what, other.what);
    Err(PyValueError::new_err(message))
}

/// Where the parts are moved: by the service when all are its frames, else by the one in this process.
pub(crate) fn by_service(parts: &[Part]) -> bool {
    parts.iter().all(|part| part.range.is_some())
}

/// The ranges the transfer names, and what it holds. `own`: the parts' frames are `client`'s.
pub(crate) fn place(client: &Client, own: bool, parts: Vec<Part>) -> PyResult<(Vec<FrameRange>, Hold)> {
    let mut hold =
        Hold { client: Some(client.clone()), lent: Vec::new(), kept: Vec::new(), buffers: Vec::new() };
    let mut ranges = Vec::with_capacity(parts.len());
    for part in parts {
        match part.range {
            // The range keeps its memory. An export would keep the Python frame, and with it the client that keeps this.
            Some(range) if own => {
                ranges.push(range);
                continue;
            }
            Some(range) => hold.kept.push(range),
            None => hold.buffers.extend(part.buffer),
        }
        let Some(Memory { start, length, access }) = part.memory else {
            let message = format!("{} is not mapped here; copy between frames", part.what);
            return Err(PyValueError::new_err(message));
        };
        // SAFETY: P1: the export (or the frame, which the caller's range keeps) holds the memory until `hold` has been
        // dropped, and that revokes the frame first. Python code may look at the bytes meanwhile, as it may at any buffer.
        let lent = unsafe { Lent::new(start, length, access) };
        let lent = lent.ok_or_else(|| PyBufferError::new_err(format!("{} has no memory", part.what)))?;
        let frame = client.register_lent(lent).map_err(errors::of_frame)?;
        ranges.push(frame.all());
        hold.lent.push(frame);
    }
    Ok((ranges, hold))
}
