//! Builds the modules for the newest kernel in Debian's backports, with every warning an error. No guest runs them.
//!
//! ```text
//! mirror of the system's package lists ──► its backports ──► linux-headers, linux-kbuild ──► make modules
//! ```

use std::path::Path;

use super::module::{copy_tree, kbuild, relocate};
use super::packages::{self, Packages};
use crate::failure::Failure;
use crate::layout;
use crate::line::Line;
use crate::setup::debian;
use crate::stages::say;
use crate::work::Work;

const HEADERS: &str = "linux-headers-";

pub(crate) fn run(work: &Work) -> Result<(), Failure> {
    if packages::host_architecture()? != "amd64" {
        return Err(Failure::setup("Debian's newer kernels are looked for on amd64 only"));
    }
    work.setup.tools(&[debian::C_COMPILER, debian::MODULE_BUILD])?;
    let folder = work.place.built("kernel/newer");
    let (packages, version) = need(&folder, false)?;
    let headers = packages.unpacked().join(format!("usr/src/{HEADERS}{version}"));
    let modules = folder.join("modules");
    copy_tree(&work.place.at(layout::module::FOLDER), &modules)?;
    work.stages.run(&format!("modules for {version}"), &build(&headers, &modules))
}

fn build(headers: &Path, modules: &Path) -> Line {
    let options = ["MEMFERRY_TESTS=m", "CONFIG_DEBUG_INFO_BTF_MODULES=", "KCFLAGS=-Werror"];
    kbuild(headers, modules, "x86_64", "", &options)
}

/// The unpacked headers, on request also the kernel, and its version.
pub(super) fn need(folder: &Path, with_kernel: bool) -> Result<(Packages, String), Failure> {
    let packages = Packages::new(folder.to_owned(), "amd64");
    let has_kernel = || packages::beginning(&packages.unpacked().join("boot"), "vmlinuz-").is_some();
    if packages.finished().is_none() || (with_kernel && !has_kernel()) {
        download(&packages, with_kernel)?;
    }
    let version =
        packages.finished().ok_or_else(|| Failure::setup("the newer kernel's headers are not unpacked"))?;
    Ok((packages, version))
}

fn download(packages: &Packages, with_kernel: bool) -> Result<(), Failure> {
    let (codename, _) = packages::mirror()?;
    packages.begin_with(&[&format!("{codename}-backports")])?;
    let depends = packages.depends("linux-headers-amd64");
    let name = packages::newest(&depends, HEADERS)
        .ok_or_else(|| Failure::setup("the backports contain no newer kernel"))?;
    say(format_args!("downloading {name}"));
    let mut names = wanted(name, &packages.depends(name));
    if with_kernel {
        names.push(format!("linux-image-{}", &name[HEADERS.len()..]));
    }
    packages.download(&names)?;
    relocate(&packages.unpacked().join(format!("usr/src/{name}/Makefile")), &packages.unpacked())?;
    packages.finish(&name[HEADERS.len()..])
}

/// The headers and the tools that build with them.
fn wanted(name: &str, depends: &str) -> Vec<String> {
    let further = [HEADERS, "linux-kbuild-"];
    let further = further.into_iter().flat_map(|beginning| packages::dependencies(depends, beginning));
    [name].into_iter().chain(further).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_errors() {
        let line = build(Path::new("/h"), Path::new("/m")).to_string();
        assert!(line.ends_with(
            "ARCH=x86_64 CROSS_COMPILE= MEMFERRY_TESTS=m CONFIG_DEBUG_INFO_BTF_MODULES= KCFLAGS=-Werror modules"
        ));
    }

    #[test]
    fn headers_come_with_what_builds_them() {
        let depends = "  Depends: linux-headers-6.12.9+bpo-common\n  Depends: linux-image-6.12.9+bpo-amd64\n  \
                       Depends: linux-kbuild-6.12.9+bpo\n  Depends: gcc-12\n";
        assert_eq!(
            wanted("linux-headers-6.12.9+bpo-amd64", depends),
            ["linux-headers-6.12.9+bpo-amd64", "linux-headers-6.12.9+bpo-common", "linux-kbuild-6.12.9+bpo"]
        );
    }
}
