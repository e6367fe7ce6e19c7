//! The settings that `memferry serve` runs with.

use std::time::Duration;

use memferry_daemon::DaemonOptions;
use memferry_service::{Pinning, ServiceConfig};

use crate::socket;

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    Text,
    /// One JSON object per line.
    Json,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) daemon: DaemonOptions,
    pub(crate) log_format: LogFormat,
}

impl Default for Settings {
    /// The defaults of [`ServiceConfig`], but with pinned workers: this process has no other threads that need their CPUs.
    fn default() -> Self {
        let service = ServiceConfig { pinning: Pinning::Spread, ..ServiceConfig::default() };
        let daemon = DaemonOptions {
            socket: socket::default_path(),
            mode: 0o666,
            service,
            grace: Duration::from_secs(2),
            sandbox: true,
        };
        Self { daemon, log_format: LogFormat::Text }
    }
}
