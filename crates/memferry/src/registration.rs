//! A cache of registrations: memory that a program has already, to the frame the service knows it by.
//!
//! ```text
//! memfd(descriptor) ─ (device, inode) known? ─ yes ─► the same Frame, no message to the service
//!                                            └ no ── evict what is not in use ─ register ─► Frame
//! owned(Vec) ─► Frame ─ take_back ─► the Vec, revoked first
//! invalidate(frame) ─ revoked; returns when no transfer uses it
//! ```
//!
//! A memfd's inode number is good as a key because the cache keeps the file: the number goes to no other while it is here.
//! Frames in use are not evicted, nor is owned memory, which would be lost with its frame. A frame that is revoked by its
//! handle, behind the cache's back, stays in it and is of no use: end one by `invalidate`.
//!
//! What a program does with the memory itself is not watched; sealed memory cannot change its size or its pages.
//! Segments of a [`FrameArena`](crate::FrameArena) are never in it: each has one frame of its own, which goes when the segment
//! does, so there is nothing that could be stale.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::client::Client;
use crate::error::{CallError, FrameError};
use crate::frame::{Frame, TakeBackError};

/// Bounds of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegistrationLimits {
    /// Frames.
    pub entries: usize,
    /// Bytes of these.
    pub bytes: u64,
}

impl Default for RegistrationLimits {
    /// 256 frames of 1 GiB together.
    fn default() -> Self {
        Self { entries: 256, bytes: 1 << 30 }
    }
}

/// What a cache did and has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegistrationStatistics {
    /// Lookups that found a frame.
    pub hits: u64,
    /// Lookups that had to register.
    pub misses: u64,
    /// Frames dropped to make room.
    pub evictions: u64,
    /// Frames there are.
    pub entries: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// Why memory was not registered.
#[derive(Debug, Error)]
pub enum RegistrationError {
    /// Everything in the cache is in use.
    #[error("{wanted} bytes more exceed the cache's {limits:?}, and all of it is in use; drop some frames")]
    Full {
        /// Bytes of the memory.
        wanted: u64,
        /// The cache's bounds.
        limits: RegistrationLimits,
        /// The memory, when it was given by value.
        memory: Option<Vec<u8>>,
    },
    /// The descriptor cannot be looked at or duplicated.
    #[error("cannot use the descriptor: {0}")]
    Descriptor(std::io::Error),
    /// The service would not take it.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// What names an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Memfd { device: u64, inode: u64 },
    Owned(u64),
}

struct Entry {
    frame: Frame,
    /// Keeps the file, and with it its inode number.
    _file: Option<OwnedFd>,
    /// When it was looked up last, by the count of lookups.
    used: u64,
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Key, Entry>,
    bytes: u64,
    lookups: u64,
    next_owned: u64,
}

/// A bounded cache of registrations. Clones share it.
///
/// ```
/// use memferry::{Client, RegistrationLimits, Registrations};
///
/// let cache = Registrations::new(&Client::embedded()?, RegistrationLimits::default());
/// let frame = cache.owned(vec![7; 4096]).expect("registered");
/// assert_eq!(cache.take_back(frame).expect("nobody else holds it"), [7; 4096]);
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct Registrations(Arc<Shared>);

struct Shared {
    client: Client,
    limits: RegistrationLimits,
    entries: Mutex<Entries>,
    /// Held while something is registered, so that nothing is registered twice. Hits do not wait for it.
    registering: Mutex<()>,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

impl Registrations {
    /// An empty cache of a client's frames.
    pub fn new(client: &Client, limits: RegistrationLimits) -> Self {
        Self(Arc::new(Shared {
            client: client.clone(),
            limits,
            entries: Mutex::default(),
            registering: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }))
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frame of a memfd: all of it, registered when it is not known yet, and then sealed for good. The same memfd gives
    /// the same frame, by whatever descriptor; one that was first registered from a read-only descriptor stays read-only.
    ///
    /// # Errors
    /// [`RegistrationError`].
    pub fn memfd(&self, descriptor: impl AsFd) -> Result<Frame, RegistrationError> {
        self.0.client.check_fork().map_err(FrameError::from)?;
        let failed = |error: rustix::io::Errno| RegistrationError::Descriptor(error.into());
        let stat = rustix::fs::fstat(descriptor.as_fd()).map_err(failed)?;
        let key = Key::Memfd { device: stat.st_dev as u64, inode: stat.st_ino as u64 };
        if let Some(frame) = self.look_up(key) {
            return Ok(frame);
        }
        let _registering = self.0.registering.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have registered it meanwhile.
        if let Some(frame) = self.look_up(key) {
            return Ok(frame);
        }
        self.0.misses.fetch_add(1, Ordering::Relaxed);
        let length = stat.st_size as u64;
        self.make_room(length)?;
        let copy = || descriptor.as_fd().try_clone_to_owned().map_err(RegistrationError::Descriptor);
        let frame = self.0.client.register_memfd(copy()?, length)?;
        self.insert(key, frame.clone(), Some(copy()?));
        Ok(frame)
    }

    /// Makes memory of this process a frame that [`take_back`](Self::take_back) ends. Embedded clients only.
    ///
    /// # Errors
    /// [`RegistrationError`], with the memory where it can be had back.
    pub fn owned(&self, memory: Vec<u8>) -> Result<Frame, RegistrationError> {
        self.0.client.check_fork().map_err(FrameError::from)?;
        let _registering = self.0.registering.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.misses.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.make_room(memory.len() as u64) {
            return Err(match error {
                RegistrationError::Full { wanted, limits, .. } => {
                    RegistrationError::Full { wanted, limits, memory: Some(memory) }
                }
                other => other,
            });
        }
        let frame = self.0.client.register_owned(memory)?;
        let key = {
            let mut entries = self.entries();
            entries.next_owned += 1;
            Key::Owned(entries.next_owned)
        };
        self.insert(key, frame.clone(), None);
        Ok(frame)
    }

    /// The memory that a frame of [`owned`](Self::owned) was made of. The service lets go of it first.
    ///
    /// # Errors
    /// [`TakeBackError`] with the frame, as [`Frame::into_owned`]; the cache does not have it any more unless somebody else
    /// holds it.
    pub fn take_back(&self, frame: Frame) -> Result<Vec<u8>, TakeBackError> {
        if let Err(forked) = self.0.client.check_fork() {
            return Err(TakeBackError::Call(forked.into(), frame));
        }
        let removed = {
            let mut entries = self.entries();
            // One clone is the caller's, one the cache's.
            if frame.holders() > 2 { None } else { entries.remove_frame(&frame) }
        };
        drop(removed);
        frame.into_owned()
    }

    /// Takes a frame away from the service and out of the cache. Returns when no transfer uses it: those running are
    /// cancelled. Clones that others hold are of no use any more.
    ///
    /// # Errors
    /// [`CallError`]; it is out of the cache all the same.
    pub fn invalidate(&self, frame: &Frame) -> Result<(), CallError> {
        self.0.client.check_fork()?;
        let removed = self.entries().remove_frame(frame);
        let revoked = frame.revoke();
        drop(removed);
        revoked
    }

    /// What it did and has; nothing in a forked child.
    pub fn statistics(&self) -> RegistrationStatistics {
        if self.0.client.check_fork().is_err() {
            return RegistrationStatistics::default();
        }
        let entries = self.entries();
        RegistrationStatistics {
            hits: self.0.hits.load(Ordering::Relaxed),
            misses: self.0.misses.load(Ordering::Relaxed),
            evictions: self.0.evictions.load(Ordering::Relaxed),
            entries: entries.by_key.len() as u64,
            bytes: entries.bytes,
        }
    }

    fn look_up(&self, key: Key) -> Option<Frame> {
        let mut entries = self.entries();
        entries.lookups += 1;
        let used = entries.lookups;
        let entry = entries.by_key.get_mut(&key)?;
        entry.used = used;
        self.0.hits.fetch_add(1, Ordering::Relaxed);
        Some(entry.frame.clone())
    }

    fn insert(&self, key: Key, frame: Frame, file: Option<OwnedFd>) {
        let mut entries = self.entries();
        entries.lookups += 1;
        entries.bytes += frame.length();
        let entry = Entry { frame, _file: file, used: entries.lookups };
        entries.by_key.insert(key, entry);
    }

    /// Evicts the longest unused frames until `wanted` bytes more are within the limits.
    fn make_room(&self, wanted: u64) -> Result<(), RegistrationError> {
        let limits = self.0.limits;
        loop {
            let mut entries = self.entries();
            let bytes = entries.bytes.checked_add(wanted);
            if entries.by_key.len() < limits.entries && bytes.is_some_and(|bytes| bytes <= limits.bytes) {
                return Ok(());
            }
            // Owned memory would be lost with its frame, so it stays until it is taken back.
            let unused = entries
                .by_key
                .iter()
                .filter(|(key, entry)| matches!(key, Key::Memfd { .. }) && entry.frame.holders() == 1);
            let Some(oldest) = unused.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) else {
                return Err(RegistrationError::Full { wanted, limits, memory: None });
            };
            let evicted = entries.remove(oldest);
            drop(entries);
            self.0.evictions.fetch_add(1, Ordering::Relaxed);
            // Revokes it, which is a message.
            drop(evicted);
        }
    }
}

impl Entries {
    fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.by_key.remove(&key)?;
        self.bytes -= entry.frame.length();
        Some(entry)
    }

    fn remove_frame(&mut self, frame: &Frame) -> Option<Entry> {
        let key = self.by_key.iter().find(|(_, entry)| entry.frame.is(frame)).map(|(key, _)| *key)?;
        self.remove(key)
    }
}
