//! Crates and Python sources as a registry would get them, and their interfaces against the last release.
//!
//! ```text
//! cargo publish --workspace --dry-run ──► packed, unpacked and built; nothing is uploaded
//! maturin sdist ──► pip wheel: the Python package from its sources alone ──► auditwheel: the systems on which it works
//! git tag v* ──► cargo semver-checks against the last one, or a word that there is none
//! ```

use std::path::{Path, PathBuf};

use super::progress;
use crate::failure::Failure;
use crate::files::make_anew;
use crate::layout::PRODUCT_WORKSPACE;
use crate::line::Line;
use crate::packaging::{build, wheel};
use crate::setup::environments::AUDIT;
use crate::stages::{output, print, run as run_line};
use crate::work::Work;

const CHECKER: &str = "cargo-semver-checks";

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    if run_line(&asks_the_registry()) != 0 {
        return Err(Failure::setup("cargo cannot ask the registry which versions it has"));
    }
    work.stages.run("crates", &dry_run(&folder(work)?))?;
    let source = build::source(work)?;
    work.stages.run("wheel from its sources", &wheel::build_source(&work.place.target, &source))?;
    if work.setup.environment(&AUDIT) {
        work.stages.step("systems of the wheel", "auditwheel show", || wheel::audit(&work.place.target))?;
    } else {
        work.leave_out("auditwheel was NOT RUN: it is not available");
    }
    let tags = Line::new("git").args(["describe", "--tags", "--abbrev=0", "--match", "v*"]);
    let Some(tag) = output(&tags) else {
        print("x: interfaces were not compared with a release: there is no tag v* of one yet");
        return Ok(());
    };
    work.setup.cargo_tool(CHECKER)?;
    work.stages.run("interfaces", &compare(tag.trim()))
}

/// Asks for all crates as `cargo publish` does, and changes nothing.
fn asks_the_registry() -> Line {
    PRODUCT_WORKSPACE.cargo(&["update", "--dry-run", "--quiet"])
}

/// A build directory for these sources only. Cargo unpacks what it packed once for each directory and version, and would build
/// crates against the earlier state of others.
fn folder(work: &Work) -> Result<PathBuf, Failure> {
    let all = work.place.built("publish");
    let sources = progress::sources(work.place).unwrap_or_else(|| format!("run-{}", std::process::id()));
    let folder = all.join(sources);
    if !folder.exists() {
        make_anew(&all)?;
    }
    Ok(folder)
}

/// Files that are not committed yet are packed too.
fn dry_run(folder: &Path) -> Line {
    let line = PRODUCT_WORKSPACE.cargo(&["publish", "--workspace", "--dry-run", "--allow-dirty"]);
    line.arg("--target-dir").arg(folder)
}

fn compare(tag: &str) -> Line {
    PRODUCT_WORKSPACE.cargo(&["semver-checks", "--workspace", "--baseline-rev", tag])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_uploaded() {
        let line = dry_run(Path::new("/t/publish/abc")).to_string();
        let options = "--workspace --dry-run --allow-dirty --target-dir /t/publish/abc";
        assert_eq!(line, format!("cargo publish {options}"));
    }

    #[test]
    fn baseline_is_the_tag() {
        assert!(compare("v0.1.0").to_string().ends_with("--baseline-rev v0.1.0"));
    }
}
