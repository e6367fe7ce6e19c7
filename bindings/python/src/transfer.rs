//! Transfers as a program describes them: an operation, its operands and its terms. Nothing is moved or held before one is
//! submitted.
//!
//! ```text
//! copy(a, b, within=0.1) ─► Transfer ─ Queue.submit ─┬ parts: operands found and checked
//!                                                    └ describe: regions ─► memferry::Transfer
//! ```
//!
//! Wrong names and numbers are exceptions here; operands are judged when the transfer is submitted.

use memferry::{InvalidTransfer, Pattern, Region, Side, Turn};
use memferry_transfer::{MAX_SEGMENTS, MAX_SOURCES};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::arguments::{Number, Terms, pattern, turn_named};
use crate::operand::{Part, refuse_gaps};
use crate::picture::{self, Passes};
use crate::registry::FrameRegistry;
use crate::running::Output;

#[derive(Clone, Copy)]
enum Operation {
    Nop,
    Copy,
    CopyCrc {
        seed: u32,
    },
    Crc {
        seed: u32,
    },
    Compare,
    DualCopy,
    Fill(Pattern),
    /// The first `sources` operands are read, the others written.
    ScatterGather {
        sources: usize,
    },
    Xor,
    Turn(Turn),
    Overlay {
        at: (i64, i64),
        key: Option<u32>,
    },
}

/// What is to be moved, and on which terms. `Queue.submit` and `Queue.run` take it, more than once if you like.
///
/// Operands are frames, regions and any contiguous buffers, whatever their shape and dtype: their bytes count. The pictures
/// of `turn` and `overlay` are arrays of shape (height, width) or (height, width, channels), of any dtype and with any
/// strides, except that the bytes of one pixel adjoin. Operands are checked when the transfer is submitted.
///
/// Terms of every transfer: `within`, a limit in seconds from the submission; `hint` "keep" if the destination will be read
/// soon, "stream" if not, "auto" to let the engine decide; `linked`: the next transfer of the queue starts only when this
/// one has succeeded; `fenced`: it starts when all earlier ones have ended.
#[pyclass(frozen, generic, module = "memferry")]
pub struct Transfer {
    operation: Operation,
    operands: Vec<Py<PyAny>>,
    terms: Terms,
}

#[pymethods]
impl Transfer {
    fn __repr__(&self) -> String {
        format!("<memferry.Transfer of {} operands>", self.operands.len())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.operands.iter().try_for_each(|operand| visit.call(operand))
    }
}

impl Transfer {
    fn new(operation: Operation, operands: Vec<Bound<'_, PyAny>>, terms: Terms) -> Self {
        Self { operation, operands: operands.into_iter().map(Bound::unbind).collect(), terms }
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn is_nop(&self) -> bool {
        matches!(self.operation, Operation::Nop)
    }

    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.operation, Operation::Copy)
    }

    /// The name of an operand in messages, and whether it is written.
    fn role(&self, index: usize) -> (&'static str, bool) {
        let is_last = index + 1 == self.operands.len();
        match (self.operation, index) {
            (Operation::Compare, 0) => ("the first", false),
            (Operation::Compare, _) => ("the other", false),
            (Operation::Overlay { .. }, 0) => ("the top", false),
            (Operation::Overlay { .. }, _) => ("the base", true),
            (Operation::Crc { .. }, _) => ("the source", false),
            (Operation::Fill(_), _) => ("the destination", true),
            (Operation::Xor, _) if !is_last => ("a source", false),
            (Operation::ScatterGather { sources }, _) if index < sources => ("a source", false),
            (Operation::ScatterGather { .. }, _) => ("a destination", true),
            (Operation::DualCopy, 1 | 2) => ("a destination", true),
            (_, 0) if !is_last => ("the source", false),
            _ => ("the destination", true),
        }
    }

    fn is_picture(&self) -> bool {
        matches!(self.operation, Operation::Turn(_) | Operation::Overlay { .. })
    }

    /// Refuses lists that no request can have, before any of their memory is lent.
    fn check_counts(&self) -> PyResult<()> {
        let all = self.operands.len();
        let invalid = match self.operation {
            Operation::Xor if all > MAX_SOURCES + 1 => InvalidTransfer::Sources { count: all - 1 },
            Operation::ScatterGather { sources } if sources > MAX_SEGMENTS => {
                InvalidTransfer::Segments { side: Side::Source, count: sources }
            }
            Operation::ScatterGather { sources } if all - sources > MAX_SEGMENTS => {
                InvalidTransfer::Segments { side: Side::Destination, count: all - sources }
            }
            _ => return Ok(()),
        };
        Err(PyValueError::new_err(invalid.to_string()))
    }

    /// The memory of each operand.
    pub(crate) fn parts(&self, py: Python<'_>, frames: &FrameRegistry) -> PyResult<Vec<Part>> {
        self.check_counts()?;
        let part = |(index, operand): (usize, &Py<PyAny>)| {
            let (what, to_write) = self.role(index);
            let part = Part::of(frames, what, operand.bind(py), to_write)?;
            if !self.is_picture() {
                refuse_gaps(&part)?;
            }
            Ok(part)
        };
        self.operands.iter().enumerate().map(part).collect()
    }

    /// How pixels move from picture to picture; `None` for what moves bytes.
    pub(crate) fn passes(&self, parts: &[Part]) -> PyResult<Option<Passes>> {
        let passes = match self.operation {
            Operation::Turn(turn) => picture::turned(&parts[0].picture()?, turn, &parts[1].picture()?, None)?,
            Operation::Overlay { at, key } => {
                picture::overlaid(&parts[0].picture()?, &parts[1].picture()?, at, key)?
            }
            _ => return Ok(None),
        };
        if let (Some(source), Some(destination)) = (parts[0].address(), parts[1].address()) {
            picture::refuse_overwritten(&passes, source, destination)?;
        }
        Ok(Some(passes))
    }

    /// The transfers of these regions, one for each part, without terms. Only a picture of wide pixels takes several.
    pub(crate) fn describe(
        &self,
        passes: Option<Passes>,
        regions: &[Region],
    ) -> Vec<memferry::Transfer<u64>> {
        match passes {
            None => vec![self.describe_bytes(regions)],
            // There are no pixels to move, but the transfer has its place in the queue.
            Some(passes) if passes.is_empty() => vec![memferry::nop().untyped()],
            Some(passes) => {
                let walk = |shape| memferry::copy_2d(&regions[0], &regions[1], shape).untyped();
                passes.into_iter().map(walk).collect()
            }
        }
    }

    fn describe_bytes(&self, regions: &[Region]) -> memferry::Transfer<u64> {
        match self.operation {
            Operation::Copy => memferry::copy(&regions[0], &regions[1]).untyped(),
            Operation::CopyCrc { seed } => {
                memferry::copy_crc32c(&regions[0], &regions[1]).seed(seed).untyped()
            }
            Operation::Crc { seed } => memferry::crc32c(&regions[0]).seed(seed).untyped(),
            Operation::Compare => memferry::compare(&regions[0], &regions[1]).untyped(),
            Operation::DualCopy => memferry::dual_copy(&regions[0], [&regions[1], &regions[2]]).untyped(),
            Operation::Fill(pattern) => memferry::fill(&regions[0], pattern).untyped(),
            Operation::ScatterGather { sources } => {
                let (from, to) = regions.split_at(sources);
                memferry::scatter_gather(from, to).untyped()
            }
            Operation::Xor => {
                let sources = regions.len() - 1;
                memferry::xor(&regions[..sources], &regions[sources]).untyped()
            }
            // Pictures are described by their passes, before this.
            Operation::Nop | Operation::Turn(_) | Operation::Overlay { .. } => memferry::nop().untyped(),
        }
    }

    /// What its end says besides how far it came.
    pub(crate) fn output(&self, regions: &[Region]) -> Output {
        match self.operation {
            Operation::Crc { .. } | Operation::CopyCrc { .. } => Output::Crc,
            Operation::Compare => Output::Difference(regions[0].length()),
            _ => Output::Nothing,
        }
    }
}

/// Moves nothing; with `fenced` it ends when all transfers submitted before it have, of frames and of other memory. The
/// end's `output` is `None`.
///
/// Raises ValueError for unusable terms.
#[pyfunction]
#[pyo3(signature = (*, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn nop(within: Option<f64>, hint: Option<&str>, linked: bool, fenced: bool) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::Nop, Vec::new(), terms))
}

/// Copies the whole source to the start of the destination, which may be longer; they may overlap. The end's `output` is
/// `None`.
///
/// Raises ValueError for unusable terms.
#[pyfunction]
#[pyo3(signature = (source, destination, *, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn copy(
    source: Bound<'_, PyAny>,
    destination: Bound<'_, PyAny>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::Copy, vec![source, destination], terms))
}

/// Copies as `copy` does, and computes the CRC-32C of the bytes as `crc32c` does: the end's `output`.
///
/// Raises ValueError for unusable terms or a seed of more than 32 bits.
#[pyfunction]
#[pyo3(
    signature = (source, destination, seed=Number(0), *, within=None, hint=None, linked=false, fenced=false),
    text_signature = "(source, destination, seed=0, *, within=None, hint=None, linked=False, fenced=False)"
)]
pub(crate) fn copy_crc32c(
    source: Bound<'_, PyAny>,
    destination: Bound<'_, PyAny>,
    seed: Number<u32>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::CopyCrc { seed: seed.0 }, vec![source, destination], terms))
}

/// Computes the CRC-32C of the source, continued from `seed`, the CRC of the bytes before: the end's `output`, an int.
///
/// Raises ValueError for unusable terms or a seed of more than 32 bits.
#[pyfunction]
#[pyo3(
    signature = (source, seed=Number(0), *, within=None, hint=None, linked=false, fenced=false),
    text_signature = "(source, seed=0, *, within=None, hint=None, linked=False, fenced=False)"
)]
pub(crate) fn crc32c(
    source: Bound<'_, PyAny>,
    seed: Number<u32>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::Crc { seed: seed.0 }, vec![source], terms))
}

/// Finds the offset in bytes of the first difference: the end's `output`, `None` where all bytes are equal. Both operands
/// have one length.
///
/// Raises ValueError for unusable terms.
#[pyfunction]
#[pyo3(signature = (first, other, *, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn compare(
    first: Bound<'_, PyAny>,
    other: Bound<'_, PyAny>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::Compare, vec![first, other], terms))
}

/// Copies one source to the start of two destinations; no two of the three may overlap in part, else the transfer fails.
/// The end's `output` is `None`.
///
/// Raises ValueError for unusable terms or another number of destinations.
#[pyfunction]
#[pyo3(signature = (source, destinations, *, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn dual_copy(
    source: Bound<'_, PyAny>,
    destinations: [Bound<'_, PyAny>; 2],
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    let [one, other] = destinations;
    Ok(Transfer::new(Operation::DualCopy, vec![source, one, other], terms))
}

/// Repeats a value of `width` 1, 2 or 4 bytes, little-endian, over the destination, whose length is a multiple of that. The
/// end's `output` is `None`.
///
/// Raises ValueError for unusable terms, another width, or a value too large for it.
#[pyfunction]
#[pyo3(
    signature = (destination, value, width=Number(1), *, within=None, hint=None, linked=false, fenced=false),
    text_signature = "(destination, value, width=1, *, within=None, hint=None, linked=False, fenced=False)"
)]
pub(crate) fn fill(
    destination: Bound<'_, PyAny>,
    value: Number<u32>,
    width: Number<u32>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::Fill(pattern(value.0, width.0)?), vec![destination], terms))
}

/// Writes zeros over the destination. The end's `output` is `None`.
///
/// Raises ValueError for unusable terms.
#[pyfunction]
#[pyo3(signature = (destination, *, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn zero(
    destination: Bound<'_, PyAny>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::Fill(Pattern::Byte(0)), vec![destination], terms))
}

/// Moves the bytes of the sources, in order, to the destinations, in order. Both lists hold equally many bytes, in at most
/// 1024 operands each. The end's `output` is `None`.
///
/// Raises ValueError for unusable terms.
#[pyfunction]
#[pyo3(signature = (sources, destinations, *, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn scatter_gather(
    sources: Vec<Bound<'_, PyAny>>,
    destinations: Vec<Bound<'_, PyAny>>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    let operation = Operation::ScatterGather { sources: sources.len() };
    let mut operands = sources;
    operands.extend(destinations);
    Ok(Transfer::new(operation, operands, terms))
}

/// Computes, byte by byte, the exclusive or of 1 to 64 sources, all as long as the destination. That may be one of them;
/// where it overlaps one in part, the transfer fails. The end's `output` is `None`.
///
/// Raises ValueError for unusable terms.
#[pyfunction]
#[pyo3(signature = (sources, destination, *, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn xor<'py>(
    sources: Vec<Bound<'py, PyAny>>,
    destination: Bound<'py, PyAny>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    let mut operands = sources;
    operands.push(destination);
    Ok(Transfer::new(Operation::Xor, operands, terms))
}

/// Copies a picture turned: "upright", "flip-horizontal", "flip-vertical", "rotate90" (clockwise), "rotate180", "rotate270"
/// or "transpose". Both pictures have pixels of as many bytes, and the destination has the shape that the turn gives. A
/// picture cannot be turned in its own place. The end's `output` is `None`.
///
/// Raises ValueError for unusable terms or another turn.
#[pyfunction]
#[pyo3(signature = (source, destination, turn="upright", *, within=None, hint=None, linked=false, fenced=false))]
pub(crate) fn turn(
    source: Bound<'_, PyAny>,
    destination: Bound<'_, PyAny>,
    turn: &str,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    Ok(Transfer::new(Operation::Turn(turn_named(turn)?), vec![source, destination], terms))
}

/// Copies a picture onto another of the same kind, its top left pixel to `at`, (x, y) in pixels, where it has to fit. With
/// a `key`, pixels of that colour are left out: their bytes as a little-endian number, of which at most 24 bits are
/// compared; pixels then have 1, 2 or 4 bytes. The end's `output` is `None`.
///
/// Raises ValueError for unusable terms.
#[pyfunction]
#[pyo3(
    signature = (top, base, at=(Number(0), Number(0)), key=None, *, within=None, hint=None, linked=false, fenced=false),
    text_signature = "(top, base, at=(0, 0), key=None, *, within=None, hint=None, linked=False, fenced=False)"
)]
#[expect(clippy::too_many_arguments, reason = "named arguments of Python")]
pub(crate) fn overlay(
    top: Bound<'_, PyAny>,
    base: Bound<'_, PyAny>,
    at: (Number<i64>, Number<i64>),
    key: Option<Number<u32>>,
    within: Option<f64>,
    hint: Option<&str>,
    linked: bool,
    fenced: bool,
) -> PyResult<Transfer> {
    let terms = Terms::new(within, hint, linked, fenced)?;
    let operation = Operation::Overlay { at: (at.0.0, at.1.0), key: key.map(|key| key.0) };
    Ok(Transfer::new(operation, vec![top, base], terms))
}
