//! Networks of their own for the links of a test.
//!
//! ```text
//! n0 ─ veth ─┐
//! n1 ─ veth ─┼─ bridge in n3
//! n2 ─ veth ─┘
//! ```
//!
//! Node 1 is 10.77.0.11, which UCX uses, and 10.78.0.11.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Three networks that are joined by a fourth, which ends with this value.
pub(crate) struct Networks(Vec<String>);

impl Networks {
    /// None if this user may not make them, which it prints.
    pub(crate) fn new() -> Option<Self> {
        let made = Self::make();
        if made.is_none() {
            println!("skipped: this user cannot make networks");
        }
        made
    }

    fn make() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        // Tests run at the same time. A device's name has 15 bytes at most.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("mf{}x{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let networks = Self((0..4).map(|number| format!("{prefix}n{number}")).collect());
        let script = "set -e; for n in 0 1 2 3; do ip netns add $P'n'$n; ip -n $P'n'$n link set lo up; done
            ip -n $P'n3' link add name switch type bridge; ip -n $P'n3' link set switch up
            for n in 0 1 2; do
                ip -n $P'n3' link add name port$n type veth peer name $P'v'$n netns $P'n'$n
                ip -n $P'n3' link set port$n master switch up
                ip -n $P'n'$n addr add 10.77.0.1$n/24 dev $P'v'$n; ip -n $P'n'$n addr add 10.78.0.1$n/24 dev $P'v'$n
                ip -n $P'n'$n link set $P'v'$n up
            done";
        let made = Command::new("sh").args(["-c", script]).env("P", &prefix).output().ok()?;
        if !made.status.success() {
            eprintln!("no networks: {}", String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Some(networks)
    }

    pub(crate) fn command(&self, number: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.0[number]].map(str::to_owned).into()
    }

    /// What a node sends to another one's first address goes astray; it hears that one as before.
    pub(crate) fn mute(&self, from: usize, to: usize) {
        // An address of a network card that nobody has.
        let place = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"];
        self.neighbour("replace", from, to, &place);
    }

    /// Undoes `mute`.
    pub(crate) fn unmute(&self, from: usize, to: usize) {
        self.neighbour("del", from, to, &[]);
    }

    fn neighbour(&self, action: &str, from: usize, to: usize, place: &[&str]) {
        let mut command = Command::new("ip");
        command.args(["-n", &self.0[from], "neigh", action, &format!("10.77.0.1{to}")]);
        // The prefix of the names of networks is that of their devices.
        let device = self.0[from].replacen('n', "v", 1);
        assert!(command.args(place).args(["dev", &device]).status().unwrap().success());
    }

    /// Loss and delay for all that the nodes send, in the words of tc-netem(8).
    ///
    /// # Errors
    /// Why not: kernels may have no netem.
    pub(crate) fn disturb(&self, how: &str) -> Result<(), String> {
        for name in &self.0[..3] {
            let device = name.replacen('n', "v", 1);
            let mut command = Command::new("tc");
            command.args(["-n", name, "qdisc", "add", "dev", &device, "root", "netem"]);
            let done = command.args(how.split(' ')).output().map_err(|error| error.to_string())?;
            if !done.status.success() {
                return Err(String::from_utf8_lossy(&done.stderr).trim().to_owned());
            }
        }
        Ok(())
    }

    /// Cuts a node off, or joins it again.
    pub(crate) fn set(&self, number: usize, state: &str) {
        let port = format!("port{number}");
        let done = Command::new("ip").args(["-n", &self.0[3], "link", "set", &port, state]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}
