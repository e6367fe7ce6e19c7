//! Measurements: each group gives rows with a value, its target and whether it holds.
//!
//! ```text
//! memferry-bench GROUP ─► probe placement ─► rounds, both sides interleaved ─► probe again ─► rows
//! ```
//!
//! Claims are ratios of two things measured in the same run, medians of the rounds with minimum and maximum. When the two
//! CPUs changed places meanwhile, the run is repeated. No test depends on a figure.

mod placement;
mod rows;
mod stages;
mod start;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Measures one group and prints its rows; without a group, lists them.
#[derive(Parser)]
struct Arguments {
    /// The group.
    group: Option<String>,
    /// Also write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Be the service of a measurement on this socket.
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
}

type BenchError = Box<dyn std::error::Error>;

/// A group's name, what it is about, and how it is measured.
type Group = (&'static str, &'static str, fn() -> Result<Vec<rows::Row>, BenchError>);

const GROUPS: &[Group] = &[
    ("start", "starting a transfer: through the ring, against system calls and the socket", start::measure),
    ("stages", "the path's own cost: admission, policy, channel, engine, settling", stages::measure),
];

fn run(arguments: &Arguments) -> Result<(), BenchError> {
    if let Some(socket) = &arguments.serve {
        return start::serve(socket);
    }
    let Some(name) = &arguments.group else {
        for (name, about, _) in GROUPS {
            println!("{name:<10} {about}");
        }
        return Ok(());
    };
    let Some((_, _, measure)) = GROUPS.iter().find(|(group, ..)| group == name) else {
        let names: Vec<_> = GROUPS.iter().map(|(name, ..)| *name).collect();
        return Err(format!("there is no group '{name}'; choose one of: {}", names.join(", ")).into());
    };
    let rows = placement::steady(*measure)?;
    rows::print(&rows);
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&rows)?;
        std::fs::write(path, text + "\n")
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memferry-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
