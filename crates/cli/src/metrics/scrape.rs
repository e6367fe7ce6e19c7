//! Asking the service for its numbers, in a thread that may be kept waiting.
//!
//! ```text
//! ask, within a time ─► thread: connect, status, exposition ─► the text, or `memferry_up 0`
//! ```
//!
//! A service that is stopped or hangs keeps the thread waiting, never whoever asks.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use memferry::Client;

use super::exposition;
use crate::CommandError;

/// How long the service may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Questions that may wait for it.
const WAITING: usize = 16;

/// The metrics of the service on `socket`.
pub(super) fn once(socket: &Path) -> Result<String, CommandError> {
    let client = Client::connect(socket)?;
    Ok(exposition::of(&client.status()?, client.session()))
}

#[derive(Clone)]
pub(super) struct Scraper(SyncSender<SyncSender<String>>);

impl Scraper {
    pub(super) fn start(socket: &Path) -> io::Result<Self> {
        let (sender, questions) = sync_channel(WAITING);
        let socket = socket.to_owned();
        std::thread::Builder::new().name("scrape".to_owned()).spawn(move || answer(&socket, &questions))?;
        Ok(Self(sender))
    }

    /// The metrics; a service that is not there, or takes too long, is told as down.
    pub(super) fn ask(&self) -> String {
        let (sender, answer) = sync_channel(1);
        if self.0.try_send(sender).is_err() {
            return exposition::down();
        }
        answer.recv_timeout(PATIENCE).unwrap_or_else(|_| exposition::down())
    }
}

fn answer(socket: &Path, questions: &Receiver<SyncSender<String>>) {
    for asking in questions {
        // Who has stopped waiting is not told.
        let _ = asking.try_send(once(socket).unwrap_or_else(|_| exposition::down()));
    }
}
