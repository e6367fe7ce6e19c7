//! Links of two and three nodes on this machine: grants that reach users of other nodes, over UCX and over encrypted connections.
//!
//! ```text
//! service alpha ◄─ Role: link ─ Noise, UCX ─ Role: link ─► service beta         the nodes share nothing else
//!     ▲ owner: grants                              requester: accepts ▲
//! ```
//!
//! Every byte that is moved is compared with what the owner or the requester wrote.

#[path = "link/channels.rs"]
mod channels;
#[path = "link/direct.rs"]
mod direct;
#[path = "link/files.rs"]
mod files;
mod harness;
#[path = "link/hostile.rs"]
mod hostile;
#[path = "link/languages.rs"]
mod languages;
#[path = "link/lost.rs"]
mod lost;
#[path = "link/networks.rs"]
mod networks;
#[path = "link/restarts.rs"]
mod restarts;
#[path = "link/storm.rs"]
mod storm;

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use harness::{Role, Service, in_child, role_socket, wait_until};
use hostile::Hostile;
use memferry::{
    CallError, Client, Copy2d, Count2d, Failure, Frame, FrameError, Grant, GrantToken, Grantee, NodeName,
    PeerReason, PixelSize, Plane, Queue, RefusalKind, RemoteToken, Rights, RunError, ServiceId, copy,
    copy_2d, crc32c, fill, scatter_gather,
};
use memferry_conformance::noise;
use memferry_link::message::{Message, WINDOW};
use memferry_link::{KeyPair, LIBRARY, Options};
use networks::Networks;
use rustix::process::{Pid, Signal, kill_process};

/// The configuration of the role's link.
const CONFIG: &str = "MEMFERRY_TEST_LINK";
/// The version of UCX that is to be found, if a certain one is.
const UCX_VERSION: &str = "MEMFERRY_TEST_UCX_VERSION";
const MIB: u64 = 1 << 20;
/// A peer that is silent for so long is lost: more than a busy machine takes.
const TIMEOUT_MS: u64 = 3000;
/// For the service, which cuts off a link that is slower.
const STALL_MS: u64 = 10_000;
const BOTH: Rights = Rights::READ.union(Rights::WRITE);

/// The role of a node's link.
#[test]
fn link_engine() {
    let Some(socket) = role_socket() else { return };
    let config = PathBuf::from(std::env::var(CONFIG).unwrap());
    let library = PathBuf::from(std::env::var("MEMFERRY_TEST_UCX").unwrap_or_else(|_| LIBRARY.to_owned()));
    let status = config.with_file_name("status.sock");
    let channels = Some(socket.with_file_name("channels.sock"));
    let options = Options { socket, config, library, status, channels };
    in_child(|| memferry_link::run(&options).is_ok());
}

/// How bytes go between the nodes of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Encrypted,
    /// UCX by TCP through the loopback interface.
    Tcp,
    /// As `Tcp`, with small buffers in the kernel.
    Narrow,
    /// UCX, over TCP, through the interfaces of a network of its own.
    Network,
    /// UCX, over memory that the processes share.
    SharedMemory,
}

impl Way {
    /// The settings of UCX.
    fn environment(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Encrypted => vec![],
            Self::Tcp => vec![("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "lo")],
            Self::Narrow => vec![
                ("UCX_TLS", "tcp"),
                ("UCX_NET_DEVICES", "lo"),
                ("UCX_TCP_SNDBUF", "64k"),
                ("UCX_TCP_RCVBUF", "64k"),
            ],
            Self::Network => vec![("UCX_TLS", "tcp")],
            Self::SharedMemory => vec![("UCX_TLS", "posix"), ("UCX_NET_DEVICES", "lo")],
        }
    }

    /// Those that this machine has.
    fn all() -> Vec<Self> {
        static HAS_UCX: OnceLock<bool> = OnceLock::new();
        let has_ucx = *HAS_UCX.get_or_init(|| {
            let places = ["/usr/lib", "/usr/lib64", "/lib"].map(PathBuf::from);
            let directories = places.iter().flat_map(|place| {
                std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path())
            });
            directories.chain(places.iter().cloned()).any(|place| place.join(LIBRARY).exists())
        });
        if !has_ucx {
            eprintln!("skipped over UCX: this machine has no {LIBRARY} (package libucx0)");
            return vec![Self::Encrypted];
        }
        vec![Self::Encrypted, Self::Tcp, Self::SharedMemory]
    }
}

/// A node: a service and its link.
struct Node {
    // In the order in which they end.
    link: Option<Role>,
    service: Service,
    name: NodeName,
    way: Way,
    /// A command before that of the link, for instance to enter a network.
    before: Vec<String>,
    lines: PathBuf,
}

impl Node {
    fn client(&self) -> Client {
        self.service.client()
    }

    fn start_link(&mut self) {
        let program = std::env::current_exe().unwrap();
        let mut command = match self.before.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        let lines = File::options().create(true).append(true).open(&self.lines).unwrap();
        command
            .env(CONFIG, self.service.socket.with_file_name("link.toml"))
            .envs(self.way.environment())
            .stderr(lines);
        self.link = Some(Role::start_by(&mut command, "link_engine", &self.service.socket));
    }

    /// The process that does the link's work.
    fn engine(&self) -> Pid {
        let mut process = None;
        wait_until("the link to be attached", || {
            let status = self.client().status().unwrap();
            process = status.engines.iter().find(|engine| engine.is_connected).and_then(|one| one.process);
            process.is_some()
        });
        Pid::from_raw(process.unwrap().cast_signed()).unwrap()
    }

    /// What the link wrote for the administrator.
    fn told(&self) -> String {
        std::fs::read_to_string(&self.lines).unwrap_or_default()
    }
}

/// The link as an engine of the service.
fn engine(stall_ms: u64) -> String {
    format!("link user={} frames=all stall-ms={stall_ms}", user())
}

/// Arguments of a service that has it.
fn arguments(engine: &str) -> [&str; 4] {
    ["--workers=1", "--mode=666", "--engine", engine]
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// An address of the loopback interface that no other test has.
fn own_address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let process = std::process::id();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{}.{number}", 1 + (process >> 8) % 250, process % 256)
}

/// Nodes that know each other, each with an address and a command to be run by.
fn nodes(way: Way, places: &[(&str, &str, Vec<String>)]) -> Vec<Node> {
    nodes_with(way, places, TIMEOUT_MS, STALL_MS)
}

fn nodes_with(way: Way, places: &[(&str, &str, Vec<String>)], timeout_ms: u64, stall_ms: u64) -> Vec<Node> {
    let keys: Vec<_> = places.iter().map(|_| KeyPair::generate().unwrap()).collect();
    let ports: Vec<_> = (0..places.len()).map(|index| 17_471 + index).collect();
    let hex = |keys: &KeyPair| keys.public.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let start = |index: usize| {
        let (name, address, before) = &places[index];
        let engine = engine(stall_ms);
        let service = Service::start(&arguments(&engine));
        let beside = |file| service.socket.with_file_name(file);
        keys[index].save(&beside("key")).unwrap();
        let mut text = format!(
            "name = \"{name}\"\nkey = \"key\"\nlisten = \"{address}:{}\"\ntimeout-ms = {timeout_ms}\n",
            ports[index]
        );
        for (other, (peer, address, _)) in places.iter().enumerate().filter(|(other, _)| *other != index) {
            let encryption = way == Way::Encrypted;
            text += &format!(
                "[peers.{peer}]\nkey = \"{}\"\naddress = \"{address}:{}\"\nrequire-encryption = {encryption}\n",
                hex(&keys[other]),
                ports[other]
            );
        }
        std::fs::write(beside("link.toml"), text).unwrap();
        let lines = beside("lines");
        let name = name.parse().unwrap();
        let mut node = Node { link: None, service, name, way, before: before.clone(), lines };
        node.start_link();
        node
    };
    (0..places.len()).map(start).collect()
}

fn two_nodes(way: Way) -> (Node, Node) {
    two_nodes_with(way, TIMEOUT_MS, STALL_MS)
}

/// Two nodes with other time limits.
fn two_nodes_with(way: Way, timeout_ms: u64, stall_ms: u64) -> (Node, Node) {
    let address = own_address();
    let places = [("alpha", &*address, vec![]), ("beta", &*address, vec![])];
    let mut nodes = nodes_with(way, &places, timeout_ms, stall_ms);
    let beta = nodes.pop().unwrap();
    (nodes.pop().unwrap(), beta)
}

fn grant(owner: &Node, frame: &Frame, client: &Client, rights: Rights, to: &Node) -> (Grant, RemoteToken) {
    let remote = Grantee::Remote { node: to.name, user: user() };
    let grant = client.grant(frame, rights, remote).unwrap();
    let token = grant.remote_token(owner.name).unwrap();
    (grant, token)
}

fn accept(client: &Client, token: RemoteToken) -> Frame {
    let mut frame = None;
    wait_until("the own link", || {
        frame = client.accept_remote(token).ok();
        frame.is_some()
    });
    frame.unwrap()
}

/// A frame of this node that the link has, too: it may be late for one on a busy machine.
fn host(client: &Client, length: u64) -> Frame {
    // It has a frame of its own, which must not be taken for the client's.
    wait_until("the link to be ready", || {
        let status = client.status().unwrap();
        let process = status.engines[0].process;
        status.sessions.iter().any(|session| Some(session.process) == process && session.frames > 0)
    });
    let mut frame = None;
    let frames = || client.status().unwrap().engines[0].frames;
    wait_until("the link to have a frame", || {
        let before = frames();
        frame = match client.frame(length).alloc() {
            // On a busy machine an earlier frame may have taken long to map.
            Err(FrameError::Call(CallError::Refused(refusal))) if refusal.kind == RefusalKind::Frame => {
                return false;
            }
            allocated => Some(allocated.unwrap()),
        };
        // One that was late is counted until the link has unmapped it, which it does before it maps the next one.
        let _next = client.frame(4096).alloc().unwrap();
        frames() >= before + 2
    });
    frame.unwrap()
}

fn failure(outcome: Result<impl Sized, RunError<impl Sized>>) -> Option<Failure> {
    match outcome {
        Ok(_) => None,
        Err(RunError::Transfer(error)) => Some(error.failure),
        Err(_) => panic!("not submitted"),
    }
}

/// Waits until the nodes are connected and the frame can be read.
fn connected(queue: &mut Queue, frame: &Frame, to: &Frame, nodes: [&Node; 2]) {
    let since = Instant::now();
    loop {
        match failure(queue.run(copy(frame.slice(..1), to.slice(..1)))) {
            None => return,
            Some(Failure::PeerLost) if since.elapsed() < 4 * harness::SOON => {
                std::thread::yield_now();
            }
            Some(other) => panic!("{other}: {}\n{}", nodes[0].told(), nodes[1].told()),
        }
    }
}

/// A frame of this node that the link has, as a copy of a byte of `remote` to it shows. Whenever the link is late with one on a busy
/// machine, the service offers it no frame of this user for ten seconds and more.
fn proven_host(
    (client, queue): (&Client, &mut Queue),
    remote: &Frame,
    length: u64,
    nodes: [&Node; 2],
) -> Frame {
    let since = Instant::now();
    loop {
        let own = host(client, length);
        match failure(queue.run(copy(remote.slice(..1), own.slice(..1)))) {
            None => return own,
            Some(Failure::PeerLost | Failure::Unsupported) if since.elapsed() < 4 * harness::SOON => {}
            Some(other) => panic!("{other}: {}\n{}", nodes[0].told(), nodes[1].told()),
        }
    }
}

fn contents(frame: &Frame) -> Vec<u8> {
    let mut bytes = vec![0; frame.length() as usize];
    frame.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_go_both_ways_between_two_nodes() {
    for way in Way::all() {
        let (alpha, beta) = two_nodes(way);
        let owner = alpha.client();
        let theirs = owner.frame(8 * MIB).alloc().unwrap();
        theirs.write(0, &noise(8 << 20, 1)).unwrap();
        let (_grant, token) = grant(&alpha, &theirs, &owner, BOTH, &beta);
        let client = beta.client();
        let text: RemoteToken = token.to_string().parse().unwrap();
        let remote = accept(&client, text);
        let own = host(&client, 8 * MIB);
        let mut queue = client.queue(16).unwrap();
        connected(&mut queue, &remote, &own, [&alpha, &beta]);
        let expected_way = if way == Way::Encrypted { "bytes go encrypted" } else { "over UCX" };
        assert!(beta.told().contains(expected_way), "{way:?}: {}", beta.told());
        if let Ok(version) = std::env::var(UCX_VERSION) {
            assert!(beta.told().contains(&format!("uses UCX {version}")), "{}", beta.told());
        }
        for (length, at, to) in
            [(1, 7, 0), (4095, 4097, 3), (256 << 10, 0, 4096), ((256 << 10) + 1, 5, 1), (5 * MIB + 7, 9, MIB)]
        {
            let done = queue.run(copy(remote.slice(at..at + length), own.slice(to..to + length)));
            assert_eq!(failure(done), None, "{way:?}, {length} bytes: {}{}", alpha.told(), beta.told());
            let [from, to] = [at, to].map(|at| at as usize);
            let length = length as usize;
            assert!(contents(&own)[to..to + length] == contents(&theirs)[from..from + length], "{way:?}");
        }
        // The other way, and nothing beside it.
        let before = contents(&theirs);
        own.write(0, &noise(8 << 20, 2)).unwrap();
        let length = 3 * MIB + 11;
        let at = 13;
        let to = MIB + 17;
        queue.run(copy(own.slice(at..at + length), remote.slice(to..to + length))).unwrap();
        let mut expected = before;
        let [from, to] = [at, to].map(|at| at as usize);
        let length = length as usize;
        expected[to..to + length].copy_from_slice(&contents(&own)[from..from + length]);
        assert!(contents(&theirs) == expected, "{way:?}");
        lists_and_crcs(&mut queue, &remote, &theirs, &own);
        // What a link does not do.
        assert_eq!(failure(queue.run(fill(&remote, memferry::Pattern::Byte(1)))), Some(Failure::Unsupported));
        let within = copy(remote.slice(..8), remote.slice(8..16));
        assert_eq!(failure(queue.run(within)), Some(Failure::Unsupported));
    }
}

/// Lists of many pieces in both directions, and CRCs.
fn lists_and_crcs(queue: &mut Queue, remote: &Frame, theirs: &Frame, own: &Frame) {
    let lengths: Vec<u64> = (0..300).map(|number| number * 37 % 911 + 1).collect();
    let total: u64 = lengths.iter().sum();
    let places = |step: u64| {
        let mut at = 3;
        lengths.iter().map(move |length| {
            let place = at..at + length;
            at += length + step;
            place
        })
    };
    let scattered: Vec<_> = places(1000).map(|place| remote.piece(place)).collect();
    queue.run(scatter_gather(scattered, [own.piece(..total)])).unwrap();
    let whole = contents(theirs);
    let part = |place: std::ops::Range<u64>| whole[place.start as usize..place.end as usize].to_vec();
    let gathered: Vec<u8> = places(1000).flat_map(part).collect();
    assert!(contents(own)[..total as usize] == gathered);
    own.write(0, &noise(total as usize, 3)).unwrap();
    let scattered: Vec<_> = places(700).map(|place| remote.piece(place)).collect();
    queue.run(scatter_gather([own.piece(..total)], scattered)).unwrap();
    let mut expected = whole;
    let mut from = 0;
    for place in places(700) {
        let length = (place.end - place.start) as usize;
        expected[place.start as usize..place.end as usize]
            .copy_from_slice(&contents(own)[from..from + length]);
        from += length;
    }
    assert!(contents(theirs) == expected);
    overlapping_lists(queue, remote, theirs, own);
    pictures(queue, remote, theirs, own);
    let expected = contents(theirs);
    let crc = queue.run(crc32c(remote.slice(5..)).seed(77)).unwrap().output;
    own.write(0, &expected).unwrap();
    let local = queue.run(crc32c(own.slice(5..)).seed(77)).unwrap().output;
    assert_eq!(crc, local);
}

/// Segments that are written one over the other: the later one stays, whatever message it was in.
fn overlapping_lists(queue: &mut Queue, remote: &Frame, theirs: &Frame, own: &Frame) {
    let count = 400_u64;
    let length = 3000;
    let step = 1000;
    let apart = |number: u64| number * length..(number + 1) * length;
    let over = |number: u64| number * step..number * step + length;
    let numbers = || 0..count;
    for write in [false, true] {
        let (from, to) = if write { (own, theirs) } else { (theirs, own) };
        from.write(0, &noise(4 << 20, 8 + u64::from(write))).unwrap();
        let mut expected = contents(to);
        let bytes = contents(from);
        for number in numbers() {
            let [source, destination] = [apart(number).start, over(number).start].map(|at| at as usize);
            let end = destination + length as usize;
            expected[destination..end].copy_from_slice(&bytes[source..source + length as usize]);
        }
        let (source, destination) = if write { (own, remote) } else { (remote, own) };
        let sources: Vec<_> = numbers().map(|number| source.piece(apart(number))).collect();
        let destinations: Vec<_> = numbers().map(|number| destination.piece(over(number))).collect();
        queue.run(scatter_gather(sources, destinations)).unwrap();
        assert!(contents(to) == expected, "write: {write}");
    }
}

/// A picture of rows, one turned upside down, and one whose pixels are apart, in both directions.
fn pictures(queue: &mut Queue, remote: &Frame, theirs: &Frame, own: &Frame) {
    let plane = |start, x_step, y_step| Plane { start, x_step, y_step };
    let wide = Count2d { pixel: PixelSize::Bits32, x_count: 500, y_count: 300 };
    let small = Count2d { pixel: PixelSize::Bits16, x_count: 90, y_count: 70 };
    for (count, source, destination) in [
        (wide, plane(7, 4, 1004), plane(3, 4, 4)),
        (wide, plane(7, 4, 1004), plane(299 * 2000, 4, -3996)),
        (small, plane(5, 6, 100), plane(4, 2, 10)),
        (small, plane(5, 2, 2), plane(70 * 90 * 2, -2, -2)),
    ] {
        let shape = Copy2d { count, source, destination, transparent: None };
        for write in [false, true] {
            let (from, to) = if write { (own, theirs) } else { (theirs, own) };
            from.write(0, &noise(2 << 20, 11 + u64::from(write))).unwrap();
            let mut expected = contents(to);
            let bytes = contents(from);
            let pixel = count.pixel.bytes() as usize;
            let mut at = [source.start as i64, destination.start as i64];
            for _ in 0..count.y_count {
                for column in 0..count.x_count {
                    let [read, written] = at.map(|at| at as usize);
                    expected[written..written + pixel].copy_from_slice(&bytes[read..read + pixel]);
                    if column + 1 < count.x_count {
                        at = [at[0] + source.x_step, at[1] + destination.x_step];
                    }
                }
                at = [at[0] + source.y_step, at[1] + destination.y_step];
            }
            let (from, to_frame) = if write { (own, remote) } else { (remote, own) };
            queue.run(copy_2d(from, to_frame, shape)).unwrap();
            assert!(contents(to) == expected, "{shape:?}, write: {write}");
        }
    }
}

fn refused(reason: PeerReason) -> Option<Failure> {
    Some(Failure::PeerRefused { reason })
}

#[test]
fn the_owners_node_checks_each_access() {
    let (alpha, beta) = two_nodes(Way::Encrypted);
    let owner = alpha.client();
    let theirs = owner.frame(MIB).alloc().unwrap();
    theirs.write(0, &noise(1 << 20, 1)).unwrap();
    let before = contents(&theirs);
    let (first, token) = grant(&alpha, &theirs, &owner, Rights::READ, &beta);
    let client = beta.client();
    let own = host(&client, MIB);
    let mut queue = client.queue(16).unwrap();
    let remote = accept(&client, token);
    connected(&mut queue, &remote, &own, [&alpha, &beta]);
    let mut read = |token: RemoteToken, range: std::ops::Range<u64>| {
        let remote = accept(&client, token);
        let length = range.end - range.start;
        failure(queue.run(copy(remote.slice(range), own.slice(..length))))
    };
    // Tokens that were guessed, or made for others.
    let to = |node: &str, user| Grantee::Remote { node: node.parse().unwrap(), user };
    let other = |to| {
        let grant = owner.grant(&theirs, Rights::READ, to).unwrap();
        RemoteToken { token: grant.token(), ..token }
    };
    let local = other(Grantee::User(user()));
    let to_session = other(Grantee::Session(owner.session()));
    let run = token.service.0;
    for service in [0, run - 1, run + 1, run ^ 1 << 127].map(ServiceId) {
        let other = RemoteToken { service, ..token };
        assert_eq!(read(other, 0..8), refused(PeerReason::EarlierRun), "{other}");
    }
    let guessed = GrantToken::from_raw(token.token.to_raw() + 1);
    for foreign in [
        RemoteToken { token: guessed, ..token },
        RemoteToken { token: GrantToken::from_raw(0), ..token },
        RemoteToken { token: GrantToken::from_raw(u64::MAX), ..token },
        RemoteToken { token: GrantToken::from_handle(theirs.handle()), ..token },
        other(to("beta", 60_001)),
        other(to("gamma", user())),
        local,
        to_session,
    ] {
        assert_eq!(read(foreign, 0..8), refused(PeerReason::NoSuchGrant), "{foreign}");
    }
    // More than was granted, claimed by the one who accepts.
    let longer = RemoteToken { length: 4 * MIB, rights: BOTH, ..token };
    assert_eq!(read(longer, MIB - 8..MIB), None);
    assert_eq!(read(longer, MIB - 8..MIB + 1), refused(PeerReason::OutOfBounds));
    assert_eq!(read(longer, 3 * MIB..3 * MIB + 8), refused(PeerReason::OutOfBounds));
    let writable = accept(&client, longer);
    let mut queue = client.queue(4).unwrap();
    let write = copy(own.slice(..8), writable.slice(..8));
    assert_eq!(failure(queue.run(write)), refused(PeerReason::MissingRight));
    // The own service refuses what the token does not say.
    let kept = copy(own.slice(..8), remote.slice(..8));
    assert!(matches!(failure(queue.run(kept)), Some(Failure::MissingRight { .. })));
    // A grant for a time.
    let remote_user = to("beta", user());
    let short = owner.grant_for(&theirs, Rights::READ, remote_user, Duration::from_millis(300)).unwrap();
    let short = accept(&client, RemoteToken { token: short.token(), ..token });
    let ended = loop {
        if let Some(failure) = failure(queue.run(copy(short.slice(..8), own.slice(..8)))) {
            break failure;
        }
    };
    let is_over = [PeerReason::Expired, PeerReason::NoSuchGrant].map(refused).contains(&Some(ended));
    assert!(is_over, "{ended}");
    first.revoke().unwrap();
    let late = failure(queue.run(copy(remote.slice(..8), own.slice(..8))));
    assert_eq!(late, refused(PeerReason::Revoked));
    let later = failure(queue.run(copy(remote.slice(..8), own.slice(..8))));
    assert_eq!(later, refused(PeerReason::NoSuchGrant), "it was given back");
    assert!(contents(&theirs) == before);
    tokens_that_are_not_accepted(&client, &owner, &theirs, token);
}

/// The right to grant, which nobody would check here; names that are none, and clients that are no link, though of its user.
fn tokens_that_are_not_accepted(client: &Client, owner: &Client, theirs: &Frame, token: RemoteToken) {
    let grantable = client.accept_remote(RemoteToken { rights: Rights::all(), ..token }).unwrap_err();
    assert!(grantable.to_string().contains("cannot be granted on"), "{grantable}");
    let for_others = owner.accept_for("beta".parse().unwrap(), user(), token.token).unwrap_err();
    assert!(for_others.to_string().contains("only the process that is the engine"), "{for_others}");
    let none = RemoteToken { node: NodeName::from_bytes([b'A'; 16]), ..token };
    assert!(client.accept_remote(none).is_err());
    assert!(owner.grant(theirs, Rights::READ, Grantee::Remote { node: none.node, user: 0 }).is_err());
    let unknown = RemoteToken { node: "nobody".parse().unwrap(), ..token };
    let unknown = client.accept_remote(unknown).unwrap_err().to_string();
    assert!(unknown.contains("does not name this node"), "{unknown}");
}

#[test]
fn nothing_is_written_after_the_answer_to_a_revocation() {
    for way in Way::all() {
        let (alpha, beta) = two_nodes(way);
        let owner = alpha.client();
        let theirs = owner.frame(4 * MIB).alloc().unwrap();
        let client = beta.client();
        let mut queue = client.queue(16).unwrap();
        let (_first, token) = grant(&alpha, &theirs, &owner, BOTH, &beta);
        let own = proven_host((&client, &mut queue), &accept(&client, token), 4 * MIB, [&alpha, &beta]);
        // Reads and writes: those that ended whole, and those that were interrupted after some bytes.
        let mut ends = [[0; 2]; 2];
        for round in 0..40_u64 {
            let (grant, token) = grant(&alpha, &theirs, &owner, BOTH, &beta);
            let remote = accept(&client, token);
            connected(&mut queue, &remote, &own, [&alpha, &beta]);
            let writes = round % 2 == 0;
            let (from, to) = if writes { (&own, &theirs) } else { (&theirs, &own) };
            from.write(0, &noise(4 << 20, round)).unwrap();
            to.write(0, &vec![0; 4 << 20]).unwrap();
            let transfer = if writes { copy(&own, &remote) } else { copy(&remote, &own) };
            let ticket = queue.submit(transfer).unwrap();
            // At another moment each time: when so many bytes are there.
            let wanted = round * 97 * 1024 % (2 * MIB);
            wait_until("bytes to be moved", || {
                let mut some = [0; 16];
                to.read(wanted, &mut some).unwrap();
                some != [0; 16]
            });
            grant.revoke().unwrap();
            let after = contents(&theirs);
            let ended = queue.wait(ticket);
            match ended {
                Ok(_) => ends[usize::from(writes)][0] += 1,
                Err(error) => {
                    let reasons = [PeerReason::Revoked, PeerReason::NoSuchGrant].map(refused);
                    assert!(reasons.contains(&Some(error.failure)), "{way:?}: {error}");
                    ends[usize::from(writes)][1] += u32::from(error.bytes_done > 0);
                }
            }
            assert!(contents(&theirs) == after, "{way:?}: written after the answer");
        }
        assert!(ends.iter().all(|ends| ends[1] > 0), "{way:?}: no revocation was in mid-flight: {ends:?}");
    }
}

#[test]
fn a_hostile_peer_gets_what_was_granted_to_its_node() {
    let (alpha, mut beta) = two_nodes(Way::Encrypted);
    let (listener, config) = in_place_of_link(&mut beta);
    let owner = alpha.client();
    let theirs = owner.frame(MIB).alloc().unwrap();
    theirs.write(0, &noise(1 << 20, 4)).unwrap();
    let before = contents(&theirs);
    let process = alpha.engine();
    let (granted, token) = grant(&alpha, &theirs, &owner, Rights::READ, &beta);
    let mut peer = Hostile::meet(&listener, &config);
    // Its users are its own word: one that nothing was granted to gets nothing.
    for user in [user() + 1, u32::MAX] {
        assert_eq!(peer.attach(token, user), Err(PeerReason::NoSuchGrant));
    }
    for number in 1..300 {
        let guessed = GrantToken::from_raw(token.token.to_raw() ^ number);
        let guessed = RemoteToken { token: guessed, ..token };
        assert_eq!(peer.attach(guessed, user()), Err(PeerReason::NoSuchGrant));
    }
    let earlier = RemoteToken { service: ServiceId(token.service.0 ^ 1), ..token };
    assert_eq!(peer.attach(earlier, user()), Err(PeerReason::EarlierRun));
    let number = peer.attach(token, user()).unwrap();
    assert_eq!(peer.access(number, (8, 100), None).unwrap(), before[8..108]);
    // The same number once more is another access.
    assert_eq!(peer.access(number, (8, 100), None).unwrap(), before[8..108]);
    for piece in [(MIB - 1, 2), (MIB, 1), (u64::MAX, 1), (u64::MAX - 3, 4)] {
        assert_eq!(peer.access(number, piece, None), Err(PeerReason::OutOfBounds), "{piece:?}");
    }
    assert_eq!(peer.access(number, (MIB, 0), None), Ok(vec![]));
    assert_eq!(peer.access(number, (0, 4), Some(b"evil")), Err(PeerReason::MissingRight));
    for unknown in [0, number + 1, u32::MAX] {
        assert_eq!(peer.access(unknown, (0, 1), None), Err(PeerReason::NoSuchGrant));
    }
    granted.revoke().unwrap();
    assert_eq!(peer.access(number, (0, 1), None), Err(PeerReason::Revoked));
    peer.send(&Message::Detach { attachment: number }, &[]);
    assert_eq!(peer.access(number, (0, 1), None), Err(PeerReason::NoSuchGrant));
    // What breaks the protocol ends the connection, and the node connects again.
    let access = |pieces| Message::Access { operation: 1, transfer: 1, attachment: 1, write: false, pieces };
    let done = Message::Done { operation: 1, outcome: Ok(0) };
    let attached = Message::Attached { id: 1, outcome: Err(PeerReason::Busy) };
    for bad in [vec![done], vec![attached], vec![access(vec![])], vec![access(vec![(0, u32::MAX)])]] {
        bad.iter().for_each(|message| peer.send(message, &[]));
        while peer.receive().is_some() {}
        peer = Hostile::meet(&listener, &config);
    }
    for bytes in [&[][..], &[255; 40], &[3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]] {
        peer.writer.send(bytes).unwrap();
        assert!(peer.receive().is_none());
        peer = Hostile::meet(&listener, &config);
    }
    floods(peer, &listener, &config, (&alpha, &owner));
    assert_eq!(alpha.engine(), process, "the link did not go down");
    assert!(contents(&theirs) == before);
    assert!(alpha.told().contains("it broke the protocol"), "{}", alpha.told());
}

/// What of more than a peer may have, whatever it is, ends its connection or is refused.
fn floods(
    mut peer: Hostile,
    listener: &TcpListener,
    config: &memferry_link::Config,
    (alpha, owner): (&Node, &Client),
) {
    let long = owner.frame(64 * MIB).alloc().unwrap();
    let (_granted, token) = grant_to(alpha, owner, &long);
    let ends = |peer: &mut Hostile, why: &str| {
        let mut answers = 0;
        while peer.receive().is_some() {
            answers += 1;
        }
        wait_until("the reason", || alpha.told().contains(why));
        answers
    };
    // One more than may be under way at a time, of which none ends before all have come: they are in one record.
    let number = peer.attach(token, user()).unwrap();
    let crc = |operation| Message::Crc {
        operation,
        transfer: 1,
        attachment: number,
        offset: 0,
        length: 16 * MIB,
        seed: 0,
    };
    (0..2 * WINDOW as u32).for_each(|operation| peer.send(&crc(operation), &[]));
    let answers = ends(&mut peer, "it is one more than may be under way");
    assert!(answers < 2 * WINDOW, "{answers}");
    // It does not read: each answer has 256 KiB. It asks so slowly that few are under way, unless the machine was busy elsewhere.
    let read = Message::Access {
        operation: 1,
        transfer: 1,
        attachment: 1,
        write: false,
        pieces: vec![(0, 256 << 10)],
    };
    let unread = "it does not read what is sent to it";
    for _ in 0..10 {
        let mut peer = Hostile::meet(listener, config);
        assert_eq!(peer.attach(token, user()), Ok(1));
        let lost = || alpha.told().matches("the link to beta is lost").count();
        let before = lost();
        wait_until("the peer to be cut off", || {
            peer.send(&read, &[]);
            std::thread::sleep(Duration::from_millis(2));
            lost() > before
        });
        if alpha.told().contains(unread) {
            break;
        }
    }
    assert!(alpha.told().contains(unread), "{}", alpha.told());
    // Nobody takes up more than a share; the same grant again is none more.
    let mut peer = Hostile::meet(listener, config);
    let first = peer.attach(token, user()).unwrap();
    for _ in 0..20 {
        assert_eq!(peer.attach(token, user()), Ok(first));
    }
    (0..20).for_each(|_| peer.send(&Message::Detach { attachment: first }, &[]));
    assert_eq!(peer.access(first, (0, 1), None).map(|read| read.len()), Ok(1), "it has one more");
    peer.send(&Message::Detach { attachment: first }, &[]);
    assert_eq!(peer.access(first, (0, 1), None), Err(PeerReason::NoSuchGrant));
}

/// Ends the link of a node, for a hostile one that listens at its address with its configuration.
fn in_place_of_link(node: &mut Node) -> (TcpListener, memferry_link::Config) {
    drop(node.link.take());
    let config = memferry_link::Config::load(&node.service.socket.with_file_name("link.toml")).unwrap();
    let mut listener = None;
    wait_until("the address", || {
        listener = TcpListener::bind(config.listen.as_ref().unwrap()).ok();
        listener.is_some()
    });
    (listener.unwrap(), config)
}

fn grant_to(alpha: &Node, owner: &Client, frame: &Frame) -> (Grant, RemoteToken) {
    let to = Grantee::Remote { node: "beta".parse().unwrap(), user: user() };
    let granted = owner.grant(frame, Rights::READ, to).unwrap();
    let token = granted.remote_token(alpha.name).unwrap();
    (granted, token)
}

#[test]
fn a_slow_owner_ends_its_own_requests_and_not_the_link() {
    let (alpha, mut beta) = two_nodes_with(Way::Encrypted, 2000, 2600);
    let (listener, config) = in_place_of_link(&mut beta);
    let client = alpha.client();
    let process = alpha.engine();
    let own = host(&client, 32 * MIB);
    let mut queue = client.queue(4).unwrap();
    let remote = accept(&client, any_token(&beta, 32 * MIB));
    let mut peer = Hostile::meet(&listener, &config);
    let mut ticket = None;
    wait_until("the link to be up", || {
        let submitted = queue.submit(copy(&remote, &own)).unwrap();
        let early = queue.wait_for(submitted, Duration::from_millis(50));
        assert!(!matches!(early, Ok(Some(_))), "nobody answered");
        ticket = early.is_ok().then_some(submitted);
        ticket.is_some()
    });
    let ticket = ticket.unwrap();
    // Each access is answered within the time for one, and the whole takes too long.
    let attachment = memferry_link::message::Attachment { number: 1, length: 32 * MIB, rights: BOTH };
    let since = Instant::now();
    let ended = loop {
        match peer.receive() {
            Some((Message::Attach { id, .. }, _)) => {
                peer.send(&Message::Attached { id, outcome: Ok(attachment) }, &[])
            }
            Some((Message::Access { operation, pieces, .. }, _)) => {
                std::thread::sleep(Duration::from_millis(120));
                let bytes = pieces.iter().map(|piece| piece.1 as usize).sum();
                peer.send(&Message::Done { operation, outcome: Ok(0) }, &vec![9; bytes]);
            }
            other => panic!("{other:?}: {}", alpha.told()),
        }
        if let Some(ended) = queue.wait_for(ticket, Duration::ZERO).transpose() {
            break ended;
        }
        assert!(since.elapsed() < 4 * harness::SOON);
    };
    let error = ended.map(drop).unwrap_err();
    assert_eq!(error.failure, Failure::EngineTimedOut, "{error}: {}", alpha.told());
    assert!(error.bytes_done > 0);
    // The connection is good, and so is the frame. What was under way is answered late.
    let again = queue.submit(copy(remote.slice(..8), own.slice(..8))).unwrap();
    loop {
        let Some((Message::Access { operation, pieces, .. }, _)) = peer.receive() else {
            panic!("{}", alpha.told())
        };
        let bytes = pieces.iter().map(|piece| piece.1 as usize).sum();
        peer.send(&Message::Done { operation, outcome: Ok(0) }, &vec![8; bytes]);
        if bytes == 8 {
            break;
        }
    }
    queue.wait(again).unwrap();
    assert_eq!(contents(&own)[..8], [8; 8]);
    assert_eq!(alpha.engine(), process, "the link did not go down");
}

/// A token that the node did not make.
fn any_token(owner: &Node, length: u64) -> RemoteToken {
    let token = GrantToken::from_raw(1 << 32);
    RemoteToken { node: owner.name, service: ServiceId(7), token, length, rights: BOTH }
}

#[test]
fn a_link_that_ends_takes_the_frames_of_other_nodes_with_it() {
    let (alpha, beta) = two_nodes(Way::Encrypted);
    let owner = alpha.client();
    let theirs = owner.frame(MIB).alloc().unwrap();
    theirs.write(0, &noise(1 << 20, 6)).unwrap();
    let (_granted, token) = grant(&alpha, &theirs, &owner, Rights::READ, &beta);
    let client = beta.client();
    let remote = accept(&client, token);
    let own = host(&client, MIB);
    let mut queue = client.queue(16).unwrap();
    connected(&mut queue, &remote, &own, [&alpha, &beta]);
    kill_process(beta.engine(), Signal::KILL).unwrap();
    let mut ended = None;
    wait_until("the frames to be revoked", || {
        ended = failure(queue.run(copy(remote.slice(..8), own.slice(..8))));
        matches!(ended, Some(Failure::Revoked { .. } | Failure::StaleHandle { .. }))
    });
    // It is accepted again.
    let remote = accept(&client, token);
    let own = host(&client, MIB);
    connected(&mut queue, &remote, &own, [&alpha, &beta]);
    queue.run(copy(&remote, &own)).unwrap();
    assert!(contents(&own) == contents(&theirs));
}

#[test]
fn a_hostile_owner_harms_its_own_requests_only() {
    let (alpha, mut beta) = two_nodes(Way::Encrypted);
    let (listener, config) = in_place_of_link(&mut beta);
    let client = alpha.client();
    let process = alpha.engine();
    let own = host(&client, 4096);
    own.write(0, &[7; 4096]).unwrap();
    let mut queue = client.queue(4).unwrap();
    let remote = accept(&client, any_token(&beta, MIB));
    // No answer, one that is too short or too long, one to another access, and one that is none.
    for answer in [None, Some((0, 100)), Some((0, 101 + 100)), Some((1, 101)), Some((u32::MAX, 0))] {
        let mut peer = Hostile::meet(&listener, &config);
        let mut ticket = queue.submit(copy(remote.slice(..101), own.slice(..101))).unwrap();
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(|| peer.receive());
            // Without a connection a request fails, and no message tells of it.
            while !first.is_finished() {
                match queue.wait_for(ticket, Duration::from_millis(5)) {
                    Ok(early) => assert!(early.is_none(), "nobody answered"),
                    Err(_) => ticket = queue.submit(copy(remote.slice(..101), own.slice(..101))).unwrap(),
                }
            }
            first.join().unwrap()
        });
        let Some((Message::Attach { id, user: of, .. }, _)) = first else { panic!("no attachment") };
        assert_eq!(of, user());
        let attachment = memferry_link::message::Attachment { number: 1, length: MIB, rights: BOTH };
        peer.send(&Message::Attached { id, outcome: Ok(attachment) }, &[]);
        let Some((Message::Access { operation, .. }, _)) = peer.receive() else { panic!("no access") };
        if let Some((other, bytes)) = answer {
            let operation = operation.wrapping_add(other);
            peer.send(&Message::Done { operation, outcome: Ok(0) }, &vec![9; bytes]);
        }
        // It stays there and answers nothing more.
        let ended = loop {
            let _ = peer.writer.send(&Message::Ping.encode(0));
            if let Some(ended) = queue.wait_for(ticket, Duration::from_millis(100)).transpose() {
                break ended;
            }
        };
        assert_eq!(ended.map(drop).unwrap_err().failure, Failure::PeerLost, "{answer:?}");
        assert_eq!(contents(&own), [7; 4096]);
    }
    assert_eq!(alpha.engine(), process, "the link did not go down");
}

#[test]
fn three_nodes_in_networks_of_their_own() {
    let Some(networks) = Networks::new() else { return };
    let ways = Way::all().into_iter().filter(|way| *way != Way::SharedMemory);
    for way in ways.map(|way| if way == Way::Tcp { Way::Network } else { way }) {
        let addresses = ["10.77.0.10", "10.77.0.11", "10.77.0.12"];
        let names = ["alpha", "beta", "gamma"];
        let place = |number: usize| (names[number], addresses[number], networks.command(number));
        let all = nodes(way, &[place(0), place(1), place(2)]);
        // Each grants to the next one, which reads and writes there.
        let clients: Vec<_> = all.iter().map(Node::client).collect();
        let mut parts = Vec::new();
        for (number, owner) in all.iter().enumerate() {
            let next = (number + 1) % all.len();
            let theirs = clients[number].frame(2 * MIB).alloc().unwrap();
            theirs.write(0, &noise(2 << 20, number as u64)).unwrap();
            let (grant, token) = grant(owner, &theirs, &clients[number], BOTH, &all[next]);
            let remote = accept(&clients[next], token);
            let own = host(&clients[next], 2 * MIB);
            let mut queue = clients[next].queue(16).unwrap();
            connected(&mut queue, &remote, &own, [owner, &all[next]]);
            queue.run(copy(&remote, &own)).unwrap();
            assert!(contents(&own) == contents(&theirs), "{way:?}: from {number}");
            // The third one holds nothing of it.
            let third = (number + 2) % all.len();
            let stolen = accept(&clients[third], token);
            let place = host(&clients[third], 4096);
            let mut stealing = clients[third].queue(4).unwrap();
            let since = Instant::now();
            let refusal = loop {
                match failure(stealing.run(copy(stolen.slice(..8), place.slice(..8)))) {
                    Some(Failure::PeerLost) if since.elapsed() < 2 * harness::SOON => {
                        std::thread::yield_now()
                    }
                    other => break other,
                }
            };
            assert_eq!(refusal, refused(PeerReason::NoSuchGrant), "{way:?}");
            parts.push((theirs, grant, remote, own, queue));
        }
        // A node that is cut off is lost to both others, and comes back. They keep each other.
        networks.set(0, "down");
        let [from_alpha, from_beta, from_gamma] = [0, 1, 2];
        for lost in [from_alpha, from_gamma] {
            let (_, _, remote, own, queue) = &mut parts[lost];
            let failed = fails(queue, remote, own, || ());
            assert!(!failed.is_empty() && failed.iter().all(|one| *one == Failure::PeerLost), "{failed:?}");
        }
        let (_, _, remote, own, queue) = &mut parts[from_beta];
        queue.run(copy(&*remote, &*own)).unwrap();
        networks.set(0, "up");
        for (number, (theirs, grant, remote, own, mut queue)) in parts.into_iter().enumerate() {
            connected(&mut queue, &remote, &own, [&all[number], &all[(number + 1) % 3]]);
            own.write(0, &noise(2 << 20, 99)).unwrap();
            queue.run(copy(&own, &remote)).unwrap();
            assert!(contents(&own) == contents(&theirs), "{way:?}: to {number}");
            grant.revoke().unwrap();
            let late = failure(queue.run(copy(&remote, &own)));
            assert_eq!(late, refused(PeerReason::Revoked));
        }
    }
}

/// Submits reads until they fail, and returns how the first ones of them failed.
fn fails(queue: &mut Queue, remote: &Frame, own: &Frame, mut harm: impl FnMut()) -> Vec<Failure> {
    let tickets: Vec<_> = (0..12).map(|_| queue.submit(copy(remote, own)).unwrap()).collect();
    harm();
    tickets.into_iter().filter_map(|ticket| queue.wait(ticket).err()).map(|error| error.failure).collect()
}
