//! `memferry share` and `memferry copy` between nodes, and what `memferry-link status` says of it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use memferry_conformance::noise;
use memferry_link::{PeerStatus, Snapshot, Transport};
use rustix::process::{Pid, Signal, kill_process};

use super::harness::{Role, SOON, next_order, report, role_socket, wait_until};
use super::{Node, Way, two_nodes, user};

const PROGRAM: &str = env!("CARGO_BIN_EXE_memferry");

/// A `memferry share` that runs.
struct Share {
    child: Child,
    token: String,
}

impl Share {
    fn start(owner: &Node, file: &Path, to: &str, more: &[&str]) -> Self {
        // Tests that run in the background may ignore that signal, and so would their children.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", PROGRAM]);
        command.arg("share").arg(file).args(["--to", to, "--node", "alpha"]).args(more);
        command.arg("--socket").arg(&owner.service.socket).stderr(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut token = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut token).unwrap();
        Self { child, token: token.trim().to_owned() }
    }

    /// As Ctrl-C does; its end is the promise that nothing is read any more.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run_copy(node: &Node, from: impl AsRef<Path>, to: impl AsRef<Path>, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("copy").arg(from.as_ref()).arg(to.as_ref()).arg("--socket").arg(&node.service.socket);
    command.args(more).output().unwrap()
}

/// Copies. Whenever the link is late with a frame on a busy machine, the service offers it none of this user for a time.
fn succeeds(node: &Node, from: impl AsRef<Path>, to: impl AsRef<Path>) -> String {
    let since = Instant::now();
    loop {
        let output = run_copy(node, &from, &to, &["--retry", "60"]);
        let said = String::from_utf8_lossy(&output.stderr);
        let is_late = said.contains("the link of this node cannot reach memory of this process");
        if is_late && since.elapsed() < 4 * SOON {
            continue;
        }
        assert!(output.status.success(), "{output:?}: {}", node.told());
        return String::from_utf8(output.stdout).unwrap();
    }
}

fn fails(node: &Node, from: impl AsRef<Path>, to: impl AsRef<Path>, expected: &str) {
    let output = run_copy(node, from, to, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(expected) && !said.contains("panicked"), "'{expected}' is missing in: {said}");
}

fn file(node: &Node, name: &str, bytes: &[u8]) -> PathBuf {
    let path = node.service.socket.with_file_name(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn to_own_user() -> String {
    format!("beta:{}", user())
}

/// Two nodes whose links are attached.
fn attached() -> (Node, Node) {
    let (alpha, beta) = two_nodes(Way::Encrypted);
    alpha.engine();
    beta.engine();
    (alpha, beta)
}

#[test]
fn a_shared_file_is_copied_on_another_node() {
    let (alpha, beta) = attached();
    let target = beta.service.socket.with_file_name("target");
    for length in [1, 4097, 1 << 20, (5 << 20) + 3] {
        let bytes = noise(length, length as u64);
        let share = Share::start(&alpha, &file(&alpha, "shared", &bytes), &to_own_user(), &[]);
        let said = succeeds(&beta, &share.token, &target);
        assert!(
            said.contains(&format!("copied {length} bytes")) && said.contains("from node alpha"),
            "{said}"
        );
        assert!(std::fs::read(&target).unwrap() == bytes, "{length}");
        let token = share.token.clone();
        share.end();
        std::fs::write(&target, "as it was").unwrap();
        // Revoked, or forgotten already.
        fails(&beta, &token, &target, "node alpha: the node that has this memory refused");
        assert_eq!(std::fs::read(&target).unwrap(), b"as it was");
    }
    // It is over by itself.
    let mut share =
        Share::start(&alpha, &file(&alpha, "shared", b"brief"), &to_own_user(), &["--lasts", "1s"]);
    assert!(share.child.wait().unwrap().success());
}

#[test]
fn a_file_is_copied_to_another_node() {
    let (alpha, beta) = attached();
    let length = (3 << 20) + 17;
    let before = noise(length, 1);
    let inbox = file(&alpha, "inbox", &before);
    let share = Share::start(&alpha, &inbox, &to_own_user(), &["--write"]);
    // Holes are zeros there; what is behind the end of the file stays.
    let sent = file(&beta, "sent", b"");
    let mut bytes = vec![0; 3 << 20];
    bytes[..5].copy_from_slice(b"begin");
    bytes[(3 << 20) - 3..].copy_from_slice(b"end");
    let sparse = std::fs::File::options().write(true).open(&sent).unwrap();
    use std::os::unix::fs::FileExt;
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"end", (3 << 20) - 3).unwrap();
    let said = succeeds(&beta, &sent, &share.token);
    assert!(said.contains("copied 3145728 bytes") && said.contains("to node alpha"), "{said}");
    let back = beta.service.socket.with_file_name("back");
    succeeds(&beta, &share.token, &back);
    let expected = [&bytes[..], &before[3 << 20..]].concat();
    assert!(std::fs::read(&back).unwrap() == expected);
    let long = file(&beta, "long", &vec![1; length + 1]);
    fails(&beta, &long, &share.token, "nothing was written");
    assert!(std::fs::read(&inbox).unwrap() == before, "the file changes at the end");
    share.end();
    assert!(std::fs::read(&inbox).unwrap() == expected);
}

#[test]
fn what_was_written_is_saved_however_the_share_ends() {
    let (alpha, beta) = attached();
    // The folder of the first node goes with its service.
    let inbox = file(&beta, "inbox", &noise(5000, 1));
    let mut share = Share::start(&alpha, &inbox, &to_own_user(), &["--write"]);
    succeeds(&beta, file(&beta, "sent", &noise(5000, 2)), &share.token);
    // As a closed terminal does.
    kill_process(Pid::from_child(&share.child), Signal::HUP).unwrap();
    assert!(share.child.wait().unwrap().success());
    assert!(std::fs::read(&inbox).unwrap() == noise(5000, 2));
    let mut share = Share::start(&alpha, &inbox, &to_own_user(), &["--write"]);
    succeeds(&beta, file(&beta, "sent", &noise(5000, 3)), &share.token);
    // Without its service the command ends, and fails.
    let Node { link, service, .. } = alpha;
    drop(link);
    drop(service);
    assert_eq!(share.child.wait().unwrap().code(), Some(1));
    assert!(std::fs::read(&inbox).unwrap() == noise(5000, 3));
}

#[test]
fn a_copy_that_is_not_granted_changes_nothing() {
    let (mut alpha, beta) = attached();
    let shared = file(&alpha, "shared", b"of alpha");
    let share = Share::start(&alpha, &shared, &to_own_user(), &[]);
    let target = file(&beta, "target", b"as it was");
    let longer = file(&beta, "longer", b"OF BETA!");
    succeeds(&beta, &share.token, beta.service.socket.with_file_name("good"));
    // The token claims what its owner did not grant, or is of somebody else, or none.
    let writable = format!("{}w", share.token);
    fails(&beta, &longer, &writable, "lacks the right");
    fails(&beta, &longer, &share.token, "cannot be written");
    fails(&beta, share.token.replace("/8/", "/9/"), &target, "leaves the granted range");
    fails(&beta, share.token.replace("alpha:", "nobody:"), &target, "does not name this node");
    fails(&beta, &share.token[..share.token.len() - 2], &target, "NODE:SERVICE/NUMBER/BYTES/RIGHTS");
    let digit = if &share.token[6..7] == "0" { "1" } else { "0" };
    fails(&beta, format!("alpha:{digit}{}", &share.token[7..]), &target, "was started again");
    fails(&beta, &share.token, &share.token, "copy to a file first");
    fails(&beta, &share.token, beta.service.socket.with_file_name("no/directory"), "cannot write");
    let others = Share::start(&alpha, &shared, &format!("beta:{}", user() + 1), &[]);
    fails(&beta, &others.token, &target, "granted nothing under this token");
    fails(&alpha, &share.token, &target, "does not name this node");
    // The peer is lost.
    drop(alpha.link.take());
    wait_until("the link to be missed", || beta.told().contains("the link to alpha is lost"));
    fails(&beta, &share.token, &target, "memferry-link status");
    assert_eq!(std::fs::read(&target).unwrap(), b"as it was");
    assert_eq!(std::fs::read(&shared).unwrap(), b"of alpha");
}

#[test]
fn share_refuses_what_it_cannot_share() {
    let (alpha, _beta) = attached();
    let good = file(&alpha, "good", b"bytes");
    let empty = file(&alpha, "empty", b"");
    let directory = alpha.service.socket.parent().unwrap();
    let none = directory.join("none");
    let to = to_own_user();
    for (path, to, more, code, expected) in [
        (&*empty, &*to, &["--node=alpha"][..], 1, "is empty"),
        (directory, &to, &["--node=alpha"], 1, "is a directory"),
        (&none, &to, &["--node=alpha"], 1, "No such file"),
        (&good, "beta", &["--node=alpha"], 2, "NODE:USER"),
        (&good, "Beta:1", &["--node=alpha"], 2, "1 to 16"),
        (&good, "beta:x", &["--node=alpha"], 2, "no number of a user"),
        (&good, &to, &["--node=Alpha"], 2, "1 to 16"),
        (&good, &to, &["--node=alpha", "--lasts=1"], 2, "is no time"),
        (&good, &to, &["--node=alpha", "--lasts=0s"], 2, "1s to 3650d"),
        (&good, &to, &["--node=alpha", "--socket=/nonexistent"], 1, "memferry serve"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.arg("share").arg(path).args(["--to", to]).args(more);
        if !more.iter().any(|argument| argument.starts_with("--socket")) {
            command.arg("--socket").arg(&alpha.service.socket);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected), "'{expected}' is missing in: {said}");
        assert!(output.stdout.is_empty());
    }
}

fn status(node: &Node) -> Snapshot {
    memferry_link::ask(&socket(node)).unwrap()
}

fn socket(node: &Node) -> PathBuf {
    node.service.socket.with_file_name("status.sock")
}

pub(crate) fn peer(node: &Node) -> PeerStatus {
    let [peer] = status(node).peers.try_into().unwrap();
    peer
}

#[test]
fn status_shows_peers_requests_and_transfers() {
    for way in Way::all() {
        let (alpha, mut beta) = two_nodes(way);
        alpha.engine();
        beta.engine();
        let length = (2 << 20) + 1;
        let share = Share::start(&alpha, &file(&alpha, "shared", &noise(length, 1)), &to_own_user(), &[]);
        succeeds(&beta, &share.token, beta.service.socket.with_file_name("target"));
        let there = peer(&alpha);
        let here = peer(&beta);
        assert_eq!((&*there.name, &*here.name), ("beta", "alpha"));
        assert!(there.connected && here.connected && there.why.is_none());
        let transport = if way == Way::Encrypted { Transport::Encrypted } else { Transport::Ucx };
        assert_eq!((here.sends, here.receives), (Some(transport), Some(transport)));
        assert_eq!((here.asked.bytes_read, here.asked.bytes_written), (length as u64, 0));
        assert_eq!((there.served.bytes_read, there.served.failed), (length as u64, 0));
        assert_eq!((there.asked.ended, here.served.ended, here.under_way), (0, 0, 0));
        // Each whole transfer has one number at both nodes.
        let seen = |node: &Node| status(node).transfers;
        let asked: Vec<_> = seen(&beta).into_iter().filter(|one| one.bytes > 0).collect();
        assert_eq!(asked.iter().map(|one| one.bytes).sum::<u64>(), length as u64);
        let served = seen(&alpha);
        for one in &asked {
            let other: Vec<_> = served.iter().filter(|other| other.id == one.id).collect();
            assert_eq!(other.len(), 1, "{one:?}");
            assert_eq!((other[0].bytes, other[0].accesses), (one.bytes, one.accesses), "{one:?}");
            assert!(other[0].served && !one.served && one.failure.is_none());
        }
        let others = Share::start(&alpha, &file(&alpha, "o", b"1"), &format!("beta:{}", user() + 1), &[]);
        fails(&beta, &others.token, beta.service.socket.with_file_name("no"), "granted nothing");
        let there = peer(&alpha);
        let here = peer(&beta);
        assert!(there.served.failed == 1 && here.asked.failed >= 1, "{there:?} {here:?}");
        let error = there.last_error.unwrap();
        assert!(error.contains("granted nothing"), "{error}");
        drop(beta.link.take());
        wait_until("the loss to be seen", || !peer(&alpha).connected);
        let gone = peer(&alpha);
        assert!(gone.lost > 0 && gone.why.is_some() && gone.sends.is_none(), "{gone:?}");
    }
}

/// The role of somebody who asks for the status: says what the answer is, as another user if the test says so.
#[test]
fn status_asker() {
    let Some(socket) = role_socket() else { return };
    let user = next_order();
    if user != "stay" {
        memferry_attackers::drop_to(&user).unwrap();
    }
    report(match memferry_link::ask(&socket) {
        Ok(snapshot) => snapshot.node,
        Err(error) => error.to_string(),
    });
}

#[test]
fn status_is_for_the_links_user_and_root() {
    let (alpha, _beta) = attached();
    let path = socket(&alpha);
    wait_until("the socket", || memferry_link::ask(&path).is_ok());
    let ask_as = |user: &str| {
        let mut role = Role::start("files::status_asker", &path);
        role.send_line(user);
        role.receive_line()
    };
    assert_eq!(ask_as("stay"), "alpha");
    if rustix::process::geteuid().is_root() {
        let denied = ask_as("60001");
        assert!(denied.contains("Permission denied"), "{denied}");
        // Even where the file lets it connect.
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let refused = ask_as("60001");
        assert!(refused.contains("it said nothing") || refused.contains("reset"), "{refused}");
    } else {
        println!("not asked as another user: only root can");
    }
    // Connections that say anything, read nothing, or go at once.
    let mut held = Vec::new();
    for number in 0..40_usize {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        use std::io::Write;
        let _ = stream.write_all(&noise(1 + 997 * number, number as u64));
        if number % 2 == 0 {
            held.push(stream);
        }
    }
    assert_eq!(status(&alpha).node, "alpha");
    let mut answer = Vec::new();
    let _ = held.pop().unwrap().read_to_end(&mut answer);
    assert_eq!(ask_as("stay"), "alpha");
}
