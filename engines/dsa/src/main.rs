//! `memferry-engine-dsa`: an engine process for work queues of Intel's DSA.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use memferry_engine_dsa::{Options, run};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "memferry-engine-dsa: {error}");
            ExitCode::FAILURE
        }
    }
}
