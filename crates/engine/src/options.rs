//! What an engine connects as, and how it tells the administrator what goes wrong.

use std::io::Write;
use std::path::PathBuf;

use memferry_external::EngineDescription;

/// What an engine connects as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// Where the service listens.
    pub socket: PathBuf,
    /// Its name in the service's configuration.
    pub name: String,
    /// What it can do.
    pub description: EngineDescription,
}

/// Writes a line for the administrator to standard error, as far as that is open.
pub fn report(name: &str, what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "memferry engine {name}: {what}");
}
