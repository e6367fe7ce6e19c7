//! `memferry demo --nodes 2`: a file that goes between two nodes, a refusal, a revocation, and a link that is killed.
//!
//! ```text
//! service alpha ◄─ link ─ network of its own ─ veth ─ network of its own ─ link ─► service beta
//!     ▲ a client here grants                                    a client here accepts ▲
//! ```
//!
//! Each node has a service, a link and, if this user may make networks, a network. The clients are the demo's own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memferry::{Client, Failure, Frame, Grantee, NodeName, Queue, RemoteToken, Rights, RunError, copy};

use super::stage::{Link, Part, Service, Stage};
use crate::CommandError;
use crate::measure::Bytes;
use crate::output::say;

/// Bytes of the file that go to the other node.
const MAX_BYTES: usize = 16 << 20;
/// Copies that run when the grant is revoked or the link killed.
const COPIES: u32 = 32;
/// How long links may take to connect.
const PATIENCE: Duration = Duration::from_secs(60);
const NAMES: [&str; 2] = ["alpha", "beta"];
const PORT: u16 = 17_471;

/// Two networks that are joined, which end with this value.
struct Networks(Vec<String>);

impl Networks {
    /// Makes them; an error says why not.
    fn make() -> Result<Self, String> {
        let prefix = format!("mfdemo{}", std::process::id());
        let networks = Self(NAMES.iter().map(|name| format!("{prefix}{name}")).collect());
        let script = "set -e; for n in alpha beta; do ip netns add $P$n; ip -n $P$n link set lo up; done
            ip -n $P'alpha' link add name veth0 type veth peer name veth0 netns $P'beta'
            ip -n $P'alpha' addr add 10.77.1.1/24 dev veth0; ip -n $P'alpha' link set veth0 up
            ip -n $P'beta' addr add 10.77.1.2/24 dev veth0; ip -n $P'beta' link set veth0 up";
        let made = Command::new("sh").args(["-c", script]).env("P", &prefix).stdin(Stdio::null()).output();
        let made = made.map_err(|error| error.to_string())?;
        if made.status.success() {
            Ok(networks)
        } else {
            Err(String::from_utf8_lossy(&made.stderr).trim().to_owned())
        }
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

/// A node, whose parts end in this order.
struct Node {
    client: Client,
    link: Option<Link>,
    service: Service,
    /// The command of the link, to start it again.
    command: Vec<PathBuf>,
}

impl Node {
    fn start_link(&mut self, stage: &Stage) -> Result<(), CommandError> {
        self.link = Some(Link::start(stage, &self.command)?);
        Ok(())
    }

    fn check_link(&mut self) -> Result<(), CommandError> {
        self.link.as_mut().map_or(Ok(()), Link::check)
    }
}

/// Starts the services, keys, configurations and links of both nodes.
fn start(stage: &Stage, program: &Path, networks: Option<&Networks>) -> Result<[Node; 2], CommandError> {
    let program = stage.take_program(program)?;
    let user = stage.user_of(Part::Engines).unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let addresses = if networks.is_some() { ["10.77.1.1", "10.77.1.2"] } else { ["127.0.0.1"; 2] };
    let mut keys = Vec::new();
    for name in NAMES {
        keys.push(stage.keygen(&program, &stage.path_of(Part::Engines, &format!("{name}.key")))?);
    }
    let mut nodes = Vec::new();
    for (own, other) in [(0, 1), (1, 0)] {
        let name = NAMES[own];
        let text = format!(
            "name = \"{name}\"\nkey = \"{name}.key\"\nlisten = \"{}:{}\"\n[peers.{}]\nkey = \"{}\"\naddress = \"{}:{}\"\n",
            addresses[own],
            PORT + own as u16,
            NAMES[other],
            keys[other],
            addresses[other],
            PORT + other as u16
        );
        let config = stage.give(Part::Engines, &format!("{name}.toml"), text.as_bytes())?;
        let engine = format!("link user={user} frames=all");
        let service = Service::start_at(stage, &format!("{name}.sock"), &["--engine", &engine])?;
        let mut command: Vec<PathBuf> = Vec::new();
        if let Some(networks) = networks {
            command.extend(["ip", "netns", "exec", &networks.0[own]].map(PathBuf::from));
        }
        command.push(program.clone());
        command.extend(["run", "--socket"].map(PathBuf::from));
        command.push(service.socket.clone());
        let status = stage.path_of(Part::Engines, &format!("{name}.status"));
        command.extend([PathBuf::from("--config"), config, PathBuf::from("--status"), status]);
        let client = Client::connect(&service.socket)?;
        let mut node = Node { client, link: None, service, command };
        node.start_link(stage)?;
        nodes.push(node);
    }
    <[Node; 2]>::try_from(nodes).map_err(|_| "two nodes were to be started".into())
}

/// Tries until `attempt` gives a value, the demo is interrupted, or a link has ended.
fn patiently<T>(
    stage: &Stage,
    nodes: &mut [Node; 2],
    what: &str,
    attempt: impl FnMut() -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let check = || {
        stage.check_interrupted()?;
        nodes.iter_mut().try_for_each(Node::check_link)
    };
    retried(PATIENCE, what, check, attempt)
}

/// Tries until `attempt` gives a value or `check` fails. When the time is over, the error has that of the last attempt.
fn retried<T>(
    patience: Duration,
    what: &str,
    mut check: impl FnMut() -> Result<(), CommandError>,
    mut attempt: impl FnMut() -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let started = Instant::now();
    loop {
        check()?;
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if started.elapsed() >= patience => {
                return Err(format!(
                    "{what} took longer than {} s; the last attempt: {error}",
                    patience.as_secs()
                )
                .into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Runs a copy, and says how it failed.
fn run(queue: &mut Queue, from: &Frame, to: &Frame) -> Result<Option<Failure>, CommandError> {
    match queue.run(copy(from, to)) {
        Ok(_) => Ok(None),
        Err(RunError::Transfer(error)) => Ok(Some(error.failure)),
        Err(error) => Err(error.to_string().into()),
    }
}

/// A frame of beta that its link has, too.
fn near(stage: &Stage, nodes: &mut [Node; 2], client: &Client, length: u64) -> Result<Frame, CommandError> {
    // The link has a frame of its own, which must not be taken for the client's.
    patiently(stage, nodes, "starting the link", || {
        let status = client.status()?;
        let process = status.engines.first().and_then(|engine| engine.process);
        let is_link =
            |session: &memferry::SessionStatus| Some(session.process) == process && session.frames > 0;
        status.sessions.iter().any(is_link).then_some(()).ok_or_else(|| "it has no frame yet".into())
    })?;
    let frames = || client.status().map(|status| status.engines.first().map_or(0, |one| one.frames));
    patiently(stage, nodes, "registering a frame", || {
        let before = frames()?;
        let frame = client.frame(length).alloc()?;
        if frames()? > before { Ok(frame) } else { Err("the link does not have it".into()) }
    })
}

/// Tells the whole story.
pub(crate) fn tell(stage: &Stage, mut file: Vec<u8>, program: &Path) -> Result<(), CommandError> {
    say!("memferry demo --nodes 2: two services, two links and two clients\n");
    file.truncate(MAX_BYTES);
    let networks = Networks::make();
    match &networks {
        Ok(networks) => say!("The links are in networks of their own, {}.", networks.0.join(" and ")),
        Err(why) => say!("Both links are on this machine's loopback, because no networks can be made: {why}"),
    }
    let mut nodes = start(stage, program, networks.as_ref().ok())?;
    let user = rustix::process::geteuid().as_raw();
    let [alpha, beta]: [NodeName; 2] = [NAMES[0].parse()?, NAMES[1].parse()?];
    let length = file.len() as u64;

    say!("\n1. Alpha grants a file's bytes to a user of beta, who copies them");
    let owned = nodes[0].client.frame(length).alloc()?;
    owned.write(0, &file)?;
    let remote_user = Grantee::Remote { node: beta, user };
    let grant = nodes[0].client.grant(owned.slice(..length), Rights::READ, remote_user)?;
    let token = grant.remote_token(alpha)?;
    say!("   The token, which is no secret: {token}");
    let client = nodes[1].client.clone();
    let remote = patiently(stage, &mut nodes, "attaching the link", || Ok(client.accept_remote(token)?))?;
    let own = near(stage, &mut nodes, &client, length)?;
    let mut queue = client.queue(64)?;
    patiently(stage, &mut nodes, "connecting the links", || match run(&mut queue, &remote, &own) {
        Ok(Some(lost @ Failure::PeerLost)) => Err(lost.to_string().into()),
        // Another failure is no matter of time.
        _ => Ok(()),
    })?;
    let started = Instant::now();
    arrived(&mut queue, &remote, &own, &file)?;
    say!("   {} arrived, the same bytes, in {:.1} ms.", Bytes(length), 1e3 * started.elapsed().as_secs_f64());

    say!("\n2. What alpha did not grant, it refuses");
    let claimed = RemoteToken { rights: Rights::READ | Rights::WRITE, ..token };
    let writable = client.accept_remote(claimed)?;
    refused("a write, with a token that claims the right", run(&mut queue, &own, &writable)?)?;
    let other = Grantee::Remote { node: beta, user: user.wrapping_add(1) };
    let others = nodes[0].client.grant(owned.slice(..length), Rights::READ, other)?;
    let stolen = client.accept_remote(RemoteToken { token: others.token(), ..token })?;
    refused("the token of another user", run(&mut queue, &stolen, &own)?)?;

    say!("\n3. Alpha's link is killed while {COPIES} copies are on their way");
    let tickets = begin(&mut queue, &remote, &own)?;
    drop(nodes[0].link.take());
    ended(&mut queue, tickets, |failure| matches!(failure, Failure::PeerLost))?;
    nodes[0].start_link(stage)?;
    patiently(stage, &mut nodes, "connecting again", || match run(&mut queue, &remote, &own)? {
        None => Ok(()),
        Some(failure) => Err(failure.to_string().into()),
    })?;
    say!("   It was started again, and the frame is good again.");

    say!("\n4. Alpha revokes the grant while {COPIES} copies are on their way");
    let tickets = begin(&mut queue, &remote, &own)?;
    grant.revoke()?;
    ended(&mut queue, tickets, |failure| matches!(failure, Failure::PeerRefused { .. }))?;
    refused("a copy after that", run(&mut queue, &remote, &own)?)?;

    drop((queue, own, remote, writable, stolen, client, owned));
    for node in nodes {
        drop(node.client);
        drop(node.link);
        node.service.stop()?;
    }
    say!("\n5. The links and services are ended.");
    Ok(())
}

fn arrived(queue: &mut Queue, remote: &Frame, own: &Frame, file: &[u8]) -> Result<(), CommandError> {
    own.write(0, &vec![0; file.len()])?;
    if let Some(failure) = run(queue, remote, own)? {
        return Err(failure.to_string().into());
    }
    let mut bytes = vec![0; file.len()];
    own.read(0, &mut bytes)?;
    if bytes == file { Ok(()) } else { Err("other bytes arrived".into()) }
}

fn refused(what: &str, failure: Option<Failure>) -> Result<(), CommandError> {
    match failure {
        Some(failure @ Failure::PeerRefused { .. }) => {
            say!("   {what}: {failure}");
            Ok(())
        }
        Some(other) => Err(format!("{what}: {other}").into()),
        None => Err(format!("{what} was not refused").into()),
    }
}

fn begin(queue: &mut Queue, remote: &Frame, own: &Frame) -> Result<Vec<memferry::Ticket>, CommandError> {
    let submit = |_| queue.submit(copy(remote, own)).map_err(|error| error.to_string().into());
    (0..COPIES).map(submit).collect()
}

/// Counts how the copies ended. Those that failed must have failed as `is_meant`.
fn ended(
    queue: &mut Queue,
    tickets: Vec<memferry::Ticket>,
    is_meant: impl Fn(&Failure) -> bool,
) -> Result<(), CommandError> {
    let mut failures = std::collections::BTreeMap::<String, u32>::new();
    let mut done = 0;
    for ticket in tickets {
        match queue.wait(ticket) {
            Ok(_) => done += 1,
            Err(error) if !is_meant(&error.failure) => return Err(error.failure.to_string().into()),
            Err(error) => *failures.entry(error.failure.to_string()).or_default() += 1,
        }
    }
    say!("   {done} were done; each of the others ended once:");
    for (failure, count) in failures {
        say!("     {count}: {failure}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_reports_the_last_refusal() {
        let refusal = || Err::<(), _>("the door is shut".into());
        let error = retried(Duration::ZERO, "opening", || Ok(()), refusal).unwrap_err().to_string();
        assert_eq!(error, "opening took longer than 0 s; the last attempt: the door is shut");
    }

    #[test]
    fn a_wait_ends_when_its_check_fails() {
        let mut checks = [Ok(()), Err("the link ended".into())].into_iter();
        let mut attempts = 0;
        let attempt = || {
            attempts += 1;
            Err::<(), _>("not yet".into())
        };
        let waited = retried(Duration::MAX, "opening", || checks.next().unwrap(), attempt);
        assert_eq!(waited.unwrap_err().to_string(), "the link ended");
        assert_eq!(attempts, 1);
    }
}
