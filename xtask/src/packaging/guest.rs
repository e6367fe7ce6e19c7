//! The Debian packages under a booted systemd: Debian 12 with its own kernel, in which they are installed and used.
//!
//! ```text
//! mmdebstrap, mke2fs ──► disk with Debian, kept, never written to ─┐
//! packages, checks ────► second disk ──────────────────────────────┴──► QEMU ──► "systemd: N passed, M failed"
//! ```
//!
//! The guest has no network. It needs root: the disk's files belong to several users.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use super::{chroot, debian as built};
use crate::failure::Failure;
use crate::files::{broken, copy, make, make_anew, write};
use crate::guests::packages;
use crate::guests::watch::Watch;
use crate::layout;
use crate::line::Line;
use crate::setup::debian;
use crate::stages::run_all;
use crate::work::Work;

const RELEASE: &str = "bookworm";
/// What the checks use, and what a package that is installed without a network depends on.
const INCLUDED: &str = "systemd-sysv,udev,dbus,kmod,procps,linux-image-amd64,linux-headers-amd64,dkms,git,python3,curl,ca-certificates,libucx0";
/// Large enough for the release, the headers, and what the checks add.
const DISK: &str = "3G";
const CHECKS: &str = "\
[Unit]
After=basic.target

[Service]
Type=oneshot
ExecStart=/bin/sh -c 'mount -o ro /dev/vdb /given && exec /given/systemd'
StandardOutput=file:/dev/ttyS0
StandardError=inherit
";
const LIMIT: Duration = Duration::from_secs(1800);

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    chroot::needs_rights()?;
    chroot::needs_host_for(RELEASE)?;
    work.setup.tools(&[debian::QEMU_X86, debian::CHROOTS])?;
    let debs = built::run(work)?;
    let folder = work.place.built("guest-systemd");
    make(&folder)?;
    // One that was made before may lack what is needed now.
    let includes = folder.join("included.txt");
    if !folder.join("base.img").exists() || fs::read_to_string(&includes).ok().as_deref() != Some(INCLUDED) {
        make_base(work, &folder)?;
        write(&includes, INCLUDED)?;
    }
    let given = folder.join("given");
    make_anew(&given)?;
    let mut lines = vec![Line::new("cp").args(built::files(&debs, "deb")?).arg(&given)];
    for file in [layout::packaging::GUEST_CHECKS, layout::packaging::CLIENT] {
        lines.push(Line::new("cp").arg(work.place.at(file)).arg(&given));
    }
    lines.push(engine(work, &given.join("example")));
    let disk = folder.join("given.img");
    lines.push(Line::new("rm").arg("-f").arg(&disk));
    lines.push(make_disk(&given, &disk, "100M"));
    if run_all(&lines) != 0 {
        return Err(Failure::setup("could not make the disk with the packages"));
    }
    let line = qemu(&folder);
    let log = folder.join("said.txt");
    let watch = Watch { log: &log, limit: LIMIT, mark: "systemd: ", shown: &["PASS", "FAIL", "systemd: "] };
    work.stages.step("systemd", "QEMU with Debian 12", || watch.run(&line))
}

/// Compiles the example engine with the library that is packed; the guest has no C library to compile with.
fn engine(work: &Work, to: &Path) -> Line {
    let library = work.place.built("package/engine");
    let source = work.place.at(layout::examples::ENGINE);
    let line = Line::new("cc").args(["-O2", "-o"]).arg(to).arg(source);
    let line = line.arg("-I").arg(library.join("include")).arg("-L").arg(library.join("lib"));
    line.arg("-lmemferry_engine")
}

/// Makes the disk with Debian, and copies its kernel and initial RAM disk.
fn make_base(work: &Work, folder: &Path) -> Result<(), Failure> {
    let root = folder.join("root");
    make_anew(&root)?;
    let archive = folder.join("base.tar");
    let bootstrap = chroot::bootstrap(&packages::mirror()?.1, RELEASE, &archive, &["--include", INCLUDED]);
    work.stages.run("Debian for the guest", &bootstrap)?;
    if run_all(&[Line::new("tar").arg("-C").arg(&root).arg("-xf").arg(&archive)]) != 0 {
        return Err(Failure::setup("could not unpack Debian for the guest"));
    }
    let units = root.join("etc/systemd/system");
    make(&units.join("multi-user.target.wants"))?;
    make(&root.join("given"))?;
    write(&units.join("checks.service"), CHECKS)?;
    link("../checks.service", &units.join("multi-user.target.wants/checks.service"))?;
    // The checks have the console for themselves.
    link("/dev/null", &units.join("serial-getty@ttyS0.service"))?;
    let boot = root.join("boot");
    for (beginning, name) in [("vmlinuz-", "vmlinuz"), ("initrd.img-", "initrd")] {
        let file = packages::beginning(&boot, beginning)
            .ok_or_else(|| Failure::setup(format!("Debian for the guest has no {name}")))?;
        copy(&file, &folder.join(name))?;
    }
    let new = folder.join("base.new.img");
    let lines = [make_disk(&root, &new, DISK), Line::new("rm").arg("-rf").arg(&root).arg(&archive)];
    if run_all(&lines) != 0 {
        return Err(Failure::setup("could not make the guest's disk"));
    }
    fs::rename(&new, folder.join("base.img")).map_err(|error| broken(&new, &error))
}

fn link(target: &str, path: &Path) -> Result<(), Failure> {
    symlink(target, path).map_err(|error| broken(path, &error))
}

fn make_disk(content: &Path, disk: &Path, size: &str) -> Line {
    let line = Line::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(content);
    line.arg(disk).arg(size)
}

fn qemu(folder: &Path) -> Line {
    let drive = |name: &str| format!("file={},if=virtio,format=raw,snapshot=on", folder.join(name).display());
    let line = Line::new("qemu-system-x86_64").args(["-M", "pc", "-m", "1536", "-smp", "2"]);
    let line = line.arg("-kernel").arg(folder.join("vmlinuz")).arg("-initrd").arg(folder.join("initrd"));
    let line =
        line.args(["-append", "root=/dev/vda rw console=ttyS0 quiet loglevel=1 systemd.show_status=no"]);
    let line = line.args(["-drive", &drive("base.img"), "-drive", &drive("given.img")]);
    line.args(["-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-nic", "none"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_never_written_to() {
        let line = qemu(Path::new("/t")).to_string();
        assert!(line.contains("-kernel /t/vmlinuz -initrd /t/initrd -append "), "{line}");
        assert_eq!(line.matches("format=raw,snapshot=on").count(), 2, "{line}");
    }

    #[test]
    fn disk_is_filled_from_a_folder() {
        let line = make_disk(Path::new("/t/given"), Path::new("/t/given.img"), "100M").to_string();
        assert_eq!(line, "mke2fs -q -t ext4 -d /t/given /t/given.img 100M");
    }
}
