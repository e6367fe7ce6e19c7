//! Soak test: random clients of every interface against a real service, while clients and services are killed, stopped and
//! deprived of resources.
//!
//! ```text
//! memferry-soak ─┬─ services: memferry serve, memferry 9p serve ─ killed, stopped, restarted, short of descriptors
//!                ├─ clients: this program in a role, a C and a Python program ─ killed, stopped, short of memory
//!                ├─ their lines ─► was the error to be expected? ─► findings
//!                └─ samples: completions, bytes, memory, descriptors, threads; back to the initial values at the end?
//! ```
//!
//! The seed determines what each client does and the order of abuse, but not how processes interleave: a finding that depends on
//! the interleaving may take several runs to reproduce. The soak does not measure performance, since the machine is busy.

mod abuse;
mod clients;
mod output;
mod process;
mod random;
mod report;
mod roles;
mod runner;
mod service;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use clap::{Parser, Subcommand};
use rustix::process::{Signal, set_parent_process_death_signal};

/// Runs random clients against services that are abused, and reports findings.
#[derive(Parser)]
struct Arguments {
    /// Duration: 90s, 10m, 1h.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    time: Duration,
    /// Seed of the random choices; by default a new one.
    #[arg(long)]
    seed: Option<u64>,
    /// Also write the report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    programs: Programs,
    #[command(subcommand)]
    task: Option<Task>,
}

/// Programs used besides this one. What is not named is left out of the run and listed in the report.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Programs {
    /// The memferry command; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    memferry: Option<PathBuf>,
    /// The client in C.
    #[arg(long, value_name = "FILE")]
    c_client: Option<PathBuf>,
    /// A Python interpreter with the memferry package.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// The client in Python.
    #[arg(long, value_name = "FILE")]
    python_client: Option<PathBuf>,
    /// The library that replaces memcpy.
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// The library that makes the time of day jump.
    #[arg(long, value_name = "FILE")]
    clock: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Task {
    /// Run as one client.
    Part(roles::Part),
    /// Run a program that is killed when the process that started it ends.
    #[command(hide = true)]
    With {
        /// The program and its arguments.
        #[arg(num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let wrong = || format!("'{text}' is not a duration; write 90s, 10m or 1h");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    match number.checked_mul(seconds) {
        Some(time) if (1..=7 * 24 * 3600).contains(&time) => Ok(Duration::from_secs(time)),
        _ => Err(format!("{text} is out of range; choose one second to one week")),
    }
}

/// Executes another program, which is killed when the process that started this one ends.
fn execute(words: &[String]) -> Result<(), SoakError> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (program, arguments) = words.split_first().ok_or("no program is named")?;
    Err(format!("cannot start {program}: {}", Command::new(program).args(arguments).exec()).into())
}

pub(crate) type SoakError = Box<dyn std::error::Error>;

fn run(arguments: Arguments) -> Result<ExitCode, SoakError> {
    match arguments.task {
        Some(Task::Part(part)) => return Ok(roles::run(&part)),
        Some(Task::With { words }) => execute(&words)?,
        None => {}
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = arguments.seed.unwrap_or(now.as_nanos() as u64 ^ u64::from(std::process::id()));
    let report = runner::run(seed, arguments.time, &arguments.programs)?;
    report.print();
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n")
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("memferry-soak: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_pages_parse() {
        let mistakes = memferry_pages::mistakes::<Arguments>("x soak");
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }

    #[test]
    fn durations_have_units_and_bounds() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        for wrong in ["", "s", "0", "-1", "1d", "99999999999999999999s", "999999999h", "1.5m"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
