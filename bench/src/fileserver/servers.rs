//! The compared servers, each in its own process, and their processor time.
//!
//! ```text
//! Kind ─► this program: --files serve ENGINE ... | --files sendfile ...     diod ─► Server { process, port }
//! /proc/PROCESS/task/*/schedstat ──► seconds of all its threads, including io_uring workers
//! ```
//!
//! All end with this process. They serve random bytes read-only without a key, and listen only where
//! receivers connect: at the loopback address, or at the near ends of the namespaces' interfaces.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use memferry_ninep::{Engine, Listener, Options, Server as OurServer};

use crate::BenchError;
use crate::children::{Program, Role, processor_seconds};

/// How long a server may take to start.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Path in Debian's package.
const DIOD: &str = "/usr/sbin/diod";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Ours, through the page cache: two copies.
    Copying,
    /// Ours, bypassing the page cache into the pool.
    Pool,
    /// Ours, with automatic choice.
    Auto,
    Diod,
    /// A loop around `sendfile`.
    Sendfile,
}

/// All servers, in the order of the table.
pub(super) const KINDS: [Kind; 5] = [Kind::Copying, Kind::Pool, Kind::Auto, Kind::Diod, Kind::Sendfile];

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::Pool => "pool",
            Self::Auto => "auto",
            Self::Diod => "diod",
            Self::Sendfile => "sendfile",
        }
    }

    /// Whether the server is available here.
    pub(super) fn is_there(self) -> bool {
        self != Self::Diod || Path::new(DIOD).exists()
    }

    /// Protocol of its receivers.
    pub(super) fn protocol(self) -> &'static str {
        if self == Self::Sendfile { "plain" } else { "9p" }
    }
}

enum Process {
    Ours(Role),
    Other(Program),
}

/// A running server, ended on drop.
pub(super) struct Server {
    process: Process,
    port: u16,
    attach: String,
}

impl Server {
    /// Starts a server of a directory at addresses of this machine.
    pub(super) fn start(kind: Kind, directory: &Path, hosts: &[&str]) -> Result<Self, BenchError> {
        let path =
            directory.to_str().ok_or("the path of the temporary directory is not UTF-8; set TMPDIR")?;
        // Another process may take the port first, which is unlikely; then the start fails.
        let port = TcpListener::bind((hosts[0], 0))?.local_addr()?.port();
        let addresses: Vec<String> = hosts.iter().map(|host| format!("{host}:{port}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        if kind == Kind::Diod {
            let mut program = start_diod(path, &addresses)?;
            wait_for(addresses[0], &mut program)?;
            return Ok(Self { process: Process::Other(program), port, attach: path.to_owned() });
        }
        let words = match kind {
            Kind::Sendfile => vec!["--files", "sendfile", path],
            _ => vec!["--files", "serve", kind.name(), path],
        };
        let mut role = Role::start(None, &[words, addresses].concat())?;
        if role.line()? != "ready" {
            return Err(format!("the server {} did not start", kind.name()).into());
        }
        Ok(Self { process: Process::Ours(role), port, attach: "/".to_owned() })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The attach name of its directory.
    pub(super) fn attach(&self) -> &str {
        &self.attach
    }

    /// Processor time of its living threads, in seconds.
    pub(super) fn processor_seconds(&self) -> Result<f64, BenchError> {
        let process = match &self.process {
            Process::Ours(role) => role.process(),
            Process::Other(program) => program.process(),
        };
        processor_seconds(process)
    }
}

/// Starts diod with a configuration file, which is the only way to export read-only.
fn start_diod(path: &str, addresses: &[&str]) -> Result<Program, BenchError> {
    let configuration = format!("{path}.diod.conf");
    std::fs::write(&configuration, format!("exports = {{ {{ path = [[{path}]], opts = \"ro\" }} }}\n"))?;
    let mut words = vec![DIOD, "-f", "-n", "-N", "-L", "stderr", "-c", &configuration];
    words.extend(addresses.iter().flat_map(|address| ["-l", address]));
    Program::start(&words, &[])
}

fn wait_for(address: &str, program: &mut Program) -> Result<(), BenchError> {
    let until = Instant::now() + TIMEOUT;
    while TcpStream::connect(address).is_err() {
        if !program.runs()? || Instant::now() >= until {
            return Err("diod did not start".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Runs our server until the input ends.
pub(super) fn serve(engine: &str, directory: &Path, addresses: &[&str]) -> Result<(), BenchError> {
    let engine = match engine {
        "copying" => Engine::Copying,
        "pool" => Engine::Pool,
        "auto" => Engine::Auto,
        other => return Err(format!("unknown engine {other}; choose one of: copying, pool, auto").into()),
    };
    let options = Options { engine, read_only: true, ..Options::new(directory) };
    let listeners: Result<Vec<Listener>, _> =
        addresses.iter().map(|address| Listener::tcp(address, true)).collect();
    let server = OurServer::start(options, listeners?)?;
    crate::children::wait_for_end_of_input()?;
    drop(server);
    Ok(())
}
