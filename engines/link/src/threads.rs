//! Threads of the link.

use std::io;

/// Starts a thread that goes on until the process ends, or what it serves.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}
