//! The socket the daemon listens on: bound here, or handed over by a supervisor.
//!
//! ```text
//! bind(path)   lock file ─ stale socket replaced ─ bind, listen, chmod ─► Listener, which removes both at its end
//! activated()  LISTEN_PID, LISTEN_FDS ─ one listening socket of packets ─► Listener, whose socket stays
//! ```
//!
//! Who holds the lock is the service of that path: of several that start at once over a stale socket, one goes on. The
//! lock file is removed only by who holds it, so a file somebody else locks is never taken for it. Who may connect is up to
//! the socket's permissions; what clients say is `connection`'s.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use thiserror::Error;

/// The daemon cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another service listens there, or is about to.
    #[error("a service is already listening on {}; stop it or choose another socket", .0.display())]
    AlreadyRunning(PathBuf),
    /// The socket could not be made.
    #[error("cannot listen on {} ({step}): {source}", path.display())]
    Socket { path: PathBuf, step: &'static str, source: io::Error },
    /// What a supervisor handed over is not what it takes.
    #[error("cannot take over the socket of the supervisor: {0}")]
    Activation(String),
}

/// A socket that clients connect to.
pub struct Listener {
    socket: OwnedFd,
    address: String,
    /// What is removed at the end: nothing when the socket is the supervisor's.
    bound: Option<Bound>,
}

/// A socket made here.
struct Bound {
    path: PathBuf,
    file: Option<(u64, u64)>,
    lock: Lock,
}

impl Listener {
    /// Listens on `path`; a stale socket, which nobody listens on, is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ListenError> {
        Self::bind_kind(path, mode, SocketType::SEQPACKET)
    }

    /// Listens on `path` for streams, as [`bind`](Self::bind) does for packets: for what is served beside the service.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind_stream(path: &Path, mode: u32) -> Result<Self, ListenError> {
        Self::bind_kind(path, mode, SocketType::STREAM)
    }

    fn bind_kind(path: &Path, mode: u32, kind: SocketType) -> Result<Self, ListenError> {
        let failed =
            |step| move |source: io::Error| ListenError::Socket { path: path.to_owned(), step, source };
        let address = SocketAddrUnix::new(path).map_err(|error| failed("address")(error.into()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
        refuse_plain_file(path)?;
        let lock = Lock::take(path)?;
        if std::fs::symlink_metadata(path).is_ok() {
            refuse_plain_file(path)?;
            let probe = socket().map_err(|error| failed("socket")(error.into()))?;
            match rustix::net::connect(&probe, &address) {
                Err(rustix::io::Errno::CONNREFUSED) => {
                    std::fs::remove_file(path).map_err(failed("unlink"))?
                }
                Ok(()) | Err(_) => return Err(ListenError::AlreadyRunning(path.to_owned())),
            }
        }
        let listener = socket().map_err(|error| failed("socket")(error.into()))?;
        // Never open to more than it shall be: what the umask took away comes back below. So it can listen as soon as it is there.
        rustix::fs::fchmod(&listener, Mode::from_raw_mode(mode))
            .map_err(|error| failed("chmod")(error.into()))?;
        rustix::net::bind(&listener, &address).map_err(|error| failed("bind")(error.into()))?;
        rustix::net::listen(&listener, BACKLOG).map_err(|error| failed("listen")(error.into()))?;
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(failed("chmod"))?;
        let bound = Bound { path: path.to_owned(), file: identity(path), lock };
        Ok(Self { socket: listener, address: path.display().to_string(), bound: Some(bound) })
    }

    /// The socket a supervisor such as systemd handed over, `None` when it handed over nothing.
    ///
    /// Call it before anything else opens a descriptor.
    ///
    /// # Errors
    /// [`ListenError::Activation`].
    pub fn activated() -> Result<Option<Self>, ListenError> {
        let failed = |message: String| ListenError::Activation(message);
        let number = |name: &str| match std::env::var(name) {
            Ok(text) => match text.parse::<u32>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(failed(format!("{name} is '{text}', it has to be a number"))),
            },
            Err(_) => Ok(None),
        };
        // What was meant for another process, a parent for instance, is none of ours.
        if number("LISTEN_PID")? != Some(std::process::id()) {
            return Ok(None);
        }
        let count = number("LISTEN_FDS")?.unwrap_or(0);
        if count != 1 {
            let names =
                std::env::var("LISTEN_FDNAMES").map(|names| format!(" ({names})")).unwrap_or_default();
            return Err(failed(format!(
                "{count} sockets came{names}, it listens on one; give the socket unit one ListenSequentialPacket="
            )));
        }
        let kind = (i32::from(AddressFamily::UNIX.as_raw()), SocketType::SEQPACKET.as_raw() as i32);
        let hint =
            "Unix socket of packets; write ListenSequentialPacket=, not ListenStream=, in the socket unit";
        let taken = ListenFd::from_env().take_custom::<OwnedFd>(0, kind.0, kind.1, hint);
        let socket = taken.map_err(|error| failed(error.to_string()))?;
        let socket = socket.ok_or_else(|| failed("it was taken before".to_owned()))?;
        let listens = sockopt::socket_acceptconn(&socket).unwrap_or(false);
        if !listens {
            let message = "it does not listen; write Accept=no, or leave it out, in the socket unit";
            return Err(failed(message.to_owned()));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.to_string()))?;
        let address = address_of(&socket);
        Ok(Some(Self { socket, address, bound: None }))
    }

    /// Where clients connect, for people.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The socket, which does not block.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Stops listening; what was made here is removed.
    pub fn close(self) {
        drop(self.socket);
        let Some(bound) = self.bound else { return };
        // What lies there now may be somebody else's.
        if bound.file.is_some() && identity(&bound.path) == bound.file {
            let _ = std::fs::remove_file(&bound.path);
        }
        bound.lock.remove();
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

fn address_of(socket: &OwnedFd) -> String {
    let name = rustix::net::getsockname(socket).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    let path = name.as_ref().and_then(SocketAddrUnix::path_bytes);
    path.map_or_else(
        || "a socket without a path".to_owned(),
        |path| String::from_utf8_lossy(path).into_owned(),
    )
}

/// A connection to what is no socket is refused just as one to a stale socket is; it must not be removed.
fn refuse_plain_file(path: &Path) -> Result<(), ListenError> {
    let socket = |about: &std::fs::Metadata| std::os::unix::fs::FileTypeExt::is_socket(&about.file_type());
    match std::fs::symlink_metadata(path) {
        Ok(about) if !socket(&about) => Err(ListenError::Socket {
            path: path.to_owned(),
            step: "bind",
            source: io::Error::new(io::ErrorKind::AlreadyExists, "something that is no socket lies there"),
        }),
        _ => Ok(()),
    }
}

/// Which file a path names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|about| numbers(&about))
}

fn numbers(about: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (about.dev(), about.ino())
}

/// A locked file beside the socket.
struct Lock {
    path: PathBuf,
    /// Locked as long as it is open.
    _file: File,
}

impl Lock {
    fn take(socket: &Path) -> Result<Self, ListenError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed =
            |source: io::Error| ListenError::Socket { path: socket.to_owned(), step: "lock file", source };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        loop {
            let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
            let file = File::from(file.map_err(|error| failed(error.into()))?);
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(ListenError::AlreadyRunning(socket.to_owned())),
                Err(error) => return Err(failed(error.into())),
            }
            // Who held it before may have removed it meanwhile: then this is the lock of nothing.
            let locked = file.metadata().map_err(failed)?;
            if identity(&path) == Some(numbers(&locked)) {
                return Ok(Self { path, _file: file });
            }
        }
    }

    fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_free_again_after_it() {
        let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = std::env::temp_dir().join(format!("memferry-lock-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let socket = directory.join("s");
        let lock = Lock::take(&socket).unwrap();
        assert!(matches!(Lock::take(&socket), Err(ListenError::AlreadyRunning(_))));
        lock.remove();
        drop(Lock::take(&socket).unwrap());
        // One that was left behind is as good as none.
        Lock::take(&socket).unwrap().remove();
        std::fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn of_those_who_find_a_stale_socket_at_the_same_instant_one_listens() {
        let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = std::env::temp_dir().join(format!("memferry-stale-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("s");
        let gate = std::sync::Barrier::new(4);
        for _ in 0..200 {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let bind = || {
                gate.wait();
                let bound = Listener::bind(&path, 0o600);
                // Nobody lets go before all have tried.
                gate.wait();
                match bound {
                    Ok(listener) => {
                        assert_eq!(identity(&path), listener.bound.as_ref().and_then(|bound| bound.file));
                        listener.close();
                        1
                    }
                    Err(ListenError::AlreadyRunning(_)) => 0,
                    Err(other) => panic!("{other}"),
                }
            };
            let listening: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(listening, 1);
        }
        std::fs::remove_dir(&directory).unwrap();
    }
}
