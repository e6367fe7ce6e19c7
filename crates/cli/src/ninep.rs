//! `memferry 9p serve`: a directory for 9P2000.L clients.
//!
//! ```text
//! command line ─► Options, Listeners ─► Server, until a signal ─► statistics in the log
//! ```
//!
//! `memferry_ninep` implements the protocol and the server.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use memferry::{Client, ZeroedStatus, Zeroing};
use memferry_ninep::{Access, Engine, Key, Limits, Listener, Options, Server};
use rustix::process::{Resource, Rlimit};
use signal_hook::consts::SIGXFSZ;

use crate::CommandError;
use crate::files::open_source;
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
    /// Directory to serve. Clients cannot reach anything outside it.
    directory: PathBuf,
    /// Address to listen on: unix:PATH or tcp:HOST:PORT; may be repeated.
    ///
    /// A TCP address that other machines can reach needs --key-file.
    #[arg(long, value_name = "ADDRESS", default_value = "unix:memferry-9p.sock")]
    listen: Vec<Place>,
    /// Refuse all changes.
    #[arg(long)]
    read_only: bool,
    /// How to read files.
    ///
    /// `auto` decides for each open file at its first read and counts why, for the file `server` under the attach name /pool.
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    engine: EngineName,
    /// Bytes of data per message, a multiple of 4096.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    block: usize,
    /// Bytes of the buffer pool.
    ///
    /// Requests wait while all buffers are in use.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pool: u64,
    /// File size in bytes from which engine `auto` bypasses the page cache [default: half of this machine's memory]
    #[arg(long, value_name = "BYTES")]
    large: Option<u64>,
    /// Serving threads [default: one for each CPU, at most two]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// User that may attach over Unix sockets besides the server's user and root; may be repeated.
    #[arg(long, value_name = "UID")]
    allow_user: Vec<u32>,
    /// File with the key that TCP clients send when they attach (key=KEY or key=KEY:PATH). It is sent unencrypted.
    ///
    /// The key has at least 8 bytes and no colon, the file at most 4096 bytes.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Let clients create FIFOs and sockets. Devices are always refused.
    ///
    /// The server opens none of the three for a client.
    #[arg(long)]
    special_files: bool,
    /// Zero returned buffers of the pool in the background, in the lowest class, so that file contents do not stay in this
    /// process's memory. It costs memory bandwidth and makes no request faster.
    #[arg(long)]
    zero_buffers: bool,
    /// Also serve the pool as files, under the attach name /pool.
    ///
    /// A directory of that name can then not be attached by itself.
    #[arg(long)]
    pool_files: bool,
    /// Maximum number of clients.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().clients)]
    max_clients: usize,
    /// Maximum number of clients of one user over Unix sockets, or of one address over TCP.
    ///
    /// Of an IPv6 address its network of 64 bits counts. All users who may not attach share one such limit. Further clients are
    /// disconnected at once. Raise it where one user or address connects more often.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().clients_per_user)]
    max_clients_per_user: usize,
    /// Maximum number of fids per client.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().fids)]
    max_fids: usize,
    /// Maximum number of requests per client that are unanswered or whose answer is unread; at most 4096.
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().outstanding)]
    max_outstanding: usize,
    /// Seconds after which a client that stops in the middle of a message is disconnected; at least 1.
    ///
    /// The same holds for a client that takes none of what it is sent, or does not attach. Of a long block each 64 KiB have that time.
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().stall.as_secs())]
    stall: u64,
}

/// An address as `--listen` has it.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Unix(PathBuf),
    /// `HOST:PORT`, resolved when it is listened on.
    Tcp(String),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) if address.contains(':') => Ok(Self::Tcp(address.to_owned())),
            _ => Err(format!("'{text}' is neither unix:PATH nor tcp:HOST:PORT, such as tcp:127.0.0.1:564")),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum EngineName {
    /// Choose per file: the page cache, or the pool for files that would fill the cache.
    Auto,
    /// Through the page cache, copied into buffers and out of them.
    Copying,
    /// Past the page cache into registered buffers, and sent from them.
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
            clients_per_user: self.max_clients_per_user,
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
        let listen = |place: &Place| match place {
            Place::Unix(path) => Listener::unix(path),
            Place::Tcp(address) => Listener::tcp(address, self.key_file.is_some()),
        };
        Ok(self.listen.iter().map(listen).collect::<Result<_, _>>()?)
    }
}

/// Bytes of the longest file with a key. v9fs takes no longer mount options.
const LONGEST_KEY: usize = 4096;

fn read_key(path: &Path) -> Result<Key, CommandError> {
    let (file, _) = open_source(path)?;
    let mut text = Vec::new();
    file.take(LONGEST_KEY as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let key = text.trim_ascii();
    if text.len() > LONGEST_KEY || key.len() < 8 || key.contains(&b':') {
        return Err(format!(
            "the key in {} is not usable; it needs at least 8 bytes and no colon, in a file of at most {LONGEST_KEY} bytes",
            path.display()
        )
        .into());
    }
    Ok(Key::new(key))
}

/// Runs `memferry 9p serve`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let Command::Serve(arguments) = &arguments.command;
    crate::serve::start_text_log();
    let interrupt = Interrupt::new()?;
    // A write beyond the file size limit must fail for its client and not end the server.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    // Each file that a client walked to uses a descriptor. With a lower limit, fewer clients are served.
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
        // A closed standard output is no error.
        drop(writeln!(std::io::stdout(), "listening on {address}"));
    }
    while !interrupt.wait(Some(server.as_fd()), None)? {
        if server.is_over() {
            return Err("all serving threads have ended; the log has the reason".into());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_paths_or_hosts_with_ports() {
        assert_eq!("unix:a:b".parse(), Ok(Place::Unix("a:b".into())));
        assert_eq!("tcp:[::1]:564".parse(), Ok(Place::Tcp("[::1]:564".to_owned())));
        for bad in ["", "unix", "unix:", "tcp:", "tcp:host", "/run/9p.sock", "127.0.0.1:564"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_read_from_a_short_regular_file() {
        let path = std::env::temp_dir().join(format!("memferry-9p-key-{}", std::process::id()));
        let read = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            read_key(&path).map_err(|error| error.to_string())
        };
        assert!(read(b" open sesame\n").unwrap() == Key::new(b"open sesame"));
        assert!(read(&[b'a'; LONGEST_KEY]).is_ok());
        for bad in [&b"short"[..], b"with: colon", &[b'a'; LONGEST_KEY + 1]] {
            assert!(read(bad).unwrap_err().contains("at most 4096 bytes"));
        }
        std::fs::remove_file(&path).unwrap();
        // It would be empty, as /dev/zero is endless.
        let refused = read_key(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(refused.contains("not a regular file"), "{refused}");
    }
}
