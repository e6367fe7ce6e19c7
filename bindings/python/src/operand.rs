//! Operands: the memory that a transfer names, and the service that moves it.
//!
//! ```text
//! Frame, Region, any buffer ─► Part { region of a frame?, memory here?, picture? }
//!     all of them frames of the service ─► its queue
//!     all of them mapped here ───────────► lent to the service in this process, each held until the end
//! ```
//!
//! A view of a frame's own buffer (a NumPy array over it, a slice of its memoryview) is found by its address and is that frame.

use std::ffi::CStr;

use memferry::{Access, CallError, Client, FrameError, Lent, Refusal, RefusalKind};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::errors;
use crate::frame::{Frame, Region};
use crate::picture::{Extent, Picture};
use crate::registry::FrameRegistry;

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
    region: Option<memferry::Region>,
    memory: Option<Memory>,
    buffer: Option<PyUntypedBuffer>,
    /// Its layout, when it has two dimensions of pixels.
    picture: Option<Picture>,
    what: &'static str,
}

impl Part {
    /// The memory that `object` names. `to_write`: it is a destination.
    pub(crate) fn of(
        frames: &FrameRegistry,
        what: &'static str,
        object: &Bound<'_, PyAny>,
        to_write: bool,
    ) -> PyResult<Self> {
        if let Ok(frame) = object.cast::<Frame>() {
            return Ok(Self::of_region(what, memferry::Region::from(&*frame.get().frame)));
        }
        if let Ok(region) = object.cast::<Region>() {
            return Ok(Self::of_region(what, region.get().region.clone()));
        }
        let buffer = PyUntypedBuffer::get(object).map_err(|error| {
            // An object with the protocol says itself why it has no buffer now: it was released or closed, or memory is short.
            if !error.is_instance_of::<PyTypeError>(object.py()) {
                return error;
            }
            let message =
                format!("{what} is neither a frame nor an object with the buffer protocol: {error}");
            PyTypeError::new_err(message)
        })?;
        if to_write && buffer.readonly() {
            return Err(PyBufferError::new_err(format!(
                "{what} may not be written: its buffer is read-only"
            )));
        }
        if names_objects(buffer.format()) {
            return Err(PyBufferError::new_err(format!(
                "{what} holds references to Python objects, which are counted; copy them in Python"
            )));
        }
        let (Extent { below, length }, picture) = layout(what, &buffer)?;
        let first: *mut u8 = buffer.buf_ptr().cast();
        let last = first.addr().checked_sub(below).and_then(|lowest| lowest.checked_add(length));
        if last.is_none_or(|last| isize::try_from(last).is_err()) {
            return Err(PyBufferError::new_err(format!("{what} reaches beyond all memory")));
        }
        let start = first.wrapping_sub(below);
        let access = if to_write { Access::ReadWrite } else { Access::ReadOnly };
        let region = frames.find(start.addr(), length);
        Ok(Self {
            region,
            memory: Some(Memory { start, length, access }),
            buffer: Some(buffer),
            picture,
            what,
        })
    }

    fn of_region(what: &'static str, region: memferry::Region) -> Self {
        let memory = region.frame().pointer().and_then(|(start, length, access)| {
            let offset = usize::try_from(region.offset()).ok()?;
            let bytes = usize::try_from(region.length()).ok()?;
            let inside = offset.checked_add(bytes).is_some_and(|end| end <= length);
            inside.then(|| Memory { start: start.wrapping_add(offset), length: bytes, access })
        });
        Self { region: Some(region), memory, buffer: None, picture: None, what }
    }

    /// Its layout as a picture.
    pub(crate) fn picture(&self) -> PyResult<Picture> {
        self.picture.ok_or_else(|| {
            let message = format!(
                "{} is no picture: it needs two dimensions of pixels, or a third without gaps within the pixel; for a frame, \
                 numpy.frombuffer(frame, ...).reshape(height, width)",
                self.what
            );
            PyValueError::new_err(message)
        })
    }

    /// The address of its lowest byte.
    pub(crate) fn address(&self) -> Option<usize> {
        self.memory.map(|memory| memory.start.addr())
    }
}

/// Whether a format of the buffer protocol (PEP 3118) has an item that is a reference; the names of fields stand between colons.
fn names_objects(format: &CStr) -> bool {
    format.to_bytes().split(|byte| *byte == b':').step_by(2).any(|codes| codes.contains(&b'O'))
}

/// Bytes from the lowest to the highest, and their layout as a picture. The shape may be any numbers: buffers with strides of
/// their own are easily made, by `numpy.lib.stride_tricks` for example.
fn layout(what: &str, buffer: &PyUntypedBuffer) -> PyResult<(Extent, Option<Picture>)> {
    let strided = || {
        let message = format!("{what} has gaps between its items; numpy.ascontiguousarray makes one without");
        PyBufferError::new_err(message)
    };
    if buffer.suboffsets().is_some() {
        return Err(strided());
    }
    match Picture::of(buffer.shape(), buffer.strides(), buffer.item_size()) {
        Some((picture, extent)) => Ok((extent, Some(picture))),
        None if buffer.is_c_contiguous() => Ok((Extent { below: 0, length: buffer.len_bytes() }, None)),
        None => Err(strided()),
    }
}

/// What a transfer holds besides the frames it names: memory lent for it, and the exports of its buffers.
pub(crate) struct Hold {
    /// Nothing touches the memory any more.
    is_settled: bool,
    lent: Vec<memferry::Frame>,
    /// Frames of another session whose memory was lent.
    kept: Vec<memferry::Region>,
    buffers: Vec<PyUntypedBuffer>,
}

impl Hold {
    pub(crate) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// The transfer has ended. `is_settled`: nothing touches the memory any more, so the drop need not ask the service; else
    /// it asks, and keeps what a failed engine may still write to.
    pub(crate) fn release(mut self, is_settled: bool) {
        self.is_settled = is_settled;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // P1: the service lets go of the memory before its export ends.
        if self.is_settled {
            return;
        }
        let touched = |frame: &memferry::Frame| match frame.revoke() {
            Err(error @ CallError::Refused(_)) => !error.is_revoked_before(),
            _ => false,
        };
        // Memory that a failed engine may still write to stays exported for good. All are revoked first.
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
    let frames = source.region.is_some() && destination.region.is_some();
    let from = source.memory?;
    let to = destination.memory?;
    if frames || from.length > to.length || from.length >= LENDING_PAYS || to.access == Access::ReadOnly {
        return None;
    }
    // Captured whole: their pointers alone may not cross threads.
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

/// Refuses a part whose rows or pixels have gaps or run backwards, which cannot be moved as one range.
pub(crate) fn refuse_gaps(part: &Part) -> PyResult<()> {
    if part.picture.is_none_or(|picture| picture.is_contiguous()) {
        return Ok(());
    }
    let message = format!(
        "{} has gaps between its rows or pixels, or runs backwards; use turn for pictures, or numpy.ascontiguousarray",
        part.what
    );
    Err(PyBufferError::new_err(message))
}

/// Whether all parts are frames, which the client's service moves. Other memory is moved in this process.
pub(crate) fn are_frames(parts: &[Part]) -> bool {
    parts.iter().all(|part| part.region.is_some())
}

/// Why memory could not be lent.
pub(crate) enum Unplaced {
    /// The memory of other transfers uses up a quota.
    Quota(PyErr),
    Refused(PyErr),
}

impl From<PyErr> for Unplaced {
    fn from(error: PyErr) -> Self {
        Self::Refused(error)
    }
}

impl From<FrameError> for Unplaced {
    fn from(error: FrameError) -> Self {
        let is_quota =
            matches!(error, FrameError::Call(CallError::Refused(Refusal { kind: RefusalKind::Quota, .. })));
        let error = errors::of_frame(error);
        if is_quota { Self::Quota(error) } else { Self::Refused(error) }
    }
}

/// The regions the transfer names, and what it holds. `own`: the parts' frames are `client`'s.
pub(crate) fn place(
    client: &Client,
    own: bool,
    parts: Vec<Part>,
) -> Result<(Vec<memferry::Region>, Hold), Unplaced> {
    let mut hold = Hold { is_settled: false, lent: Vec::new(), kept: Vec::new(), buffers: Vec::new() };
    let mut places = Vec::with_capacity(parts.len());
    for part in parts {
        match part.region {
            // The region keeps its memory. An export would keep the Python frame, and with it the client that keeps this.
            Some(region) if own => {
                places.push(Place::Known(region));
                continue;
            }
            Some(region) => hold.kept.push(region),
            None => hold.buffers.extend(part.buffer),
        }
        let Some(memory) = part.memory else {
            let message = format!("{} is not mapped here; copy between frames", part.what);
            return Err(PyValueError::new_err(message).into());
        };
        places.push(Place::Lent(memory));
    }
    let pieces = pieces_of(&places);
    for Memory { start, length, access } in pieces.iter().copied() {
        // SAFETY: P1: the exports (or the frames, which the caller's regions keep) hold the memory until `hold` has been
        // dropped, and that revokes the frame first. Python code may look at the bytes meanwhile, as it may at any buffer.
        let lent = unsafe { Lent::new(start, length, access) };
        let lent = lent.ok_or_else(|| PyBufferError::new_err("an operand has no memory"))?;
        hold.lent.push(client.register_lent(lent)?);
    }
    let region = |place| match place {
        Place::Known(region) => region,
        Place::Lent(memory) => {
            // The last piece that begins before the memory, or with it: pieces overlap nowhere.
            let index = pieces.partition_point(|piece| piece.start <= memory.start).saturating_sub(1);
            let offset = memory.start.addr().saturating_sub(pieces[index].start.addr()) as u64;
            hold.lent[index].slice(offset..offset + memory.length as u64)
        }
    };
    let regions = places.into_iter().map(region).collect();
    Ok((regions, hold))
}

enum Place {
    Known(memferry::Region),
    Lent(Memory),
}

/// The memory to lend, in order of addresses. Parts that overlap are one piece, for the service recognises an overlap only
/// within one registration.
fn pieces_of(places: &[Place]) -> Vec<Memory> {
    let memory = |place: &Place| if let Place::Lent(memory) = place { Some(*memory) } else { None };
    let mut all: Vec<Memory> = places.iter().filter_map(memory).collect();
    all.sort_by_key(|memory| memory.start);
    let mut pieces: Vec<Memory> = Vec::with_capacity(all.len());
    for memory in all {
        match pieces.last_mut() {
            Some(piece) if memory.start.addr() - piece.start.addr() < piece.length => {
                let end = memory.start.addr().saturating_add(memory.length);
                piece.length = piece.length.max(end - piece.start.addr());
                if memory.access == Access::ReadWrite {
                    piece.access = Access::ReadWrite;
                }
            }
            _ => pieces.push(memory),
        }
    }
    pieces
}
