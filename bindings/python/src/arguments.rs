//! Arguments other than memory: terms, rights, patterns, colours and turns, by name.
//!
//! ```text
//! hint="keep", within=0.1, ... ─► Terms ─ apply ─► Transfer        "rw" ─► Rights        "rotate90" ─► Turn
//! ```
//!
//! An unknown name is a `ValueError` that lists the known ones, a number out of range one that says the range.

use std::time::Duration;

use memferry::{CacheHint, Pattern, Rights, Transfer, Turn};
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// An integer argument. One that does not fit is a `ValueError`, as other numbers that mean nothing here.
#[derive(Clone, Copy)]
pub(crate) struct Number<T>(pub(crate) T);

macro_rules! number {
    ($($of:ty)*) => {
        $(impl<'a, 'py> FromPyObject<'a, 'py> for Number<$of> {
            type Error = PyErr;

            fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
                object.extract::<$of>().map(Self).map_err(|error| {
                    if !error.is_instance_of::<PyOverflowError>(object.py()) {
                        return error;
                    }
                    let message = format!("{} is not from {} to {}", *object, <$of>::MIN, <$of>::MAX);
                    PyValueError::new_err(message)
                })
            }
        })*
    };
}

number!(u32 u64 i64);

/// How a transfer is to be served.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    within: Option<Duration>,
    hint: CacheHint,
    pub(crate) linked: bool,
    pub(crate) fenced: bool,
}

impl Terms {
    pub(crate) fn new(within: Option<f64>, hint: Option<&str>, linked: bool, fenced: bool) -> PyResult<Self> {
        let hint = match hint {
            None | Some("auto") => CacheHint::Auto,
            Some("keep") => CacheHint::Keep,
            Some("stream") => CacheHint::Stream,
            Some(other) => {
                let message =
                    format!("there is no hint {other:?}; these are \"auto\", \"keep\" and \"stream\"");
                return Err(PyValueError::new_err(message));
            }
        };
        Ok(Self { within: within.map(seconds).transpose()?, hint, linked, fenced })
    }

    /// Whether there is neither a deadline nor a hint.
    pub(crate) fn is_plain(&self) -> bool {
        self.within.is_none() && self.hint == CacheHint::Auto
    }

    /// Whether the transfer needs a queue: its order or its deadline is kept there.
    pub(crate) fn needs_queue(&self) -> bool {
        self.linked || self.fenced || self.within.is_some()
    }

    /// The transfer on these terms; its deadline counts from now.
    pub(crate) fn apply<T>(&self, transfer: Transfer<T>) -> Transfer<T> {
        let mut transfer = transfer.with_hint(self.hint);
        if self.linked {
            transfer = transfer.linked();
        }
        if self.fenced {
            transfer = transfer.fenced();
        }
        match self.within {
            Some(limit) => transfer.within(limit),
            None => transfer,
        }
    }
}

/// A number of seconds.
pub(crate) fn seconds(number: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(number)
        .map_err(|error| PyValueError::new_err(format!("{number} is no number of seconds: {error}")))
}

pub(crate) fn rights(letters: &str) -> PyResult<Rights> {
    letters.chars().try_fold(Rights::empty(), |rights, letter| match letter {
        'r' => Ok(rights | Rights::READ),
        'w' => Ok(rights | Rights::WRITE),
        'g' => Ok(rights | Rights::GRANT),
        'd' => Ok(rights | Rights::DIRECT),
        _ => Err(PyValueError::new_err(format!("{letters:?} has other letters than r, w, g and d"))),
    })
}

pub(crate) fn pattern(value: u32, width: u32) -> PyResult<Pattern> {
    let pattern = match width {
        1 => u8::try_from(value).ok().map(Pattern::Byte),
        2 => u16::try_from(value).ok().map(Pattern::Half),
        4 => Some(Pattern::Word(value)),
        _ => None,
    };
    let message = || format!("{value:#x} is no pattern of {width} bytes; the width is 1, 2 or 4");
    pattern.ok_or_else(|| PyValueError::new_err(message()))
}

pub(crate) fn turn_named(name: &str) -> PyResult<Turn> {
    Ok(match name {
        "upright" => Turn::Upright,
        "flip-horizontal" => Turn::FlipHorizontal,
        "flip-vertical" => Turn::FlipVertical,
        "rotate90" => Turn::Rotate90,
        "rotate180" => Turn::Rotate180,
        "rotate270" => Turn::Rotate270,
        "transpose" => Turn::Transpose,
        other => {
            let message = format!(
                "there is no turn {other:?}; these are upright, flip-horizontal, flip-vertical, rotate90, rotate180, \
                 rotate270 and transpose"
            );
            return Err(PyValueError::new_err(message));
        }
    })
}
