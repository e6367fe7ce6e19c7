//! The attacks, each for ever until it is killed. One that loses its connection begins again.
//!
//! ```text
//! memory       holds the locks and the pages of memory that the service must touch
//! queues       makes queue memory and its signals slow
//! requests     floods the rings
//! commands     floods the socket with commands
//! connections  floods the socket with connections, descriptors and processes
//! descriptors  has the service send, map and close what it should not
//! ```

mod commands;
mod connections;
mod descriptors;
mod memory;
mod queues;
mod requests;

use crate::Failed;
use crate::stage::Stage;

/// What an attack needs beside a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    Nothing,
    /// `/dev/fuse`, and the right to mount.
    Fuse,
}

pub struct Attack {
    pub name: &'static str,
    pub about: &'static str,
    pub needs: Needs,
    pub(crate) run: fn(&Stage) -> Result<(), Failed>,
}

const fn plain(name: &'static str, run: fn(&Stage) -> Result<(), Failed>, about: &'static str) -> Attack {
    Attack { name, about, needs: Needs::Nothing, run }
}

const fn fuse(name: &'static str, run: fn(&Stage) -> Result<(), Failed>, about: &'static str) -> Attack {
    Attack { name, about, needs: Needs::Fuse, run }
}

pub const ATTACKS: &[Attack] = &[
    plain("seal-writers", memory::seal_writers, "registers a memfd while 64 threads write(2) to it"),
    fuse("seal-fuse-writer", memory::seal_fuse_writer, "the same with one write(2) that never ends"),
    plain("queue-maps", queues::maps, "queue memory mapped 360,000 times, and queues opened and closed"),
    plain("queue-holes", queues::holes, "punches holes into queue memory while the worker reads it"),
    fuse(
        "queue-fuse-writer",
        queues::fuse_writer,
        "a write(2) to queue memory that never ends, then a close",
    ),
    plain("completion-watches", queues::completion_watches, "500,000 epoll watches on a completion signal"),
    plain("doorbell-watches", queues::doorbell_watches, "500,000 epoll watches on a doorbell that rings"),
    plain("long-lists", requests::long_lists, "64 queues of requests with 1,024 + 1,024 segments"),
    plain("request-flood", requests::flood, "no-ops and copies of 64 B on 64 queues"),
    plain("malformed-flood", requests::malformed, "requests that are all refused, on 64 queues"),
    plain("endless-work", requests::endless, "endless loops, and 2-D walks of 2^38 pixels"),
    plain("cancel-storm", requests::cancel_storm, "cancels and cancel words that change all the time"),
    plain("grant-trees", commands::grant_trees, "deep and wide trees of capabilities, revoked at the root"),
    plain("register-storm", commands::register_storm, "registers and revokes frames"),
    plain("status-flood", commands::status_flood, "status, engines and policy commands on 8 connections"),
    plain("connect-flood", connections::connect_flood, "connects and leaves, with and without a handshake"),
    plain("session-quota", connections::session_quota, "handshakes beyond the quota of sessions"),
    plain("lingering-sockets", connections::lingering_sockets, "sends TCP sockets whose close lingers"),
    fuse("fuse-files", connections::fuse_files, "sends files whose close waits for a FLUSH"),
    fuse("fuse-pipes", connections::fuse_pipes, "sends pipes whose lock a writer holds for ever"),
    plain("no-reads", commands::no_reads, "sends commands and reads no answer"),
    plain("pipelined-commands", commands::pipelined, "sends commands in bursts before it reads"),
    plain("sleepers", queues::sleepers, "2,000 threads sleep on the wake word of a busy queue"),
    plain(
        "descriptors-in-flight",
        connections::descriptors_in_flight,
        "messages of 4 sockets, never accepted",
    ),
    plain(
        "fork-storm",
        connections::fork_storm,
        "children hold the connection and the queue, killed at random",
    ),
    plain("page-moves", memory::page_moves, "pages out and collapses a frame that is mapped 64 times"),
    plain("doorbell-flood", queues::doorbell_flood, "rings the doorbell of an empty queue"),
    plain("queue-storm", queues::storm, "opens and closes queues"),
    plain("progress-watchers", requests::progress_watchers, "long copies that 32 threads watch for progress"),
    plain("greed", requests::greed, "fills of 1 GiB and xors on all queues"),
    plain("failing-chains", requests::failing_chains, "chains of 1,000 linked requests whose first fails"),
    plain("policy-flood", commands::policy_flood, "policy changes by a stranger"),
    plain("ring-garbage", requests::garbage, "random words in the whole ring"),
    plain(
        "unread-answers",
        descriptors::unread_answers,
        "leaves the service's descriptors unread in sockets of ended sessions",
    ),
    plain("unread-bytes", descriptors::unread_bytes, "leaves full sockets of ended sessions unread"),
    plain("last-closes", descriptors::last_closes, "connections that are closed while they are accepted"),
    plain(
        "slow-maps",
        descriptors::slow_maps,
        "registers files that are mapped 960,000 times, and punches them meanwhile",
    ),
    plain(
        "turned-away",
        descriptors::turned_away,
        "blocks the own attendant, and has lingering sockets turned away",
    ),
    fuse(
        "nested-epolls",
        queues::nested_epolls,
        "holds the lock for nesting epoll instances, and opens queues",
    ),
];

/// The load of some attacks on the kernel, without the service: what a victim waits beside it is not the service's doing.
pub const CONTROLS: &[Attack] = &[
    plain("own-watches", queues::own_watches, "500,000 epoll watches on an eventfd of its own"),
    plain("own-pages", memory::own_pages, "page-moves of memory that is registered nowhere"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let all = || ATTACKS.iter().chain(CONTROLS);
        let names: std::collections::BTreeSet<_> = all().map(|attack| attack.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(ATTACKS.len() >= 25);
    }
}
