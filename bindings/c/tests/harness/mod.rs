//! A service in another process: this test's binary, started again with a role.
//!
//! ```text
//! Service::start ─ MEMFERRY_C_TEST_SERVES ─► harness::serves, in another process ─ "listening" ─► killed by Drop
//! ```

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use memferry_daemon::{DaemonOptions, serve};
use memferry_service::ServiceConfig;

const ROLE: &str = "MEMFERRY_C_TEST_SERVES";

/// The role; passes at once in ordinary test runs.
#[test]
fn serves() {
    let Some(path) = std::env::var_os(ROLE) else { return };
    let options = DaemonOptions {
        socket: path.into(),
        mode: 0o600,
        service: ServiceConfig { workers: 1, ..ServiceConfig::default() },
        grace: Duration::ZERO,
        sandbox: false,
    };
    serve(&options, || println!("listening")).unwrap();
}

/// A socket path that no other test uses.
pub(crate) fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("memferry-c-{name}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// A service process, killed when the test ends.
pub(crate) struct Service {
    process: Child,
    pub(crate) socket: PathBuf,
}

impl Service {
    /// Returns when the service listens.
    pub(crate) fn start(name: &str) -> Self {
        let socket = socket(name);
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["harness::serves", "--exact", "--nocapture"])
            .env(ROLE, &socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut service = Self { process, socket };
        let lines = BufReader::new(service.process.stdout.take().unwrap()).lines();
        assert!(
            lines.map_while(Result::ok).any(|line| line.contains("listening")),
            "the service did not start"
        );
        service
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
