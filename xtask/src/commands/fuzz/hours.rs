//! How long each target was fuzzed, over all runs and machines: tests/fuzz/HOURS.toml.

use std::path::Path;
use std::process::Command;

use toml::{Table, Value};

use crate::failure::Failure;
use crate::files;

/// The file, below the fuzz workspace.
pub(super) const HOURS: &str = "HOURS.toml";

const ABOUT: &str = "# How long each target was fuzzed and how many inputs it took, over all runs of `./x fuzz`, which adds to this.\n";

/// What a fuzzer did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Run {
    seconds: u64,
    executions: u64,
}

impl Run {
    /// Of the line in which libFuzzer says it: `Done 2164241 runs in 312 second(s)`.
    pub(super) fn of_line(line: &str) -> Option<Self> {
        let (executions, rest) = line.strip_prefix("Done ")?.split_once(" runs in ")?;
        let seconds = rest.strip_suffix(" second(s)")?;
        Some(Self { seconds: seconds.parse().ok()?, executions: executions.parse().ok()? })
    }
}

/// Adds a run of a target that ended today.
pub(super) fn add(path: &Path, target: &str, run: Run) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let date = Command::new("date").arg("+%F").output().map_err(|error| files::broken(path, &error))?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    files::write(path, added(&text, target, run, &date))
}

fn added(text: &str, target: &str, run: Run, date: &str) -> String {
    let mut table: Table = toml::from_str(text).unwrap_or_default();
    let before = |name: &str| {
        let value = table.get(target).and_then(|entry| entry.get(name)).and_then(Value::as_integer);
        value.unwrap_or(0)
    };
    let sum = |name: &str, more: u64| Value::Integer(before(name) + i64::try_from(more).unwrap_or(0));
    let entry = Table::from_iter([
        ("seconds".to_owned(), sum("seconds", run.seconds)),
        ("executions".to_owned(), sum("executions", run.executions)),
        ("last".to_owned(), Value::from(date)),
    ]);
    table.insert(target.to_owned(), Value::Table(entry));
    format!("{ABOUT}\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_added_up() {
        let run = Run::of_line("Done 2164241 runs in 312 second(s)").unwrap();
        assert_eq!(run, Run { seconds: 312, executions: 2_164_241 });
        assert_eq!(Run::of_line("#2164241 DONE cov: 1"), None);
        let once = added("", "geometry", run, "2026-11-27");
        let twice = added(&added(&once, "bulk", run, "2026-11-28"), "geometry", run, "2026-11-29");
        let expected = "[bulk]\nexecutions = 2164241\nlast = \"2026-11-28\"\nseconds = 312\n\n\
                        [geometry]\nexecutions = 4328482\nlast = \"2026-11-29\"\nseconds = 624\n";
        assert_eq!(twice, format!("{ABOUT}\n{expected}"));
    }
}
