//! The tests: quick, ordinary, and full.
//!
//! ```text
//! ./x test --quick ──► workspaces, fuzz corpus
//! ./x test ──────────► these, for root also as an ordinary user, Python, a few seconds of soak      (what README.md and .ci/run name)
//! ./x test --full ───► these, and every part of `parts`; continues an interrupted run
//! ```
//!
//! The last line says what was left out.

mod another_user;
mod dpdk;
mod examples;
mod full;
mod libfabric;
mod matrix;
mod newer_ucx;
mod parts;
mod progress;
mod proof;
mod publish;
mod service;
mod verdicts;

use std::path::Path;
use std::time::Duration;

use super::bindings::python_tests;
use super::soak;
use crate::arguments;
use crate::failure::Failure;
use crate::layout::{FUZZ, PRODUCT_WORKSPACE, WORKSPACES, Workspace, package, test};
use crate::line::Line;
use crate::packaging::wheel;
use crate::setup::environments::PACKAGE;
use crate::stages::{has, print};
use crate::work::Work;

/// The seed of property tests, so that what has passed passes again. A `cargo test` draws new inputs.
const SEED: &str = "1";
/// Overrides [`SEED`]; read by proptest.
const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";
/// Enough to show that the soak works.
const SMOKE: Duration = Duration::from_secs(5);

pub(super) fn run(work: &Work, test: &arguments::Test) -> Result<(), Failure> {
    if test.arm {
        return parts::arm(work, None);
    }
    if test.full || test.list {
        return full::run(work, test);
    }
    if test.quick {
        quick(work)?;
        print(
            "\nx test: the workspaces and the fuzz corpus passed; left out (--quick): Python, soak, and what \
             ./x test --full adds",
        );
        return Ok(());
    }
    ordinary(work)?;
    let further: Vec<&str> = parts::further().map(|part| part.name).collect();
    work.leave_out(format!("left to ./x test --full: {}", further.join(", ")));
    print(format_args!("\nx test: all stages passed{}", work.left_out()));
    Ok(())
}

fn quick(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.crates_of(FUZZ)?;
    work.stages.run(&format!("build of {}", PRODUCT_WORKSPACE.name), &build())?;
    for workspace in WORKSPACES {
        let line = workspace_tests(workspace, &work.place.target, &seed());
        work.stages.run(&format!("tests of {}", workspace.name), &line)?;
    }
    work.stages.run("fuzz corpus", &fuzz_corpus())
}

fn ordinary(work: &Work) -> Result<(), Failure> {
    quick(work)?;
    another_user::again(work)?;
    for tool in ["gcc", "clang", "valgrind"] {
        if !has(tool) {
            work.leave_out(format!("C programs were not run with {tool}, which is not installed"));
        }
    }
    let has_python = work.setup.environment(&PACKAGE);
    if has_python {
        let target = &work.place.target;
        work.stages.step("wheel", "maturin build, pip install", || wheel::build(target, "dev"))?;
        work.stages.run("Python", &python_tests(target))?;
    } else {
        work.leave_out("Python was left out: it is not available");
    }
    run_soak(work, SMOKE, has_python)
}

/// Runs the soak with the build of the tests.
fn run_soak(work: &Work, time: Duration, has_python: bool) -> Result<(), Failure> {
    let line = soak::prepare(work, has_python)?.arg("--time").arg(format!("{}s", time.as_secs()));
    work.stages.run("soak", &line)
}

/// Builds and runs the soak.
fn long_soak(work: &Work, time: Duration) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.stages.run(&format!("build of {}", PRODUCT_WORKSPACE.name), &build())?;
    let has_python = work.setup.environment(&PACKAGE) && wheel::build(&work.place.target, "dev") == 0;
    run_soak(work, time, has_python)
}

/// Sends random messages to the 9P server.
fn random_messages(work: &Work, time: Duration) -> Result<(), Failure> {
    let line =
        PRODUCT_WORKSPACE.cargo(&["test", "-p", "memferry-ninep", "--test", "random", "--", "--nocapture"]);
    work.stages.run("random 9P messages", &line.env("MEMFERRY_9P_SOAK", time.as_secs().to_string()))
}

/// Kills an engine process again and again while clients use it.
fn engine_kills(work: &Work, kills: u32) -> Result<(), Failure> {
    let (file, name) = test::ENGINE_KILLS;
    let line = PRODUCT_WORKSPACE.cargo(&["test", "-p", package::CLI, "--test", file, "--", "--exact", name]);
    work.stages.run(
        &format!("{kills} kills of an engine process"),
        &line.env("MEMFERRY_ENGINE_KILLS", kills.to_string()),
    )
}

/// Revokes grants to another node while its users use them.
fn remote_revocations(work: &Work, revocations: u32) -> Result<(), Failure> {
    let (file, name) = test::REVOCATIONS;
    let line = PRODUCT_WORKSPACE.cargo(&["test", "-p", package::CLI, "--test", file, "--", "--exact", name]);
    work.stages.run(
        &format!("{revocations} revocations of grants to another node"),
        &line.env("MEMFERRY_LINK_REVOCATIONS", revocations.to_string()),
    )
}

/// Builds the whole product at once, so that programs and libraries share their crates with the tests.
fn build() -> Line {
    PRODUCT_WORKSPACE.cargo(&["build", "--workspace", "--all-targets"])
}

fn seed() -> String {
    std::env::var(SEED_VARIABLE).unwrap_or_else(|_| SEED.to_owned())
}

/// Tests that need a library find it where [`build`] put it.
fn workspace_tests(workspace: &Workspace, target: &Path, seed: &str) -> Line {
    let line = workspace.cargo(&["test", "--workspace"]).env("MEMFERRY_TEST_BUILT", target.join("debug"));
    line.env(SEED_VARIABLE, seed)
}

fn fuzz_corpus() -> Line {
    Line::new("cargo").args(["test", "--locked"]).within(FUZZ)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RESEARCH_WORKSPACE;

    #[test]
    fn workspaces_are_tested_in_their_folders() {
        let line = |workspace| workspace_tests(workspace, Path::new("/t"), "7").to_string();
        assert_eq!(
            line(&PRODUCT_WORKSPACE),
            "env MEMFERRY_TEST_BUILT=/t/debug PROPTEST_RNG_SEED=7 cargo test --workspace"
        );
        assert!(line(&RESEARCH_WORKSPACE).starts_with("cd research && "));
    }

    #[test]
    fn corpus_is_replayed_with_its_own_lock_file() {
        assert_eq!(fuzz_corpus().to_string(), format!("cd {FUZZ} && cargo test --locked"));
    }
}
