//! Debian packages that benchmarks and tests compare with: unpacked below target/, not installed.
//!
//! ```text
//! trixie ────────► UCX, its benchmark, the C library ─┐
//! this release ──► rsync, sshd, nfs-ganesha, libnfs ──┴─► target/unpacked/NAME
//! ```
//!
//! Servers are not installed because Debian's packages start them, with settings that nobody chose.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::guests::packages::Packages;
use crate::layout;
use crate::line::Line;
use crate::stages::{run, say};
use crate::work::Work;

/// Libraries of the unpacked release, with its loader.
pub(super) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
pub(super) const LOADER: &str = "ld-linux-x86-64.so.2";

/// The release whose UCX is newer than Debian 12's. Its keys are in the keyring of Debian 12.
const NEWER: &str = "trixie";
/// Not all that they depend on: UCX loads modules for devices only if the libraries for these are there.
const UCX: [&str; 4] = ["libucx0", "ucx-utils", "libc6", "libgomp1"];
/// Programs that send files, with the libraries that a system may lack.
const FILE_SERVERS: [&str; 14] = [
    "rsync",
    "libpopt0",
    "openssh-client",
    "openssh-server",
    "openssh-sftp-server",
    "libwrap0",
    "nfs-ganesha",
    "nfs-ganesha-vfs",
    "libntirpc4.3",
    "liburcu8",
    "libnfsidmap1",
    "libwbclient0",
    "libnfs-utils",
    "libnfs13",
];

fn packages(work: &Work, name: &str) -> Result<Packages, Failure> {
    Packages::to_compare_with(work.place.built("unpacked").join(name))
}

/// UCX of a newer release of Debian with that release's C library; downloaded once, 6 MB and lists of packages.
pub(super) fn newer_ucx(work: &Work) -> Result<PathBuf, Failure> {
    let packages = packages(work, "ucx")?;
    if packages.finished().is_none() {
        say(format_args!("downloading UCX of {NEWER}"));
        packages.begin_with(&[NEWER])?;
        packages.download(&UCX.map(str::to_owned))?;
        let library = packages.unpacked().join(LIBRARIES).join("libmpi.so.40");
        if run(&stand_in(&work.place.at(layout::MPI), &library)) != 0 {
            return Err(Failure::setup("what UCX's benchmark needs of MPI does not compile"));
        }
        packages.finish(NEWER)?;
    }
    Ok(packages.unpacked())
}

/// Programs that send files, of this machine's release.
pub(super) fn file_servers(work: &Work) -> Result<PathBuf, Failure> {
    let packages = packages(work, "file-servers")?;
    if packages.finished().is_none() {
        say("downloading rsync, sshd, nfs-ganesha and libnfs");
        packages.begin()?;
        packages.download(&FILE_SERVERS.map(str::to_owned))?;
        packages.finish("file servers")?;
    }
    Ok(packages.unpacked())
}

fn stand_in(source: &Path, library: &Path) -> Line {
    Line::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_is_a_library() {
        let line = stand_in(Path::new("/s.c"), Path::new("/l.so")).to_string();
        assert_eq!(line, "cc -shared -fPIC -o /l.so /s.c");
    }
}
