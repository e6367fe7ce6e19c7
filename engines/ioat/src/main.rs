//! `memferry-engine-ioat`: an engine process for one I/OAT device.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use memferry_engine_ioat::{Options, run};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "memferry-engine-ioat: {error}");
            ExitCode::FAILURE
        }
    }
}
