//! Runs stages: announced, timed, and ended at the first failure.
//!
//! ```text
//! ==> clippy: cargo clippy ...        ──► run ──► <== clippy: passed in 31 s     (status 0)
//!                                             └─► <== clippy: FAILED with status 101 after 12 s
//! MEMFERRY_TIMES=FILE: adds a line for each stage to FILE, to collect times over several commands
//! ```

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::line::Line;
use crate::place;

const TIMES: &str = "MEMFERRY_TIMES";

/// Prints a line. A closed output is no failure.
pub(crate) fn print(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints a line of this program among the output of the programs it runs.
pub(crate) fn say(line: impl Display) {
    print(format_args!("x: {line}"));
}

/// Runs stages and adds their times to the file named in the environment.
pub(crate) struct Stages {
    times: Option<PathBuf>,
}

impl Stages {
    pub(crate) fn of_environment() -> Self {
        Self { times: std::env::var_os(TIMES).map(PathBuf::from) }
    }

    /// Runs a command line as a stage.
    pub(crate) fn run(&self, name: &str, line: &Line) -> Result<(), Failure> {
        self.step(name, line, || run(line))
    }

    /// Runs a stage of several command lines, which returns its exit status.
    pub(crate) fn step(
        &self,
        name: &str,
        what: impl Display,
        work: impl FnOnce() -> u8,
    ) -> Result<(), Failure> {
        print(format_args!("\n==> {name}: {what}"));
        let start = Instant::now();
        let status = work();
        let took = start.elapsed();
        self.note(&time_line(name, status, took));
        let seconds = took.as_secs();
        if status == 0 {
            print(format_args!("<== {name}: passed in {seconds} s"));
            return Ok(());
        }
        eprintln!("<== {name}: FAILED with status {status} after {seconds} s");
        Err(Failure::Stage { stage: name.to_owned(), status })
    }

    fn note(&self, line: &str) {
        let Some(path) = &self.times else { return };
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| writeln!(file, "{line}")) {
            say(format_args!("cannot add to {}: {error}", path.display()));
        }
    }
}

fn time_line(name: &str, status: u8, took: Duration) -> String {
    format!("{:6} s  status {status}  {name}", took.as_secs())
}

/// Runs a line and returns its exit status; 127 if the program cannot be started, as in a shell.
pub(crate) fn run(line: &Line) -> u8 {
    match line.command().status() {
        Ok(status) => status_of(status),
        Err(error) => {
            eprintln!("x: cannot start {}: {error}", line.program().to_string_lossy());
            127
        }
    }
}

/// Runs lines until one fails; returns the status of the last one run.
pub(crate) fn run_all<'a>(lines: impl IntoIterator<Item = &'a Line>) -> u8 {
    lines.into_iter().map(run).find(|status| *status != 0).unwrap_or(0)
}

/// The standard output of a line if it succeeds. Its error messages are discarded.
pub(crate) fn output(line: &Line) -> Option<String> {
    let output = line.command().stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The status as in a shell: 128 plus the number of the signal that ended the process.
pub(crate) fn status_of(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Replaces this process by the program. Returns only if it cannot be started.
pub(crate) fn execute(line: &Line) -> Failure {
    use std::os::unix::process::CommandExt;
    let error = line.command().exec();
    Failure::setup(format!("cannot start {}: {error}", line.program().to_string_lossy()))
}

/// Whether a program of this name can be found.
pub(crate) fn has(program: &str) -> bool {
    place::program(program).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Line {
        Line::new("sh").arg("-c").arg(script)
    }

    #[test]
    fn stage_fails_with_the_status_of_its_command() {
        let stages = Stages { times: None };
        assert_eq!(stages.run("good", &shell("exit 0")), Ok(()));
        let failed = Failure::Stage { stage: "bad".to_owned(), status: 7 };
        assert_eq!(stages.run("bad", &shell("exit 7")), Err(failed));
    }

    #[test]
    fn status_of_a_signal_is_the_shells() {
        assert_eq!(run(&shell("kill -KILL $$")), 137);
        assert_eq!(run(&Line::new("no-such-program-anywhere")), 127);
    }

    #[test]
    fn lines_run_until_one_fails() {
        assert_eq!(run_all(&[shell("exit 0"), shell("exit 0")]), 0);
        assert_eq!(run_all(&[shell("exit 0"), shell("exit 5"), shell("kill -KILL $$")]), 5);
    }

    #[test]
    fn only_successful_output_is_returned() {
        assert_eq!(output(&shell("echo a")).as_deref(), Some("a\n"));
        assert_eq!(output(&shell("echo a; exit 1")), None);
    }

    #[test]
    fn times_are_added_to_the_file() {
        let path = std::env::temp_dir().join(format!("xtask-times-{}", std::process::id()));
        let stages = Stages { times: Some(path.clone()) };
        let _ = stages.run("one", &shell("exit 0"));
        let _ = stages.run("two", &shell("exit 3"));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "     0 s  status 0  one\n     0 s  status 3  two\n");
    }
}
