//! A client with one queue, through which a command moves bytes: embedded or connected to a service.
//!
//! ```text
//! open(socket) ─► Mover ─ submit ─► Ticket ─ wait ─► Done, or the transfer's error
//!                       └ run: both
//! ```

use std::path::Path;
use std::time::Duration;

use memferry::{Client, Done, EngineKind, Output, Queue, Ticket, Transfer, TransferError};

use crate::CommandError;

/// Requests that a command may have outstanding.
const CAPACITY: u32 = 16;
/// How long one transfer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client and its queue.
pub(crate) struct Mover {
    queue: Queue,
    client: Client,
    remote: bool,
}

impl Mover {
    /// Connects to the service at `socket`, or embeds one without a socket.
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

    pub(crate) fn submit<T: Output>(&mut self, transfer: Transfer<T>) -> Result<Ticket<T>, CommandError> {
        Ok(self.queue.submit(transfer).map_err(|error| error.untyped())?)
    }

    /// Waits until a transfer ends. The inner error is the transfer's.
    pub(crate) fn outcome<T: Output>(
        &mut self,
        ticket: Ticket<T>,
    ) -> Result<Result<Done<T>, TransferError>, CommandError> {
        match self.queue.wait_for(ticket, PATIENCE) {
            Ok(None) => Err(format!(
                "the transfer did not complete within {} s; `memferry status` shows what the service does",
                PATIENCE.as_secs()
            )
            .into()),
            Ok(Some(done)) => Ok(Ok(done)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Waits for a transfer that must succeed.
    pub(crate) fn wait<T: Output>(&mut self, ticket: Ticket<T>) -> Result<Done<T>, CommandError> {
        Ok(self.outcome(ticket)?.map_err(|error| format!("the transfer failed: {error}"))?)
    }

    /// Submits a transfer and waits until it succeeds.
    pub(crate) fn run<T: Output>(&mut self, transfer: Transfer<T>) -> Result<Done<T>, CommandError> {
        let ticket = self.submit(transfer)?;
        self.wait(ticket)
    }

    /// Describes the engine that moved the bytes.
    pub(crate) fn describe(&self, engine: EngineKind) -> String {
        let kind = match engine {
            EngineKind::Cpu => "a CPU worker (a thread on another core, no DMA hardware)",
            EngineKind::Simulated => "a simulated engine",
            EngineKind::Module => "the Linux module (a DMA engine, or the kernel's own copy)",
            EngineKind::External => "an engine process",
            EngineKind::None => "no engine",
        };
        let place = if self.remote { "of the service" } else { "embedded in this process" };
        format!("{kind}, {place}")
    }
}
