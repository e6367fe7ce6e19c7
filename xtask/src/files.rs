//! Files and folders below target/. An error names the path, and is a failed set-up.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// Makes an empty folder.
pub(crate) fn make_anew(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| broken(folder, &error))?;
    }
    make(folder)
}

pub(crate) fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| broken(folder, &error))
}

pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    fs::write(path, content).map_err(|error| broken(path, &error))
}

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| broken(path, &error))
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(|error| broken(from, &error))
}

pub(crate) fn broken(path: &Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("{}: {error}", path.display()))
}
