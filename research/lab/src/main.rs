//! The command `memferry-lab`: runs the experiments, prints the verdicts, and writes the report and the figures.
//!
//! ```text
//! initiation PROTOCOL ──► the shortest interleaving that breaks it, step by step; figure 8 as SVG
//! workers ──► queues that move between 64 simulated workers
//! link-costs ──► what memferry-link's thread does to the bytes of an answer, measured here
//! research/lab/claims.toml, experiments ──► Report ──► table and summary on standard output
//!                        │               ├──► target/lab/report.html, or --html FILE
//!                        │               └──► --json FILE
//!                        ├──► --out DIR: figures/*.csv, figures/*.svg, sensitivity.csv
//!                        └──► target/lab/results: kept results, to resume an interrupted run
//! ```
//!
//! Exit status: 0 no claim failed; 1 a claim or an experiment failed; 2 the report could not be made or written. The library
//! explains the rows and judges them.

mod display;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use display::Display;
use memferry_lab::balancing;
use memferry_lab::claims::{Claims, ClaimsError};
use memferry_lab::experiments::{self, Outcome, Prepared, RunError};
use memferry_lab::figures::{self, FigureError};
use memferry_lab::markatos::protocols::CATALOGUE;
use memferry_lab::markatos::replay::{self, ReplayError, Request};
use memferry_lab::markatos::{diagram, story::Story};
use memferry_lab::nodes::costs;
use memferry_lab::parameters::ParametersError;
use memferry_lab::report::{Emulated, Machine, Page, Report, ReportError};
use memferry_lab::results::Results;
use memferry_lab::sensitivity::{self, Sensitivity};
use memferry_lab::table::Table;
use memferry_lab::verdict::Status;

/// Limit of states in a deep exploration.
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
    /// Write the report to this file instead of target/lab/report.html. With --only, no report is written without this option.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Run only what these claims and figures need, and show only their rows.
    #[arg(long, value_name = "ID", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Also measure how each figure of a predicted claim changes when a parameter changes by 20 %; takes a quarter of an hour
    /// or more, and resumes an interrupted run.
    #[arg(long)]
    sensitivity: bool,
    /// Ignore results kept by earlier runs.
    #[arg(long)]
    fresh: bool,
    /// Also explore the protocols with three processes in larger scenes; takes minutes and gigabytes.
    #[arg(long)]
    deep: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Shows how a protocol that starts transfers from user level breaks, access by access, or that it holds.
    Initiation(Initiation),
    /// Simulates queues that move between the 64 workers of a server, and prints what that gains.
    Workers,
    /// Measures what memferry-link's thread does to the bytes of an answer of 256 KiB, on this machine.
    LinkCosts,
}

/// Replays the findings on a protocol; without a name, lists the protocols.
#[derive(Args)]
struct Initiation {
    /// The protocol, for instance repeated-4.
    protocol: Option<String>,
    /// Number of processes: 1 (with a write buffer), 2 or 3.
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
    #[error("research/lab/claims.toml: {0}")]
    Claims(#[from] ClaimsError),
    #[error("the experiments do not fit research/lab/claims.toml: {0}")]
    Report(#[from] ReportError),
    #[error("the experiments: {0}")]
    Run(#[from] RunError),
    #[error("cannot encode the verdicts: {0}")]
    Encode(#[from] serde_json::Error),
    #[error(transparent)]
    Figure(#[from] FigureError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("the parameters of the simulated server: {0}")]
    Balancing(#[from] ParametersError),
    #[error("cannot write {}: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot keep results in {}: {error}", .path.display())]
    Keep { path: PathBuf, error: io::Error },
    #[error("cannot write to standard output: {0}")]
    Print(io::Error),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match &arguments.command {
        Some(Command::Initiation(initiation)) => show(initiation).map(|()| 0),
        Some(Command::Workers) => show_workers().map(|()| 0),
        Some(Command::LinkCosts) => show_link_costs().map(|()| 0),
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

/// Makes the report. Returns the number of failed claims and experiments.
fn run(arguments: &Arguments) -> Result<usize, LabError> {
    let claims = Claims::built_in()?;
    let papers = experiments::prepare(&claims, &arguments.only)?;
    let results = open_results(!arguments.fresh)?;
    let machine = Machine::at_hand();
    let outcomes = run_papers(&papers, &claims, &results);
    let tables: Vec<&Table> = outcomes.iter().flat_map(|outcome| outcome.tables.iter()).collect();
    if let Some(directory) = &arguments.out {
        tables.iter().try_for_each(|table| figures::write(table, directory))?;
    }
    let verdicts = outcomes.iter().flat_map(|outcome| outcome.verdicts.clone()).collect();
    let claims = claims.only(&arguments.only);
    let report = Report::assemble(&claims, verdicts)?;
    print(&format!("{report}\n{}\n", report.summary()))?;
    if let Some(path) = &arguments.json {
        write_file(path, &report.to_json()?)?;
    }
    let failures: Vec<&(String, RunError)> = outcomes.iter().flat_map(|outcome| &outcome.failures).collect();
    for (name, failure) in &failures {
        eprintln!("memferry-lab: {name} failed: {failure}");
    }
    let mut page = Page {
        claims: &claims,
        report: &report,
        papers: &papers,
        tables,
        failures,
        machine,
        sensitivity: Sensitivity::default(),
        emulated: Emulated::read(&directory().with_file_name("guest-ioat").join("copies.txt")),
        only: &arguments.only,
    };
    let place = page_place(arguments);
    // Written once before the long part, so that an interrupted run leaves a report.
    for runs in [false, true].into_iter().take(1 + usize::from(arguments.sensitivity)) {
        page.sensitivity = vary(&page, &results, runs)?.or_built_in(&claims);
        if let Some(path) = &place {
            write_file(path, &page.html())?;
        }
    }
    if arguments.sensitivity {
        let text = page.sensitivity.csv();
        match &arguments.out {
            Some(directory) => write_file(&directory.join("sensitivity.csv"), &text)?,
            None => print(&format!("\n{text}"))?,
        }
    }
    results.complaints().iter().for_each(|complaint| eprintln!("memferry-lab: {complaint}"));
    let broke = if arguments.deep { explore_deeply()? } else { 0 };
    if let Some(path) = &place {
        print(&format!("report: {}\n", path.display()))?;
    }
    Ok(report.count(Status::Fail) + page.failures.len() + broke)
}

/// How the figures change with the parameters. With `runs`, missing parts are computed; otherwise only kept ones are used.
fn vary(page: &Page<'_>, results: &Results, runs: bool) -> Result<Sensitivity, LabError> {
    let claims = Claims::built_in()?;
    let rows = page.report.rows();
    let jobs = page.papers.iter().map(|paper| sensitivity::jobs(paper, rows)).sum();
    let display = if runs { Display::new(jobs) } else { Display::hidden() };
    let mut all = Sensitivity::default();
    for paper in page.papers {
        let ended = |name: &str, kept| display.ended(name, kept);
        let table = sensitivity::table(paper, rows, &claims, (results, runs), ended)?;
        all.claims.extend(table.claims);
        all.changes.extend(table.changes);
        all.turns.extend(table.turns);
        all.missing.extend(table.missing);
    }
    display.finish();
    Ok(all)
}

/// Directory of this build's output: below cargo's target directory, beside the report.
fn directory() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("lab")
}

/// Path of the report: the default for a whole run, only `--html` for a part.
fn page_place(arguments: &Arguments) -> Option<PathBuf> {
    let own = || arguments.only.is_empty().then(|| directory().join("report.html"));
    arguments.html.clone().or_else(own)
}

fn open_results(recalls: bool) -> Result<Results, LabError> {
    let path = directory().join("results");
    let kept = |error| LabError::Keep { path: path.clone(), error };
    let program = Results::this_program().map_err(kept)?;
    Results::in_directory(&path, program, recalls).map_err(kept)
}

fn print(text: &str) -> Result<(), LabError> {
    write!(io::stdout(), "{text}").map_err(LabError::Print)
}

/// Explores larger scenes. Returns how many protocols break there that hold in the small scenes.
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

/// Replays the findings on one protocol.
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
            print_story(&story, asked.step, &mut out).map_err(LabError::Print)?;
        }
    }
    Ok(())
}

/// Simulates queues that move between workers.
fn show_workers() -> Result<(), LabError> {
    print(&balancing::simulate()?.to_string())
}

/// Measures the bytes of an answer of memferry-link.
fn show_link_costs() -> Result<(), LabError> {
    let [fresh, kept] = costs::measure();
    print(&format!(
        "an answer of 256 KiB: {fresh} ns in fresh memory, {kept} ns in memory that the allocator keeps\n"
    ))
}

/// Prints a story. With `step`, waits for a line of input before each line.
fn print_story(story: &Story, step: bool, out: &mut impl Write) -> io::Result<()> {
    for line in story.to_string().lines() {
        if step {
            out.flush()?;
            io::stdin().read_line(&mut String::new())?;
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Runs all experiments, except those with kept results.
fn run_papers(papers: &[Prepared], claims: &Claims, results: &Results) -> Vec<Outcome> {
    let display = Display::new(papers.iter().map(Prepared::jobs).sum());
    let ended = |name: &str, kept| display.ended(name, kept);
    let outcomes = papers.iter().map(|paper| paper.attempt(claims, results, ended)).collect();
    display.finish();
    outcomes
}

fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let made = directory.map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(path, text))
        .map_err(|error| LabError::Write { path: path.to_owned(), error })
}
