//! A server over a temporary directory, and clients of it.
//!
//! ```text
//! Served::new ─► directory, socket, Server ─ client() ─► attached Client ─ dropped ─► all removed
//! ```
//!
//! Directories lie beside the test binary, on a disk where `O_DIRECT` works. This module checks nothing.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memferry_ninep::{Client, ClientError, Listener, Options, Server};
use memferry_pool::cached_pages;

/// Maximum message size for a block of 64 KiB.
pub(crate) const MESSAGE: u32 = (64 << 10) + 24;

/// A directory that is removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("9p-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A path in it.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server with its export.
pub(crate) struct Served {
    pub(crate) server: Option<Server>,
    pub(crate) socket: PathBuf,
    pub(crate) export: Folder,
    _outside: Folder,
}

impl Served {
    /// Serves an empty directory with changed options; without io_uring prints that and returns `None`.
    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> Option<Self> {
        Self::over(|path| Listener::unix(path).unwrap(), change)
    }

    /// As [`with`](Self::with), on a socket that passes descriptors, as all do before Linux 6.16.
    pub(crate) fn passing(change: impl FnOnce(&mut Options)) -> Option<Self> {
        Self::over(|path| Listener::Unix(UnixListener::bind(path).unwrap(), Some(path.to_owned())), change)
    }

    fn over(listen: impl FnOnce(&Path) -> Listener, change: impl FnOnce(&mut Options)) -> Option<Self> {
        let export = Folder::new();
        let outside = Folder::new();
        let socket = outside.at("socket");
        let mut options = Options::new(&export.0);
        options.threads = 1;
        change(&mut options);
        let server = match Server::start(options, vec![listen(&socket)]) {
            Ok(server) => Some(server),
            Err(memferry_ninep::ServerError::Ring(error)) => {
                println!("not run: no io_uring here ({error})");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        Some(Self { server, socket, export, _outside: outside })
    }

    /// As [`with`](Self::with), with default options.
    pub(crate) fn new() -> Option<Self> {
        Self::with(|_| ())
    }

    /// A client with the export attached as fid 0.
    pub(crate) fn client(&self) -> Client {
        self.attached("/")
    }

    /// A client with `name` attached as fid 0.
    pub(crate) fn attached(&self, name: &str) -> Client {
        self.raw().attach(MESSAGE, name).unwrap()
    }

    /// A client without a negotiated version.
    pub(crate) fn raw(&self) -> Client {
        Client::unix(&self.socket).unwrap()
    }

    pub(crate) fn running(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
}

pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Whether the server has closed the connection; a timeout does not count.
pub(crate) fn is_over(client: &mut Client) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match client.receive() {
        Err(ClientError::Connection(error)) => !matches!(error.kind(), TimedOut | WouldBlock),
        _ => false,
    }
}

/// Polls until the condition holds.
pub(crate) fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_done() {
        assert!(started.elapsed() < Duration::from_secs(60), "timed out waiting until {what}");
        std::thread::yield_now();
    }
}

/// Drops a file's pages from the page cache; returns whether all are gone. Pages in another CPU's temporary lists
/// stay, so it retries; on file systems that live in memory they never go.
pub(crate) fn is_cold(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        cool(path);
        // Kernels before 6.5 cannot report cached pages; assume none.
        if cached_pages(file.as_fd(), 0, length).unwrap_or(0) == 0 {
            return true;
        }
        if Instant::now() > until {
            println!("not run: {} stays in the page cache", path.display());
            return false;
        }
        std::thread::yield_now();
    }
}

/// Drops a file's pages from the page cache, where possible.
pub(crate) fn cool(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}
