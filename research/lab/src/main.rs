//! The command `memferry-lab`: runs the experiments, prints the verdicts, and writes the report and the figures.
//!
//! ```text
//! initiation PROTOCOL ──► the shortest interleaving that breaks it, step by step; figure 8 as SVG
//! workers ──► queues that move between 64 simulated workers
//! link-costs ──► what memferry-link's thread does to the bytes of an answer, measured here
//! research/lab/claims.toml, experiments ──► Report ──► table and summary on standard output
//!                        │               ├──► target/lab/report.html, or --html FILE
//!                        │               └──► --json FILE
//!                        ├──► --out DIR: figures/*.csv, figures/*.svg, bands.csv
//!                        └──► target/lab/results: kept results, to resume an interrupted run
//! ```
//!
//! Exit status: 0 no claim failed; 1 a claim or an experiment failed; 2 the report could not be made or written. The library
//! explains the rows and judges them.

mod display;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use display::Display;
use memferry_lab::balancing;
use memferry_lab::bands::{self, Bands};
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
use memferry_lab::table::Table;
use memferry_lab::verdict::{Status, Verdict};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

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
    /// Only compute again how figures and verdicts of predicted claims vary within the ranges of all parameters together, for the
    /// papers whose committed part is out of date, and write the table; resumes an interrupted run.
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
    let mut results = open_results(!arguments.fresh)?;
    // A part of the lab measures what it was asked for.
    let is_whole = arguments.only.is_empty() && !arguments.sensitivity;
    if is_whole {
        results = results.begun();
    }
    if arguments.sensitivity {
        return study(arguments, &papers, &claims, &results);
    }
    let machine = Machine::at_hand();
    let outcomes = run_papers(&papers, &claims, &results);
    if is_whole {
        results.ended();
    }
    let tables: Vec<&Table> = outcomes.iter().flat_map(|outcome| outcome.tables.iter()).collect();
    if let Some(directory) = &arguments.out {
        tables.iter().try_for_each(|table| figures::write(table, directory))?;
    }
    let verdicts: Vec<Verdict> = outcomes.iter().flat_map(|outcome| outcome.verdicts.clone()).collect();
    let shown = claims.only(&arguments.only);
    let bands = Bands::built_in(&shown);
    let report = Report::assemble(&shown, verdicts)?.over(&bands);
    print(&format!("{report}\n{}\n{}\n", report.summary(), report.predictions(&papers)))?;
    if let Some(path) = &arguments.json {
        write_file(path, &report.to_json()?)?;
    }
    let failures: Vec<&(String, RunError)> = outcomes.iter().flat_map(|outcome| &outcome.failures).collect();
    for (name, failure) in &failures {
        eprintln!("memferry-lab: {name} failed: {failure}");
    }
    let page = Page {
        claims: &shown,
        report: &report,
        papers: &papers,
        tables,
        failures,
        machine,
        bands,
        emulated: Emulated::read(&directory().with_file_name("guest-ioat").join("copies.txt")),
        only: &arguments.only,
    };
    let place = page_place(arguments);
    if let Some(path) = &place {
        write_file(path, &page.html())?;
    }
    results.complaints().iter().for_each(|complaint| eprintln!("memferry-lab: {complaint}"));
    let broke = if arguments.deep { explore_deeply()? } else { 0 };
    if let Some(path) = &place {
        print(&format!("report: {}\n", path.display()))?;
    }
    Ok(report.count(Status::Fail) + page.failures.len() + broke)
}

/// Computes the table of the bands and writes it, without a report: that shows the committed one.
fn study(
    arguments: &Arguments,
    papers: &[Prepared],
    claims: &Claims,
    results: &Results,
) -> Result<usize, LabError> {
    let text = vary(papers, claims, (results, arguments.fresh))?.csv();
    match &arguments.out {
        Some(directory) => write_file(&directory.join("bands.csv"), &text)?,
        None => print(&text)?,
    }
    results.complaints().iter().for_each(|complaint| eprintln!("memferry-lab: {complaint}"));
    Ok(0)
}

/// Computes how figures and verdicts vary with the parameters, except what is kept. The committed part of a paper is used where it
/// is up to date, unless all is to be `fresh`.
fn vary(papers: &[Prepared], claims: &Claims, (results, fresh): (&Results, bool)) -> Result<Bands, LabError> {
    let display = Display::new(papers.iter().map(Prepared::jobs).sum::<usize>() * bands::MACHINES);
    let ended = |name: &str, kept| display.ended(name, kept);
    let committed = Bands::built_in(claims);
    let mut all = Bands::default();
    for paper in papers.iter().filter(|paper| !paper.is_study()) {
        let current = committed.current(paper, claims).filter(|_| !fresh);
        all.extend(current.map_or_else(|| bands::table(paper, claims, results, ended), Ok)?);
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
    let started = Instant::now();
    let display = Display::new(papers.iter().map(Prepared::jobs).sum());
    let ended = |name: &str, kept| display.ended(name, kept);
    let outcomes = papers.iter().map(|paper| paper.attempt(claims, results, ended)).collect();
    display.finish();
    let used = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].into_iter().filter_map(|who| {
        let usage = getrusage(who).ok()?;
        let time = usage.user_time() + usage.system_time();
        Some(time.num_milliseconds() as f64 / 1e3)
    });
    eprintln!(
        "memferry-lab: {:.1} s, and {:.1} s of processor time with that of the benchmarks",
        started.elapsed().as_secs_f64(),
        used.sum::<f64>()
    );
    outcomes
}

fn write_file(path: &Path, text: &str) -> Result<(), LabError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let made = directory.map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(path, text))
        .map_err(|error| LabError::Write { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    #[test]
    fn command_lines_of_pages_parse() {
        let mistakes = memferry_pages::mistakes::<Arguments>("x lab");
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }
}
