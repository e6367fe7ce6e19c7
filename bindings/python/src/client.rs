//! The client as a Python object: memory, grants, and one method for each kind of transfer.
//!
//! ```text
//! connect(path?) ─► Client ─ allocate, grant, accept ─► Frame
//!                     └ copy, fill, turn, overlay, ... ─ parts placed ─► Transfer
//! with Client: waits for what is outstanding at the end, cancels it first after an exception
//! ```
//!
//! What it shares with its frames and transfers, and how these are submitted, is in `shared`.

use std::sync::Arc;

use memferry::{ForkGuard, Grantee, Handle, Image, SessionId, Transfer, Turn, turned_copy};
use memferry_transfer::{MAX_SEGMENTS, MAX_SOURCES};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::arguments::{Terms, color, letters, pattern, turn_named};
use crate::errors;
use crate::frame::{Frame, Range};
use crate::operand::{Part, copy_here, refuse_partial_overlap, whole};
use crate::shared::Shared;
use crate::transfer::NativeTransfer;

/// A session with a service. `connect` opens one. When it is let go of with its frames and transfers, that waits for what still
/// runs, a minute at most.
#[pyclass(frozen, module = "memferry")]
pub struct Client {
    shared: Arc<Shared>,
}

/// Opens a session with the service that listens on `path`, or with the one inside this process. Up to `capacity` transfers
/// may be outstanding, a power of two.
#[pyfunction]
#[pyo3(signature = (path=None, *, capacity=256))]
pub(crate) fn connect(py: Python<'_>, path: Option<std::path::PathBuf>, capacity: u32) -> PyResult<Client> {
    let guard = ForkGuard::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
    // A service that is stopped in a debugger, or starts, answers late: other threads go on meanwhile.
    let client = py.detach(|| match path {
        Some(path) => memferry::Client::connect(path),
        None => memferry::Client::embedded(),
    });
    let client = client.map_err(errors::of_connect)?;
    let shared = py.detach(|| Shared::open(guard, client, capacity))?;
    Ok(Client { shared: Arc::new(shared) })
}

impl Client {
    fn part(&self, what: &'static str, object: &Bound<'_, PyAny>, to_write: bool) -> PyResult<Part> {
        self.shared.check_fork()?;
        Part::of(&self.shared.frames, what, object, to_write)
    }

    /// A part without gaps.
    fn bytes(&self, what: &'static str, object: &Bound<'_, PyAny>, to_write: bool) -> PyResult<Part> {
        let part = self.part(what, object, to_write)?;
        whole(&part)?;
        Ok(part)
    }

    fn list(
        &self,
        what: &'static str,
        objects: &[Bound<'_, PyAny>],
        to_write: bool,
        most: usize,
    ) -> PyResult<Vec<Part>> {
        // Before any of them is lent.
        if objects.len() > most {
            let count = objects.len();
            return Err(PyValueError::new_err(format!(
                "{count} times {what}; there may be {most}, split it"
            )));
        }
        objects.iter().map(|object| self.bytes(what, object, to_write)).collect()
    }

    fn move_picture(
        &self,
        parts: (Part, Part),
        terms: &Terms,
        shape: impl FnOnce(Image, Image) -> PyResult<memferry::Copy2d>,
    ) -> PyResult<NativeTransfer> {
        let (from, to) = parts;
        let shape = shape(from.image()?, to.image()?)?;
        self.shared
            .submit(vec![from, to], terms, |ranges| Ok(Transfer::copy_2d(&ranges[0], &ranges[1], shape)))
    }
}

#[pymethods]
impl Client {
    /// The session's public name, to which others grant.
    #[getter]
    fn session(&self) -> PyResult<u64> {
        Ok(self.shared.client()?.session().0)
    }

    /// Whether the service is in this process.
    #[getter]
    fn embedded(&self) -> PyResult<bool> {
        Ok(self.shared.client()?.is_embedded())
    }

    /// Allocates at least `length` bytes, in whole pages, zeroed.
    fn allocate(&self, py: Python<'_>, length: u64) -> PyResult<Frame> {
        let client = self.shared.client()?;
        let frame = py.detach(|| client.allocate(length)).map_err(errors::of_frame)?;
        Ok(Frame::new(Arc::clone(&self.shared), frame))
    }

    /// Offers a frame or a range to another session, or to every session of a user. It is taken up with the token given.
    #[pyo3(signature = (memory, rights="r", *, session=None, user=None))]
    fn grant(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        rights: &str,
        session: Option<u64>,
        user: Option<u32>,
    ) -> PyResult<u64> {
        let range = match (memory.cast::<Frame>(), memory.cast::<Range>()) {
            (Ok(frame), _) => frame.get().frame.all(),
            (_, Ok(range)) => range.get().range.clone(),
            _ => return Err(PyValueError::new_err("only a frame or a range of one can be granted")),
        };
        let to = match (session, user) {
            (Some(session), None) => Grantee::Session(SessionId(session)),
            (None, Some(user)) => Grantee::User(user),
            _ => return Err(PyValueError::new_err("say to which session or to which user")),
        };
        let client = self.shared.client()?;
        let rights = letters(rights)?;
        let token = py.detach(|| client.grant(&range, rights, to));
        Ok(token.map_err(errors::of_call)?.bits())
    }

    /// Takes up a grant. The frame has no buffer here: the service moves bytes there.
    fn accept(&self, py: Python<'_>, token: u64) -> PyResult<Frame> {
        let client = self.shared.client()?;
        let frame = py.detach(|| client.accept(Handle::from_bits(token))).map_err(errors::of_call)?;
        Ok(Frame::new(Arc::clone(&self.shared), frame))
    }

    /// Takes away what was granted under a token; transfers that use it are cancelled first.
    fn revoke(&self, py: Python<'_>, token: u64) -> PyResult<()> {
        let client = self.shared.client()?;
        py.detach(|| client.revoke(Handle::from_bits(token))).map_err(errors::of_call)
    }

    /// Waits until all transfers have ended, and closes. Frames stay as long as somebody has them.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.finish(py, false)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Waits until all transfers have ended; after an exception they are cancelled. In a child of fork there are none.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        // A child leaves the block too, often by an exception that has to come through.
        if !self.shared.is_forked() {
            self.shared.finish(py, !kind.is_none())?;
        }
        Ok(false)
    }

    /// Moves nothing; with `fenced` it is the end of all that came before, of frames and of other memory.
    #[pyo3(signature = (*, within=None, hint=None, linked=false, fenced=false, now=false))]
    fn nop(
        &self,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        self.shared.nop(&terms)
    }

    /// Copies the whole source to the start of the destination; they may overlap.
    #[pyo3(signature = (source, destination, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn copy(
        &self,
        source: &Bound<'_, PyAny>,
        destination: &Bound<'_, PyAny>,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let parts =
            vec![self.bytes("the source", source, false)?, self.bytes("the destination", destination, true)?];
        if self.shared.here(&terms)?
            && let Some(bytes) = copy_here(source.py(), &parts[0], &parts[1])
        {
            return Ok(self.shared.done_here(bytes));
        }
        self.shared.submit(parts, &terms, |ranges| {
            Transfer::copy(&ranges[0], &ranges[1]).map_err(errors::of_description)
        })
    }

    /// Copies, and gives the CRC-32C of the bytes as the completion's value.
    #[pyo3(signature = (source, destination, seed=0, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn copy_crc32c(
        &self,
        source: &Bound<'_, PyAny>,
        destination: &Bound<'_, PyAny>,
        seed: u32,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let parts =
            vec![self.bytes("the source", source, false)?, self.bytes("the destination", destination, true)?];
        self.shared.submit(parts, &terms, |ranges| {
            Transfer::copy_crc32c(&ranges[0], &ranges[1], seed).map_err(errors::of_description)
        })
    }

    /// Computes the CRC-32C of the source, going on from `seed`; the completion's value.
    #[pyo3(signature = (source, seed=0, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn crc32c(
        &self,
        source: &Bound<'_, PyAny>,
        seed: u32,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let parts = vec![self.bytes("the source", source, false)?];
        self.shared.submit(parts, &terms, |ranges| Ok(Transfer::crc32c(&ranges[0], seed)))
    }

    /// Finds the first byte that differs: the completion's value, the length when there is none.
    #[pyo3(signature = (one, other, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn compare(
        &self,
        one: &Bound<'_, PyAny>,
        other: &Bound<'_, PyAny>,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let parts = vec![self.bytes("the first", one, false)?, self.bytes("the other", other, false)?];
        self.shared.submit(parts, &terms, |ranges| {
            Transfer::compare(&ranges[0], &ranges[1]).map_err(errors::of_description)
        })
    }

    /// Repeats a value of `width` 1, 2 or 4 bytes, little-endian, over the destination.
    #[pyo3(signature = (destination, value=0, width=1, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn fill(
        &self,
        destination: &Bound<'_, PyAny>,
        value: u32,
        width: u32,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let pattern = pattern(value, width)?;
        let parts = vec![self.bytes("the destination", destination, true)?];
        self.shared.submit(parts, &terms, |ranges| Ok(Transfer::fill(&ranges[0], pattern)))
    }

    /// Moves the bytes of the sources, in order, to the destinations, in order.
    #[pyo3(signature = (sources, destinations, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn scatter_gather(
        &self,
        sources: Vec<Bound<'_, PyAny>>,
        destinations: Vec<Bound<'_, PyAny>>,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let mut parts = self.list("a source", &sources, false, MAX_SEGMENTS)?;
        parts.extend(self.list("a destination", &destinations, true, MAX_SEGMENTS)?);
        let count = sources.len();
        self.shared.submit(parts, &terms, |ranges| {
            let (from, to) = ranges.split_at(count);
            Transfer::scatter_gather(from, to).map_err(errors::of_description)
        })
    }

    /// Byte by byte the exclusive or of the sources, all as long as the destination, which may be one of them;
    /// none may overlap it in part.
    #[pyo3(signature = (sources, destination, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn xor(
        &self,
        sources: Vec<Bound<'_, PyAny>>,
        destination: &Bound<'_, PyAny>,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let mut parts = self.list("a source", &sources, false, MAX_SOURCES)?;
        let written = self.bytes("the destination", destination, true)?;
        parts.iter().try_for_each(|source| refuse_partial_overlap(source, &written))?;
        parts.push(written);
        let count = sources.len();
        self.shared.submit(parts, &terms, |ranges| {
            Transfer::xor(&ranges[..count], &ranges[count]).map_err(errors::of_description)
        })
    }

    /// Copies a picture turned: "upright", "flip-horizontal", "flip-vertical", "rotate90", "rotate180",
    /// "rotate270" or "transpose". Pictures are arrays of height, width, and maybe queues.
    #[pyo3(signature = (source, destination, turn="upright", *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn turn(
        &self,
        source: &Bound<'_, PyAny>,
        destination: &Bound<'_, PyAny>,
        turn: &str,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let turn = turn_named(turn)?;
        let parts =
            (self.part("the source", source, false)?, self.part("the destination", destination, true)?);
        self.move_picture(parts, &terms, |from, to| {
            turned_copy(&from, turn, &to, None).map_err(errors::of_image)
        })
    }

    /// Copies a picture onto another at (x, y), leaving out pixels of the colour `key` where one is given.
    #[pyo3(signature = (top, base, at=(0, 0), key=None, *, within=None, hint=None, linked=false, fenced=false, now=false))]
    #[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
    fn overlay(
        &self,
        top: &Bound<'_, PyAny>,
        base: &Bound<'_, PyAny>,
        at: (u32, u32),
        key: Option<u32>,
        within: Option<f64>,
        hint: Option<String>,
        linked: bool,
        fenced: bool,
        now: bool,
    ) -> PyResult<NativeTransfer> {
        let terms = Terms { within, hint, linked, fenced, now };
        let key = key.map(color).transpose()?;
        let parts = (self.part("the top", top, false)?, self.part("the base", base, true)?);
        self.move_picture(parts, &terms, |from, to| {
            let place = to.crop(at.0, at.1, from.width, from.height).map_err(errors::of_image)?;
            turned_copy(&from, Turn::Upright, &place, key).map_err(errors::of_image)
        })
    }
}
