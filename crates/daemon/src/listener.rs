//! The socket on which the daemon listens: bound here, or inherited from a supervisor.
//!
//! ```text
//! bind(path)   lock file ─ stale socket replaced ─ bind, listen, chmod ─► Listener, which removes socket and lock at its end
//! activated()  LISTEN_PID, LISTEN_FDS ─ one listening SOCK_SEQPACKET socket ─► Listener, which removes nothing
//! ```
//!
//! The process that holds the lock owns the path: if several start at once over a stale socket, one succeeds. Only the
//! holder removes the lock file, and each process checks that the file it locked is still the one at the path. The socket's
//! permissions decide who may connect.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use thiserror::Error;

/// Reason for which the daemon cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another service listens there or is starting.
    #[error("a service is already listening on {}; stop it or choose another socket", .0.display())]
    AlreadyRunning(PathBuf),
    /// The socket could not be created.
    #[error("cannot listen on {} ({step}): {source}{}", path.display(), remedy(source))]
    Socket { path: PathBuf, step: &'static str, source: io::Error },
    /// The inherited socket is unusable.
    #[error("cannot take over the socket of the supervisor: {0}")]
    Activation(String),
}

/// What to do about a path on which no socket can be made.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; its folder does not exist: make it, or choose another path",
        io::ErrorKind::PermissionDenied => "; choose a path in a folder where this user may make files",
        _ if error.raw_os_error() == Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()) => {
            "; the path of a socket has at most 107 bytes"
        }
        _ => "",
    }
}

/// A socket that clients connect to.
pub struct Listener {
    socket: OwnedFd,
    address: String,
    /// What to remove at the end; `None` if the socket belongs to a supervisor.
    bound: Option<Bound>,
}

/// A socket created here.
struct Bound {
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: Option<(u64, u64)>,
    lock: Lock,
}

impl Listener {
    /// Listens on `path` with permissions `mode`. Replaces a stale socket, on which no process listens.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ListenError> {
        Self::bind_kind(path, mode, SocketType::SEQPACKET)
    }

    /// As [`bind`](Self::bind), but with a stream socket, for servers beside the service.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind_stream(path: &Path, mode: u32) -> Result<Self, ListenError> {
        Self::bind_kind(path, mode, SocketType::STREAM)
    }

    fn bind_kind(path: &Path, mode: u32, kind: SocketType) -> Result<Self, ListenError> {
        let address = SocketAddrUnix::new(path).map_err(|error| failed(path, "address", error))?;
        refuse_plain_file(path)?;
        let lock = Lock::take(path)?;
        match listening(path, &address, mode, kind) {
            Ok(socket) => {
                let bound = Bound { path: path.to_owned(), file: identity(path), lock };
                Ok(Self { socket, address: path.display().to_string(), bound: Some(bound) })
            }
            Err(error) => {
                lock.remove();
                Err(error)
            }
        }
    }

    /// The socket inherited from a supervisor such as systemd; `None` if there is none.
    ///
    /// Call it before the process opens any descriptor.
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
        // The variables may be meant for another process, for instance the parent.
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
        let socket = socket.ok_or_else(|| failed("it is in use already".to_owned()))?;
        let listens = sockopt::socket_acceptconn(&socket).unwrap_or(false);
        if !listens {
            let message = "it does not listen; write Accept=no, or leave it out, in the socket unit";
            return Err(failed(message.to_owned()));
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.to_string()))?;
        let address = address_of(&socket);
        Ok(Some(Self { socket, address, bound: None }))
    }

    /// The address for clients, for display.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The socket, which is non-blocking.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Stops listening and removes the files created here.
    pub fn close(self) {
        let traces = self.traces();
        drop(self.socket);
        traces.remove();
    }

    /// The files created here, for a process that removes them.
    pub(crate) fn traces(&self) -> Traces {
        Traces(self.bound.as_ref().map(|bound| Files {
            socket: bound.path.clone(),
            identity: bound.file,
            lock: bound.lock.path.clone(),
        }))
    }
}

/// The files that a listener has created, if any. Only the holder of the lock removes them.
#[derive(Default)]
pub(crate) struct Traces(Option<Files>);

struct Files {
    socket: PathBuf,
    /// Device and inode of the socket's file.
    identity: Option<(u64, u64)>,
    lock: PathBuf,
}

impl Traces {
    /// The directory of the files.
    pub(crate) fn directory(&self) -> Option<&Path> {
        let parent = self.0.as_ref()?.socket.parent()?;
        Some(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
    }

    /// Removes the files, except a socket that another process has put in place.
    pub(crate) fn remove(&self) {
        let Some(files) = &self.0 else { return };
        // The path may name another process's socket by now.
        if files.identity.is_some() && identity(&files.socket) == files.identity {
            let _ = std::fs::remove_file(&files.socket);
        }
        let _ = std::fs::remove_file(&files.lock);
    }
}

/// Maximum number of connections waiting to be accepted.
const BACKLOG: i32 = 128;

fn address_of(socket: &OwnedFd) -> String {
    let name = rustix::net::getsockname(socket).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    let path = name.as_ref().and_then(SocketAddrUnix::path_bytes);
    path.map_or_else(
        || "a socket without a path".to_owned(),
        |path| String::from_utf8_lossy(path).into_owned(),
    )
}

/// Listens on a path whose lock this process holds. If it cannot, nothing of it stays at the path.
fn listening(
    path: &Path,
    address: &SocketAddrUnix,
    mode: u32,
    kind: SocketType,
) -> Result<OwnedFd, ListenError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || {
        rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
            .map_err(|error| failed(path, "socket", error))
    };
    if std::fs::symlink_metadata(path).is_ok() {
        refuse_plain_file(path)?;
        match rustix::net::connect(&socket()?, address) {
            Err(rustix::io::Errno::CONNREFUSED) => {
                std::fs::remove_file(path).map_err(|error| failed(path, "unlink", error))?
            }
            Ok(()) | Err(_) => return Err(ListenError::AlreadyRunning(path.to_owned())),
        }
    }
    let listener = socket()?;
    // Before bind, so that the socket is never open to more users than `mode` allows. The umask may clear bits of the file's
    // mode at bind; the call below sets them again.
    rustix::fs::fchmod(&listener, Mode::from_raw_mode(mode)).map_err(|error| failed(path, "chmod", error))?;
    rustix::net::bind(&listener, address).map_err(|error| failed(path, "bind", error))?;
    let opened = rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(path, "listen", error));
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    let permit = || std::fs::set_permissions(path, permissions).map_err(|error| failed(path, "chmod", error));
    opened.and_then(|()| permit()).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    Ok(listener)
}

fn failed(path: &Path, step: &'static str, source: impl Into<io::Error>) -> ListenError {
    ListenError::Socket { path: path.to_owned(), step, source: source.into() }
}

/// Refuses a path that is not a socket. connect(2) fails for it as for a stale socket, which would then be removed.
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

/// Device and inode of the file at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|about| numbers(&about))
}

fn numbers(about: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (about.dev(), about.ino())
}

/// A locked file next to the socket.
struct Lock {
    path: PathBuf,
    /// The lock lasts as long as the file is open.
    _file: File,
}

impl Lock {
    fn take(socket: &Path) -> Result<Self, ListenError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = |source: io::Error| failed(socket, "lock file", source);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        loop {
            let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
            let file = File::from(file.map_err(|error| failed(error.into()))?);
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::AGAIN) => return Err(ListenError::AlreadyRunning(socket.to_owned())),
                Err(error) => return Err(failed(error.into())),
            }
            // The previous holder may have removed the file meanwhile; then this lock is worthless, so try again.
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
    fn a_lock_has_one_holder() {
        let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = std::env::temp_dir().join(format!("memferry-lock-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let socket = directory.join("s");
        let lock = Lock::take(&socket).unwrap();
        assert!(matches!(Lock::take(&socket), Err(ListenError::AlreadyRunning(_))));
        lock.remove();
        drop(Lock::take(&socket).unwrap());
        // A lock file left behind does not count.
        Lock::take(&socket).unwrap().remove();
        std::fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn a_refused_listener_leaves_no_lock() {
        let _alone = crate::FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = std::env::temp_dir().join(format!("memferry-refused-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("s");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for bind in [Listener::bind, Listener::bind_stream] {
            assert!(matches!(bind(&path, 0o600), Err(ListenError::AlreadyRunning(_))));
        }
        assert_eq!(identity(&directory.join("s.lock")), None);
        assert!(identity(&path).is_some(), "the socket of another program is kept");
        drop(other);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn messages_say_what_to_do_about_a_path() {
        let directory = std::env::temp_dir();
        let refused = |name: &str| Listener::bind(&directory.join(name), 0o600).err().unwrap().to_string();
        assert!(refused("missing-folder/s").contains("its folder does not exist"));
        assert!(refused(&"s".repeat(120)).contains("at most 107 bytes"));
    }

    #[test]
    fn concurrent_binds_over_a_stale_socket() {
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
                // No thread releases before all have tried.
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
