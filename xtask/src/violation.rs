//! A violation of a house rule: where it is, what is wrong, and how to correct it.
//!
//! ```text
//! path:line: what is wrong
//!     remedy: what to do about it
//! ```

use std::fmt;

/// A violation. Ordered by place, like the report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    /// Relative to the root of the workspace.
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
    pub(crate) remedy: String,
}

impl Violation {
    pub(crate) fn new(
        path: &str,
        line: usize,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}\n    remedy: {}", self.path, self.line, self.message, self.remedy)
    }
}
