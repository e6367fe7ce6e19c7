//! Fresh chroots of Debian's releases, in which the packages are installed and checked.
//!
//! ```text
//! machine's own mirror ──► mmdebstrap ──► target/package/chroots/RELEASE.tar, kept
//!                                  └──► unpacked ──► mount namespace, chroot ──► checks ──► "packages: N passed, M failed"
//! ```
//!
//! Mounts are in a namespace of their own and end with it. It needs root: a package sets owners. Packages that were built on one release
//! are not checked in older ones, which may lack the libraries that they were linked with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::debian;
use crate::failure::Failure;
use crate::files::{broken, make, make_anew};
use crate::guests::packages::{KEYRING, mirror};
use crate::guests::watch::Watch;
use crate::layout;
use crate::line::Line;
use crate::place;
use crate::setup::debian::CHROOTS;
use crate::stages::{output, run_all, say};
use crate::work::Work;

/// Releases that the packages are for, oldest first. Built on one of them, they are for it and the later ones.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];
const LIMIT: Duration = Duration::from_secs(900);
/// Mounts what programs expect and the folders before `--`, in a namespace of its own, and becomes the program in the root.
const ENTER: &str = "mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && mount -t tmpfs tmpfs \"$0/run\" \
                     || exit; while [ \"$1\" != -- ]; do mount --bind -o \"$1\" \"$2\" \"$0$3\" || exit; shift 3; done; \
                     shift; exec chroot \"$0\" \"$@\"";

/// A folder of this machine in a root, which has a folder for it.
pub(crate) struct Mount {
    pub(crate) from: PathBuf,
    pub(crate) to: &'static str,
    pub(crate) is_writable: bool,
}

/// Builds the packages and checks them in each release.
pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    needs_rights()?;
    let host = mirror()?.0;
    let (older, releases) = split(&host)?;
    let packages = debian::run(work)?;
    for release in older {
        let why = format!(
            "packages built on {host} were NOT RUN in {release}: its libraries may be too old for them"
        );
        say(&why);
        work.leave_out(why);
    }
    for release in releases {
        check(work, &packages, release, layout::packaging::CHROOT_CHECKS, "packages: ")?;
    }
    let script = layout::packaging::PAGE_CHECKS;
    check(work, &packages, releases[0], script, "pages: ")
}

/// Fails unless this process may set owners and make mounts, which root in a container may not always.
pub(crate) fn needs_rights() -> Result<(), Failure> {
    if !place::is_root() {
        return Err(Failure::setup("to make a system of Debian and install packages in it takes root"));
    }
    let probe = Line::new("unshare").args(["--mount", "--pid", "--fork", "true"]);
    let refused = "to install packages in a system of Debian takes namespaces, which root may not make here";
    output(&probe).map(drop).ok_or_else(|| Failure::setup(refused))
}

/// Fails unless packages that are built on this machine are for the release.
pub(crate) fn needs_host_for(release: &str) -> Result<(), Failure> {
    let host = mirror()?.0;
    if split(&host)?.1.contains(&release) {
        return Ok(());
    }
    Err(Failure::setup(format!("packages built on {host} may need newer libraries than {release} has")))
}

/// The releases before that of the machine on which the packages are built, and those from it on.
fn split(host: &str) -> Result<(&'static [&'static str], &'static [&'static str]), Failure> {
    let names = RELEASES.join(", ");
    let unknown = || Failure::setup(format!("the packages are for {names}, and this machine has {host}"));
    RELEASES.iter().position(|release| *release == host).map(|at| RELEASES.split_at(at)).ok_or_else(unknown)
}

/// Runs a script of the tree in a fresh root.
fn check(work: &Work, packages: &Path, release: &str, script: &str, mark: &str) -> Result<(), Failure> {
    let base = base(work, release)?;
    let root = work.place.built("package/chroots").join(release);
    make_anew(&root)?;
    let given = root.join("packages");
    let mut lines = vec![Line::new("tar").arg("-C").arg(&root).arg("-xf").arg(&base)];
    lines.push(Line::new("mkdir").arg(&given));
    lines.push(Line::new("cp").args(debian::files(packages, "deb")?).arg(&given));
    // The tree's README.md replaces the guide's.
    lines.push(
        Line::new("cp").args(debian::files(&work.place.at(layout::packaging::GUIDE), "md")?).arg(&given),
    );
    for file in [script, layout::packaging::CLIENT, layout::packaging::FOLLOWER, "README.md"] {
        lines.push(Line::new("cp").arg(work.place.at(file)).arg(&given));
    }
    // The chroot reaches the mirror by the names that this machine knows.
    lines.push(Line::new("cp").args(["/etc/resolv.conf", "/etc/hosts"]).arg(root.join("etc")));
    if run_all(&lines) != 0 {
        return Err(Failure::setup(format!("could not prepare the root of {release}")));
    }
    let name = Path::new(script).file_name().unwrap_or_default();
    let line = enter(&root, &[]).arg(Path::new("/packages").join(name));
    let log = work.place.built("package").join(format!("{release}-{}.log", name.to_string_lossy()));
    let watch = Watch { log: &log, limit: LIMIT, mark, shown: &["PASS", "FAIL", "INFO", mark] };
    work.stages.step(&format!("{} in {release}", name.to_string_lossy()), &line, || watch.run(&line))
}

/// The beginning of a line that runs a program in a root; the program and its arguments follow.
pub(crate) fn enter(root: &Path, mounts: &[Mount]) -> Line {
    let mut line =
        Line::new("unshare").args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER]);
    line = line.arg(root);
    for mount in mounts {
        line = line.arg(if mount.is_writable { "rw" } else { "ro" }).arg(&mount.from).arg(mount.to);
    }
    line.arg("--")
}

/// The archive of a minimal system. It is made once.
fn base(work: &Work, release: &str) -> Result<PathBuf, Failure> {
    let folder = work.place.built("package/chroots");
    let archive = folder.join(format!("{release}.tar"));
    if archive.exists() {
        return Ok(archive);
    }
    make(&folder)?;
    let new = folder.join(format!("{release}.new.tar"));
    work.setup.tools(&[CHROOTS])?;
    let line = bootstrap(&mirror()?.1, release, &new, &[]);
    work.stages.run(&format!("minimal {release}"), &line)?;
    std::fs::rename(&new, &archive).map_err(|error| broken(&archive, &error))?;
    Ok(archive)
}

/// The line that makes a minimal system of a release.
pub(crate) fn bootstrap(mirror: &str, release: &str, archive: &Path, options: &[&str]) -> Line {
    let line = Line::new("mmdebstrap").args(["--quiet", "--variant=minbase"]).args(options);
    line.arg(release).arg(archive).arg(format!("deb [signed-by={KEYRING}] {mirror} {release} main"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_releases_are_left_out() {
        assert_eq!(split("bookworm"), Ok((&[][..], &RELEASES[..])));
        assert_eq!(split("trixie"), Ok((&["bookworm"][..], &["trixie"][..])));
        assert!(matches!(split("sid"), Err(Failure::Setup(_))));
    }

    #[test]
    fn releases_come_from_that_mirror() {
        let line = bootstrap("http://b/debian/", "trixie", Path::new("/t/trixie.tar"), &[]).to_string();
        assert!(
            line.starts_with("mmdebstrap --quiet --variant=minbase trixie /t/trixie.tar 'deb ["),
            "{line}"
        );
        assert!(line.ends_with("http://b/debian/ trixie main'"), "{line}");
    }

    #[test]
    fn script_runs_in_namespaces_of_its_own() {
        let mounts = [Mount { from: "/t/tree".into(), to: "/tree", is_writable: false }];
        let line = enter(Path::new("/t/trixie"), &mounts).arg("/packages/chroot").to_string();
        assert!(line.starts_with("unshare --mount --pid --fork --kill-child sh -c "), "{line}");
        assert!(line.ends_with(" /t/trixie ro /t/tree /tree -- /packages/chroot"), "{line}");
        assert!(enter(Path::new("/t/trixie"), &[]).to_string().ends_with(" /t/trixie --"));
    }
}
