//! The attacked service: a process of its own user, at a path where one can follow another.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memferry_attackers::{Connection, Player, Users};
use memferry_daemon::{DaemonOptions, serve as serve_on};
use memferry_service::config::ServiceConfig;
use rustix::process::Signal;

use crate::BenchError;
use crate::hostile::rows::Gone;
use crate::run::Run;

/// Time for running requests after SIGTERM: half of the target for the end.
const GRACE: Duration = Duration::from_secs(1);
const START_LIMIT: Duration = Duration::from_secs(10);
/// After this time a service that did not end counts as stuck.
const END_LIMIT: Duration = Duration::from_secs(6);
const POLL: Duration = Duration::from_millis(1);

/// Runs the service: socket, workers, user.
pub(crate) fn serve(words: &[String]) -> Result<(), BenchError> {
    let [socket, workers, user] = words else { return Err("three words are needed".into()) };
    memferry_attackers::drop_to(user).map_err(|error| error as BenchError)?;
    let options = DaemonOptions {
        socket: PathBuf::from(socket),
        mode: 0o666,
        service: ServiceConfig { workers: workers.parse()?, ..ServiceConfig::default() },
        grace: GRACE,
        sandbox: true,
    };
    Ok(serve_on(&options, || memferry_attackers::report("ready"))?)
}

/// A directory of the service's user that all users may pass through, removed on drop.
pub(super) struct Place {
    directory: PathBuf,
    users: Users,
}

impl Place {
    pub(super) fn new(run: &Run, users: Users) -> Result<Self, BenchError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let passable = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o711));
        passable(run.directory())?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = run.directory().join(format!("hostile-{number}"));
        std::fs::create_dir(&directory)?;
        passable(&directory)?;
        std::os::unix::fs::chown(&directory, Some(users.service), Some(users.service))?;
        Ok(Self { directory, users })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(super) struct Service {
    player: Player,
    socket: PathBuf,
}

impl Service {
    /// Starts a service and waits until it answers.
    pub(super) fn start(place: &Place, workers: u32) -> Result<Self, BenchError> {
        let socket = place.directory.join("service.sock");
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve-as").arg(&socket);
        command.args([workers.to_string(), place.users.service.to_string()]);
        let player = Player::start(command).map_err(|error| error as BenchError)?;
        match player.line(START_LIMIT) {
            Ok(line) if line == "ready" => Ok(Self { player, socket }),
            other => Err(format!("the service does not start: {other:?}").into()),
        }
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends the service a signal, and measures the time until `watcher` sees its socket closed.
    pub(super) fn ends(&mut self, signal: Signal, watcher: &Connection) -> Gone {
        let started = Instant::now();
        self.player.signal(signal);
        while !watcher.hung_up() {
            if started.elapsed() > END_LIMIT {
                return Gone::NotAfter(started.elapsed().as_secs_f64());
            }
            std::thread::sleep(POLL);
        }
        Gone::After(started.elapsed().as_secs_f64())
    }
}
