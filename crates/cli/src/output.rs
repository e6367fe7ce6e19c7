//! Lines for people on standard output, whose reader may be gone.
//!
//! `println!` panics when nobody reads any more, as after `memferry status | head -1`. These give an error instead, which
//! ends the command without a word.

use std::io::ErrorKind;

use crate::CommandError;

/// Prints a line, or gives the error from the enclosing function.
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), $($arguments)*)?
    }};
}
pub(crate) use say;

/// A command failed and has said so where its log goes.
#[derive(Debug)]
pub(crate) struct AlreadySaid;

impl std::fmt::Display for AlreadySaid {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("it is in the log")
    }
}

impl std::error::Error for AlreadySaid {}

/// Whether a command ended because nobody reads its output.
pub(crate) fn reader_is_gone(error: &CommandError) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
