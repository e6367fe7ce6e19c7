//! The client as a Python object: memory, grants, and one method for each kind of transfer.
//!
//! ```text
//! connect(path?) ─► Client ─ allocate, grant, accept ─► Frame
//!                     └ copy, fill, turn, overlay, ... ─ parts placed ─► Transfer
//! with Client: waits for what is outstanding at the end, cancels it first after an exception
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry::{
    AsyncChannel, Channel, EngineKind, ForkGuard, FrameRange, Grantee, Handle, Image, SessionId, Ticket,
    Transfer, Turn, turned_copy,
};
use memferry_transfer::{MAX_SEGMENTS, MAX_SOURCES};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::arguments::{Terms, color, letters, pattern, turn_named};
use crate::errors;
use crate::frame::{Frame, Range};
use crate::operand::{Frames, Part, by_service, copy_here, place, refuse_partial_overlap, whole};
use crate::transfer::{NativeTransfer, Running};

/// A session and the channel its transfers take.
#[derive(Clone)]
struct Side {
    client: memferry::Client,
    channel: AsyncChannel,
    /// Whether what was submitted last is linked to what comes next.
    linked: Arc<Mutex<bool>>,
    /// For what is done on the calling thread, where the service is in this process.
    performing: Option<Arc<Mutex<Channel>>>,
}

struct Sides {
    service: Side,
    /// For memory that is no frame: the service in this process. The same where `service` is.
    local: Option<Side>,
    capacity: u32,
}

/// What a client's objects share.
pub(crate) struct Shared {
    guard: Arc<ForkGuard>,
    pub(crate) frames: Frames,
    sides: Mutex<Option<Sides>>,
    running: Mutex<Vec<Arc<Running>>>,
}

fn open(client: memferry::Client, capacity: u32) -> PyResult<Side> {
    let channel = client.open_async_channel(capacity).map_err(errors::of_open)?;
    let performing = match client.is_embedded() {
        true => Some(Arc::new(Mutex::new(client.open_channel(2).map_err(errors::of_open)?))),
        false => None,
    };
    Ok(Side { client, channel, linked: Arc::default(), performing })
}

impl Side {
    fn linked(&self) -> MutexGuard<'_, bool> {
        self.linked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a transfer may be done beside the channel: neither does it wait for one there, nor one there for it.
    fn beside(&self, terms: &Terms) -> bool {
        !terms.linked && !terms.fenced && !*self.linked()
    }
}

/// Does a transfer on this thread, unless another one performs at this moment.
fn perform(
    channel: &Mutex<Channel>,
    transfer: &Transfer,
) -> Option<Result<memferry::Completion, memferry::SubmitError>> {
    Some(channel.try_lock().ok()?.perform(transfer.clone()))
}

fn closed() -> PyErr {
    PyValueError::new_err("the client is closed")
}

impl Shared {
    pub(crate) fn is_forked(&self) -> bool {
        self.guard.check().is_err()
    }

    fn sides(&self) -> PyResult<MutexGuard<'_, Option<Sides>>> {
        if self.is_forked() {
            return Err(errors::forked());
        }
        Ok(self.sides.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn side(&self, service: bool) -> PyResult<(Side, bool)> {
        let mut sides = self.sides()?;
        let Some(sides) = sides.as_mut() else {
            return Err(closed());
        };
        if service || sides.service.client.is_embedded() {
            return Ok((sides.service.clone(), true));
        }
        if let Some(local) = &sides.local {
            return Ok((local.clone(), false));
        }
        let local = open(memferry::Client::embedded().map_err(errors::of_connect)?, sides.capacity)?;
        Ok((sides.local.insert(local).clone(), false))
    }

    fn client(&self) -> PyResult<memferry::Client> {
        Ok(self.side(true)?.0.client)
    }

    /// Whether memory that is no frame may be copied without the service; a closed client copies nothing.
    fn here(&self, terms: &Terms) -> PyResult<bool> {
        let sides = self.sides()?;
        let Some(Sides { service, local, .. }) = sides.as_ref() else {
            return Err(closed());
        };
        let side = if service.client.is_embedded() { Some(service) } else { local.as_ref() };
        Ok(terms.plain() && side.is_none_or(|side| side.beside(terms)))
    }

    fn submit(
        &self,
        parts: Vec<Part>,
        terms: &Terms,
        describe: impl FnOnce(&[FrameRange]) -> PyResult<Transfer>,
    ) -> PyResult<NativeTransfer> {
        let (side, own) = self.side(by_service(&parts))?;
        self.sweep();
        let (ranges, hold) = place(&side.client, own, parts)?;
        let transfer = terms.apply(describe(&ranges)?)?;
        if let Some(channel) = side.performing.as_ref().filter(|_| terms.now && side.beside(terms))
            && let Some(ended) = Python::attach(|py| py.detach(|| perform(channel, &transfer)))
        {
            let completion = ended.map_err(|error| errors::of_submit(error.reason))?;
            hold.ended();
            return Ok(NativeTransfer {
                running: Arc::new(Running::ended(Arc::clone(&self.guard), completion)),
            });
        }
        let pending = {
            let mut linked = side.linked();
            let pending = side.channel.submit(transfer).map_err(|error| errors::of_submit(error.reason))?;
            *linked = terms.linked;
            pending
        };
        let running = Arc::new(Running::new(Arc::clone(&self.guard), pending, hold));
        self.running().push(Arc::clone(&running));
        if terms.now {
            // Another thread performs at this moment, the service is elsewhere, or it has to come in its turn.
            Python::attach(|py| running.wait(py, None))?;
        }
        Ok(NativeTransfer { running })
    }

    /// A copy that was done without the service.
    fn done_here(&self, bytes_done: u64) -> NativeTransfer {
        let (ticket, engine) = (Ticket::NONE, EngineKind::CpuLane);
        let (outcome, inherited, value) = (Ok(()), false, 0);
        let ended = memferry::Completion { ticket, outcome, inherited, bytes_done, value, engine };
        NativeTransfer { running: Arc::new(Running::ended(Arc::clone(&self.guard), ended)) }
    }

    fn running(&self) -> MutexGuard<'_, Vec<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of what has ended.
    fn sweep(&self) {
        let all = std::mem::take(&mut *self.running());
        // What is dropped here ends exports, so the lock is not held.
        let mut going: Vec<_> = all.into_iter().filter(|running| !running.is_over()).collect();
        self.running().append(&mut going);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_forked() {
            let sides = self.sides.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(sides);
        }
    }
}

/// A session with a service. `connect` opens one.
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
    let service = py.detach(|| open(client, capacity))?;
    let sides = Mutex::new(Some(Sides { service, local: None, capacity }));
    let shared =
        Shared { guard: Arc::new(guard), frames: Frames::default(), sides, running: Mutex::default() };
    Ok(Client { shared: Arc::new(shared) })
}

impl Client {
    fn part(&self, what: &'static str, object: &Bound<'_, PyAny>, to_write: bool) -> PyResult<Part> {
        if self.shared.is_forked() {
            return Err(errors::forked());
        }
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

    fn finish(&self, py: Python<'_>, cancel: bool) -> PyResult<()> {
        let running = self.shared.running().clone();
        if cancel {
            running.iter().for_each(|running| running.cancel());
        }
        for running in &running {
            running.wait(py, None)?;
        }
        let sides = self.shared.sides()?.take();
        py.detach(|| drop(sides));
        Ok(())
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
        let (client, rights) = (self.shared.client()?, letters(rights)?);
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
        self.finish(py, false)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Waits until all transfers have ended; after an exception they are cancelled.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.finish(py, !kind.is_none())?;
        Ok(false)
    }

    /// Moves nothing; with `fenced` it is the end of all that came before.
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
        self.shared.submit(Vec::new(), &terms, |_| Ok(Transfer::nop()))
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
    /// "rotate270" or "transpose". Pictures are arrays of height, width, and maybe channels.
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
