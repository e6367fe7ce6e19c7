//! Prints lines on standard output, whose reader may be gone.
//!
//! `println!` panics when the reader closed its end, for example in `memferry status | head -1`. These macros return an error
//! instead, which ends the command silently.

use std::io::ErrorKind;

use crate::CommandError;

/// Prints a line, or returns the error from the enclosing function.
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), $($arguments)*)?
    }};
}
pub(crate) use say;

/// A command failed and logged why.
#[derive(Debug)]
pub(crate) struct AlreadyLogged;

impl std::fmt::Display for AlreadyLogged {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("the log has the reason")
    }
}

impl std::error::Error for AlreadyLogged {}

/// Whether a command failed because the reader of its output is gone.
pub(crate) fn reader_is_gone(error: &CommandError) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
