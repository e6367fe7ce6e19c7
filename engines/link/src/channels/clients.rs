//! The clients of this node that ask for channels: their requests are received, each by a thread of its own.
//!
//! ```text
//! accept ─ user, as the kernel says ─► Stranger ─ too many? turned away ─► Guest::receive ─► the thread of channels
//! ```
//!
//! A stranger counts until that thread has dealt with its request, so requests do not gather there.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memferry::Client;
use memferry_bulk::relay::{self, Guest};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::{Channels, News, PATIENCE};
use crate::report::Rare;
use crate::strangers::{Stranger, Strangers};
use crate::threads::spawn_with;

/// Requests of clients that are under way at a time, and those of one user.
const MAX_STRANGERS: (usize, usize) = (32, 8);
/// For want of descriptors or threads: lets others end.
const PAUSE: Duration = Duration::from_millis(50);

/// Listens at `path`, for all users. A socket that nobody listens on any more is replaced; another file is not.
pub(super) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    let open = || rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(path)?;
    let socket = open()?;
    relay::prepare(socket.as_fd())?;
    if let Err(error) = rustix::net::bind(&socket, &address) {
        let ended = rustix::net::connect(open()?, &address) == Err(rustix::io::Errno::CONNREFUSED);
        let is_socket = || {
            use std::os::unix::fs::FileTypeExt;
            std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        };
        if error != rustix::io::Errno::ADDRINUSE || !ended || !is_socket() {
            return Err(error.into());
        }
        std::fs::remove_file(path)?;
        rustix::net::bind(&socket, &address)?;
    }
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// Requests of users that are under way.
pub(super) fn strangers() -> Strangers<u32> {
    Strangers::new(MAX_STRANGERS)
}

pub(super) fn take(listener: &OwnedFd, client: &Client, channels: &Channels) {
    let strangers = strangers();
    let refusals = Arc::new(Rare::default());
    loop {
        let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let Ok(peer) = sockopt::socket_peercred(&socket) else {
            relay::turn_away(socket, u32::MAX);
            continue;
        };
        let user = peer.uid.as_raw();
        // A client that is not taken sees the end of the connection.
        let Some(stranger) = strangers.admit(user) else {
            refusals.tell(format_args!("a process of user {user} was refused: too many ask for channels"));
            relay::turn_away(socket, user);
            continue;
        };
        let mut request = (socket, stranger);
        // Closing the socket here could take as long as the user likes: descriptors may lie in it.
        while let Err((back, error)) =
            spawn_with("link-client", request, receive(client, channels, &refusals))
        {
            refusals.tell(format_args!("a process of user {user} has to wait: {error}"));
            std::thread::sleep(PAUSE);
            request = back;
        }
    }
}

/// Receives a request, on a thread of its own.
fn receive(
    client: &Client,
    channels: &Channels,
    refusals: &Arc<Rare>,
) -> impl FnOnce((OwnedFd, Stranger<u32>)) + Send + 'static {
    let client = client.clone();
    let channels = channels.clone();
    let refusals = Arc::clone(refusals);
    move |(socket, stranger)| match Guest::receive(socket, &client, PATIENCE) {
        Ok(guest) => channels.tell(News::Guest(Box::new(guest), stranger)),
        Err(error) => {
            let user = stranger.from();
            refusals.tell(format_args!("a process of user {user} was refused: {error}"));
        }
    }
}
