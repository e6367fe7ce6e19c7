//! Copies between regular files without an engine: blocks shared, bytes moved from page to page by the kernel, or read and written.
//!
//! ```text
//! FICLONE ─ not on this file system ─► each range of data: copy_file_range ─ not between these two ─► read, write
//! ```
//!
//! Holes stay holes. Since Linux 5.19 the kernel copies between two file systems only if they are of one kind.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::source::{Next, next_data};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// Both files have the same blocks until one is changed.
    Shared,
    /// The kernel copied their pages.
    Moved,
    /// This process read and wrote them.
    Written,
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
/// Bytes read at a time.
const READ_BYTES: usize = 256 << 10;

/// Copies `source` to the empty `destination`. `moved` is called with how far the copy has come.
///
/// # Errors
/// What the kernel says about either file.
pub(super) fn copy(source: &File, destination: &File, moved: impl FnMut(u64)) -> io::Result<Copied> {
    if rustix::fs::ioctl_ficlone(destination, source).is_ok() {
        let length = destination.metadata()?.len();
        return Ok(Copied { how: How::Shared, data: length, length });
    }
    copy_data(source, destination, moved, |position, wanted| {
        let mut from = position;
        let mut to = position;
        rustix::fs::copy_file_range(source, Some(&mut from), destination, Some(&mut to), wanted)
    })
}

/// Copies the data. `call` is `copy_file_range` at a position of both files.
fn copy_data(
    source: &File,
    destination: &File,
    mut moved: impl FnMut(u64),
    mut call: impl FnMut(u64, usize) -> rustix::io::Result<usize>,
) -> io::Result<Copied> {
    let mut how = How::Moved;
    let mut buffer = Vec::new();
    let mut position = 0;
    let mut data = 0;
    let length = 'copied: loop {
        let range = match next_data(source, position)? {
            Next::Data(range) => range,
            Next::End { length } => break length,
        };
        position = range.start;
        while position < range.end {
            let left = range.end - position;
            let mut bytes = 0;
            if buffer.is_empty() {
                match call(position, usize::try_from(left.min(CALL_BYTES)).unwrap_or(usize::MAX)) {
                    Ok(count) => bytes = count,
                    Err(Errno::INTR) => continue,
                    Err(error) if is_refusal(error) => buffer.resize(READ_BYTES, 0),
                    Err(error) => return Err(error.into()),
                }
            }
            // Nothing from the kernel is the end of the file, or a file system that says nothing and copies nothing.
            if bytes == 0 {
                buffer.resize(READ_BYTES, 0);
                let room = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                bytes = match source.read_at(&mut buffer[..room], position) {
                    // It ends here, perhaps because it became shorter.
                    Ok(0) => break 'copied position,
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                destination.write_all_at(&buffer[..bytes], position)?;
                how = How::Written;
            }
            position += bytes as u64;
            data += bytes as u64;
            moved(position);
        }
    };
    if destination.metadata()?.len() < length {
        destination.set_len(length)?;
    }
    Ok(Copied { how, data, length })
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
        let copied = copy(&source, &destination, |_| ()).unwrap();
        assert_eq!(copied.length, 9 << 20);
        assert!(copied.how == How::Shared || copied.data < 1 << 20, "{copied:?}");
        assert!(destination.metadata().unwrap().blocks() * 512 < 1 << 20);
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&other_path).unwrap());
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
            let copied = copy(&source, &destination, |_| ()).unwrap();
            assert_eq!((copied.length, destination.metadata().unwrap().len()), (length, length));
        }
        for path in [path, other_path] {
            std::fs::remove_file(path).unwrap();
        }
    }

    /// Copies 3 MiB behind a hole of 1 MiB, with `call` for `copy_file_range`.
    fn copied_by(
        name: &str,
        call: impl FnMut(u64, usize) -> rustix::io::Result<usize>,
    ) -> io::Result<Copied> {
        let (source, path) = file(&format!("{name}-from"));
        let (destination, other_path) = file(&format!("{name}-to"));
        let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 251 + at) as u8).collect();
        source.write_all_at(&data, 1 << 20).unwrap();
        let mut call = call;
        let mut first = true;
        let copied = copy_data(
            &source,
            &destination,
            |_| (),
            |position, wanted| {
                let count = call(position, wanted)?;
                if first && count > 0 {
                    let start = (position - (1 << 20)) as usize;
                    destination.write_all_at(&data[start..start + count], position).unwrap();
                    first = false;
                }
                Ok(count)
            },
        );
        if copied.is_ok() {
            assert!(std::fs::read(&path).unwrap() == std::fs::read(&other_path).unwrap());
        }
        for path in [path, other_path] {
            std::fs::remove_file(path).unwrap();
        }
        copied
    }

    #[test]
    fn what_the_kernel_refuses_is_read_and_written() {
        for refusal in [Errno::XDEV, Errno::NOSYS, Errno::INVAL] {
            let copied = copied_by("refused", |_, _| Err(refusal)).unwrap();
            assert_eq!(copied, Copied { how: How::Written, data: 3 << 20, length: 4 << 20 });
        }
        let copied = copied_by("silent", |_, _| Ok(0)).unwrap();
        assert_eq!(copied, Copied { how: How::Written, data: 3 << 20, length: 4 << 20 });
        assert!(copied_by("full", |_, _| Err(Errno::NOSPC)).is_err());
    }

    #[test]
    fn what_the_kernel_leaves_out_is_read_and_written() {
        let mut answers = [Err(Errno::INTR), Ok(12_345)].into_iter();
        let copied = copied_by("partly", |_, _| answers.next().unwrap_or(Ok(0))).unwrap();
        assert_eq!(copied, Copied { how: How::Written, data: 3 << 20, length: 4 << 20 });
    }
}
