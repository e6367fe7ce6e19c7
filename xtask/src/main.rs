//! The commands of `./x`: set-up, builds, tests, guests, house rules.
//!
//! ```text
//! ./x CMD ARGS ──► find or install Rust ──► cargo xtask CMD ARGS ──► commands ──► set-up ──► stages ──► exit status
//!                                                                        └─► check: git ls-files, cargo metadata ──► rules
//! ```
//!
//! Pure functions build the command lines and have tests; [`stages`] runs them. Each house rule (see [`rules`]) is a pure function
//! too; [`tree`] reads what they check. Only [`layout`] knows the paths of the tree.

mod arguments;
mod commands;
mod failure;
mod files;
mod guests;
mod layout;
mod line;
mod links;
mod packaging;
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
            // A stage has already printed its failure.
            if !matches!(failure, Failure::Stage { .. }) {
                eprintln!("x: {failure}");
            }
            ExitCode::from(failure.exit_status())
        }
    }
}
