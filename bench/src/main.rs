//! Measures memferry: each group gives rows with a value, its target and whether the target holds.
//!
//! ```text
//! memferry-bench GROUP ─► probe placement ─► rounds, both sides interleaved ─► probe again ─► rows
//! ```
//!
//! Claims are ratios of two things measured in the same run: medians over rounds, with minimum and maximum. A run during which
//! the two CPUs changed places is repeated. No test depends on a figure.

mod bulk;
mod children;
mod commands;
mod copier;
mod engine;
mod fileserver;
mod filled;
mod gpu;
mod hostile;
mod initiation;
mod pair;
mod peer;
mod peers;
mod placement;
mod plots;
mod policy;
mod pollution;
mod preload;
mod remote;
mod rows;
mod run;
mod scale;
mod service;
mod stages;
mod timing;
mod twod;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Parser;

use crate::children::Equipment;
use crate::run::Run;

/// Measures one group and prints its rows; without a group, lists them.
#[derive(Parser)]
struct Arguments {
    /// The group.
    group: Option<String>,
    /// Also write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run few rounds: checks that everything works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Measure only these parts of the group, separated by commas; an unknown part lists the known ones.
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<String>,
    /// Also put the rows into the group's tables of this page, between their marks; group `peers` makes all of its page.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Put the rows of this file, written by `--json`, into the page; measure nothing.
    #[arg(long, value_name = "FILE", requires = "page", conflicts_with_all = ["json", "quick", "only", "plots"])]
    from: Option<PathBuf>,
    /// Draw the sweeps as SVG files in this directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Run as the service of a measurement on this socket.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
    /// With the largest quotas.
    #[arg(long, hide = true)]
    roomy: bool,
    /// And with an engine process.
    #[arg(long, hide = true)]
    with_engine: bool,
    /// Run as the engine process of a measurement, with more of its options.
    #[arg(long, hide = true)]
    cuda_engine: bool,
    #[arg(hide = true, last = true)]
    options: Vec<String>,
    /// Hold this many random bytes until the input ends.
    #[arg(long, hide = true)]
    hold: Option<usize>,
    /// Run as the service of a measurement, on a socket, with a number of workers, as a user.
    #[arg(long, hide = true, num_args = 3)]
    serve_as: Vec<String>,
    /// Run as a file server or a receiver of a measurement.
    #[arg(long, hide = true, num_args = 1..)]
    files: Vec<String>,
    /// Run as a client of a measurement at scale.
    #[arg(long, hide = true, num_args = 1..)]
    scale: Vec<String>,
    /// Run as the owner of the memory that group `peers` reads: socket, bytes, its user, the reader's user.
    #[arg(long, hide = true, num_args = 4)]
    lend: Vec<String>,
    /// Run as the other process of a bulk measurement, with its files in this directory.
    #[arg(long, hide = true)]
    partner: Option<PathBuf>,
    /// Become this program, and end with the parent process.
    #[arg(long, hide = true, num_args = 1.., allow_hyphen_values = true)]
    with_parent: Vec<String>,
}

type BenchError = Box<dyn std::error::Error>;

/// A group's name, subject and function.
type Group = (&'static str, &'static str, fn(&Run) -> Result<Vec<rows::Row>, BenchError>);

const GROUPS: &[Group] = &[
    ("service", "what the service promises, each against the alternative", service::measure),
    ("scale", "what many queues, frames, requests and capabilities cost, against few", scale::measure),
    ("start", "of these, starting a transfer: ring, system call, socket", |run| {
        placement::steady(run, "start", |class| service::start::measure(run, class))
    }),
    (
        "initiation",
        "starting a transfer by the ring, a system call and a socket, beside the figures of 1997",
        |run| placement::steady(run, "initiation", |class| initiation::measure(run, class)),
    ),
    ("engine", "the CPU engine's copies and fills against glibc, on one core and on two", engine::measure),
    ("pollution", "what a copy costs a program with a working set in the caches", pollution::measure),
    ("overlap", "how much of a copy is hidden behind computing, by size", service::overlap::group),
    ("twod", "pictures turned and keyed by the engine, against OpenCV", twod::measure),
    (
        "bulk",
        "frames and messages between two processes, against UCX, sockets, pipes and process_vm_readv",
        bulk::measure,
    ),
    ("policy", "shares and latencies of clients under each policy", policy::measure),
    ("preload", "unmodified programs with the library that replaces memcpy", preload::measure),
    ("copier", "asynchronous copies against memcpy: overlapped computing, and chains", |run| {
        placement::steady(run, "copier", |_| copier::measure(run))
    }),
    ("fileserver", "what serving a GiB of files costs: memferry, diod, sendfile", fileserver::measure),
    ("gpu", "copies to and from the memory of an NVIDIA GPU, against the driver alone", gpu::measure),
    (PEERS, "memferry beside glibc, UCX, iceoryx2 and transfer engines, the newest of each", peers::measure),
    ("commands", "`memferry copy` against `cp`", commands::measure),
    (
        "remote",
        "memory of another node, against UCX alone, and files against rsync, scp and NFS",
        remote::measure,
    ),
    ("hostile", "what a client waits beside attackers, and whether the service ends", hostile::measure),
    ("stages", "the path's own cost: admission, policy, queue, engine, settling", |run| {
        placement::steady(run, "stages", |_| stages::measure(run))
    }),
];

/// Groups with parts; each refuses unknown ones.
const IN_PARTS: [&str; 13] = [
    "service",
    "scale",
    "engine",
    "pollution",
    "twod",
    "bulk",
    "policy",
    "preload",
    "fileserver",
    "gpu",
    "hostile",
    "remote",
    PEERS,
];

/// The group whose rows become a page.
const PEERS: &str = "peers";

/// Runs in another role, if the arguments name one.
fn play(arguments: &Arguments) -> Option<Result<(), BenchError>> {
    if let Some(socket) = &arguments.serve {
        let equipment = match () {
            () if arguments.with_engine => Equipment::Engine,
            () if arguments.roomy => Equipment::Roomy,
            () => Equipment::Ordinary,
        };
        return Some(children::serve(socket, equipment));
    }
    if arguments.cuda_engine {
        return Some(gpu::engine(&arguments.options));
    }
    if !arguments.serve_as.is_empty() {
        return Some(hostile::service::serve(&arguments.serve_as));
    }
    if !arguments.lend.is_empty() {
        return Some(peers::lend(&arguments.lend));
    }
    if let Some(length) = arguments.hold {
        return Some(children::hold(length));
    }
    if !arguments.files.is_empty() {
        let ends = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
        return Some(ends.map_err(BenchError::from).and_then(|()| fileserver::role(&arguments.files)));
    }
    if !arguments.scale.is_empty() {
        return Some(scale::role(&arguments.scale));
    }
    if let Some(directory) = &arguments.partner {
        return Some(bulk::partner::partner(directory));
    }
    (!arguments.with_parent.is_empty()).then(|| children::become_program(&arguments.with_parent))
}

fn run(arguments: &Arguments) -> Result<(), BenchError> {
    if let Some(played) = play(arguments) {
        return played;
    }
    let Some(name) = &arguments.group else {
        for (name, about, _) in GROUPS {
            println!("{name:<11} {about}");
        }
        return Ok(());
    };
    let Some((_, _, measure)) = GROUPS.iter().find(|(group, ..)| group == name) else {
        let names: Vec<_> = GROUPS.iter().map(|(name, ..)| *name).collect();
        return Err(format!("unknown group '{name}'; choose one of: {}", names.join(", ")).into());
    };
    if !arguments.only.is_empty() && !IN_PARTS.contains(&name.as_str()) {
        return Err(format!("group '{name}' has no parts; these have: {}", IN_PARTS.join(", ")).into());
    }
    if let (Some(from), Some(page)) = (&arguments.from, &arguments.page) {
        return refill(name, from, page);
    }
    if let Some(path) = arguments.page.as_ref().filter(|_| name != PEERS) {
        if arguments.quick || !arguments.only.is_empty() {
            return Err(
                "--page needs all rows of the group, well measured: without --quick and --only".into()
            );
        }
        // Before minutes of measuring: whether the rows have a place.
        filled::check(&read(path)?, name)?;
    }
    let mut run = Run::begin(arguments.quick, &arguments.only)?;
    run.plots_into(arguments.plots.as_deref());
    let rows = measure(&run)?;
    drop(run);
    rows::print(&rows);
    let text = if name == PEERS {
        peers::page::json(&rows)?
    } else {
        let measured = format!("on {}, {}", filled::day(SystemTime::now())?, peers::page::machine());
        let rows: Vec<_> = rows.into_iter().map(|row| row.dated(&measured)).collect();
        serde_json::to_string_pretty(&rows)? + "\n"
    };
    if let Some(path) = &arguments.json {
        write(path, &text)?;
    }
    if let Some(path) = &arguments.page {
        fill(name, path, &text)?;
    }
    Ok(())
}

/// Puts the rows of an earlier run into a page.
fn refill(group: &str, from: &Path, page: &Path) -> Result<(), BenchError> {
    fill(group, page, &read(from)?)
        .map_err(|error| format!("{} from {}: {error}", page.display(), from.display()).into())
}

/// Puts rows, as `--json` writes them, into a page.
fn fill(group: &str, page: &Path, json: &str) -> Result<(), BenchError> {
    let odd =
        |error: &dyn std::fmt::Display| format!("this is not what ./x bench {group} --json writes: {error}");
    let filled = if group == PEERS {
        peers::page::render(json).map_err(|error| odd(&error))?
    } else {
        let rows: Vec<rows::Row> = serde_json::from_str(json).map_err(|error| odd(&error))?;
        filled::fill(&read(page)?, group, &rows)?
    };
    write(page, &filled)
}

fn read(path: &Path) -> Result<String, BenchError> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()).into())
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

fn main() -> ExitCode {
    if let Some(code) = memferry_attackers::play_role(&[]) {
        return code;
    }
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memferry-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    #[test]
    fn command_lines_of_pages_parse() {
        let mistakes = memferry_pages::mistakes::<Arguments>("x bench");
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }
}
