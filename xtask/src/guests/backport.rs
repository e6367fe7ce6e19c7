//! QEMU of a newer release of Debian, unpacked and run by that release's own loader and libraries.
//!
//! ```text
//! mirror of the system's package lists ──► trixie, trixie-backports ──► QEMU and its libraries, unpacked ──► ld.so qemu ...
//! ```
//!
//! Devices over vfio-user need QEMU 10.1, which no stable release has. Nothing is installed, and no chroot is made.

use std::path::{Path, PathBuf};

use super::packages::{self, Packages};
use crate::failure::Failure;
use crate::line::Line;
use crate::stages::{output, say};

/// The release whose backports have the device. Its keys are in the keyring of Debian 12.
const RELEASE: &str = "trixie";
const PACKAGE: &str = "qemu-system-x86";
pub(crate) const DEVICE: &str = "vfio-user-pci";

/// Where it was unpacked.
pub(crate) struct Qemu {
    root: PathBuf,
}

impl Qemu {
    /// Downloads it into the folder, once: 38 MB and lists of packages, 172 MB unpacked.
    pub(crate) fn need(folder: &Path) -> Result<Self, Failure> {
        if packages::host_architecture()? != "amd64" {
            return Err(Failure::setup("QEMU with devices over vfio-user is looked for on amd64 only"));
        }
        let packages = Packages::new(folder.to_owned(), "amd64");
        let qemu = Self { root: packages.unpacked() };
        if packages.finished().is_some() {
            return Ok(qemu);
        }
        let backports = format!("{RELEASE}-backports");
        say(format_args!("downloading {PACKAGE} of {backports} with its libraries: 38 MB, once"));
        packages.begin_with(&[RELEASE, &backports])?;
        packages.download_with_dependencies(&backports, PACKAGE)?;
        let version = qemu.version()?;
        if output(&qemu.line().args(["-device", &format!("{DEVICE},help")])).is_none() {
            return Err(Failure::setup(format!(
                "{version} of {backports} has no device {DEVICE}, so no model can be plugged in: it needs QEMU 10.1 or later"
            )));
        }
        packages.finish(&version)?;
        Ok(qemu)
    }

    /// What it says of itself.
    pub(crate) fn version(&self) -> Result<String, Failure> {
        let said = output(&self.line().arg("--version")).ok_or_else(|| {
            Failure::setup(format!("{PACKAGE} of {RELEASE} does not start on this machine"))
        })?;
        Ok(said.lines().next().unwrap_or_default().to_owned())
    }

    /// A command line without arguments of the machine.
    pub(crate) fn line(&self) -> Line {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let pulse = libraries.join("pulseaudio");
        let shared = self.root.join("usr/share");
        // It ends with this program, however that ends.
        Line::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(libraries.join("ld-linux-x86-64.so.2"))
            // Else it would look for its modules where an installed QEMU of another version has some.
            .env("QEMU_MODULE_DIR", libraries.join("qemu"))
            .arg("--library-path")
            .arg(format!("{}:{}", libraries.display(), pulse.display()))
            .arg(self.root.join("usr/bin/qemu-system-x86_64"))
            .arg("-L")
            .arg(shared.join("qemu"))
            .arg("-L")
            .arg(shared.join("seabios"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loader_and_libraries_are_its_own() {
        let line = Qemu { root: "/q".into() }.line().to_string();
        assert_eq!(
            line,
            "env QEMU_MODULE_DIR=/q/usr/lib/x86_64-linux-gnu/qemu setpriv --pdeathsig KILL \
             /q/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --library-path \
             /q/usr/lib/x86_64-linux-gnu:/q/usr/lib/x86_64-linux-gnu/pulseaudio /q/usr/bin/qemu-system-x86_64 \
             -L /q/usr/share/qemu -L /q/usr/share/seabios"
        );
    }
}
