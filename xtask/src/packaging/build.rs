//! Builds what is packed: programs and libraries in release mode, manual pages, completions, the C library, and the Python wheel.
//!
//! ```text
//! a cargo build for each workspace, so that programs share their crates ──► manual pages, completions, C library ──► Built
//! ```

use std::path::{Path, PathBuf};

use super::tree::{Built, CLibrary};
use super::wheel;
use crate::failure::Failure;
use crate::files::{make_anew, write};
use crate::layout::{self, PRODUCT_WORKSPACE, RESEARCH_WORKSPACE, binary, package};
use crate::line::Line;
use crate::setup::environments::PACKAGE;
use crate::stages::{output, say};
use crate::work::Work;

const CRATES: [&str; 9] = [
    package::CLI,
    package::C,
    package::ENGINE_C,
    package::ENGINE_CUDA,
    package::ENGINE_IOAT,
    package::LINK,
    package::ENGINE_DSA,
    package::PRELOAD,
    package::RECORDER,
];

/// Builds programs, libraries, manual pages and completions.
pub(crate) fn programs(work: &Work) -> Result<Built, Failure> {
    work.setup.rust(&[])?;
    work.stages.run("programs and libraries", &cargo())?;
    work.stages.run("devices for virtual machines", &cargo_device())?;
    let programs = work.place.built("release");
    let built = Built {
        root: work.place.root.clone(),
        manuals: work.place.built("package/man"),
        completions: work.place.built("package/completions"),
        c: CLibrary { name: "memferry", folder: work.place.built("package/c") },
        engine: CLibrary { name: "memferry_engine", folder: work.place.built("package/engine") },
        programs,
    };
    make_anew(&built.manuals)?;
    make_anew(&built.completions)?;
    make_anew(&built.c.folder)?;
    make_anew(&built.engine.folder)?;
    let command = built.programs.join(binary::CLI);
    work.stages.run("manual pages", &Line::new(&command).arg("manual-pages").arg(&built.manuals))?;
    for shell in ["bash", "zsh", "fish"] {
        let text = output(&Line::new(&command).args(["completions", shell]));
        let text =
            text.ok_or_else(|| Failure::setup(format!("the command prints no completions for {shell}")))?;
        write(&built.completions.join(shell), text)?;
    }
    work.stages.run("C library", &install_c(&["--strip"], &built.programs, &built.c.folder))?;
    work.stages.run("C library for engines", &install_engine(&built.programs, &built.engine.folder))?;
    Ok(built)
}

fn cargo() -> Line {
    let options = CRATES.iter().flat_map(|name| ["-p", name]);
    PRODUCT_WORKSPACE.cargo(&["build", "--release"]).args(options)
}

/// The program of the laboratory's workspace that others use.
fn cargo_device() -> Line {
    RESEARCH_WORKSPACE.cargo(&["build", "--release", "-p", package::DEVICE])
}

/// Installs the C library from a build directory.
pub(crate) fn install_c(options: &[&str], built: &Path, prefix: &Path) -> Line {
    Line::new(format!("./{}", layout::C_INSTALL)).args(options).arg(built.join(binary::C_LIBRARY)).arg(prefix)
}

/// Installs the C library for engines from a build directory.
fn install_engine(built: &Path, prefix: &Path) -> Line {
    let line = Line::new(format!("./{}", layout::ENGINE_INSTALL)).arg("--strip");
    line.arg(built.join(binary::ENGINE_LIBRARY)).arg(prefix)
}

/// Builds the provider for libfabric, with a C library that is installed below a prefix.
pub(crate) fn provider(sources: &Path, library: &Path, folder: &Path) -> Line {
    let line = Line::new("make").arg("-C").arg(sources).arg(format!("OUTPUT={}", folder.display()));
    // Made by another libfabric or library, the provider would not be made anew.
    line.args(["--always-make", "all"]).env("PKG_CONFIG_PATH", library.join("lib/pkgconfig"))
}

/// Builds the wheel; returns its path.
pub(crate) fn wheel(work: &Work) -> Result<PathBuf, Failure> {
    if !work.setup.environment(&PACKAGE) {
        return Err(Failure::setup("no environment for the Python package"));
    }
    let mut built = None;
    work.stages.step("wheel", "maturin build", || match wheel::release(&work.place.target) {
        Ok(found) => {
            built = found;
            0
        }
        Err(status) => status,
    })?;
    let built = built.ok_or_else(|| Failure::setup("maturin built no wheel"))?;
    check(work, &built)?;
    Ok(built)
}

/// Makes the source distribution of the Python package; returns its path.
pub(crate) fn source(work: &Work) -> Result<PathBuf, Failure> {
    if !work.setup.environment(&PACKAGE) {
        return Err(Failure::setup("no environment for the Python package"));
    }
    let stage = "source distribution";
    let source = wheel::source(&work.place.target)
        .map_err(|status| Failure::Stage { stage: stage.to_owned(), status })?;
    check(work, &source)?;
    Ok(source)
}

fn check(work: &Work, built: &Path) -> Result<(), Failure> {
    let Some(what) = wheel::lacks(&work.place.target, built) else { return Ok(()) };
    say(format_args!("{} lacks {what}", built.display()));
    Err(Failure::Stage { stage: "licences and tags".to_owned(), status: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workspace_is_built_at_once() {
        assert_eq!(
            cargo().to_string(),
            "cargo build --release -p memferry-cli -p memferry-c -p memferry-engine-c -p memferry-engine-cuda -p \
             memferry-engine-ioat -p memferry-link -p memferry-engine-dsa -p memferry-preload -p memferry-recorder"
        );
        assert_eq!(cargo_device().to_string(), "cd research && cargo build --release -p memferry-pci");
    }

    #[test]
    fn library_is_installed_by_its_script() {
        let line = install_c(&["--strip"], Path::new("/t/release"), Path::new("/opt/m")).to_string();
        assert_eq!(line, format!("./{} --strip /t/release/libmemferry_c.a /opt/m", layout::C_INSTALL));
        let line = install_engine(Path::new("/t/release"), Path::new("/opt/m")).to_string();
        let expected =
            format!("./{} --strip /t/release/libmemferry_engine_c.a /opt/m", layout::ENGINE_INSTALL);
        assert_eq!(line, expected);
    }
}
