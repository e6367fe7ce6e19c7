//! Opens files, with error messages that name them.
//!
//! A source must be a regular file: a pipe or a device may be endless. A destination may be any writable file; it is truncated
//! only after the check that it is not the source.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::CommandError;

/// Opens a regular file for reading.
pub(crate) fn open_source(path: &Path) -> Result<(File, Metadata), CommandError> {
    let failed = |error| format!("cannot read {}: {error}", path.display());
    let about = std::fs::metadata(path).map_err(failed)?;
    if about.is_dir() {
        return Err(format!("{} is a directory; name one file", path.display()).into());
    }
    if !about.is_file() {
        return Err(format!("{} is not a regular file; name one", path.display()).into());
    }
    // If a pipe took its place meanwhile, opening that must not wait for a writer.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(format!("{} is not a regular file; name one", path.display()).into());
    }
    Ok((file, about))
}

/// Opens a file for writing from its start. A new file gets the permissions of `source`, if that is a file.
pub(crate) fn open_destination(path: &Path, source: Option<&Metadata>) -> Result<File, CommandError> {
    let failed = |error| format!("cannot write {}: {error}", path.display());
    let mode = source.map_or(0o666, |source| source.mode() & 0o777);
    if path.is_dir() {
        return Err(format!("{} is a directory; name the file to write in it", path.display()).into());
    }
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(mode).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if source.is_some_and(|source| (about.dev(), about.ino()) == (source.dev(), source.ino())) {
        return Err(format!("{} is the source itself; nothing was changed", path.display()).into());
    }
    // Truncating even an empty file makes ext4 write the new one to its disk when it is closed.
    if about.is_file() && about.len() > 0 {
        file.set_len(0).map_err(failed)?;
    }
    Ok(file)
}
