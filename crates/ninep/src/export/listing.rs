//! An open directory, listed from any offset that an earlier listing returned.
//!
//! ```text
//! read(offset, room) ─ lseek ─ getdents64 ─► entries that fit, each with the offset after it
//! ```
//!
//! Offsets are the file system's own, so a listing continues correctly whatever is created or removed meanwhile. The
//! directory supplies all fields; files are not examined.

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, RawDir, SeekFrom};
use rustix::io::Errno;

use super::{Export, Node};
use crate::codec::Entry;

pub(crate) struct Listing {
    directory: Arc<OwnedFd>,
    device: u64,
    /// Offset of the descriptor, if known.
    place: Option<u64>,
}

impl Listing {
    pub(crate) fn new(directory: OwnedFd, node: &Node) -> Self {
        Self { directory: Arc::new(directory), device: node.id().0, place: Some(0) }
    }

    pub(crate) fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    /// Whole entries from `offset` on, at most `room` bytes; none at the end.
    pub(crate) fn read(&mut self, export: &Export, offset: u64, room: usize) -> Result<Vec<u8>, Errno> {
        if self.place.take() != Some(offset) {
            let place = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
            rustix::fs::seek(&self.directory, SeekFrom::Start(place.cast_unsigned()))?;
        }
        let mut raw = [MaybeUninit::uninit(); 8192];
        let mut entries = Vec::new();
        let mut stream = RawDir::new(&self.directory, &mut raw);
        while let Some(entry) = stream.next() {
            let entry = entry?;
            // Within a buffer the descriptor is ahead of the listing.
            self.place = None;
            let name = entry.file_name().to_bytes();
            if entries.len() + Entry::FIXED + name.len() > room {
                // The descriptor is ahead of the last entry returned.
                return if entries.is_empty() { Err(Errno::INVAL) } else { Ok(entries) };
            }
            let kind = entry.file_type();
            let qid = export.qid((self.device, entry.ino()), kind);
            let next = entry.next_entry_cookie();
            Entry { qid, next, kind: d_type(kind), name: Cow::Borrowed(name) }.put(&mut entries);
            if stream.is_buffer_empty() {
                self.place = Some(next);
                // With little room left, most of another buffer would be discarded.
                if room - entries.len() < 2048 {
                    return Ok(entries);
                }
            }
        }
        Ok(entries)
    }
}

/// The file type as in `d_type` (`dirent.h`).
fn d_type(kind: FileType) -> u8 {
    match kind {
        FileType::Fifo => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::RegularFile => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
        FileType::Unknown => 0,
    }
}
