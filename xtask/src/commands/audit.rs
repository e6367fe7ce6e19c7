//! The audit of the dependencies, and the coverage of the tests. Both need cargo commands that are separate crates.

use crate::failure::Failure;
use crate::layout::{WORKSPACES, Workspace};
use crate::line::Line;
use crate::stages::{print, run as run_line};
use crate::work::Work;

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.cargo_tool("cargo-deny")?;
    work.setup.cargo_tool("cargo-machete")?;
    for workspace in WORKSPACES {
        let name = format!("licences, sources, bans of {}", workspace.name);
        work.stages.run(&name, &deny(workspace, &["licenses", "sources", "bans"]))?;
    }
    // cargo machete searches every folder below.
    work.stages.run("unused dependencies", &Line::new("cargo").arg("machete"))?;
    if run_line(&Line::new("cargo").args(["deny", "fetch", "db"])) == 0 {
        for workspace in WORKSPACES {
            let name = format!("vulnerabilities of {}", workspace.name);
            work.stages.run(&name, &deny(workspace, &["advisories"]))?;
        }
    } else {
        work.leave_out("vulnerabilities were NOT looked up, since their list cannot be downloaded");
    }
    print(format_args!("\nx audit: all stages passed{}", work.left_out()));
    Ok(())
}

/// The rules (deny.toml) are in the root, for all workspaces.
fn deny(workspace: &Workspace, what: &[&str]) -> Line {
    let manifest = if workspace.folder == "." {
        "Cargo.toml".to_owned()
    } else {
        format!("{}/Cargo.toml", workspace.folder)
    };
    let line = Line::new("cargo").args(["deny", "--manifest-path", &manifest, "check"]);
    line.arg("--hide-inclusion-graph").args(what)
}

pub(super) fn coverage(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.component("llvm-tools")?;
    work.setup.cargo_tool("cargo-llvm-cov")?;
    for workspace in WORKSPACES {
        work.stages.run(&format!("coverage of {}", workspace.name), &coverage_of(workspace))?;
    }
    Ok(())
}

fn coverage_of(workspace: &Workspace) -> Line {
    let line = workspace.cargo(&["llvm-cov", "--workspace", "--ignore-run-fail"]);
    // Ignores the incomplete profiles of killed programs.
    line.env("LLVM_PROFDATA_FLAGS", "--failure-mode=all")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{PRODUCT_WORKSPACE, RESEARCH_WORKSPACE};

    #[test]
    fn workspaces_share_the_rules() {
        assert_eq!(
            deny(&RESEARCH_WORKSPACE, &["licenses"]).to_string(),
            "cargo deny --manifest-path research/Cargo.toml check --hide-inclusion-graph licenses"
        );
        assert!(deny(&PRODUCT_WORKSPACE, &["bans"]).to_string().contains("--manifest-path Cargo.toml "));
    }

    #[test]
    fn coverage_ignores_incomplete_profiles() {
        assert_eq!(
            coverage_of(&RESEARCH_WORKSPACE).to_string(),
            "cd research && env LLVM_PROFDATA_FLAGS=--failure-mode=all cargo llvm-cov --workspace --ignore-run-fail"
        );
    }
}
