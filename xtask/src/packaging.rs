//! What is built for users who have no working tree: Debian packages, and an installation below a prefix.
//!
//! ```text
//! cargo build --release, maturin ──► Built ──► tree: each package's files ──► dpkg-buildpackage ──► lintian    (./x package)
//!                                                                      └────► a prefix                         (./x install)
//! Debian packages ──► chroot: fresh Debian 12 and 13      (./x test --full packages)
//! licences: the crates that a program contains ──► one file of notices
//! ```
//!
//! Nothing is uploaded.

pub(crate) mod build;
pub(crate) mod chroot;
pub(crate) mod debian;
pub(crate) mod guest;
pub(crate) mod licences;
pub(crate) mod tree;
pub(crate) mod wheel;

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// Makes an empty folder.
fn make_anew(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| broken(folder, &error))?;
    }
    make(folder)
}

fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| broken(folder, &error))
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    fs::write(path, content).map_err(|error| broken(path, &error))
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| broken(path, &error))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(|error| broken(from, &error))
}

fn broken(path: &Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("{}: {error}", path.display()))
}
