//! Sockets of services that no option names: one for `serve`, one for commands that use a service.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The socket of the machine's service.
const SYSTEM: &str = "/run/memferry.sock";

/// Where a service listens: `memferry.sock` in the user's run-time directory; in /run for root and without such a directory.
pub(crate) fn default_path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(directory).join("memferry.sock")
        }
        _ => PathBuf::from(SYSTEM),
    }
}

/// The service that a command uses: the user's own, else the machine's. Looked up once, as it is a default of several commands.
pub(crate) fn service_path() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| present(default_path(), Path::new(SYSTEM))).clone()
}

/// `own`, unless only the other one is there.
fn present(own: PathBuf, system: &Path) -> PathBuf {
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    if !is_there(&own) && is_there(system) { system.to_owned() } else { own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_service_comes_first() {
        let [there, missing] = [PathBuf::from("/proc"), PathBuf::from("/nowhere/memferry.sock")];
        assert_eq!(present(there.clone(), Path::new("/sys")), there);
        assert_eq!(present(missing.clone(), &there), there);
        assert_eq!(present(missing.clone(), Path::new("/nowhere/else")), missing);
    }
}
