//! `memferry-link status`: what a running link says of itself, over a socket.
//!
//! ```text
//! connect ─► the link looks who that is: its own user or root ─► Snapshot as JSON, and the end
//! ```
//!
//! The link reads nothing from the socket, so there is nothing to get wrong.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use thiserror::Error;

use crate::traffic::{PeerStatus, Requests, Snapshot, TransferStatus, Transport};

/// Where the link listens, unless it is asked otherwise.
pub(crate) const SOCKET: &str = "/run/memferry-link/status.sock";
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MAX_ANSWER: u64 = 64 << 20;

/// What to show of a link.
#[derive(Clone, PartialEq, Eq, Debug, Parser)]
pub struct StatusOptions {
    /// Socket on which the link says it.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub status: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Print the numbers of peers for Prometheus, as its node exporter collects from text files.
    #[arg(long, conflicts_with = "json")]
    pub metrics: bool,
    /// Show the last transfers, too. Both nodes show one under the same number.
    #[arg(long, conflicts_with = "metrics")]
    pub transfers: bool,
}

/// Why the status of a link cannot be shown.
#[derive(Debug, Error)]
pub enum StatusError {
    #[error("no link answers at {}: {source}; does memferry-link run, and are you its user or root?", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the link at {} gave no answer: {why}; only its user and root may ask", path.display())]
    Answer { path: PathBuf, why: String },
}

/// The text that the options ask for, of what a link said.
///
/// # Errors
/// [`StatusError::Answer`].
pub fn show(snapshot: &Snapshot, options: &StatusOptions) -> Result<String, StatusError> {
    if options.json {
        let text = serde_json::to_string_pretty(snapshot);
        let path = options.status.clone();
        return text
            .map(|text| text + "\n")
            .map_err(|error| StatusError::Answer { path, why: error.to_string() });
    }
    if options.metrics {
        return Ok(metrics(snapshot));
    }
    let transfers = if options.transfers { &snapshot.transfers[..] } else { &[] };
    Ok(table(snapshot, transfers))
}

/// Asks the link at `path`.
///
/// # Errors
/// [`StatusError`].
pub fn ask(path: &Path) -> Result<Snapshot, StatusError> {
    let connect = |source| StatusError::Connect { path: path.to_owned(), source };
    let answer = |why: String| StatusError::Answer { path: path.to_owned(), why };
    let stream = UnixStream::connect(path).map_err(connect)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(connect)?;
    let mut bytes = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut bytes).map_err(|error| answer(error.to_string()))?;
    if bytes.is_empty() {
        return Err(answer("it said nothing".to_owned()));
    }
    serde_json::from_slice(&bytes).map_err(|_| answer("what it said is no status of a link".to_owned()))
}

/// Listens at `path`. A socket that nobody listens on any more is replaced; another file is not.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let ended =
                UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
            // Connecting to a file that is no socket is refused as well.
            if !ended || !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// Answers all who may ask with what `snapshot` gives.
pub(crate) fn answer(listener: &UnixListener, snapshot: impl Fn() -> Option<Snapshot>) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            // For want of descriptors, as a rule: a pause lets others end.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if !may_ask(&stream) || stream.set_write_timeout(Some(PATIENCE)).is_err() {
            continue;
        }
        if let Some(text) = snapshot().and_then(|snapshot| serde_json::to_vec(&snapshot).ok()) {
            // Who does not read it gets a part.
            let _ = stream.write_all(&text);
        }
    }
}

/// Whether the other end is of this process's user, or root.
fn may_ask(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// The text with `?` for each control character, so that it cannot control a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

const fn name_of(transport: Option<Transport>) -> &'static str {
    match transport {
        Some(Transport::Ucx) => "over UCX, in clear text",
        Some(Transport::Encrypted) => "encrypted",
        None => "not",
    }
}

fn table(snapshot: &Snapshot, transfers: &[TransferStatus]) -> String {
    let mut text = String::new();
    let Snapshot { node, process, seconds, ucx, peers, .. } = snapshot;
    let ucx = ucx.as_ref().map_or("no UCX".to_owned(), |version| format!("UCX {version}"));
    // Writing to a string cannot fail, here and below.
    let _ =
        writeln!(text, "node {}, process {process}, for {seconds} s, {}", printable(node), printable(&ucx));
    peers.iter().for_each(|peer| add_peer(&mut text, peer));
    for one in transfers {
        let TransferStatus { id, peer, served, accesses, bytes, microseconds, failure } = one;
        let what = if *served { "served to" } else { "asked of" };
        let [id, peer] = [id, peer].map(|text| printable(text));
        let failure = failure.as_ref().map_or(String::new(), |failure| format!(": {}", printable(failure)));
        let _ = writeln!(
            text,
            "transfer {id} {what} {peer}: {bytes} bytes in {accesses} accesses, {microseconds} us{failure}"
        );
    }
    text
}

fn add_peer(text: &mut String, peer: &PeerStatus) {
    let PeerStatus { name, connected, seconds, why, frames, grants, under_way, lost, .. } = peer;
    let state = if *connected {
        let [sends, receives] = [peer.sends, peer.receives].map(name_of);
        format!("connected for {seconds} s; bytes to it go {sends}, those from it {receives}")
    } else {
        let why = printable(why.as_deref().unwrap_or("not known why"));
        format!("not connected for {seconds} s: {why}")
    };
    let _ = writeln!(text, "{}: {state}", printable(name));
    let line = |text: &mut String, what: &str, requests: &Requests, more: String| {
        let Requests { ended, failed, bytes_read, bytes_written } = requests;
        let _ = writeln!(
            text,
            "    {what}: {ended} ended, {failed} failed; {bytes_read} bytes read, {bytes_written} written; {more}"
        );
    };
    let frames = format!("{under_way} under way, {frames} frames, {} channels", peer.channels);
    line(text, "requests of users here", &peer.asked, frames);
    let grants = format!("{} of them direct, {grants} grants in use", peer.direct);
    line(text, "accesses of users there", &peer.served, grants);
    if let Some(seconds) = peer.ucx_rests {
        let _ = writeln!(
            text,
            "    UCX delivered nothing, so bytes go encrypted; it is tried again in {seconds} s"
        );
    }
    if *lost > 0 {
        let _ = writeln!(text, "    lost {lost} times");
    }
    if let Some(error) = &peer.last_error {
        let _ = writeln!(text, "    last error: {}", printable(error));
    }
}

/// The exposition format 0.0.4 of Prometheus. Names of nodes need no escapes, but what said this may be no link.
fn metrics(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut family =
        |name: &str, kind: &str, help: &str, values: &dyn Fn(&PeerStatus) -> Vec<(&'static str, u64)>| {
            let _ = writeln!(text, "# HELP memferry_link_{name} {help}\n# TYPE memferry_link_{name} {kind}");
            for peer in &snapshot.peers {
                for (labels, value) in values(peer) {
                    let node = printable(&peer.name).replace('\\', "\\\\").replace('"', "\\\"");
                    let _ = writeln!(text, "memferry_link_{name}{{peer=\"{node}\"{labels}}} {value}");
                }
            }
        };
    let asked_and_served = |peer: &PeerStatus, of: fn(&Requests) -> u64| {
        vec![(",side=\"asked\"", of(&peer.asked)), (",side=\"served\"", of(&peer.served))]
    };
    family("connected", "gauge", "Whether the peer is connected.", &|peer| {
        vec![("", u64::from(peer.connected))]
    });
    family("lost_total", "counter", "Connections that broke.", &|peer| vec![("", peer.lost)]);
    family("frames", "gauge", "Frames of users here that name the peer's memory.", &|peer| {
        vec![("", peer.frames)]
    });
    family("grants", "gauge", "Grants of this node that the peer has taken up.", &|peer| {
        vec![("", peer.grants)]
    });
    family("channels", "gauge", "Bulk channels that are open to the peer.", &|peer| {
        vec![("", peer.channels)]
    });
    let ended = "Requests of users here, and accesses of users there, that ended.";
    family("requests_total", "counter", ended, &|peer| asked_and_served(peer, |of| of.ended));
    let direct = "Accesses of users there for which the memory was used in place.";
    family("direct_total", "counter", direct, &|peer| vec![("", peer.direct)]);
    let failed = "Those of them that failed or were refused.";
    family("failed_total", "counter", failed, &|peer| asked_and_served(peer, |of| of.failed));
    family("read_bytes_total", "counter", "Bytes that were read.", &|peer| {
        asked_and_served(peer, |of| of.bytes_read)
    });
    family("written_bytes_total", "counter", "Bytes that were written.", &|peer| {
        asked_and_served(peer, |of| of.bytes_written)
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let requests = Requests { ended: 7, failed: 1, bytes_read: 4096, bytes_written: 5 };
        let beta = PeerStatus {
            name: "beta".to_owned(),
            connected: true,
            seconds: 3,
            why: None,
            sends: Some(Transport::Ucx),
            receives: Some(Transport::Encrypted),
            frames: 2,
            grants: 1,
            channels: 5,
            ucx_rests: Some(77),
            under_way: 0,
            asked: requests,
            served: Requests::default(),
            direct: 3,
            lost: 4,
            last_error: Some("bad\x1b[2J".to_owned()),
        };
        let gamma = PeerStatus {
            name: "gamma".to_owned(),
            connected: false,
            why: Some("no route".to_owned()),
            sends: None,
            receives: None,
            ..beta.clone()
        };
        let transfer = TransferStatus {
            id: "00000000000000ff".to_owned(),
            peer: "beta".to_owned(),
            served: true,
            accesses: 2,
            bytes: 9,
            microseconds: 8,
            failure: None,
        };
        let peers = vec![beta, gamma];
        let ucx = Some("1.13.1".to_owned());
        Snapshot { node: "alpha".to_owned(), process: 9, seconds: 60, ucx, peers, transfers: vec![transfer] }
    }

    #[test]
    fn a_status_says_who_is_connected_and_why_not() {
        let all = snapshot();
        let text = table(&all, &all.transfers);
        for part in [
            "node alpha, process 9, for 60 s, UCX 1.13.1\n",
            "beta: connected for 3 s; bytes to it go over UCX, in clear text, those from it encrypted\n",
            "requests of users here: 7 ended, 1 failed; 4096 bytes read, 5 written; 0 under way, 2 frames, 5 channels\n",
            "gamma: not connected for 3 s: no route\n",
            "0 written; 3 of them direct, 1 grants in use\n",
            "    UCX delivered nothing, so bytes go encrypted; it is tried again in 77 s\n",
            "last error: bad?[2J\n",
            "transfer 00000000000000ff served to beta: 9 bytes in 2 accesses, 8 us\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!table(&all, &[]).contains("transfer 0"));
        let metrics = metrics(&all);
        assert!(metrics.contains("memferry_link_connected{peer=\"gamma\"} 0\n"), "{metrics}");
        assert!(metrics.contains("memferry_link_direct_total{peer=\"beta\"} 3\n"), "{metrics}");
        let read = "memferry_link_read_bytes_total{peer=\"beta\",side=\"asked\"} 4096\n";
        assert!(metrics.contains(read), "{metrics}");
    }

    #[test]
    fn a_name_stays_within_its_label() {
        let mut all = snapshot();
        all.peers.truncate(1);
        all.peers[0].name = "a\"} 1\nother{b=\"c\\".to_owned();
        let metrics = metrics(&all);
        let connected = "memferry_link_connected{peer=\"a\\\"} 1?other{b=\\\"c\\\\\"} 1\n";
        assert!(metrics.contains(connected), "{metrics}");
    }

    #[test]
    fn a_socket_of_a_link_that_ended_is_replaced_and_others_are_not() {
        let path = std::env::temp_dir().join(format!("memferry-link-status-{}", std::process::id()));
        drop(listen(&path).unwrap());
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        std::thread::scope(|scope| {
            // One of them is that of `listen`.
            scope.spawn(|| answer_some(&listener, 5));
            // Who writes, reads nothing or goes at once harms nobody.
            let mut writes = UnixStream::connect(&path).unwrap();
            let _ = writes.write_all(&[0xff; 1 << 12]);
            drop(UnixStream::connect(&path).unwrap());
            let _silent = UnixStream::connect(&path).unwrap();
            assert_eq!(ask(&path).unwrap(), snapshot());
        });
        drop(listener);
        assert!(matches!(ask(&path), Err(StatusError::Connect { .. })));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert!(listen(&path).is_err(), "a file is no socket");
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for bytes in [&b""[..], b"{}", b"{\"node\": 1}"] {
                    let _ = other.accept().unwrap().0.write_all(bytes);
                }
            });
            for _ in 0..3 {
                assert!(matches!(ask(&path), Err(StatusError::Answer { .. })));
            }
        });
        std::fs::remove_file(&path).unwrap();
    }

    /// Answers so many connections.
    fn answer_some(listener: &UnixListener, count: usize) {
        for stream in listener.incoming().take(count).flatten() {
            assert!(may_ask(&stream));
            let _ = (&stream).write_all(&serde_json::to_vec(&snapshot()).unwrap());
        }
    }
}
