//! Debian packages: lays out each package's files, has debhelper pack them, and lintian check the result.
//!
//! ```text
//! packaging/debian, changelog ──► target/package/source/debian ─┐
//! tree ──► target/package/source/stage/PACKAGE/usr/... ─────────┴──► dpkg-buildpackage ──► target/package/*.deb ──► lintian
//! ```
//!
//! It needs no root. Equal commits give equal packages: times in them are the commit's.

use std::fs;
use std::path::{Path, PathBuf};

use super::tree::{self, Prefix};
use super::{build, licences};
use crate::failure::Failure;
use crate::files::{broken, make, make_anew, read, write};
use crate::layout::{self, PRODUCT_WORKSPACE, RESEARCH_WORKSPACE, Workspace, package};
use crate::line::Line;
use crate::setup::{debian, toolchains};
use crate::stages::{output, run_all, say};
use crate::work::Work;

const MAINTAINER: &str = "The memferry developers <memferry@packages.invalid>";
/// Header, static library and example for engines.
const ENGINE_DEVELOPMENT: &str = "libmemferry-engine-dev";
/// The engine process for NVIDIA GPUs.
const ENGINE_CUDA: &str = "memferry-engine-cuda";
/// The engine process for I/OAT devices.
const ENGINE_IOAT: &str = "memferry-engine-ioat";
/// The engine process for Intel's DSA.
const ENGINE_DSA: &str = "memferry-engine-dsa";
/// The link to other nodes.
const LINK: &str = "memferry-link";
/// The provider for libfabric.
const PROVIDER: &str = "libmemferry-fi";
/// Devices for virtual machines.
const DEVICE: &str = "memferry-device";
/// Packages with crates of others, the crates that each is built of, and their workspace.
pub(super) const WITH_CRATES: [(&str, &[&str], Workspace); 11] = [
    ("memferry", &[package::CLI, package::PRELOAD, package::RECORDER], PRODUCT_WORKSPACE),
    (ENGINE_CUDA, &[package::ENGINE_CUDA], PRODUCT_WORKSPACE),
    (ENGINE_IOAT, &[package::ENGINE_IOAT], PRODUCT_WORKSPACE),
    (LINK, &[package::LINK], PRODUCT_WORKSPACE),
    (ENGINE_DSA, &[package::ENGINE_DSA], PRODUCT_WORKSPACE),
    (DEVICE, &[package::DEVICE], RESEARCH_WORKSPACE),
    ("libmemferry0", &[package::C], PRODUCT_WORKSPACE),
    ("libmemferry-dev", &[package::C], PRODUCT_WORKSPACE),
    ("libmemferry-engine0", &[package::ENGINE_C], PRODUCT_WORKSPACE),
    (ENGINE_DEVELOPMENT, &[package::ENGINE_C], PRODUCT_WORKSPACE),
    ("python3-memferry", &[package::PYTHON], PRODUCT_WORKSPACE),
];

/// Checks each manual page below folders; pages of other packages need not be installed.
const MANDOC: &str = r#"find "$@" -type f -exec mandoc -T lint -W warning {} +"#;

/// Builds and checks the packages; returns their folder.
pub(crate) fn run(work: &Work) -> Result<PathBuf, Failure> {
    work.setup.tools(&[debian::PACKAGING, debian::LIBFABRIC])?;
    let built = build::programs(work)?;
    let provider = provider(work, &built)?;
    let pages = [&built.c, &built.engine].map(|library| library.folder.join("share/man"));
    let lint = Line::new("sh")
        .args(["-c", MANDOC, "mandoc"])
        .arg(&built.manuals)
        .arg(work.place.at(layout::packaging::CUDA_PAGE))
        .arg(work.place.at(layout::packaging::IOAT_PAGE))
        .arg(work.place.at(layout::packaging::LINK_PAGE))
        .arg(work.place.at(layout::packaging::DSA_PAGE))
        .arg(work.place.at(layout::packaging::DEVICE_PAGE))
        .args(pages);
    work.stages.run("syntax of manual pages", &lint)?;
    let wheel = build::wheel(work)?;
    let folder = work.place.built("package/debian");
    let source = folder.join("source");
    make_anew(&folder)?;
    let version = version(&read(&work.place.at("Cargo.toml"))?)?;
    lay_out(work, &built, &wheel, &source.join("stage"), &version)?;
    tree::provider(&provider, &prefix(&source.join("stage"), PROVIDER)?)?;
    let rules = work.place.at(layout::packaging::DEBIAN);
    if run_all(&[Line::new("cp").arg("-r").arg(&rules).arg(source.join("debian"))]) != 0 {
        return Err(Failure::setup("could not copy the rules of the packages"));
    }
    write(&source.join("debian/changelog"), changelog(&version, &commit("%cD")?))?;
    let pack = Line::new("dpkg-buildpackage").args(["--build=binary", "--no-sign"]).within(&source);
    work.stages.run("packages", &pack.env("SOURCE_DATE_EPOCH", commit("%ct")?))?;
    let changes = files(&folder, "changes")?;
    let lint = Line::new("lintian").args(["--fail-on", "error,warning"]).args(&changes);
    work.stages.run("lintian", &lint)?;
    for file in files(&folder, "deb")? {
        let size = fs::metadata(&file).map(|metadata| metadata.len()).unwrap_or(0);
        say(format_args!("{} ({} KB)", file.display(), size / 1000));
    }
    Ok(folder)
}

/// Builds the provider for libfabric, for a system that has the library where the linker looks; returns its folder.
fn provider(work: &Work, built: &tree::Built) -> Result<PathBuf, Failure> {
    let folder = work.place.built("package/libfabric");
    make_anew(&folder)?;
    let line = build::provider(&work.place.at(layout::libfabric::FOLDER), &built.c.folder, &folder);
    work.stages.run("provider for libfabric", &line.args(["CFLAGS=-O2", "RPATH="]))?;
    Ok(folder)
}

/// Where the files of a package are laid out.
fn prefix(stage: &Path, package: &str) -> Result<Prefix, Failure> {
    let triplet = output(&Line::new("dpkg-architecture").args(["-q", "DEB_HOST_MULTIARCH"]));
    let triplet = triplet.ok_or_else(|| Failure::setup("dpkg-architecture does not run"))?;
    Ok(Prefix {
        root: stage.join(package).join("usr"),
        seen: "/usr".into(),
        libraries: format!("lib/{}", triplet.trim()),
        // Where debhelper looks for them.
        units: stage.join(package).join("lib/systemd/system"),
        zsh: "share/zsh/vendor-completions",
    })
}

fn lay_out(
    work: &Work,
    built: &tree::Built,
    wheel: &Path,
    stage: &Path,
    version: &str,
) -> Result<(), Failure> {
    let prefix = |package: &str| prefix(stage, package);
    tree::command(built, &prefix("memferry")?)?;
    tree::cuda(built, &prefix(ENGINE_CUDA)?)?;
    tree::ioat(built, &prefix(ENGINE_IOAT)?)?;
    tree::node_link(built, &prefix(LINK)?)?;
    tree::dsa(built, &prefix(ENGINE_DSA)?)?;
    tree::device(built, &prefix(DEVICE)?)?;
    tree::library(&built.c, &prefix("libmemferry0")?)?;
    tree::development(&built.c, &prefix("libmemferry-dev")?)?;
    tree::library(&built.engine, &prefix("libmemferry-engine0")?)?;
    tree::development(&built.engine, &prefix(ENGINE_DEVELOPMENT)?)?;
    tree::examples(built, &prefix(ENGINE_DEVELOPMENT)?, ENGINE_DEVELOPMENT)?;
    tree::python(wheel, &prefix("python3-memferry")?)?;
    tree::module(built, &prefix("memferry-dkms")?, version)?;
    let rustc = output(&Line::new("rustc").arg("-vV").within(&work.place.root)).unwrap_or_default();
    let host = toolchains::host(&rustc).ok_or_else(|| Failure::setup("rustc does not run"))?;
    for (package, crates, workspace) in WITH_CRATES {
        let docs = stage.join(package).join("usr/share/doc").join(package);
        make(&docs)?;
        write(
            &docs.join("third-party-licences"),
            licences::of(crates, &work.place.at(workspace.folder), host)?,
        )?;
    }
    Ok(())
}

/// A field of the current commit.
fn commit(format: &str) -> Result<String, Failure> {
    let line = Line::new("git").args(["log", "-1", &format!("--format={format}")]);
    let text = output(&line).ok_or_else(|| Failure::setup("git knows no commit of this tree"))?;
    Ok(text.trim().to_owned())
}

/// The version of the workspace.
pub(crate) fn version(manifest: &str) -> Result<String, Failure> {
    let table: toml::Table =
        manifest.parse().map_err(|error| Failure::setup(format!("Cargo.toml: {error}")))?;
    let version = table.get("workspace").and_then(|table| table.get("package")?.get("version")?.as_str());
    version.map(str::to_owned).ok_or_else(|| Failure::setup("Cargo.toml has no version"))
}

fn changelog(version: &str, date: &str) -> String {
    format!(
        "memferry ({version}) unstable; urgency=medium\n\n  * Built from the sources; CHANGELOG.md there lists the \
         changes.\n\n -- {MAINTAINER}  {date}\n"
    )
}

/// The files with this extension, in order of name.
pub(crate) fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| broken(folder, &error))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_the_workspaces() {
        assert_eq!(version("[workspace.package]\nversion = \"1.2.3\"\n").unwrap(), "1.2.3");
        assert!(version("[package]\nversion = \"1.2.3\"\n").is_err());
    }

    #[test]
    fn every_package_with_programs_brings_notices() {
        let control = include_str!("../../../packaging/debian/control");
        let packages: Vec<&str> = control.lines().filter_map(|line| line.strip_prefix("Package: ")).collect();
        // In C: a provider that loads libmemferry0, and the sources of the module.
        let others = [PROVIDER, "memferry-dkms"];
        let with_crates = |name: &str| WITH_CRATES.iter().any(|(with, ..)| *with == name);
        for name in &packages {
            assert!(with_crates(name) != others.contains(name), "{name}");
        }
        assert_eq!(packages.len(), WITH_CRATES.len() + others.len());
    }

    #[test]
    fn changelog_has_the_form_that_dpkg_reads() {
        let text = changelog("0.1.0", "Mon, 23 Nov 2026 23:50:36 +0000");
        assert!(text.starts_with("memferry (0.1.0) unstable; urgency=medium\n\n  * "), "{text}");
        assert!(text.ends_with("invalid>  Mon, 23 Nov 2026 23:50:36 +0000\n"), "{text}");
    }
}
