//! The connections to peers, found by peer, by connection, or by the key of a message over UCX.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use memferry::NodeName;

use crate::backlog::Backlog;
use crate::connections::Up;
use crate::owner::Served;

/// What the peer knows of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attached {
    /// It was asked, by this number and at this time.
    Asked(u32, Instant),
    As(u32),
}

/// A connection to a peer.
pub(crate) struct Link {
    pub(crate) up: Box<Up>,
    /// The key to put before messages over UCX; `None`: bytes go over the encrypted connection.
    pub(crate) ucx_key: Option<u128>,
    /// Messages over UCX are taken. The peer decides about those it sends, also if this side cannot send any.
    pub(crate) takes_ucx: bool,
    /// An access went over UCX.
    pub(crate) asked_over_ucx: bool,
    /// UCX has delivered a message in one of the two directions.
    pub(crate) ucx_delivers: bool,
    /// When something but a sign of life was sent or came.
    pub(crate) used: Instant,
    pub(crate) heard: Instant,
    pub(crate) sent: Instant,
    /// By the address of a frame.
    pub(crate) attached: BTreeMap<usize, Attached>,
    /// Accesses and attachments that were not answered.
    pub(crate) outstanding: usize,
    /// Those of requests that have ended, and since when: their answers are thrown away.
    pub(crate) abandoned: BTreeMap<u32, Instant>,
    /// The request that was served last, so that none waits for ever behind others.
    pub(crate) last: u64,
    pub(crate) backlog: Backlog,
    /// The peer does not read what is sent to it.
    pub(crate) is_full: bool,
    pub(crate) served: Served,
}

/// The connections, one of a peer. A message of one of very many is found without a look at the others.
#[derive(Default)]
pub(crate) struct Links {
    links: BTreeMap<NodeName, Link>,
    connections: HashMap<u64, NodeName>,
    /// Peers by the keys of those messages over UCX that this side takes.
    senders: HashMap<u128, NodeName>,
}

impl Links {
    /// Adds the connection to a peer that has none.
    pub(crate) fn insert(&mut self, node: NodeName, link: Link) {
        self.connections.insert(link.up.connection, node);
        if link.takes_ucx {
            self.senders.insert(link.up.own_key, node);
        }
        self.links.insert(node, link);
    }

    pub(crate) fn remove(&mut self, node: NodeName) -> Option<Link> {
        let link = self.links.remove(&node)?;
        self.connections.remove(&link.up.connection);
        self.senders.remove(&link.up.own_key);
        Some(link)
    }

    pub(crate) fn get(&self, node: &NodeName) -> Option<&Link> {
        self.links.get(node)
    }

    pub(crate) fn get_mut(&mut self, node: &NodeName) -> Option<&mut Link> {
        self.links.get_mut(node)
    }

    pub(crate) fn contains(&self, node: &NodeName) -> bool {
        self.links.contains_key(node)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NodeName, &Link)> {
        self.links.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&NodeName, &mut Link)> {
        self.links.iter_mut()
    }

    /// A connection that still is, and its peer.
    pub(crate) fn of_connection(&self, connection: u64) -> Option<(NodeName, &Link)> {
        let node = self.node_of(connection)?;
        Some((node, self.links.get(&node)?))
    }

    /// The peer of a connection that still is.
    pub(crate) fn node_of(&self, connection: u64) -> Option<NodeName> {
        self.connections.get(&connection).copied()
    }

    /// The peer that knows the key before a message over UCX, if it may send there.
    pub(crate) fn sender(&self, key: u128) -> Option<NodeName> {
        self.senders.get(&key).copied()
    }
}

impl crate::owner::Connections for Links {
    fn served(&mut self, connection: u64) -> Option<&mut Served> {
        let node = self.node_of(connection)?;
        self.links.get_mut(&node).map(|link| &mut link.served)
    }
}
