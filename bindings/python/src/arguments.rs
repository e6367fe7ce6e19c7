//! What methods are called with besides memory: terms, rights, patterns, colours and turns by name.
//!
//! ```text
//! hint="keep", within=0.1, ... ─► Terms ─ apply ─► Transfer        "rw" ─► Rights        "rotate90" ─► Turn
//! ```
//!
//! What does not exist is a `ValueError` that says what does.

use memferry::{CacheHint, Color24, Pattern, Rights, Transfer, Turn};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::transfer::seconds;

/// How a transfer is to be served.
pub(crate) struct Terms {
    pub(crate) within: Option<f64>,
    pub(crate) hint: Option<String>,
    pub(crate) linked: bool,
    pub(crate) fenced: bool,
    /// On the calling thread, before the call returns.
    pub(crate) now: bool,
}

impl Terms {
    /// Whether nothing is asked of how the bytes are moved.
    pub(crate) fn plain(&self) -> bool {
        self.within.is_none() && self.hint.is_none()
    }

    pub(crate) fn apply(&self, mut transfer: Transfer) -> PyResult<Transfer> {
        let hint = match self.hint.as_deref() {
            None | Some("auto") => CacheHint::Auto,
            Some("keep") => CacheHint::Keep,
            Some("stream") => CacheHint::Stream,
            Some(other) => {
                let message =
                    format!("there is no hint {other:?}; these are \"auto\", \"keep\" and \"stream\"");
                return Err(PyValueError::new_err(message));
            }
        };
        transfer = transfer.with_hint(hint);
        if self.linked {
            transfer = transfer.linked();
        }
        if self.fenced {
            transfer = transfer.fenced();
        }
        Ok(match self.within.map(seconds).transpose()? {
            Some(limit) => transfer.within(limit),
            None => transfer,
        })
    }
}

pub(crate) fn letters(letters: &str) -> PyResult<Rights> {
    letters.chars().try_fold(Rights::empty(), |rights, letter| match letter {
        'r' => Ok(rights | Rights::READ),
        'w' => Ok(rights | Rights::WRITE),
        'g' => Ok(rights | Rights::GRANT),
        _ => Err(PyValueError::new_err(format!("{letters:?} is not of the letters r, w and g"))),
    })
}

pub(crate) fn pattern(value: u32, width: u32) -> PyResult<Pattern> {
    let pattern = match width {
        1 => u8::try_from(value).ok().map(Pattern::Byte),
        2 => u16::try_from(value).ok().map(Pattern::Half),
        4 => Some(Pattern::Word(value)),
        _ => None,
    };
    let message = || format!("{value:#x} is no pattern of {width} bytes; these are 1, 2 or 4");
    pattern.ok_or_else(|| PyValueError::new_err(message()))
}

pub(crate) fn color(value: u32) -> PyResult<Color24> {
    Color24::new(value).ok_or_else(|| PyValueError::new_err(format!("{value:#x} is no colour of 24 bits")))
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
