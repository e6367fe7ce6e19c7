//! `memferry status`: what a running service is doing.

use std::path::PathBuf;

use clap::Args;
use memferry::Client;

use crate::output::say;
use crate::{CommandError, socket};

/// Arguments of `status`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Socket of the service.
    #[arg(long, value_name = "PATH", default_value_os_t = socket::default_path())]
    socket: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the service's status.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let client = Client::connect(&arguments.socket)?;
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&client.status()?)?);
        return Ok(());
    }
    print(&client, "")
}

/// Prints the service's status for people, each line after `indent`.
pub(crate) fn print(client: &Client, indent: &str) -> Result<(), CommandError> {
    let status = client.status()?;
    say!(
        "{indent}memferry, process {}, up {} s, policy {}",
        status.process,
        status.uptime_seconds,
        status.policy
    );
    say!(
        "{indent}{:>6} {:>8} {:>12} {:>10} {:>16} {:>8}",
        "lane",
        "queues",
        "requests",
        "failures",
        "bytes",
        "parks"
    );
    for (number, lane) in status.lanes.iter().enumerate() {
        let (queues, requests, failures) = (lane.queues, lane.requests, lane.failures);
        say!(
            "{indent}{number:>6} {queues:>8} {requests:>12} {failures:>10} {:>16} {:>8}",
            lane.bytes,
            lane.parks
        );
    }
    say!(
        "{indent}{:>8} {:>8} {:>8} {:>9} {:>7} {:>16}",
        "session",
        "user",
        "process",
        "channels",
        "frames",
        "bytes"
    );
    for session in &status.sessions {
        let (user, process, channels) = (session.user, session.process, session.channels);
        let own = if session.session == client.session() { " (this command)" } else { "" };
        say!(
            "{indent}{:>8} {user:>8} {process:>8} {channels:>9} {:>7} {:>16}{own}",
            session.session.0,
            session.frames,
            session.bytes
        );
    }
    let unnamed = status.open_sessions.saturating_sub(status.sessions.len() as u64);
    if unnamed > 0 {
        say!("{indent}and {unnamed} more");
    }
    Ok(())
}
