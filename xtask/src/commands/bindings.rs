//! Builds, installs and runs the C library and the Python package.

use std::ffi::OsString;
use std::path::Path;

use super::programs::{build, release};
use crate::failure::Failure;
use crate::layout::{self, binary, package};
use crate::line::Line;
use crate::packaging::build::install_c;
use crate::packaging::wheel;
use crate::setup::environments::PACKAGE;
use crate::stages::{execute, say};
use crate::work::Work;

/// Installs the C library below a prefix, which is relative to the caller's directory.
pub(super) fn c(work: &Work, prefix: Option<&Path>) -> Result<(), Failure> {
    let prefix = prefix.map_or_else(|| work.place.built("c"), |prefix| work.place.caller.join(prefix));
    work.setup.rust(&[])?;
    build(&release(&layout::PRODUCT_WORKSPACE, package::C))?;
    build(&install_c(&["--strip"], &work.place.built("release"), &prefix))?;
    let prefix = prefix.display();
    say(format_args!(
        "installed below {prefix}; for pkg-config: export PKG_CONFIG_PATH={prefix}/lib/pkgconfig"
    ));
    Ok(())
}

/// Builds the wheel and runs the Python that has it.
pub(super) fn python(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    if !work.setup.environment(&PACKAGE) {
        return Err(Failure::setup("no environment for the Python package"));
    }
    let target = &work.place.target;
    let built = wheel::release(target)
        .map_err(|status| Failure::Stage { stage: "wheel".to_owned(), status })?
        .unwrap_or_default();
    let python = PACKAGE.program(target, "python3");
    if arguments.is_empty() {
        say(format_args!("the wheel is {}; try it with {}", built.display(), python.display()));
        return Ok(());
    }
    Err(execute(&Line::new(python).args(arguments).within(&work.place.caller)))
}

/// The tests of the installed package. They use the command of the same build.
pub(super) fn python_tests(target: &Path) -> Line {
    Line::new(PACKAGE.program(target, "python3"))
        .args(["-m", "unittest", "discover", "--start-directory", layout::PYTHON_TESTS])
        .env("MEMFERRY_TEST_COMMAND", target.join("debug").join(binary::CLI))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_the_package_know_the_command() {
        let line = python_tests(Path::new("/t")).to_string();
        assert!(
            line.starts_with("env MEMFERRY_TEST_COMMAND=/t/debug/memferry /t/python/bin/python3"),
            "{line}"
        );
    }
}
