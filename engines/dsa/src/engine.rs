//! The program: its options, and the engine process.

use std::path::PathBuf;

use clap::Parser;
use memferry_engine::{Engine, EngineDescription, EngineOptions, Operations, report};
use thiserror::Error;

use crate::error::OpenError;
use crate::kernel::Kernel;
use crate::linux::Linux;
use crate::name::QueueName;
use crate::open::{channels, open, try_open};
use crate::server::{ServeError, Server};

/// Requests for each one that a queue works on: the others begin without a round trip to the service.
const QUEUED: u32 = 2;

/// Moves the bytes of a memferry service's requests with work queues of Intel's Data Streaming Accelerator (DSA).
///
/// The queues must be of type user and enabled, their files in /dev/dsa must be the user's, and the service's configuration has to
/// name the engine and its user, as in:
/// memferry serve --engine "dsa-0 user=memferry-engine frames=all"
#[derive(Clone, PartialEq, Eq, Debug, Parser)]
#[command(name = "memferry-engine-dsa", version)]
pub struct Options {
    /// Socket of the service.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Name of the engine in the service's configuration.
    #[arg(long)]
    pub name: String,
    /// Work queue to use, as in wq0.0; may be given several times, for queues of any groups and devices.
    #[arg(long = "queue", value_name = "QUEUE", required = true)]
    pub queues: Vec<QueueName>,
}

/// Why the engine does not run.
#[derive(Debug, Error)]
pub enum RunError {
    /// A queue was named twice.
    #[error("--queue {0} is given twice: a queue is opened once")]
    Twice(QueueName),
    /// A work queue cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The queues have too many entries together.
    #[error("{0} queues are more than an engine has use for: start several engines")]
    TooMany(usize),
    /// The service, or this process, is not as it must be.
    #[error(transparent)]
    Engine(#[from] memferry_engine::RunError),
}

/// Queues of one engine.
const MOST_QUEUES: usize = 32;

/// Runs the engine until SIGTERM or SIGINT. The process must have one thread.
///
/// # Errors
/// [`RunError`].
pub fn run(options: &Options) -> Result<(), RunError> {
    run_on(options, Linux::default)
}

/// Runs the engine over what `kernel` makes: once to see what the queues can do, then in each process that serves requests.
///
/// # Errors
/// [`RunError`]. A queue that is lost later is no error: the keeper starts the engine again.
pub fn run_on<K: Kernel>(options: &Options, kernel: impl Fn() -> K) -> Result<(), RunError> {
    let Options { queues, .. } = options;
    if queues.len() > MOST_QUEUES {
        return Err(RunError::TooMany(queues.len()));
    }
    let mut operations = Operations::all();
    let mut requests = 0;
    for (place, queue) in queues.iter().enumerate() {
        if queues[..place].contains(queue) {
            return Err(RunError::Twice(*queue));
        }
        // The process that serves opens it again: an address space is bound to the queue when it is opened.
        let settings = try_open(&kernel(), *queue)?;
        operations &= settings.operations();
        requests += channels(&settings);
    }
    let description =
        EngineDescription { operations, channels: requests * QUEUED, ..EngineDescription::default() };
    let connected = EngineOptions { socket: options.socket.clone(), name: options.name.clone(), description };
    memferry_engine::run(connected, |engine| serve(engine, options, &kernel()))?;
    Ok(())
}

fn serve<K: Kernel>(engine: &mut Engine, options: &Options, kernel: &K) -> Result<(), ServeError> {
    let Options { name, queues, .. } = options;
    let mut opened = Vec::new();
    for queue in queues {
        let parts = open(kernel, *queue)?;
        report(name, format_args!("{} is ready", parts.way));
        if let Some(warning) = &parts.warning {
            report(name, format_args!("{warning}"));
        }
        opened.push((*queue, parts.engine));
    }
    let server = Server::new(name, opened);
    server.watch(engine)?;
    server.serve(engine)
}
