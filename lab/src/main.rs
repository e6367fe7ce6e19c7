//! The command `memferry-lab`: runs the experiments, prints the report, and writes the figures.
//!
//! ```text
//! initiation PROTOCOL ──► the shortest interleaving that breaks it, told step by step; figure 8 as SVG
//! lab/claims.toml, experiments ──► Report ──► table and summary on standard output
//!                        │               └──► --json FILE
//!                        └──► --out DIR: figures/*.csv, figures/*.svg, sensitivity.csv
//! ```
//!
//! Exit status: 0 no claim failed, 1 one did, 2 the report could not be made or written. What the rows mean is in the
//! library; nothing is judged here.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget};
use memferry_lab::claims::{Claims, ClaimsError};
use memferry_lab::experiments::{self, Outcome, Prepared, RunError};
use memferry_lab::figures::{self, FigureError};
use memferry_lab::markatos::protocols::CATALOGUE;
use memferry_lab::markatos::replay::{self, ReplayError, Request};
use memferry_lab::markatos::{diagram, story::Story};
use memferry_lab::report::{Report, ReportError};
use memferry_lab::sensitivity;
use memferry_lab::verdict::Status;

/// States after which a deep exploration goes no deeper.
const DEEP_STATES: usize = 3_000_000;

/// Gives every claim of the papers a verdict.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Also write the verdicts to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the figures into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run what these claims and figures need only, and show their rows only.
    #[arg(long, value_name = "ID", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Also show how each figure of a predicted claim moves when a parameter changes by 20 %; takes minutes.
    #[arg(long)]
    sensitivity: bool,
    /// Also explore the protocols with three processes in larger scenes; takes minutes and gigabytes.
    #[arg(long)]
    deep: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Shows how a way to start a transfer from user level breaks, access by access, or that it does not.
    Initiation(Initiation),
}

/// Replays what the exploration of a protocol found; without a name, lists the protocols.
#[derive(Args)]
struct Initiation {
    /// The protocol, for instance repeated-4.
    protocol: Option<String>,
    /// How many processes there are: 1 (with a write buffer), 2 or 3.
    #[arg(long, default_value_t = 2)]
    processes: u8,
    /// One of the processes is malicious.
    #[arg(long)]
    attack: bool,
    /// Two CPUs issue at the same time.
    #[arg(long)]
    two_cpus: bool,
    /// Wait for a line of input before each step.
    #[arg(long)]
    step: bool,
    /// Write the prototype's state diagram (figure 8) to this SVG file.
    #[arg(long, value_name = "FILE")]
    diagram: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum LabError {
    #[error("lab/claims.toml: {0}")]
    Claims(#[from] ClaimsError),
    #[error("the experiments do not fit lab/claims.toml: {0}")]
    Report(#[from] ReportError),
    #[error("the experiments: {0}")]
    Run(#[from] RunError),
    #[error("cannot encode the verdicts: {0}")]
    Encode(#[from] serde_json::Error),
    #[error(transparent)]
    Figure(#[from] FigureError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot write to standard output: {0}")]
    Print(io::Error),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match &arguments.command {
        Some(Command::Initiation(initiation)) => show(initiation).map(|()| 0),
        None => run(&arguments),
    };
    match ended {
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
    let claims = Claims::built_in()?;
    let papers = experiments::prepare(&claims, &arguments.only)?;
    let outcomes = run_papers(&papers, &claims)?;
    if let Some(directory) = &arguments.out {
        for table in outcomes.iter().flat_map(|outcome| outcome.tables.iter()) {
            figures::write(table, directory)?;
        }
    }
    let verdicts = outcomes.into_iter().flat_map(|outcome| outcome.verdicts).collect();
    let report = Report::assemble(&claims.only(&arguments.only), verdicts)?;
    write!(io::stdout(), "{report}\n{}\n", report.summary()).map_err(LabError::Print)?;
    if let Some(path) = &arguments.json {
        write_file(path, &report.to_json()?)?;
    }
    if arguments.sensitivity {
        let mut changes = Vec::new();
        for paper in &papers {
            changes.extend(sensitivity::table(paper, report.rows(), &claims)?);
        }
        let text = sensitivity::csv(&changes);
        match &arguments.out {
            Some(directory) => write_file(&directory.join("sensitivity.csv"), &text)?,
            None => write!(io::stdout(), "\n{text}").map_err(LabError::Print)?,
        }
    }
    let broke = if arguments.deep { explore_deeply()? } else { 0 };
    Ok(report.count(Status::Fail) + broke)
}

/// Prints what larger scenes give; returns how many protocols broke in one that hold in the small ones.
fn explore_deeply() -> Result<usize, LabError> {
    let mut broke = 0;
    for entry in CATALOGUE.iter().filter(|entry| entry.lacks.is_none()) {
        for deep in replay::deep(entry, DEEP_STATES) {
            writeln!(io::stdout(), "{}", deep.line).map_err(LabError::Print)?;
            broke += usize::from(deep.broke);
        }
    }
    Ok(broke)
}

/// Replays an exploration's findings.
fn show(asked: &Initiation) -> Result<(), LabError> {
    if let Some(path) = &asked.diagram {
        write_file(path, &diagram::svg())?;
    }
    let mut out = io::stdout();
    let Some(protocol) = asked.protocol.clone() else {
        let list = CATALOGUE.iter().map(|entry| {
            let about = entry.lacks.map_or(entry.source.to_owned(), |lacks| format!("without {lacks}"));
            format!("{:<26} {about}\n", entry.name)
        });
        return write!(out, "{}", list.collect::<String>()).map_err(LabError::Print);
    };
    let cpus = if asked.two_cpus { 2 } else { 1 };
    let shown =
        replay::replay(&Request { protocol, processes: asked.processes, attack: asked.attack, cpus })?;
    writeln!(out, "{}", shown.head).map_err(LabError::Print)?;
    for (line, story) in shown.scenes {
        writeln!(out, "\n{line}").map_err(LabError::Print)?;
        if let Some(story) = story {
            tell(&story, asked.step, &mut out).map_err(LabError::Print)?;
        }
    }
    Ok(())
}

/// Prints a story, line after line where each is waited for.
fn tell(story: &Story, step: bool, out: &mut impl Write) -> io::Result<()> {
    for line in story.to_string().lines() {
        if step {
            out.flush()?;
            io::stdin().read_line(&mut String::new())?;
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Runs all, with a bar where standard error is a terminal.
fn run_papers(papers: &[Prepared], claims: &Claims) -> Result<Vec<Outcome>, RunError> {
    let jobs: usize = papers.iter().map(Prepared::jobs).sum();
    let terminal = io::stderr().is_terminal();
    let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(jobs as u64), target);
    let outcomes = papers.iter().map(|paper| paper.run(claims, || bar.inc(1))).collect();
    bar.finish_and_clear();
    outcomes
}

fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    std::fs::write(path, text).map_err(|error| LabError::Write { path: path.to_owned(), error })
}
