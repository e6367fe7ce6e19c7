//! The `memferry` command.
//!
//! ```text
//! serve    runs the service on a socket            status   shows what it is doing
//! config   checks its configuration file           metrics  the same for Prometheus
//! policy   shows or changes the service's policy   profile  counts what another program copies
//! tune     measures this machine                   advise   which copies are worth handing to the engine
//! copy     copies a file, by kernel or engine, or from and to another node
//! share    grants a file to a user of another node rotate, flip, overlay   edit pictures
//! 9p       serves a directory to 9P clients        demo     shows all of it with two clients
//! dashboard  shows the metrics live, in a browser
//! doctor   says which engines this machine has, and what keeps them from being used
//! completions   prints what a shell needs to complete commands and options
//! ```
//!
//! Each command is a thin client of the libraries.

mod advise;
mod canvas;
mod child;
mod config;
mod copy;
mod dashboard;
mod demo;
mod doctor;
mod files;
mod http;
mod interrupt;
mod manuals;
mod measure;
mod metrics;
mod mover;
mod ninep;
mod output;
mod overlay;
mod picture;
mod policy;
mod profile;
mod roff;
mod serve;
mod share;
mod socket;
mod status;
mod tune;
mod turn;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use memferry_service::printable::printable_lines;
use output::AlreadyLogged;

/// User-level DMA: hand memory-to-memory transfers to an engine and compute meanwhile.
#[derive(Parser)]
#[command(name = "memferry", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service until SIGTERM or SIGINT.
    Serve(serve::Arguments),
    /// Say which DMA engines this machine has, and how to make each usable.
    Doctor(doctor::Arguments),
    /// Check a configuration file of the service, or print one.
    Config(config::Arguments),
    /// Measure this machine and store the engine's thresholds.
    Tune(tune::Arguments),
    /// Measure whether a program gains by handing its copies to the engine, and from which size.
    Advise(advise::Arguments),
    /// Run a program and report what it copies and what handing the copies over would have saved.
    Profile(profile::Arguments),
    /// Show what a running service is doing.
    Status(status::Arguments),
    /// Show the policy of a running service, or change it.
    Policy(policy::Arguments),
    /// Print the status of a running service for Prometheus, or serve it over HTTP.
    Metrics(metrics::Arguments),
    /// Serve a page that shows what a running service is doing, live in a browser.
    Dashboard(dashboard::Arguments),
    /// Copy a file, with the kernel or the engine, or between a file and memory of another node.
    Copy(copy::Arguments),
    /// Let a user of another node read or write a file's bytes, and print the token for it.
    Share(share::Arguments),
    /// Serve files to 9P clients.
    #[command(name = "9p")]
    NineP(ninep::Arguments),
    /// Rotate a PNG picture clockwise by quarter turns.
    Rotate(turn::RotateArguments),
    /// Mirror a PNG picture.
    Flip(turn::FlipArguments),
    /// Lay one PNG picture over another, with one colour as transparent.
    Overlay(overlay::Arguments),
    /// Demonstrate a service with two clients: grants, refusals and a revocation.
    Demo(demo::Arguments),
    /// Print what a shell needs to complete commands and options.
    Completions {
        /// For bash: `memferry completions bash > ~/.local/share/bash-completion/completions/memferry`.
        shell: Shell,
    },
    /// A client of the demo that runs orders from standard input.
    #[command(hide = true)]
    DemoClient(demo::ClientArguments),
    /// Write the manual pages of all commands to a directory; for packages.
    #[command(hide = true)]
    ManualPages(manuals::Arguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Policy(arguments) => policy::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Dashboard(arguments) => dashboard::run(&arguments),
        Command::Copy(arguments) => copy::run(&arguments),
        Command::Share(arguments) => share::run(&arguments),
        Command::NineP(arguments) => ninep::run(&arguments),
        Command::Rotate(arguments) => turn::rotate(&arguments),
        Command::Flip(arguments) => turn::flip(&arguments),
        Command::Overlay(arguments) => overlay::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Completions { shell } => completions(shell),
        Command::DemoClient(arguments) => demo::run_client(&arguments),
        Command::ManualPages(arguments) => manuals::run(&arguments, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::reader_is_gone(&error) || error.is::<AlreadyLogged>() => ExitCode::FAILURE,
        Err(error) => {
            // It may name files and quote texts of other users.
            // With its terminal closed, the status says it.
            let _ = writeln!(std::io::stderr(), "memferry: {}", printable_lines(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Prints the completions. The generator panics when the reader is gone, so it writes to memory.
fn completions(shell: Shell) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "memferry", &mut script);
    std::io::stdout().write_all(&script).map_err(output::Unwritten)?;
    Ok(())
}

/// The error of a failed command: a message for the user.
type CommandError = Box<dyn std::error::Error>;

#[cfg(test)]
mod tests {
    use super::Cli;

    #[test]
    fn command_lines_of_pages_parse() {
        let mistakes = memferry_pages::mistakes::<Cli>("memferry");
        assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    }
}
