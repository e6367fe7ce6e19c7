//! Two nodes on this machine: services and links as they are installed, and memory of one that the other reads.
//!
//! ```text
//! memferry serve ◄─ memferry-link run ═ loopback ═ memferry-link run ─► memferry serve        all end with this process
//!      ▲ owner of the memory                            Reach: client, queue, frames ▲
//! ```
//!
//! The programs are those beside this one.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memferry::{
    Client, Failure, Frame, Grant, Grantee, NodeName, Queue, Region, Rights, RunError, Ticket, copy,
};

use super::ucx::{Transport, Ucx};
use crate::BenchError;
use crate::children::{Program, processor_seconds};
use crate::pair::poll_for;
use crate::run::Run;
use crate::timing::random_bytes;

pub(super) const NAMES: [&str; 2] = ["alpha", "beta"];
/// How long the links may take to connect and to have memory.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);
/// A link that is silent for so long is lost; a busy machine may take more than the default.
const TIMEOUT_MS: u32 = 5000;
/// For the service, which has to be more patient than the link.
const STALL_MS: u32 = 15_000;

/// How bytes go from node to node.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    Ucx(&'a Ucx, Transport),
    /// Over the connection that the links encrypt.
    Encrypted,
}

/// The path of a program beside this one.
pub(super) fn program(name: &str) -> Result<PathBuf, BenchError> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{} is missing; ./x bench builds it", path.display()).into())
    }
}

/// A port of the loopback interface that nobody has at the moment.
pub(super) fn free_port() -> Result<u16, BenchError> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Number of this process's user, for the links and the grant.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn text(path: &Path) -> Result<&str, BenchError> {
    path.to_str().ok_or_else(|| "the path of the temporary directory is not UTF-8; set TMPDIR".into())
}

/// A service and its link, which end in this order: the link first.
pub(super) struct Node {
    link: Program,
    service: Program,
    pub(super) socket: PathBuf,
    /// Where the link takes channels.
    pub(super) channels: PathBuf,
}

impl Node {
    /// Processor time of the service and of both processes of the link, in seconds.
    fn processor_seconds(&self, client: &Client) -> Result<f64, BenchError> {
        let engine = client.status()?.engines.first().and_then(|engine| engine.process);
        let engine = engine.ok_or("the link is not attached")?;
        let processes = [self.service.process(), self.link.process(), engine];
        processes.into_iter().map(processor_seconds).sum()
    }
}

/// Alpha, which has the memory, and beta, which reads it.
pub(super) struct Nodes {
    pub(super) alpha: Node,
    pub(super) beta: Node,
}

impl Nodes {
    /// Starts both. Returns when the links are attached, perhaps not yet connected.
    pub(super) fn start(run: &Run, way: Way<'_>) -> Result<Self, BenchError> {
        Self::start_in(run, way, "nodes")
    }

    /// The same with their files in a folder of this name, so that there can be others at the same time.
    pub(super) fn start_in(run: &Run, way: Way<'_>, name: &str) -> Result<Self, BenchError> {
        let directory = run.directory().join(name);
        // Those of the last ones, which have ended.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory)?;
        let link = program("memferry-link")?;
        let mut keys = Vec::new();
        for name in NAMES {
            let output = Command::new(&link).arg("keygen").arg(directory.join(name)).output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
            }
            keys.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let ports = [free_port()?, free_port()?];
        let mut nodes = Vec::new();
        for (own, other) in [(0, 1), (1, 0)] {
            let name = NAMES[own];
            let encrypts = matches!(way, Way::Encrypted);
            let config = directory.join(format!("{name}.toml"));
            let settings = format!(
                "name = \"{name}\"\nkey = \"{name}\"\nlisten = \"127.0.0.1:{}\"\ntimeout-ms = {TIMEOUT_MS}\n\
                 [peers.{}]\nkey = \"{}\"\naddress = \"127.0.0.1:{}\"\nrequire-encryption = {encrypts}\ndirect = true\n",
                ports[own], NAMES[other], keys[other], ports[other]
            );
            std::fs::write(&config, settings)?;
            nodes.push(start_node(&directory, name, &config, way)?);
        }
        let [alpha, beta] = <[Node; 2]>::try_from(nodes).map_err(|_| "two nodes were to be started")?;
        Ok(Self { alpha, beta })
    }
}

fn start_node(directory: &Path, name: &str, config: &Path, way: Way<'_>) -> Result<Node, BenchError> {
    let socket = directory.join(format!("{name}.sock"));
    let status = directory.join(format!("{name}.status"));
    let engine = format!("link user={} frames=all stall-ms={STALL_MS}", user());
    let memferry = program("memferry")?;
    let words = [text(&memferry)?, "serve", "--socket", text(&socket)?, "--no-config", "--workers", "1"];
    let mut service = Program::start(&[&words[..], &["--engine", &engine]].concat(), &[])?;
    if !service.line()?.starts_with("listening on ") {
        return Err("the service of a node did not start".into());
    }
    let link = program("memferry-link")?;
    let (link, environment) = match way {
        Way::Ucx(ucx, transport) => (ucx.with(&link), transport.environment().to_vec()),
        Way::Encrypted => (vec![text(&link)?.to_owned()], Vec::new()),
    };
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    let channels = directory.join(format!("{name}.channels"));
    let words = ["run", "--socket", text(&socket)?, "--config", text(config)?, "--status", text(&status)?];
    let more = ["--channels", text(&channels)?];
    let link = Program::start(&[&link[..], &words, &more].concat(), &environment)?;
    let node = Node { link, service, socket, channels };
    let client = Client::connect(&node.socket)?;
    patiently("the link of a node to attach", || {
        Ok(client.status()?.engines.iter().any(|engine| engine.is_connected).then_some(()))
    })?;
    Ok(node)
}

/// Tries until there is a value.
///
/// # Errors
/// The first of `attempt`, or that it takes too long.
pub(super) fn patiently<T>(
    what: &str,
    mut attempt: impl FnMut() -> Result<Option<T>, BenchError>,
) -> Result<T, BenchError> {
    let since = Instant::now();
    loop {
        if let Some(value) = attempt()? {
            return Ok(value);
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("waited {} s for {what}", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Memory of alpha, of random bytes, as a client of beta reaches it, and as much of its own.
pub(super) struct Reach {
    pub(super) client: Client,
    pub(super) queue: Queue,
    remote: Frame,
    own: Frame,
    theirs: Frame,
    _grant: Grant,
    owner: Client,
}

impl Reach {
    /// So many bytes, granted with these rights, which were read once and compared.
    pub(super) fn open(nodes: &Nodes, bytes: u64, rights: Rights) -> Result<Self, BenchError> {
        let owner = Client::connect(&nodes.alpha.socket)?;
        let theirs = owner.frame(bytes).alloc()?;
        theirs.write(0, &random_bytes(usize::try_from(bytes)?, 31))?;
        let to = Grantee::Remote { node: NAMES[1].parse::<NodeName>()?, user: user() };
        let grant = owner.grant(theirs.slice(..bytes), rights, to)?;
        let token = grant.remote_token(NAMES[0].parse()?)?;
        let client = Client::connect(&nodes.beta.socket)?;
        let remote = client.accept_remote(token)?;
        let mut queue = client.queue(64)?;
        // The link may be late for a frame, and never has it then.
        let own = patiently("a link to connect and to map memory", || {
            let own = client.frame(bytes).alloc()?;
            match queue.run(copy(remote.slice(..1), own.slice(..1))) {
                Ok(_) => Ok(Some(own)),
                Err(RunError::Transfer(error))
                    if matches!(error.failure, Failure::PeerLost | Failure::Unsupported) =>
                {
                    Ok(None)
                }
                Err(error) => Err(error.to_string().into()),
            }
        })?;
        let mut reach = Self { client, queue, remote, own, theirs, _grant: grant, owner };
        reach.stream(bytes, 1, 1)?;
        reach.compare(bytes)?;
        Ok(reach)
    }

    fn compare(&self, bytes: u64) -> Result<(), BenchError> {
        let mut both = [vec![0; 1 << 20], vec![0; 1 << 20]];
        for offset in (0..bytes).step_by(1 << 20) {
            let length = (bytes - offset).min(1 << 20) as usize;
            for (frame, bytes) in [&self.theirs, &self.own].into_iter().zip(&mut both) {
                frame.read(offset, &mut bytes[..length])?;
            }
            if both[0][..length] != both[1][..length] {
                return Err("other bytes arrived".into());
            }
        }
        Ok(())
    }

    fn ends(&self, bytes: u64) -> (Region, Region) {
        (self.remote.slice(..bytes), self.own.slice(..bytes))
    }

    /// Reads the first `bytes` so many times, so many at a time, and waits without polling. Returns seconds.
    pub(super) fn stream(&mut self, bytes: u64, count: usize, window: usize) -> Result<f64, BenchError> {
        let (remote, own) = self.ends(bytes);
        let mut in_flight = std::collections::VecDeque::<Ticket>::new();
        let started = Instant::now();
        for _ in 0..count {
            if in_flight.len() == window
                && let Some(ticket) = in_flight.pop_front()
            {
                self.queue.wait(ticket)?;
            }
            in_flight.push_back(self.queue.submit(copy(&remote, &own))?);
        }
        for ticket in in_flight {
            self.queue.wait(ticket)?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Seconds of one read.
    pub(super) fn read(&mut self, bytes: u64, polls: bool) -> Result<f64, BenchError> {
        let (remote, own) = self.ends(bytes);
        let started = Instant::now();
        let ticket = self.queue.submit(copy(&remote, &own))?;
        if polls {
            poll_for(&mut self.queue, ticket)?;
        } else {
            self.queue.wait(ticket)?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// Reads so many blocks of so many bytes, all at a time, and waits without polling until all have arrived.
    pub(super) fn blocks(&mut self, bytes: u64, depth: u64) -> Result<(), BenchError> {
        let mut in_flight = Vec::<Ticket>::new();
        for block in 0..depth {
            let range = block * bytes..(block + 1) * bytes;
            let transfer = copy(self.remote.slice(range.clone()), self.own.slice(range));
            in_flight.push(self.queue.submit(transfer)?);
        }
        in_flight.into_iter().try_for_each(|ticket| self.queue.wait(ticket).map(drop))?;
        Ok(())
    }

    /// Processor time of the services and links of both nodes, in seconds.
    pub(super) fn processor_seconds_of_both(&self, nodes: &Nodes) -> Result<f64, BenchError> {
        Ok(nodes.alpha.processor_seconds(&self.owner)? + self.processor_seconds(nodes)?)
    }

    /// Processor time of beta's service and link, in seconds.
    pub(super) fn processor_seconds(&self, nodes: &Nodes) -> Result<f64, BenchError> {
        nodes.beta.processor_seconds(&self.client)
    }
}

/// Processor time of this thread, in seconds.
pub(super) fn own_processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
