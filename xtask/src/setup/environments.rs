//! Python virtual environments with pinned packages, in the build directory.
//!
//! ```text
//! target/NAME/pins equal ──► it exists        otherwise ──► python3 -m venv, pip install, pins written last
//! ```
//!
//! The pins name the folder too: programs of an environment that was moved do not start.

use std::fs;
use std::path::{Path, PathBuf};

use crate::line::Line;
use crate::stages;

/// An environment and its packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    /// The folder in the build directory.
    pub(crate) name: &'static str,
    pub(crate) pins: &'static [&'static str],
    /// Whether pip also installs what the packages depend on.
    with_dependencies: bool,
}

/// Builds and runs the Python package, and checks the types of its examples.
pub(crate) const PACKAGE: Environment =
    Environment::new("python", &["maturin==1.16.0", "mypy==2.4.1", "numpy==2.4.6"]);
/// Says on which Linux systems a wheel works.
pub(crate) const AUDIT: Environment =
    Environment::new("audit-python", &["auditwheel==6.8.2", "pyelftools==0.33"]);
/// The library that picture benchmarks compare with.
pub(crate) const OPENCV: Environment =
    Environment::new("bench-python", &["numpy==2.4.6", "opencv-python-headless==5.0.0.93"]);
/// Downloads the tests of mpi4py, whose sources pip must be able to describe.
pub(crate) const MPI: Environment = Environment::new("mpi-python", &["setuptools==59.8.0", "wheel==0.48.0"]);
/// Transfer engines of LLM serving, for the comparison. What they depend on is 5 GB for GPUs, and nothing that is used.
pub(crate) const TRANSFER_ENGINES: Environment = Environment {
    with_dependencies: false,
    ..Environment::new(
        "peers/python",
        &["mooncake-transfer-engine-non-cuda==0.3.13", "nixl-cu12==1.5.1", "numpy==2.4.6"],
    )
};

impl Environment {
    const fn new(name: &'static str, pins: &'static [&'static str]) -> Self {
        Self { name, pins, with_dependencies: true }
    }

    pub(crate) fn folder(&self, target: &Path) -> PathBuf {
        target.join(self.name)
    }

    pub(crate) fn program(&self, target: &Path, name: &str) -> PathBuf {
        self.folder(target).join("bin").join(name)
    }

    pub(crate) fn is_there(&self, target: &Path) -> bool {
        let pins = fs::read_to_string(self.folder(target).join("pins"));
        pins.is_ok_and(|pins| pins == self.noted(target))
    }

    fn noted(&self, target: &Path) -> String {
        format!("{}: {}\n", self.folder(target).display(), self.pins.join(" "))
    }

    /// Makes the environment; false if a step fails.
    pub(crate) fn make(&self, target: &Path) -> bool {
        stages::run_all(&self.lines(target)) == 0
            && fs::write(self.folder(target).join("pins"), self.noted(target)).is_ok()
    }

    fn lines(&self, target: &Path) -> [Line; 2] {
        let make = Line::new("python3").args(["-m", "venv", "--clear"]).arg(self.folder(target));
        let install = Line::new(self.program(target, "pip"));
        let install = install.args(["install", "--quiet", "--disable-pip-version-check"]);
        let alone = (!self.with_dependencies).then_some("--no-deps");
        [make, install.args(alone).args(self.pins)]
    }
}

/// Whether the system's Python can make environments.
pub(crate) fn can_make() -> bool {
    python("import ensurepip")
}

/// Whether the system's Python is new enough for the package.
pub(crate) fn is_new_enough() -> bool {
    python("import sys; sys.exit(sys.version_info < (3, 11))")
}

fn python(program: &str) -> bool {
    stages::output(&Line::new("python3").args(["-c", program])).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_made_with_its_pins() {
        let lines = PACKAGE.lines(Path::new("/t")).map(|line| line.to_string());
        assert_eq!(lines[0], "python3 -m venv --clear /t/python");
        assert_eq!(
            lines[1],
            "/t/python/bin/pip install --quiet --disable-pip-version-check maturin==1.16.0 mypy==2.4.1 numpy==2.4.6"
        );
    }

    #[test]
    fn transfer_engines_come_without_what_they_depend_on() {
        let lines = TRANSFER_ENGINES.lines(Path::new("/t")).map(|line| line.to_string());
        assert!(
            lines[1].contains(" install --quiet --disable-pip-version-check --no-deps mooncake-"),
            "{}",
            lines[1]
        );
    }

    #[test]
    fn another_folder_and_other_pins_are_another_environment() {
        let target = std::env::temp_dir().join(format!("xtask-pins-{}", std::process::id()));
        fs::create_dir_all(target.join("python")).unwrap();
        assert!(!PACKAGE.is_there(&target));
        let with = |folder: &Path, pins: &str| {
            fs::write(target.join("python/pins"), format!("{}: {pins}\n", folder.display())).unwrap();
            PACKAGE.is_there(&target)
        };
        let folder = target.join("python");
        let pins = "maturin==1.16.0 mypy==2.4.1 numpy==2.4.6";
        let found = [
            with(&folder, "maturin==1.0.0 mypy==2.4.1 numpy==2.4.6"),
            with(Path::new("/t/python"), pins),
            with(&folder, pins),
        ];
        fs::remove_dir_all(&target).unwrap();
        assert_eq!(found, [false, false, true]);
    }
}
