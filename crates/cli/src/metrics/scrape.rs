//! Queries the service's status in a thread of its own.
//!
//! ```text
//! scrape, with a timeout ─► thread: connect, status, exposition ─► the text, or `memferry_up 0`
//! ```
//!
//! A stopped service delays this thread, never the caller.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use memferry::{Client, ConnectOptions};

use super::exposition;
use crate::CommandError;

/// How long the service may take to respond.
const PATIENCE: Duration = Duration::from_secs(3);
/// Queries that may wait for the service.
const WAITING: usize = 16;

/// Queries the metrics of the service on `socket` once.
pub(super) fn once(socket: &Path) -> Result<String, CommandError> {
    let client = Client::connect_with(socket, ConnectOptions { timeout: PATIENCE })?;
    Ok(exposition::of(&client.status()?, client.session()))
}

pub(crate) struct Scraper(SyncSender<SyncSender<String>>);

impl Scraper {
    pub(crate) fn start(socket: &Path) -> io::Result<Self> {
        let (sender, queries) = sync_channel(WAITING);
        let socket = socket.to_owned();
        std::thread::Builder::new().name("scrape".to_owned()).spawn(move || answer(&socket, &queries))?;
        Ok(Self(sender))
    }

    /// Returns the metrics. A service that is unreachable or too slow is reported as down.
    pub(crate) fn scrape(&self) -> String {
        let (sender, answer) = sync_channel(1);
        if self.0.try_send(sender).is_err() {
            return exposition::down();
        }
        answer.recv_timeout(PATIENCE).unwrap_or_else(|_| exposition::down())
    }
}

fn answer(socket: &Path, queries: &Receiver<SyncSender<String>>) {
    for reply in queries {
        // The caller may have stopped waiting.
        let _ = reply.try_send(once(socket).unwrap_or_else(|_| exposition::down()));
    }
}
