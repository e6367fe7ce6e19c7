//! Closes sockets that may hold descriptors of their clients, on threads that no other client waits for.
//!
//! Closing a Unix socket closes the descriptors that were sent and not received, and their sender decides how long that takes: a
//! TCP socket can linger for an hour. Linux 6.16 and later refuse such messages (`SO_PASSRIGHTS`).

use std::os::fd::OwnedFd;

use crate::shared::Connected;

/// Closes a socket without waiting for it. Its connection counts until then.
pub(crate) fn close_elsewhere(socket: OwnedFd, connected: Option<Connected>) {
    // If no thread starts, both are dropped here.
    let close = move || drop((socket, connected));
    let _ = std::thread::Builder::new().name("9p-close".to_owned()).stack_size(64 << 10).spawn(close);
}
