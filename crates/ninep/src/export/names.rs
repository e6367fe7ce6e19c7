//! Changes directories: creates, links, renames and removes names.
//!
//! ```text
//! make_directory, make_link, make_special, hard_link ─► the new file's qid        rename, unlink, remove
//! ```
//!
//! Each takes single names in directories that the client holds. The server never follows a link's target.

use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{Export, Node, RESOLVE, checked, own_path, permissions};
use crate::codec::Qid;

/// Maximum bytes of a link's target (`PATH_MAX`).
const MAX_TARGET: usize = 4095;

impl Node {
    fn qid_of(&self, export: &Export, name: &[u8]) -> Result<Qid, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat2(self.descriptor(), name, flags, Mode::empty(), RESOLVE)?;
        let stat = rustix::fs::fstat(made)?;
        Ok(export.qid((stat.st_dev, stat.st_ino), FileType::from_raw_mode(stat.st_mode)))
    }

    pub(crate) fn make_directory(&self, export: &Export, name: &[u8], mode: u32) -> Result<Qid, Errno> {
        let name = checked(name)?;
        rustix::fs::mkdirat(self.descriptor(), name, permissions(mode))?;
        self.qid_of(export, name)
    }

    pub(crate) fn make_link(&self, export: &Export, name: &[u8], target: &[u8]) -> Result<Qid, Errno> {
        let name = checked(name)?;
        if target.len() > MAX_TARGET {
            return Err(Errno::NAMETOOLONG);
        }
        rustix::fs::symlinkat(target, self.descriptor(), name)?;
        self.qid_of(export, name)
    }

    /// Creates a FIFO or socket if allowed; never a device.
    pub(crate) fn make_special(&self, export: &Export, name: &[u8], mode: u32) -> Result<Qid, Errno> {
        let name = checked(name)?;
        let kind = FileType::from_raw_mode(mode);
        let harmless = matches!(kind, FileType::Fifo | FileType::Socket | FileType::RegularFile);
        if !harmless || (kind != FileType::RegularFile && !export.special) {
            return Err(Errno::PERM);
        }
        rustix::fs::mknodat(self.descriptor(), name, kind, permissions(mode), 0 as Dev)?;
        self.qid_of(export, name)
    }

    pub(crate) fn hard_link(&self, target: &Self, name: &[u8]) -> Result<(), Errno> {
        let name = checked(name)?;
        if target.kind == FileType::Directory {
            return Err(Errno::PERM);
        }
        // The path in /proc leads to the held file; following it goes no further.
        let path = own_path(target.descriptor());
        rustix::fs::linkat(rustix::fs::CWD, path, self.descriptor(), name, AtFlags::SYMLINK_FOLLOW)
    }

    pub(crate) fn read_link(&self) -> Result<Vec<u8>, Errno> {
        if self.kind != FileType::Symlink {
            return Err(Errno::INVAL);
        }
        Ok(rustix::fs::readlinkat(self.descriptor(), c"", Vec::new())?.into_bytes())
    }

    pub(crate) fn rename(&self, name: &[u8], directory: &Self, new: &[u8]) -> Result<(), Errno> {
        let name = checked(name)?;
        let new = checked(new)?;
        rustix::fs::renameat_with(self.descriptor(), name, directory.descriptor(), new, RenameFlags::empty())
    }

    /// Renames the node, if its name still refers to it.
    pub(crate) fn rename_self(&self, directory: &Self, new: &[u8]) -> Result<(), Errno> {
        self.still_called()?.rename(&self.name, directory, new)
    }

    pub(crate) fn unlink(&self, name: &[u8], directory: bool) -> Result<(), Errno> {
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(self.descriptor(), checked(name)?, flags)
    }

    /// Unlinks the node, if its name still refers to it.
    pub(crate) fn remove(&self) -> Result<(), Errno> {
        self.still_called()?.unlink(&self.name, self.kind == FileType::Directory)
    }

    /// The parent, if the node's name there still refers to this file.
    fn still_called(&self) -> Result<&Self, Errno> {
        let parent = self.parent.as_ref().ok_or(Errno::BUSY)?;
        let stat = rustix::fs::statat(parent.descriptor(), &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (stat.st_dev, stat.st_ino) == self.id { Ok(parent) } else { Err(Errno::NOENT) }
    }
}
