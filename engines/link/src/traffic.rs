//! What went over the connection to each peer, for the administrator.
//!
//! ```text
//! requests here, answers there ─► Traffic of a peer ─┐
//!                                 Recent: transfers ─┴─► Snapshot ─► status
//! ```
//!
//! A transfer has one number at both nodes: the node whose user asks chooses it, and each access brings it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memferry::NodeName;
use serde::{Deserialize, Serialize};

/// Transfers that are remembered.
const RECENT: usize = 256;

/// Requests of one side, and the bytes of theirs that travelled.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Requests {
    /// Those that ended: whole requests of this node's users, or accesses of the peer's.
    pub ended: u64,
    /// Those of them that failed or were refused.
    pub failed: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Requests {
    /// Counts one that ended.
    pub(crate) fn count(&mut self, failed: bool, read: u64, written: u64) {
        self.ended += 1;
        self.failed += u64::from(failed);
        self.bytes_read += read;
        self.bytes_written += written;
    }
}

/// What is known of a peer, whether it is connected or not.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// Of this node's users, at the peer.
    pub(crate) asked: Requests,
    /// Of the peer's users, here.
    pub(crate) served: Requests,
    /// Those of them for which this process used the memory in place.
    pub(crate) direct: u64,
    /// Connections that broke since this process began.
    pub(crate) lost: u64,
    /// Since when it is connected, or not.
    pub(crate) since: Instant,
    /// Why it is not connected, if it is not.
    pub(crate) why: String,
    pub(crate) last_error: Option<String>,
}

impl Traffic {
    /// Of a peer that was not connected yet.
    pub(crate) fn new(why: &str) -> Self {
        Self {
            asked: Requests::default(),
            served: Requests::default(),
            direct: 0,
            lost: 0,
            since: Instant::now(),
            why: why.to_owned(),
            last_error: None,
        }
    }
}

/// How bytes go to or from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// In clear text, by the network that UCX chose.
    Ucx,
    Encrypted,
}

/// A peer, as `memferry-link status` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    pub name: String,
    pub connected: bool,
    /// Seconds since it is connected, or not.
    pub seconds: u64,
    /// Why it is not connected.
    pub why: Option<String>,
    /// How bytes go to the peer.
    pub sends: Option<Transport>,
    /// How the peer may send bytes.
    pub receives: Option<Transport>,
    /// Frames here that name its memory.
    pub frames: u64,
    /// Grants of this node that it has taken up.
    pub grants: u64,
    /// Bulk channels of clients here that are open to it.
    pub channels: u64,
    /// Seconds for which bytes go encrypted because UCX delivered nothing.
    #[serde(default)]
    pub ucx_rests: Option<u64>,
    /// Requests of this node's users under way at the peer.
    pub under_way: u64,
    /// Requests of this node's users, at the peer.
    pub asked: Requests,
    /// Accesses of the peer's users, here.
    pub served: Requests,
    /// Those of them for which this link used the memory in place.
    pub direct: u64,
    /// Connections that broke since this process began.
    pub lost: u64,
    pub last_error: Option<String>,
}

/// A transfer, as one of its nodes saw it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TransferStatus {
    /// The same at both nodes: 16 hexadecimal digits.
    pub id: String,
    pub peer: String,
    /// Whether the peer's user asked for it.
    pub served: bool,
    /// Messages that were answered.
    pub accesses: u64,
    /// Bytes that travelled, which those of a CRC do not.
    pub bytes: u64,
    /// From its begin to its end; where it was served, from its first answer to its last.
    pub microseconds: u64,
    /// Why it failed or was refused.
    pub failure: Option<String>,
}

/// What a link says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    pub node: String,
    pub process: u32,
    pub seconds: u64,
    /// Version of UCX, if it is used.
    pub ucx: Option<String>,
    pub peers: Vec<PeerStatus>,
    /// The last ones that ended, or went on, oldest first.
    pub transfers: Vec<TransferStatus>,
}

/// A transfer that ended or goes on.
#[derive(Clone, Debug)]
struct Seen {
    id: u64,
    peer: NodeName,
    served: bool,
    accesses: u64,
    bytes: u64,
    begin: Instant,
    time: Duration,
    failure: Option<String>,
}

/// The last transfers, of both sides, oldest first.
#[derive(Default)]
pub(crate) struct Recent(VecDeque<Seen>);

impl Recent {
    /// A request of this node's users ended.
    pub(crate) fn asked(
        &mut self,
        (peer, id): (NodeName, u64),
        (accesses, bytes): (u64, u64),
        begin: Instant,
        failure: Option<String>,
    ) {
        let time = begin.elapsed();
        self.push(Seen { id, peer, served: false, accesses, bytes, begin, time, failure });
    }

    /// An access of a peer's request was answered.
    pub(crate) fn served(&mut self, (peer, id): (NodeName, u64), bytes: u64, failure: Option<String>) {
        let is_it = |seen: &&mut Seen| seen.served && seen.id == id && seen.peer == peer;
        if let Some(seen) = self.0.iter_mut().rev().find(is_it) {
            seen.accesses += 1;
            seen.bytes += bytes;
            seen.time = seen.begin.elapsed();
            seen.failure = seen.failure.take().or(failure);
            return;
        }
        let begin = Instant::now();
        self.push(Seen { id, peer, served: true, accesses: 1, bytes, begin, time: Duration::ZERO, failure });
    }

    fn push(&mut self, seen: Seen) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(seen);
    }

    /// All of them, as the administrator sees them.
    pub(crate) fn status(&self) -> Vec<TransferStatus> {
        let status = |seen: &Seen| TransferStatus {
            id: format!("{:016x}", seen.id),
            peer: seen.peer.to_string(),
            served: seen.served,
            accesses: seen.accesses,
            bytes: seen.bytes,
            microseconds: u64::try_from(seen.time.as_micros()).unwrap_or(u64::MAX),
            failure: seen.failure.clone(),
        };
        self.0.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_one_transfer_are_one_and_old_ones_go() {
        let [alpha, beta] = ["alpha", "beta"].map(|name| name.parse::<NodeName>().unwrap());
        let mut recent = Recent::default();
        recent.served((alpha, 7), 10, None);
        recent.served((beta, 7), 1, None);
        recent.served((alpha, 7), 5, Some("revoked".to_owned()));
        recent.asked((alpha, 7), (2, 15), Instant::now(), None);
        let all = recent.status();
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].accesses, all[0].bytes, all[0].id.as_str()), (2, 15, "0000000000000007"));
        assert_eq!((all[0].failure.as_deref(), all[2].served), (Some("revoked"), false));
        (0..2 * RECENT as u64).for_each(|id| recent.served((beta, id << 32), 1, None));
        assert_eq!(recent.status().len(), RECENT);
    }
}
