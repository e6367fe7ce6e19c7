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

/// Lines for the administrator about what may happen again and again: a limited number, of which the last one says so.
///
/// ```
/// let mut failures = memferry_engine::Reports::new("copies", 20);
/// failures.report(format_args!("a request failed"));
/// ```
#[derive(Debug)]
pub struct Reports {
    name: String,
    left: u32,
}

impl Reports {
    /// At most so many lines of the engine of this name.
    #[must_use]
    pub fn new(name: &str, limit: u32) -> Self {
        Self { name: name.to_owned(), left: limit }
    }

    /// Writes a line as [`report`] does, unless there were enough.
    pub fn report(&mut self, what: std::fmt::Arguments<'_>) {
        if let Some(end) = self.next_end() {
            report(&self.name, format_args!("{what}{end}"));
        }
    }

    /// What ends the next line; `None` if there were enough.
    fn next_end(&mut self) -> Option<&'static str> {
        self.left = self.left.checked_sub(1)?;
        Some(if self.left == 0 { "; further ones are not reported" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_report_says_so() {
        let mut reports = Reports::new("test", 3);
        let ends: Vec<_> = std::iter::from_fn(|| reports.next_end()).take(9).collect();
        assert_eq!(ends, ["", "", "; further ones are not reported"]);
        assert_eq!(reports.next_end(), None);
    }
}
