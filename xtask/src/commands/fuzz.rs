//! Runs fuzz targets on a nightly toolchain, counts their time, and keeps a small corpus of what they found.
//!
//! ```text
//! committed corpus ─┐                        ┌─► tests/fuzz/HOURS.toml         time and executions, added up
//! working corpus ───┴─► cargo fuzz, S seconds ┴─► merge ─► committed corpus    up to 64 files that reach the most
//! ```
//!
//! What a target finds goes to the working corpus below tests/fuzz/target, so that a later run continues there. `--all` also remembers
//! which targets it has run: interrupted, it goes on with the others.

mod choice;
mod hours;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::failure::Failure;
use crate::files;
use crate::layout::FUZZ;
use crate::line::Line;
use crate::place::Place;
use crate::setup::debian;
use crate::stages::print;
use crate::work::Work;
use choice::{LONGEST_BYTES, MOST_FILES, chosen};
use hours::{HOURS, Run};

/// The folder that a merge fills, whose files are not used: what it notes is.
const MERGED: &str = "corpus";
/// Names of files that people made, which stay in the corpus.
const SEED: &str = "seed-";
/// Names of files that a merge chose.
const CHOSEN: &str = "min-";

pub(super) fn run(work: &Work, target: Option<&str>, all: Option<u32>, seconds: u32) -> Result<(), Failure> {
    let targets = targets(work.place);
    if let Some(seconds) = all {
        return run_each(work, &targets, seconds);
    }
    let Some(target) = target else {
        targets.iter().for_each(print);
        return Ok(());
    };
    if !targets.iter().any(|name| name == target) {
        return Err(Failure::WrongUse(format!("fuzz: unknown target '{target}'; ./x fuzz lists them")));
    }
    let nightly = prepare(work)?;
    fuzz_and_keep(work, &nightly, target, seconds)
}

/// Runs each target for so many seconds, without counting the time.
pub(super) fn run_all(work: &Work, seconds: u32) -> Result<(), Failure> {
    let nightly = prepare(work)?;
    for target in targets(work.place) {
        fuzz(work, &nightly, &target, seconds)?;
    }
    Ok(())
}

/// Runs each target that an interrupted run has left, and counts.
fn run_each(work: &Work, targets: &[String], seconds: u32) -> Result<(), Failure> {
    let nightly = prepare(work)?;
    let state = work.place.at(FUZZ).join("target").join(format!("ran-each-for-{seconds}"));
    let text = fs::read_to_string(&state).unwrap_or_default();
    let mut ran: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    for target in targets {
        if ran.contains(target) {
            print(format_args!("x: {target} has run; remove {} to run all again", state.display()));
            continue;
        }
        fuzz_and_keep(work, &nightly, target, seconds)?;
        ran.insert(target.clone());
        let lines: String = ran.iter().map(|target| format!("{target}\n")).collect();
        files::write(&state, lines)?;
    }
    fs::remove_file(&state).map_err(|error| files::broken(&state, &error))
}

/// Sets up what fuzzing needs; returns the name of the toolchain.
fn prepare(work: &Work) -> Result<String, Failure> {
    work.setup.rust(&[])?;
    // Without the headers a target has nothing to fuzz.
    work.setup.tools(&[debian::CPP_COMPILER, debian::LIBFABRIC_HEADERS])?;
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

/// Where a target's findings are kept from run to run.
fn working(target: &str) -> String {
    format!("{FUZZ}/target/corpus/{target}")
}

fn committed(target: &str) -> String {
    format!("{FUZZ}/corpus/{target}")
}

/// Fuzzes a target, counts that, and keeps what reaches the most.
fn fuzz_and_keep(work: &Work, nightly: &str, target: &str, seconds: u32) -> Result<(), Failure> {
    let ran = fuzz(work, nightly, target, seconds)?;
    hours::add(&work.place.at(FUZZ).join(HOURS), target, ran)?;
    minimise(work, nightly, target)
}

fn fuzz(work: &Work, nightly: &str, target: &str, seconds: u32) -> Result<Run, Failure> {
    files::make(&work.place.at(&working(target)))?;
    let line = line(nightly, target, seconds);
    let mut ran = Run::default();
    work.stages.step(&format!("fuzzing {target}"), &line, || watched(&line, &mut ran))?;
    Ok(ran)
}

/// Runs a fuzzer, passes its words on, and learns from the last ones how much it did.
fn watched(line: &Line, ran: &mut Run) -> u8 {
    let Ok(mut child) = line.command().stderr(Stdio::piped()).spawn() else { return 127 };
    for said in child.stderr.take().into_iter().flat_map(|words| BufReader::new(words).lines()).flatten() {
        eprintln!("{said}");
        *ran = Run::of_line(&said).unwrap_or(*ran);
    }
    let status = child.wait().ok().and_then(|status| status.code()).unwrap_or(1);
    u8::try_from(status).unwrap_or(1)
}

/// Chooses the committed corpus from it and the working one: seeds stay, and few others that reach what the seeds do not.
fn minimise(work: &Work, nightly: &str, target: &str) -> Result<(), Failure> {
    let folder = work.place.at(FUZZ).join("target/merged");
    files::make_anew(&folder)?;
    // libFuzzer wants the folder to be there.
    files::make(&folder.join(MERGED))?;
    let control = folder.join("control");
    work.stages.run(&format!("minimising {target}"), &merge(nightly, target, &folder))?;
    let chosen = chosen(&files::read(&control)?, is_seed);
    let corpus = work.place.at(&committed(target));
    let read = |path: &PathBuf| fs::read(path).map_err(|error| files::broken(path, &error));
    let named = chosen.iter().filter_map(|path| Some((corpus.join(chosen_name(path)?), work.place.at(path))));
    // All are read before the last ones are removed, some of which may be chosen again.
    let kept: Vec<(PathBuf, Vec<u8>)> =
        named.map(|(into, from)| Ok((into, read(&from)?))).collect::<Result<_, Failure>>()?;
    for entry in fs::read_dir(&corpus).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(CHOSEN)) {
            fs::remove_file(entry.path()).map_err(|error| files::broken(&entry.path(), &error))?;
        }
    }
    print(format_args!("x: {target}: {} files chosen, of at most {MOST_FILES} with the seeds", kept.len()));
    kept.iter().try_for_each(|(path, bytes)| files::write(path, bytes))
}

fn is_seed(path: &str) -> bool {
    Path::new(path).file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(SEED))
}

/// The name in the committed corpus: libFuzzer's are SHA-1 sums.
fn chosen_name(path: &str) -> Option<String> {
    let name = Path::new(path).file_name()?.to_str()?;
    Some(if name.starts_with(CHOSEN) { name.to_owned() } else { format!("{CHOSEN}{name:.12}") })
}

fn line(nightly: &str, target: &str, seconds: u32) -> Line {
    Line::new("cargo")
        .arg(format!("+{nightly}"))
        .args(["fuzz", "run", "--fuzz-dir", FUZZ, target, &working(target), &committed(target), "--"])
        .arg(format!("-max_total_time={seconds}"))
        .without("CARGO_TARGET_DIR")
}

/// Runs all files once, and notes what each reaches.
fn merge(nightly: &str, target: &str, folder: &Path) -> Line {
    Line::new("cargo")
        .arg(format!("+{nightly}"))
        .args(["fuzz", "run", "--fuzz-dir", FUZZ, target])
        .arg(folder.join(MERGED))
        .args([committed(target), working(target)])
        .args(["--".to_owned(), "-merge=1".to_owned(), format!("-max_len={LONGEST_BYTES}")])
        .arg(format!("-merge_control_file={}", folder.join("control").display()))
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
                "env -u CARGO_TARGET_DIR cargo +nightly fuzz run --fuzz-dir {FUZZ} geometry {FUZZ}/target/corpus/geometry \
                 {FUZZ}/corpus/geometry -- -max_total_time=60"
            )
        );
    }

    #[test]
    fn targets_are_those_of_the_tree() {
        let place = Place::of_environment();
        let targets = targets(&place);
        assert!(targets.iter().any(|name| name == "geometry"));
        for target in targets {
            let seeds = fs::read_dir(place.at(&committed(&target))).into_iter().flatten().flatten();
            let files: Vec<_> = seeds.filter_map(|file| file.file_name().into_string().ok()).collect();
            assert!(!files.is_empty(), "{target} has no corpus");
            let chosen = files.iter().filter(|name| name.starts_with(CHOSEN)).count();
            assert!(chosen <= MOST_FILES, "{target} has {chosen} files");
        }
    }

    #[test]
    fn chosen_files_have_short_names() {
        let sum = "tests/fuzz/target/corpus/geometry/da39a3ee5e6b4b0d3255bfef95601890afd80709";
        assert_eq!(chosen_name(sum).unwrap(), "min-da39a3ee5e6b");
        assert_eq!(chosen_name("tests/fuzz/corpus/geometry/min-da39a3ee5e6b").unwrap(), "min-da39a3ee5e6b");
        assert!(is_seed("tests/fuzz/corpus/geometry/seed-plain") && !is_seed("seed-folder/min-1"));
    }
}
