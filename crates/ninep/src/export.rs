//! The exported directory: nodes that clients walked to, and the operations on them.
//!
//! ```text
//! Export::root ─ walk(name) ─► Node ─ walk(name) ─► Node      openat2, one name at a time, beneath its parent, no symlinks
//!                              ├─ open, create                regular files and directories only, never blocking
//!                              ├─ attributes, names, extended, listing, locks
//!                              └─ ".." ─► the node it was walked from; the root's parent is the root
//! ```
//!
//! A node is a descriptor, not a path: renames by others do not make it refer to another file. A client's name is
//! resolved only by a single `openat2` with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_MAGICLINKS`, in a directory
//! that the client already holds. So no name leads out of the export, whatever is renamed or linked meanwhile. But a directory
//! that another program moves out of the export keeps its node: clients that hold it can still reach its contents.
//! All operations use the server's own user, and the client gets the kernel's error. This module keeps no fids and knows no
//! messages.

mod attributes;
mod extended;
mod listing;
mod locks;
mod names;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use thiserror::Error;

pub(crate) use extended::XattrWriter;
pub(crate) use listing::Listing;
pub(crate) use locks::{Lock, LockKind, Locks, would_lock};

use crate::accounts::Account;
use crate::codec::{Qid, qid_kind};

/// Resolution flags of every name from a client.
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Maximum bytes of a name (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// Why a directory cannot be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// It cannot be opened.
    #[error("cannot open the directory {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// `openat2` is missing (before Linux 5.6), or `/proc` is not mounted.
    #[error("cannot serve {} safely ({what}): {source}", path.display())]
    Unsafe { path: PathBuf, what: &'static str, source: io::Error },
}

/// The exported directory and its options.
#[derive(Debug)]
pub(crate) struct Export {
    root: Arc<OwnedFd>,
    /// Device and inode of the root.
    root_id: (u64, u64),
    /// The canonical path, for attach names that repeat it.
    pub(crate) path: PathBuf,
    /// Refuses all changes by clients.
    pub(crate) read_only: bool,
    /// Allows FIFOs and sockets to be created.
    pub(crate) special: bool,
}

impl Export {
    pub(crate) fn open(path: &Path, read_only: bool, special: bool) -> Result<Self, ExportError> {
        let named = || path.to_owned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|source| ExportError::Open { path: named(), source: source.into() })?;
        let lacking =
            |what| move |source: Errno| ExportError::Unsafe { path: named(), what, source: source.into() };
        rustix::fs::openat2(&root, ".", flags, Mode::empty(), RESOLVE).map_err(lacking("openat2"))?;
        let stat = rustix::fs::fstat(&root).map_err(lacking("fstat"))?;
        rustix::fs::open(own_path(root.as_fd()), flags, Mode::empty()).map_err(lacking("/proc/self/fd"))?;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| named());
        Ok(Self { root: Arc::new(root), root_id: (stat.st_dev, stat.st_ino), path, read_only, special })
    }

    /// A client's node of the root, counted in its `budget`.
    pub(crate) fn root(&self, budget: &Budget) -> Result<Rc<Node>, Errno> {
        let counted = budget.one_without_descriptor()?;
        let parent = None;
        let name = Vec::new();
        let id = self.root_id;
        let kind = FileType::Directory;
        Ok(Rc::new(Node { descriptor: Arc::clone(&self.root), parent, name, kind, id, counted }))
    }

    /// Fails if the export is read-only.
    pub(crate) fn writable(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// Identity of a file: its inode, combined with its device if that differs from the root's.
    pub(crate) fn qid(&self, (device, inode): (u64, u64), kind: FileType) -> Qid {
        let other = if device == self.root_id.0 { 0 } else { device.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        let kind = match kind {
            FileType::Directory => qid_kind::DIRECTORY,
            FileType::Symlink => qid_kind::SYMLINK,
            _ => 0,
        };
        // Version 0: the file's times show changes by others.
        Qid { kind, version: 0, path: inode ^ other }
    }
}

/// Nodes a client may still have: each is an open descriptor, and counts for the client's user as well.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    left: Rc<Cell<usize>>,
    account: Arc<Account>,
    /// Nodes that the user may have.
    most: u64,
}

impl Budget {
    pub(crate) fn new(nodes: usize, account: Arc<Account>, most: u64) -> Self {
        Self { left: Rc::new(Cell::new(nodes)), account, most }
    }

    fn one(&self) -> Result<Counted, Errno> {
        let mut counted = self.one_without_descriptor()?;
        counted.of_user = self.account.add_node(self.most);
        if counted.of_user { Ok(counted) } else { Err(Errno::MFILE) }
    }

    fn one_without_descriptor(&self) -> Result<Counted, Errno> {
        self.left.set(self.left.get().checked_sub(1).ok_or(Errno::MFILE)?);
        Ok(Counted { budget: self.clone(), of_user: false })
    }
}

/// A node's share of the budget, returned on drop.
#[derive(Debug)]
struct Counted {
    budget: Budget,
    /// Whether it counts for the user.
    of_user: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.budget.left.set(self.budget.left.get() + 1);
        if self.of_user {
            self.budget.account.remove_node();
        }
    }
}

/// A file, directory or link that a client has walked to.
#[derive(Debug)]
pub(crate) struct Node {
    descriptor: Arc<OwnedFd>,
    /// The node it was walked to from, and its name there.
    parent: Option<Rc<Self>>,
    name: Vec<u8>,
    kind: FileType,
    id: (u64, u64),
    counted: Counted,
}

/// Drops ancestors iteratively: a chain may be as long as a client's budget, too deep for recursion.
impl Drop for Node {
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut node) = next.and_then(Rc::into_inner) {
            next = node.parent.take();
        }
    }
}

impl Node {
    pub(crate) fn kind(&self) -> FileType {
        self.kind
    }

    pub(crate) fn id(&self) -> (u64, u64) {
        self.id
    }

    pub(crate) fn qid(&self, export: &Export) -> Qid {
        export.qid(self.id, self.kind)
    }

    /// The account of the client that walked here.
    pub(crate) fn account(&self) -> Arc<Account> {
        Arc::clone(&self.counted.budget.account)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn of(self: &Rc<Self>, descriptor: OwnedFd, name: &[u8], counted: Counted) -> Result<Rc<Self>, Errno> {
        let stat: Stat = rustix::fs::fstat(&descriptor)?;
        Ok(Rc::new(Self {
            descriptor: Arc::new(descriptor),
            parent: Some(Rc::clone(self)),
            name: name.to_vec(),
            kind: FileType::from_raw_mode(stat.st_mode),
            id: (stat.st_dev, stat.st_ino),
            counted,
        }))
    }

    /// The node called `name` in this directory. Never follows a link.
    pub(crate) fn walk(self: &Rc<Self>, name: &[u8]) -> Result<Rc<Self>, Errno> {
        if self.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        // Clients that list a directory also walk to ".".
        if name == b"." {
            return Ok(Rc::clone(self));
        }
        if name == b".." {
            return Ok(Rc::clone(self.parent.as_ref().unwrap_or(self)));
        }
        let name = checked(name)?;
        let counted = self.counted.budget.one()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat2(self.descriptor(), name, flags, Mode::empty(), RESOLVE)?;
        self.of(found, name, counted)
    }

    /// Opens the node with `flags` from [`allowed_flags`].
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.kind {
            FileType::RegularFile => {}
            FileType::Directory if flags & OFlags::RWMODE == OFlags::RDONLY => {}
            FileType::Directory => return Err(Errno::ISDIR),
            FileType::Symlink => return Err(Errno::LOOP),
            // Clients must not use devices and FIFOs of the server's machine.
            _ => return Err(Errno::PERM),
        }
        rustix::fs::open(
            own_path(self.descriptor()),
            // The path in /proc is a link and must be followed; the node itself is no link, as checked above.
            (flags | OFlags::CLOEXEC | OFlags::NONBLOCK) - (OFlags::NOFOLLOW | OFlags::EXCL),
            Mode::empty(),
        )
    }

    /// Creates and opens a regular file in this directory; opens an existing one unless `flags` forbid it.
    pub(crate) fn create(
        self: &Rc<Self>,
        name: &[u8],
        flags: OFlags,
        mode: u32,
    ) -> Result<(Rc<Self>, OwnedFd), Errno> {
        loop {
            match self.make_file(name, flags, mode) {
                Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {}
                made => return made,
            }
            // Opening a device or FIFO has side effects, so check what exists first.
            match self.walk(name) {
                Err(Errno::NOENT) => {}
                found => {
                    let node = found?;
                    let is_directory = node.kind == FileType::Directory;
                    let file = if is_directory { Err(Errno::ISDIR) } else { node.open(flags) }?;
                    return Ok((node, file));
                }
            }
        }
    }

    /// Creates and opens a regular file that must not exist yet.
    fn make_file(
        self: &Rc<Self>,
        name: &[u8],
        flags: OFlags,
        mode: u32,
    ) -> Result<(Rc<Self>, OwnedFd), Errno> {
        let name = checked(name)?;
        let counted = self.counted.budget.one()?;
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::openat2(self.descriptor(), name, flags, permissions(mode), RESOLVE)?;
        let own = rustix::io::fcntl_dupfd_cloexec(&opened, 0)?;
        Ok((self.of(own, name, counted)?, opened))
    }
}

/// Checks that a name is a single valid component.
fn checked(name: &[u8]) -> Result<&[u8], Errno> {
    match name {
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::INVAL),
        _ if name.len() > MAX_NAME => Err(Errno::NAMETOOLONG),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Errno::INVAL),
        _ => Ok(name),
    }
}

/// Permission bits of a mode, without set-user-ID and set-group-ID.
fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o1777)
}

/// The path of an open descriptor in /proc, which leads to the same file whatever its name is now.
fn own_path(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Converts the supported flags of a Tlopen or Tlcreate. Their numbers are the protocol's on every architecture.
pub(crate) fn allowed_flags(flags: u32) -> Result<OFlags, Errno> {
    const TABLE: [(u32, OFlags); 7] = [
        (0o200, OFlags::EXCL),
        (0o1000, OFlags::TRUNC),
        (0o2000, OFlags::APPEND),
        (0o10000, OFlags::DSYNC),
        (0o200_000, OFlags::DIRECTORY),
        (0o400_000, OFlags::NOFOLLOW),
        (0o4_000_000, OFlags::SYNC),
    ];
    let access = match flags & 3 {
        0 => OFlags::RDONLY,
        1 => OFlags::WRONLY,
        2 => OFlags::RDWR,
        _ => return Err(Errno::INVAL),
    };
    Ok(TABLE.iter().filter(|(bit, _)| flags & bit != 0).fold(access, |all, (_, flag)| all | *flag))
}

#[cfg(all(test, not(miri)))]
mod tests;
