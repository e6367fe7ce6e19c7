//! A server over a directory of its own, and clients of it.
//!
//! ```text
//! Served::new ─► directory, socket, Server ─ client() ─► attached Client ─ dropped ─► all gone
//! ```
//!
//! Directories lie beside the test binary, on a disk: `O_DIRECT` is real there. It checks nothing.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memferry_ninep::{Client, ClientError, Listener, Options, Server};
use memferry_pool::cached_pages;

/// Bytes of a message with a block of 64 KiB.
pub(crate) const MESSAGE: u32 = (64 << 10) + 24;

/// A directory that goes with its owner.
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
    /// Serves an empty directory with options changed as told; `None`, with a word, without io_uring.
    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> Option<Self> {
        let export = Folder::new();
        let outside = Folder::new();
        let socket = outside.at("socket");
        let mut options = Options::new(&export.0);
        options.threads = 1;
        change(&mut options);
        let server = match Server::start(options, vec![Listener::unix(&socket).unwrap()]) {
            Ok(server) => Some(server),
            Err(memferry_ninep::ServerError::Ring(error)) => {
                println!("not run: no io_uring here ({error})");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        Some(Self { server, socket, export, _outside: outside })
    }

    /// As [`with`](Self::with), by default options.
    pub(crate) fn new() -> Option<Self> {
        Self::with(|_| ())
    }

    /// A client that has attached the export as fid 0.
    pub(crate) fn client(&self) -> Client {
        self.attached("/")
    }

    /// A client that has attached something as fid 0.
    pub(crate) fn attached(&self, name: &str) -> Client {
        self.raw().attach(MESSAGE, name).unwrap()
    }

    /// A client that has agreed on nothing.
    pub(crate) fn raw(&self) -> Client {
        Client::unix(&self.socket).unwrap()
    }

    pub(crate) fn running(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Whether the server has hung up; that it does nothing for a long time is not the same.
pub(crate) fn is_over(client: &mut Client) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    match client.receive() {
        Err(ClientError::Connection(error)) => !matches!(error.kind(), TimedOut | WouldBlock),
        _ => false,
    }
}

/// Looks until it is so.
pub(crate) fn wait_until(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < Duration::from_secs(60), "never so: {what}");
        std::thread::yield_now();
    }
}

/// Drops a file's pages from the page cache; whether all are gone. Those that another CPU still has in its lists of the
/// moment stay, so it is tried again; on a file system that has its files nowhere else they never go.
pub(crate) fn is_cold(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        cool(path);
        // A kernel that cannot be asked (before 6.5) is believed.
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

/// Drops a file's pages from the page cache, if they can be.
pub(crate) fn cool(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}
