//! Lines for the administrator.

use std::io::Write;

/// Writes a line for the administrator to standard error, as far as that is open.
pub(crate) fn tell(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "memferry link: {what}");
}
