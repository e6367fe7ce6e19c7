//! Extended attributes: read whole, written whole.
//!
//! ```text
//! Txattrwalk ─► XattrValue, read like a file        Txattrcreate ─► XattrWriter, written like a file ─ Tclunk ─► set
//! ```
//!
//! Only those of users (`user.…`) are told and changed: what else a file carries is the server's machine's affair.

use std::rc::Rc;

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use super::{Node, own_path};

const PREFIX: &[u8] = b"user.";
/// The most bytes of a value (`XATTR_SIZE_MAX`).
const MOST_VALUE: usize = 65_536;

/// A value, or the list of names with a zero after each.
pub(crate) struct XattrValue(pub(crate) Vec<u8>);

/// A value that is being written.
pub(crate) struct XattrWriter {
    node: Rc<Node>,
    name: Vec<u8>,
    flags: XattrFlags,
    size: usize,
    value: Vec<u8>,
}

fn check(name: &[u8]) -> Result<(), Errno> {
    if name.contains(&0) || name.len() > 255 {
        return Err(Errno::INVAL);
    }
    if name.starts_with(PREFIX) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

impl Node {
    pub(crate) fn xattr(&self, name: &[u8]) -> Result<XattrValue, Errno> {
        // Neither links nor special files have any of users.
        if !matches!(self.kind, FileType::RegularFile | FileType::Directory) {
            return if name.is_empty() { Ok(XattrValue(Vec::new())) } else { Err(Errno::NODATA) };
        }
        let path = own_path(self.descriptor());
        let mut bytes = vec![0; MOST_VALUE];
        if !name.is_empty() {
            check(name)?;
            let length = rustix::fs::getxattr(path, name, &mut bytes[..])?;
            bytes.truncate(length);
            bytes.shrink_to_fit();
            return Ok(XattrValue(bytes));
        }
        let length = rustix::fs::listxattr(path, &mut bytes[..])?;
        let names = bytes[..length].split_inclusive(|byte| *byte == 0);
        Ok(XattrValue(names.filter(|name| name.starts_with(PREFIX)).flatten().copied().collect()))
    }
}

impl XattrWriter {
    /// A value of `size` bytes; of none, the attribute is removed, unless it is to be created.
    pub(crate) fn new(node: Rc<Node>, name: &[u8], size: u64, flags: u32) -> Result<Self, Errno> {
        check(name)?;
        let size = usize::try_from(size).ok().filter(|size| *size <= MOST_VALUE).ok_or(Errno::TOOBIG)?;
        // The protocol's numbers are Linux's: 1 to create, 2 to replace.
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        Ok(Self { node, name: name.to_vec(), flags, size, value: Vec::with_capacity(size) })
    }

    /// Adds bytes, which must follow those that are there.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        if offset != self.value.len() as u64 || self.value.len() + bytes.len() > self.size {
            return Err(Errno::INVAL);
        }
        self.value.extend_from_slice(bytes);
        Ok(())
    }

    /// Sets it, when all bytes are there.
    pub(crate) fn finish(self) -> Result<(), Errno> {
        if self.value.len() != self.size {
            return Err(Errno::INVAL);
        }
        if !matches!(self.node.kind, FileType::RegularFile | FileType::Directory) {
            return Err(Errno::PERM);
        }
        let path = own_path(self.node.descriptor());
        // Linux asks for a removal as for a replacement by nothing.
        if self.size == 0 && !self.flags.contains(XattrFlags::CREATE) {
            return rustix::fs::removexattr(path, &self.name[..]);
        }
        rustix::fs::setxattr(path, &self.name[..], &self.value, self.flags)
    }
}
