//! Builds, installs and runs the C library and the Python package.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::programs::{build, release};
use crate::failure::Failure;
use crate::layout::{self, binary, package};
use crate::line::Line;
use crate::setup::environments::PACKAGE;
use crate::stages::{execute, run_all, say};
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

/// Installs the C library from a build directory.
pub(crate) fn install_c(options: &[&str], built: &Path, prefix: &Path) -> Line {
    Line::new(format!("./{}", layout::C_INSTALL)).args(options).arg(built.join(binary::C_LIBRARY)).arg(prefix)
}

/// Builds the wheel in release mode and returns its path; the error is an exit status.
pub(crate) fn release_wheel(target: &Path) -> Result<Option<PathBuf>, u8> {
    match wheel(target, "release") {
        0 => Ok(wheels(&folder_of_wheels(target, "release")).pop()),
        status => Err(status),
    }
}

/// Builds the wheel and runs the Python that has it.
pub(super) fn python(work: &Work, arguments: &[OsString]) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    if !work.setup.environment(&PACKAGE) {
        return Err(Failure::setup("no environment for the Python package"));
    }
    let target = &work.place.target;
    match wheel(target, "release") {
        0 => {}
        status => return Err(Failure::Stage { stage: "wheel".to_owned(), status }),
    }
    let python = PACKAGE.program(target, "python3");
    if arguments.is_empty() {
        let wheel = wheels(&folder_of_wheels(target, "release")).pop().unwrap_or_default();
        say(format_args!("the wheel is {}; try it with {}", wheel.display(), python.display()));
        return Ok(());
    }
    Err(execute(&Line::new(python).args(arguments).within(&work.place.caller)))
}

/// Builds the wheel in a cargo profile and installs it in the environment; returns the exit status.
pub(super) fn wheel(target: &Path, profile: &str) -> u8 {
    let folder = folder_of_wheels(target, profile);
    if folder.exists() && fs::remove_dir_all(&folder).is_err() {
        return 1;
    }
    match run_all(&[build_wheel(target, profile, &folder)]) {
        0 => run_all(&[install_wheel(target, &wheels(&folder))]),
        status => status,
    }
}

fn folder_of_wheels(target: &Path, profile: &str) -> PathBuf {
    target.join("wheels").join(profile)
}

fn wheels(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "whl")).collect()
}

fn build_wheel(target: &Path, profile: &str, folder: &Path) -> Line {
    Line::new(PACKAGE.program(target, "maturin"))
        .args(["build", "--quiet", "--profile", profile, "--interpreter"])
        .arg(PACKAGE.program(target, "python3"))
        .arg("--out")
        .arg(folder)
        .within(layout::PYTHON)
}

fn install_wheel(target: &Path, wheels: &[PathBuf]) -> Line {
    let options = ["install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"];
    Line::new(PACKAGE.program(target, "pip")).args(options).args(wheels)
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
    fn library_is_installed_by_its_script() {
        let line = install_c(&["--strip"], Path::new("/t/release"), Path::new("/opt/m")).to_string();
        assert_eq!(line, format!("./{} --strip /t/release/libmemferry_c.a /opt/m", layout::C_INSTALL));
    }

    #[test]
    fn wheel_is_built_in_the_folder_of_the_package() {
        let target = Path::new("/t");
        assert_eq!(
            build_wheel(target, "dev", &folder_of_wheels(target, "dev")).to_string(),
            format!(
                "cd {} && /t/python/bin/maturin build --quiet --profile dev --interpreter /t/python/bin/python3 \
                 --out /t/wheels/dev",
                layout::PYTHON
            )
        );
        let install = install_wheel(target, &["/t/wheels/dev/m.whl".into()]).to_string();
        assert!(install.starts_with("/t/python/bin/pip install"), "{install}");
        assert!(install.ends_with("--force-reinstall --no-deps /t/wheels/dev/m.whl"), "{install}");
    }

    #[test]
    fn tests_of_the_package_know_the_command() {
        let line = python_tests(Path::new("/t")).to_string();
        assert!(
            line.starts_with("env MEMFERRY_TEST_COMMAND=/t/debug/memferry /t/python/bin/python3"),
            "{line}"
        );
    }
}
