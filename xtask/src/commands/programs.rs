//! Commands that build a program and execute it in the caller's directory, so that paths are relative to that.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{peers, unpacked};
use crate::failure::Failure;
use crate::files::{copy, make_anew};
use crate::layout::{PRODUCT_WORKSPACE, RESEARCH_WORKSPACE, Workspace, binary, engine, examples, package};
use crate::line::Line;
use crate::setup::debian;
use crate::setup::environments::OPENCV;
use crate::stages::{execute, run, say};
use crate::work::Work;

/// The demo's argument that the engines' folder follows.
const ENGINES: &str = "--engines";
/// The demo's argument for which the link is built.
const NODES: &str = "--nodes";
/// Environment variable with the Python that has OpenCV.
const BENCH_PYTHON: &str = "MEMFERRY_BENCH_PYTHON";
/// Environment variable with the folder of newer releases to compare with.
const BENCH_PEERS: &str = "MEMFERRY_BENCH_PEERS";
/// Groups and their parts that compare with UCX.
const WITH_UCX: [(&str, &str); 3] = [("service", "ucx"), ("bulk", "messages"), ("peers", "ucx")];

pub(super) fn demo(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    if arguments.iter().any(|argument| argument == NODES) {
        work.setup.rust(&[])?;
        build(&release(&PRODUCT_WORKSPACE, package::LINK))?;
        let mut with_link = arguments.to_vec();
        with_link.push("--link".into());
        with_link.push(work.place.built("release").join(binary::LINK).into_os_string());
        return command_line(work, "demo", &with_link);
    }
    let is_wanted = |argument: &OsString| argument == ENGINES;
    if !arguments.iter().any(is_wanted) {
        return command_line(work, "demo", arguments);
    }
    work.setup.rust(&[])?;
    let folder = engines(work)?;
    let (before, after) = arguments.split_at(arguments.iter().position(is_wanted).unwrap_or(0) + 1);
    let mut with_folder = before.to_vec();
    with_folder.push(folder.into_os_string());
    with_folder.extend_from_slice(after);
    command_line(work, "demo", &with_folder)
}

/// Builds the engine processes of the demo into one folder, with the fake driver for the CUDA engine.
fn engines(work: &Work) -> Result<PathBuf, Failure> {
    for name in [package::ENGINE_C, package::ENGINE_CUDA, package::FAKE_CUDA] {
        build(&release(&PRODUCT_WORKSPACE, name))?;
    }
    let built = work.place.built("release");
    let folder = work.place.target.join("engines");
    make_anew(&folder)?;
    let compile = Line::new("cc").args(["-std=c11", "-O2", "-I", engine::HEADER_FOLDER, examples::ENGINE]);
    let compile = compile.arg(built.join(binary::ENGINE_LIBRARY)).arg("-o").arg(folder.join(engine::EXAMPLE));
    build(&compile.args(["-lgcc_s", "-lpthread", "-ldl", "-lm"]))?;
    for (from, to) in [(engine::CUDA, engine::CUDA), (engine::FAKE_CUDA, engine::CUDA_LIBRARY)] {
        copy(&built.join(from), &folder.join(to))?;
    }
    Ok(folder)
}

/// Builds what `memferry profile` needs, too: README.md names it next.
pub(super) fn advise(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    build(&release(&PRODUCT_WORKSPACE, package::RECORDER))?;
    command_line(work, "advise", arguments)
}

fn command_line(work: &Work, command: &str, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    build(&release(&PRODUCT_WORKSPACE, package::CLI))?;
    let line = program(work, binary::CLI).arg(command).args(arguments);
    Err(execute(&line))
}

pub(super) fn lab(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    for line in lab_builds() {
        build(&line)?;
    }
    Err(execute(&program(work, binary::LAB).args(arguments)))
}

/// Builds the lab, and the benchmarks that its live rows start.
pub(super) fn lab_builds() -> [Line; 2] {
    [release(&PRODUCT_WORKSPACE, package::BENCH), release(&RESEARCH_WORKSPACE, package::LAB)]
}

pub(super) fn bench(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    let names = |group: &str| arguments.iter().any(|argument| argument == group);
    if WITH_UCX.iter().any(|(group, part)| names(group) && wants(arguments, part)) {
        work.setup.optional_tools(&[debian::UCX], "UCX: its rows are not measured");
    }
    let python = (names("twod") && work.setup.environment(&OPENCV))
        .then(|| OPENCV.program(&work.place.target, "python3"));
    if names("commands") {
        build(&release(&PRODUCT_WORKSPACE, package::CLI))?;
    }
    let mut surroundings = Vec::new();
    if names("remote") {
        surroundings = remote(work)?;
    }
    if names("preload") {
        build(&release(&PRODUCT_WORKSPACE, package::PRELOAD))?;
    }
    build(&release(&PRODUCT_WORKSPACE, package::BENCH))?;
    let mut line = with_surroundings(program(work, binary::BENCH), names, python.as_deref());
    for (name, folder) in surroundings {
        line = line.env(name, folder);
    }
    if names("peers") {
        line = line.env(BENCH_PEERS, peers::prepare(work, |part| wants(arguments, part)));
    } else if names("remote") {
        // Nodes read by the same engines.
        let part = |part: &str| part == "engines" && wants(arguments, part);
        line = line.env(BENCH_PEERS, peers::prepare(work, part));
    }
    Err(execute(&line.args(arguments)))
}

/// Builds the programs of group `remote`, and unpacks what it compares with, if that can be had. Gives variables that name the folders.
fn remote(work: &Work) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    for name in [package::CLI, package::LINK] {
        build(&release(&PRODUCT_WORKSPACE, name))?;
    }
    work.setup.optional_tools(&[debian::UCX, debian::UCX_HEADERS], "UCX: its rows are not measured");
    let mut found = Vec::new();
    for (variable, folder) in [
        ("MEMFERRY_BENCH_UCX", unpacked::newer_ucx(work)),
        ("MEMFERRY_BENCH_REMOTE_TOOLS", unpacked::file_servers(work)),
    ] {
        match folder {
            Ok(folder) => found.push((variable, folder)),
            Err(failure) => say(format_args!("{failure}: some rows are not measured")),
        }
    }
    Ok(found)
}

/// Whether the arguments of a benchmark choose this part, or none.
fn wants(arguments: &[OsString], part: &str) -> bool {
    let mut words = arguments.iter().filter_map(|argument| argument.to_str());
    let chosen = words.find_map(|word| Some(word.strip_prefix("--only")?.strip_prefix('=')));
    let parts = match chosen {
        None => return true,
        Some(Some(parts)) => parts,
        Some(None) => words.next().unwrap_or_default(),
    };
    parts.split(',').any(|chosen| chosen == part)
}

fn with_surroundings(line: Line, names: impl Fn(&str) -> bool, python: Option<&Path>) -> Line {
    // The allocator places frames of a client's own memory; these groups measure them on huge pages.
    let line = if names("engine") || names("twod") {
        line.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    } else {
        line
    };
    match python {
        Some(python) => line.env(BENCH_PYTHON, python),
        None => line,
    }
}

/// Builds a package in release mode.
pub(super) fn release(workspace: &Workspace, package: &str) -> Line {
    workspace.cargo(&["build", "--release", "-p", package])
}

/// Builds without a stage: only cargo's output is printed.
pub(super) fn build(line: &Line) -> Result<(), Failure> {
    match run(line) {
        0 => Ok(()),
        status => Err(Failure::Stage { stage: line.to_string(), status }),
    }
}

/// A built program, in the caller's directory.
fn program(work: &Work, name: &str) -> Line {
    Line::new(work.place.built("release").join(name)).within(&work.place.caller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn programs_run_in_the_callers_directory() {
        let place = Place { root: "/tree".into(), caller: "/home/a".into(), target: "/tree/target".into() };
        let line = program(&Work::new(&place), "memferry").arg("demo");
        assert_eq!(line.to_string(), "cd /home/a && /tree/target/release/memferry demo");
    }

    #[test]
    fn packages_are_built_in_their_workspace() {
        assert_eq!(release(&PRODUCT_WORKSPACE, "a").to_string(), "cargo build --release -p a");
        assert_eq!(
            release(&RESEARCH_WORKSPACE, "b").to_string(),
            "cd research && cargo build --release -p b"
        );
    }

    #[test]
    fn parts_are_found_in_either_form() {
        let wants = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            wants(&words, "ucx")
        };
        assert!(wants("service") && wants("service --quick"));
        assert!(wants("service --only start,ucx --quick") && wants("service --only=ucx"));
        assert!(!wants("service --only start --json ucx") && !wants("service --only=start"));
        assert!(!wants("service --only"));
    }

    #[test]
    fn groups_of_the_engine_take_huge_pages() {
        let line = |group: &'static str| {
            with_surroundings(Line::new("b"), move |name| name == group, Some(Path::new("/p"))).to_string()
        };
        assert_eq!(line("engine"), "env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MEMFERRY_BENCH_PYTHON=/p b");
        assert_eq!(line("service"), "env MEMFERRY_BENCH_PYTHON=/p b");
    }
}
