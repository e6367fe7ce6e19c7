//! `memferry profile`: counts a program's copies by size, alignment and caller, and estimates what handing them over would
//! have saved.
//!
//! ```text
//! recording, a memfd ─► program with the recorder preloaded ─► its children likewise ─► exit
//! recording ─ read once, checked ─► sums ─ function names ─ estimate ─► table or JSON
//!                                                                      ─► the program's exit status
//! ```
//!
//! The program can write anything into the recording, so numbers and names are treated as untrusted data. Copies inlined by
//! the compiler, the C library's internal copies, and static and setuid programs are not counted.

mod estimate;
mod program;
mod report;
mod symbols;
mod table;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::{Duration, Instant};

use clap::Args;
use memferry_recording::ticks;
use memferry_service::printable::printable_lines;

use crate::CommandError;
use program::Ended;
use report::Report;

/// Arguments of `profile`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Write the report to this file instead of standard error.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Write the report as JSON.
    #[arg(long)]
    json: bool,
    /// Number of callers to list, those with the most time, bytes and calls first.
    #[arg(long, value_name = "N", default_value_t = 20)]
    callers: usize,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program, reports, and exits with its status.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let library = program::library()?;
    // Fail before the program runs, not after.
    let mut to = arguments.to.as_deref().map(To::open).transpose()?;
    let (descriptor, words) = memferry_recording::create()?;
    let clock = Rate::start();
    let ended = match program::run(&arguments.program, &library, &memferry_recording::path_of(&descriptor)) {
        Ok(ended) => ended,
        Err(error) => {
            // Which exit would not do.
            drop(to);
            eprintln!("memferry: {}", printable_lines(&error.to_string()));
            exit(error.exit_code());
        }
    };
    let recording = memferry_recording::read(&words)?;
    let mut report = Report::new(&recording, clock.ticks_per_second(), arguments.callers);
    report.add_program(&arguments.program, &ended);
    if recording.processes == 0 {
        report.set_unseen_reason(program::why_unseen(&arguments.program));
    } else {
        // The program has run: its counts are reported even if nothing can be estimated.
        match estimate::Basis::of_this_machine() {
            Ok(basis) => report.add_estimate(basis),
            Err(error) => eprintln!("memferry: no estimate: {}", printable_lines(&error.to_string())),
        }
    }
    let text =
        if arguments.json { serde_json::to_string_pretty(&report)? + "\n" } else { table::text(&report) };
    match &mut to {
        Some(to) => {
            to.write(&text).map_err(|error| format!("cannot write {}: {error}", to.path.display()))?;
        }
        None => std::io::stderr().write_all(text.as_bytes())?,
    }
    exit_like(&ended)
}

/// The file of the report. Dropped without a report, a new one is removed, and an earlier one stays as it was.
struct To<'a> {
    file: File,
    path: &'a Path,
    is_unwanted: bool,
}

impl<'a> To<'a> {
    fn open(path: &'a Path) -> Result<Self, CommandError> {
        let created = File::options().write(true).create_new(true).open(path);
        let is_unwanted = created.is_ok();
        let opened = created.or_else(|error| match error.kind() {
            ErrorKind::AlreadyExists => File::options().write(true).create(true).truncate(false).open(path),
            _ => Err(error),
        });
        let file = opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self { file, path, is_unwanted })
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.is_unwanted = false;
        Ok(())
    }
}

impl Drop for To<'_> {
    fn drop(&mut self) {
        if self.is_unwanted {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// Exits with the program's exit status, or 128 plus the number of the signal that ended it, as shells do.
fn exit_like(ended: &Ended) -> ! {
    exit(ended.exit_code())
}

/// Measures the frequency of the counter that times copies, over the program's run.
struct Rate {
    started: Instant,
    ticks: Option<u64>,
}

impl Rate {
    fn start() -> Self {
        Self { started: Instant::now(), ticks: ticks() }
    }

    /// `None` if the machine has no such counter.
    fn ticks_per_second(&self) -> Option<f64> {
        const MIN_RUN: Duration = Duration::from_millis(20);
        std::thread::sleep(MIN_RUN.saturating_sub(self.started.elapsed()));
        let elapsed = self.started.elapsed();
        let now = ticks()?;
        let passed = now.checked_sub(self.ticks?).filter(|passed| *passed > 0)?;
        Some(passed as f64 / elapsed.as_secs_f64())
    }
}
