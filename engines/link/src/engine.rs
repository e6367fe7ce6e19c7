//! The program: `run` is the engine process and its keeper, `status` asks it, `keygen` makes a key.
//!
//! ```text
//! keeper ─ fork ─► Client of the service, UCX, connections ─► loop: jobs, peers' messages, own requests for peers
//! ```

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use memferry::{Client, ConnectError, ServiceId};
use memferry_engine::{Engine, EngineDescription, EngineOptions, Operations, RunError};
use thiserror::Error;

use crate::channels;
use crate::config::{Config, ConfigError, KeyPair, to_hex};
use crate::connections::{self, Event};
use crate::frames::RemoteFrames;
use crate::node::Node;
use crate::owner::{Owner, OwnerError};
use crate::packet::Pool;
use crate::report::tell;
use crate::rests::Rests;
use crate::status::{self, StatusError, StatusOptions};
use crate::threads;
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
/// How long requests of the service are taken before peers have their turn.
const TAKING: Duration = Duration::from_millis(1);
/// How long who asks for the status waits for the link's thread.
const STATUS_LIMIT: Duration = Duration::from_secs(2);

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
    /// Show the peers of a running link, and what went to and from them.
    Status(StatusOptions),
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
    /// Socket on which `status` asks; its directory has to exist.
    #[arg(long, value_name = "PATH", default_value = status::SOCKET)]
    pub status: PathBuf,
    /// Socket on which processes of this node ask for channels to other nodes; there are none, if not given.
    #[arg(long, value_name = "PATH")]
    pub channels: Option<PathBuf>,
}

/// Why the program ends.
#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Status(#[from] StatusError),
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
        Task::Status(options) => {
            write!(std::io::stdout(), "{}", status::show(&status::ask(&options.status)?, options)?)
                .map_err(Error::Print)
        }
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
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

fn serve(engine: &mut Engine, options: &Options) -> Result<(), ServeError> {
    let config = Config::load(&options.config)?;
    // Only this process knows the second part of its window's name.
    let own = (config.name, ServiceId(u128::from(random()?) << 64 | u128::from(random()?)));
    let frames = RemoteFrames::new(config.peers.keys().copied().collect(), own);
    engine.watch_frames(frames.clone());
    let pool = Pool::default();
    let ucx = match Ucx::load(&options.library, config.peers.len(), pool.clone()) {
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
    // A session of its own: calls of a session wait for each other, and local users can cause many.
    let for_channels = match options.channels {
        Some(_) => Client::connect(&options.socket)?,
        None => client.clone(),
    };
    let channels = channels::start(&for_channels, &config, options.channels.as_deref())?;
    let mut owner = Owner::new(client, (config.peers.len(), config.timeout), pool.clone())?;
    if config.peers.values().any(|peer| peer.direct)
        && let Err(error) = owner.open_window(own)
    {
        tell(format_args!("no memory is used in place (`direct`): {error}"));
    }
    let rests = Rests::default();
    let (sender, events) = connections::start(&config, address, (channels.clone(), rests.clone()))?;
    answer_status(&options.status, sender);
    let mut node = Node::new(config, (events, ucx, pool), frames, (owner, channels, rests), random()?);
    let mut news = Instant::now();
    let mut ticked = Instant::now();
    loop {
        let mut any = false;
        let mut next = engine.next(pause(&node, news));
        let taking = Instant::now();
        let mut has_all_jobs = true;
        while let Some(job) = next {
            any = true;
            node.accept(engine, job);
            // Requests that end at once could come without an end, and peers wait.
            has_all_jobs = taking.elapsed() < TAKING;
            next = if has_all_jobs { engine.next(Duration::ZERO) } else { None };
        }
        if engine.take_cancels() {
            node.cancel(engine);
        }
        any |= node.receive(engine);
        any |= node.serve(has_all_jobs)?;
        if any {
            news = Instant::now();
        }
        if ticked.elapsed() >= node.tick_interval() {
            node.tick(engine);
            ticked = Instant::now();
        }
    }
}

/// A random number.
fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    // getrandom returns all bytes of requests as short as this.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

/// Starts to answer who asks for the status. A link without that is as good a link.
fn answer_status(path: &Path, events: SyncSender<Event>) {
    let snapshot = move || {
        let (asker, answer) = mpsc::channel();
        events.send(Event::Status(asker)).ok()?;
        answer.recv_timeout(STATUS_LIMIT).ok()
    };
    let started = status::listen(path)
        .and_then(|listener| threads::spawn("link-status", move || status::answer(&listener, snapshot)));
    if let Err(error) = started {
        tell(format_args!("no status at {}: {error}", path.display()));
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
