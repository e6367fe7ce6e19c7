//! A service for programs of others that a test judges.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::files::broken;
use crate::line::Line;

/// How long a service may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the service says once it listens.
const LISTENS: &str = "listening on ";

/// A service of this build; it ends with this value.
pub(super) struct Service(Child);

impl Service {
    pub(super) fn start(command: &Path, socket: &Path) -> Result<Self, Failure> {
        let log = socket.with_extension("log");
        let file = fs::File::create(&log).map_err(|error| broken(&log, &error))?;
        let errors = file.try_clone().map_err(|error| broken(&log, &error))?;
        let line = Line::new(command).args(["serve", "--socket"]).arg(socket);
        let mut command = line.command();
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child =
            command.spawn().map_err(|error| Failure::setup(format!("cannot start {line}: {error}")))?;
        let service = Self(child);
        let start = Instant::now();
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains(LISTENS) {
                return Ok(service);
            }
            if start.elapsed() > PATIENCE {
                return Err(Failure::setup(format!("the service does not listen; it said: {}", said.trim())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Its clients are gone; nothing is lost.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
