//! Prints lines on standard output, whose reader may be gone.
//!
//! `println!` panics when the reader closed its end, for example in `memferry status | head -1`. These macros return an error
//! instead, which ends the command silently.

use std::io::{ErrorKind, IsTerminal};

use crate::CommandError;

/// Prints a line, or returns the error from the enclosing function.
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), $($arguments)*).map_err($crate::output::Unwritten)?
    }};
}
pub(crate) use say;

/// Whether standard output shows colours: a terminal that can, and a user who has not set `NO_COLOR` (no-color.org).
pub(crate) fn has_colors() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_dumb = set("TERM").is_none_or(|terminal| terminal == "dumb");
    std::io::stdout().is_terminal() && set("NO_COLOR").is_none() && !is_dumb
}

/// A line that names what follows.
pub(crate) fn heading(text: &str, colors: bool) -> String {
    if colors { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

/// Something that needs attention.
pub(crate) fn warning(text: &str, colors: bool) -> String {
    if colors { format!("\x1b[33m{text}\x1b[0m") } else { text.to_owned() }
}

/// Columns of the terminal that shows standard output; no limit elsewhere.
pub(crate) fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    columns.unwrap_or(usize::MAX)
}

/// Standard output could not be written to.
#[derive(Debug)]
pub(crate) struct Unwritten(pub(crate) std::io::Error);

impl std::fmt::Display for Unwritten {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for Unwritten {}

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
    let written = error.downcast_ref().map(|Unwritten(error)| error);
    let error = written.or_else(|| error.downcast_ref::<std::io::Error>());
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
