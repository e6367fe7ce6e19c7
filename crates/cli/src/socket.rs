//! The default socket of the service.

use std::path::PathBuf;

/// `memferry.sock` in the user's run-time directory; in /run for root and without such a directory.
pub(crate) fn default_path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(directory).join("memferry.sock")
        }
        _ => PathBuf::from("/run/memferry.sock"),
    }
}
