//! Builds what is packed: programs and libraries in release mode, manual pages, the C library, and the Python wheel.
//!
//! ```text
//! one cargo build for all of them, so that they share their crates ──► manual pages, C library ──► Built
//! ```

use std::path::PathBuf;

use super::make_anew;
use super::tree::Built;
use crate::commands::{install_c, release_wheel};
use crate::failure::Failure;
use crate::layout::{PRODUCT_WORKSPACE, binary, package};
use crate::line::Line;
use crate::setup::environments::PACKAGE;
use crate::work::Work;

const CRATES: [&str; 4] = [package::CLI, package::C, package::PRELOAD, package::RECORDER];

/// Builds programs, libraries and manual pages.
pub(crate) fn programs(work: &Work) -> Result<Built, Failure> {
    work.setup.rust(&[])?;
    work.stages.run("programs and libraries", &cargo())?;
    let programs = work.place.built("release");
    let built = Built {
        root: work.place.root.clone(),
        manuals: work.place.built("package/man"),
        c: work.place.built("package/c"),
        programs,
    };
    make_anew(&built.manuals)?;
    make_anew(&built.c)?;
    let manuals = Line::new(built.programs.join(binary::CLI)).arg("manual-pages").arg(&built.manuals);
    work.stages.run("manual pages", &manuals)?;
    work.stages.run("C library", &install_c(&["--strip"], &built.programs, &built.c))?;
    Ok(built)
}

fn cargo() -> Line {
    let options = CRATES.iter().flat_map(|name| ["-p", name]);
    PRODUCT_WORKSPACE.cargo(&["build", "--release"]).args(options)
}

/// Builds the wheel; returns its path.
pub(crate) fn wheel(work: &Work) -> Result<PathBuf, Failure> {
    if !work.setup.environment(&PACKAGE) {
        return Err(Failure::setup("no environment for the Python package"));
    }
    let mut wheel = None;
    work.stages.step("wheel", "maturin build", || match release_wheel(&work.place.target) {
        Ok(found) => {
            wheel = found;
            0
        }
        Err(status) => status,
    })?;
    wheel.ok_or_else(|| Failure::setup("maturin built no wheel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_built_at_once() {
        assert_eq!(
            cargo().to_string(),
            "cargo build --release -p memferry-cli -p memferry-c -p memferry-preload -p memferry-recorder"
        );
    }
}
