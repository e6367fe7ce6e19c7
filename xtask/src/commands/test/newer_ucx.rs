//! The link's tests over a newer UCX than this machine's: that of a later release of Debian, with that release's C library.
//!
//! ```text
//! unpacked UCX, C library, loader ──► mount namespace in which that loader is the system's ──► cargo test --test link
//! ```
//!
//! The tests and all programs that they start run with that C library. Nothing outside the namespace changes.

use std::path::Path;

use crate::commands::unpacked::{self, LIBRARIES, LOADER};
use crate::failure::Failure;
use crate::layout::{PRODUCT_WORKSPACE, package, test};
use crate::line::Line;
use crate::packaging::chroot;
use crate::stages::output;
use crate::work::Work;

/// Every program that is started later needs the libraries of this loader, so the shell starts it.
const WITH_LOADER: &str = "libraries=$1 loader=$2; shift 2
mount --bind \"$libraries/$loader\" \"/lib64/$loader\" && export LD_LIBRARY_PATH=\"$libraries\" && exec \"$@\"";

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    chroot::needs_rights()?;
    work.setup.rust(&[])?;
    let libraries = unpacked::newer_ucx(work)?.join(LIBRARIES);
    let version = version(&libraries)?;
    // Not with that release's libraries.
    work.stages.run(&format!("build of {}", PRODUCT_WORKSPACE.name), &super::build())?;
    work.stages.run(&format!("link over UCX {version}"), &line(&libraries, &version))
}

fn version(libraries: &Path) -> Result<String, Failure> {
    let program = libraries.join("../../bin/ucx_info");
    let line = Line::new(libraries.join(LOADER)).arg("--library-path").arg(libraries);
    let said = output(&line.arg(program).arg("-v")).unwrap_or_default();
    let version = said.lines().next().and_then(|line| line.rsplit(' ').next()).map(str::to_owned);
    version.ok_or_else(|| Failure::setup("the unpacked UCX does not say its version"))
}

fn line(libraries: &Path, version: &str) -> Line {
    let line = Line::new("unshare").args(["--mount", "sh", "-c", WITH_LOADER, "sh"]);
    let line = line.arg(libraries).args([LOADER, "cargo", "test", "-p", package::CLI, "--test", test::LINK]);
    line.env("MEMFERRY_TEST_UCX_VERSION", version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_know_which_version_they_are_to_find() {
        let line = line(Path::new("/u"), "1.2.3").to_string();
        assert!(line.contains("MEMFERRY_TEST_UCX_VERSION=1.2.3 unshare --mount sh -c "), "{line}");
        assert!(
            line.ends_with(" sh /u ld-linux-x86-64.so.2 cargo test -p memferry-cli --test link"),
            "{line}"
        );
    }
}
