//! Options of a server: its export, access, engine and limits.
//!
//! ```text
//! Options ─ check ─► Server        Access ─ admit(peer, attach name) ─► the name to attach, or an error
//! ```
//!
//! All file access uses the server's own user. By default only that user and root may attach over a Unix socket.
//! TCP has no users: without a key every client that reaches the port is served, so the server binds to
//! loopback addresses unless told otherwise. The key travels unencrypted in the attach name: it keeps strangers out
//! of a trusted network, but does not protect against eavesdroppers.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use memferry_pool::Constraints;
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// How files are read for clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// Chosen per file: see [`crate::Why`].
    #[default]
    Auto,
    /// Through the page cache, copied into and out of buffers: the paper's umfs.
    Copying,
    /// Past the page cache into registered buffers of the pool, and sent from there: the paper's dmafs.
    Pool,
    /// From the page cache to the socket; uncached data is copied.
    Cached,
}

/// Maximum of [`Limits::outstanding`]: it bounds the lists that are searched per request.
pub const MAX_OUTSTANDING: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Clients at a time.
    pub clients: usize,
    /// Clients at a time of one user over Unix sockets, of one address over TCP (of IPv6: one network of 64 bits), and of all
    /// users together who may not attach.
    pub clients_per_user: usize,
    /// Maximum number of fids per client.
    pub fids: usize,
    /// Nodes per client, including the directories on the way to each; every node is an open descriptor. All clients of one user
    /// have at most a quarter of the process's limit on descriptors.
    pub nodes: usize,
    /// Unanswered requests per client, including unread answers; at most [`MAX_OUTSTANDING`].
    pub outstanding: usize,
    /// How long a client may read nothing, leave a message unfinished, or be connected before it
    /// attaches; not zero. Applies to each 64 KiB of a block.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 1024,
            clients_per_user: 256,
            fids: 4096,
            nodes: 8192,
            outstanding: 64,
            stall: Duration::from_secs(30),
        }
    }
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    pub directory: PathBuf,
    /// Refuses all changes by clients.
    pub read_only: bool,
    /// Allows clients to create FIFOs and sockets; devices are never allowed.
    pub special_files: bool,
    /// Serves the pool as files, under the attach name `/pool`.
    pub pool_files: bool,
    /// How files are read.
    pub engine: Engine,
    /// Bytes per block, the maximum data of one message; a multiple of 4096.
    pub block_bytes: usize,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// File size from which [`Engine::Auto`] bypasses the page cache, because the file would fill it.
    pub large_bytes: u64,
    pub threads: usize,
    /// Limits of each client.
    pub limits: Limits,
    pub access: Access,
}

impl Options {
    /// Default options: blocks of 64 KiB, a pool of 64 MiB, large files from half of the memory
    /// on, a thread per CPU, at most two.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            read_only: false,
            special_files: false,
            pool_files: false,
            engine: Engine::Auto,
            block_bytes: 64 << 10,
            pool_bytes: 64 << 20,
            large_bytes: memory_bytes() / 2,
            threads: std::thread::available_parallelism().map_or(1, |count| count.get().min(2)),
            limits: Limits::default(),
            access: Access::default(),
        }
    }

    /// Maximum message size: a block and the head of its message.
    pub(crate) fn message_bytes(&self) -> u32 {
        self.block_bytes as u32 + 24
    }

    /// Options of the pool: buffers of a block and a page on both sides, several per segment, so that little memory
    /// is wasted.
    pub(crate) fn pool(&self) -> memferry_pool::Options {
        const UNIT: u64 = 2 << 20;
        let buffer_bytes = self.block_bytes + 2 * 4096;
        let limit_bytes = self.pool_bytes.div_ceil(UNIT).min(u64::MAX / UNIT) * UNIT;
        let segments = (limit_bytes / UNIT.max(8 * buffer_bytes as u64)).max(1);
        let segment_bytes = (limit_bytes / segments / UNIT * UNIT) as usize;
        memferry_pool::Options {
            buffer_bytes,
            segment_bytes,
            limit_bytes,
            constraints: Constraints::default(),
        }
    }

    /// # Errors
    /// [`OptionsError`].
    pub fn check(&self) -> Result<(), OptionsError> {
        let block = self.block_bytes;
        if !block.is_multiple_of(4096) || !(4096..=16 << 20).contains(&block) {
            return Err(OptionsError::Block { block });
        }
        if self.pool_bytes < 2 * (block as u64 + 8192) {
            return Err(OptionsError::Pool { pool: self.pool_bytes, block });
        }
        let Limits { clients, clients_per_user, fids, nodes, outstanding, stall } = self.limits;
        let counts = [
            ("the number of threads", self.threads),
            ("the limit on clients", clients),
            ("the limit on clients of a user", clients_per_user),
            ("the limit on fids", fids),
            ("the limit on nodes", nodes),
            ("the limit on outstanding requests", outstanding),
        ];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(OptionsError::Zero { what });
        }
        // It would disconnect every client at once.
        if stall.is_zero() {
            return Err(OptionsError::Zero { what: "the stall time" });
        }
        if outstanding > MAX_OUTSTANDING {
            return Err(OptionsError::Outstanding { outstanding });
        }
        Ok(())
    }
}

/// Memory of this machine; 1 GiB if the kernel does not say.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let words = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = words.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib << 10)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum OptionsError {
    #[error("block size {block} is invalid; use a multiple of 4096 bytes, at most 16 MiB")]
    Block { block: usize },
    /// The pool is too small.
    #[error(
        "a pool of {pool} bytes is too small for blocks of {block}; make it at least two blocks and four pages"
    )]
    Pool {
        /// Bytes of the pool.
        pool: u64,
        /// Bytes of a block.
        block: usize,
    },
    /// A limit or thread count of zero.
    #[error("{what} is zero; make it at least one")]
    Zero { what: &'static str },
    /// Too many outstanding requests per client.
    #[error("{outstanding} outstanding requests per client are too many; use at most {MAX_OUTSTANDING}")]
    Outstanding { outstanding: usize },
}

#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Users that may attach over a Unix socket, besides the server's own and root.
    pub users: Vec<u32>,
    /// The key that TCP clients must give, if any.
    pub key: Option<Key>,
}

/// A shared key, stored as its SHA-256.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Hashes the key's text.
    pub fn new(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Compares in constant time.
    fn is(&self, text: &[u8]) -> bool {
        let other = Self::new(text).0;
        self.0.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A process of this user, as the kernel reports.
    User(u32),
    /// A machine at this address.
    Remote(IpAddr),
}

/// What an admitted client may attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Admitted<'a> {
    /// The attach name without its key.
    pub(crate) name: &'a [u8],
    /// Whether the client may change how the server works.
    pub(crate) trusted: bool,
}

impl Access {
    /// Whether a process of this user may attach over a Unix socket.
    pub(crate) fn may_attach(&self, uid: u32) -> bool {
        is_trusted(uid) || self.users.contains(&uid)
    }

    /// Checks whether a peer may attach as `user`. The attach name is `PATH`, or `key=KEY` or `key=KEY:PATH` over TCP.
    pub(crate) fn admit<'a>(&self, peer: &Peer, user: u32, name: &'a [u8]) -> Result<Admitted<'a>, Errno> {
        match peer {
            Peer::User(uid) => {
                let trusted = is_trusted(*uid);
                // Root acts for all users of its machine, as a kernel client does.
                let speaks_for = *uid == 0 || user == *uid || user == crate::codec::NO_USER;
                let may = self.may_attach(*uid) && speaks_for;
                if may { Ok(Admitted { name, trusted }) } else { Err(Errno::PERM) }
            }
            Peer::Remote(_) => match &self.key {
                None => Ok(Admitted { name, trusted: false }),
                Some(key) => {
                    let rest = name.strip_prefix(b"key=").ok_or(Errno::ACCESS)?;
                    let end = rest.iter().position(|byte| *byte == b':').unwrap_or(rest.len());
                    let path = rest.get(end + 1..).unwrap_or_default();
                    if key.is(&rest[..end]) {
                        Ok(Admitted { name: path, trusted: true })
                    } else {
                        Err(Errno::ACCESS)
                    }
                }
            },
        }
    }
}

/// Root and the server's own user.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use memferry_pool::Pool;

    use super::*;

    #[test]
    fn only_known_users_may_attach() {
        let own = rustix::process::geteuid().as_raw();
        let access = Access { users: vec![4242], key: None };
        for (uid, user, may) in [
            (own, own, true),
            (own, u32::MAX, true),
            (0, 77, true),
            (4242, 4242, true),
            (4242, own, false),
            (4243, 4243, false),
        ] {
            assert_eq!(access.admit(&Peer::User(uid), user, b"/").is_ok(), may, "{uid} as {user}");
        }
        assert!(!access.admit(&Peer::User(4242), 4242, b"/").unwrap().trusted);
    }

    const REMOTE: Peer = Peer::Remote(IpAddr::V4(Ipv4Addr::LOCALHOST));

    #[test]
    fn tcp_needs_the_key() {
        let access = Access { users: vec![], key: Some(Key::new(b"open sesame")) };
        let admit = |name: &'static [u8]| access.admit(&REMOTE, u32::MAX, name);
        assert_eq!(admit(b"key=open sesame:/pool").map(|admitted| admitted.name), Ok(&b"/pool"[..]));
        assert_eq!(admit(b"key=open sesame"), Ok(Admitted { name: b"", trusted: true }));
        for name in [&b""[..], b"/", b"key=", b"key=open", b"key=open sesame2", b"key=:open sesame"] {
            assert_eq!(admit(name), Err(Errno::ACCESS), "{name:?}");
        }
        let open = Access::default();
        assert_eq!(open.admit(&REMOTE, 0, b"/x"), Ok(Admitted { name: b"/x", trusted: false }));
    }

    #[test]
    fn invalid_options_are_refused() {
        let with = |change: fn(&mut Options)| {
            let mut options = Options::new("/");
            change(&mut options);
            options.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert!(with(|options| options.block_bytes = 5000).is_err());
        assert!(with(|options| options.block_bytes = 0).is_err());
        assert!(with(|options| options.pool_bytes = 100_000).is_err());
        for (refused, what) in [
            (with(|options| options.limits.fids = 0), "the limit on fids"),
            (with(|options| options.threads = 0), "the number of threads"),
            (with(|options| options.limits.clients_per_user = 0), "the limit on clients of a user"),
            (with(|options| options.limits.stall = Duration::ZERO), "the stall time"),
        ] {
            assert_eq!(refused, Err(OptionsError::Zero { what }));
        }
        assert_eq!(with(|options| options.limits.stall = Duration::from_millis(1)), Ok(()));
        assert_eq!(with(|options| options.limits.outstanding = MAX_OUTSTANDING), Ok(()));
        let refused = with(|options| options.limits.outstanding = MAX_OUTSTANDING + 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "4097 outstanding requests per client are too many; use at most 4096"
        );
    }

    #[test]
    fn a_pool_has_no_upper_limit() {
        let mut options = Options::new("/");
        options.pool_bytes = u64::MAX;
        let pool = options.pool();
        assert!(pool.limit_bytes > u64::MAX / 2 && pool.segment_bytes >= pool.buffer_bytes);
        Pool::new(pool).unwrap();
    }

    #[test]
    fn pools_waste_little_memory() {
        for block in (1..=16 << 8).step_by(5).map(|pages| pages << 12) {
            let least = 2 * (block as u64 + 8192);
            for pool_bytes in [least, least + 4096, 7 * least, 64 << 20, 1 << 30] {
                let options = Options { block_bytes: block, pool_bytes, ..Options::new("/") };
                if options.check().is_err() {
                    continue;
                }
                let pool = Pool::new(options.pool()).unwrap();
                let most = pool_bytes / pool.options().buffer_bytes as u64;
                let holds = pool.options().buffers_within(pool.statistics().limit_bytes);
                assert!(holds >= 2 && holds * 10 >= most * 7, "{block}, {pool_bytes}: {holds} of {most}");
            }
        }
    }
}
