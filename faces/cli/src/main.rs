//! The `memferry` command.
//!
//! ```text
//! serve    the service in front of a socket        status   what it is doing
//! copy     a file through it, or embedded          rotate, flip, overlay   pictures
//! demo     all of it, with two users
//! ```
//!
//! Every command is a thin client of the library; what is measured and checked lives there.

mod serve;
mod socket;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Show what a running service is doing.
    Status(status::Arguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memferry: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What a command ends with when it fails: a message for people.
type CommandError = Box<dyn std::error::Error>;
