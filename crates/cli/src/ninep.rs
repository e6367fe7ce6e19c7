//! `memferry 9p serve`: a directory for 9P2000.L clients.
//!
//! ```text
//! command line ─► Options, Listeners ─► Server, until a signal ─► what it did, in the log
//! ```
//!
//! The server is `memferry_ninep`'s; nothing of the protocol is known here.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use memferry::{Client, ZeroedStatus, Zeroing};
use memferry_ninep::{Access, Engine, Key, Limits, Listener, Options, Server};
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::SIGXFSZ;

use crate::CommandError;
use crate::interrupt::Interrupt;

/// Arguments of `9p`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a directory over 9P2000.L until SIGTERM or SIGINT, from a pool of DMA-compatible buffers.
    Serve(Box<ServeArguments>),
}

/// Arguments of `9p serve`.
#[derive(Args)]
struct ServeArguments {
    /// The directory to serve. Clients get at nothing outside it.
    directory: PathBuf,
    /// Where to listen: unix:PATH or tcp:HOST:PORT; may be given more than once.
    #[arg(long, value_name = "ADDRESS", default_value = "unix:memferry-9p.sock")]
    listen: Vec<String>,
    /// Let clients change nothing.
    #[arg(long)]
    read_only: bool,
    /// How files are read.
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    engine: EngineName,
    /// Bytes that one message carries, a multiple of 4096.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    block: usize,
    /// Bytes of the buffer pool.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pool: u64,
    /// Bytes from which on engine `auto` reads a file past the page cache; by default half of this machine's memory.
    #[arg(long, value_name = "BYTES")]
    large: Option<u64>,
    /// Threads that serve; by default one for each CPU, two at most.
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// User that may attach over Unix sockets, beside the server's own and root; may be given more than once.
    #[arg(long, value_name = "UID")]
    allow_user: Vec<u32>,
    /// File with the key that TCP clients name when they attach (key=KEY or key=KEY:PATH). It travels in the clear.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Let clients make FIFOs and sockets; devices never.
    #[arg(long)]
    special_files: bool,
    /// Zero buffers of the pool that are given back, in the background and in the lowest class: no bytes of files stay in
    /// memory of this process for long. Costs memory bandwidth and answers nobody sooner.
    #[arg(long)]
    zero_buffers: bool,
    /// Also serve the pool as files, under the attach name /pool.
    #[arg(long)]
    pool_files: bool,
    /// Clients at a time.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().clients)]
    max_clients: usize,
    /// Fids of a client.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().fids)]
    max_fids: usize,
    /// Requests of a client that are not answered yet, or whose answer it has not read; 4096 at most.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().outstanding)]
    max_outstanding: usize,
    /// Seconds after which a client that stopped in the middle of something is cut off; at least one.
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().stall.as_secs())]
    stall: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum EngineName {
    /// By file: the page cache, but the pool for files that would fill it.
    Auto,
    /// Through the page cache, copied into buffers and out of them.
    Copying,
    /// Past the page cache into registered buffers, sent from them.
    Pool,
    /// From the page cache to the socket without a copy.
    Cached,
}

impl ServeArguments {
    fn options(&self) -> Result<Options, CommandError> {
        let mut options = Options::new(&self.directory);
        options.read_only = self.read_only;
        options.special_files = self.special_files;
        options.pool_files = self.pool_files;
        options.engine = match self.engine {
            EngineName::Auto => Engine::Auto,
            EngineName::Copying => Engine::Copying,
            EngineName::Pool => Engine::Pool,
            EngineName::Cached => Engine::Cached,
        };
        options.block_bytes = self.block;
        options.pool_bytes = self.pool;
        options.large_bytes = self.large.unwrap_or(options.large_bytes);
        options.threads = self.threads.unwrap_or(options.threads);
        options.limits = Limits {
            clients: self.max_clients,
            fids: self.max_fids,
            nodes: self.max_fids.saturating_mul(2),
            outstanding: self.max_outstanding,
            stall: Duration::from_secs(self.stall),
        };
        let key = self.key_file.as_deref().map(read_key).transpose()?;
        options.access = Access { users: self.allow_user.clone(), key };
        options.check()?;
        Ok(options)
    }

    fn listeners(&self) -> Result<Vec<Listener>, CommandError> {
        let listen = |address: &String| match address.split_once(':') {
            Some(("unix", path)) => Ok(Listener::unix(Path::new(path))?),
            Some(("tcp", address)) => Ok(Listener::tcp(address, self.key_file.is_some())?),
            _ => Err(format!("cannot listen on {address}; say unix:PATH or tcp:HOST:PORT").into()),
        };
        self.listen.iter().map(listen).collect()
    }
}

fn read_key(path: &Path) -> Result<Key, CommandError> {
    let text =
        std::fs::read(path).map_err(|error| format!("cannot read the key {}: {error}", path.display()))?;
    let key = text.trim_ascii();
    if key.len() < 8 || key.contains(&b':') {
        return Err(format!("the key in {} has fewer than 8 bytes or a colon in it", path.display()).into());
    }
    Ok(Key::new(key))
}

/// Runs a command of `9p`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let Command::Serve(arguments) = &arguments.command;
    crate::serve::start_text_log();
    let interrupt = Interrupt::new()?;
    // A limit on the length of files is a client's error, not the end of the server.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    // Each file a client has walked to is a descriptor. Fewer than allowed serve fewer clients.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    let options = arguments.options()?;
    let listeners = arguments.listeners()?;
    let addresses: Vec<String> = listeners.iter().map(Listener::address).collect();
    let server = Server::start(options, listeners)?;
    let zeroing = match arguments.zero_buffers {
        true => Some(Zeroing::start(&Client::embedded()?, server.pool())?),
        false => None,
    };
    for address in addresses {
        // Nobody has to be listening for this.
        drop(writeln!(std::io::stdout(), "listening on {address}"));
    }
    while !interrupt.wait(Some(server.as_fd()), None)? {
        if server.is_over() {
            return Err("every serving thread has ended, so nobody can be served; the log says why".into());
        }
    }
    for line in server.statistics().to_string().lines() {
        tracing::info!("{line}");
    }
    if let Some(zeroing) = zeroing {
        let ZeroedStatus { buffers, bytes, failed } = zeroing.statistics();
        tracing::info!(buffers, bytes, failed, "zeroed");
    }
    Ok(())
}
