//! `memferry-engine-cuda`: an engine process for one NVIDIA GPU.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use memferry_engine_cuda::{Options, run};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "memferry-engine-cuda: {error}");
            ExitCode::FAILURE
        }
    }
}
