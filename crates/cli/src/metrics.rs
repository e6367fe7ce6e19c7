//! `memferry metrics`: the service's status in Prometheus's format, printed once or served over HTTP.
//!
//! ```text
//! once      Client::status ─► exposition ─► standard output
//! --listen  GET /metrics ─► exporter ─► scrape, an ordinary client ─► exposition ─► HTTP response
//! ```
//!
//! The exporter is a separate process that needs only the permission to connect, so HTTP clients never reach the service's
//! process. An unreachable service is reported as `memferry_up 0`.

mod connections;
mod exporter;
mod exposition;
mod request;
mod scrape;

use std::path::PathBuf;

use clap::Args;

use crate::output::say;
use crate::{CommandError, socket};
use exporter::Address;

/// Arguments of `metrics`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::default_path())]
    socket: PathBuf,
    /// Serve the metrics over HTTP until a signal, on 127.0.0.1:PORT or unix:PATH.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
}

/// Prints the metrics once, or serves them.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    match &arguments.listen {
        Some(address) => exporter::run(address, &arguments.socket),
        None => {
            say!("{}", scrape::once(&arguments.socket)?.trim_end());
            Ok(())
        }
    }
}
