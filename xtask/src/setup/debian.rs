//! The Debian packages that commands need, and how to install missing ones.
//!
//! ```text
//! Tool { package, proof } ──► no proof ──► missing packages ──► apt-get update, apt-get install, as root or with sudo
//! ```
//!
//! A program or a file proves that a tool exists, not the package: it may have been installed in another way.

use std::path::Path;

use crate::line::Line;
use crate::place;

/// Something that a Debian package provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    package: &'static str,
    proof: Proof,
}

/// The proof that a tool exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Program(&'static str),
    File(&'static str),
}

impl Tool {
    const fn program(package: &'static str, name: &'static str) -> Self {
        Self { package, proof: Proof::Program(name) }
    }

    const fn file(package: &'static str, path: &'static str) -> Self {
        Self { package, proof: Proof::File(path) }
    }

    fn is_there(&self) -> bool {
        match self.proof {
            Proof::Program(name) => place::program(name).is_some(),
            Proof::File(path) => Path::new(path).exists(),
        }
    }
}

pub(crate) const C_COMPILER: &[Tool] =
    &[Tool::program("gcc", "cc"), Tool::file("libc6-dev", "/usr/include/stdio.h")];
pub(crate) const CPP_COMPILER: &[Tool] = &[Tool::program("g++", "c++")];
/// Further checkers for the C programs of the tests.
pub(crate) const C_CHECKERS: &[Tool] = &[
    Tool::program("g++", "g++"),
    Tool::program("clang", "clang"),
    Tool::program("valgrind", "valgrind"),
    Tool::program("pkg-config", "pkg-config"),
];
pub(crate) const ARM_EMULATION: &[Tool] = &[
    Tool::program("qemu-user", "qemu-aarch64"),
    Tool::program("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
    Tool::file("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/include/stdio.h"),
];
pub(crate) const QEMU_ARM: &[Tool] = &[Tool::program("qemu-system-arm", "qemu-system-arm")];
pub(crate) const QEMU_X86: &[Tool] = &[Tool::program("qemu-system-x86", "qemu-system-x86_64")];
pub(crate) const ARM64_COMPILER: &[Tool] = &[
    Tool::program("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
    Tool::file("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/include/stdio.h"),
];
pub(crate) const ARMHF_COMPILER: &[Tool] = &[
    Tool::program("gcc-arm-linux-gnueabihf", "arm-linux-gnueabihf-gcc"),
    Tool::file("libc6-dev-armhf-cross", "/usr/arm-linux-gnueabihf/include/stdio.h"),
];
/// Tools that build a module, check its style, and unpack the kernel's packages.
pub(crate) const MODULE_BUILD: &[Tool] = &[
    Tool::program("make", "make"),
    Tool::program("perl", "perl"),
    Tool::program("xz-utils", "xz"),
    Tool::program("device-tree-compiler", "dtc"),
];
/// Additional tools that build a whole kernel.
pub(crate) const KERNEL_BUILD: &[Tool] =
    &[Tool::program("flex", "flex"), Tool::program("bison", "bison"), Tool::program("bc", "bc")];
pub(crate) const PYTHON: &[Tool] =
    &[Tool::program("python3", "python3"), Tool::file("python3-venv", "/usr/share/python-wheels")];
/// Tools that make and check Debian packages.
pub(crate) const PACKAGING: &[Tool] = &[
    Tool::program("dpkg-dev", "dpkg-buildpackage"),
    Tool::program("debhelper", "dh"),
    Tool::program("dh-dkms", "dh_dkms"),
    Tool::program("lintian", "lintian"),
    Tool::program("mandoc", "mandoc"),
    Tool::program("binutils", "strip"),
];
/// A browser, and the language of the program that drives it.
pub(crate) const BROWSER: &[Tool] =
    &[Tool::program("chromium", "chromium"), Tool::program("python3", "python3")];
/// Decides the theorems of bounded proofs.
pub(crate) const SOLVER: &[Tool] = &[Tool::program("z3", "z3")];
/// Makes chroots of Debian's releases.
pub(crate) const CHROOTS: &[Tool] = &[Tool::program("mmdebstrap", "mmdebstrap")];
/// The library that benchmarks of messages compare with.
pub(crate) const UCX: &[Tool] = &[Tool::program("ucx-utils", "ucx_perftest")];
/// What a program that uses it is compiled with.
pub(crate) const UCX_HEADERS: &[Tool] = &[Tool::file("libucx-dev", "/usr/include/ucp/api/ucp.h")];
/// DPDK's libraries and test program, and what builds a driver for it.
pub(crate) const DPDK: &[Tool] = &[
    Tool::program("dpdk-dev", "dpdk-test"),
    Tool::file("libdpdk-dev", "/usr/include/dpdk/rte_dmadev.h"),
    Tool::program("make", "make"),
    Tool::program("pkg-config", "pkg-config"),
    Tool::program("xz-utils", "xz"),
];
/// libfabric's headers and test program, and what builds a provider for it.
pub(crate) const LIBFABRIC: &[Tool] = &[
    Tool::program("libfabric-bin", "fi_pingpong"),
    Tool::file("libfabric-dev", "/usr/include/rdma/providers/fi_prov.h"),
    Tool::program("make", "make"),
    Tool::program("pkg-config", "pkg-config"),
];
/// What the provider for libfabric is compiled with.
pub(crate) const LIBFABRIC_HEADERS: &[Tool] =
    &[Tool::file("libfabric-dev", "/usr/include/rdma/providers/fi_prov.h")];
/// Open MPI, which uses libfabric, and Python programs that use Open MPI.
pub(crate) const OPEN_MPI: &[Tool] = &[
    Tool::program("openmpi-bin", "mpirun.openmpi"),
    Tool::file("python3-mpi4py", "/usr/lib/python3/dist-packages/mpi4py"),
    Tool::file("python3-numpy", "/usr/lib/python3/dist-packages/numpy"),
];
/// A Redis server without a service that starts it: the program that checks its files is the server too.
pub(crate) const REDIS: &[Tool] =
    &[Tool::program("redis-tools", "redis-check-rdb"), Tool::program("python3", "python3")];
/// Tools that lint and tests use if they are installed.
pub(crate) const WHERE_INSTALLED: &[Tool] =
    &[Tool::program("shellcheck", "shellcheck"), Tool::program("sparse", "sparse")];

/// The packages of missing tools, each once, in order.
pub(crate) fn missing(tools: &[&[Tool]]) -> Vec<&'static str> {
    missing_where(tools, Tool::is_there)
}

fn missing_where(tools: &[&[Tool]], is_there: impl Fn(&Tool) -> bool) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for tool in tools.iter().copied().flatten() {
        if !packages.contains(&tool.package) && !is_there(tool) {
            packages.push(tool.package);
        }
    }
    packages
}

/// How packages can be installed on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Installer {
    Root,
    Sudo,
    /// Neither root nor sudo.
    Forbidden,
    /// Not a Debian system.
    NoApt,
}

impl Installer {
    pub(crate) fn detect() -> Self {
        let has = |name| place::program(name).is_some();
        Self::of(has("apt-get"), place::is_root(), has("sudo"))
    }

    fn of(has_apt: bool, is_root: bool, has_sudo: bool) -> Self {
        match (has_apt, is_root, has_sudo) {
            (false, _, _) => Self::NoApt,
            (true, true, _) => Self::Root,
            (true, false, true) => Self::Sudo,
            (true, false, false) => Self::Forbidden,
        }
    }

    /// Why the packages cannot be installed, if they cannot.
    pub(crate) fn refusal(self, packages: &[&str]) -> Option<String> {
        let packages = packages.join(" ");
        match self {
            Self::Root | Self::Sudo => None,
            Self::Forbidden => Some(format!(
                "these Debian packages are missing, and installing them needs root or sudo; neither is available. \
                 Let somebody run: apt-get install {packages}"
            )),
            Self::NoApt => {
                Some(format!("this system has no apt-get; install by hand, under Debian's names: {packages}"))
            }
        }
    }

    fn line(self) -> Line {
        match self {
            Self::Sudo => Line::new("sudo").arg("apt-get"),
            Self::Root | Self::Forbidden | Self::NoApt => Line::new("apt-get"),
        }
    }

    pub(crate) fn update(self) -> Line {
        self.line().arg("update")
    }

    pub(crate) fn install(self, packages: &[&str]) -> Line {
        let frontend = "DEBIAN_FRONTEND=noninteractive";
        let line = match self {
            Self::Sudo => Line::new("sudo").args(["env", frontend, "apt-get"]),
            Self::Root | Self::Forbidden | Self::NoApt => Line::new("env").args([frontend, "apt-get"]),
        };
        line.args(["install", "-y", "--no-install-recommends"]).args(packages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packages_are_named_once() {
        let tools = [ARM64_COMPILER, QEMU_ARM, ARM_EMULATION];
        let found = missing_where(&tools, |tool| tool.package == "qemu-user");
        assert_eq!(found, ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-system-arm"]);
        assert!(missing_where(&tools, |_| true).is_empty());
    }

    #[test]
    fn a_tool_is_there_by_its_program_or_file() {
        assert!(Tool::program("dash", "sh").is_there());
        assert!(Tool::file("base-files", "/etc").is_there());
        assert!(!Tool::program("none", "no-such-program-anywhere").is_there());
        assert!(!Tool::file("none", "/no/such/file").is_there());
    }

    #[test]
    fn root_comes_before_sudo() {
        assert_eq!(Installer::of(true, true, true), Installer::Root);
        assert_eq!(Installer::of(true, false, true), Installer::Sudo);
        assert_eq!(Installer::of(true, false, false), Installer::Forbidden);
        assert_eq!(Installer::of(false, true, true), Installer::NoApt);
    }

    #[test]
    fn refusal_says_what_to_install() {
        for installer in [Installer::Root, Installer::Sudo] {
            assert_eq!(installer.refusal(&["make"]), None);
        }
        assert!(Installer::Forbidden.refusal(&["make"]).unwrap().contains("apt-get install make"));
        assert!(Installer::NoApt.refusal(&["make"]).unwrap().contains("make"));
    }

    #[test]
    fn packages_are_installed_without_questions() {
        assert_eq!(
            Installer::Root.install(&["make", "perl"]).to_string(),
            "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends make perl"
        );
        let sudo = Installer::Sudo.install(&["make"]).to_string();
        assert!(sudo.starts_with("sudo env DEBIAN_FRONTEND=noninteractive apt-get install"), "{sudo}");
        assert_eq!(Installer::Sudo.update().to_string(), "sudo apt-get update");
    }
}
