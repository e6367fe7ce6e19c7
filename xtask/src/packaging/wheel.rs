//! The Python wheel: built by maturin, and installed in the environment that tests and users of the tree run. The source
//! distribution, from which pip builds a wheel elsewhere.
//!
//! ```text
//! maturin build ──► target/wheels/PROFILE/*.whl ──► pip install
//! maturin sdist ──► target/wheels/source/*.tar.gz ──► pip wheel
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::layout;
use crate::line::Line;
use crate::setup::environments::{AUDIT, PACKAGE};
use crate::stages::{output, run_all, say};

/// The second number of the glibc from which on wheels work.
const GLIBC: u32 = 34;

/// Builds the wheel in release mode and returns its path; the error is an exit status.
pub(crate) fn release(target: &Path) -> Result<Option<PathBuf>, u8> {
    match build(target, "release") {
        0 => Ok(wheels(&folder_of_wheels(target, "release")).pop()),
        status => Err(status),
    }
}

/// Builds the wheel in a cargo profile and installs it in the environment; returns the exit status.
pub(crate) fn build(target: &Path, profile: &str) -> u8 {
    let folder = folder_of_wheels(target, profile);
    if folder.exists() && fs::remove_dir_all(&folder).is_err() {
        return 1;
    }
    match run_all(&[build_wheel(target, profile, &folder)]) {
        0 => run_all(&[install_wheel(target, &wheels(&folder))]),
        status => status,
    }
}

/// Makes the source distribution; the error is an exit status.
pub(crate) fn source(target: &Path) -> Result<PathBuf, u8> {
    let folder = folder_of_wheels(target, "source");
    if folder.exists() && fs::remove_dir_all(&folder).is_err() {
        return Err(1);
    }
    match run_all(&[make_source(target, &folder)]) {
        0 => files(&folder, "gz").pop().ok_or(1),
        status => Err(status),
    }
}

fn make_source(target: &Path, folder: &Path) -> Line {
    Line::new(PACKAGE.program(target, "maturin")).args(["sdist", "--out"]).arg(folder).within(layout::PYTHON)
}

/// Builds a wheel from a source distribution, with the environment's maturin and crates that were fetched before.
pub(crate) fn build_source(target: &Path, source: &Path) -> Line {
    let folder = folder_of_wheels(target, "from-source");
    Line::new(PACKAGE.program(target, "pip"))
        .args(["wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"])
        .arg("--wheel-dir")
        .arg(folder)
        .arg(source)
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_TARGET_DIR", target.join("wheels/from-source/target"))
        .env("PATH", paths(target))
}

/// Asks auditwheel whether the wheel that was built from the sources works where docs/install.md says so; returns the exit status.
pub(crate) fn audit(target: &Path) -> u8 {
    let wheels = wheels(&folder_of_wheels(target, "from-source"));
    let is_as_promised = |wheel: &PathBuf| {
        let said = output(&audit_line(target, wheel)).unwrap_or_default();
        let serves = serves_promised_systems(&said);
        if !serves {
            say(format_args!("{} does not serve every Linux with glibc 2.{GLIBC}: {said}", wheel.display()));
        }
        serves
    };
    u8::from(wheels.is_empty() || !wheels.iter().all(is_as_promised))
}

fn audit_line(target: &Path, wheel: &Path) -> Line {
    Line::new(AUDIT.program(target, "auditwheel")).arg("show").arg(wheel)
}

fn serves_promised_systems(said: &str) -> bool {
    // The text is broken into lines anywhere.
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let tag = said.split_once("platform tag: \"manylinux_2_").and_then(|(_, tag)| tag.split('_').next());
    tag.and_then(|minor| minor.parse::<u32>().ok()).is_some_and(|minor| minor <= GLIBC)
}

/// The search path, with the environment's programs first.
fn paths(target: &Path) -> std::ffi::OsString {
    let mut paths = PACKAGE.program(target, "").into_os_string();
    if let Some(others) = std::env::var_os("PATH") {
        paths.push(":");
        paths.push(others);
    }
    paths
}

/// What a wheel or a source distribution should have and has not: licences, and for a wheel the tags of one that serves every Python
/// and every Linux with a glibc that is new enough.
pub(crate) fn lacks(target: &Path, built: &Path) -> Option<String> {
    let is_wheel = built.extension().is_some_and(|extension| extension == "whl");
    let module = if is_wheel { "zipfile" } else { "tarfile" };
    let python = PACKAGE.program(target, "python3");
    let Some(list) = output(&Line::new(python).args(["-m", module, "-l"]).arg(built)) else {
        return Some("contents that Python can list".to_owned());
    };
    lacks_of_list(is_wheel, &built.file_name()?.to_string_lossy(), &list)
}

fn lacks_of_list(is_wheel: bool, name: &str, list: &str) -> Option<String> {
    let tags: &[&str] = if is_wheel { &["-cp311-abi3-", "manylinux"] } else { &[] };
    let tag = tags.iter().find(|tag| !name.contains(**tag)).map(|tag| format!("the tag {tag}"));
    let files = ["LICENSE-APACHE", "LICENSE-MIT", "memferry/third-party-licences"];
    let file = files.iter().find(|file| !list.contains(**file)).map(|file| format!("the file {file}"));
    tag.or(file)
}

fn folder_of_wheels(target: &Path, profile: &str) -> PathBuf {
    target.join("wheels").join(profile)
}

fn wheels(folder: &Path) -> Vec<PathBuf> {
    files(folder, "whl")
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn build_wheel(target: &Path, profile: &str, folder: &Path) -> Line {
    Line::new(PACKAGE.program(target, "maturin"))
        .args(["build", "--quiet", "--profile", profile, "--interpreter"])
        .arg(PACKAGE.program(target, "python3"))
        .arg("--out")
        .arg(folder)
        .within(layout::PYTHON)
}

/// Unpacks the wheel of a profile: a folder of it on the search path is as good as an installed one.
pub(crate) fn unpack(target: &Path, profile: &str, to: &Path) -> Line {
    let wheels = wheels(&folder_of_wheels(target, profile));
    Line::new(PACKAGE.program(target, "python3")).args(["-m", "zipfile", "-e"]).args(wheels).arg(to)
}

fn install_wheel(target: &Path, wheels: &[PathBuf]) -> Line {
    let options = ["install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"];
    Line::new(PACKAGE.program(target, "pip")).args(options).args(wheels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_and_tags_are_missed() {
        let licences =
            "memferry.dist-info/licenses/LICENSE-APACHE\nmemferry.dist-info/licenses/LICENSE-MIT\n";
        let list = &format!("{licences}memferry/third-party-licences\n");
        let wheel = |tags: &str| format!("memferry-0.1.0-{tags}_x86_64.whl");
        let lacks = |name: &str, list| lacks_of_list(name.ends_with("whl"), name, list);
        assert_eq!(lacks(&wheel("cp311-abi3-manylinux_2_34"), list), None);
        assert_eq!(lacks("memferry-0.1.0.tar.gz", list), None);
        assert_eq!(lacks(&wheel("cp311-abi3-linux"), list).unwrap(), "the tag manylinux");
        assert_eq!(lacks(&wheel("cp311-cp311-manylinux_2_34"), list).unwrap(), "the tag -cp311-abi3-");
        assert_eq!(
            lacks("memferry-0.1.0.tar.gz", licences).unwrap(),
            "the file memferry/third-party-licences"
        );
        assert_eq!(lacks("memferry-0.1.0.tar.gz", "LICENSE-APACHE").unwrap(), "the file LICENSE-MIT");
    }

    #[test]
    fn wheels_for_newer_systems_are_found() {
        let said =
            |tag| format!("memferry.whl is consistent with\nthe following platform tag:\n\"{tag}\".\n");
        assert!(serves_promised_systems(&said("manylinux_2_34_x86_64")));
        assert!(serves_promised_systems(&said("manylinux_2_17_aarch64")));
        for tag in ["manylinux_2_35_x86_64", "linux_x86_64", "manylinux_2_"] {
            assert!(!serves_promised_systems(&said(tag)), "{tag}");
        }
        assert!(!serves_promised_systems(""));
    }

    #[test]
    fn wheel_is_built_in_the_folder_of_the_package() {
        let target = Path::new("/t");
        assert_eq!(
            build_wheel(target, "dev", &folder_of_wheels(target, "dev")).to_string(),
            format!(
                "cd {} && /t/python/bin/maturin build --quiet --profile dev --interpreter /t/python/bin/python3 \
                 --out /t/wheels/dev",
                layout::PYTHON
            )
        );
        let install = install_wheel(target, &["/t/wheels/dev/m.whl".into()]).to_string();
        assert!(install.starts_with("/t/python/bin/pip install"), "{install}");
        assert!(install.ends_with("--force-reinstall --no-deps /t/wheels/dev/m.whl"), "{install}");
    }
}
