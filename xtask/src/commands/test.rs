//! The tests: quick, ordinary, and full.
//!
//! ```text
//! ./x test --quick ──► workspaces, fuzz corpus
//! ./x test ──────────► these, Python, a few seconds of soak                          (what README.md and .ci/run name)
//! ./x test --full ───► these, and every part of `parts`, going on where a run was broken off
//! ```
//!
//! Each ends with a line that says what was left out.

mod full;
mod parts;
mod progress;
mod verdicts;

use std::time::Duration;

use super::bindings::{python_tests, wheel};
use super::soak;
use crate::arguments;
use crate::failure::Failure;
use crate::layout::{FUZZ, WORKSPACES, Workspace};
use crate::line::Line;
use crate::setup::environments::PACKAGE;
use crate::stages::{has, print};
use crate::work::Work;

/// Long enough to see that the soak works.
const SMOKE: Duration = Duration::from_secs(5);

pub(super) fn run(work: &Work, test: &arguments::Test) -> Result<(), Failure> {
    if test.arm {
        return parts::arm(work, None);
    }
    if test.full {
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
    for workspace in WORKSPACES {
        work.stages.run(&format!("tests of {}", workspace.name), &workspace_tests(workspace))?;
    }
    work.stages.run("fuzz corpus", &fuzz_corpus())
}

fn ordinary(work: &Work) -> Result<(), Failure> {
    quick(work)?;
    for tool in ["gcc", "clang", "valgrind"] {
        if !has(tool) {
            work.leave_out(format!("C programs were not tried with {tool}, which is not installed"));
        }
    }
    if work.setup.environment(&PACKAGE) {
        let target = &work.place.target;
        work.stages.step("wheel", "maturin build, pip install", || wheel(target, "dev"))?;
        work.stages.run("Python", &python_tests(target))?;
    } else {
        work.leave_out("Python was left out, since what it needs cannot be had");
    }
    run_soak(work, SMOKE)
}

fn run_soak(work: &Work, time: Duration) -> Result<(), Failure> {
    let line = soak::prepare(work)?.arg("--time").arg(format!("{}s", time.as_secs()));
    work.stages.run("soak", &line)
}

fn workspace_tests(workspace: &Workspace) -> Line {
    workspace.cargo(&["test", "--workspace"])
}

fn fuzz_corpus() -> Line {
    Line::new("cargo").args(["test", "--locked"]).within(FUZZ)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{PRODUCT_WORKSPACE, RESEARCH_WORKSPACE};

    #[test]
    fn workspaces_are_tested_in_their_folders() {
        assert_eq!(workspace_tests(&PRODUCT_WORKSPACE).to_string(), "cargo test --workspace");
        assert_eq!(workspace_tests(&RESEARCH_WORKSPACE).to_string(), "cd research && cargo test --workspace");
    }

    #[test]
    fn corpus_is_replayed_with_its_own_lock_file() {
        assert_eq!(fuzz_corpus().to_string(), format!("cd {FUZZ} && cargo test --locked"));
    }
}
