//! Runs one fuzz target on a nightly toolchain.

use std::fs;

use crate::failure::Failure;
use crate::layout::FUZZ;
use crate::line::Line;
use crate::place::Place;
use crate::setup::debian;
use crate::stages::print;
use crate::work::Work;

pub(super) fn run(work: &Work, target: Option<&str>, seconds: u32) -> Result<(), Failure> {
    let targets = targets(work.place);
    let Some(target) = target else {
        targets.iter().for_each(print);
        return Ok(());
    };
    if !targets.iter().any(|name| name == target) {
        return Err(Failure::WrongUse(format!("fuzz: unknown target '{target}'; ./x fuzz lists them")));
    }
    let nightly = prepare(work)?;
    work.stages.run(&format!("fuzzing {target}"), &line(&nightly, target, seconds))
}

/// Runs each target for so many seconds.
pub(super) fn run_all(work: &Work, seconds: u32) -> Result<(), Failure> {
    let nightly = prepare(work)?;
    for target in targets(work.place) {
        work.stages.run(&format!("fuzzing {target}"), &line(&nightly, &target, seconds))?;
    }
    Ok(())
}

/// Sets up what fuzzing needs; returns the name of the toolchain.
fn prepare(work: &Work) -> Result<String, Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::CPP_COMPILER])?;
    let nightly = work.setup.nightly(&["rust-src"])?;
    work.setup.cargo_tool("cargo-fuzz")?;
    work.setup.crates_of(FUZZ)?;
    Ok(nightly)
}

/// The names of the targets.
fn targets(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.at(FUZZ).join("fuzz_targets")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned)).collect();
    names.sort();
    names
}

fn line(nightly: &str, target: &str, seconds: u32) -> Line {
    Line::new("cargo")
        .arg(format!("+{nightly}"))
        .args(["fuzz", "run", "--fuzz-dir", FUZZ, target, "--"])
        .arg(format!("-max_total_time={seconds}"))
        .without("CARGO_TARGET_DIR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_fuzzed_for_the_time() {
        assert_eq!(
            line("nightly", "geometry", 60).to_string(),
            format!(
                "env -u CARGO_TARGET_DIR cargo +nightly fuzz run --fuzz-dir {FUZZ} geometry -- -max_total_time=60"
            )
        );
    }

    #[test]
    fn targets_are_those_of_the_tree() {
        let place = Place::of_environment();
        assert!(targets(&place).iter().any(|name| name == "geometry"));
    }
}
