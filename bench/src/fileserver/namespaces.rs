//! Network namespaces for remote receivers, each connected by a pair of virtual Ethernet interfaces.
//!
//! ```text
//! this process ─ `unshare -n sleep` ─► a process that holds a namespace ◄─ `nsenter` ─ receivers
//!       └ ip link: memferry interface 10.213.N.1 ═══ eth0 10.213.N.2 inside
//! ```
//!
//! A namespace and its interfaces disappear with the process that holds it, which ends with this one. Needs root and the commands of
//! util-linux and iproute2; otherwise reports the reason.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::children::Program;

/// How long creating a namespace may take.
const TIMEOUT: Duration = Duration::from_secs(5);

struct Namespace {
    keeper: Program,
    address: String,
}

pub(super) struct Namespaces(Vec<Namespace>);

impl Namespaces {
    /// Creates `count` namespaces.
    ///
    /// # Errors
    /// The reason, as text for people.
    pub(super) fn new(count: u32) -> Result<Self, BenchError> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".into());
        }
        (0..count).map(Namespace::new).collect::<Result<_, _>>().map(Self)
    }

    /// The process that holds each namespace, and this machine's address as seen from inside.
    pub(super) fn hosts(&self) -> Vec<(u32, String)> {
        self.0.iter().map(|namespace| (namespace.keeper.process(), namespace.address.clone())).collect()
    }
}

impl Namespace {
    fn new(index: u32) -> Result<Self, BenchError> {
        let keeper = Program::start(&["unshare", "--net", "sleep", "infinity"], &[])?;
        let process = keeper.process();
        let link = |of: &str| std::fs::read_link(PathBuf::from(format!("/proc/{of}/ns/net")));
        let until = Instant::now() + TIMEOUT;
        while link(&process.to_string()).ok() == link("self").ok() {
            if Instant::now() > until {
                return Err("cannot create a network namespace here".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let own = std::process::id();
        // Derived from the process, so that concurrent runs rarely collide.
        let net = format!("10.213.{}", (own % 120) * 2 + index);
        let interface = format!("mf{own}n{index}");
        let target = process.to_string();
        let near = format!("{net}.1/24");
        let far = format!("{net}.2/24");
        let inside = ["nsenter", "-t", &target, "-n", "ip"];
        let outside = ["ip"];
        let steps: [(&[&str], Vec<&str>); 5] = [
            (
                &outside,
                vec!["link", "add", &interface, "type", "veth", "peer", "name", "eth0", "netns", &target],
            ),
            (&outside, vec!["addr", "add", &near, "dev", &interface]),
            (&outside, vec!["link", "set", &interface, "up"]),
            (&inside, vec!["addr", "add", &far, "dev", "eth0"]),
            (&inside, vec!["link", "set", "eth0", "up"]),
        ];
        for (program, arguments) in steps {
            let words: Vec<&str> = program.iter().copied().chain(arguments).collect();
            let output = Command::new(words[0])
                .args(&words[1..])
                .output()
                .map_err(|error| format!("cannot start {}: {error}", words[0]))?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(format!("`{}` failed: {why}", words.join(" ")).into());
            }
        }
        Ok(Self { keeper, address: format!("{net}.1") })
    }
}
