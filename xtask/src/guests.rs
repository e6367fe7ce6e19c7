//! Guests: machines that QEMU emulates, in which memferry's code meets hardware that others modelled and Linux itself.
//!
//! ```text
//! machine ──► Debian's packages, unpacked below target/ ──► modules, programs ──► initramfs ──► QEMU ──► verdict line
//! ```
//!
//! Nothing of another architecture is installed, and no package state of the system is changed. What a guest prints decides.

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

/// The names of all guests, and of what is built like one, in the order of the help.
pub(crate) fn names() -> Vec<&'static str> {
    let machines = machine::MACHINES.iter().map(|machine| machine.name);
    ["n810", "v9fs"].into_iter().chain(machines).chain(["newer"]).collect()
}

/// Makes a folder that is empty.
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

/// Copies a file; the kind of failure is that of a set-up, since the file should be there.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(|error| broken(from, &error))
}

fn broken(path: &Path, error: &std::io::Error) -> Failure {
    Failure::setup(format!("{}: {error}", path.display()))
}
