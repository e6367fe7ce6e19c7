//! The `memferry` command.
//!
//! ```text
//! serve    the service in front of a socket        status   what it is doing
//! config   its configuration file                  metrics  the same for Prometheus
//! policy   by which it decides, shown or changed   profile  what another program copies
//! tune     what this machine is measured for       advise   whether to hand copies over here, from which size
//! copy     a file through it, or embedded          rotate, flip, overlay   pictures
//! 9p       a directory for 9P clients              demo     all of it, with two users
//! ```
//!
//! Every command is a thin client of the library; what is measured and checked lives there.

mod advise;
mod canvas;
mod config;
mod copy;
mod demo;
mod files;
mod interrupt;
mod measure;
mod metrics;
mod mover;
mod ninep;
mod output;
mod overlay;
mod picture;
mod policy;
mod profile;
mod serve;
mod socket;
mod status;
mod tune;
mod turn;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use output::AlreadySaid;

/// User-level DMA: any process hands memory-to-memory transfers to an engine and goes on computing.
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
    /// Check a configuration file of the service, or print one.
    Config(config::Arguments),
    /// Measure this machine once, for engines to go by.
    Tune(tune::Arguments),
    /// Say whether a program should hand its copies over on this machine, and from which size.
    Advise(advise::Arguments),
    /// Run a program and report what it copies, and what handing that over would have saved.
    Profile(profile::Arguments),
    /// Show what a running service is doing.
    Status(status::Arguments),
    /// Show the policy of a running service, or give it another.
    Policy(policy::Arguments),
    /// Print what a running service is doing for Prometheus, or serve it over HTTP.
    Metrics(metrics::Arguments),
    /// Copy a file, its bytes moved by the engine.
    Copy(copy::Arguments),
    /// Serve files to 9P clients.
    #[command(name = "9p")]
    NineP(ninep::Arguments),
    /// Turn a PNG picture by quarters, clockwise.
    Rotate(turn::RotateArguments),
    /// Mirror a PNG picture.
    Flip(turn::FlipArguments),
    /// Lay one PNG picture over another, leaving out the pixels of one colour.
    Overlay(overlay::Arguments),
    /// Show all of it: a service, two clients, grants, refusals and a revocation.
    Demo(demo::Arguments),
    /// A client of the demo, ordered about line by line.
    #[command(hide = true)]
    DemoClient(demo::ClientArguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Policy(arguments) => policy::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Copy(arguments) => copy::run(&arguments),
        Command::NineP(arguments) => ninep::run(&arguments),
        Command::Rotate(arguments) => turn::rotate(&arguments),
        Command::Flip(arguments) => turn::flip(&arguments),
        Command::Overlay(arguments) => overlay::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoClient(arguments) => demo::run_client(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::reader_is_gone(&error) || error.is::<AlreadySaid>() => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("memferry: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a command ends with when it fails: a message for people.
type CommandError = Box<dyn std::error::Error>;
