//! The directory of the caller, the root of the tree, and the build directory.
//!
//! ```text
//! ./x ── MEMFERRY_CALLER, CARGO_TARGET_DIR ──► cargo xtask ── CARGO_MANIFEST_DIR ──► Place
//! ```
//!
//! Cargo sets variables about this package for the program it runs. Child processes must not inherit them:
//! [`cargos_changes`] undoes them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The directory in which `./x` was called.
const CALLER: &str = "MEMFERRY_CALLER";
const TARGET: &str = "CARGO_TARGET_DIR";

/// The directories that commands use, all absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The root of the working tree.
    pub(crate) root: PathBuf,
    /// Where the command was called; its relative paths start here.
    pub(crate) caller: PathBuf,
    pub(crate) target: PathBuf,
}

impl Place {
    pub(crate) fn of_environment() -> Self {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().unwrap_or(Path::new("/")).to_owned();
        let here = env::current_dir().unwrap_or_else(|_| root.clone());
        let target = env::var_os(TARGET).map_or_else(|| root.join("target"), |target| here.join(target));
        let caller = env::var_os(CALLER).map_or(here, PathBuf::from);
        Self { root, caller, target }
    }

    /// A path of the tree.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A path in the build directory.
    pub(crate) fn built(&self, path: &str) -> PathBuf {
        self.target.join(path)
    }
}

/// Variables that cargo changed for this program, with the values for child processes.
pub(crate) fn cargos_changes() -> &'static [(OsString, Option<OsString>)] {
    const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
    static CHANGES: OnceLock<Vec<(OsString, Option<OsString>)>> = OnceLock::new();
    CHANGES.get_or_init(|| {
        let is_own = |name: &OsString| name.to_str().is_some_and(is_cargos_own);
        let own = env::vars_os().map(|(name, _)| name).filter(is_own).map(|name| (name, None));
        let target = Place::of_environment().target;
        let path = env::var_os(LIBRARY_PATH).map(|path| (LIBRARY_PATH.into(), library_path(&path, &target)));
        own.chain(path).collect()
    })
}

/// Whether cargo set this variable for the program that it runs.
fn is_cargos_own(name: &str) -> bool {
    matches!(name, "CARGO" | "CARGO_CRATE_NAME" | "CARGO_BIN_NAME" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR")
        || name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_MANIFEST_")
}

/// The library path without the build and toolchain directories that cargo put in front of it.
fn library_path(value: &OsStr, target: &Path) -> Option<OsString> {
    let is_kept = |path: &PathBuf| {
        !path.starts_with(target) && !path.components().any(|part| part.as_os_str() == "rustlib") && {
            let is_toolchain = path.ends_with("lib")
                && path.ancestors().nth(2).is_some_and(|folder| folder.ends_with("toolchains"));
            !is_toolchain
        }
    };
    let kept: Vec<PathBuf> =
        env::split_paths(value).filter(|path| !path.as_os_str().is_empty() && is_kept(path)).collect();
    (!kept.is_empty()).then(|| env::join_paths(kept).ok()).flatten()
}

/// Finds a program on the search path.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|metadata| metadata.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_variables_are_recognized() {
        for name in ["CARGO", "CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"] {
            assert!(is_cargos_own(name), "{name}");
        }
        for name in ["CARGO_TARGET_DIR", "CARGO_HOME", "CARGO_INCREMENTAL", "PATH", "CARGO_BUILD_JOBS"] {
            assert!(!is_cargos_own(name), "{name}");
        }
    }

    #[test]
    fn library_path_loses_what_cargo_added() {
        let target = Path::new("/tree/target");
        let added = "/tree/target/debug/deps:/tree/target/debug:/home/a/.rustup/toolchains/1.95.0/lib:\
                     /home/a/.rustup/toolchains/1.95.0/lib/rustlib/x86_64/lib";
        assert_eq!(library_path(OsStr::new(added), target), None);
        let all = format!("{added}:/opt/cuda/lib");
        assert_eq!(library_path(OsStr::new(&all), target), Some("/opt/cuda/lib".into()));
    }

    #[test]
    fn programs_are_found_on_the_search_path() {
        assert!(program("sh").is_some_and(|file| file.is_absolute()));
        assert_eq!(program("no-such-program-anywhere"), None);
    }
}
