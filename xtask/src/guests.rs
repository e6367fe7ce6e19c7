//! Guests: machines emulated by QEMU, in which memferry's code runs on hardware models by other authors and under Linux.
//!
//! ```text
//! machine ──► Debian's packages, unpacked below target/ ──► modules, programs ──► initramfs ──► QEMU ──► verdict line
//! ```
//!
//! Nothing of another architecture is installed, and the system's package state is not changed. The guest's output decides.

pub(crate) mod archive;
pub(crate) mod machine;
pub(crate) mod module;
pub(crate) mod n810;
pub(crate) mod newer;
pub(crate) mod packages;
pub(crate) mod v9fs;
pub(crate) mod watch;

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// The names of all guests, and of `newer`, in the order of the help.
pub(crate) fn names() -> Vec<&'static str> {
    let machines = machine::MACHINES.iter().map(|machine| machine.name);
    ["n810", "v9fs", "systemd"].into_iter().chain(machines).chain(["newer"]).collect()
}

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

/// Copies a file that should exist; an error is a failed set-up.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(|error| broken(from, &error))
}

fn broken(path: &Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("{}: {error}", path.display()))
}
