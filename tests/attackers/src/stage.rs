//! What an attack works with: the socket, the FUSE file, its size, and the report that it runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memferry_shm::frame::{self, Pages};
use memferry_shm::mapping::Mapping;
use memferry_transfer::Handle;

use crate::Failed;
use crate::connection::Connection;
use crate::fuse::Fuse;
use crate::roles;

/// Pause of an attack that has nothing to do for a moment.
pub(crate) const MOMENT: Duration = Duration::from_micros(20);

pub(crate) struct Stage {
    pub(crate) socket: PathBuf,
    pub(crate) fuse: Option<Fuse>,
    /// Whether memory and processes are few, as in tests.
    pub(crate) short: bool,
    pub(crate) announced: AtomicBool,
}

/// A registered frame, and its memory.
pub(crate) struct Registered {
    pub(crate) handle: Handle,
    pub(crate) mapping: Mapping,
}

impl Stage {
    /// Reports once that the attack runs.
    pub(crate) fn running(&self) {
        if !self.announced.swap(true, Ordering::Relaxed) {
            roles::report("running");
        }
    }

    pub(crate) fn connect(&self) -> Result<Connection, Failed> {
        Connection::open(&self.socket)
    }

    pub(crate) fn fuse(&self) -> Result<&Fuse, Failed> {
        self.fuse.as_ref().ok_or_else(|| "no FUSE".into())
    }

    pub(crate) fn size(&self, full: usize, short: usize) -> usize {
        if self.short { short } else { full }
    }
}

/// Allocates and registers a frame.
pub(crate) fn frame(connection: &mut Connection, length: u64) -> Result<Registered, Failed> {
    use std::os::fd::AsFd;
    let (memfd, mapping) = frame::allocate(length, Pages::Ordinary)?;
    let handle = connection.register(memfd.as_fd(), length)?;
    Ok(Registered { handle, mapping })
}

/// Runs `body` on `count` threads beside `main` until `main` returns.
pub(crate) fn crowd(
    count: usize,
    body: impl Fn(usize) + Sync,
    main: impl FnOnce() -> Result<(), Failed>,
) -> Result<(), Failed> {
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for index in 0..count {
            let stopped = &stopped;
            let body = &body;
            let turn = move || {
                while !stopped.load(Ordering::Relaxed) {
                    body(index);
                }
            };
            // Small stacks, so that thousands fit. Fewer threads are an attack, too.
            if std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, turn).is_err() {
                break;
            }
        }
        let result = main();
        stopped.store(true, Ordering::Relaxed);
        result
    })
}

/// Runs attempts of `body` on `count` threads for ever, once the service answers.
pub(crate) fn repeat_on(
    stage: &Stage,
    count: usize,
    body: impl Fn() -> Result<(), Failed> + Sync,
) -> Result<(), Failed> {
    stage.connect()?;
    stage.running();
    let turn = |_| {
        if body().is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    crowd(count, turn, || {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    })
}

/// Random numbers that differ from run to run, as the interleavings of an attack do anyway.
pub(crate) fn rng() -> fastrand::Rng {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    fastrand::Rng::with_seed(now.as_nanos() as u64 ^ u64::from(std::process::id()))
}
