//! `memferry metrics`: the service's status in Prometheus's format, printed once or served over HTTP.
//!
//! ```text
//! once      Client::status ─► exposition ─► standard output
//! --listen  GET /metrics ─► [`crate::http`] ─► scrape, an ordinary client ─► exposition ─► HTTP response
//! ```
//!
//! This is a separate process that needs only the permission to connect, so HTTP clients never reach the service's
//! process. An unreachable service is reported as `memferry_up 0`.

mod exposition;
mod scrape;

use std::path::PathBuf;

use clap::Args;

use crate::http::{self, Address, Resource, Site, Text};
use crate::output::say;
use crate::{CommandError, socket};
pub(crate) use scrape::Scraper;

/// Arguments of `metrics`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::service_path())]
    socket: PathBuf,
    /// Serve the metrics over HTTP until a signal, on 127.0.0.1:PORT or unix:PATH.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
}

/// Prints the metrics once, or serves them.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    match &arguments.listen {
        Some(address) => http::run(address, "metrics", Exporter(Scraper::start(&arguments.socket)?)),
        None => {
            say!("{}", scrape::once(&arguments.socket)?.trim_end());
            Ok(())
        }
    }
}

/// The metrics as a resource.
pub(crate) fn resource(scraper: &Scraper) -> Resource<'_> {
    let make = Box::new(|| scraper.scrape());
    Resource::Text(Text { content_type: exposition::CONTENT_TYPE, headers: "", make })
}

/// The metrics alone.
struct Exporter(Scraper);

impl Site for Exporter {
    fn find<'a>(&'a self, path: &str) -> Option<Resource<'a>> {
        (path == "/metrics").then(|| resource(&self.0))
    }

    /// Scrapers use all kinds of names.
    fn is_own_host(&self, _: &str) -> bool {
        true
    }
}

/// The names of all families.
#[cfg(test)]
pub(crate) fn families() -> Vec<String> {
    let status = memferry::Status { module: Some(memferry::ModuleStatus::default()), ..Default::default() };
    let text = exposition::of(&status, memferry::SessionId(1));
    let named = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    named.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}
