//! Live figures: the benchmarks measure, and the lab reads their rows.
//!
//! ```text
//! judge ─► memferry-bench GROUP --only PART --json FILE ─► Rows ─► figures by row name ─► Verdict
//! ```
//!
//! The program `memferry-bench` is expected in the directory of this one. When it is missing, fails (a failed transfer counts) or
//! could not measure a row, the claim is not-run and the verdict says why. A row that it does not know is an error of the lab.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, RunError};
use crate::verdict::{Basis, Verdict};

const PROGRAM: &str = "memferry-bench";

/// Why a live figure is missing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    #[error(
        "there is no {}; `./x lab` builds it, or `cargo build --release -p memferry-bench` with the lab's target directory",
        .0.display()
    )]
    Missing(PathBuf),
    #[error("{} cannot be run: {error}", .program.display())]
    Start { program: PathBuf, error: std::io::Error },
    #[error("`{command}` failed: {said}")]
    Failed {
        command: String,
        /// The last line of its error output.
        said: String,
    },
    #[error("`{command}` wrote no rows: {error}")]
    Unreadable { command: String, error: String },
    #[error("{name}: {reason}")]
    NotMeasured { name: String, reason: String },
    #[error("{PROGRAM} has no row `{0}`")]
    NoRow(String),
}

/// A row of a benchmark; its target is ignored here.
#[derive(Debug, Deserialize)]
struct Row {
    name: String,
    value: Option<f64>,
    reason: Option<String>,
}

/// The rows of one benchmark run.
#[derive(Debug)]
pub(crate) struct Rows(Vec<Row>);

impl Rows {
    /// Runs a group of the benchmarks, or one part of it.
    pub(crate) fn measured(group: &str, part: Option<&str>) -> Result<Self, LiveError> {
        let start = |error| LiveError::Start { program: PROGRAM.into(), error };
        Self::by(&std::env::current_exe().map_err(start)?.with_file_name(PROGRAM), group, part)
    }

    fn by(program: &Path, group: &str, part: Option<&str>) -> Result<Self, LiveError> {
        if !program.exists() {
            return Err(LiveError::Missing(program.to_owned()));
        }
        let file = std::env::temp_dir().join(format!("memferry-lab-{}-{group}.json", std::process::id()));
        let mut arguments = vec![group];
        arguments.extend(part.iter().flat_map(|part| ["--only", part]));
        let command = format!("{PROGRAM} {}", arguments.join(" "));
        let ended = Command::new(program)
            .args(arguments)
            .arg("--json")
            .arg(&file)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| LiveError::Start { program: program.to_owned(), error })?;
        let text = std::fs::read_to_string(&file);
        let _ = std::fs::remove_file(&file);
        if !ended.status.success() {
            let errors = String::from_utf8_lossy(&ended.stderr);
            let said = errors.lines().last().map_or_else(|| ended.status.to_string(), str::to_owned);
            return Err(LiveError::Failed { command, said });
        }
        let rows = text.map_err(|error| error.to_string());
        let rows = rows.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        rows.map(Self).map_err(|error| LiveError::Unreadable { command, error })
    }

    /// The value of the row of this name.
    pub(crate) fn value(&self, name: &str) -> Result<f64, LiveError> {
        let row = self.0.iter().find(|row| row.name == name);
        let row = row.ok_or_else(|| LiveError::NoRow(name.to_owned()))?;
        row.value.ok_or_else(|| LiveError::NotMeasured {
            name: name.to_owned(),
            reason: row.reason.clone().unwrap_or_else(|| "no reason is given".to_owned()),
        })
    }

    /// The values of several rows. Each pair is the name in the verdict and the name of the row.
    pub(crate) fn values(&self, names: &[(&str, &str)]) -> Result<Vec<(String, f64)>, LiveError> {
        names.iter().map(|(name, row)| Ok(((*name).to_owned(), self.value(row)?))).collect()
    }
}

/// The live verdict on an order: `checks` compares the figures, which are all shown. Their absolute values are not judged. Without
/// figures it is not-run, with the reason.
pub(crate) fn ordered(
    case: &Case<'_>,
    unit: &str,
    figures: Result<Vec<(String, f64)>, LiveError>,
    checks: impl FnOnce(&mut Finding<'_>, &BTreeMap<String, f64>),
) -> Result<Verdict, RunError> {
    let figures: BTreeMap<String, f64> = match figures {
        Ok(figures) => figures.into_iter().collect(),
        Err(error) => return not_run(case, error),
    };
    let mut finding = Finding::of(case.claim);
    for (name, value) in &figures {
        finding.figure(name.as_str(), *value);
    }
    checks(&mut finding, &figures);
    let verdict = finding.verdict(Place::Live, Basis::Measured);
    Ok(Verdict { unit: Some(unit.to_owned()), ..verdict })
}

/// The not-run verdict of a claim that could not be measured.
///
/// # Errors
/// [`LiveError::NoRow`]: the benchmark program and the lab do not match.
pub(crate) fn not_run(case: &Case<'_>, error: LiveError) -> Result<Verdict, RunError> {
    if matches!(error, LiveError::NoRow(_)) {
        return Err(case.failed(error));
    }
    let why = format!("the machine at hand could not be measured: {error}");
    Ok(Verdict { why, ..Verdict::not_run(case.claim, Place::Live) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::claims::Claims;
    use crate::parameters::Parameters;
    use crate::table::Tables;
    use crate::verdict::{Figures, Status};

    /// A script that replaces the benchmark program; deleted at the end of the test.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, lines: &str) -> Self {
            let path = std::env::temp_dir().join(format!("memferry-lab-{name}-{}", std::process::id()));
            std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("temporary files can be written");
            let mode = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(&path, mode).expect("the test owns the file");
            Self(path)
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const ROWS: &str = r#"[{"name":"a","value":2.0004,"unit":"ns","target":null,"holds":null,"min":1,"max":3,"reason":null},
        {"name":"b","value":null,"unit":"","target":null,"holds":null,"min":null,"max":null,"reason":"no root"}]"#;

    fn verdict(figures: Result<Vec<(String, f64)>, LiveError>) -> Result<Verdict, RunError> {
        let claims = Claims::built_in().expect("checked");
        let claim = claims.find("nava-live").expect("listed");
        let case = Case { claim, tables: &Tables::default(), parameters: &Parameters::default() };
        ordered(&case, "ns", figures, |finding, of| {
            finding.check(of.get("first").is_some_and(|value| *value < 3.0), "the first is below 3");
        })
    }

    #[test]
    fn rows_become_figures_of_a_verdict() {
        let arguments = r#"[ "$*" = "group --only part --json $5" ] || exit 9"#;
        let script = Script::new("rows", &format!("{arguments}\ncat > $5 <<'END'\n{ROWS}\nEND"));
        let rows = Rows::by(&script.0, "group", Some("part")).expect("the script succeeds");
        let found = verdict(rows.values(&[("first", "a")])).expect("a row");
        assert_eq!((found.status, found.basis), (Status::Pass, Some(Basis::Measured)));
        assert_eq!((found.place, found.unit.as_deref()), (Place::Live, Some("ns")));
        assert_eq!(found.figures, Figures::Named([("first".to_owned(), 2.0)].into()));
        let left_out = verdict(rows.values(&[("first", "a"), ("second", "b")])).expect("a row");
        assert_eq!((left_out.status, left_out.basis), (Status::NotRun, None));
        assert!(left_out.why.ends_with("b: no root"), "{}", left_out.why);
        assert!(verdict(rows.values(&[("third", "c")])).is_err(), "an unknown row is an error");
    }

    #[test]
    fn an_order_the_wrong_way_is_a_failure() {
        let found = verdict(Ok(vec![("first".to_owned(), 3.0)])).expect("a row");
        assert_eq!(found.status, Status::Fail);
        assert!(found.why.starts_with("does not hold: the first is below 3"), "{}", found.why);
    }

    #[test]
    fn a_benchmark_that_fails_is_not_run() {
        let script =
            Script::new("fails", "echo 'memferry-bench: a transfer failed: MemoryFault' >&2; exit 1");
        let found = verdict(Rows::by(&script.0, "start", None).map(|_| Vec::new())).expect("a row");
        assert_eq!(found.status, Status::NotRun);
        assert!(found.why.contains("`memferry-bench start` failed") && found.why.ends_with("MemoryFault"));
    }

    #[test]
    fn a_benchmark_without_rows_is_not_run() {
        let script = Script::new("silent", "exit 0");
        let found = verdict(Rows::by(&script.0, "silent", None).map(|_| Vec::new())).expect("a row");
        assert!(found.status == Status::NotRun && found.why.contains("wrote no rows"), "{}", found.why);
    }

    #[test]
    fn a_missing_benchmark_says_how_to_get_it() {
        let found = verdict(Rows::by(Path::new("/nowhere/bench"), "start", None).map(|_| Vec::new()));
        let why = found.expect("a row").why;
        assert!(why.contains("/nowhere/bench") && why.contains("./x lab"), "{why}");
    }
}
