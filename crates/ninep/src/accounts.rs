//! What each user, or each address, holds of the server, so that none takes what the others need.
//!
//! ```text
//! Peer ─► Holder ─► Account {connections, buffers, nodes, locks}      user · address (IPv6: its network) · all users who may not attach
//! ```
//!
//! Users who may not attach share one account: a process of an unprivileged user can have many user numbers of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::options::{Access, Peer};

/// The holder of an account.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Holder {
    User(u32),
    /// All users who may not attach.
    Strangers,
    /// An address; of an IPv6 address the 64 bits of its network.
    Address(IpAddr),
}

impl Holder {
    pub(crate) fn of(peer: &Peer, access: &Access) -> Self {
        match peer {
            Peer::User(user) if access.may_attach(*user) => Self::User(*user),
            Peer::User(_) => Self::Strangers,
            Peer::Remote(address) => Self::Address(match address.to_canonical() {
                IpAddr::V6(address) => {
                    let network = u128::from(address) >> 64 << 64;
                    Ipv6Addr::from(network).into()
                }
                address => address,
            }),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Strangers => f.write_str("users who may not attach"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// What one holder has.
#[derive(Debug, Default)]
pub(crate) struct Account {
    connections: AtomicU64,
    /// Buffers with answers or data of its clients.
    pub(crate) buffers: AtomicU64,
    /// Nodes with a descriptor.
    nodes: AtomicU64,
    /// Locked ranges of open files.
    locks: AtomicU64,
}

impl Account {
    /// Counts a node unless there are `most`; returns whether it did.
    pub(crate) fn add_node(&self, most: u64) -> bool {
        let more = |nodes| if nodes < most { Some(nodes + 1) } else { None };
        self.nodes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn remove_node(&self) {
        self.nodes.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts `more` locked ranges unless there would be more than `most`; returns whether it did.
    pub(crate) fn add_locks(&self, more: u64, most: u64) -> bool {
        let counted = |locks: u64| if more == 0 || locks + more <= most { Some(locks + more) } else { None };
        self.locks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).is_ok()
    }

    pub(crate) fn remove_locks(&self, fewer: u64) {
        self.locks.fetch_sub(fewer, Ordering::Relaxed);
    }
}

/// The accounts of all holders with a connection.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<BTreeMap<Holder, Arc<Account>>>);

impl Accounts {
    /// Counts a connection; `None` if its holder has `most` already.
    pub(crate) fn connect(&self, holder: Holder, most: u64) -> Option<Arc<Account>> {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let account = accounts.entry(holder).or_default();
        if account.connections.load(Ordering::Relaxed) >= most {
            return None;
        }
        account.connections.fetch_add(1, Ordering::Relaxed);
        Some(Arc::clone(account))
    }

    /// Counts a connection off; forgets a holder without any.
    pub(crate) fn disconnect(&self, holder: Holder) {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(account) = accounts.get(&holder) else { return };
        if account.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            accounts.remove(&holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_users_and_networks() {
        let own = rustix::process::geteuid().as_raw();
        let access = Access { users: vec![4242], key: None };
        let of = |peer| Holder::of(&peer, &access);
        let remote = |text: &str| of(Peer::Remote(text.parse().unwrap()));
        assert_eq!((of(Peer::User(own)), of(Peer::User(4242))), (Holder::User(own), Holder::User(4242)));
        assert_eq!((of(Peer::User(70_001)), of(Peer::User(70_002))), (Holder::Strangers, Holder::Strangers));
        assert_eq!(remote("2001:db8::1"), remote("2001:db8::ffff:1"));
        assert_ne!(remote("2001:db8::1"), remote("2001:db8:0:1::1"));
        assert_eq!(remote("::ffff:10.0.0.1"), remote("10.0.0.1"));
        assert_ne!(remote("10.0.0.2"), remote("10.0.0.1"));
    }

    #[test]
    fn each_holder_has_its_own_limit() {
        let accounts = Accounts::default();
        let connect = |holder| accounts.connect(holder, 2);
        let first = connect(Holder::User(1)).unwrap();
        assert!(connect(Holder::User(1)).is_some() && connect(Holder::User(1)).is_none());
        assert!(connect(Holder::Strangers).is_some());
        assert!(first.add_node(1) && !first.add_node(1));
        first.remove_node();
        assert!(first.add_node(1));
        accounts.disconnect(Holder::User(1));
        assert!(connect(Holder::User(1)).is_some());
        for holder in [Holder::User(1), Holder::User(1), Holder::Strangers] {
            accounts.disconnect(holder);
        }
        assert!(accounts.0.lock().unwrap().is_empty());
    }
}
