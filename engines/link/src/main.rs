//! `memferry-link`: the engine process that reaches memory of other nodes.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use memferry_link::{Arguments, execute};

fn main() -> ExitCode {
    match execute(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "memferry-link: {error}");
            ExitCode::FAILURE
        }
    }
}
