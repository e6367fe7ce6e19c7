//! The Python wheel: built by maturin, and installed in the environment that tests and users of the tree run.
//!
//! ```text
//! maturin build ──► target/wheels/PROFILE/*.whl ──► pip install
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::layout;
use crate::line::Line;
use crate::setup::environments::PACKAGE;
use crate::stages::run_all;

/// Builds the wheel in release mode and returns its path; the error is an exit status.
pub(crate) fn release(target: &Path) -> Result<Option<PathBuf>, u8> {
    match build(target, "release") {
        0 => Ok(wheels(&folder_of_wheels(target, "release")).pop()),
        status => Err(status),
    }
}

/// Builds the wheel in a cargo profile and installs it in the environment; returns the exit status.
pub(crate) fn build(target: &Path, profile: &str) -> u8 {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
