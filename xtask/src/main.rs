//! The house rules of memferry's sources, as a program: `cargo run -p xtask -- check`.
//!
//! ```text
//! git ls-files ──► SourceFile ──┐
//!                               ├──► rules ──► violations, sorted, each with a remedy ──► exit 1 if there is any
//! cargo metadata ──► Package ───┘
//! ```
//!
//! Each rule is a pure function in a module of its own (see [`rules`]); reading files and starting commands happens
//! in [`tree`] only. Nothing is ever rewritten, and what rustc or clippy already refuses is not checked again.

mod rules;
mod syntax;
mod tree;
mod violation;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of the memferry workspace.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the sources against the house rules.
    Check,
}

fn main() -> ExitCode {
    let Arguments { task: Task::Check } = Arguments::parse();
    match tree::read() {
        Ok(tree) => report(&tree),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}

fn report(tree: &tree::Tree) -> ExitCode {
    let violations = rules::check(tree);
    for violation in &violations {
        println!("{violation}");
    }
    let checked =
        format!("{} rules, {} files, {} crates", rules::COUNT, tree.files.len(), tree.packages.len());
    if violations.is_empty() {
        println!("xtask check: no violation ({checked})");
        ExitCode::SUCCESS
    } else {
        println!("xtask check: {} violations ({checked})", violations.len());
        ExitCode::FAILURE
    }
}
