//! Everything that `./x` does: set-up, builds, tests, guests, house rules.
//!
//! ```text
//! ./x CMD ARGS ──► Rust found or installed ──► cargo xtask CMD ARGS ──► commands ──► set-up ──► stages ──► exit status
//!                                                                          └─► check: git ls-files, cargo metadata ──► rules
//! ```
//!
//! Command lines are built by pure functions, which have tests; [`stages`] runs them. Each house rule is a pure function too (see
//! [`rules`]); what they look at is read in [`tree`] only. Where things are in the tree is said in [`layout`] only.

mod arguments;
mod commands;
mod failure;
mod guests;
mod layout;
mod line;
mod place;
mod rules;
mod setup;
mod stages;
mod syntax;
mod tree;
mod violation;
mod work;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::place::Place;
use crate::work::Work;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let place = Place::of_environment();
    let ended = std::env::set_current_dir(&place.root)
        .map_err(|error| Failure::setup(format!("{}: {error}", place.root.display())))
        .and_then(|()| commands::run(&Work::new(&place), &arguments.command));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A stage has said already that it failed.
            if !matches!(failure, Failure::Stage { .. }) {
                eprintln!("x: {failure}");
            }
            ExitCode::from(failure.exit_status())
        }
    }
}
