//! Debian's releases other than this machine's: the product built and tested there, and the wheel under their Pythons.
//!
//! ```text
//! mmdebstrap ──► target/matrix/RELEASE/root, kept ──► chroot, an ordinary user; tree, toolchain and crates read-only
//!                                                       ├──► cargo build, cargo test ──► target/matrix/RELEASE/target, kept
//!                                                       └──► the wheel that was built here ──► tests of the Python package
//! ```
//!
//! The toolchain is this machine's. What is built with it is linked with the release's own C library and compiler. Making the roots takes
//! root, for the rights of Debian's files; the tests in them run without.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::files::{make, make_anew, write};
use crate::guests::packages::mirror;
use crate::layout::{self, PRODUCT_WORKSPACE, binary, package};
use crate::line::Line;
use crate::packaging::chroot::{self, Mount, bootstrap, enter};
use crate::packaging::wheel;
use crate::setup::debian::CHROOTS;
use crate::setup::environments::PACKAGE;
use crate::stages::{output, run as run_line, run_all, say};
use crate::work::Work;

/// A release of Debian.
struct Release {
    name: &'static str,
    python: &'static str,
    /// Whether the product is built and tested there. It is not in a release that still changes every day.
    has_product: bool,
}

/// Oldest first: the wheel is for the releases after the one on which it was built.
const RELEASES: &[Release] = &[
    Release { name: "bookworm", python: "3.11", has_product: true },
    Release { name: "trixie", python: "3.13", has_product: true },
    Release { name: "forky", python: "3.14", has_product: false },
];
const NOWHERE: [&str; 2] = [
    "Ubuntu 24.04 was NOT RUN: the mirror of Debian has no packages of it",
    "Python 3.12 was NOT RUN: no release of Debian has it",
];
/// The name in the roots of the user who runs the tests.
const USER: &str = "tester";
const INCLUDED: &str = "--include=gcc,libc6-dev,mypy,python3,python3-numpy";

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    chroot::needs_rights()?;
    let (host, mirror) = mirror()?;
    work.setup.rust(&[])?;
    work.setup.tools(&[CHROOTS])?;
    // A test reads the sources of all crates, those for other systems too.
    work.setup.crates_of(PRODUCT_WORKSPACE.folder)?;
    let wheel = wheel_of_this_machine(work)?;
    let mut has_run = false;
    let mut is_newer = false;
    for release in RELEASES {
        if release.name == host {
            is_newer = true;
            continue;
        }
        let system = System { folder: work.place.built("matrix").join(release.name), work, release };
        if let Err(failure) = system.make(&mirror) {
            work.leave_out(format!("{} was NOT RUN: {failure}", release.name));
            continue;
        }
        has_run = true;
        if release.has_product {
            system.test_product()?;
        }
        match &wheel {
            Some(wheel) if is_newer => system.test_wheel(wheel)?,
            _ => work.leave_out(format!("the wheel was NOT RUN with Python {}", release.python)),
        }
    }
    NOWHERE.iter().for_each(|what| work.leave_out(*what));
    if has_run { Ok(()) } else { Err(Failure::setup("no other release of Debian could be had")) }
}

/// The folder of the unpacked wheel, if there is a Python that builds it; and the command, which its tests start.
fn wheel_of_this_machine(work: &Work) -> Result<Option<PathBuf>, Failure> {
    if !work.setup.environment(&PACKAGE) {
        return Ok(None);
    }
    let target = &work.place.target;
    work.stages.run("command", &PRODUCT_WORKSPACE.cargo(&["build", "-p", package::CLI]))?;
    work.stages.step("wheel", "maturin build, pip install", || wheel::build(target, "dev"))?;
    let folder = work.place.built("matrix/wheel");
    make_anew(&folder)?;
    if run_line(&wheel::unpack(target, "dev", &folder)) != 0 {
        return Err(Failure::setup("the wheel could not be unpacked"));
    }
    Ok(Some(folder))
}

/// A release's root and build directory.
struct System<'a> {
    work: &'a Work<'a>,
    release: &'a Release,
    folder: PathBuf,
}

impl System<'_> {
    /// Makes the root once, with its mount points.
    fn make(&self, mirror: &str) -> Result<(), Failure> {
        let root = self.folder.join("root");
        let line = system(mirror, self.release.name, &root, takes_old_lists());
        let made = self.folder.join("made");
        if fs::read_to_string(&made).is_ok_and(|made| made == line.to_string()) {
            return Ok(());
        }
        say(format_args!("making a system of {} in {}", self.release.name, root.display()));
        let target = self.folder.join("target");
        make_anew(&self.folder)?;
        make(&target)?;
        let home = root.join("home").join(USER);
        let give = Line::new("chown").arg(format!("--reference={}", home.display())).arg(&target);
        if run_all(&[line.clone(), give]) != 0 {
            return Err(Failure::setup("its packages could not be downloaded or installed"));
        }
        for to in ["memferry", "rust", "cargo", "target", "wheel", "command"] {
            make(&root.join(to))?;
        }
        write(&made, line.to_string())
    }

    fn test_product(&self) -> Result<(), Failure> {
        let rust = output(&Line::new("rustc").args(["--print", "sysroot"]));
        let rust = rust.ok_or_else(|| Failure::setup("rustc names no toolchain"))?;
        let rust = Path::new(rust.trim());
        let crates = crates()?;
        let name = self.release.name;
        let build = self.product(rust, &crates, &["build", "--workspace", "--all-targets"]);
        self.work.stages.run(&format!("build in {name}"), &build)?;
        let tests = self.product(rust, &crates, &["test", "--workspace"]);
        self.work.stages.run(&format!("tests in {name}"), &tests)
    }

    fn test_wheel(&self, wheel: &Path) -> Result<(), Failure> {
        self.work.stages.run(&format!("wheel with Python {}", self.release.python), &self.python(wheel))
    }

    /// A cargo command line for the product.
    fn product(&self, rust: &Path, crates: &Path, arguments: &[&str]) -> Line {
        let target = Mount { from: self.folder.join("target"), to: "/target", is_writable: true };
        let mounts = [mount(rust, "/rust"), mount(crates, "/cargo"), target];
        // A variable, not an option: tests run cargo too.
        let variables = ["CARGO_HOME=/cargo", "CARGO_NET_OFFLINE=true", "CARGO_TARGET_DIR=/target"];
        let line = self.as_user(mounts, &variables).arg("MEMFERRY_TEST_BUILT=/target/debug");
        line.arg("cargo").args(arguments).arg("--locked")
    }

    /// The tests of an unpacked wheel.
    fn python(&self, wheel: &Path) -> Line {
        let mounts = [mount(wheel, "/wheel"), mount(&self.work.place.built("debug"), "/command")];
        let command = format!("MEMFERRY_TEST_COMMAND=/command/{}", binary::CLI);
        let line = self.as_user(mounts, &["PYTHONPATH=/wheel", &command]);
        line.args(["python3", "-m", "unittest", "discover", "--start-directory", layout::PYTHON_TESTS])
    }

    /// The beginning of a line that the root's ordinary user runs in the tree.
    fn as_user(&self, mounts: impl IntoIterator<Item = Mount>, variables: &[&str]) -> Line {
        let own = [mount(Path::new("/sys"), "/sys"), mount(&self.work.place.root, "/memferry")];
        let mounts: Vec<Mount> = own.into_iter().chain(mounts).collect();
        enter(&self.folder.join("root"), &mounts)
            .args(["setpriv", "--reuid", USER, "--regid", USER, "--init-groups"])
            .args(["env", "-i", "-C", "/memferry", &format!("HOME=/home/{USER}"), "LANG=C.UTF-8"])
            .args(["PATH=/rust/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"])
            .args(variables)
    }
}

fn mount(from: &Path, to: &'static str) -> Mount {
    Mount { from: from.to_owned(), to, is_writable: false }
}

/// Where cargo keeps the crates that it fetched.
fn crates() -> Result<PathBuf, Failure> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let users = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    home.or_else(users).ok_or_else(|| Failure::setup("neither CARGO_HOME nor HOME is set"))
}

/// The line that makes a release's root with a compiler, a Python, and an ordinary user.
fn system(mirror: &str, release: &str, root: &Path, takes_old_lists: bool) -> Line {
    let user = format!("--customize-hook=chroot \"$1\" useradd --create-home {USER}");
    let old_lists = takes_old_lists.then_some("--aptopt=Acquire::Check-Valid-Until \"false\"");
    let options: Vec<&str> = [INCLUDED, &user].into_iter().chain(old_lists).collect();
    bootstrap(mirror, release, root, &options)
}

/// Whether this machine's apt takes the signed lists of a mirror that is behind. Then the systems of that mirror do so too.
fn takes_old_lists() -> bool {
    let settings = ["dump", "--no-empty", "--format", "%v", "Acquire::Check-Valid-Until"];
    output(&Line::new("apt-config").args(settings)).is_some_and(|value| value == "false")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    fn with_trixie(check: impl FnOnce(&System)) {
        let place = Place { root: "/tree".into(), caller: "/tree".into(), target: "/t".into() };
        let work = Work::new(&place);
        let release = RELEASES.iter().find(|release| release.name == "trixie").unwrap();
        check(&System { work: &work, release, folder: "/t/matrix/trixie".into() });
    }

    #[test]
    fn systems_have_a_compiler_and_a_user() {
        let line = |old| system("http://b/debian/", "trixie", Path::new("/t/root"), old).to_string();
        let text = line(false);
        assert!(text.contains(",python3,") && text.contains("useradd --create-home tester"), "{text}");
        assert!(!text.contains("Check-Valid-Until") && line(true).contains("Check-Valid-Until"));
    }

    #[test]
    fn tests_run_as_an_ordinary_user() {
        with_trixie(|system| {
            let line =
                system.product(Path::new("/rust-here"), Path::new("/crates-here"), &["test"]).to_string();
            assert!(
                line.contains(" ro /tree /memferry ro /rust-here /rust ro /crates-here /cargo "),
                "{line}"
            );
            assert!(
                line.contains(" rw /t/matrix/trixie/target /target -- setpriv --reuid tester "),
                "{line}"
            );
            assert!(line.ends_with(" cargo test --locked"), "{line}");
        });
    }

    #[test]
    fn wheel_is_tested_with_the_command_of_this_machine() {
        with_trixie(|system| {
            let line = system.python(Path::new("/t/matrix/wheel")).to_string();
            assert!(line.contains(" ro /t/matrix/wheel /wheel ro /t/debug /command -- "), "{line}");
            assert!(line.contains(" MEMFERRY_TEST_COMMAND=/command/memferry python3 -m unittest "), "{line}");
        });
    }
}
