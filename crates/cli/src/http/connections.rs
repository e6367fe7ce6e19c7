//! The connections that are served, and which one makes room for a new one.
//!
//! ```text
//! admit(peer) ─► a free place, or that of the oldest idle connection of the peer with the most ─► its stream is shut down
//! ```
//!
//! A connection is idle while its client owes something: the rest of its request, or reading the response. One that waits for
//! the service is not idle, and makes no room.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections served at a time.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Whom a connection is counted for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Peer {
    /// All processes at this address.
    Address(IpAddr),
    /// All processes of this user, on a Unix socket.
    User(u32),
    Unknown,
}

/// Ends a connection whose thread may be blocked on it.
pub(super) trait Shut: Send {
    fn shut(&self) -> io::Result<()>;
}

struct Entry<S> {
    peer: Peer,
    handle: S,
    is_idle: bool,
}

/// All connections, oldest first.
struct Open<S> {
    next: u64,
    entries: BTreeMap<u64, Entry<S>>,
}

pub(super) struct Connections<S> {
    open: Arc<Mutex<Open<S>>>,
}

impl<S> Clone for Connections<S> {
    fn clone(&self) -> Self {
        Self { open: Arc::clone(&self.open) }
    }
}

/// The place of a connection, free again when this is dropped.
pub(super) struct Place<S> {
    number: u64,
    connections: Connections<S>,
}

impl<S: Shut> Connections<S> {
    pub(super) fn new() -> Self {
        Self { open: Arc::new(Mutex::new(Open { next: 0, entries: BTreeMap::new() })) }
    }

    fn open(&self) -> MutexGuard<'_, Open<S>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a connection of `peer`, which `handle` can end. `None` if all are busy, so there is none.
    pub(super) fn admit(&self, peer: Peer, handle: S) -> Option<Place<S>> {
        let mut open = self.open();
        if open.entries.len() >= MAX_CONNECTIONS {
            let dropped = open.least_deserving(peer)?;
            // Its thread reads the end of the stream, and ends.
            let _ = open.entries.remove(&dropped).map(|entry| entry.handle.shut());
        }
        let number = open.next;
        open.next += 1;
        open.entries.insert(number, Entry { peer, handle, is_idle: true });
        Some(Place { number, connections: self.clone() })
    }
}

impl<S> Open<S> {
    /// The oldest idle connection of the peer that has the most, counting the new one of `newcomer`.
    fn least_deserving(&self, newcomer: Peer) -> Option<u64> {
        let mut counts = BTreeMap::from([(newcomer, 1)]);
        for entry in self.entries.values() {
            *counts.entry(entry.peer).or_insert(0) += 1;
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.is_idle);
        // The first of equals is the oldest.
        idle.min_by_key(|(_, entry)| std::cmp::Reverse(counts[&entry.peer])).map(|(number, _)| *number)
    }
}

impl<S> Place<S> {
    /// Says whether the client owes something.
    pub(super) fn set_idle(&self, is_idle: bool) {
        let mut open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = open.entries.get_mut(&self.number) {
            entry.is_idle = is_idle;
        }
    }
}

impl<S> Drop for Place<S> {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Reports its number when it is ended.
    struct Handle(u32, Sender<u32>);

    impl Shut for Handle {
        fn shut(&self) -> io::Result<()> {
            self.1.send(self.0).map_err(io::Error::other)
        }
    }

    struct Test {
        connections: Connections<Handle>,
        sender: Sender<u32>,
        ended: Receiver<u32>,
    }

    impl Test {
        fn new() -> Self {
            let (sender, ended) = channel();
            Self { connections: Connections::new(), sender, ended }
        }

        fn admit(&self, user: u32, number: u32) -> Option<Place<Handle>> {
            self.connections.admit(Peer::User(user), Handle(number, self.sender.clone()))
        }
    }

    #[test]
    fn the_oldest_idle_connection_makes_room() {
        let test = Test::new();
        let mut places: Vec<_> = (0..64).map(|number| test.admit(1, number).unwrap()).collect();
        assert!(test.ended.try_recv().is_err());
        // The first is answered, the second left by itself.
        places[0].set_idle(false);
        places.remove(1);
        places.push(test.admit(1, 64).unwrap());
        assert!(test.ended.try_recv().is_err());
        places.push(test.admit(1, 65).unwrap());
        assert_eq!(test.ended.try_recv(), Ok(2));
        places[0].set_idle(true);
        places.push(test.admit(1, 66).unwrap());
        assert_eq!(test.ended.try_recv(), Ok(0));
        // An ended connection leaves no second place.
        places.clear();
        assert!(test.connections.open().entries.is_empty());
    }

    #[test]
    fn the_peer_with_the_most_makes_room() {
        let test = Test::new();
        let _others: Vec<_> = (0..4).map(|number| test.admit(7, number)).collect();
        let _many: Vec<_> = (4..64).map(|number| test.admit(8, number)).collect();
        let mut places = Vec::new();
        for expected in 4..30 {
            places.push(test.admit(9, 100).unwrap());
            assert_eq!(test.ended.try_recv(), Ok(expected));
        }
        // The newcomer's own, once it has the most.
        let _own: Vec<_> = (0..40).map(|_| test.admit(9, 100)).collect();
        assert!(test.ended.try_iter().any(|number| number == 100));
        assert!(test.ended.try_iter().all(|number| number >= 4));
    }

    #[test]
    fn busy_connections_make_no_room() {
        let test = Test::new();
        let places: Vec<_> = (0..64).map(|number| test.admit(1, number).unwrap()).collect();
        places.iter().for_each(|place| place.set_idle(false));
        assert!(test.admit(2, 64).is_none() && test.ended.try_recv().is_err());
    }
}
