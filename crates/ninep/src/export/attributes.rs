//! Reads and changes a node's attributes.
//!
//! ```text
//! attributes ─ fstat ─► Attributes        change ─ chmod, chown, utimensat through the node's descriptor, ftruncate
//! ```
//!
//! Owners are passed through unchanged in both directions; the kernel decides what the server's user may set.

use rustix::fs::{AtFlags, FileType, Gid, OFlags, StatFs, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::{Export, Node, own_path, permissions};
use crate::codec::{Attributes, BASIC_ATTRIBUTES, Change, change};

impl Node {
    pub(crate) fn attributes(&self, export: &Export, block: u64) -> Result<Attributes, Errno> {
        let stat = rustix::fs::fstat(self.descriptor())?;
        Ok(Attributes {
            valid: BASIC_ATTRIBUTES,
            qid: self.qid(export),
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: stat.st_nlink as u64,
            rdev: stat.st_rdev,
            size: stat.st_size.cast_unsigned(),
            block,
            blocks: stat.st_blocks.cast_unsigned(),
            atime: stat.st_atime.cast_unsigned(),
            atime_nanos: stat.st_atime_nsec as u64,
            mtime: stat.st_mtime.cast_unsigned(),
            mtime_nanos: stat.st_mtime_nsec as u64,
            ctime: stat.st_ctime.cast_unsigned(),
            ctime_nanos: stat.st_ctime_nsec as u64,
            ..Attributes::default()
        })
    }

    /// Changes what `change.valid` names. The size comes first, because truncation changes times set later.
    pub(crate) fn change(&self, change: &Change) -> Result<(), Errno> {
        let requested = |bit| change.valid & bit != 0;
        // To the kernel u32::MAX means "unchanged".
        if requested(change::UID) && change.uid == u32::MAX
            || requested(change::GID) && change.gid == u32::MAX
        {
            return Err(Errno::INVAL);
        }
        if requested(change::SIZE) {
            if self.kind != FileType::RegularFile {
                return Err(if self.kind == FileType::Directory { Errno::ISDIR } else { Errno::INVAL });
            }
            rustix::fs::ftruncate(self.open(OFlags::WRONLY)?, change.size)?;
        }
        if requested(change::MODE) {
            // Links have no permissions.
            if self.kind == FileType::Symlink {
                return Err(Errno::OPNOTSUPP);
            }
            rustix::fs::chmod(own_path(self.descriptor()), permissions(change.mode))?;
        }
        if requested(change::UID | change::GID) {
            let owner = requested(change::UID).then(|| Uid::from_raw(change.uid));
            let group = requested(change::GID).then(|| Gid::from_raw(change.gid));
            rustix::fs::chownat(self.descriptor(), c"", owner, group, AtFlags::EMPTY_PATH)?;
        }
        if requested(change::ATIME | change::MTIME) {
            let times = Timestamps {
                last_access: time(
                    requested(change::ATIME),
                    requested(change::ATIME_SET),
                    (change.atime, change.atime_nanos),
                )?,
                last_modification: time(
                    requested(change::MTIME),
                    requested(change::MTIME_SET),
                    (change.mtime, change.mtime_nanos),
                )?,
            };
            rustix::fs::utimensat(self.descriptor(), c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    pub(crate) fn file_system(&self) -> Result<StatFs, Errno> {
        rustix::fs::fstatfs(self.descriptor())
    }
}

/// Converts a time: unchanged, now, or the given one.
fn time(requested: bool, given: bool, (seconds, nanos): (u64, u64)) -> Result<Timespec, Errno> {
    Ok(match (requested, given) {
        (false, _) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        (true, false) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        (true, true) if nanos >= 1_000_000_000 => return Err(Errno::INVAL),
        (true, true) => Timespec { tv_sec: seconds.cast_signed(), tv_nsec: nanos as _ },
    })
}
