//! Set-up: each function returns at once if its tool exists, and otherwise prints what it installs.
//!
//! ```text
//! need(...) ── exists ──► Ok
//!           ├─ missing ──► "x: installing ..." ──► apt-get, rustup, cargo, pip ──► Ok, or Failure::Setup
//!           └─ missing, dry run ──► "x: would install ..." ──► Ok
//! ```
//!
//! It does not change shell start-up files, update rustup itself, or ignore a failed download.

pub(crate) mod debian;
pub(crate) mod environments;
pub(crate) mod toolchains;

use std::cell::Cell;
use std::fs;

use crate::failure::Failure;
use crate::layout::{WORKSPACES, Workspace};
use crate::line::Line;
use crate::place::Place;
use crate::stages::{self, say};
use debian::{Installer, Tool};
use environments::Environment;
use toolchains::Pinned;

/// The target of 64-bit Arm Linux.
pub(crate) const ARM: &str = "aarch64-unknown-linux-gnu";

/// Installs what is missing, or only lists it.
pub(crate) struct Setup<'a> {
    place: &'a Place,
    is_dry: bool,
    /// Whether the package lists were downloaded.
    has_lists: Cell<bool>,
    /// Whether anything was missing.
    has_gaps: Cell<bool>,
}

impl<'a> Setup<'a> {
    pub(crate) fn new(place: &'a Place) -> Self {
        Self { place, is_dry: false, has_lists: Cell::new(false), has_gaps: Cell::new(false) }
    }

    /// Lists what is missing and installs nothing.
    pub(crate) fn dry(place: &'a Place) -> Self {
        Self { is_dry: true, ..Self::new(place) }
    }

    pub(crate) fn has_gaps(&self) -> bool {
        self.has_gaps.get()
    }

    /// Prints what is missing; returns whether it is to be installed now.
    fn begins(&self, what: &str) -> bool {
        self.has_gaps.set(true);
        say(format_args!("{} {what}", if self.is_dry { "would install" } else { "installing" }));
        !self.is_dry
    }

    /// Runs a line that installs something.
    fn install(&self, what: &str, line: &Line) -> Result<(), Failure> {
        if !self.begins(what) || stages::run(line) == 0 {
            return Ok(());
        }
        Err(Failure::setup(format!("could not download or install {what}")))
    }

    pub(crate) fn tools(&self, tools: &[&[Tool]]) -> Result<(), Failure> {
        let missing = debian::missing(tools);
        if missing.is_empty() {
            return Ok(());
        }
        let installer = Installer::detect();
        let refusal = installer.refusal(&missing);
        if let (Some(refusal), false) = (&refusal, self.is_dry) {
            return Err(Failure::setup(refusal));
        }
        if !self.begins(&format!("Debian packages: {}", missing.join(" "))) {
            if let Some(refusal) = refusal {
                say(refusal);
            }
            return Ok(());
        }
        if !self.has_lists.replace(true) && stages::run(&installer.update()) != 0 {
            return Err(Failure::setup("could not download the package lists"));
        }
        if stages::run(&installer.install(&missing)) != 0 {
            return Err(Failure::setup(format!("could not download or install: {}", missing.join(" "))));
        }
        Ok(())
    }

    /// Tools that a command can do without. Returns whether they are there; says so if they cannot be installed.
    pub(crate) fn optional_tools(&self, tools: &[&[Tool]], what: &str) -> bool {
        match self.tools(tools) {
            Ok(()) => true,
            Err(failure) => {
                say(failure);
                say(format_args!("going on without {what}"));
                false
            }
        }
    }

    fn pinned(&self) -> Result<Pinned, Failure> {
        let text = fs::read_to_string(self.place.at("rust-toolchain.toml"))
            .map_err(|error| Failure::setup(format!("rust-toolchain.toml: {error}")))?;
        Pinned::read(&text).map_err(Failure::Setup)
    }

    fn has_components(toolchain: &str, wanted: &[&str]) -> bool {
        stages::output(&toolchains::components_of(toolchain))
            .is_some_and(|installed| toolchains::has_components(&installed, wanted))
    }

    /// A C compiler, the pinned toolchain with its components, and the crates for the host and these targets.
    pub(crate) fn rust(&self, targets: &[&str]) -> Result<(), Failure> {
        self.tools(&[debian::C_COMPILER])?;
        let pinned = self.pinned()?;
        for component in &pinned.components {
            self.component(component)?;
        }
        for target in targets {
            self.target(target)?;
        }
        if self.is_dry { Ok(()) } else { self.crates(targets) }
    }

    /// A component of the pinned toolchain.
    pub(crate) fn component(&self, name: &str) -> Result<(), Failure> {
        let channel = self.pinned()?.channel;
        if Self::has_components(&channel, &[name]) {
            return Ok(());
        }
        self.install(
            &format!("{name} of Rust toolchain {channel}"),
            &toolchains::add_component(&channel, name),
        )
    }

    /// The name of an installed nightly with the components. Installs one if there is none.
    pub(crate) fn nightly(&self, components: &[&str]) -> Result<String, Failure> {
        let list = stages::output(&Line::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
        if let Some(found) = toolchains::nightlies(&list).find(|name| Self::has_components(name, components))
        {
            return Ok(found.to_owned());
        }
        let what = format!("Rust toolchain nightly with: {}", components.join(" "));
        self.install(&what, &toolchains::install("nightly", components))?;
        Ok("nightly".to_owned())
    }

    /// The standard library for a target, of the pinned toolchain.
    pub(crate) fn target(&self, target: &str) -> Result<(), Failure> {
        let line = Line::new("rustup").args(["target", "list", "--installed"]);
        if stages::output(&line).is_some_and(|list| list.lines().any(|name| name == target)) {
            return Ok(());
        }
        self.install(&format!("the Rust standard library for {target}"), &toolchains::add_target(target))
    }

    /// Fetches the crates of all workspaces, so that a failed download is distinct from a failed build.
    fn crates(&self, targets: &[&str]) -> Result<(), Failure> {
        let version = stages::output(&Line::new("rustc").arg("-vV")).unwrap_or_default();
        let host = toolchains::host(&version).ok_or_else(|| Failure::setup("rustc does not run"))?;
        for workspace in WORKSPACES {
            let targets: Vec<&str> = [host].into_iter().chain(targets.iter().copied()).collect();
            if stages::run(&fetch(workspace, &targets)) != 0 {
                return Err(Failure::setup(format!("could not download the crates of {}", workspace.name)));
            }
        }
        Ok(())
    }

    /// Fetches the crates of a workspace other than the project's two.
    pub(crate) fn crates_of(&self, folder: &str) -> Result<(), Failure> {
        let line = Line::new("cargo").args(["fetch", "--locked"]).within(folder);
        if stages::run(&line) == 0 {
            return Ok(());
        }
        Err(Failure::setup(format!("could not download the crates that {folder}/Cargo.lock names")))
    }

    /// Installs a cargo command that is a separate crate.
    pub(crate) fn cargo_tool(&self, name: &str) -> Result<(), Failure> {
        if stages::has(name) {
            return Ok(());
        }
        self.install(name, &Line::new("cargo").args(["install", "--quiet", "--locked", name]))
    }

    /// Makes a Python environment; false if that is not possible, with a message.
    pub(crate) fn environment(&self, environment: &Environment) -> bool {
        if environment.is_there(&self.place.target) {
            return true;
        }
        if !environments::can_make()
            && let Err(failure) = self.tools(&[debian::PYTHON])
        {
            say(failure);
            return false;
        }
        let folder = environment.folder(&self.place.target);
        if !self.begins(&format!("in {}: {}", folder.display(), environment.pins.join(" "))) {
            return true;
        }
        if !environments::is_new_enough() {
            say("this needs Python 3.11 or later with its module venv");
            return false;
        }
        let is_made = environment.make(&self.place.target);
        if !is_made {
            say(format_args!("could not download or install: {}", environment.pins.join(" ")));
        }
        is_made
    }
}

fn fetch(workspace: &Workspace, targets: &[&str]) -> Line {
    let options = targets.iter().flat_map(|target| ["--target", target]);
    workspace.cargo(&["fetch"]).args(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_fetched_for_the_targets_only() {
        assert_eq!(fetch(&WORKSPACES[0], &["a", "b"]).to_string(), "cargo fetch --target a --target b");
        assert_eq!(fetch(&WORKSPACES[1], &["a"]).to_string(), "cd research && cargo fetch --target a");
    }

    #[test]
    fn a_dry_run_installs_nothing() {
        let place = Place { root: "/none".into(), caller: "/none".into(), target: "/none/target".into() };
        let setup = Setup::dry(&place);
        assert_eq!(setup.install("what fails", &Line::new("false")), Ok(()));
        assert!(setup.has_gaps());
        assert!(Setup::new(&place).install("what fails", &Line::new("false")).is_err());
    }
}
