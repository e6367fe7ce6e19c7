//! State shared by all threads of a server, and the clients passed to them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use memferry_pool::{Buffer, Pool, PoolError};
use rustix::io::Errno;

use crate::accounts::{Account, Accounts, Holder};
use crate::export::Export;
use crate::options::{Options, Peer};
use crate::statistics::Counters;

/// Counts of writes; files share them by hash.
const WRITE_COUNTS: usize = 64;

/// Buffers that a connection may hold while half of the pool is in use.
const FEW_BUFFERS: u64 = 4;
/// The part of this process's descriptors that one user's nodes may have.
const NODES_PART: u64 = 4;
/// Nodes that a user may have even then.
const FEW_NODES: u64 = 64;

/// State shared by all threads of a server.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) export: Export,
    pub(crate) pool: Pool,
    pub(crate) counters: Counters,
    pub(crate) accounts: Accounts,
    /// Nodes with a descriptor that all clients of one user may have.
    pub(crate) nodes_per_user: u64,
    /// Completed writes, by a hash of the file: an unchanged count means that the file was not written.
    writes: [AtomicU64; WRITE_COUNTS],
    started: Instant,
    /// The second since the start in which an event of a client was last logged.
    logged: AtomicU64,
}

impl Shared {
    pub(crate) fn new(options: Options, export: Export, pool: Pool) -> Self {
        let writes = [const { AtomicU64::new(0) }; WRITE_COUNTS];
        let counters = Default::default();
        let logged = Default::default();
        let accounts = Default::default();
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let nodes_per_user = descriptors.map_or(u64::MAX, |most| (most / NODES_PART).max(FEW_NODES));
        let started = Instant::now();
        Self { options, export, pool, counters, accounts, nodes_per_user, writes, started, logged }
    }

    /// Whether an event caused by a client may be logged now: at most one line a second, so that clients cannot fill the log.
    /// Counters count all events.
    pub(crate) fn may_log(&self) -> bool {
        let second = self.started.elapsed().as_secs() + 1;
        self.logged.swap(second, Ordering::Relaxed) != second
    }

    /// A count that changes with every write of this server to a file, at the latest when it completes.
    pub(crate) fn writes(&self, file: (u64, u64)) -> &AtomicU64 {
        &self.writes[(file.0 ^ file.1) as usize % WRITE_COUNTS]
    }

    /// A buffer for a request; `None` if the request must wait, an error if no buffer is in use that could be returned.
    pub(crate) fn buffer(&self) -> Result<Option<Buffer>, Errno> {
        match self.pool.take() {
            Ok(buffer) => Ok(Some(buffer)),
            Err(PoolError::Exhausted { .. }) => Ok(None),
            Err(error) => {
                if self.may_log() {
                    tracing::warn!(%error, "the pool has no memory");
                }
                if self.pool.statistics().in_use > 0 { Ok(None) } else { Err(Errno::NOMEM) }
            }
        }
    }

    /// Whether a client that holds `own` buffers, of a user that holds `of_user`, may take one more. With more than a few it
    /// must leave half of the pool to others, and a user with an eighth of the pool must leave a quarter.
    pub(crate) fn may_take(&self, own: u64, of_user: u64) -> bool {
        // The usual case, without the pool's lock.
        if of_user < 2 {
            return true;
        }
        let counts = self.pool.statistics();
        let all = self.pool.options().buffers_within(counts.limit_bytes);
        let free = all.saturating_sub(counts.in_use);
        (own < FEW_BUFFERS || free * 2 > all) && (of_user * 8 < all || free * 4 > all)
    }

    /// A buffer for read-ahead: only if at least a quarter of the pool stays free.
    pub(crate) fn spare_buffer(&self) -> Option<Buffer> {
        let counts = self.pool.statistics();
        let most = self.pool.options().buffers_within(counts.limit_bytes);
        if (counts.in_use + 1) * 4 <= most * 3 { self.pool.take().ok() } else { None }
    }
}

/// A new client, for a serving thread.
pub(crate) struct Arrival {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Peer,
    /// Whether its messages may carry descriptors, so that they must be examined before they are received.
    pub(crate) examined: bool,
    pub(crate) connected: Connected,
}

/// Counts a client as connected while it lives, even if its serving thread ends.
pub(crate) struct Connected {
    shared: Arc<Shared>,
    holder: Holder,
    pub(crate) account: Arc<Account>,
}

impl Connected {
    /// Counts a client of `holder`; `None` if the holder has too many.
    pub(crate) fn new(shared: &Arc<Shared>, holder: Holder) -> Option<Self> {
        let account = shared.accounts.connect(holder, shared.options.limits.clients_per_user as u64)?;
        Counters::add(&shared.counters.connected, 1);
        Some(Self { shared: Arc::clone(shared), holder, account })
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.shared.counters.connected.fetch_sub(1, Ordering::Relaxed);
        self.shared.accounts.disconnect(self.holder);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_rate_limited() {
        let options = Options::new(env!("CARGO_MANIFEST_DIR"));
        let export = Export::open(&options.directory, false, false).unwrap();
        let pool = Pool::new(options.pool()).unwrap();
        let shared = Shared::new(options, export, pool);
        let lines = (0..100_000).filter(|_| shared.may_log()).count() as u64;
        assert!((1..=shared.started.elapsed().as_secs() + 1).contains(&lines), "{lines}");
    }
}
