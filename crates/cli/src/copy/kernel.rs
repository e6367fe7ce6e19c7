//! Copies between regular files that the kernel makes without this process: blocks shared, or bytes moved from page to page.
//!
//! ```text
//! FICLONE ─ not on this file system ─► SEEK_DATA, SEEK_HOLE ─► copy_file_range for each range of data ─ not here ─► None: the engine
//! ```
//!
//! Holes stay holes. Nothing here allocates memory for the contents.

use std::fs::File;
use std::io;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// Both files have the same blocks until one is changed.
    Shared,
    /// Their pages were copied.
    Moved,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copied {
    pub(super) how: How,
    /// Bytes without holes; not known where blocks are shared.
    pub(super) data: u64,
    pub(super) length: u64,
}

/// Bytes of one call: the kernel looks for signals in between.
const CALL_BYTES: u64 = 256 << 20;

/// Copies `source` to the empty `destination`. `None`: the kernel cannot copy between these two, and nothing was written.
/// `moved` hears how far the copy is.
///
/// # Errors
/// What the kernel says about either file.
pub(super) fn copy(
    source: &File,
    destination: &File,
    mut moved: impl FnMut(u64),
) -> io::Result<Option<Copied>> {
    if rustix::fs::ioctl_ficlone(destination, source).is_ok() {
        let length = destination.metadata()?.len();
        return Ok(Some(Copied { how: How::Shared, data: length, length }));
    }
    let mut position = 0;
    let mut data = 0;
    while let Some((start, end)) = next_data(source, position)? {
        position = start;
        let mut to = start;
        while position < end {
            let wanted = usize::try_from((end - position).min(CALL_BYTES)).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(source, Some(&mut position), destination, Some(&mut to), wanted)
            {
                // Shorter than it was, or a file system that says nothing and copies nothing.
                Ok(0) if data == 0 => return Ok(None),
                Ok(0) => break,
                Ok(bytes) => data += bytes as u64,
                Err(Errno::INTR) => {}
                Err(error) if data == 0 && is_refusal(error) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            moved(position);
        }
        if position < end {
            break;
        }
    }
    let length = source.metadata()?.len();
    if destination.metadata()?.len() < length {
        destination.set_len(length)?;
    }
    Ok(Some(Copied { how: How::Moved, data, length }))
}

/// First byte and end of the next range of data.
fn next_data(file: &File, position: u64) -> io::Result<Option<(u64, u64)>> {
    let length = file.metadata()?.len();
    match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Ok(start) => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(length);
            Ok(Some((start, end.max(start + 1))))
        }
        Err(Errno::NXIO) => Ok(None),
        // The file system does not tell holes from data.
        Err(_) => Ok((position < length).then_some((position, length))),
    }
}

/// Whether another way may copy what the kernel would not: other file systems, old kernels, files of special kinds.
fn is_refusal(error: Errno) -> bool {
    matches!(
        error,
        Errno::XDEV
            | Errno::NOSYS
            | Errno::OPNOTSUPP
            | Errno::INVAL
            | Errno::PERM
            | Errno::BADF
            | Errno::TXTBSY
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn file(name: &str) -> (File, std::path::PathBuf) {
        let path = std::env::temp_dir().join(format!("memferry-kernel-copy-{}-{name}", std::process::id()));
        let mut options = File::options();
        (options.read(true).write(true).create(true).truncate(true).open(&path).unwrap(), path)
    }

    #[test]
    fn data_and_holes_are_copied() {
        let (source, path) = file("source");
        let (destination, other_path) = file("destination");
        let data = vec![7; 100_000];
        source.write_all_at(&data, 1 << 20).unwrap();
        source.set_len(9 << 20).unwrap();
        // A file system of tests may have neither call.
        if let Some(copied) = copy(&source, &destination, |_| ()).unwrap() {
            assert_eq!(copied.length, 9 << 20);
            assert!(copied.how == How::Shared || copied.data < 1 << 20, "{copied:?}");
            assert!(destination.metadata().unwrap().blocks() * 512 < 1 << 20);
            assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&other_path).unwrap());
        }
        for path in [path, other_path] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn an_empty_file_and_a_hole_need_no_call() {
        let (source, path) = file("hole");
        let (destination, other_path) = file("hole-copy");
        for length in [0, 1 << 20] {
            source.set_len(length).unwrap();
            let copied = copy(&source, &destination, |_| ()).unwrap().unwrap();
            assert_eq!((copied.length, destination.metadata().unwrap().len()), (length, length));
        }
        for path in [path, other_path] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
