//! A node's attributes: told, and changed.
//!
//! ```text
//! attributes ─ fstat ─► Attributes        change ─ chmod, chown, utimensat through the node's own descriptor, ftruncate
//! ```
//!
//! Owners are told as they are on disk and set as the client says; whether the server's user may is the kernel's answer.

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

    /// Changes what `change.valid` names. The size comes first: what follows sets the times that it changes.
    pub(crate) fn change(&self, change: &Change) -> Result<(), Errno> {
        let asked = |bit| change.valid & bit != 0;
        // To the kernel this number means that nothing changes.
        if asked(change::UID) && change.uid == u32::MAX || asked(change::GID) && change.gid == u32::MAX {
            return Err(Errno::INVAL);
        }
        if asked(change::SIZE) {
            if self.kind != FileType::RegularFile {
                return Err(if self.kind == FileType::Directory { Errno::ISDIR } else { Errno::INVAL });
            }
            rustix::fs::ftruncate(self.open(OFlags::WRONLY)?, change.size)?;
        }
        if asked(change::MODE) {
            // A link has no permissions of its own.
            if self.kind == FileType::Symlink {
                return Err(Errno::OPNOTSUPP);
            }
            rustix::fs::chmod(own_path(self.descriptor()), permissions(change.mode))?;
        }
        if asked(change::UID | change::GID) {
            let owner = asked(change::UID).then(|| Uid::from_raw(change.uid));
            let group = asked(change::GID).then(|| Gid::from_raw(change.gid));
            rustix::fs::chownat(self.descriptor(), c"", owner, group, AtFlags::EMPTY_PATH)?;
        }
        if asked(change::ATIME | change::MTIME) {
            let times = Timestamps {
                last_access: time(
                    asked(change::ATIME),
                    asked(change::ATIME_SET),
                    (change.atime, change.atime_nanos),
                )?,
                last_modification: time(
                    asked(change::MTIME),
                    asked(change::MTIME_SET),
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

/// A time to set: left alone, now, or as given.
fn time(asked: bool, given: bool, (seconds, nanos): (u64, u64)) -> Result<Timespec, Errno> {
    Ok(match (asked, given) {
        (false, _) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        (true, false) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        (true, true) if nanos >= 1_000_000_000 => return Err(Errno::INVAL),
        (true, true) => Timespec { tv_sec: seconds.cast_signed(), tv_nsec: nanos as _ },
    })
}
