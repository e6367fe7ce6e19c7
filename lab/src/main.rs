//! The command `memferry-lab`: runs the experiments and prints the report.
//!
//! ```text
//! lab/claims.toml, experiments ──► Report ──► table and summary on standard output
//!                                        └──► --json FILE
//! ```
//!
//! Exit status: 0 no claim failed, 1 one did, 2 the report could not be made or written. What the rows mean is in the
//! library; nothing is judged here.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use memferry_lab::claims::{Claims, ClaimsError};
use memferry_lab::experiments;
use memferry_lab::report::{Report, ReportError};
use memferry_lab::verdict::Status;

/// Gives every claim of the papers a verdict.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Also write the verdicts to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum LabError {
    #[error("lab/claims.toml: {0}")]
    Claims(#[from] ClaimsError),
    #[error("the experiments do not fit lab/claims.toml: {0}")]
    Report(#[from] ReportError),
    #[error("cannot encode the verdicts: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot write to standard output: {0}")]
    Print(io::Error),
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("memferry-lab: {error}");
            ExitCode::from(2)
        }
    }
}

/// Makes the report; returns how many claims failed.
fn run(arguments: &Arguments) -> Result<usize, LabError> {
    let report = Report::assemble(&Claims::built_in()?, experiments::run())?;
    write!(io::stdout(), "{report}\n{}\n", report.summary()).map_err(LabError::Print)?;
    if let Some(path) = &arguments.json {
        let json = report.to_json()?;
        std::fs::write(path, json).map_err(|error| LabError::Write { path: path.clone(), error })?;
    }
    Ok(report.count(Status::Fail))
}
