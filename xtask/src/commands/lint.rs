//! Static checks of the sources.
//!
//! ```text
//! formatting ──► clippy ──► documentation ──► house rules ──► 64-bit Arm ──► shellcheck
//! ```

use crate::failure::Failure;
use crate::layout::{FUZZ, SCRIPTS, WORKSPACES, firmware, package};
use crate::line::Line;
use crate::setup::ARM;
use crate::stages::{has, print};
use crate::work::Work;

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[ARM])?;
    for (name, line) in stages() {
        work.stages.run(&name, &line)?;
    }
    if has("shellcheck") {
        work.stages.run("shellcheck", &shellcheck())?;
    } else {
        work.leave_out("shellcheck was left out: it is not installed");
    }
    print(format_args!("\nx lint: all stages passed{}", work.left_out()));
    Ok(())
}

/// The scripts pass functions by name, with their arguments. shellcheck takes such functions for some that never run, or get no
/// arguments, under numbers that depend on the version.
fn shellcheck() -> Line {
    Line::new("shellcheck").arg("--exclude=SC2119,SC2120,SC2317,SC2329").args(SCRIPTS)
}

/// The stages in order, quick ones first.
fn stages() -> Vec<(String, Line)> {
    let mut stages = Vec::new();
    for workspace in WORKSPACES {
        let line = workspace.cargo(&["fmt", "--all", "--check"]);
        stages.push((format!("formatting of {}", workspace.name), line));
    }
    for (name, folder) in [("the fuzz targets", FUZZ), ("the firmware", firmware::FOLDER)] {
        let manifest = format!("{folder}/Cargo.toml");
        let line = Line::new("cargo").args(["fmt", "--manifest-path", &manifest, "--check"]);
        stages.push((format!("formatting of {name}"), line));
        // Built only by parts of the tests, which do not mend it.
        let line = Line::new("cargo").args(["fetch", "--locked", "--manifest-path", &manifest]);
        stages.push((format!("lock file of {name}"), line));
    }
    // This program again, but cargo rebuilds it if its sources changed.
    let rules = Line::new("cargo").args(["run", "-q", "-p", package::XTASK, "--", "check"]);
    stages.push(("house rules".to_owned(), rules));
    for workspace in WORKSPACES {
        let name = workspace.name;
        let clippy = workspace.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
        stages.push((format!("clippy of {name}"), clippy));
        let doc = workspace.cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        stages.push((format!("documentation of {name}"), doc));
        let arm = workspace.cargo(&["check", "--workspace", "--target", ARM]);
        stages.push((format!("64-bit Arm, {name}"), arm));
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::RESEARCH_WORKSPACE;

    #[test]
    fn every_workspace_gets_every_check() {
        let stages: Vec<(String, String)> =
            stages().into_iter().map(|(name, line)| (name, line.to_string())).collect();
        for workspace in WORKSPACES {
            for (name, word) in [
                ("formatting of", "cargo fmt --all --check"),
                ("clippy of", "cargo clippy --workspace --all-targets -- -D warnings"),
                ("documentation of", "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps"),
                ("64-bit Arm,", "cargo check --workspace --target aarch64-unknown-linux-gnu"),
            ] {
                let name = format!("{name} {}", workspace.name);
                let found = stages.iter().find(|stage| stage.0 == name).unwrap_or_else(|| panic!("{name}"));
                assert!(found.1.contains(word), "{}", found.1);
            }
        }
        assert!(stages.iter().any(|(_, line)| line == "cargo run -q -p xtask -- check"));
    }

    #[test]
    fn another_workspace_is_linted_in_its_folder() {
        assert_eq!(RESEARCH_WORKSPACE.cargo(&["fmt"]).to_string(), "cd research && cargo fmt");
    }
}
