//! A client's attached and open files, and the answers to its requests.
//!
//! ```text
//! Request ─ handle ─► Reply                          answered at once
//!                  ├► Read, Sync, Write (by fid)     needs the file's device: the connection continues
//!                  └► Flush                          needs the connection's list of requests
//! ```
//!
//! Fids are a client's handles of nodes, open files, listings and attributes. `export` checks names; ranges are checked
//! here. This module reads no socket and drives no ring.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::accounts::Account;
use crate::codec::{Change, Data, HEADER, NO_FID, Qid, READ_HEAD, Reply, Request, VERSION, change};
use crate::export::{Budget, Export, Listing, Lock, LockKind, Node, XattrWriter, allowed_flags, would_lock};
use crate::open_file::OpenFile;
use crate::options::Peer;
use crate::pool_files::{self, Place};
use crate::shared::Shared;
use crate::statistics::Counters;

/// Minimum for the negotiated message size: every request but a write fits, and a directory's longest entry.
/// The longest link targets do not.
const MIN_MESSAGE: u32 = 4096;
/// Maximum number of names in an attach name.
const MAX_NAMES_ATTACHED: usize = 64;
/// Bytes of extended attributes with which a client may open another.
const MAX_XATTR_BYTES: usize = 1 << 20;
/// `unlinkat`'s flag for directories.
const REMOVE_DIRECTORY: u32 = 0x200;
const LOCKED: u8 = 0;
const BLOCKED: u8 = 1;

/// The result of a request.
pub(crate) enum Outcome {
    Reply(Reply<'static>),
    /// Answer with bytes of a file.
    Read {
        file: Rc<OpenFile>,
        offset: u64,
        count: usize,
    },
    /// Answer when the file is on its device.
    Sync {
        file: Arc<OwnedFd>,
        data_only: bool,
    },
    /// Answer after another request.
    Flush {
        oldtag: u16,
    },
    /// All earlier requests are void.
    Restart(Reply<'static>),
}

/// Destination of a write.
pub(crate) enum Target {
    File(Rc<OpenFile>),
    /// Written at once, by [`Session::write_bytes`].
    Bytes,
}

enum Fid {
    Node(Rc<Node>),
    File(Rc<Node>, Rc<OpenFile>),
    Listing(Rc<Node>, Listing),
    Xattr(Vec<u8>),
    XattrWriter(XattrWriter),
    Pool(Place),
    PoolFile(Place, Vec<u8>),
}

impl Fid {
    fn node(&self) -> Result<&Rc<Node>, Errno> {
        match self {
            Self::Node(node) | Self::File(node, _) | Self::Listing(node, _) => Ok(node),
            Self::Pool(_) | Self::PoolFile(..) => Err(Errno::PERM),
            _ => Err(Errno::BADF),
        }
    }
}

pub(crate) struct Session {
    shared: Arc<Shared>,
    peer: Peer,
    fids: BTreeMap<u32, Fid>,
    budget: Budget,
    /// Maximum message size, once negotiated.
    msize: Option<u32>,
    /// Whether the client may change how the server works.
    trusted: bool,
    attached: bool,
}

type Answer = Result<Outcome, Errno>;

fn done(reply: Reply<'static>) -> Answer {
    Ok(Outcome::Reply(reply))
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, peer: Peer, account: Arc<Account>) -> Self {
        let budget = Budget::new(shared.options.limits.nodes, account, shared.nodes_per_user);
        Self { shared, peer, fids: BTreeMap::new(), budget, msize: None, trusted: false, attached: false }
    }

    /// Releases everything the client holds.
    pub(crate) fn end(&mut self) {
        self.fids.clear();
    }

    /// Whether the client has attached.
    pub(crate) fn has_attached(&self) -> bool {
        self.attached
    }

    /// Maximum size of a message from the client.
    pub(crate) fn message_bytes(&self) -> u32 {
        self.msize.unwrap_or(MIN_MESSAGE)
    }

    /// Limits `count` to what one answer carries.
    fn limited(&self, count: u32) -> usize {
        (count as usize).min(self.message_bytes() as usize - READ_HEAD).min(self.shared.options.block_bytes)
    }

    /// Preferred size of reads and writes, in bytes.
    fn unit(&self) -> u32 {
        let most = self.limited(u32::MAX) as u32;
        if most >= 4096 { most / 4096 * 4096 } else { most }
    }

    fn export(&self) -> &Export {
        &self.shared.export
    }

    fn fid(&self, fid: u32) -> Result<&Fid, Errno> {
        self.fids.get(&fid).ok_or(Errno::BADF)
    }

    fn node(&self, fid: u32) -> Result<&Rc<Node>, Errno> {
        self.fid(fid)?.node()
    }

    /// A node about to be changed, or whose entries are; fails on a read-only export.
    fn changing(&self, fid: u32) -> Result<&Rc<Node>, Errno> {
        self.export().writable()?;
        self.node(fid)
    }

    fn file(&self, fid: u32) -> Result<&Rc<OpenFile>, Errno> {
        match self.fid(fid)? {
            Fid::File(_, file) => Ok(file),
            _ => Err(Errno::BADF),
        }
    }

    /// Checks that a fid is free and the client may have another.
    fn vacant(&self, fid: u32) -> Result<(), Errno> {
        if fid == NO_FID || self.fids.contains_key(&fid) {
            return Err(Errno::INVAL);
        }
        if self.fids.len() < self.shared.options.limits.fids { Ok(()) } else { Err(Errno::MFILE) }
    }

    /// Handles a request; refuses it unless a version was negotiated.
    pub(crate) fn handle(&mut self, request: Request<'_>) -> Answer {
        match request {
            Request::Version { msize, version } => return self.version(msize, &version),
            Request::Flush { oldtag } => return Ok(Outcome::Flush { oldtag }),
            _ if self.msize.is_none() => return Err(Errno::PROTO),
            _ => {}
        }
        match request {
            Request::Auth { .. } => self.auth(),
            Request::Attach { fid, aname, user, .. } => self.attach(fid, user, &aname),
            Request::Walk { fid, newfid, names } => self.walk(fid, newfid, &names),
            Request::Lopen { fid, flags } => self.open(fid, flags),
            Request::Lcreate { fid, name, flags, mode, .. } => self.create(fid, &name, flags, mode),
            Request::Read { fid, offset, count } => self.read(fid, offset, count),
            // The connection handles writes without this function.
            Request::Write { .. } => Err(Errno::PROTO),
            Request::Readdir { fid, offset, count } => self.read_directory(fid, offset, count),
            Request::Clunk { fid } => self.clunk(fid),
            Request::Remove { fid } => self.remove(fid),
            Request::Fsync { fid, datasync } => self.sync(fid, datasync != 0),
            Request::Xattrwalk { fid, newfid, name } => self.xattr_walk(fid, newfid, &name),
            Request::Xattrcreate { fid, name, size, flags } => self.xattr_create(fid, &name, size, flags),
            Request::Lock { fid, kind, start, length, .. } => {
                let wanted = Lock { kind: LockKind::of(kind)?, start, length };
                let file = self.file(fid)?;
                let status = if file.locks.set(&file.file, wanted)? { LOCKED } else { BLOCKED };
                done(Reply::Lock { status })
            }
            Request::Getlock { fid, kind, start, length, process, client } => {
                let wanted = Lock { kind: LockKind::of(kind)?, start, length };
                let Lock { kind, start, length } = would_lock(&self.file(fid)?.file, wanted)?;
                // The kernel reports what is locked, but not by whom. An unlocked range echoes the request.
                let (process, client) = match kind {
                    LockKind::Unlock => (process, Cow::Owned(client.into_owned())),
                    _ => (0, Cow::Borrowed(&b""[..])),
                };
                done(Reply::Getlock { kind: kind.number(), start, length, process, client })
            }
            other => self.handle_names(other),
        }
    }

    /// Handles requests about attributes and names.
    fn handle_names(&self, request: Request<'_>) -> Answer {
        let export = self.export();
        done(match request {
            Request::Statfs { fid } => self.file_system(fid)?,
            Request::Getattr { fid, .. } => Reply::Getattr { attributes: self.attributes(fid)? },
            Request::Setattr { fid, change } => self.set_attributes(fid, &change)?,
            Request::Readlink { fid } => {
                let target = self.node(fid)?.read_link()?;
                if HEADER + 2 + target.len() > self.message_bytes() as usize {
                    return Err(Errno::NAMETOOLONG);
                }
                Reply::Readlink { target: target.into() }
            }
            Request::Symlink { dfid, name, target, .. } => {
                Reply::Symlink { qid: self.changing(dfid)?.make_link(export, &name, &target)? }
            }
            Request::Mknod { dfid, name, mode, .. } => {
                Reply::Mknod { qid: self.changing(dfid)?.make_special(export, &name, mode)? }
            }
            Request::Mkdir { dfid, name, mode, .. } => {
                Reply::Mkdir { qid: self.changing(dfid)?.make_directory(export, &name, mode)? }
            }
            Request::Link { dfid, fid, name } => {
                self.changing(dfid)?.hard_link(self.node(fid)?, &name)?;
                Reply::Link {}
            }
            Request::Rename { fid, dfid, name } => {
                self.changing(fid)?.rename_self(self.node(dfid)?, &name)?;
                Reply::Rename {}
            }
            Request::Renameat { dfid, name, newdfid, newname } => {
                self.changing(dfid)?.rename(&name, self.node(newdfid)?, &newname)?;
                Reply::Renameat {}
            }
            Request::Unlinkat { dfid, name, flags } => {
                if flags & !REMOVE_DIRECTORY != 0 {
                    return Err(Errno::INVAL);
                }
                self.changing(dfid)?.unlink(&name, flags != 0)?;
                Reply::Unlinkat {}
            }
            _ => return Err(Errno::OPNOTSUPP),
        })
    }

    fn version(&mut self, msize: u32, version: &[u8]) -> Answer {
        self.fids.clear();
        self.trusted = false;
        self.msize = None;
        if msize < MIN_MESSAGE {
            return Err(Errno::INVAL);
        }
        let msize = msize.min(self.shared.options.message_bytes());
        // "9P2000.L.x" is that version with an unknown extension.
        let known =
            version == VERSION || version.strip_prefix(VERSION).is_some_and(|rest| rest.starts_with(b"."));
        if !known {
            return Ok(Outcome::Restart(Reply::Version { msize, version: Cow::Borrowed(b"unknown") }));
        }
        self.msize = Some(msize);
        Ok(Outcome::Restart(Reply::Version { msize, version: Cow::Borrowed(VERSION) }))
    }

    /// No authentication protocol: error 0 tells clients to attach without one.
    fn auth(&self) -> Answer {
        done(Reply::Error { code: 0 })
    }

    fn attach(&mut self, fid: u32, user: u32, name: &[u8]) -> Answer {
        self.vacant(fid)?;
        let shared = Arc::clone(&self.shared);
        let admitted = shared.options.access.admit(&self.peer, user, name).inspect_err(|error| {
            Counters::add(&shared.counters.refused, 1);
            if shared.may_log() {
                tracing::warn!(peer = ?self.peer, user, %error, "attach refused");
            }
        })?;
        let (new, qid) = if shared.options.pool_files && admitted.name == b"/pool" {
            (Fid::Pool(Place::Root), Place::Root.qid())
        } else {
            let node = self.attached(admitted.name)?;
            let qid = node.qid(&shared.export);
            (Fid::Node(node), qid)
        };
        (self.trusted, self.attached) = (admitted.trusted, true);
        self.fids.insert(fid, new);
        done(Reply::Attach { qid })
    }

    /// Resolves an attach name: empty or the export's own path for the root, or a path within.
    fn attached(&self, name: &[u8]) -> Result<Rc<Node>, Errno> {
        let own = self.export().path.as_os_str().as_encoded_bytes();
        let within =
            name.strip_prefix(own).filter(|rest| rest.is_empty() || rest.starts_with(b"/")).unwrap_or(name);
        let mut names = within.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        if names.clone().count() > MAX_NAMES_ATTACHED {
            return Err(Errno::NAMETOOLONG);
        }
        names.try_fold(self.export().root(&self.budget)?, |node, name| node.walk(name))
    }

    fn walk(&mut self, fid: u32, newfid: u32, names: &[Cow<'_, [u8]>]) -> Answer {
        if newfid != fid {
            self.vacant(newfid)?;
        }
        let (new, qids) = match self.fid(fid)? {
            Fid::Pool(place) | Fid::PoolFile(place, _) => {
                let (place, qids) =
                    walked(*place, names, |at, name| at.walk(&self.shared.pool, name), |at| at.qid())?;
                (Fid::Pool(place), qids)
            }
            other => {
                let start = Rc::clone(other.node()?);
                let (node, qids) =
                    walked(start, names, |at, name| at.walk(name), |at| at.qid(self.export()))?;
                (Fid::Node(node), qids)
            }
        };
        if qids.len() == names.len() {
            self.fids.insert(newfid, new);
        }
        done(Reply::Walk { qids })
    }

    fn open(&mut self, fid: u32, flags: u32) -> Answer {
        let flags = allowed_flags(flags)?;
        let changes = flags & OFlags::RWMODE != OFlags::RDONLY || flags.contains(OFlags::TRUNC);
        let opened = match self.fid(fid)? {
            Fid::Node(node) => {
                if changes {
                    self.export().writable()?;
                }
                opened(node, node.open(flags - OFlags::EXCL)?, flags)
            }
            Fid::Pool(place) => {
                if changes && !(place.is_control() && self.trusted) {
                    return Err(Errno::PERM);
                }
                let text = if place.is_directory() { String::new() } else { self.pool_text(*place)? };
                Fid::PoolFile(*place, text.into_bytes())
            }
            _ => return Err(Errno::BADF),
        };
        let qid = self.qid(&opened);
        self.fids.insert(fid, opened);
        done(Reply::Lopen { qid, iounit: self.unit() })
    }

    fn qid(&self, fid: &Fid) -> Qid {
        match fid {
            Fid::Node(node) | Fid::File(node, _) | Fid::Listing(node, _) => node.qid(self.export()),
            Fid::Pool(place) | Fid::PoolFile(place, _) => place.qid(),
            Fid::Xattr(_) | Fid::XattrWriter(_) => Qid::default(),
        }
    }

    fn pool_text(&self, place: Place) -> Result<String, Errno> {
        place.text(&self.shared.pool, &self.shared.counters.snapshot())
    }

    fn create(&mut self, fid: u32, name: &[u8], flags: u32, mode: u32) -> Answer {
        let flags = allowed_flags(flags)?;
        let Fid::Node(directory) = self.fid(fid)? else { return Err(Errno::BADF) };
        self.export().writable()?;
        let (node, file) = directory.create(name, flags, mode)?;
        let made = opened(&node, file, flags);
        self.fids.insert(fid, made);
        done(Reply::Lcreate { qid: node.qid(self.export()), iounit: self.unit() })
    }

    fn read(&self, fid: u32, offset: u64, count: u32) -> Answer {
        let count = self.limited(count);
        match self.fid(fid)? {
            Fid::File(_, file) => Ok(Outcome::Read { file: Rc::clone(file), offset, count }),
            Fid::Xattr(bytes) | Fid::PoolFile(_, bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let part = &bytes[from..][..count.min(bytes.len() - from)];
                done(Reply::Read { data: Data(part.to_vec().into()) })
            }
            Fid::Listing(..) => Err(Errno::ISDIR),
            _ => Err(Errno::BADF),
        }
    }

    /// Destination of a write to a fid.
    pub(crate) fn target(&self, fid: u32) -> Result<Target, Errno> {
        if self.msize.is_none() {
            return Err(Errno::PROTO);
        }
        match self.fid(fid)? {
            Fid::File(_, file) => Ok(Target::File(Rc::clone(file))),
            Fid::XattrWriter(_) | Fid::PoolFile(..) => Ok(Target::Bytes),
            _ => Err(Errno::BADF),
        }
    }

    /// Writes bytes to a fid that is not a file.
    pub(crate) fn write_bytes(&mut self, fid: u32, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        match self.fids.get_mut(&fid) {
            Some(Fid::XattrWriter(writer)) => writer.write(offset, bytes),
            Some(Fid::PoolFile(place, _)) if place.is_control() && self.trusted => {
                pool_files::control(&self.shared.pool, bytes)
            }
            _ => Err(Errno::BADF),
        }
    }

    fn read_directory(&mut self, fid: u32, offset: u64, count: u32) -> Answer {
        let room = self.limited(count);
        let shared = Arc::clone(&self.shared);
        let data = match self.fids.get_mut(&fid).ok_or(Errno::BADF)? {
            Fid::Listing(_, listing) => listing.read(&shared.export, offset, room)?,
            Fid::PoolFile(place, _) if place.is_directory() => place.entries(&shared.pool, offset, room),
            Fid::File(..) | Fid::PoolFile(..) => return Err(Errno::NOTDIR),
            _ => return Err(Errno::BADF),
        };
        done(Reply::Readdir { data: Data(data.into()) })
    }

    fn clunk(&mut self, fid: u32) -> Answer {
        match self.fids.remove(&fid).ok_or(Errno::BADF)? {
            Fid::XattrWriter(writer) => writer.finish()?,
            other => drop(other),
        }
        done(Reply::Clunk {})
    }

    /// Removes the file; releases the fid even on failure.
    fn remove(&mut self, fid: u32) -> Answer {
        let removed = self.fids.remove(&fid).ok_or(Errno::BADF)?;
        self.export().writable()?;
        removed.node()?.remove()?;
        done(Reply::Remove {})
    }

    fn sync(&self, fid: u32, data_only: bool) -> Answer {
        match self.fid(fid)? {
            Fid::File(_, file) => Ok(Outcome::Sync { file: Arc::clone(&file.file), data_only }),
            Fid::Listing(_, listing) => {
                Ok(Outcome::Sync { file: Arc::clone(listing.directory()), data_only })
            }
            _ => Err(Errno::BADF),
        }
    }

    fn xattr_walk(&mut self, fid: u32, newfid: u32, name: &[u8]) -> Answer {
        if newfid != fid {
            self.vacant(newfid)?;
        }
        self.room_for_xattr()?;
        let value = self.node(fid)?.xattr(name)?.0;
        let size = value.len() as u64;
        self.fids.insert(newfid, Fid::Xattr(value));
        done(Reply::Xattrwalk { size })
    }

    /// Fails if the client's fids hold too many bytes of extended attributes.
    fn room_for_xattr(&self) -> Result<(), Errno> {
        let held = self.fids.values().map(|fid| match fid {
            Fid::Xattr(bytes) => bytes.len(),
            Fid::XattrWriter(writer) => writer.size(),
            _ => 0,
        });
        if held.sum::<usize>() < MAX_XATTR_BYTES { Ok(()) } else { Err(Errno::NOMEM) }
    }

    fn xattr_create(&mut self, fid: u32, name: &[u8], size: u64, flags: u32) -> Answer {
        self.room_for_xattr()?;
        let writer = XattrWriter::new(Rc::clone(self.changing(fid)?), name, size, flags)?;
        self.fids.insert(fid, Fid::XattrWriter(writer));
        done(Reply::Xattrcreate {})
    }

    fn attributes(&self, fid: u32) -> Result<crate::codec::Attributes, Errno> {
        match self.fid(fid)? {
            Fid::Pool(place) | Fid::PoolFile(place, _) => {
                place.attributes(&self.shared.pool, &self.shared.counters.snapshot())
            }
            other => other.node()?.attributes(self.export(), u64::from(self.unit())),
        }
    }

    fn set_attributes(&self, fid: u32, change: &Change) -> Result<Reply<'static>, Errno> {
        match self.fid(fid)? {
            // Clients truncate a control file when they open it to write; ignored.
            Fid::Pool(place) | Fid::PoolFile(place, _) if place.is_control() && self.trusted => {}
            Fid::File(node, file) => {
                self.export().writable()?;
                file.drop_aheads();
                // A fid open for writing may truncate, even if the mode no longer allows it.
                let mut change = *change;
                if change.valid & change::SIZE != 0 && rustix::fs::ftruncate(&file.file, change.size).is_ok()
                {
                    change.valid &= !change::SIZE;
                }
                node.change(&change)?;
            }
            _ => self.changing(fid)?.change(change)?,
        }
        Ok(Reply::Setattr {})
    }

    fn file_system(&self, fid: u32) -> Result<Reply<'static>, Errno> {
        let node = match self.fid(fid)? {
            Fid::Pool(_) | Fid::PoolFile(..) => &self.export().root(&self.budget)?,
            other => other.node()?,
        };
        let stat = node.file_system()?;
        Ok(Reply::Statfs {
            kind: stat.f_type as u32,
            block: stat.f_bsize as u32,
            blocks: stat.f_blocks,
            free: stat.f_bfree,
            available: stat.f_bavail,
            files: stat.f_files,
            free_files: stat.f_ffree,
            fsid: 0,
            name_length: stat.f_namelen as u32,
        })
    }
}

fn opened(node: &Rc<Node>, file: OwnedFd, flags: OFlags) -> Fid {
    if node.kind() == FileType::Directory {
        return Fid::Listing(Rc::clone(node), Listing::new(file, node));
    }
    let append = flags.contains(OFlags::APPEND);
    Fid::File(Rc::clone(node), OpenFile::new(file, node.id(), append, node.account()))
}

/// Walks as far as names exist; fails if the first does not.
fn walked<P>(
    start: P,
    names: &[Cow<'_, [u8]>],
    step: impl Fn(&P, &[u8]) -> Result<P, Errno>,
    qid: impl Fn(&P) -> Qid,
) -> Result<(P, Vec<Qid>), Errno> {
    let mut at = start;
    let mut qids = Vec::with_capacity(names.len());
    for name in names {
        match step(&at, name) {
            Ok(next) => at = next,
            Err(error) if qids.is_empty() => return Err(error),
            Err(_) => break,
        }
        qids.push(qid(&at));
    }
    Ok((at, qids))
}
