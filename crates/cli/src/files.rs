//! Opening files with messages that name them.
//!
//! A source must be a regular file: a pipe or a device may have no end. A destination may be anything that takes bytes,
//! and is emptied only once it is known not to be the source.

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::CommandError;

/// Opens a regular file to be read.
pub(crate) fn open_source(path: &Path) -> Result<(File, Metadata), CommandError> {
    let failed = |error| format!("cannot read {}: {error}", path.display());
    let about = std::fs::metadata(path).map_err(failed)?;
    if about.is_dir() {
        return Err(format!("{} is a directory; name one file", path.display()).into());
    }
    if !about.is_file() {
        return Err(format!("{} is no regular file", path.display()).into());
    }
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    Ok((file, about))
}

/// Opens a file to be written from its start, made with the permissions of `source` when it is new.
pub(crate) fn open_destination(path: &Path, source: &Metadata) -> Result<File, CommandError> {
    let failed = |error| format!("cannot write {}: {error}", path.display());
    let mode = source.mode() & 0o777;
    if path.is_dir() {
        return Err(format!("{} is a directory; name the file to write in it", path.display()).into());
    }
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(mode).open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if (about.dev(), about.ino()) == (source.dev(), source.ino()) {
        return Err(format!("{} is the source itself; nothing was changed", path.display()).into());
    }
    if about.is_file() {
        file.set_len(0).map_err(failed)?;
    }
    Ok(file)
}
