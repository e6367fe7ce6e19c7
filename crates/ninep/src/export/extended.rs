//! Extended attributes: read and written as a whole.
//!
//! ```text
//! Txattrwalk ─► XattrValue, read like a file        Txattrcreate ─► XattrWriter, written like a file ─ Tclunk ─► set
//! ```
//!
//! Only user attributes (`user.…`) are visible and changeable; others belong to the server's machine.

use std::rc::Rc;

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use super::{Node, own_path};

const PREFIX: &[u8] = b"user.";
/// Maximum bytes of a value (`XATTR_SIZE_MAX`).
const MAX_VALUE: usize = 65_536;

/// A value, or the zero-terminated names.
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
        // Links and special files cannot have user attributes.
        if !matches!(self.kind, FileType::RegularFile | FileType::Directory) {
            return if name.is_empty() { Ok(XattrValue(Vec::new())) } else { Err(Errno::NODATA) };
        }
        let path = own_path(self.descriptor());
        let mut bytes = vec![0; MAX_VALUE];
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
    /// Prepares to write a value of `size` bytes; size 0 removes the attribute, unless it is to be created.
    pub(crate) fn new(node: Rc<Node>, name: &[u8], size: u64, flags: u32) -> Result<Self, Errno> {
        check(name)?;
        let size = usize::try_from(size).ok().filter(|size| *size <= MAX_VALUE).ok_or(Errno::TOOBIG)?;
        // Protocol and Linux use the same numbers: 1 to create, 2 to replace.
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        Ok(Self { node, name: name.to_vec(), flags, size, value: Vec::with_capacity(size) })
    }

    /// Bytes of the whole value.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Appends bytes; `offset` must be the end of the value.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        if offset != self.value.len() as u64 || self.value.len() + bytes.len() > self.size {
            return Err(Errno::INVAL);
        }
        self.value.extend_from_slice(bytes);
        Ok(())
    }

    /// Sets the attribute if the value is complete.
    pub(crate) fn finish(self) -> Result<(), Errno> {
        if self.value.len() != self.size {
            return Err(Errno::INVAL);
        }
        if !matches!(self.node.kind, FileType::RegularFile | FileType::Directory) {
            return Err(Errno::PERM);
        }
        let path = own_path(self.node.descriptor());
        // Linux's 9P client removes an attribute by replacing it with an empty value.
        if self.size == 0 && !self.flags.contains(XattrFlags::CREATE) {
            return rustix::fs::removexattr(path, &self.name[..]);
        }
        rustix::fs::setxattr(path, &self.name[..], &self.value, self.flags)
    }
}
