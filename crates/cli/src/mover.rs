//! A client with one queue: what a command moves bytes with, embedded or through a service.
//!
//! ```text
//! open(socket) ─► Mover ─ submit ─► Ticket ─ wait ─► Completion, or why it failed
//!                       └ carry_out: both
//! ```

use std::path::Path;
use std::time::Duration;

use memferry::{Client, Completion, EngineKind, Queue, Ticket, Transfer, WaitError};

use crate::CommandError;

/// Requests a command may have outstanding.
const CAPACITY: u32 = 16;
/// How long one transfer may take before the command gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client and its queue.
pub(crate) struct Mover {
    queue: Queue,
    client: Client,
    remote: bool,
}

impl Mover {
    /// Through the service at `socket`, or embedded when there is none.
    pub(crate) fn open(socket: Option<&Path>) -> Result<Self, CommandError> {
        let client = match socket {
            Some(path) => Client::connect(path)?,
            None => Client::embedded()?,
        };
        let queue = client.queue(CAPACITY)?;
        Ok(Self { queue, client, remote: socket.is_some() })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    pub(crate) fn submit(&mut self, transfer: Transfer) -> Result<Ticket, CommandError> {
        Ok(self.queue.submit(transfer)?)
    }

    /// Waits for the end of a transfer, however it ended.
    pub(crate) fn end_of(&mut self, ticket: Ticket) -> Result<Completion, CommandError> {
        self.queue.wait(ticket, Some(PATIENCE)).map_err(|error| match error {
            WaitError::TimedOut => format!("no completion came within {} s", PATIENCE.as_secs()).into(),
            other => other.into(),
        })
    }

    /// Waits for a transfer that must succeed.
    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<Completion, CommandError> {
        let completion = self.end_of(ticket)?;
        completion.outcome.map_err(|failure| format!("the transfer failed: {failure}"))?;
        Ok(completion)
    }

    /// Submits a transfer and waits until it succeeded.
    pub(crate) fn carry_out(&mut self, transfer: Transfer) -> Result<Completion, CommandError> {
        let ticket = self.submit(transfer)?;
        self.wait(ticket)
    }

    /// What moved the bytes, in words.
    pub(crate) fn describe(&self, engine: EngineKind) -> String {
        let kind = match engine {
            EngineKind::Cpu => "a CPU worker (a thread on another core, no DMA hardware)",
            EngineKind::Simulated => "a simulated engine",
            EngineKind::Module => "the Linux module (a DMA engine, or the kernel's own copy)",
            EngineKind::None => "no engine",
        };
        let place = if self.remote { "of the service" } else { "embedded in this process" };
        format!("{kind}, {place}")
    }
}
