//! The link's tests over a newer UCX than this machine's: that of a later release of Debian, with that release's C library.
//!
//! ```text
//! cargo test --test link ──► builds as ever ──► runner: mount namespace in which the unpacked loader is the system's ──► tests
//! ```
//!
//! The tests and all programs that they start run with the unpacked C library and UCX. Nothing outside the namespace changes.

use std::path::Path;

use crate::commands::unpacked::{self, LIBRARIES, LOADER};
use crate::failure::Failure;
use crate::files::write;
use crate::layout::{PRODUCT_WORKSPACE, test};
use crate::line::Line;
use crate::packaging::chroot;
use crate::stages::output;
use crate::work::Work;

/// Every program that is started after the mount needs the libraries of this loader, so the shell starts the tests itself.
const WITH_LOADER: &str = "libraries=$1 loader=$2; shift 2
mount --bind \"$libraries/$loader\" \"/lib64/$loader\" && export LD_LIBRARY_PATH=\"$libraries\" && exec \"$@\"
";
/// Words before the program that cargo runs, with spaces between them.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    chroot::needs_rights()?;
    work.setup.rust(&[])?;
    let unpacked = unpacked::newer_ucx(work)?;
    let libraries = unpacked.join(LIBRARIES);
    let version = version(&libraries)?;
    let script = unpacked.join("with-loader");
    write(&script, WITH_LOADER)?;
    work.stages.run(&format!("link over UCX {version}"), &line(&script, &libraries, &version))
}

fn version(libraries: &Path) -> Result<String, Failure> {
    let program = libraries.join("../../bin/ucx_info");
    let line = Line::new(libraries.join(LOADER)).arg("--library-path").arg(libraries);
    let said = output(&line.arg(program).arg("-v")).unwrap_or_default();
    let version = said.lines().next().and_then(|line| line.rsplit(' ').next()).map(str::to_owned);
    version.ok_or_else(|| Failure::setup("the unpacked UCX does not say its version"))
}

fn line(script: &Path, libraries: &Path, version: &str) -> Line {
    let runner = format!("unshare --mount sh {} {} {LOADER}", script.display(), libraries.display());
    PRODUCT_WORKSPACE
        .cargo(&["test", "--workspace", "--test", test::LINK])
        .env(RUNNER, runner)
        .env("MEMFERRY_TEST_UCX_VERSION", version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_know_which_version_they_are_to_find() {
        let line = line(Path::new("/s"), Path::new("/u"), "1.2.3").to_string();
        assert!(line.contains("_RUNNER='unshare --mount sh /s /u ld-linux-x86-64.so.2' "), "{line}");
        assert!(line.contains("MEMFERRY_TEST_UCX_VERSION=1.2.3 "), "{line}");
        assert!(line.ends_with(" cargo test --workspace --test link"), "{line}");
    }
}
