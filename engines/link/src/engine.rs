//! The program: `run` is the engine process and its keeper, `keygen` makes a key.
//!
//! ```text
//! keeper ─ fork ─► Client of the service, UCX, connections ─► loop: jobs, peers' messages, own requests for peers
//! ```

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use memferry::{CallError, Client, ConnectError};
use memferry_engine::{Engine, EngineDescription, EngineOptions, Operations, RunError};
use thiserror::Error;

use crate::config::{Config, ConfigError, KeyPair, to_hex};
use crate::connections;
use crate::frames::RemoteFrames;
use crate::node::Node;
use crate::owner::{Owner, OwnerError};
use crate::report::tell;
use crate::service_run;
use crate::ucx::{self, LIBRARY, Ucx};

/// The name of the engine in the service's configuration.
const NAME: &str = "link";
/// Memory that frames of other nodes can name, all together.
const REACH: u64 = 1 << 46;
/// Requests of the service at a time.
const CHANNELS: u32 = 64;
/// After the last news, so long the next ones are awaited without a sleep.
const AWAKE: Duration = Duration::from_micros(500);
/// How long the process sleeps at a time while something is under way, and while nothing is. Messages of peers wake nobody.
const NAPS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(2));
/// After so long without news, naps are longer.
const RESTING: Duration = Duration::from_secs(2);
const LONG_NAP: Duration = Duration::from_millis(10);

/// Lets users of a memferry service grant memory to users of other machines, and use what these granted.
///
/// The service's configuration has to name the engine "link" and its user, as in:
/// memferry serve --engine "link user=memferry-link frames=all"
#[derive(Clone, PartialEq, Eq, Debug, Parser)]
#[command(name = "memferry-link", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub task: Task,
}

/// What the program does.
#[derive(Clone, PartialEq, Eq, Debug, Subcommand)]
pub enum Task {
    /// Run the link until SIGTERM or SIGINT.
    Run(Options),
    /// Make a key for this node, in a new file, and print its public half for the configurations of peers.
    Keygen {
        /// The new file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// How a link runs.
#[derive(Clone, PartialEq, Eq, Debug, Parser)]
pub struct Options {
    /// Socket of the service.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Configuration of this node and its peers.
    #[arg(long, value_name = "PATH", default_value = "/etc/memferry/link.toml")]
    pub config: PathBuf,
    /// Library of UCX.
    #[arg(long, value_name = "PATH", default_value = LIBRARY)]
    pub library: PathBuf,
}

/// Why the program ends.
#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("cannot print: {0}")]
    Print(std::io::Error),
}

/// Does what the command line says.
///
/// # Errors
/// [`enum@Error`].
pub fn execute(arguments: &Arguments) -> Result<(), Error> {
    match &arguments.task {
        Task::Run(options) => run(options),
        Task::Keygen { file } => {
            let keys = KeyPair::generate()?;
            keys.save(file)?;
            writeln!(std::io::stdout(), "{}", to_hex(&keys.public)).map_err(Error::Print)
        }
    }
}

/// Runs the link until SIGTERM or SIGINT. The process must have one thread. UCX is loaded only in the processes that this one forks.
///
/// # Errors
/// [`enum@Error`].
pub fn run(options: &Options) -> Result<(), Error> {
    // Mistakes are reported before anything starts. Each engine reads it again.
    Config::load(&options.config)?;
    ucx::prepare();
    let any = EngineDescription::default();
    let description = EngineDescription {
        operations: Operations::COPY | Operations::SCATTER_GATHER | Operations::COPY_2D | Operations::CRC,
        // Nothing between frames of the host.
        shortest_bytes: any.longest_bytes,
        channels: CHANNELS,
        memory_bytes: REACH,
        ..any
    };
    let connected = EngineOptions { socket: options.socket.clone(), name: NAME.to_owned(), description };
    Ok(memferry_engine::run(connected, |engine| serve(engine, options))?)
}

/// Why an engine's process ends.
#[derive(Debug, Error)]
enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the link cannot be a client of its service: {0}")]
    Client(#[from] ConnectError),
    #[error("the service does not say what it is: {0}")]
    Status(#[from] CallError),
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

fn serve(engine: &mut Engine, options: &Options) -> Result<(), ServeError> {
    let config = Config::load(&options.config)?;
    let frames = RemoteFrames::default();
    engine.watch_frames(frames.clone());
    let ucx = match Ucx::load(&options.library, config.peers.len()) {
        Ok(ucx) => {
            tell(format_args!("node {} uses UCX {}", config.name, ucx.version()));
            Some(ucx)
        }
        Err(error) => {
            tell(format_args!("{error}; bytes go over encrypted connections"));
            None
        }
    };
    let address = ucx.as_ref().map(|ucx| ucx.address().to_vec());
    let client = Client::connect(&options.socket)?;
    let status = client.status()?;
    let run = service_run::of(status.process, Duration::from_secs(status.uptime_seconds))
        .map_err(std::io::Error::from)?;
    let owner = Owner::new(client, config.peers.len())?;
    let events = connections::start(&config, address, run)?;
    let mut node = Node::new(config, (events, ucx), frames, owner);
    let mut news = Instant::now();
    let mut ticked = Instant::now();
    loop {
        let mut any = false;
        let mut next = engine.next(pause(&node, news));
        while let Some(job) = next {
            any = true;
            node.accept(engine, job);
            next = engine.next(Duration::ZERO);
        }
        if engine.take_cancels() {
            node.cancel(engine);
        }
        any |= node.receive(engine);
        any |= node.serve()?;
        if any {
            news = Instant::now();
        }
        if ticked.elapsed() >= node.tick_interval() {
            node.tick(engine);
            ticked = Instant::now();
        }
    }
}

/// How long to wait for requests of the service before peers are looked at again.
fn pause(node: &Node, news: Instant) -> Duration {
    let quiet = news.elapsed();
    if quiet < AWAKE {
        // The machine may have fewer CPUs than threads that want one.
        std::thread::yield_now();
        return Duration::ZERO;
    }
    if node.is_busy() {
        return NAPS.0;
    }
    if quiet < RESTING { NAPS.1 } else { LONG_NAP }
}
